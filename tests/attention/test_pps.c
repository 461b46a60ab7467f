// tests/attention/test_pps.c - take-all + PPS draws (santa-pps), stated errors, budgets over heads, and the rows of largest
// mass.
#include "tests/support/reference.h"
#include "tests/test.h"
#include "tests/support/draw_inputs.h"
#include "base/quantile.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

// ---- the largest rows ----

static const sl_masses *sorted_by; // sorts by mass, then by row
static int by_mass(const void *a, const void *b) {
    int i = *(const int32_t *)a, j = *(const int32_t *)b;
    double x = ldexp(sl_bf16_to_f32(sorted_by->stored[i]), sorted_by->ref[i / SL_BLOCK] - sorted_by->top);
    double y = ldexp(sl_bf16_to_f32(sorted_by->stored[j]), sorted_by->ref[j / SL_BLOCK] - sorted_by->top);
    return x != y ? (x < y) - (x > y) : i - j;
}
static int by_row(const void *a, const void *b) {
    return *(const int32_t *)a - *(const int32_t *)b;
}

static void largest_rows(void) {
    for (int k = 0; k < N_SHAPES; k++)
        for (int l = 0; l < N_LENGTHS; l++) {
            int n = lengths[l], sizes[] = {1, 2, 127, 128, n - 1, n, n + 5};
            sample s = sample_new(n, shapes[k], test_seed + 31 * k + l);
            int32_t *want = malloc(n * sizeof *want), *got = malloc(n * sizeof *got), *all = malloc(n * sizeof *all);
            for (int j = 0; j < n; j++) all[j] = j;
            sorted_by = &s.masses;
            qsort(all, n, sizeof *all, by_mass);
            for (int i = 0; i < 7; i++) {
                int most = sizes[i] < n ? sizes[i] : n, n_want = 0;
                if (most < 1) continue;
                while (n_want < most && s.masses.stored[all[n_want]]) n_want++;
                double last = n_want ? ldexp(sl_bf16_to_f32(s.masses.stored[all[n_want - 1]]),
                                             s.masses.ref[all[n_want - 1] / 32] - s.masses.top)
                                     : 1;
                memcpy(want, all, n_want * sizeof *want);
                qsort(want, n_want, sizeof *want, by_row);
                int n_got = sl_masses_largest(&s.masses, sizes[i], got);
                CHECK_INT(n_got, n_want);
                if (last < 0x1p-60) continue; // ranks do not distinguish masses more than 64 octaves below the top
                CHECK(!memcmp(got, want, n_want * sizeof *want));
            }
            free(want), free(got), free(all);
            sample_free(&s);
        }
}

static void reaching_rows(void) { // the fewest rows with the mass: one row fewer does not reach it
    static const double shares[] = {0.1, 0.5, 0.95, 0.999};
    for (int k = 0; k < N_SHAPES; k++)
        for (int l = 0; l < N_LENGTHS; l++) {
            int n = lengths[l];
            sample s = sample_new(n, shapes[k], test_seed + 17 * k + l);
            int32_t *rows = malloc(n * sizeof *rows);
            for (int i = 0; i < 4; i++) {
                int m = sl_masses_reaching(&s.masses, shares[i], rows);
                double mass = 0, least = 1;
                for (int r = 0; r < m; r++) {
                    CHECK(r == 0 || rows[r] > rows[r - 1]);
                    mass += s.p[rows[r]];
                    least = fmin(least, s.p[rows[r]]);
                }
                CHECK(mass >= shares[i] - 1e-6 && mass - least <= shares[i] + 1e-6);
            }
            CHECK_INT(sl_masses_reaching(&s.masses, 1, rows) > 0, 1);
            free(rows);
            sample_free(&s);
        }
}

// ---- sizes ----

