// tests/attention/test_estimators.c - statistics of the SANTA draws: expectations, variances, totals, and the draws at given
// numbers (docs/methods-theory.md). p, mu and E c_j are those of the stored masses: mass_j = C_j - C_{j-1}.
#include "attention/cpu/cpu_kernels.h"
#include "attention/stages/stages.h"
#include "tests/support/reference.h"
#include "tests/test.h"
#include "tests/support/draw_inputs.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

// ---- properties of every draw ----

typedef struct method {
    const char *name;
    sl_sampler_fn draw;
    int exact_total;
} method;
static const method methods[] = {
    {"independent", sl_draw_independent, 1},     {"stratified", sl_draw_stratified, 1},
    {"systematic", sl_draw_systematic, 1},       {"proportional", sl_draw_tiles_proportional, 1},
    {"uniform-tiles", sl_draw_tiles_uniform, 0},
};
enum { N_METHODS = 5 };

static int tiles_with_mass(const sample *s) {
    int n = 0;
    for (int t = 0; t * SL_TILE < s->masses.n; t++) {
        int end = (t + 1) * SL_TILE < s->masses.n ? (t + 1) * SL_TILE : s->masses.n;
        n += sl_masses_running(&s->masses, end - 1) > sl_masses_running(&s->masses, t * SL_TILE - 1);
    }
    return n;
}

static void check_draws(const sample *s, const method *m, int S) {
    int total = 0, tiles = (s->masses.n + SL_TILE - 1) / SL_TILE, S_t = (int)fmax(1, floor((double)S / tiles + 0.5));
    for (int i = 0; i < s->draws.n; i++) {
        int j = s->draws.row[i];
        if (j < 0 || j >= s->masses.n || s->p[j] <= 0)
            FAIL("%s n=%d S=%d: row %d of zero weight drawn", m->name, s->masses.n, S, j);
        if (i > 0 && j <= s->draws.row[i - 1]) FAIL("%s: rows are not ascending", m->name);
        CHECK(s->draws.count[i] > 0);
        total += s->draws.count[i];
    }
    int want = m->exact_total ? S : tiles_with_mass(s) * S_t;
    if (total != want || s->draws.n_draws != want)
        FAIL("%s n=%d S=%d: %d draws, expected %d", m->name, s->masses.n, S, total, want);
}

static void totals_and_rows(void) {
    static const int budgets[] = {1, 2, 7, 33, 128, 300, 1000, MAX_S}; // S / T is rounded up and down
    for (int k = 0; k < N_SHAPES; k++)
        for (int l = 0; l < N_LENGTHS; l++) {
            sample s = sample_new(lengths[l], shapes[k], test_seed + 10 * k + l);
            for (int b = 0; b < 8; b++)
                for (int m = 0; m < N_METHODS; m++)
                    for (uint32_t r = 0; r < 3; r++) {
                        methods[m].draw(&s.masses, budgets[b], (sl_uniform){uniform_random, &r}, &s.draws);
                        check_draws(&s, &methods[m], budgets[b]);
                    }
            sample_free(&s);
        }
}

static void extreme_uniforms(void) { // u = 0 and the largest u below 1
    static const uint64_t ends[] = {0, UINT64_MAX};
    for (int k = 0; k < N_SHAPES; k++)
        for (int m = 0; m < N_METHODS; m++)
            for (int e = 0; e < 2; e++) {
                sample s = sample_new(777, shapes[k], test_seed + k);
                methods[m].draw(&s.masses, 64, (sl_uniform){uniform_fixed, &ends[e]}, &s.draws);
                check_draws(&s, &methods[m], 64);
                sample_free(&s);
            }
}

