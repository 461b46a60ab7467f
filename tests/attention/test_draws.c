// tests/attention/test_draws.c - rows of a draw, by brute force and closed forms: the tile budgets of santa-flash, the uniform
// part of santa-is and the masses of truncated rows, the sum of all masses, topp at equal masses, the fewest draws for a stated
// error, budgets by variance, the reports of a step, and --value=adds.
#include "attention/stages/stages.h"
#include "backend/backend.h"
#include "tests/support/counters.h"
#include "tests/support/reference.h"
#include "tests/test.h"
#include "tests/support/draw_inputs.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

// ---- santa-flash ----

// S_t is S / T to the nearest integer, halves up, at least 1: for every S from 1 to 3 T, and for every kind of remainder
// beyond.
static void tile_budgets(void) {
    static const int n_rows[] = {200, 512, 700, 1024, 2500};
    for (int l = 0; l < 5; l++) {
        sample s = sample_new(n_rows[l], FLAT, test_seed + l);
        int T = (n_rows[l] + SL_TILE - 1) / SL_TILE;
        for (int S = 1; S <= 3 * T + 100; S++) {
            uint32_t r = (uint32_t)S;
            int want = 1; // the first integer that is no further from S / T than the next one
            while (want + 1 - (double)S / T <= (double)S / T - want) want++;
            sl_draw_tiles_uniform(&s.masses, S, (sl_uniform){uniform_random, &r}, &s.draws);
            if (s.draws.n_draws != T * want) FAIL("S=%d in %d tiles: %d draws, expected %d", S, T, s.draws.n_draws, T * want);
        }
        sample_free(&s);
    }
}

// ---- santa-is ----

// One draw of proposed rows: pi_j = 0.99 p_j + 0.01 / n, with p_j over the rows before the newest page. The last number below 1
// and the number 0 draw the last and the first row, whose p_j may be almost 0.
static void uniform_part(void) {
    static const int n_rows[] = {257, 700, 2500};
    static const uint64_t ends[] = {0, UINT64_MAX};
    sl_error err;
    sl_attn_spec spec;
    CHECK_OK(sl_attn_parse("santa-is:S=1:budget=even", &spec, &err), err);
    sl_attn_decode_args args = {.spec = &spec};
    for (int k = 0; k < N_SHAPES; k++)
        for (int l = 0; l < 3; l++) {
            sample s = sample_new(n_rows[l], shapes[k], test_seed + 5 * k + l);
            int n = s.masses.n, n_proposed = (n - 1) / 256 * 256;
            double total = 0, *weight = malloc(n * sizeof *weight);
            int top = SL_REF_EMPTY;
            sl_kv_view kv = {.n_kv = n};
            sl_group group = {.args = &args, .kv = &kv};
            for (int b = 0; b < n_proposed / SL_BLOCK; b++) top = s.masses.ref[b] > top ? s.masses.ref[b] : top;
            for (int j = 0; j < n_proposed; j++)
                total += weight[j] = ldexp(sl_bf16_to_f32(s.masses.stored[j]), s.masses.ref[j / SL_BLOCK] - top);
            for (uint32_t r = 0; r < 40; r++) {
                sl_uniform u = r < 2 ? (sl_uniform){uniform_fixed, &ends[r]} : (sl_uniform){uniform_random, &r};
                sl_head x = {.group = &group, .masses = s.masses, .S = 1, .u = u, .draws = s.draws};
                sl_draw_importance.prepare(&x);
                sl_draw_importance.run(&x);
                int j = x.draws.row[0];
                CHECK_INT(x.draws.n, 1 + n - n_proposed);
                CHECK(j < n_proposed);
                double pi = 0.99 * weight[j] / total + 0.01 / n_proposed;
                // masses are integers, in units of 2^-38 of the largest reference or less
                if (!(fabs(x.draws.inv_pi[0] * pi - 1) < 1e-5))
                    FAIL("n=%d, shape %d, row %d: pi %.9g, expected %.9g", n, k, j, 1 / x.draws.inv_pi[0], pi);
                for (int i = 1; i < x.draws.n; i++) CHECK(x.draws.row[i] == n_proposed + i - 1 && x.draws.inv_pi[i] == 1);
            }
            free(weight);
            sample_free(&s);
        }
}

