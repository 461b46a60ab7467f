// tests/cli/test_intervals.c - statistics with errors: standard errors, quantiles, shares, paired differences, and the summary
// of sleigh eval. Expected values follow from definitions, by hand or by search, not from the formulas of the code.
#include "cli/eval/eval_table.h"
#include "cli/eval/eval_scores.h"
#include "cli/output/summary.h"
#include "engine/logprobs.h"
#include "tests/test.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

static const double Z = 1.959963984540054;
static sl_error err;

// ---- means and quantiles ----

static cli_values values_of(const double *x, int n, const int *sizes, int n_groups) {
    cli_values v = {0};
    for (int g = 0, i = 0; g < n_groups; g++) {
        for (int j = 0; j < sizes[g]; j++) CHECK_OK(cli_values_add(&v, x[i++], &err), err);
        CHECK_OK(cli_values_end_group(&v, &err), err);
        CHECK_OK(cli_values_end_group(&v, &err), err); // no values since the last group: no new group
        CHECK(g + 1 < n_groups || i == n);
    }
    CHECK_INT(v.n, n);
    CHECK_INT(v.n_groups, n_groups);
    return v;
}

static void check_mean(const double *x, int n, const int *sizes, int n_groups, double at, double error) {
    cli_values v = values_of(x, n, sizes, n_groups);
    cli_estimate e = cli_values_mean(&v);
    CHECK_NEAR(e.at, at, 1e-14);
    CHECK_NEAR(e.error, error, 1e-14);
    cli_values_free(&v);
}

static void means(void) {
    const double few[] = {2, 4, 9}, paired[] = {1, 3, 2, 2, 5, 5, 0, 0, 3, 3, 4, 2, 1, 1, 6, 8};
    const int all[] = {3}, seven[] = {2, 2, 2, 2, 2, 2, 4}, eight[] = {2, 2, 2, 2, 2, 2, 2, 2},
              uneven[] = {1, 1, 1, 1, 1, 1, 1, 9};
    check_mean(few, 3, all, 1, 5, sqrt((9 + 1 + 16) / 2.0 / 3)); // squared distances from 5; divided by n - 1, then by n
    // mean 46/16 = 2.875. Seven groups: treated as independent. Sum of squares 208, so 208 - 46^2 / 16 around the mean
    check_mean(paired, 16, seven, 7, 2.875, sqrt((208 - 46 * 46 / 16.0) / 15 / 16));
    // eight groups with sums 4 4 10 0 6 6 2 14, compared with 5.75
    double squares = 2 * 1.75 * 1.75 + 4.25 * 4.25 + 5.75 * 5.75 + 2 * 0.25 * 0.25 + 3.75 * 3.75 + 8.25 * 8.25;
    check_mean(paired, 16, eight, 8, 2.875, sqrt(squares * 8 / 7) / 16);
    // groups of other sizes: the sum of a group is compared with its size times the mean
    squares = 0;
    for (int i = 0; i < 7; i++) squares += (paired[i] - 2.875) * (paired[i] - 2.875);
    squares += (28 - 9 * 2.875) * (28 - 9 * 2.875); // the last nine: 46 - (1 + 3 + 2 + 2 + 5 + 5 + 0)
    check_mean(paired, 16, uneven, 8, 2.875, sqrt(squares * 8 / 7) / 16);
    cli_values v = {0};
    CHECK(isnan(cli_values_mean(&v).at) && isnan(cli_values_mean(&v).error) && isnan(cli_values_max(&v)));
    CHECK_OK(cli_values_add(&v, -3, &err), err);
    CHECK(cli_values_mean(&v).at == -3 && isnan(cli_values_mean(&v).error)); // one value has no spread
    CHECK(cli_values_max(&v) == -3);
    for (int i = 0; i < 1000; i++) CHECK_OK(cli_values_add(&v, i == 700 ? 5 : -4, &err), err); // beyond the first allocation
    CHECK_INT(v.n, 1001);
    CHECK(cli_values_max(&v) == 5);
    cli_values_free(&v);
}

