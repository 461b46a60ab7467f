// cli/output/summary.c - see summary.h.
#include "cli/output/summary.h"
#include "cli/grow.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

static const double Z95 = 1.959963984540054; // two-sided 95% quantile of the normal distribution

static int by_value(const void *x, const void *y) {
    double a = *(const double *)x, b = *(const double *)y;
    return (a > b) - (a < b);
}

void cli_sort(double *x, int n) {
    qsort(x, n, sizeof *x, by_value);
}

double cli_median(double *x, int n) {
    cli_sort(x, n);
    return (x[(n - 1) / 2] + x[n / 2]) / 2;
}

void cli_spread(double *x, int n, double *mean, double *deviation, double *median) {
    double sum = 0, squares = 0;
    for (int i = 0; i < n; i++) sum += x[i];
    *mean = sum / n;
    for (int i = 0; i < n; i++) squares += (x[i] - *mean) * (x[i] - *mean);
    *deviation = n > 1 ? sqrt(squares / (n - 1)) : NAN;
    *median = cli_median(x, n);
}

static int no_memory(sl_error *err) {
    return sl_fail(err, SL_ERR_MEMORY, "values of a summary: out of memory");
}

int cli_values_add(cli_values *v, double x, sl_error *err) {
    double *grown = cli_grow(v->x, v->n, &v->cap, sizeof *grown);
    if (!grown) return no_memory(err);
    v->x = grown;
    v->x[v->n++] = x;
    return 0;
}

int cli_values_end_group(cli_values *v, sl_error *err) {
    if (v->n == (v->n_groups ? v->ends[v->n_groups - 1] : 0)) return 0;
    int *grown = cli_grow(v->ends, v->n_groups, &v->cap_groups, sizeof *grown);
    if (!grown) return no_memory(err);
    v->ends = grown;
    v->ends[v->n_groups++] = v->n;
    return 0;
}

void cli_values_free(cli_values *v) {
    free(v->x);
    free(v->ends);
    *v = (cli_values){0};
}

static int is_grouped(const cli_values *v) {
    return v->n_groups >= CLI_MIN_GROUPS;
}

typedef struct moments {
    double mean, error;
    double sizes; // sum of the squares of the group sizes
} moments;

// Value i; with `bound`, 1 if the value is at most *bound and 0 otherwise.
static double value(const cli_values *v, const double *bound, int i) {
    return bound ? v->x[i] <= *bound : v->x[i];
}

// The mean is a ratio: the sum of the group sums over the sum of the group sizes. Its error is that of a ratio of two means.
static moments moments_of(const cli_values *v, const double *bound) {
    double sum = 0, squares = 0;
    moments m = {0};
    for (int i = 0; i < v->n; i++) sum += value(v, bound, i);
    m.mean = v->n ? sum / v->n : NAN;
    if (!is_grouped(v)) {
        for (int i = 0; i < v->n; i++) squares += (value(v, bound, i) - m.mean) * (value(v, bound, i) - m.mean);
        m.error = v->n < 2 ? NAN : sqrt(squares / (v->n - 1) / v->n);
        return m;
    }
    for (int g = 0, i = 0; g < v->n_groups; g++) {
        double off = 0, size = v->ends[g] - i;
        for (; i < v->ends[g]; i++) off += value(v, bound, i) - m.mean;
        squares += off * off, m.sizes += size * size;
    }
    m.error = sqrt(squares * v->n_groups / (v->n_groups - 1)) / v->n;
    return m;
}

cli_estimate cli_values_mean(const cli_values *v) {
    moments m = moments_of(v, NULL);
    return (cli_estimate){m.mean, m.error};
}

// The two-sided 95% quantile of Student's distribution, for n degrees of freedom: Abramowitz and Stegun, 26.7.5. It is 5e-5
// too low for n = 7, and closer for a higher n.
static double student95(double n) {
    double z = Z95, z2 = z * z;
    double g1 = z * (z2 + 1) / 4, g2 = z * (5 * z2 * z2 + 16 * z2 + 3) / 96;
    double g3 = z * (((3 * z2 + 19) * z2 + 17) * z2 - 15) / 384;
    double g4 = z * ((((79 * z2 + 776) * z2 + 1482) * z2 - 1920) * z2 - 945) / 92160;
    return z + (g1 + (g2 + (g3 + g4 / n) / n) / n) / n;
}

// Standard errors on each side of a mean for a 95% interval.
static double reach(const cli_values *v) {
    return student95((is_grouped(v) ? v->n_groups : v->n) - 1);
}

cli_interval cli_values_mean_interval(const cli_values *v, cli_estimate mean) {
    double half = reach(v) * mean.error;
    return (cli_interval){mean.at, mean.at - half, mean.at + half};
}