// The newest page outweighs the rows before it by some octaves. After truncation the other rows must have all bits: their
// masses are floor(stored 2^30) times a factor that is equal for every row of the largest reference.
static void kept_masses(void) {
    enum { N = 256, ALL = 288 };
    for (int octaves = 0; octaves <= 70; octaves++) {
        uint64_t seed = test_seed + (uint64_t)octaves;
        sample s = sample_new(ALL, PEAKED, seed);
        for (int b = 0; b < ALL / SL_BLOCK; b++) {
            s.masses.ref[b] = (int16_t)(b == ALL / SL_BLOCK - 1 ? octaves : b % 2 ? 0 : -3);
            s.masses.cum[b + 1] = 0;
            for (int i = b * SL_BLOCK; i < (b + 1) * SL_BLOCK; i++) {
                s.masses.stored[i] = sl_f32_to_bf16((float)exp2(-23 * test_uniform(&seed)));
                s.masses.cum[b + 1] += (uint64_t)(sl_bf16_to_f32(s.masses.stored[i]) * 0x1p30);
            }
        }
        sl_masses_finish(&s.masses);
        sl_masses_truncate(&s.masses, N);
        CHECK_INT(s.masses.n, N);
        double unit = 0;
        for (int j = 0; j < N; j++) {
            uint64_t whole = (uint64_t)(sl_bf16_to_f32(s.masses.stored[j]) * 0x1p30), mass = sl_masses_of_row(&s.masses, j);
            if (s.masses.ref[j / SL_BLOCK] < 0) { // three octaves below: 8 spare bits hold the whole mass
                if (unit == 0) continue;
                whole >>= 3; // up to rounding
                CHECK_NEAR((double)mass, whole * unit, 2 * unit);
                continue;
            }
            if (unit == 0) unit = (double)mass / (double)whole;
            if ((double)mass != (double)whole * unit)
                FAIL("%d octaves: row %d has mass %llu, its block %llu times %g", octaves, j, (unsigned long long)mass,
                     (unsigned long long)whole, unit);
        }
        CHECK(unit >= 1);
        sample_free(&s);
    }
}

// Blocks from 0 to 63 octaves below the top block. The mass of a row is the difference of two running sums that are rounded
// down, so it differs from stored * 2^38 of its octaves by at most 1. The masses of all rows add up to the total, because draws
// rely on it.
static void masses_add_up(void) {
    enum { N = 64 * SL_BLOCK - 5 };
    for (int mixed = 0; mixed < 2; mixed++) {
        sample s = sample_new(N, PEAKED, test_seed);
        for (int b = 0; b < s.masses.n_blocks; b++) {
            s.masses.ref[b] = (int16_t)-b;
            s.masses.cum[b + 1] = 0;
            for (int i = b * SL_BLOCK; i < (b + 1) * SL_BLOCK; i++)
                s.masses.cum[b + 1] += (uint64_t)(sl_bf16_to_f32(s.masses.stored[i]) * 0x1p30);
        }
        sl_masses_finish(&s.masses);
        if (mixed) sl_masses_mix(&s.masses, 0.01);
        uint64_t sum = 0, masses[SL_BLOCK];
        for (int j = 0; j < N; j++) {
            uint64_t mass = sl_masses_of_row(&s.masses, j);
            double want =
                floor(sl_bf16_to_f32(s.masses.stored[j]) * 0x1p30) * exp2(8 - j / SL_BLOCK) + (double)s.masses.uniform;
            if (!(fabs((double)mass - want) <= 1)) FAIL("row %d: mass %llu, expected %.1f", j, (unsigned long long)mass, want);
            sum += mass;
            CHECK(sl_masses_running(&s.masses, j) == sum);
            if (j % SL_BLOCK == 0) sl_masses_of_block(&s.masses, j / SL_BLOCK, masses);
            CHECK(masses[j % SL_BLOCK] == mass);
        }
        CHECK(sum == sl_masses_total(&s.masses));
        sample_free(&s);
    }
}

// ---- topp ----

static int descending(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return (x < y) - (x > y);
}

