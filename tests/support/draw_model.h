// tests/support/draw_model.h - a second implementation of the draws of santa-pps and santa-is and of the rules of a carried
// threshold, written from docs/methods-theory.md: loops over all rows, sizes as integers, everything else in double precision.
// It reads the masses and sizes that a decode made, and predicts the draws, the step and what the layer carries.
#ifndef SLEIGH_TEST_DRAW_MODEL_H
#define SLEIGH_TEST_DRAW_MODEL_H

#include "attention/stages/stages.h"

enum { MODEL_ROWS = 2304, MODEL_DIM = 32, MODEL_HEADS = 8 };

// What a decode did for one query head: watch_draw fills it.
typedef struct watched_head {
    int ran;                                 // 0: the head was not drawn (sl_head.needs_exact)
    int n, n_sized, S;                       // rows; rows with a size; the budget at the draw
    double stored_p[MODEL_ROWS];             // the row's stored mass as a share of the total mass
    double stored_w[MODEL_ROWS];             // w in its unit, before it becomes an integer
    double log2_total;                       // of the total mass
    double page_bound[MODEL_ROWS / SL_PAGE]; // of a score's error, in log2 units; 0: exact scores, or page bounds
    uint64_t w[MODEL_ROWS];                  // sizes
    double unit;                             // of w, as a share of the total mass
    int top_above;                     // exponent of the unit of sizes, less the largest exponent of a block that has sizes
    int count[MODEL_ROWS];             // c_j
    double inv_pi[MODEL_ROWS];         // 1 / pi_j; 0: not drawn
    sl_threshold_step drawn, measured; // x->step after the draw, and at the end
    double out[MODEL_DIM];             // before a repair
} watched_head;
extern watched_head watched[MODEL_HEADS];

// *toy: the method of *spec with a draw that fills `watched`, one sequence a call. Changes spec->method.
typedef struct watched_method {
    sl_attn_method method;
    sl_composition stages;
    sl_draw draw;
} watched_method;
void watch_draw(sl_attn_spec *spec, watched_method *toy);

// Draws of rows: heavy rows once, light rows at points of the running light size.
typedef struct model_draw {
    int n_heavy, k, n, distinct; // k: draws of a search; n: of all draws, distinct: of their rows
    uint64_t light;              // total light size
    double kappa;                // in the unit of w; 0: no light rows
    int count[MODEL_ROWS];
    double inv_pi[MODEL_ROWS];
} model_draw;

typedef struct model_numbers {
    sl_rng_id id;
    int of_try; // -1: number m of the head; else number m of this try
    int shared; // 1: all draws have number 0
} model_numbers;

void model_draw_at(const watched_head *x, uint64_t kappa, model_numbers u, model_draw *out);
void model_search(const watched_head *x, int S, model_numbers u, model_draw *out);
void model_take_all(const watched_head *x, model_draw *out); // every row that has a size
// The fewest draws of a search whose bound is at most target, in the unit of p; 0: more than `most` draws are needed. found:
// the number that the program found; more than `most`: the program took every row; 0: it found nothing. At 30 light draws a
// bound can rise with a draw. So several numbers of draws can be enough although one draw less is not, and the program may find
// any of these numbers. near: relative error of the target.
int model_plan(const watched_head *x, int most, double target, sl_stated_bound bound, double delta, int found, double near);
// b of an error with the covariance B and k steps of kappa. spread: 1 / nu.
double model_bound(sl_stated_bound bound, double delta, double spread, double kappa, double B, double k);
// The rules of a carried threshold: change *t after the step *s. model_carry_error returns b.
typedef struct model_rule {
    sl_stated_bound bound;
    double delta, epsilon, aim;
} model_rule;
void model_carry_budget(sl_threshold *t, const sl_threshold_step *s, double rows);
double model_carry_error(sl_threshold *t, const sl_threshold_step *s, const model_rule *r);
// The sum over pairs of light draws of (u.u')^2, from at most 64 draws. v: [n] values; centre: NULL: 0
double model_pairs(const model_draw *d, int n, const bf16 *const *v, const double *centre);

#endif
