// attention/bounds.c - quantiles that stated errors are made of.
#include "attention/stages.h"

#include <math.h>

static double polynomial(const double *c, int degree, double x) { // c[0]: of the highest power
    double sum = c[0];
    for (int i = 1; i <= degree; i++) sum = sum * x + c[i];
    return sum;
}

// Acklam's rational approximation (relative error 1.2e-9), for p <= 1/2.
static double approximate_quantile(double p) {
    static const double a[] = {-39.69683028665376, 220.9460984245205,  -275.9285104469687,
                               138.3577518672690,  -30.66479806614716, 2.506628277459239};
    static const double b[] = {-54.47609879822406, 161.5858368580409,  -155.6989798598866,
                               66.80131188771972,  -13.28068155288572, 1};
    static const double c[] = {-0.007784894002430293, -0.3223964580411365, -2.400758277161838,
                               -2.549732539343734,    4.374664141464968,   2.938163982698783};
    static const double d[] = {0.007784695709041462, 0.3224671290700398, 2.445134137142996, 3.754408661907416, 1};
    if (p < 0.02425) {
        double q = sqrt(-2 * log(p));
        return polynomial(c, 5, q) / polynomial(d, 4, q);
    }
    double q = p - 0.5, r = q * q;
    return q * polynomial(a, 5, r) / polynomial(b, 5, r);
}

double sl_normal_quantile(double p) {
    if (p > 0.5) return -sl_normal_quantile(1 - p); // 1 - p is exact there
    if (!(p > 0)) return p == 0 ? -INFINITY : NAN;
    double x = approximate_quantile(p);
    // One Halley step on Phi(x) = erfc(-x / sqrt 2) / 2, with density phi and phi' = -x phi, triples the digits.
    double step = (0.5 * erfc(-x * 0.70710678118654752440) - p) * 2.50662827463100050242 * exp(x * x / 2);
    return x - step / (1 + x * step / 2);
}