// Sizes are stored |v|^power in units of the smallest power of two per block that holds them, within two roundings a step.
// In-block masses are sums over these sizes.
static void sizes_by(const sl_attn_kernels *kernels) {
    static const int ns[] = {1, 31, 32, 33, 1000};
    static const double scales[] = {1, 1e-12, 1e12, 0};
    uint64_t seed = test_seed;
    for (int i = 0; i < 5 * 4 * 2; i++) {
        int n = ns[i % 5], power = 1 + i / 20, n_blocks = (n + SL_BLOCK - 1) / SL_BLOCK;
        sample s = sample_new(n, PEAKED, test_seed + i);
        bf16 *norm = malloc(n * sizeof *norm), *size = malloc(n_blocks * SL_BLOCK * sizeof *size);
        int16_t *ref = malloc(n_blocks * sizeof *ref);
        uint64_t *mass = malloc(n_blocks * sizeof *mass);
        for (int j = 0; j < n; j++)
            norm[j] = sl_f32_to_bf16((float)(scales[i / 5 % 4] * exp(test_normal(&seed)) * (test_uniform(&seed) < 0.9)));
        kernels->sizes(s.masses.stored, s.masses.ref, norm, n, power, size, ref, mass);
        for (int b = 0; b < n_blocks; b++) {
            double most = 0;
            uint64_t sum = 0;
            for (int j = b * SL_BLOCK; j < (b + 1) * SL_BLOCK; j++) {
                double got = sl_bf16_to_f32(size[j]),
                       want = j < n ? sl_bf16_to_f32(s.masses.stored[j]) * pow(sl_bf16_to_f32(norm[j]), power) : 0;
                CHECK_NEAR(ldexp(got, ref[b] - s.masses.ref[b]), want, want * 0x1p-7 + 1e-36);
                sum += (uint32_t)(got * 0x1p30);
                most = fmax(most, got);
            }
            CHECK_INT(mass[b], sum);
            CHECK(most == 0 ? ref[b] == SL_REF_EMPTY : most > 0.5 && most <= 1);
        }
        free(norm), free(size), free(ref), free(mass);
        sample_free(&s);
    }
}

static void sizes_of_masses(void) {
    static const char *const isas[] = {"portable", "avx2", "avx512"};
    for (int i = 0; i < 3; i++)
        if (sl_attn_kernels_named(isas[i])) sizes_by(sl_attn_kernels_named(isas[i]));
}

static void norms_are_bounds(void) { // rounded up
    enum { DIM = 80 };
    uint64_t seed = test_seed;
    for (int i = 0; i < 1000; i++) {
        bf16 v[DIM], norm;
        double square = 0, scale = i ? exp(4 * test_normal(&seed)) : 0;
        for (int d = 0; d < DIM; d++) {
            v[d] = sl_f32_to_bf16((float)(scale * test_normal(&seed)));
            square += pow(sl_bf16_to_f32(v[d]), 2);
        }
        sl_norms(sl_kv_bf16_run(v), 1, DIM, &norm);
        double got = sl_bf16_to_f32(norm), want = sqrt(square);
        CHECK(got >= want * (1 - 1e-5) && got <= want * (1 + 0x1p-7 + 1e-5));
    }
}

// ---- take-all + PPS ----

static int n_positive(const sl_masses *masses) {
    int n = 0;
    for (int j = 0; j < masses->n; j++) n += sl_masses_of_row(masses, j) > 0;
    return n;
}

// pi_j = min(1, size_j / kappa). Light rows are at most kappa, heavy rows at least kappa, up to the rounding of integers.
static void check_take_all(const sample *s, const sl_masses *size, const sl_take_all *r, int S) {
    int want = n_positive(size) < S ? n_positive(size) : S, total = 0;
    double kappa = r->k ? (double)r->light / r->k : 0;
    for (int i = 0; i < s->draws.n; i++) {
        int j = s->draws.row[i];
        double z = (double)sl_masses_of_row(size, j), pi = 1.0 / s->draws.inv_pi[i];
        if (i > 0 && j <= s->draws.row[i - 1]) FAIL("n=%d S=%d: rows are not ascending", size->n, S);
        CHECK(s->draws.count[i] > 0);
        total += s->draws.count[i];
        if (s->draws.inv_pi[i] == 1 && s->draws.count[i] == 1 && z >= kappa * (1 - 1e-6)) continue;
        if (z > kappa * (1 + 1e-6) + 2) FAIL("n=%d S=%d row %d: size %g above kappa %g was not taken", size->n, S, j, z, kappa);
        if (fabs(pi - z / kappa) > 1e-5 * pi) FAIL("n=%d S=%d row %d: pi %g, expected %g", size->n, S, j, pi, z / kappa);
    }
    if (total != want || s->draws.n_draws != want) FAIL("n=%d S=%d: %d draws, expected %d", size->n, S, total, want);
}