// n <= 8: a grid much finer than the masses visits every cell of every threshold
static void exhaustive_small(void) {
    enum { R = 4096 };
    for (int n = 1; n <= 8; n++) {
        sample s = sample_new(n, FLAT, test_seed + n);
        double *seen = calloc(n, sizeof *seen);
        for (int i = 0; i < R; i++) {
            uint64_t u = uniform_grid(i, R);
            sl_draw_independent(&s.masses, 1, (sl_uniform){uniform_fixed, &u}, &s.draws);
            CHECK_INT(s.draws.n, 1);
            double at = (double)u * 0x1p-64, before = 0; // by hand: the row whose interval of p holds u
            int row = 0;
            while (row + 1 < n && before + s.p[row] <= at) before += s.p[row++];
            // a point within the rounding of the sums may lie on either side of a boundary
            if (s.draws.row[0] != row && fabs(at - before) > 1e-12 && fabs(at - before - s.p[row]) > 1e-12)
                FAIL("n=%d u=%.17g: row %d, expected %d", n, at, s.draws.row[0], row);
            seen[s.draws.row[0]] += 1.0 / R;
        }
        for (int j = 0; j < n; j++) CHECK_NEAR(seen[j], s.p[j], 1.0 / R + 1e-12);
        free(seen);
        sample_free(&s);
    }
}

// ---- expectations ----

// |mean - mu| <= 4 sqrt(Var / R) + rounding. Var is the closed form of independent draws, an upper bound for stratified draws.
static void unbiased(sl_sampler_fn draw, const char *name) {
    for (int k = 0; k < N_SHAPES; k++)
        for (int l = 0; l < N_LENGTHS; l++) {
            enum { S = 16 };
            const int R = 4000 / SCALE;
            sample s = sample_new(lengths[l], shapes[k], test_seed + 100 * k + l);
            double second = 0, mean = 0;
            for (int j = 0; j < s.masses.n; j++) second += s.p[j] * s.v[j] * s.v[j];
            for (uint32_t r = 0; r < (uint32_t)R; r++) {
                draw(&s.masses, S, (sl_uniform){uniform_random, &r}, &s.draws);
                mean += sample_estimate(&s) / R;
            }
            double bound = 4 * sqrt(fmax(0, second - s.mu * s.mu) / S / R) + 1e-6 * sqrt(second); // inv_pi is fp32
            if (fabs(mean - s.mu) > bound)
                FAIL("%s n=%d shape %d: mean %.6g, expected %.6g +- %.2g", name, lengths[l], k, mean, s.mu, bound);
            sample_free(&s);
        }
}
static void unbiased_independent(void) {
    unbiased(sl_draw_independent, "independent");
}
static void unbiased_stratified(void) {
    unbiased(sl_draw_stratified, "stratified");
}

static int tile_rows(const sample *s) {
    return s->masses.tile ? s->masses.tile : SL_TILE;
}

// Budgets of santa-prop by the definition, in long double.
static void prop_budgets(const sample *s, int S, int *budget) {
    int T = (s->masses.n + tile_rows(s) - 1) / tile_rows(s), left = S;
    long double total = s->masses.cum[s->masses.n_blocks], *rest = calloc(T, sizeof *rest);
    for (int t = 0; t < T; t++) {
        int end = (t + 1) * tile_rows(s) < s->masses.n ? (t + 1) * tile_rows(s) : s->masses.n;
        long double quota =
            S * (long double)(sl_masses_running(&s->masses, end - 1) - sl_masses_running(&s->masses, t * tile_rows(s) - 1)) /
            total;
        budget[t] = (int)floorl(quota);
        rest[t] = quota - budget[t];
        left -= budget[t];
    }
    for (; left > 0; left--) {
        int best = 0;
        for (int t = 1; t < T; t++)
            if (rest[t] > rest[best]) best = t;
        budget[best]++;
        rest[best] = -1;
    }
    free(rest);
}

