// attention/bounds.c - quantiles that stated errors are made of.
#include "attention/stages.h"

#include <math.h>

double sl_normal_quantile(double p) {
    double low = -40, high = 40; // bisection: Phi(x) = erfc(-x / sqrt 2) / 2
    for (int step = 0; step < 100; step++) {
        double mid = (low + high) / 2;
        if (0.5 * erfc(-mid * 0.70710678118654752440) < p)
            low = mid;
        else
            high = mid;
    }
    return (low + high) / 2;
}
