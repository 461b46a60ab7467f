// base/quantile.c - see quantile.h.
#include "base/quantile.h"

#include <math.h>

double sl_normal_quantile(double p) {
    if (p > 0.5) return -sl_normal_quantile(1 - p); // 1 - p is exact for p in [1/2, 1]
    if (!(p > 0)) return p == 0 ? -INFINITY : NAN;
    // Newton's method for log Phi(x) = log p, with Phi(x) = erfc(-x / sqrt 2) / 2. Phi(x) <= exp(-x^2 / 2) / 2, so the start
    // lies to the left of the root. log Phi is concave, so each step ends between the previous point and the root.
    double x = -sqrt(-2 * log(2 * p));
    for (int i = 0; i < 20; i++) {
        double phi = exp(-x * x / 2) * 0.39894228040143267794, Phi = 0.5 * erfc(-x * 0.70710678118654752440);
        double step = log(p / Phi) * Phi / phi;
        x += step;
        if (fabs(step) < 1e-15 * fabs(x)) break;
    }
    return x;
}