// Systematic draws on the grid u = (i + 1/2) / R: |mean c_j - E c_j| < 1/R for every row, and the bias formula of santa-prop.
static void grid_expectations_of(int tile) {
    enum { R = 256, S = 37 };
    for (int k = 0; k < N_SHAPES; k++)
        for (int l = 0; l < N_LENGTHS; l++)
            for (int m = 2; m < N_METHODS; m++) {
                int n = lengths[l], T = (n + tile - 1) / tile, S_t = (int)fmax(1, floor((double)S / T + 0.5));
                sample s = sample_new(n, shapes[k], test_seed + 7 * k + l);
                s.masses.tile = tile;
                double *mean = calloc(n, sizeof *mean), got = 0, want = 0;
                int *budget = calloc(T, sizeof *budget);
                if (m == 3) prop_budgets(&s, S, budget);
                for (int i = 0; i < R; i++) {
                    uint64_t u = uniform_grid(i, R);
                    methods[m].draw(&s.masses, S, (sl_uniform){uniform_fixed, &u}, &s.draws);
                    for (int d = 0; d < s.draws.n; d++) mean[s.draws.row[d]] += (double)s.draws.count[d] / R;
                    got += sample_estimate(&s) / R;
                }
                for (int j = 0; j < n; j++) {
                    int t = j / tile, end = (t + 1) * tile < n ? (t + 1) * tile : n;
                    double in_tile = 0;
                    for (int i = t * tile; i < end; i++) in_tile += s.p[i];
                    double expected = m == 2 ? S * s.p[j] : in_tile > 0 ? (m == 3 ? budget[t] : S_t) * s.p[j] / in_tile : 0;
                    if (!(fabs(mean[j] - expected) < 1.0 / R + 1e-9))
                        FAIL("%s n=%d shape %d row %d: mean count %.6g, expected %.6g", methods[m].name, n, k, j, mean[j],
                             expected);
                    want += (m == 3 ? (in_tile > 0 ? budget[t] / (double)S / in_tile : 0) : 1) * s.p[j] *
                            s.v[j]; // mu, or mu plus the bias of santa-prop
                }
                // the mean count of a row is within 1/R of its expectation; a draw contributes at most 1/S (prop, sys) or W_t /
                // S_t
                double slack = 1e-6;
                for (int j = 0; j < n; j++) slack += fabs(s.v[j]) / R * (m == 4 ? 1.0 / S_t : 1.0 / S) * (s.p[j] > 0);
                CHECK_NEAR(got, want, slack);
                free(mean), free(budget);
                sample_free(&s);
            }
}

static void grid_expectations(void) {
    for (int tile = 64; tile <= 512; tile *= 2) grid_expectations_of(tile);
}

static void systematic_counts(void) { // |c_j - S p_j| < 1
    for (int k = 0; k < N_SHAPES; k++) {
        sample s = sample_new(2500, shapes[k], test_seed + k);
        for (uint32_t r = 0; r < 50; r++) {
            sl_draw_systematic(&s.masses, 128, (sl_uniform){uniform_random, &r}, &s.draws);
            for (int i = 0; i < s.draws.n; i++) CHECK(fabs(s.draws.count[i] - 128 * s.p[s.draws.row[i]]) < 1 + 1e-9);
        }
        sample_free(&s);
    }
}

// ---- variances ----

static double measured_variance(sample *s, sl_sampler_fn draw, int S, int R) {
    double sum = 0;
    for (uint32_t r = 0; r < (uint32_t)R; r++) {
        draw(&s->masses, S, (sl_uniform){uniform_random, &r}, &s->draws);
        double d = sample_estimate(s) - s->mu;
        sum += d * d / R;
    }
    return sum;
}

static void variances(void) {
    // A variance over R draws of bounded kurtosis has the relative standard error sqrt((kurtosis - 1) / R), here about sqrt(3 /
    // R). The bound is 5 of them.
    const int R = 20000 / SCALE, budgets[] = {1, 4, 32};
    const double slack = 5 * sqrt(3.0 / R);
    for (int k = 0; k < 2; k++)
        for (int b = 0; b < 3; b++) {
            int S = budgets[b];
            sample s = sample_new(700, shapes[k], test_seed + 3 * k + b);
            double second = 0;
            for (int j = 0; j < s.masses.n; j++) second += s.p[j] * s.v[j] * s.v[j];
            double iid = (second - s.mu * s.mu) / S, strat = sample_stratified_variance(&s, S);
            if (S == 1)
                CHECK_NEAR(strat, iid, 1e-9 * iid);
            else
                CHECK(strat <= iid);
            CHECK_NEAR(measured_variance(&s, sl_draw_independent, S, R) / iid, 1, slack);
            CHECK_NEAR(measured_variance(&s, sl_draw_stratified, S, R) / strat, 1, slack);
            if (k == FLAT) { // random values: systematic draws behave like stratified ones
                double ratio = measured_variance(&s, sl_draw_systematic, S, R) / strat;
                if (!(ratio > 0.5 && ratio < 2)) FAIL("S=%d: systematic has %.2f of stratified's variance", S, ratio);
            }
            sample_free(&s);
        }
}