// Masses are multiples of an eighth, so every sum is exact. The expected rows are found by sorting: the fewest rows that reach
// p of the total, the lower row first on ties.
static void fewest_rows(void) {
    static const int n_rows[] = {32, 96, 1000, 1024};
    sl_error err;
    CHECK_OK(sl_cpu_choose(&err), err); // chooses the kernels
    for (int l = 0; l < 4; l++)
        for (int levels = 1; levels <= 4; levels++) {
            int n = n_rows[l], n_blocks = (n + SL_BLOCK - 1) / SL_BLOCK;
            uint64_t seed = test_seed + 10 * l + levels;
            bf16 *w = calloc(n_blocks * SL_BLOCK, sizeof *w);
            int16_t *ref = calloc(n_blocks, sizeof *ref);
            uint64_t *cum = calloc(n_blocks + 1, sizeof *cum);
            double *weight = malloc(n * sizeof *weight), *sorted = malloc(n * sizeof *sorted), total = 0;
            int32_t *rows = malloc(n * sizeof *rows);
            for (int j = 0; j < n; j++) {
                weight[j] = exp2(-(int)(levels * test_uniform(&seed)));
                w[j] = sl_f32_to_bf16((float)weight[j]);
                total += sorted[j] = weight[j];
                cum[j / SL_BLOCK + 1] += (uint64_t)(weight[j] * 0x1p30);
            }
            sl_masses masses = {.n = n, .n_blocks = n_blocks, .stored = w, .ref = ref, .cum = cum};
            sl_masses_finish(&masses);
            qsort(sorted, n, sizeof *sorted, descending);
            for (int i = 1; i <= 128; i++) {
                double p = i / 128.0, sum = 0; // p total is exact
                int want = 0, at = 0, n_least = 0;
                while (sum < p * total) sum += sorted[want++];
                for (int k = 0; k < want; k++) n_least += sorted[k] == sorted[want - 1];
                int got = sl_masses_reaching(&masses, p, rows);
                if (got != want) FAIL("n=%d, %d levels, p=%g: %d rows, expected %d", n, levels, p, got, want);
                for (int j = 0; j < n; j++)
                    if (weight[j] > sorted[want - 1] || (weight[j] == sorted[want - 1] && n_least-- > 0))
                        CHECK_INT(rows[at++], j);
            }
            free(w), free(ref), free(cum), free(weight), free(sorted), free(rows);
        }
}

// ---- a stated error: the fewest draws ----

static double half_width(const void *ctx, double light, int k) { // falls with k, rises with light
    return light / sqrt(k) * (1 + *(const double *)ctx / k);
}

// Total size of light rows, and their draws, with S draws in all. By the definition, heavy rows are above light / (S - heavy).
static void split(const double *sorted, int n, int S, double total, double *light, int *k) {
    int h = 0;
    for (*light = total; h < n && h < S - 1 && sorted[h] * (S - h) > *light; h++) *light -= sorted[h];
    *k = S - h;
}

static void fewest_draws(void) {
    static const int n_rows[] = {31, 300, 2500};
    for (int k = 0; k < 2; k++)
        for (int l = 0; l < 3; l++) {
            int n = n_rows[l], most = n / 2;
            sample s = sample_new(n, shapes[k], test_seed + 3 * k + l);
            double *sorted = malloc(n * sizeof *sorted), total = (double)sl_masses_total(&s.sizes), ctx = 0.7;
            for (int j = 0; j < n; j++) sorted[j] = (double)sl_masses_of_row(&s.sizes, j);
            qsort(sorted, n, sizeof *sorted, descending);
            for (int i = 0; i < 40; i++) {
                double light, target;
                int draws, want = 0, of = 1 + i * most / 36; // of > most: no plan
                split(sorted, n, of, total, &light, &draws);
                target = half_width(&ctx, light, draws); // exactly the bound of `of` draws
                for (int S = 1; S <= most && !want; S++) {
                    split(sorted, n, S, total, &light, &draws);
                    if (half_width(&ctx, light, draws) <= target) want = S;
                }
                int got = sl_plan_take_all(&s.sizes, most, target, half_width, &ctx, &s.draws);
                if (got != want) FAIL("n=%d, shape %d: %d draws, expected %d", n, k, got, want);
                if (of <= most) CHECK(want > 0 && want <= of);
            }
            free(sorted);
            sample_free(&s);
        }
}

// ---- reports ----