// The effective number of independent values: p (1 - p) over the variance of the mean. It is at most n. It is at least the
// number if all values of a group were equal; this bound is also used if all values are equal, because dependence is not
// visible then. (cli/eval/eval_table.c has the same rule for clusters.)
cli_interval cli_values_share(const cli_values *v) {
    moments m = moments_of(v, NULL);
    double n = v->n;
    if (is_grouped(v)) {
        double least = n * n / m.sizes, worth = m.error > 0 ? m.mean * (1 - m.mean) / (m.error * m.error) : least;
        n = fmax(least, fmin(worth, n));
    }
    return cli_share(m.mean * n, n);
}

// spread: the ranks between the quantile and each end of its interval.
static cli_interval quantile(const double *sorted, int n, double share, double spread) {
    int at = (int)ceil(n * share) - 1, low = (int)floor(n * share - spread) - 1, high = (int)ceil(n * share + spread);
    if (at < 0) at = 0;
    if (low < 0) low = 0;
    if (high > n - 1) high = n - 1;
    return (cli_interval){sorted[at], sorted[low], sorted[high]};
}

// The number of values below a quantile is binomial if the values are independent; the interval in ranks uses the normal
// approximation. In groups, the interval follows from the error of the share of values that are at most the quantile (Woodruff,
// Journal of the American Statistical Association 47, 1952).
static double rank_spread(const cli_values *v, double share, double at) {
    if (!is_grouped(v)) return Z95 * sqrt(v->n * share * (1 - share));
    return reach(v) * v->n * moments_of(v, &at).error;
}

int cli_values_quantiles(const cli_values *v, const double *share, int n, cli_interval *out, sl_error *err) {
    double *sorted = malloc((size_t)(v->n + 1) * sizeof *sorted);
    if (!sorted) return no_memory(err);
    if (v->n) memcpy(sorted, v->x, v->n * sizeof *sorted);
    cli_sort(sorted, v->n);
    for (int i = 0; i < n; i++) {
        out[i] = (cli_interval){NAN, NAN, NAN};
        if (!v->n) continue;
        cli_interval alone = quantile(sorted, v->n, share[i], 0);
        out[i] = quantile(sorted, v->n, share[i], rank_spread(v, share[i], alone.at));
    }
    free(sorted);
    return 0;
}

double cli_values_max(const cli_values *v) {
    double most = v->n ? v->x[0] : NAN;
    for (int i = 1; i < v->n; i++)
        if (v->x[i] > most) most = v->x[i];
    return most;
}

cli_interval cli_share(double n_good, double n) {
    if (!(n > 0)) return (cli_interval){NAN, NAN, NAN};
    double p = n_good / n, z = Z95 * Z95 / n, centre = (p + z / 2) / (1 + z);
    double half = sqrt(p * (1 - p) * z + z * z / 4) / (1 + z);
    return (cli_interval){p, n_good > 0 ? centre - half : 0, n_good < n ? centre + half : 1};
}

// The score statistic of the hypothesis "the difference is x", squared, with the sign of d - x; it decreases in x. better,
// worse: shares of n pairs. The variance is that of the maximum-likelihood probabilities with difference x.
static double score_of(double better, double worse, double n, double x) {
    double off = better - worse - x, b = (2 - better + worse) * x - better - worse, c = -worse * x * (1 - x);
    double is_worse = (sqrt(fmax(b * b - 8 * c, 0)) - b) / 4, variance = 2 * is_worse + x * (1 - x);
    return variance > 0 ? n * off * fabs(off) / variance : off > 0 ? INFINITY : off < 0 ? -INFINITY : 0;
}

cli_interval cli_paired_shares(double n_better, double n_worse, double n) {
    if (!(n > 0)) return (cli_interval){NAN, NAN, NAN};
    double better = n_better / n, worse = n_worse / n, at = better - worse, ends[2] = {-1, 1};
    for (int i = 0; i < 2; i++) { // bisection between -1 or 1 and the observed difference
        double out = ends[i], in = at;
        for (int k = 0; k < 60; k++) {
            double x = (out + in) / 2;
            *(fabs(score_of(better, worse, n, x)) > Z95 * Z95 ? &out : &in) = x;
        }
        ends[i] = in;
    }
    return (cli_interval){at, ends[0], ends[1]};
}

double cli_mcnemar(int n_better, int n_worse) {
    int n = n_better + n_worse, least = n_better < n_worse ? n_better : n_worse;
    double tail = 0;
    for (int i = 0; i <= least; i++) tail += exp(lgamma(n + 1) - lgamma(i + 1) - lgamma(n - i + 1) - n * log(2));
    return fmin(1, 2 * tail);
}

// ---- logits ----

int cli_argmax(const float *logits, int n) {
    int best = 0;
    for (int i = 1; i < n; i++)
        if (logits[i] > logits[best]) best = i;
    return best;
}

double cli_kl(const float *p, double p_log_sum, const float *q, double q_log_sum, int n) {
    double sum = 0;
    for (int i = 0; i < n; i++) {
        double log_p = p[i] - p_log_sum;
        sum += exp(log_p) * (log_p - (q[i] - q_log_sum));
    }
    return sum < 0 ? 0 : sum; // below 0 only by rounding
}