static void take_all_totals(void) {
    static const int budgets[] = {1, 2, 7, 128, 1000, MAX_S};
    for (int k = 0; k < N_SHAPES; k++)
        for (int l = 0; l < N_LENGTHS; l++) {
            sample s = sample_new(lengths[l], shapes[k], test_seed + 10 * k + l);
            for (int mixed = 0; mixed < 2; mixed++) {
                if (mixed) sl_masses_mix(&s.sizes, 0.01);
                if (mixed && s.sizes.uniform == 0) continue;
                for (int b = 0; b < 6; b++)
                    for (uint32_t i = 0; i < 4; i++) {
                        static const uint64_t ends[] = {0, UINT64_MAX};
                        sl_uniform u = i < 2 ? (sl_uniform){uniform_fixed, &ends[i]} : (sl_uniform){uniform_random, &i};
                        sl_take_all r = sl_draw_take_all(&s.sizes, budgets[b], i % 2, u, &s.draws);
                        check_take_all(&s, &s.sizes, &r, budgets[b]);
                    }
            }
            sample_free(&s);
        }
}

// One shared uniform number on a grid: |mean c_j - pi_j| < 1/R for every row, with pi_j from kappa by the definition.
static void take_all_expectations(void) {
    enum { R = 256, S = 37 };
    for (int k = 0; k < N_SHAPES; k++)
        for (int l = 0; l < N_LENGTHS; l++)
            for (int mixed = 0; mixed < 2; mixed++) {
                int n = lengths[l];
                sample s = sample_new(n, shapes[k], test_seed + 7 * k + l);
                if (mixed) sl_masses_mix(&s.sizes, 0.01);
                double *mean = calloc(n, sizeof *mean), total = 0;
                sl_take_all r = {0};
                for (int i = 0; i < R; i++) {
                    uint64_t u = uniform_grid(i, R);
                    r = sl_draw_take_all(&s.sizes, S, 1, (sl_uniform){uniform_fixed, &u}, &s.draws);
                    for (int d = 0; d < s.draws.n; d++) mean[s.draws.row[d]] += (double)s.draws.count[d] / R;
                }
                double kappa = r.k ? (double)r.light / r.k : 0;
                for (int j = 0; j < n; j++) {
                    double z = (double)sl_masses_of_row(&s.sizes, j), pi = kappa > 0 ? fmin(1, z / kappa) : z > 0;
                    total += pi;
                    if (!(fabs(mean[j] - pi) < 1.0 / R + 1e-6))
                        FAIL("n=%d shape %d row %d: mean count %.6g, expected %.6g", n, k, j, mean[j], pi);
                }
                CHECK_NEAR(total, n_positive(&s.sizes) < S ? n_positive(&s.sizes) : S, 1e-3);
                free(mean);
                sample_free(&s);
            }
}

// A uniform number per draw: the mean is mu, and the variance is the closed form (each unit of the running light size is a
// stratum), at most B = kappa sum_light p |v|. Where attention is peaked it is below that of stratified draws from p with as
// many rows. A variance over R draws of bounded kurtosis has a relative standard error of about sqrt(3 / R); the bound is 5 of
// them.
static void take_all_moments(void) {
    enum { S = 24 };
    const int R = 8000 / SCALE;
    for (int k = 0; k < 4; k++) {
        sample s = sample_new(700, shapes[k % 2], test_seed + k % 2);
        if (k >= 2) sl_masses_mix(&s.sizes, 0.2); // sizes with a uniform part: unbiased, with the closed form of these sizes
        double mean = 0, square = 0, variance = 0, first = 0, second = 0, filled = 0, B = 0;
        uint32_t zero = 0;
        sl_take_all r = sl_draw_take_all(&s.sizes, S, 0, (sl_uniform){uniform_random, &zero}, &s.draws);
        double kappa = (double)r.light / r.k;
        for (int j = 0; j < s.masses.n; j++) { // a draw of row j adds p_j kappa / z_j v_j
            double z = (double)sl_masses_of_row(&s.sizes, j);
            if (z > kappa || z == 0) continue;
            double x = s.p[j] * kappa / z * s.v[j];
            for (double left = z / kappa; left > 1e-12;) {
                double part = fmin(left, 1 - filled);
                first += part * x, second += part * x * x, filled += part, left -= part;
                if (filled > 1 - 1e-12) variance += second - first * first, first = second = filled = 0;
            }
        }
        variance += second - first * first;
        double total = (double)sl_masses_total(&s.sizes), scale = 0;
        for (int j = 0; j < s.masses.n; j++) scale += s.p[j] * fabs(s.v[j]);
        B = kappa / total * scale * ((double)r.light / total * scale);
        for (uint32_t i = 0; i < (uint32_t)R; i++) {
            sl_draw_take_all(&s.sizes, S, 0, (sl_uniform){uniform_random, &i}, &s.draws);
            double d = sample_estimate(&s) - s.mu;
            mean += d / R, square += d * d / R;
        }
        CHECK(fabs(mean) <= 4 * sqrt(variance / R) + 1e-6);
        CHECK_NEAR(square / variance, 1, 5 * sqrt(3.0 / R));
        CHECK(k >= 2 || variance <= B * 1.02); // stored sizes are bf16
        double rival = sample_stratified_variance(&s, S);
        if (k == PEAKED && !(variance < 0.8 * rival)) FAIL("variance %.3g, stratified draws from p %.3g", variance, rival);
        sample_free(&s);
    }
}