// Effective sample size (sum x)^2 / sum x^2 of coefficients whose sum is far from 1: 7 rows of coefficient 256 and 256 rows of
// 1; parts of the mass; 8 rows that stand for all.
static void effective_samples(void) {
    static const struct {
        const char *attn;
        double ess;
    } t[] = {{"santa-strat:S=8", 8},
             {"santa-flash:S=16", 16},
             {"santa-pps:S=24", 24},
             {"santa-is:S=7", 2048.0 * 2048 / (7 * 65536 + 256)},
             {"topk:k=100", 100},
             {"topp:p=0.25", 512},
             {"quest:tokens=64", 64}};
    ref_cache c = counter_cache(8, 2, 1);
    for (size_t i = 0; i < sizeof t / sizeof *t; i++) {
        ref_decode(&c, t[i].attn, 0, 1, 1, 0);
        for (int head = 0; head < 8; head++)
            if (!(fabs(c.reports[head].ess / t[i].ess - 1) < 1e-5))
                FAIL("%s, head %d: %g effective samples, expected %g", t[i].attn, head, c.reports[head].ess, t[i].ess);
    }
    ref_cache_free(&c);
}

// Row j has the value e_j, so an output is positive in the channels of the rows that its head drew. The test counts the rows of
// a KV head that at least one of its heads drew, by brute force.
static void distinct_rows(void) {
    enum { N = 128, HEADS_OF = 4, ALL = 2 * HEADS_OF };
    static const int n = N;
    static const char *const methods[] = {"santa:S=20",  "santa-sys:S=20", "santa-pps:S=20", "santa-prop:S=20",
                                          "random:S=20", "topk:k=20",      "topp:p=0.3",     "streaming:sink=4:window=20"};
    ref_cache c = ref_cache_new(ALL, 2, N, 1, &n, 1, test_seed);
    for (int i = 0; i < 2 * N * N; i++)
        ((bf16 *)ref_v_row(&c, 0, i / N / N, i / N % N))[i % N] = sl_f32_to_bf16(i / N % N == i % N);
    for (size_t m = 0; m < sizeof methods / sizeof *methods; m++) {
        ref_decode(&c, methods[m], 0, 1, 1, 0);
        for (int first = 0; first < ALL; first += HEADS_OF) {
            char seen[N] = {0};
            int want = 0;
            for (int head = first; head < first + HEADS_OF; head++) {
                int rows = 0;
                for (int j = 0; j < N; j++) {
                    int is_drawn = c.out[head * N + j] > 0;
                    rows += is_drawn, want += is_drawn && !seen[j];
                    seen[j] |= (char)is_drawn;
                }
                if ((int)c.reports[head].v_rows != rows)
                    FAIL("%s, head %d: %d rows, expected %d", methods[m], head, (int)c.reports[head].v_rows, rows);
            }
            for (int head = first; head < first + HEADS_OF; head++)
                if ((int)c.reports[head].v_distinct != want)
                    FAIL("%s, head %d: %d distinct rows, expected %d", methods[m], head, (int)c.reports[head].v_distinct, want);
        }
    }
    ref_cache_free(&c);
}

