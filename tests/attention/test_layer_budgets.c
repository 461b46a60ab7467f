// tests/attention/test_layer_budgets.c - the split of draws over layers (attention/budgets/layer_budgets.h).
#include "attention/budgets/layer_budgets.h"
#include "tests/test.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

static void rounding(void) {
    static const struct {
        double share[4];
        int total, want[4];
    } cases[] = {
        {{1, 1, 1, 1}, 32, {8, 8, 8, 8}},
        {{0, 0, 0, 0}, 6, {2, 2, 1, 1}}, // no shares: equal; the lower layers get the rest
        {{1, 2, 3, 4}, 10, {1, 2, 3, 4}},
        {{0.26, 0.26, 0.24, 0.24}, 10, {3, 3, 2, 2}},
        {{1, 0, 0, 0}, 16, {13, 1, 1, 1}}, // the floor of 1
        {{1, 0, 0, 0}, 4, {1, 1, 1, 1}},
        {{5, 1e-9, 5, 1e-9}, 9, {4, 1, 3, 1}}, // 4.5, 0, 4.5, 0: the floors take from the layer of the smaller remainder
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        int got[4], sum = 0;
        sl_layer_budgets_round(cases[i].share, 4, cases[i].total, got);
        for (int l = 0; l < 4; l++) sum += got[l];
        CHECK_INT(sum, cases[i].total);
        for (int l = 0; l < 4; l++) CHECK(got[l] >= 1);
        if (i + 1 == sizeof cases / sizeof *cases) {
            CHECK(got[0] + got[2] == 7 && abs(got[0] - got[2]) == 1);
            continue;
        }
        for (int l = 0; l < 4; l++) CHECK_INT(got[l], cases[i].want[l]);
    }
}

static double sum_of_errors(const double *a, const int *s, int n) {
    double sum = 0;
    for (int i = 0; i < n; i++) sum += a[i] / s[i];
    return sum;
}

// The rule gives 1 : 2 : 3 for errors 1 : 4 : 9, and no other split of the total has a smaller sum of a_l / S_l.
static void variance(void) {
    static const double error[3] = {0.01, 0.04, 0.09};
    int s[3];
    sl_layer_budgets_by_variance(error, 3, 60, s);
    CHECK_INT(s[0], 10);
    CHECK_INT(s[1], 20);
    CHECK_INT(s[2], 30);
    double least = sum_of_errors(error, s, 3);
    for (int a = 1; a < 59; a++)
        for (int b = 1; a + b < 60; b++) CHECK(sum_of_errors(error, (int[]){a, b, 60 - a - b}, 3) >= least * (1 - 1e-12));
}

// A draw has `total` in sum, repeats for equal keys, differs for other keys, and follows p.
static void multinomial(void) {
    enum { N = 3, TOTAL = 30, R = 4000 };
    static const double p[N] = {0.5, 0.3, 0.2};
    double mean[N] = {0};
    int s[N], again[N], n_equal = 0;
    for (int r = 0; r < R; r++) {
        sl_layer_budgets_draw(p, N, TOTAL, 7, 0, (uint32_t)r, s);
        sl_layer_budgets_draw(p, N, TOTAL, 7, 0, (uint32_t)r, again);
        CHECK(!memcmp(s, again, sizeof s));
        CHECK_INT(s[0] + s[1] + s[2], TOTAL);
        sl_layer_budgets_draw(p, N, TOTAL, 7, 1, (uint32_t)r, again);
        n_equal += !memcmp(s, again, sizeof s);
        for (int i = 0; i < N; i++) mean[i] += (double)s[i] / R;
    }
    CHECK(n_equal < R / 10);
    for (int i = 0; i < N; i++) // 5 standard errors of a mean of R binomial counts
        CHECK_NEAR(mean[i], TOTAL * p[i], 5 * sqrt(TOTAL * p[i] * (1 - p[i]) / R));
}

// One update against the sums of Algorithm 1, written out for two layers and two episodes.
static void update(void) {
    double theta[2] = {0.3, -0.1};
    const int s[4] = {6, 2, 3, 5};
    const double reward[2] = {1, 0.25};
    double p0 = 1 / (1 + exp(-0.4)), b = 0.625;
    double g0 = ((1 - b) * (6 - 8 * p0) + (0.25 - b) * (3 - 8 * p0)) / 2;
    double g1 = ((1 - b) * (2 - 8 * (1 - p0)) + (0.25 - b) * (5 - 8 * (1 - p0))) / 2;
    sl_layer_budgets_learn(theta, 2, 8, 0.02, s, reward, 2);
    CHECK_NEAR(theta[0], 0.3 + 0.02 * g0, 1e-15);
    CHECK_NEAR(theta[1], -0.1 + 0.02 * g1, 1e-15);
}

// Two layers whose errors are 9 / S_0 and 1 / S_1: of 40 draws, the best split is 30 : 10. The reward is a decreasing function
// of the sum. The learned split comes near the best one, and its error is below that of the even split.
static void learns_the_best_split(void) {
    enum { TOTAL = 40, E = 10, UPDATES = 501 };
    static const double a[2] = {9, 1};
    double theta[2] = {0, 0}, p[2], reward[E];
    int s[2 * E], learned[2], best = 0;
    for (int u = 0; u < UPDATES; u++) {
        sl_layer_budgets_policy(theta, 2, p);
        for (int k = 0; k < E; k++) {
            sl_layer_budgets_draw(p, 2, TOTAL, 1, (uint32_t)u, (uint32_t)k, s + 2 * k);
            int run[2] = {s[2 * k] ? s[2 * k] : 1, s[2 * k + 1] ? s[2 * k + 1] : 1};
            reward[k] = exp(-sum_of_errors(a, run, 2));
        }
        sl_layer_budgets_learn(theta, 2, TOTAL, 0.02, s, reward, E);
    }
    for (int x = 1; x < TOTAL; x++)
        if (!best || sum_of_errors(a, (int[]){x, TOTAL - x}, 2) < sum_of_errors(a, (int[]){best, TOTAL - best}, 2)) best = x;
    CHECK_INT(best, 30);
    sl_layer_budgets_policy(theta, 2, p);
    sl_layer_budgets_round(p, 2, TOTAL, learned);
    CHECK(learned[0] >= 26 && learned[0] <= 34);
    CHECK(sum_of_errors(a, learned, 2) < sum_of_errors(a, (int[]){20, 20}, 2));
}

static const test_case cases[] = {
    {"rounding", NEEDS_NOTHING, rounding},
    {"variance", NEEDS_NOTHING, variance},
    {"multinomial", NEEDS_NOTHING, multinomial},
    {"update", NEEDS_NOTHING, update},
    {"learns_the_best_split", NEEDS_NOTHING, learns_the_best_split},
    {0},
};

const test_suite suite_layer_budgets = {"layer_budgets", cases};