// ---- whole methods, through decode ----

static const char *const names[] = {"santa", "santa-strat", "santa-sys", "santa-prop", "santa-flash"};

static void one_hot_is_exact(void) {
    static const int n = 600;
    ref_cache c = ref_cache_new(4, 2, 64, 1, &n, 0, test_seed);
    for (int head = 0; head < 4; head++) { // q = 1000 k_j: row j has all the mass
        const bf16 *k = ref_k_row(&c, 0, head / 2, 100 * head + 57);
        for (int d = 0; d < 64; d++) c.q[head * 64 + d] = 1000 * sl_bf16_to_f32(k[d]);
    }
    for (int m = 0; m < N_METHODS; m++) {
        ref_decode(&c, names[m], 0, 1, 5, 0);
        for (int head = 0; head < 4; head++)
            for (int d = 0; d < 64; d++)
                CHECK_INT(sl_f32_to_bf16(c.out[head * 64 + d]), ref_v_row(&c, 0, head / 2, 100 * head + 57)[d]);
    }
    ref_cache_free(&c);
}

// The squared error of S independent draws is (sum p |v|^2 - |mu|^2) / S. Stratified, systematic and proportional draws have no
// more; even tile budgets (santa-flash) have up to 1.5 times as much. Averaged over seeds, heads and at least 64 channels the
// error is known within a few percent, so santa is checked on both sides. With 65,536 draws, twice the largest number of rows,
// all draws but independent ones have a fraction of it. bf16 masses add at most sum p^2 |v - mu|^2 2^-18.
static void near_dense(void) {
    static const struct {
        int heads, kv_heads, dim, n, seeds;
    } g[] = {{1, 1, 64, 31, 80},   {6, 2, 80, 257, 40},  {8, 2, 128, 1500, 20},
             {8, 1, 128, 300, 40}, {3, 1, 64, 32769, 4}, {9, 3, 64, 1025, 20}};
    for (int i = 0; i < 6; i++) {
        ref_cache c = ref_cache_new(g[i].heads, g[i].kv_heads, g[i].dim, 1, &g[i].n, 1, test_seed + i);
        int dim = g[i].dim, group = g[i].heads / g[i].kv_heads;
        double *p = malloc(g[i].n * sizeof *p), mu[9][128], spread = 0, rounding = 0;
        for (int head = 0; head < g[i].heads; head++) {
            ref_attention(&c, 0, head, c.q + head * dim, g[i].n, p, mu[head]);
            for (int j = 0; j < g[i].n; j++)
                for (int d = 0; d < dim; d++) {
                    double v = sl_bf16_to_f32(ref_v_row(&c, 0, head / group, j)[d]) - mu[head][d];
                    spread += p[j] * v * v, rounding += pow(0x1p-9 * p[j] * v, 2);
                }
        }
        for (int m = 0; m < N_METHODS; m++)
            for (int large = 0; large < 2; large++) {
                char spec[64];
                int S = large ? 65536 : 64, seeds = large ? 1 : (g[i].seeds + SCALE - 1) / SCALE;
                double got = 0, want = spread / S + rounding;
                snprintf(spec, sizeof spec, "%s:S=%d", names[m], S);
                for (int r = 0; r < seeds; r++) {
                    ref_decode(&c, spec, 0, 1, (uint32_t)(test_seed + r), 3);
                    for (int k = 0; k < g[i].heads * dim; k++) got += pow(c.out[k] - mu[k / dim][k % dim], 2) / seeds;
                }
                double ratio = got / want, most = large ? (m == 0 ? 4 : 0.5) : m == 4 ? 2.5 : 1.5;
                if (!(ratio < most) || (!large && m == 0 && !(ratio > 0.6)))
                    FAIL("%s, geometry %d: %.3f of the squared error that is expected", spec, i, ratio);
            }
        free(p);
        ref_cache_free(&c);
    }
}