// Rows and bytes of one KV head: rows of K and V at 2 head_dim bytes, norms at 2 bytes a row (built or not), page extras. In
// the second run, head 0 has scores out of the range of stored masses, so its KV head reads every row exactly.
static void bytes_read(void) {
    enum { N = 900, N_BUILT = 768, NEW = N - N_BUILT, ROW = 64 * 2 };
    static const int n = N;
    static const struct {
        const char *attn;
        int k, norms, extra, refines; // rows of K; 1: norms are read; bytes of page extras; 1: drawn rows of K are read too
    } t[] = {{"santa-sys:S=40", N, 0, 0, 0},
             {"santa-pps:S=40", N, 1, 0, 0},
             {"santa-pps:S=40:budget=variance", N, 1, 0, 0},
             {"santa-strat:S=40", N, 0, 0, 0},
             {"santa-strat:S=40:budget=variance", N, 1, 0, 0},
             {"topk:k=40", N, 0, 0, 0},
             {"vattention", N, 0, 0, 0},
             {"vattention:bound=bernstein", N, 1, 0, 0},
             {"vattention:bound=bernstein:verify=denominator", N, 0, 0, 0},
             {"random:S=40", 0, 0, 0, 1},
             {"quest:tokens=64", NEW, 0, N_BUILT / 16 * 2 * 64 * 2, 1},
             {"santa-is:S=40:proposal=int8", NEW, 0, N_BUILT * 64 + 3 * 2 * 2 * 64, 1},
             {"santa-is:S=40:proposal=int4", NEW, 0, N_BUILT * 64 / 2 + 3 * 2 * 2 * 64, 1},
             {"dense", N, 0, 0, 0}};
    ref_cache c = ref_cache_new(6, 2, 64, 1, &n, 1, test_seed);
    for (int huge = 0; huge < 2; huge++) {
        for (int d = 0; huge && d < 64; d++) c.q[d] *= 1e5f;
        for (size_t i = 0; i < sizeof t / sizeof *t; i++) {
            sl_attn_stats st = ref_decode(&c, t[i].attn, 0, 1, 3, 0);
            uint64_t sum = 0, k_sum = 0;
            for (int head = 0; head < 6; head += 3) {
                const sl_attn_report *r = &c.reports[head];
                int is_quest = !strncmp(t[i].attn, "quest", 5), falls_back = r->fallback, v = (int)r->v_distinct;
                CHECK_INT(falls_back, huge && !head && strcmp(t[i].attn, "dense") && strncmp(t[i].attn, "random", 6));
                if (falls_back) CHECK_INT(v, N);
                // The proposal has read the rows of the newest page. santa-is draws them all, Quest from one unit to all.
                int most = t[i].refines ? v - (strncmp(t[i].attn, "random", 6) && !is_quest ? NEW : 0) : 0, k = most;
                if (falls_back) k = t[i].refines ? N - NEW : N; // scored keys are read again
                if (is_quest && !falls_back) {
                    k = (int)r->k_rows - NEW;
                    CHECK(k >= most - NEW && k < most);
                }
                CHECK_INT(r->k_rows, !t[i].refines ? N : t[i].k + k);
                uint64_t want = (uint64_t)(t[i].k + k + v) * ROW + (t[i].norms ? 2 * N : 0) + (uint64_t)t[i].extra;
                if (r->bytes != want)
                    FAIL("%s: %llu bytes, expected %llu", t[i].attn, (unsigned long long)r->bytes, (unsigned long long)want);
                sum += want, k_sum += r->k_rows;
            }
            CHECK_INT(st.bytes, sum);
            CHECK_INT(st.k_rows, k_sum);
            CHECK_INT(st.dense_bytes, 2 * N * 2 * ROW);
        }
    }
    ref_cache_free(&c);
}

// ---- sorting ----

static int by_size(const void *a, const void *b) {
    uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;
    return (x > y) - (x < y);
}

// Number i of n: uniform, of few values, of every magnitude, sorted, descending, equal, or with high bits that are all equal.
static uint64_t number_of_kind(int kind, int i, int n, uint64_t *rng) {
    uint64_t bits = (uint64_t)(test_uniform(rng) * 0x1p32) << 32 | (uint64_t)(test_uniform(rng) * 0x1p32);
    const uint64_t of_kind[] = {
        bits, bits % 3, bits >> bits % 64, (uint64_t)i, (uint64_t)(n - i), 7, 0xabcdefull << 40 | bits >> 50};
    return of_kind[kind];
}

static void sorting(void) {
    static const int sizes[] = {0, 1, 2, 3, 47, 48, 49, 50, 255, 256, 257, 1000, 8192, 65537};
    uint64_t rng = test_seed;
    for (size_t k = 0; k < sizeof sizes / sizeof *sizes; k++)
        for (int kind = 0; kind < 7; kind++) {
            int n = sizes[k];
            uint64_t *x = malloc((n + 2) * sizeof *x), *want = malloc((n + 1) * sizeof *want);
            for (int i = 0; i < n; i++) x[i + 1] = want[i] = number_of_kind(kind, i, n, &rng);
            x[0] = 11, x[n + 1] = 5; // sentinels
            qsort(want, n, sizeof *want, by_size);
            sl_sort(x + 1, n);
            if (memcmp(x + 1, want, n * sizeof *want) || x[0] != 11 || x[n + 1] != 5) FAIL("%d numbers of kind %d", n, kind);
            free(x), free(want);
        }
}

// ---- --value=adds ----