static void take_all_exhaustive(void) { // n <= 8, S = 1 .. n: a grid of U visits every outcome
    enum { R = 1024 };
    for (int n = 1; n <= 8; n++)
        for (int S = 1; S <= n; S++) {
            sample s = sample_new(n, PEAKED, test_seed + n);
            double mean = 0, most = 0;
            for (int i = 0; i < R; i++) {
                uint64_t u = uniform_grid(i, R);
                sl_draw_take_all(&s.sizes, S, 1, (sl_uniform){uniform_fixed, &u}, &s.draws);
                double x = sample_estimate(&s);
                mean += x / R, most = fmax(most, fabs(x));
            }
            CHECK_NEAR(mean, s.mu, n * most / R + 1e-6);
            sample_free(&s);
        }
}

// ---- the method ----

static void enough_rows_is_dense(void) { // relative error of a stored mass (bf16): at most 2^-8
    static const int n[] = {1, 31, 255, 256, 257, 1500};
    static const struct { int heads, kv_heads, dim; } g[] = {{1, 1, 64}, {6, 2, 80}, {8, 2, 128}, {8, 1, 128}, {9, 3, 64}};
    for (int i = 0; i < 5; i++) {
        ref_cache c = ref_cache_new(g[i].heads, g[i].kv_heads, g[i].dim, 6, n, 2, test_seed + i);
        ref_decode(&c, "santa-pps:S=1500", 0, 6, 5, 0);
        for (int s = 0; s < 6; s++)
            for (int head = 0; head < g[i].heads; head++) {
                CHECK(ref_error(&c, s, head) < 0x1p-8);
                CHECK_INT(c.reports[s * g[i].heads + head].samples, n[s]);
            }
        ref_decode(&c, "santa-pps:S=20", 0, 6, 5, 0);
        for (int s = 0; s < 6; s++)
            for (int head = 0; head < g[i].heads; head++)
                CHECK_INT(c.reports[s * g[i].heads + head].samples, n[s] < 20 ? n[s] : 20);
        ref_cache_free(&c);
    }
}

// ---- stated errors ----

// Decodes two positions with state, as the engine does, so the second step plans with the output of the first.
static sl_attn_stats decode_twice(ref_cache *c, const char *attn, int n_seqs, uint32_t seed) {
    sl_error err;
    sl_attn_spec spec;
    CHECK_OK(sl_attn_parse(attn, &spec, &err), err);
    size_t size = spec.method->cpu->state ? spec.method->cpu->state(&c->geom, &spec) : 0;
    for (int s = 0; s < n_seqs; s++) {
        c->queries[s].state = size ? calloc(1, size) : NULL;
        c->queries[s].position = 7;
    }
    ref_decode(c, attn, 0, n_seqs, seed, 0);
    for (int s = 0; s < n_seqs; s++) c->queries[s].position = 8;
    sl_attn_stats st = ref_decode(c, attn, 0, n_seqs, seed, 0);
    for (int s = 0; s < n_seqs; s++) free(c->queries[s].state), c->queries[s].state = NULL;
    return st;
}