// The interval of a mean, from tables of Student's t: 8 and 24 groups, and 101 values in fewer groups.
static void mean_intervals(void) {
    static const struct {
        int n, groups;
        double t;
    } cases[] = {{16, 8, 2.364624}, {48, 24, 2.068658}, {101, 1, 1.983972}, {101, 7, 1.983972}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        cli_values v = {0};
        for (int k = 0; k < cases[i].n; k++) {
            CHECK_OK(cli_values_add(&v, k * 37 % 101, &err), err);
            if ((k + 1) * cases[i].groups / cases[i].n > v.n_groups) CHECK_OK(cli_values_end_group(&v, &err), err);
        }
        CHECK_INT(v.n_groups, cases[i].groups);
        cli_estimate mean = cli_values_mean(&v);
        cli_interval got = cli_values_mean_interval(&v, mean);
        CHECK(got.at == mean.at && mean.error > 0);
        CHECK_NEAR(got.high - got.at, cases[i].t * mean.error, 4e-4 * cases[i].t * mean.error);
        CHECK_NEAR(got.at - got.low, cases[i].t * mean.error, 4e-4 * cases[i].t * mean.error);
        cli_values_free(&v);
    }
}

static void check_spread(const double *from, int n, double mean, double deviation, double median) {
    double x[16], got[3];
    memcpy(x, from, (size_t)n * sizeof *x);
    cli_spread(x, n, &got[0], &got[1], &got[2]);
    CHECK_NEAR(got[0], mean, 1e-14);
    CHECK(n == 1 ? isnan(got[1]) : fabs(got[1] - deviation) < 1e-14);
    CHECK_NEAR(got[2], median, 1e-14);
    CHECK_NEAR(cli_median(x, n), median, 1e-14);
}

static void spreads(void) {
    const double x[] = {9, 2, 4, 3, 12};
    check_spread(x, 1, 9, NAN, 9);
    check_spread(x, 2, 5.5, sqrt(2 * 3.5 * 3.5), 5.5);
    check_spread(x, 3, 5, sqrt((16 + 9 + 1) / 2.0), 4);
    check_spread(x, 4, 4.5, sqrt((20.25 + 6.25 + 0.25 + 2.25) / 3), 3.5);
    check_spread(x, 5, 6, sqrt((9 + 16 + 4 + 9 + 36) / 4.0), 4);
}

// Values 1 to n in a mixed order, so that a quantile equals its rank.
static void check_ranks(int n, double share, int at, int low, int high) {
    cli_values v = {0};
    cli_interval got;
    for (int i = 0; i < n; i++) CHECK_OK(cli_values_add(&v, 1 + (i * 7 + 3) % n, &err), err);
    CHECK_OK(cli_values_quantiles(&v, &share, 1, &got, &err), err);
    if (got.at != at || got.low != low || got.high != high)
        FAIL("%g of %d: ranks %g (%g to %g), expected %d (%d to %d)", share, n, got.at, got.low, got.high, at, low, high);
    CHECK(v.x[0] == 1 + 3 % n); // the values keep their order
    cli_values_free(&v);
}

// The rank is ceil(n share). The ends of the interval have ranks floor and ceil + 1 of n share -+ z sqrt(n share (1 - share)).
static void quantiles(void) {
    check_ranks(100, 0.5, 50, 40, 61);   // 50 -+ 9.80
    check_ranks(101, 0.5, 51, 40, 62);   // 50.5 -+ 9.85
    check_ranks(100, 0.9, 90, 84, 97);   // 90 -+ 5.88
    check_ranks(100, 0.1, 10, 4, 17);    // 10 -+ 5.88
    check_ranks(100, 0.99, 99, 97, 100); // 99 -+ 1.95; there is no 102nd
    check_ranks(25, 0.04, 1, 1, 4);      // 1 -+ 1.92: no rank below 1
    check_ranks(40, 0.9, 36, 32, 40);    // 36 -+ 3.72: there is no 41st
    check_ranks(1, 0.5, 1, 1, 1);
    const double shares[] = {0.25, 0.5, 1};
    cli_values v = {0};
    cli_interval got[3];
    CHECK_OK(cli_values_quantiles(&v, shares, 3, got, &err), err);
    CHECK(isnan(got[0].at) && isnan(got[2].low) && isnan(got[1].high));
    for (int i = 0; i < 4; i++) CHECK_OK(cli_values_add(&v, -i, &err), err);
    CHECK_OK(cli_values_quantiles(&v, shares, 3, got, &err), err);
    CHECK(got[0].at == -3 && got[1].at == -2 && got[2].at == 0);
    double x[] = {3, -1, 2, 2, -7};
    cli_sort(x, 5);
    CHECK(x[0] == -7 && x[1] == -1 && x[2] == 2 && x[3] == 2 && x[4] == 3);
    cli_values_free(&v);
}

