// engine/cli/output/summary.h - figures with their errors: means, quantiles and shares of values that come in groups, and
// next-token distributions against each other. All sums in double precision and in the order of the values: equal values, equal
// figures.
#ifndef SLEIGH_SUMMARY_H
#define SLEIGH_SUMMARY_H

#include "engine/base/error.h"

#include <stdint.h>

void cli_sort(double *x, int n);     // upwards
double cli_median(double *x, int n); // sorts; of an even number the mean of the middle two
// Of x[0..n), which it sorts. The deviation is that of a sample; NaN for one.
void cli_spread(double *x, int n, double *mean, double *deviation, double *median);

// Values in groups that are independent of each other where the values of one are not: the positions of a text, the heads of a
// step.
typedef struct cli_values {
    double *x; // in the order of cli_values_add
    int n, cap;
    int *ends; // [n_groups] where each group ends
    int n_groups, cap_groups;
} cli_values;

int cli_values_add(cli_values *v, double x, sl_error *err);
int cli_values_end_group(cli_values *v, sl_error *err); // of those added since the last one; nothing where there are none
void cli_values_free(cli_values *v);

typedef struct cli_estimate {
    double at, error; // NaN: unknown
} cli_estimate;

// The mean with its standard error: between groups where there are 8 or more (values of a group may then depend on each other
// in any way), else as if all values were independent: the spread of a few groups says little.
cli_estimate cli_values_mean(const cli_values *v);

typedef struct cli_interval {
    double at, low, high; // NaN: no values
} cli_interval;

// n quantiles (shares of 1, rising) with 95% intervals between order statistics: no assumption on the distribution but that
// values are independent. The quantile is the smallest value with at least that share at or below it.
int cli_values_quantiles(const cli_values *v, const double *share, int n, cli_interval *out, sl_error *err);
double cli_values_max(const cli_values *v);

// ---- counts: intervals that have a width where all are right, too; counts need not be whole (an effective number) ----

// n_good of n with Wilson's 95% interval.
cli_interval cli_share(double n_good, double n);
// Of n pairs, the second is better in n_better and worse in n_worse: the difference of the two shares with Tango's 95% score
// interval (Statistics in Medicine 17, 1998).
cli_interval cli_paired_shares(double n_better, double n_worse, double n);
// Two-sided exact test that better and worse are as likely as each other: McNemar's, binomial on the pairs that differ.
double cli_mcnemar(int n_better, int n_worse);

// ---- logits: [n], natural logarithms ----

double cli_log_sum(const float *logits, int n); // log sum exp; NaN or infinite when the logits are not finite
int cli_argmax(const float *logits, int n);     // the lowest index wins ties
// sum_i p_i (log p_i - log q_i) with p, q the softmax of both, given their log sums; exactly 0 for equal logits.
double cli_kl(const float *p, double p_log_sum, const float *q, double q_log_sum, int n);

#endif
