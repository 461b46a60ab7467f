// tests/engine/test_attention_spread.c - the spread of dense attention's mass (engine/attend/attention_spread.c). The test
// computes it again in double precision from sorted rows. tests/cuda/test_cuda_observe.c compares GPU and CPU.
#include "engine/engine_internal.h"
#include "tests/test.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

static int by_falling(const void *x, const void *y) {
    double a = *(const double *)x, b = *(const double *)y;
    return (a < b) - (a > b);
}

// p: probabilities of n rows, the newest last. Sorts p.
static sl_attn_spread slow_profile(double *p, int n) {
    sl_attn_spread out = {0};
    double entropy = 0, squares = 0, sum = 0;
    int row = n;
    for (int i = 0; i < n; i++) {
        if (p[i] > 0) entropy -= p[i] * log(p[i]);
        squares += p[i] * p[i];
        out.distance_mean += p[i] * (n - 1 - i);
        if (i < 4) out.sink += p[i];
        if (i >= n - 256) out.window += p[i];
    }
    while (sum < 0.5) sum += p[--row];
    out.distance_median = n - 1 - row;
    out.keys_entropy = exp(entropy), out.keys_squares = 1 / squares;
    qsort(p, (size_t)n, sizeof *p, by_falling);
    for (sum = 0; sum < 0.9; out.rows_90++) sum += p[(int)out.rows_90];
    return out;
}

static void check_profile(const float *scores, int n) {
    double *p = malloc((size_t)n * sizeof *p), total = 0, most = -INFINITY;
    float *copy = malloc((size_t)n * sizeof *copy);
    sl_attn_spread got;
    for (int i = 0; i < n; i++) most = fmax(most, scores[i]);
    for (int i = 0; i < n; i++) total += p[i] = exp2(scores[i] - most);
    for (int i = 0; i < n; i++) p[i] /= total;
    memcpy(copy, scores, (size_t)n * sizeof *copy);
    sl_attn_spread_of(copy, n, &got);
    const sl_attn_spread want = slow_profile(p, n);
    // the masses are rounded to float
    CHECK_NEAR(got.keys_entropy, want.keys_entropy, 1e-5 * want.keys_entropy);
    CHECK_NEAR(got.keys_squares, want.keys_squares, 1e-5 * want.keys_squares);
    CHECK_NEAR(got.sink, want.sink, 1e-6);
    CHECK_NEAR(got.window, want.window, 1e-6);
    CHECK_NEAR(got.distance_mean, want.distance_mean, 1e-5 * (1 + want.distance_mean));
    CHECK_NEAR(got.distance_median, want.distance_median, 1);
    CHECK_NEAR(got.rows_90, want.rows_90, 1);
    free(p), free(copy);
}

static void random_scores(void) {
    static const int lengths[] = {1, 2, 4, 5, 255, 256, 257, 260, 1000, 5000};
    static const float spreads[] = {0.01f, 3, 40, 400}; // the last one: most masses are 0
    static float scores[5000];
    uint32_t state = (uint32_t)test_seed;
    for (size_t k = 0; k < sizeof lengths / sizeof *lengths; k++)
        for (size_t j = 0; j < sizeof spreads / sizeof *spreads; j++) {
            for (int i = 0; i < lengths[k]; i++) {
                state = state * 1664525u + 1013904223u;
                scores[i] = spreads[j] * ((float)(state >> 8) / (1 << 24) - 0.5f) - 100;
            }
            check_profile(scores, lengths[k]);
        }
}

// Cases with figures that follow by hand.
static void known(void) {
    static float scores[1000];
    sl_attn_spread p;
    sl_attn_spread_of(scores, 1000, &p); // equal masses
    CHECK_NEAR(p.keys_entropy, 1000, 1e-6);
    CHECK_NEAR(p.keys_squares, 1000, 1e-6);
    CHECK_NEAR(p.sink, 0.004, 1e-9);
    CHECK_NEAR(p.window, 0.256, 1e-9);
    CHECK_NEAR(p.distance_mean, 499.5, 1e-6);
    CHECK(p.distance_median == 499 && p.rows_90 == 900);
    for (int i = 0; i < 1000; i++) scores[i] = i == 0 || i == 990 ? 0 : -1e4f; // two rows with half of the mass each
    sl_attn_spread_of(scores, 1000, &p);
    CHECK(p.keys_entropy == 2 && p.keys_squares == 2 && p.sink == 0.5 && p.window == 0.5);
    CHECK(p.distance_mean == (999 + 9) / 2.0 && p.distance_median == 9 && p.rows_90 == 2);
    scores[0] = scores[1] = 3, scores[2] = 2; // 2/5, 2/5, 1/5: 90% needs all three, 80% would need two
    sl_attn_spread_of(scores, 3, &p);
    CHECK(p.rows_90 == 3 && p.distance_median == 1 && p.sink == 1 && p.window == 1);
    for (int i = 0; i < 8; i++) scores[i] = i % 2 ? NAN : -INFINITY;
    sl_attn_spread_of(scores, 8, &p); // no figure, and no access outside of the arrays
}

static const test_case cases[] = {
    {"known", 0, known},
    {"random-scores", 0, random_scores},
    {0},
};
const test_suite suite_attention_spread = {"attention_spread", cases};