// A certified head may exceed epsilon with probability delta at most. The worst values for a stated error lie along one
// channel, a quarter of them negative. Errors of many channels add up to
// nearly their mean, far below the bound. Here errors are normal numbers with three quarters of the variance that the bound
// states. The reference has exact masses, the method has bf16 ones, so there is a slack of 2^-8.
static ref_cache cache_along_one_channel(int n_seqs, const int *n, double scale, uint64_t seed) {
    ref_cache c = ref_cache_new(8, 8, 16, n_seqs, n, scale, seed);
    for (int s = 0; s < n_seqs; s++)
        for (int j = 0; j < n[s]; j++)
            for (int h = 0; h < 8; h++)
                for (int d = 0; d < 16; d++) {
                    double size = 0.5 + test_uniform(&seed), sign = test_uniform(&seed) < 0.25 ? -1 : 1;
                    ((bf16 *)ref_v_row(&c, s, h, j))[d] = sl_f32_to_bf16(d ? 0 : (float)(sign * size));
                }
    return c;
}

static void stated_error_at_its_hardest(const char *bound, double epsilon, double delta) {
    static const double scales[] = {0.3, 1, 3};
    static const int n[] = {2000, 8000};
    int certified[2] = {0}, exceeded[2] = {0}, fallbacks = 0; // by position: without and with a previous output
    char attn[128];
    sl_error err;
    sl_attn_spec spec;
    snprintf(attn, sizeof attn, "santa-pps:certify=head:epsilon=%g:delta=%g:bound=%s", epsilon, delta, bound);
    CHECK_OK(sl_attn_parse(attn, &spec, &err), err);
    for (int k = 0; k < 3; k++) {
        ref_cache c = cache_along_one_channel(2, n, scales[k], test_seed + k);
        double mu[16][16];
        double *p = malloc(8000 * sizeof *p);
        for (int i = 0; i < 16; i++) ref_attention(&c, i / 8, i % 8, c.q + i * 16, n[i / 8], p, mu[i]);
        size_t size = spec.method->cpu->state(&c.geom, &spec);
        CHECK(size > 0);
        for (int seed = 0; seed < 50 / SCALE; seed++) {
            for (int s = 0; s < 2; s++) c.queries[s].state = calloc(1, size);
            for (int step = 0; step < 2; step++) {
                for (int s = 0; s < 2; s++) c.queries[s].position = 7 + step;
                ref_decode(&c, attn, 0, 2, (uint32_t)(test_seed + seed), 0);
                for (int i = 0; i < 16; i++) {
                    fallbacks += (int)c.reports[i].fallback;
                    if (c.reports[i].fallback) continue;
                    CHECK(c.reports[i].error_bound <= epsilon / (1 + epsilon) * (1 + 1e-6));
                    certified[step]++;
                    exceeded[step] += ref_relative(c.out + i * 16, mu[i], 16) > epsilon + 0x1p-8;
                }
            }
            for (int s = 0; s < 2; s++) free(c.queries[s].state), c.queries[s].state = NULL;
        }
        free(p);
        ref_cache_free(&c);
    }
    check_certified(exceeded, certified, 2000 / SCALE, epsilon, delta, bound);
    printf("      %d went dense\n", fallbacks);
}
static void hardest_clt(void) {
    stated_error_at_its_hardest("clt", 0.2, 0.2);
}
static void hardest_bernstein(void) {
    stated_error_at_its_hardest("bernstein", 0.25, 0.2);
}

// ---- budgets over heads ----

static double mean_square(ref_cache *c, const char *attn, int S, int seeds) {
    double sum = 0;
    for (int seed = 0; seed < seeds; seed++) {
        decode_twice(c, attn, 1, (uint32_t)(test_seed + seed));
        int all = 0;
        for (int head = 0; head < 8; head++) {
            double e = ref_error(c, 0, head);
            sum += e * e / seeds / 8;
            all += (int)c->reports[head].budget;
            CHECK((int)c->reports[head].budget >= S / 4 && (int)c->reports[head].budget <= 4 * S);
        }
        CHECK_INT(all, 8 * S);
    }
    return sum;
}

