// cli/output/summary.h - statistics with errors: means, quantiles and shares of values in groups, and comparisons of
// next-token distributions. Sums are in double precision and in the order of the values, so equal values give equal results.
#ifndef SLEIGH_SUMMARY_H
#define SLEIGH_SUMMARY_H

#include "base/error.h"

#include <stdint.h>

void cli_sort(double *x, int n);     // ascending
double cli_median(double *x, int n); // sorts x; for even n the mean of the middle two
// Statistics of x[0..n); sorts x. deviation: sample standard deviation; NaN for n = 1.
void cli_spread(double *x, int n, double *mean, double *deviation, double *median);

// Values in groups. Groups are independent of each other; the values of one group may not be (positions of a text, heads of a
// step).
typedef struct cli_values {
    double *x; // [n] in the order of cli_values_add
    int n, cap;
    int *ends; // [n_groups] end of each group in x
    int n_groups, cap_groups;
} cli_values;

int cli_values_add(cli_values *v, double x, sl_error *err);
int cli_values_end_group(cli_values *v,
                         sl_error *err); // ends a group of the values added since the last group; an empty group is not added
void cli_values_free(cli_values *v);

typedef struct cli_estimate {
    double at, error; // NaN: unknown
} cli_estimate;

typedef struct cli_interval {
    double at, low, high; // NaN: no values
} cli_interval;

// With CLI_MIN_GROUPS groups or more, all errors and intervals of these functions are between groups, so that values of a group
// may depend on each other in any way. With fewer groups, whose spread is unreliable, all values count as independent.
enum { CLI_MIN_GROUPS = 8 };
cli_estimate cli_values_mean(const cli_values *v);  // with its standard error
cli_interval cli_values_share(const cli_values *v); // the mean of values 0 and 1, with Wilson's 95% interval
// The 95% interval of a mean with this standard error: Student's t, with the groups or the values that gave the error.
cli_interval cli_values_mean_interval(const cli_values *v, cli_estimate mean);

// n quantiles (share: ascending, in 0 to 1) with 95% intervals between order statistics, which assume nothing about the
// distribution. A quantile is the smallest value with at least that share of values at or below it.
int cli_values_quantiles(const cli_values *v, const double *share, int n, cli_interval *out, sl_error *err);
double cli_values_max(const cli_values *v);

// ---- counts: intervals keep a width if all are right; counts may be fractions (effective numbers) ----

// The share n_good / n with Wilson's 95% interval.
cli_interval cli_share(double n_good, double n);
// n pairs; in n_better the second is better, in n_worse it is worse. The difference of the shares, with Tango's 95% score
// interval (Statistics in Medicine 17, 1998).
cli_interval cli_paired_shares(double n_better, double n_worse, double n);
// McNemar's two-sided exact test of equal chances for better and worse: binomial on the pairs that differ.
double cli_mcnemar(int n_better, int n_worse);

// ---- logits: [n], natural logarithms ----

int cli_argmax(const float *logits, int n); // the lowest index wins ties
// KL divergence: sum_i p_i (log p_i - log q_i), p and q the softmax of both logits, given their log sums. Exactly 0 for equal
// logits.
double cli_kl(const float *p, double p_log_sum, const float *q, double q_log_sum, int n);

#endif
