// tests/attention/test_long.c - contexts of more than 131,072 rows on the CPU, up to 2^21: draws from masses whose sum is 2^59,
// and every method that draws against dense attention in double precision.
#include "attention/stages/stages.h"
#include "backend/backend.h"
#include "tests/support/reference.h"
#include "tests/test.h"

#include <stdlib.h>
#include <string.h>

enum { MOST = 1 << 21 };

// n rows of the largest mass, 2^38 units each.
static sl_masses equal_masses(int n) {
    sl_masses m = {.n = n, .n_blocks = (n + SL_BLOCK - 1) / SL_BLOCK};
    m.stored = calloc((size_t)m.n_blocks * SL_BLOCK, sizeof *m.stored);
    m.ref = calloc((size_t)m.n_blocks, sizeof *m.ref);
    m.cum = calloc((size_t)m.n_blocks + 1, sizeof *m.cum);
    for (int j = 0; j < n; j++) m.stored[j] = sl_f32_to_bf16(1), m.cum[j / SL_BLOCK + 1] += 1u << 30;
    sl_masses_finish(&m);
    return m;
}

// Of n equal rows, S strata of n / S rows each, with one draw.
static void check_strata(const sl_draws *d, int n, int S, float inv_pi) {
    CHECK_INT(d->n, S);
    CHECK_INT(d->n_draws, S);
    for (int i = 0; i < S; i++) {
        CHECK(d->row[i] >= (long long)i * n / S && d->row[i] < (long long)(i + 1) * n / S);
        CHECK_NEAR(d->inv_pi[i], inv_pi, 1e-5 * inv_pi);
    }
}

static void equal_rows(void) {
    static const int lengths[] = {1 << 17, 1 << 18, MOST}, budgets[] = {128, 65536};
    const sl_rng_id id = {1, 2, 3, 4, 5};
    sl_error err;
    CHECK_OK(sl_cpu_choose(&err), err); // chooses the kernels
    for (int i = 0; i < 6; i++) {
        int n = lengths[i / 2], S = budgets[i % 2];
        sl_masses m = equal_masses(n);
        CHECK(sl_masses_total(&m) == (uint64_t)n << 38 && sl_masses_running(&m, n / 3) == (uint64_t)(n / 3 + 1) << 38);
        size_t most = 4 * sl_sampler_capacity(S, n) + 8, scratch = sl_sampler_scratch(S, n) + 2 * (size_t)S;
        sl_draws d = {.row = malloc(most * sizeof *d.row),
                      .count = malloc(most * sizeof *d.count),
                      .inv_pi = malloc(most * sizeof *d.inv_pi),
                      .scratch = malloc(scratch * sizeof *d.scratch)};
        sl_uniform u = sl_uniform_philox(&id);
        float inv_pi = (float)n / (float)S;
        sl_draw_stratified(&m, S, u, &d), check_strata(&d, n, S, inv_pi);
        sl_draw_systematic(&m, S, u, &d), check_strata(&d, n, S, inv_pi);
        sl_take_all t = sl_draw_take_all(&m, S, 0, u, &d);
        CHECK(t.n_heavy == 0 && t.k == S && t.light == (uint64_t)n << 38);
        check_strata(&d, n, S, inv_pi);
        sl_draw_at(&m, ((uint64_t)n << 38) / (unsigned)S, 0, u, &d), check_strata(&d, n, S, inv_pi);
        sl_draw_independent(&m, S, u, &d);
        CHECK_INT(d.n_draws, S);
        sl_draw_tiles_proportional(&m, S, u, &d);
        CHECK_INT(d.n_draws, S);
        for (int k = 0; k < d.n; k++) CHECK(d.row[k] >= 0 && d.row[k] < n && (!k || d.row[k] > d.row[k - 1]));
        free(d.row), free(d.count), free(d.inv_pi), free(d.scratch);
        free(m.stored), free(m.ref), free(m.cum);
    }
}

// The values have the mean 1 and the deviation 1, and attention is nearly flat. So the mean of S rows has a relative error of
// about 1 / sqrt(S). bound: seven times this, or the stated error.
static void check_methods(int n) {
    static const struct {
        const char *attn;
        double bound;
    } methods[] = {
        {"santa-sys:S=1024", 0.22},
        {"santa-prop:S=1024", 0.22},
        {"santa-pps:S=1024:budget=even", 0.22},
        {"santa-is:S=1024:budget=even", 0.22},
        {"santa-pps:epsilon=0.1:certify=head", 0.1},
        {"random:S=1024", 0.22},
        {"vattention:epsilon=0.1:base=0.001:top=0.001", 0.2},
        // only shorter contexts, to spare time
        {"dense", 1e-4},
        {"dense-q:bits=8", 0.05},
        {"santa:S=1024", 0.22},
        {"santa-strat:S=1024", 0.22},
        {"santa-flash:S=1024", 0.5},
        {"bernoulli-group:B=64+santa-sys:S=1024", 0.3},
        {"topp:p=0.999", 0.01},
        {"santa-is:proposal=int8:epsilon=0.1", 0.2},
    };
    enum { N_LONGEST = 7, N_METHODS = sizeof methods / sizeof *methods };
    ref_cache c = ref_cache_new(1, 1, 16, 1, &n, 0.5, test_seed);
    ref_add_to_values(&c, 1);
    for (int i = 0; i < (n == MOST ? N_LONGEST : N_METHODS); i++) {
        ref_decode(&c, methods[i].attn, 0, 1, 7, 0);
        double error = ref_error(&c, 0, 0);
        if (!(error <= methods[i].bound)) FAIL("%s, %d rows: error %g", methods[i].attn, n, error);
    }
    ref_cache_free(&c);
}

static void rows_131073(void) {
    check_methods(131073);
}
static void rows_200000(void) {
    check_methods(200000);
}
static void rows_2097152(void) {
    check_methods(MOST);
}

static const test_case cases[] = {
    {"equal-rows", 0, equal_rows},
    {"rows-131073", 0, rows_131073},
    {"rows-200000", 0, rows_200000},
    {"rows-2097152", 0, rows_2097152},
    {0},
};
const test_suite suite_long = {"long", cases};
