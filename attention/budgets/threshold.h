// attention/budgets/threshold.h - the threshold kappa that a layer carries from step to step, and the error that a threshold
// states, on the CPU and on CUDA (docs/methods-theory.md, "Carried thresholds" and "A stated error, by layer").
//
// All query heads of a layer share one kappa. A row of size w is heavy where w >= kappa. Light rows are drawn in steps of kappa
// on the running size of their head. The light rows of a step have the total size `light`, and
//
//   trace Cov <= B = sum over heads of kappa light.
//
// The kappa of a decode step follows from earlier decode steps only, so it does not depend on the uniform numbers of this
// decode step: the estimate stays unbiased. The rules use +, *, / and square roots only. In a sequence without an earlier
// step, each head searches for its own kappa.
#ifndef SLEIGH_THRESHOLD_H
#define SLEIGH_THRESHOLD_H

#include "base/philox.h" // SL_HOST_DEVICE

#include <math.h>
#include <stdint.h>

// ---- the error bound b of a sum of draws: P(|e| > b) <= delta ----

typedef enum {
    SL_STATED_CLT,       // z(1 - delta / 2) sqrt(B): asymptotic
    SL_STATED_BERNSTEIN, // sqrt(2 B ln(2 / delta)) + (4 / 3) kappa ln(2 / delta): for every number of draws
    SL_STATED_CHI2,      // |e|^2 as a multiple of chi-square: asymptotic
} sl_stated_bound;       // the values of --bound

enum { SL_STATED_FEW = 30 }; // with fewer draws, Bernstein's inequality replaces the asymptotic bounds

typedef struct sl_stated {
    sl_stated_bound bound;
    double z, one_sided, log_term; // z(1 - delta / 2), z(1 - delta), ln(2 / delta)
    double correction;             // of Wilson and Hilferty's formula at one degree of freedom, minus 1
} sl_stated;

// The quantile 1 - delta of chi-square with nu = 1 / spread degrees of freedom, divided by nu: the formula of Wilson and
// Hilferty (1931), scaled so that it is exact, z^2, at nu = 1. At most z^2. At least 1 + s (z^2 - 1) with s = sqrt(spread):
// the quantile of s X + 1 - s, X chi-square with one degree of freedom, where the share s of B lies on one line and the rest on
// very many lines. At small delta no other sum of normal squares with this mean and variance has a larger quantile.
static inline SL_HOST_DEVICE double sl_chi2_quantile(const sl_stated *s, double spread) {
    double t = 2.0 / 9 * spread, root = 1 - t + s->one_sided * sqrt(t), most = s->z * s->z;
    double x = root * root * root * (1 + s->correction * spread), line = 1 + sqrt(spread) * (most - 1);
    if (x < line) x = line;
    return x < most ? x : most;
}

// k: the number of steps of kappa. spread: sl_threshold.spread.
static inline SL_HOST_DEVICE double sl_error_bound(const sl_stated *s, double spread, double kappa, double B, double k) {
    if (B <= 0) return 0; // NaN gives NaN
    if (s->bound == SL_STATED_BERNSTEIN || k < SL_STATED_FEW) return sqrt(2 * B * s->log_term) + 4.0 / 3 * kappa * s->log_term;
    return sqrt(s->bound == SL_STATED_CHI2 ? sl_chi2_quantile(s, spread) * B : s->z * s->z * B);
}

// The functions below read b and the norm of the output, |mu^|. Both can be infinite or NaN: a row of V can be, and its square
// can exceed fp32. Then there is no bound.

// Whether a norm can have a bound. Kernels add the squares of outputs in fp32, which ends at 2^128, and the CPU adds them in
// double. So the limit is a norm whose square both hold: equal outputs have a bound on both devices, or on neither.
static inline SL_HOST_DEVICE int sl_is_norm(double norm) {
    return norm < 0x1p63; // false for NaN
}

// epsilon' = b / (|mu^| - b); infinity: there is no bound.
static inline SL_HOST_DEVICE double sl_stated_error(double b, double norm) {
    if (!sl_is_norm(norm) || !(b <= norm)) return INFINITY; // also for NaN
    return b > 0 ? b / (norm - b) : 0;                      // infinity for b = norm
}

