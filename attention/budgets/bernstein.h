// attention/budgets/bernstein.h - how many rows vAttention's uniform sample needs by an empirical Bernstein bound, on the CPU
// and on CUDA (--bound=bernstein). Unlike the central limit theorem, the bound holds for every finite sample and every tail.
//
// The residual has n rows with e_j in [0, R] and |e_j v_j| <= R L. R and L are certified bounds; the maximum of a sample is not
// such a bound. A base sample of m rows and the final sample of b >= m rows are prefixes of one random permutation. Let l =
// ln(1/d). Each of these statements fails with probability d at most:
//
//   (1) E e^2 <= x^2 with x = (a + sqrt(a^2 + 4 mean e^2)) / 2, a = R sqrt(2 l / m). Reason: a mean of numbers Y >= 0
//       lies below E Y by more than sqrt(2 E Y^2 l / m) with probability d at most (Maurer 2003), and E Y^2 <= R^2 E Y.
//   (2) E e >= mean e - t(m), t(m) = R l / (3 m) + sqrt((R l / (3 m))^2 + 2 s^2 l / m), where s^2 >= the variance (Bernstein).
//       From (1) and (2): the variance is at most x^2 - (mean e - t(m))^2, and D is at least what (2) states.
//   (3) The same for the norm of the deviation of the vectors e v, with l = ln(2/d) and 2 R L in place of R (Pinelis and
//       Sakhanenko 1986; the bound does not depend on the dimension).
//   (4) With these variances t(b) bounds the deviation of the final sample's mean. Sampling without replacement only helps: all
//       of these bounds follow from the mean of a convex function of a sum (Hoeffding 1963, theorem 4). The rows that were not
//       drawn are a sample too, so t'(b) = (n - b) / b t(n - b) is also a bound.
//
// b depends on the base sample. So (4) must hold for all b on a grid that does not depend on the base sample: m sqrt(2)^k. Each
// b has a share of delta. The statements about the base sample use a quarter of delta. So the bound holds for the chosen b.
#ifndef SLEIGH_BERNSTEIN_H
#define SLEIGH_BERNSTEIN_H

#include "base/philox.h" // SL_HOST_DEVICE

#include <math.h>

enum { SL_VERIFY_DENOMINATOR, SL_VERIFY_NUMERATOR, SL_VERIFY_OUTPUT };
enum { SL_BOUND_CLT, SL_BOUND_HOEFFDING, SL_BOUND_BERNSTEIN }; // the values of --bound

// All values in the same unit of e^s.
typedef struct sl_bernstein {
    int n, m;          // rows of the residual and of the base sample, 2 <= m < n
    double e, squares; // sums of e and e^2 over the base sample
    double ev_squares; // sum of |e v|^2
    double ev;         // |sum of e v|
    double fixed;      // sum of e over the fixed rows
    double numerator;  // |sum of e v over the fixed rows + n / m times that over the base sample|
    double most, norm; // R: no residual row's e exceeds it; L: no row's |v| exceeds it
} sl_bernstein;

// Kurtosis (3 for normal numbers) of m numbers from the sums of their powers; 0 if they hardly differ. The rounding
// error of m4 is about 1e-15 mean^4, and m2^2 must be far above it.
static inline SL_HOST_DEVICE double sl_kurtosis(double sum, double squares, double cubes, double fourths, int m) {
    double mean = sum / m, m2 = squares / m - mean * mean;
    double m4 = fourths / m - 4 * mean * (cubes / m) + 6 * mean * mean * (squares / m) - 3 * mean * mean * mean * mean;
    return m2 > 1e-6 * mean * mean ? m4 / (m2 * m2) : 0;
}

// The same ratio for m vectors x about 0, from the sums of |x|^2 and |x|^4: m sum |x|^4 / (sum |x|^2)^2. Moments about the mean
// would need a second read of the rows. A common part of the vectors that is much longer than their spread hides a tail.
static inline SL_HOST_DEVICE double sl_vector_kurtosis(double squares, double fourths, int m) {
    return squares > 0 ? m * fourths / (squares * squares) : 0;
}

