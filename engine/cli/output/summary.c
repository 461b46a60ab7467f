// engine/cli/output/summary.c - see summary.h.
#include "engine/cli/output/summary.h"
#include "engine/cli/grow.h"

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

// The mean is a ratio: the sum of the group sums over the sum of the group sizes. Its error is that of a ratio of two means.
cli_estimate cli_values_mean(const cli_values *v) {
    double sum = 0, squares = 0;
    for (int i = 0; i < v->n; i++) sum += v->x[i];
    double mean = v->n ? sum / v->n : NAN;
    if (v->n_groups < CLI_MIN_GROUPS) {
        for (int i = 0; i < v->n; i++) squares += (v->x[i] - mean) * (v->x[i] - mean);
        return (cli_estimate){mean, v->n < 2 ? NAN : sqrt(squares / (v->n - 1) / v->n)};
    }
    for (int g = 0, i = 0; g < v->n_groups; g++) {
        double off = 0;
        for (; i < v->ends[g]; i++) off += v->x[i] - mean;
        squares += off * off;
    }
    return (cli_estimate){mean, sqrt(squares * v->n_groups / (v->n_groups - 1)) / v->n};
}

// The two-sided 95% quantile of Student's t, by the expansion in 1 / n around the normal distribution (Abramowitz and Stegun
// 26.7.5). For n of 7 and more degrees of freedom it is exact to 0.04%.
static double t95(double n) {
    double z = Z95, z2 = z * z;
    double g1 = z * (z2 + 1) / 4, g2 = z * ((5 * z2 + 16) * z2 + 3) / 96, g3 = z * (((3 * z2 + 19) * z2 + 17) * z2 - 15) / 384;
    return z + (g1 + (g2 + g3 / n) / n) / n;
}

cli_interval cli_values_mean_interval(const cli_values *v, cli_estimate mean) {
    double half = t95((v->n_groups < CLI_MIN_GROUPS ? v->n : v->n_groups) - 1) * mean.error;
    return (cli_interval){mean.at, mean.at - half, mean.at + half};
}

// The number of values below a quantile is binomial. The interval in ranks uses the normal approximation.
static cli_interval quantile(const double *sorted, int n, double share) {
    if (!n) return (cli_interval){NAN, NAN, NAN};
    double spread = Z95 * sqrt(n * share * (1 - share));
    int at = (int)ceil(n * share) - 1, low = (int)floor(n * share - spread) - 1, high = (int)ceil(n * share + spread);
    if (at < 0) at = 0;
    if (low < 0) low = 0;
    if (high > n - 1) high = n - 1;
    return (cli_interval){sorted[at], sorted[low], sorted[high]};
}

int cli_values_quantiles(const cli_values *v, const double *share, int n, cli_interval *out, sl_error *err) {
    double *sorted = malloc((size_t)(v->n + 1) * sizeof *sorted);
    if (!sorted) return no_memory(err);
    if (v->n) memcpy(sorted, v->x, v->n * sizeof *sorted);
    cli_sort(sorted, v->n);
    for (int i = 0; i < n; i++) out[i] = quantile(sorted, v->n, share[i]);
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

double cli_log_sum(const float *logits, int n) {
    double most = logits[cli_argmax(logits, n)], sum = 0;
    for (int i = 0; i < n; i++) sum += exp(logits[i] - most);
    return most + log(sum);
}

double cli_kl(const float *p, double p_log_sum, const float *q, double q_log_sum, int n) {
    double sum = 0;
    for (int i = 0; i < n; i++) {
        double log_p = p[i] - p_log_sum;
        sum += exp(log_p) * (log_p - (q[i] - q_log_sum));
    }
    return sum < 0 ? 0 : sum; // below 0 only by rounding
}