// In groups, intervals follow from the spread between the groups. 9 groups of 20 values: group g holds 1 in its first 2 g
// values, and 0 in the others.
static void grouped(void) {
    enum { GROUPS = 9, SIZE = 20, N = GROUPS * SIZE };
    const double share = 0.5, t = 2.306004; // Student's 97.5% quantile for 8 degrees of freedom
    cli_values v = {0}, same = {0}, ranks = {0};
    cli_interval got;
    double squares = 0, sum = 0;
    for (int g = 0; g < GROUPS; g++) {
        double off = 2 * g - 8; // the mean of a group's sum is 8
        squares += off * off;
        for (int i = 0; i < SIZE; i++) {
            CHECK_OK(cli_values_add(&v, i < 2 * g, &err), err);
            CHECK_OK(cli_values_add(&same, 1, &err), err);
            CHECK_OK(cli_values_add(&ranks, g * SIZE + i + 1, &err), err); // 1 to 180: whole groups lie on one side
            sum += i < 2 * g;
        }
        CHECK_OK(cli_values_end_group(&v, &err), err);
        CHECK_OK(cli_values_end_group(&same, &err), err);
        CHECK_OK(cli_values_end_group(&ranks, &err), err);
    }
    double p = sum / N, error = sqrt(squares * GROUPS / (GROUPS - 1)) / N;
    // Wilson's interval for the number of independent values that has this error
    double n = p * (1 - p) / (error * error);
    CHECK(n < N && n > GROUPS);
    got = cli_values_share(&v);
    CHECK_NEAR(got.at, p, 1e-14);
    CHECK_NEAR(p - got.low, Z * sqrt(got.low * (1 - got.low) / n), 1e-12);
    got = cli_values_share(&same); // equal values: as few as the groups
    CHECK_NEAR(got.low, GROUPS / (GROUPS + Z * Z), 1e-12);
    // The median is 90. 4.5 groups are at or below it, so a group has 1 (four times), 1/2 or 0 of its values there.
    CHECK_OK(cli_values_quantiles(&ranks, &share, 1, &got, &err), err);
    double spread = t * SIZE * sqrt(8 * 0.25 * GROUPS / (GROUPS - 1));
    CHECK(got.at == 90 && got.low == floor(90 - spread) && got.high == ceil(90 + spread) + 1);
    ranks.n_groups = 7; // too few groups: as independent values
    CHECK_OK(cli_values_quantiles(&ranks, &share, 1, &got, &err), err);
    CHECK(got.low == floor(90 - Z * sqrt(45)) && got.high == ceil(90 + Z * sqrt(45)) + 1);
    v.n_groups = 7;
    got = cli_values_share(&v);
    CHECK_NEAR(got.low, cli_share(sum, N).low, 1e-12);
    cli_values_free(&v), cli_values_free(&same), cli_values_free(&ranks);
}

// ---- logits ----

static void logits(void) {
    const float p[] = {0, 0.6931472f, 0}, q[] = {0, 0, 0}, big[] = {-1000, 1000, 1000};
    double p_sum = sl_log_sum(p, 3), q_sum = sl_log_sum(q, 3);
    CHECK_NEAR(p_sum, log(4), 1e-7); // 1 + 2 + 1
    CHECK_NEAR(q_sum, log(3), 1e-15);
    CHECK_NEAR(sl_log_sum(big, 3), 1000 + log(2), 1e-12);
    // probabilities 1/4 1/2 1/4 compared with thirds
    CHECK_NEAR(cli_kl(p, p_sum, q, q_sum, 3), 0.5 * log(0.75) + 0.5 * log(1.5), 1e-7);
    CHECK_NEAR(cli_kl(q, q_sum, p, p_sum, 3), 2.0 / 3 * log(4.0 / 3) + log(2.0 / 3) / 3, 1e-7);
    CHECK(cli_kl(p, p_sum, p, p_sum, 3) == 0);
    CHECK(cli_kl(q, q_sum, q, q_sum - 1e-9, 3) == 0); // rounding would give a number below 0
    CHECK_INT(cli_argmax(p, 3), 1);
    CHECK_INT(cli_argmax(q, 3), 0); // the lowest index wins ties
    CHECK_INT(cli_argmax(big, 3), 1);
    CHECK(!isfinite(sl_log_sum((const float[]){0, NAN}, 2)) && !isfinite(sl_log_sum((const float[]){NAN, 0}, 2)));
    CHECK(!isfinite(sl_log_sum((const float[]){0, INFINITY}, 2)));
}