// Different seeds, layers, heads, positions and sequences: uniform numbers must be uncorrelated. Over M pairs the mean product
// of centred uniform numbers has the standard deviation 1 / (12 sqrt(M)). The bound is 5 of them.
static void independent_streams(void) {
    enum { M = 20000 };
    const sl_rng_id base = {.seed = 1, .sequence = 2, .position = 3, .layer = 4, .head = 5};
    sl_rng_id other[6] = {base, base, base, base, base, base};
    other[0].seed++, other[1].sequence++, other[2].position++, other[3].layer++, other[4].head++;
    for (int i = 0; i < 6; i++) {
        double sum = 0;
        for (uint32_t x = 0; x < M; x++) {
            uint32_t stream = i == 5 ? SL_STREAM_TOKEN : SL_STREAM_ATTENTION;
            double a = (double)sl_rng_u64(&base, x, SL_STREAM_ATTENTION) * 0x1p-64 - 0.5,
                   b = (double)sl_rng_u64(&other[i], x, stream) * 0x1p-64 - 0.5;
            sum += a * b / M;
        }
        CHECK_NEAR(sum, 0, 5 / (12 * sqrt(M)));
    }
}

// Neighbours alone do not show that two words of a counter overlap. So no two of 100 layers x 128 heads, of 64 positions x 64
// heads, and of 64 numbers x 64 heads may share a number. By chance, 64-bit numbers of these few are all different too.
static int by_number(const void *a, const void *b) {
    uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;
    return (x > y) - (x < y);
}

static void distinct_counters(void) {
    enum { MOST = 100 * 128 };
    static const int outer[] = {100, 64, 64}, heads[] = {128, 64, 64};
    uint64_t *u = malloc(MOST * sizeof *u);
    for (int kind = 0; kind < 3; kind++) {
        int n = outer[kind] * heads[kind];
        for (int i = 0; i < n; i++) {
            uint32_t x = (uint32_t)(i / heads[kind]);
            sl_rng_id id = {.seed = 1, .sequence = 2, .position = 3, .layer = 4, .head = (uint32_t)(i % heads[kind])};
            if (kind == 0) id.layer = x;
            if (kind == 1) id.position = x;
            u[i] = sl_rng_u64(&id, kind == 2 ? x : 0, SL_STREAM_ATTENTION);
        }
        qsort(u, n, sizeof *u, by_number);
        for (int i = 1; i < n; i++) CHECK(u[i] != u[i - 1]);
    }
    free(u);
}

static void stats(void) {
    static const int n[2] = {700, 300};
    ref_cache c = ref_cache_new(8, 2, 64, 2, n, 1, test_seed);
    sl_attn_stats st = ref_decode(&c, "santa-sys:S=40", 0, 2, 1, 0);
    CHECK_INT(st.steps, 16);
    CHECK_INT(st.k_rows, 2 * 1000);
    CHECK_INT(st.dense_v_rows, 8 * 1000);
    CHECK_INT(st.samples, 16 * 40);
    CHECK(st.v_rows <= st.samples && st.v_distinct <= st.v_rows && 4 * st.v_distinct >= st.v_rows);
    CHECK_INT(st.bytes, (st.k_rows + st.v_distinct) * 64 * 2);
    CHECK_INT(st.dense_bytes, 4000 * 64 * 2);
    ref_cache_free(&c);
}

static const test_case cases[] = {
    {"totals-and-rows", 0, totals_and_rows},
    {"extreme-uniforms", 0, extreme_uniforms},
    {"exhaustive-small", 0, exhaustive_small},
    {"unbiased-independent", 0, unbiased_independent},
    {"unbiased-stratified", 0, unbiased_stratified},
    {"grid-expectations-and-prop-bias", 0, grid_expectations},
    {"systematic-counts", 0, systematic_counts},
    {"variances", 0, variances},
    {"one-hot-is-exact", 0, one_hot_is_exact},
    {"near-dense", 0, near_dense},
    {"independent-streams", 0, independent_streams},
    {"distinct-counters", 0, distinct_counters},
    {"stats", 0, stats},
    {0},
};
const test_suite suite_estimators = {"estimators", cases};
