// attention/budgets/pareto.h - how heavy the tail of a sample of positive numbers is.
#ifndef SLEIGH_PARETO_H
#define SLEIGH_PARETO_H

// The shape k of a generalised Pareto distribution that fits the largest numbers: the m = min(n / 5, 3 sqrt(n)) largest ones,
// minus the next one; those that equal the next one do not count. The estimate is that of J. Zhang and M. Stephens
// (Technometrics 51, 2009): a mean over a grid of b = k / sigma, weighted by the profile likelihood, with k = mean log(1 - b
// x); and then it is drawn towards 0.5 by the weight of 10 numbers, as Pareto-smoothed importance sampling does (A. Vehtari et
// al., arXiv:1507.02646, section 3). The mean of such numbers has a finite variance below 0.5, and is usable below about 0.7.
// w: [n], ascending. NAN: fewer than 5 in the tail, a number that is not finite, or the tail has one value only.
double sl_pareto_shape(const double *w, int n);

#endif
