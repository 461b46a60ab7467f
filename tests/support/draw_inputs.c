// tests/support/draw_inputs.c - see draw_inputs.h.
#include "tests/support/draw_inputs.h"
#include "backend/backend.h"
#include "tests/test.h"

#include <math.h>
#include <stdlib.h>

const shape shapes[] = {FLAT, PEAKED, ONE_HOT, GAPS};
const int lengths[] = {1, 31, 255, 256, 257, 2500, 32768, 32769};

sample sample_new(int n, shape kind, uint64_t seed) {
    sl_error err;
    CHECK_OK(sl_cpu_choose(&err), err); // chooses the kernels
    sample s = {.masses = {.n = n, .n_blocks = (n + SL_BLOCK - 1) / SL_BLOCK}};
    int blocks = s.masses.n_blocks;
    float *score = malloc((blocks * SL_BLOCK + 16) * sizeof *score);
    s.masses.stored = calloc(blocks * SL_BLOCK, sizeof *s.masses.stored);
    s.masses.ref = calloc(blocks, sizeof *s.masses.ref);
    s.masses.cum = calloc(blocks + 1, sizeof *s.masses.cum);
    s.sizes = s.masses;
    s.sizes.stored = calloc(blocks * SL_BLOCK, sizeof *s.masses.stored);
    s.sizes.ref = calloc(blocks, sizeof *s.masses.ref);
    s.sizes.cum = calloc(blocks + 1, sizeof *s.masses.cum);
    s.p = calloc(n, sizeof *s.p);
    s.v = calloc(n, sizeof *s.v);
    int hot = (int)(test_uniform(&seed) * n);
    for (int j = 0; j < n; j++) {
        score[j] = kind == FLAT ? 0.1f * (float)test_normal(&seed) : 5 * (float)test_normal(&seed);
        if (kind == ONE_HOT) score[j] = j == hot ? 200 : -200;
        if (kind == GAPS && j / 256 % 2) score[j] -= 90;
        s.v[j] = test_normal(&seed);
    }
    for (int j = 0; j < n; j += 256) {
        int m = n - j < 256 ? n - j : 256;
        sl_attn_kernels_named("portable")
            ->masses(score + j, m, s.masses.stored + j, s.masses.ref + j / SL_BLOCK, s.masses.cum + j / SL_BLOCK + 1);
    }
    sl_masses_finish(&s.masses);
    bf16 *norm = malloc(n * sizeof *norm);
    for (int j = 0; j < n; j++) {
        bf16 v = sl_f32_to_bf16((float)s.v[j]);
        sl_norms(sl_kv_bf16_run(&v), 1, 1, norm + j);
    }
    sl_attn_kernels_named("portable")
        ->sizes(s.masses.stored, s.masses.ref, norm, n, 1, s.sizes.stored, s.sizes.ref, s.sizes.cum + 1);
    free(norm);
    sl_masses_finish(&s.sizes);
    double total = (double)s.masses.cum[blocks];
    for (int j = 0; j < n; j++) {
        s.p[j] = (double)(sl_masses_running(&s.masses, j) - sl_masses_running(&s.masses, j - 1)) / total;
        s.mu += s.p[j] * s.v[j];
    }
    size_t cap = sl_sampler_capacity(MAX_S, n);
    s.draws = (sl_draws){.row = malloc(cap * sizeof(int32_t)),
                         .count = malloc(cap * sizeof(int32_t)),
                         .inv_pi = malloc(cap * sizeof(float)),
                         .scratch = malloc((sl_sampler_scratch(MAX_S, n) + 2 * MAX_S + 2 * n) * sizeof(uint64_t))};
    free(score);
    return s;
}

void sample_free(sample *s) {
    free(s->masses.stored), free(s->masses.ref), free(s->masses.cum);
    free(s->sizes.stored), free(s->sizes.ref), free(s->sizes.cum), free(s->p), free(s->v);
    free(s->draws.row), free(s->draws.count), free(s->draws.inv_pi), free(s->draws.scratch);
}

double sample_estimate(const sample *s) {
    double sum = 0;
    for (int i = 0; i < s->draws.n; i++) {
        int j = s->draws.row[i];
        sum += s->draws.count[i] * s->p[j] * (double)s->draws.inv_pi[i] * s->v[j];
    }
    return sum;
}

// ---- uniform numbers ----

uint64_t uniform_random(const void *ctx, uint32_t index) { // repetition *ctx, number index
    const sl_rng_id id = {.seed = (uint32_t)test_seed, .sequence = *(const uint32_t *)ctx};
    return sl_rng_u64(&id, index, SL_STREAM_ATTENTION);
}
uint64_t uniform_fixed(const void *ctx, uint32_t index) {
    (void)index;
    return *(const uint64_t *)ctx;
}
uint64_t uniform_grid(int i, int R) {
    return (uint64_t)(((double)i + 0.5) / R * 0x1p64);
} // exact for R a power of two

// Sum over strata of the variance of one draw, E v^2 - (E v)^2 with p restricted to the stratum, over S^2.
double sample_stratified_variance(const sample *s, int S) {
    double sum = 0, running = 0, first = 0, second = 0;
    int m = 0;
    for (int j = 0; j < s->masses.n; j++) {
        double left = s->p[j];
        while (left > 0) {
            double room = (m + 1.0) / S - running, take = left < room ? left : room;
            first += take * S * s->v[j], second += take * S * s->v[j] * s->v[j];
            running += take, left -= take;
            if (take < room) break;
            sum += second - first * first;
            first = second = 0;
            if (++m == S) return sum / S / S;
        }
    }
    return (sum + second - first * first) / S / S;
}

double upper_share(int k, int n) { // bisection: P(X <= k) = 0.025 of a binomial number of n trials
    double low = (double)k / n, high = 1;
    if (k == n) return 1;
    for (int step = 0; step < 60; step++) {
        double p = (low + high) / 2, below = 0, term = n * log1p(-p);
        for (int i = 0; i <= k; i++) {
            below += exp(term);
            term += log((double)(n - i) / (i + 1)) + log(p) - log1p(-p);
        }
        if (below > 0.025)
            low = p;
        else
            high = p;
    }
    return high;
}

void check_certified(const int exceeded[2], const int certified[2], int least, double epsilon, double delta,
                     const char *bound) {
    for (int step = 0; step < 2; step++) {
        double most = upper_share(exceeded[step], certified[step]);
        printf("      epsilon %g, delta %g, %s, %s step before: %d of %d certified heads exceed it (at most %.2f%%, 95%% "
               "confidence)\n",
               epsilon, delta, bound, step ? "with a" : "no", exceeded[step], certified[step], 100 * most);
        CHECK(certified[step] >= least);
        CHECK(most <= delta);
    }
}