// The kurtosis of the summands that `verify` needs, SL_VERIFY_...: of e^s for the denominator, of the vectors e^s v for the
// numerator, the larger one for the output.
static inline SL_HOST_DEVICE double sl_tail_kurtosis(int verify, double of_e, double of_ev) {
    if (verify == SL_VERIFY_DENOMINATOR) return of_e;
    return verify == SL_VERIFY_NUMERATOR || of_ev > of_e ? of_ev : of_e;
}

// Whether the variance of m numbers has a relative standard error, sqrt((kurtosis - 1) / m), above a half. Then the central
// limit theorem is not yet reliable.
static inline SL_HOST_DEVICE int sl_is_heavy_tail(double kurtosis, int m) {
    return kurtosis - 1 > 0.25 * m;
}

// t(b) for a variance s2 and a range; l = ln(1/d) or ln(2/d).
static inline SL_HOST_DEVICE double sl_bernstein_deviation(double s2, double range, double l, double b) {
    double h = range * l / (3 * b);
    return h + sqrt(h * h + 2 * s2 * l / b);
}

static inline SL_HOST_DEVICE double sl_bernstein_final(double s2, double range, double l, double n, double b) {
    double own = sl_bernstein_deviation(s2, range, l, b), rest = (n - b) / b * sl_bernstein_deviation(s2, range, l, n - b);
    return fmin(own, rest);
}

// The statements of a base sample about a mean: the variance is at most *s2, and the distance between `mean` and the mean of
// all rows is at most the result.
static inline SL_HOST_DEVICE double sl_bernstein_base(double squares, double mean, double most, double range, double d,
                                                      double sides, int m, double *s2) {
    double a = most * sqrt(2 * log(1 / d) / m), x = (a + sqrt(a * a + 4 * squares / m)) / 2;
    double second = fmin(x * x, most * most), t = sl_bernstein_deviation(second, range, log(sides / d), m);
    double least = fmax(mean - t, 0.0);
    *s2 = fmax(second - least * least, 0.0);
    return t;
}

static inline SL_HOST_DEVICE int sl_bernstein_next(int b) { // the next b of the grid
    int next = (int)ceil(b * 1.4142135623730951);
    return next > b ? next : b + 1;
}

// The smallest b of the grid whose bound on the relative error is at most epsilon, and that bound. If the grid has no such b,
// returns n, and the bound is 0.
static inline SL_HOST_DEVICE int sl_bernstein_rows(const sl_bernstein *x, int verify, double epsilon, double delta,
                                                   double *achieved) {
    int n_grid = 0, both = verify == SL_VERIFY_OUTPUT;
    for (int b = x->m; b < x->n; b = sl_bernstein_next(b)) n_grid++;
    double d = delta / (both ? 16 : 8), l = log(2 * n_grid * (both ? 2 : 1) / (0.75 * delta)), n = x->n, s2, s2_vector;
    double mean = x->e / x->m, range = x->most, length = x->most * x->norm;
    double t = sl_bernstein_base(x->squares, mean, x->most, range, d, 1, x->m, &s2);
    double least = x->fixed + n * fmax(mean - t, 0.0);
    double t_vector = sl_bernstein_base(x->ev_squares, x->ev / x->m, length, 2 * length, d, 2, x->m, &s2_vector);
    double least_vector = fmax(x->numerator - n * t_vector, 0.0);
    for (int b = x->m; b < x->n; b = sl_bernstein_next(b)) {
        double of_d = n * sl_bernstein_final(s2, range, l, n, b) / least;
        double of_n = verify ? n * sl_bernstein_final(s2_vector, 2 * length, l, n, b) / least_vector : 0;
        double error = verify == SL_VERIFY_DENOMINATOR ? of_d
                       : verify == SL_VERIFY_NUMERATOR ? of_n
                       : of_d < 1                      ? (of_n + of_d) / (1 - of_d)
                                                       : INFINITY;
        *achieved = error;
        if (error <= epsilon) return b; // false if a value is NaN
    }
    *achieved = 0;
    return x->n;
}

#endif