// Whether epsilon' <= epsilon. share: epsilon / (1 + epsilon).
static inline SL_HOST_DEVICE int sl_is_certified(double b, double norm, double share) {
    return sl_is_norm(norm) && b <= share * norm;
}

// ---- what a layer carries ----

typedef struct sl_threshold {
    uint32_t next; // position of the step that the other values are for; 0: none
    double kappa;  // 0: no step had light rows yet, so the next step searches
    double margin; // a stated error: the plan aims at the share `margin` of the B that the error allows
    // 1 / nu = tr C^2 / (tr C)^2 of the covariance C of the error, smoothed over steps. 1 is the largest value (all errors on
    // one line), and the value before the first step.
    double spread;
} sl_threshold;

// A step, summed over the heads of a layer. Sizes are in the unit of kappa.
typedef struct sl_threshold_step {
    double total; // of all sizes
    double rows;  // expected rows: heavy rows + light / kappa, and at most the ceiling of a head; all rows if all are taken
    double light; // of light rows
    double k;     // steps of kappa: light / kappa
    double kappa; // the largest of a head
    double B;     // kappa light; a method may widen it. Infinity: the sizes bound nothing
    // k and B that the draws of a head would have had, where the head took every row instead.
    double spared_k, spared_B;
    double trace_squares; // tr C^2: kappa^4 times the sum over pairs of light draws of (u.u')^2, u a draw's unit vector;
                          // 0: not counted
    double squares;       // |output|^2
} sl_threshold_step;

// The next kappa: this step's kappa times 0.7 + 0.3 ratio. Reason: a layer's sharpness changes from token to token, so a
// step that follows the previous step alone would draw too many or too few rows.
static inline SL_HOST_DEVICE void sl_threshold_move(sl_threshold *t, const sl_threshold_step *s, double ratio) {
    double kappa = t->kappa > 0 ? t->kappa : s->k > 0 ? s->light / s->k : 0; // after a search: the heads' mean
    double factor = 0.7 + 0.3 * (ratio > 4 ? 4 : ratio);
    if (factor > 0) kappa *= factor; // false for NaN
    // With kappa >= total no row is heavy.
    t->kappa = kappa < s->total ? kappa : s->total;
}

// A budget of `rows` expected rows in a layer. kappa does not fall without light rows: then it gives no more rows.
static inline SL_HOST_DEVICE void sl_threshold_budget(sl_threshold *t, const sl_threshold_step *s, double rows) {
    double ratio = s->rows / rows;
    sl_threshold_move(t, s, s->light > 0 || ratio > 1 ? ratio : 1);
}

// A stated error of `share` = epsilon / (1 + epsilon) of |output|: then |e| <= epsilon |mu| wherever |e| <= b. Returns b of
// this step. The margin changes in steps with draws, so that the share `aim` of them is certified: b <= share |output|. It
// rises by 0.1 (1 - aim) or falls by 0.1 aim, which cancel if the share is `aim`.
static inline SL_HOST_DEVICE double sl_threshold_error(sl_threshold *t, const sl_threshold_step *s, const sl_stated *stated,
                                                       double share, double aim) {
    // The spread of the earlier steps is less noisy, but a step whose rows differ from theirs can have its errors on fewer
    // lines.
    int draws = s->trace_squares != 0 && s->B > 0 && s->B < INFINITY;
    double own = draws ? s->trace_squares / (s->B * s->B) : t->spread;
    if (!(own <= 1)) own = 1; // also for NaN
    double spread = own > t->spread ? own : t->spread, norm = sqrt(s->squares);
    double b = sl_error_bound(stated, spread, s->kappa, s->B, s->k);
    double planned = b;
    if (s->spared_B > 0 || s->spared_k > 0)
        planned = sl_error_bound(stated, spread, s->kappa, s->B + s->spared_B, s->k + s->spared_k);
    double allowed = share * norm / planned;
    sl_threshold_move(t, s, planned > 0 ? t->margin * allowed * allowed : 4);
    if (s->B > 0) t->margin *= sl_is_certified(b, norm, share) ? 1 + 0.1 * (1 - aim) : 1 - 0.1 * aim;
    if (t->margin < 0.01) t->margin = 0.01;
    if (t->margin > 2) t->margin = 2;
    t->spread = 0.7 * t->spread + 0.3 * own;
    return b;
}

#endif