enum { ADD_HEADS = 8, ADD_ROWS = 2304, ADD_GROUP = 4 };
static sl_draw recorded_draw;
static int32_t recorded[ADD_HEADS][ADD_ROWS]; // counts of the last decode

static void run_and_record(sl_head *x) {
    int32_t *counts = recorded[x->group->h * x->group->n + x->index];
    recorded_draw.run(x);
    memset(counts, 0, sizeof *recorded);
    for (int i = 0; i < x->draws.n; i++) counts[x->draws.row[i]] = x->draws.count[i];
}

static void decode_recorded(ref_cache *c, const char *method, int S, const char *value) {
    sl_error err;
    sl_attn_spec spec;
    char text[100];
    snprintf(text, sizeof text, "%s:S=%d:value=%s", method, S, value);
    CHECK_OK(sl_attn_parse(text, &spec, &err), err);
    recorded_draw = *spec.method->stages->draw;
    sl_draw draw = recorded_draw;
    draw.run = run_and_record;
    sl_composition stages = *spec.method->stages;
    stages.draw = &draw;
    sl_attn_method toy = *spec.method;
    toy.stages = &stages;
    spec.method = &toy;
    ref_decode_spec(c, &spec, 0, 1, (uint32_t)test_seed, 1);
}

// out of `adds` is the mean of the drawn rows, with the rounding of one addition for each draw and of one scale. `counts` has
// other factors only where a stored mass is rounded to an integer.
static void check_adds(const ref_cache *c, const float *by_counts, int S) {
    int dim = c->geom.head_dim, n = c->seqs[0].n_tokens;
    for (int h = 0; h < ADD_HEADS; h++) {
        double want[128] = {0}, size[128] = {0}, v[128];
        int n_draws = 0;
        for (int j = 0; j < n; j++) {
            ref_value(c, 0, h / ADD_GROUP, j, v);
            n_draws += recorded[h][j];
            for (int d = 0; d < dim; d++) want[d] += recorded[h][j] * v[d] / S, size[d] += recorded[h][j] * fabs(v[d]) / S;
        }
        CHECK_INT(n_draws, S);
        for (int d = 0; d < dim; d++) {
            CHECK_NEAR(c->out[h * dim + d], want[d], (S + 2) * 0x1p-24 * size[d]);
            CHECK_NEAR(by_counts[h * dim + d], want[d], (S + 200) * 0x1p-24 * size[d]);
        }
    }
}

static void adds_of_values(void) {
    static const char *const methods[] = {"santa", "santa-strat", "santa-sys", "santa-prop"};
    static const int lengths[] = {1, 300, ADD_ROWS}, draws[] = {1, 33, 4000}; // 4,000 draws exceed the rows
    static int32_t before[ADD_HEADS][ADD_ROWS];
    float by_counts[ADD_HEADS * 128];
    for (int i = 0; i < 12; i++) {
        int dim = i % 2 ? 64 : 128, n = lengths[i / 4];
        ref_cache c = ref_cache_new(ADD_HEADS, ADD_HEADS / ADD_GROUP, dim, 1, &n, i / 2 % 2 ? 4 : 0, test_seed + i);
        for (int k = 0; k < 12; k++) {
            decode_recorded(&c, methods[k % 4], draws[k / 4], "counts");
            memcpy(before, recorded, sizeof before);
            memcpy(by_counts, c.out, ADD_HEADS * dim * sizeof *by_counts);
            decode_recorded(&c, methods[k % 4], draws[k / 4], "adds");
            for (int h = 0; h < ADD_HEADS; h++) CHECK(!memcmp(before[h], recorded[h], n * sizeof **before));
            check_adds(&c, by_counts, draws[k / 4]);
        }
        ref_cache_free(&c);
    }
}

static const test_case cases[] = {
    {"sorting", 0, sorting},
    {"tile-budgets", 0, tile_budgets},
    {"uniform-part", 0, uniform_part},
    {"kept-masses", 0, kept_masses},
    {"masses-add-up", 0, masses_add_up},
    {"fewest-rows", 0, fewest_rows},
    {"fewest-draws", 0, fewest_draws},
    {"effective-samples", 0, effective_samples},
    {"distinct-rows", 0, distinct_rows},
    {"bytes-read", 0, bytes_read},
    {"adds-of-values", 0, adds_of_values},
    {0},
};
const test_suite suite_draws = {"draws", cases};