// Independent draws have the mean square error a^2 / S with a = sqrt(sum p |v|^2 - |mu|^2) / |mu|. Even budgets give sum a^2 /
// S, budgets proportional to a give (sum a)^2 / (8 S): three quarters of it here. Head 0 has three times the a of the others
// because of a small output, head 4 because of a large variance. A split without |mu|, or without the root, is worse by a
// quarter. R runs know a mean square within sqrt(2 / 64 / R) for 64 channels. The previous |mu| costs up to 2% more.
static void budgets_follow_variance(void) {
    enum { N = 1000, RUNS = 160 / SCALE, EACH = 192 };
    static const int n = N;
    static double p[N];
    ref_cache c = ref_cache_new(8, 8, 64, 1, &n, 0.3, test_seed);
    double sum = 0, squares = 0;
    for (int head = 0; head < 8; head++) {
        double mu[64], second = 0, norm = 0;
        for (int i = 0; i < n * 64; i++) {
            bf16 *v = (bf16 *)ref_v_row(&c, 0, head, i / 64) + i % 64;
            *v = sl_f32_to_bf16((head == 4 ? 3 : 1) * sl_bf16_to_f32(*v) + (head ? 2 : 0.667f));
        }
        ref_attention(&c, 0, head, c.q + head * 64, n, p, mu);
        for (int i = 0; i < n * 64; i++) second += p[i / 64] * pow(sl_bf16_to_f32(ref_v_row(&c, 0, head, i / 64)[i % 64]), 2);
        for (int d = 0; d < 64; d++) norm += mu[d] * mu[d];
        sum += sqrt((second - norm) / norm), squares += (second - norm) / norm;
    }
    double want = sum * sum / 8 / squares, even = mean_square(&c, "santa:S=192", EACH, RUNS);
    double by_variance = mean_square(&c, "santa:S=192:budget=variance", EACH, RUNS);
    printf("      mean square error by variance over even: %.3f, closed form %.3f\n", by_variance / even, want);
    CHECK(want < 0.8);
    CHECK_NEAR(even * EACH * 8 / squares, 1, 6 * sqrt(2.0 / 64 / RUNS));
    CHECK_NEAR(by_variance / even / want, 1.01, 0.02 + 5 * sqrt(4.0 / 64 / RUNS));
    sl_attn_stats st = ref_decode(&c, "santa-pps:S=48:budget=variance", 0, 1, 1, 0); // no previous step: even
    CHECK_INT(st.samples, 8 * 48);
    for (int head = 0; head < 8; head++) CHECK_INT(c.reports[head].budget, 48);
    ref_cache_free(&c);
}

// A stated error sets the draws of each head: budgets change nothing then, and need no more memory.
static void a_stated_error_needs_no_budgets(void) {
    static const int n = 600;
    float want[8 * 64];
    sl_error err;
    sl_attn_spec spec;
    CHECK_OK(sl_attn_parse("santa-pps:certify=head:epsilon=0.3:budget=variance", &spec, &err), err);
    CHECK_INT(sl_budget_is_by_variance(&spec), 0);
    ref_cache c = ref_cache_new(8, 2, 64, 1, &n, 1, test_seed);
    ref_add_to_values(&c, 1);
    decode_twice(&c, "santa-pps:certify=head:epsilon=0.3", 1, 3);
    memcpy(want, c.out, sizeof want);
    decode_twice(&c, "santa-pps:certify=head:epsilon=0.3:budget=variance", 1, 3);
    CHECK(!memcmp(want, c.out, sizeof want));
    ref_cache_free(&c);
}

static const test_case cases[] = {
    {"largest-rows", 0, largest_rows},
    {"reaching-rows", 0, reaching_rows},
    {"sizes-of-masses", 0, sizes_of_masses},
    {"norms-are-bounds", 0, norms_are_bounds},
    {"take-all-totals", 0, take_all_totals},
    {"take-all-expectations", 0, take_all_expectations},
    {"take-all-moments", 0, take_all_moments},
    {"take-all-exhaustive", 0, take_all_exhaustive},
    {"enough-rows-is-dense", 0, enough_rows_is_dense},
    {"hardest-values-clt", 0, hardest_clt},
    {"hardest-values-bernstein", 0, hardest_bernstein},
    {"budgets-follow-variance", 0, budgets_follow_variance},
    {"a-stated-error-needs-no-budgets", 0, a_stated_error_needs_no_budgets},
    {0},
};
const test_suite suite_pps = {"pps", cases};