// ---- shares ----

// At the ends of Wilson's interval the share is z standard deviations away, with the variance at that end.
static void check_share(double good, double n) {
    cli_interval i = cli_share(good, n);
    double p = good / n;
    CHECK_NEAR(i.at, p, 1e-15);
    CHECK(i.low >= 0 && i.low <= p && p <= i.high && i.high <= 1 && i.high - i.low > 0);
    if (good > 0) CHECK_NEAR(p - i.low, Z * sqrt(i.low * (1 - i.low) / n), 1e-12);
    if (good < n) CHECK_NEAR(i.high - p, Z * sqrt(i.high * (1 - i.high) / n), 1e-12);
}

static void shares(void) {
    for (int n = 1; n <= 40; n++)
        for (int good = 0; good <= n; good++) check_share(good, n);
    check_share(7.25, 9.5);
    cli_interval all = cli_share(24, 24), none = cli_share(0, 24), unknown = cli_share(0, 0);
    CHECK_NEAR(all.low, 24 / (24 + Z * Z), 1e-12); // 86.2%: the interval of 24 right of 24 has a width
    CHECK_NEAR(none.high, Z * Z / (24 + Z * Z), 1e-12);
    CHECK(all.high == 1 && none.low == 0 && isnan(unknown.at) && isnan(unknown.low) && isnan(unknown.high));
}

// The maximum-likelihood probability of "worse" if that of "better" is x more, by search.
static double likeliest(double better, double worse, double n, double x) {
    double low = fmax(0, -x), high = (1 - x) / 2, rest = n - better - worse;
    for (int i = 0; i < 200; i++) {
        double at[2] = {low + (high - low) / 3, high - (high - low) / 3}, l[2];
        for (int k = 0; k < 2; k++)
            l[k] = (better > 0 ? better * log(at[k] + x) : 0) + (worse > 0 ? worse * log(at[k]) : 0) +
                   (rest > 0 ? rest * log(1 - 2 * at[k] - x) : 0);
        *(l[0] < l[1] ? &low : &high) = l[0] < l[1] ? at[0] : at[1];
    }
    return (low + high) / 2;
}

static void check_pairs(double better, double worse, double n) {
    cli_interval i = cli_paired_shares(better, worse, n);
    double d = (better - worse) / n, ends[2] = {i.low, i.high};
    CHECK_NEAR(i.at, d, 1e-15);
    CHECK(-1 <= i.low && i.low <= d && d <= i.high && i.high <= 1 && i.high - i.low > 0);
    for (int k = 0; k < 2;
         k++) { // Tango's ends: z standard deviations away, with the maximum-likelihood probabilities at that end
        double x = ends[k], q = likeliest(better, worse, n, x);
        if (x == (k ? 1 : -1)) continue;
        double z = (d - x) / sqrt((2 * q + x - x * x) / n);
        if (fabs(fabs(z) - Z) > 1e-5) FAIL("%g better, %g worse of %g: z = %g at %.9g", better, worse, n, z, x);
    }
    cli_interval other = cli_paired_shares(worse, better, n);
    CHECK_NEAR(other.low, -i.high, 1e-12);
    CHECK_NEAR(other.high, -i.low, 1e-12);
}

static void pairs(void) {
    for (int n = 1; n <= 12; n++)
        for (int better = 0; better <= n; better++)
            for (int worse = 0; better + worse <= n; worse++) check_pairs(better, worse, n);
    check_pairs(0, 1, 1024), check_pairs(300, 17, 1024), check_pairs(2.5, 0.75, 19.8);
    cli_interval same = cli_paired_shares(0, 0, 24);
    CHECK_NEAR(same.high, Z * Z / (24 + Z * Z), 1e-12); // no pair differs: equals Wilson's for 0 of 24
    CHECK_NEAR(same.low, -same.high, 1e-12);
    CHECK(isnan(cli_paired_shares(0, 0, 0).at));
}

