// attention/budgets/layer_budgets.h - how a total number of draws is split over the layers of a model: learned from rewards, by
// the error of each layer, or evenly. Pure functions: the caller measures. docs/tune.md derives both rules.
#ifndef SLEIGH_LAYER_BUDGETS_H
#define SLEIGH_LAYER_BUDGETS_H

#include <stdint.h>

// Splits `total` in proportion to share[0..n), by largest remainder; the lower layer wins a tie. Every layer gets 1 at least,
// and the sum is `total` (total >= n). Shares are finite and not negative; if all are zero, they count as equal.
void sl_layer_budgets_round(const double *share, int n, int total, int *budget);

// The variance rule. error[l]: mean square of the relative error of layer l when its method makes the same number of draws in
// every layer. Errors with variance a_l / S_l are least in sum when S_l is in proportion to sqrt(a_l), the standard deviation
// of one draw.
void sl_layer_budgets_by_variance(const double *error, int n, int total, int *budget);

// ---- REINFORCE: Algorithm 1 of the SANTA paper (appendix K). theta[n]: logits of a softmax over layers, 0 at the start ----

void sl_layer_budgets_policy(const double *theta, int n, double *p); // the softmax
// Draws s ~ Multinomial(total, p). The numbers are keyed by the seed and by the update and the episode.
void sl_layer_budgets_draw(const double *p, int n, int total, uint32_t seed, uint32_t update, uint32_t episode, int *s);
// theta += rate * mean over episodes k of (reward[k] - baseline) (s[k] - total p); baseline: the mean of the rewards. s:
// [n_episodes][n], drawn with the policy p of theta.
void sl_layer_budgets_learn(double *theta, int n, int total, double rate, const int *s, const double *reward, int n_episodes);

#endif
