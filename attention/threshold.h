// attention/threshold.h - the threshold kappa that a layer carries from step to step, and the error that a threshold states, on
// the CPU and on CUDA (docs/methods.md, "Carried thresholds" and "A stated error, by layer").
//
// All query heads of a layer share one kappa. A row of size w is heavy where w >= kappa. Light rows are drawn in steps of kappa
// on the running size of their head. The light rows of a step have the total size `light`, and
//
//   trace Cov <= B = sum over heads of kappa light.
//
// A step's kappa follows from earlier steps only, so it does not depend on the step's uniform numbers: the estimate stays
// unbiased. The rules use +, * and / only. A sequence without an earlier step searches: each head finds its own kappa.
#ifndef SLEIGH_THRESHOLD_H
#define SLEIGH_THRESHOLD_H

#include "engine/base/philox.h" // SL_HOST_DEVICE

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
// Hilferty (1931), scaled so that it is exact, z^2, at nu = 1. At most z^2. At least the quantile of s chi-square of one degree
// + 1 - s with s^2 = spread: a line with the share s of B, and the rest on many lines. At small delta its quantile is the
// largest one of all sums of normal squares with this mean and variance.
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
    double total;   // of all sizes
    double rows;    // expected rows: heavy rows + light / kappa, and at most the ceiling of a head
    double light;   // of light rows
    double k;       // steps of kappa: light / kappa
    double kappa;   // the largest of a head
    double B;       // kappa light; a method may widen it
    double pairs;   // sum over pairs of light draws of (u.u')^2, u a draw's unit vector; 0: not counted
    double squares; // |output|^2
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

// A budget of `rows` expected rows in a layer. Without light rows kappa does not fall: every row is taken already.
static inline SL_HOST_DEVICE void sl_threshold_budget(sl_threshold *t, const sl_threshold_step *s, double rows) {
    double ratio = s->rows / rows;
    sl_threshold_move(t, s, s->light > 0 || ratio > 1 ? ratio : 1);
}

// A stated error of `share` = epsilon / (1 + epsilon) of |output|: then |e| <= epsilon |mu| wherever |e| <= b. Returns b of
// this step. The margin changes so that the share `aim` of all steps is certified: b <= share |output|. (1 + rise)^aim
// (1 - fall)^(1 - aim) is 1 to first order.
static inline SL_HOST_DEVICE double sl_threshold_error(sl_threshold *t, const sl_threshold_step *s, const sl_stated *stated,
                                                       double share, double aim) {
    // The spread of the earlier steps is less noisy, but a step whose rows differ from theirs can have its errors on fewer
    // lines.
    double own = s->pairs > 0 && s->k >= 1 ? s->pairs / (s->k * s->k) : t->spread, spread = own > t->spread ? own : t->spread;
    double size = sqrt(s->squares), b = sl_error_bound(stated, spread, s->kappa, s->B, s->k), allowed = share * size / b;
    sl_threshold_move(t, s, b > 0 ? t->margin * allowed * allowed : 4);
    t->margin *= b <= share * size ? 1 + 0.1 * (1 - aim) : 1 - 0.1 * aim;
    if (t->margin < 0.01) t->margin = 0.01;
    if (t->margin > 2) t->margin = 2;
    t->spread = 0.7 * t->spread + 0.3 * (own < 1 ? own : 1);
    return b;
}

#endif