static void mcnemar(void) {
    CHECK_NEAR(cli_mcnemar(10, 2), 2 * (1 + 12 + 66) / 4096.0, 1e-14);
    CHECK_NEAR(cli_mcnemar(2, 10), 2 * (1 + 12 + 66) / 4096.0, 1e-14);
    CHECK_NEAR(cli_mcnemar(0, 6), 2 / 64.0, 1e-14);
    CHECK_NEAR(cli_mcnemar(4, 1), 2 * (1 + 5) / 32.0, 1e-14);
    CHECK(cli_mcnemar(0, 0) == 1 && cli_mcnemar(3, 3) == 1 && cli_mcnemar(1, 0) == 1);
    CHECK_NEAR(cli_mcnemar(3, 2) / 1, 1, 1e-14);                // 2 x 16 / 32
    CHECK_NEAR(log(cli_mcnemar(0, 1000)), -999 * log(2), 1e-9); // far in the tail
    CHECK(cli_mcnemar(0, 5000) == 0 && cli_mcnemar(60000, 60000) == 1);
}

// ---- the summary of sleigh eval ----

typedef struct table {
    eval_scores s;
    eval_group groups[4];
    eval_summary rows[16];
} table;

// sizes: [n_clusters] of one group; scores: [n_methods][sum of sizes]
static void summarise(table *t, const int *sizes, int n_clusters, const double *scores, int n_methods) {
    static char *names[] = {"a", "b", "c"};
    int n = 0;
    for (int c = 0; c < n_clusters; c++) n += sizes[c];
    *t = (table){.s = {.n_groups = 1, .n_samples = n, .n_methods = n_methods, .methods = names}};
    t->s.groups = t->groups;
    t->groups[0] = (eval_group){.task = "x", .length = 64, .n = n};
    CHECK_OK(eval_scores_alloc(&t->s, &err), err);
    for (int c = 0, i = 0; c < n_clusters; c++)
        for (int j = 0; j < sizes[c]; j++) t->s.cluster[i++] = c;
    memcpy(t->s.score, scores, (size_t)n_methods * (size_t)n * sizeof *scores);
    eval_summarise(&t->s, t->rows);
}

static void free_table(table *t) {
    t->s.groups = NULL; // not allocated
    eval_scores_free(&t->s);
}

// Samples of a text depend on each other: each text has its own probability, 1 or 0.6. The intervals have the stated coverage;
// Wilson's interval of all 128 samples would cover in only 86 of 100 cases. 95% of 2,000 tries are 1,900 +- 10.
static void coverage(void) {
    enum { TEXTS = 32, PER_TEXT = 4, N = TEXTS * PER_TEXT, TRIES = 2000 };
    uint64_t state = test_seed;
    int sizes[TEXTS], n_held = 0, n_held_difference = 0;
    for (int c = 0; c < TEXTS; c++) sizes[c] = PER_TEXT;
    for (int k = 0; k < TRIES; k++) {
        double x[2 * N];
        table t;
        for (int c = 0; c < TEXTS; c++) {
            double chance = test_uniform(&state) < 0.5 ? 1 : 0.6;
            for (int i = PER_TEXT * c; i < PER_TEXT * (c + 1); i++) {
                x[i] = test_uniform(&state) < chance;
                x[N + i] = test_uniform(&state) < 0.7 ? x[i] : test_uniform(&state) < chance - 0.2;
            }
        }
        summarise(&t, sizes, TEXTS, x, 2);
        n_held += t.rows[0].score.low <= 0.8 && 0.8 <= t.rows[0].score.high;
        n_held_difference += t.rows[2].difference.low <= -0.06 && -0.06 <= t.rows[2].difference.high;
        free_table(&t);
    }
    if (n_held < 0.92 * TRIES || n_held > 0.98 * TRIES) FAIL("scores: %d of %d held", n_held, TRIES);
    if (n_held_difference < 0.92 * TRIES || n_held_difference > 0.985 * TRIES)
        FAIL("differences: %d of %d held", n_held_difference, TRIES);
}

static const test_case cases[] = {
    {"means", NEEDS_NOTHING, means},
    {"mean_intervals", NEEDS_NOTHING, mean_intervals},
    {"spreads", NEEDS_NOTHING, spreads},
    {"quantiles", NEEDS_NOTHING, quantiles},
    {"grouped", 0, grouped},
    {"logits", NEEDS_NOTHING, logits},
    {"shares", NEEDS_NOTHING, shares},
    {"pairs", NEEDS_NOTHING, pairs},
    {"mcnemar", NEEDS_NOTHING, mcnemar},
    {"coverage", NEEDS_NOTHING, coverage},
    {0},
};
const test_suite suite_intervals = {"intervals", cases};
