// base/quantile.h - quantiles of the normal distribution.
#ifndef SLEIGH_QUANTILE_H
#define SLEIGH_QUANTILE_H

#ifdef __cplusplus
extern "C" {
#endif

// The x with Phi(x) = p, where Phi is the distribution function of the standard normal distribution. p = 0 gives -inf, p = 1
// gives inf, p outside [0, 1] gives NaN.
double sl_normal_quantile(double p);

#ifdef __cplusplus
}
#endif

#endif
