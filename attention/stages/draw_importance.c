// attention/stages/draw_importance.c - the draw of santa-is: take-all + PPS on the proposed masses, and every row of the newest
// page once. The newest page has no quantised keys. Its rows are taken in addition to the draws.
//
// With S draws a row's size is its proposed mass, mixed with a uniform part. With --epsilon it is z_j = 2^b p~_j (|v_j| + m),
// where b is the page's bound of a proposed score's error and m stands for |mu| (docs/methods-theory.md, santa-is, "a stated
// error").
#include "attention/stages/stages.h"

#include <math.h>
#include <string.h>

static int n_proposed(const sl_head *x) {
    return sl_kv_n_built(x->group->kv) * SL_PAGE;
}

static void take_newest(sl_head *x) {
    for (int j = n_proposed(x); j < x->masses.n; j++) sl_draws_add(&x->draws, j, 1);
}

// ---- sizes of a stated error ----

static bf16 bf16_above(float x) {
    uint32_t bits;
    memcpy(&bits, &x, sizeof bits);
    return (bf16)((bits + 0xffff) >> 16);
}

// m: above |mu| in most steps. sl_head.step.B is wider where it is not. Precondition: a page is built.
static float size_of_mean(const sl_head *x) {
    const sl_group *g = x->group;
    bf16 norms[SL_PAGE];
    double sum = 0;
    if (x->norm_before > 0) return 1.25f * (float)x->norm_before;
    sl_norms_of_page(g, sl_kv_n_built(g->kv) - 1, norms);
    for (int j = 0; j < SL_PAGE; j++) sum += sl_bf16_to_f32(norms[j]);
    return fmaxf((float)(sum / SL_PAGE), 1e-30f);
}

// The newest page has no sizes, so the unit of sizes does not depend on it.
static void size_norms(const sl_head *x, int page, const bf16 *norms, bf16 *out) {
    int n = sl_page_rows(x->group->kv, page);
    if (page == sl_kv_n_built(x->group->kv)) {
        memset(out, 0, n * sizeof *out);
        return;
    }
    float m = size_of_mean(x), factor = exp2f(fminf(sl_quantised_bound(x, page), SL_MOST_SCORE_BOUND));
    for (int j = 0; j < n; j++) out[j] = bf16_above(factor * (sl_bf16_to_f32(norms[j]) + m));
}

static int is_certified(const sl_head *x) {
    return sl_attn_certifies_layer(x->group->args->spec);
}

static void prepare(sl_head *x) {
    const double alpha = 0.01; // every row has a positive probability, even if the proposal is wrong
    if (!is_certified(x)) x->sizes = x->masses;
    if (n_proposed(x) == 0) return;
    sl_masses_truncate(&x->sizes, n_proposed(x)); // the newest page can have nearly all the mass
    if (!is_certified(x)) sl_masses_mix(&x->sizes, alpha);
    const sl_masses *of = is_certified(x) ? &x->masses : &x->sizes;
    x->unit = sl_masses_share(&x->sizes, 1, of), x->units = sl_masses_units(&x->sizes, of);
}

// ---- the draw ----

static void estimate(sl_head *x) {
    take_newest(x);
    sl_refine(x);
    sl_combine(x, SL_BY_SAMPLE, 1);
}

static void run(sl_head *x) {
    sl_draws_clear(&x->draws);
    if (n_proposed(x) == 0)
        ; // no row is drawn
    else if (sl_carries_threshold(x->group->args->spec))
        sl_draw_of_layer(x, 0, estimate);
    else
        sl_draw_take_all(&x->sizes, x->S, 0, x->u, &x->draws);
    take_newest(x);
}

static int bounds_scores(const sl_head *x) {
    for (int page = 0; page < sl_kv_n_built(x->group->kv); page++)
        if (!(sl_quantised_bound(x, page) <= SL_MOST_SCORE_BOUND)) return 0; // also for NaN
    return 1;
}

// Sizes that bound nothing can hide rows from the draws. So the bound is infinite, unless every row was taken.
//
// A drawn row's summand is at most kappa (Z~ / Z) |v - mu| / (|v| + m), and |v - mu| / (|v| + m) <= max(1, |mu| / m).
static void measure(sl_head *x) {
    if (!is_certified(x) || n_proposed(x) == 0) return;
    double ratio = exp2(sl_masses_log2_total(&x->masses) - x->log2_total); // Z~ / Z^
    double widen = ratio * fmax(1, sl_norm(x->out, x->group->head_dim) / size_of_mean(x));
    x->step.B *= widen * widen;
    x->step.kappa *= widen;
    if (!x->report->fallback && (x->is_unbounded || !bounds_scores(x))) x->step.B = INFINITY;
    if (sl_attn_chooses(x->group->args->spec, "bound", "chi2"))
        x->step.trace_squares = pow(x->step.kappa, 4) * sl_pairs(x, x->out);
}

static int by_norm(const sl_attn_spec *spec) {
    return sl_attn_certifies_layer(spec);
}

static size_t most_draws(const sl_attn_spec *spec) {
    return (size_t)sl_attn_get(spec, "S") * (sl_attn_carries_budget(spec) ? SL_BUDGET_MOST : 1);
}
static size_t capacity(const sl_attn_spec *spec, int n_kv) { // with a stated error, a head may take every row
    size_t most = most_draws(spec) + SL_PAGE;
    return sl_attn_certifies_layer(spec) || most > (size_t)n_kv ? (size_t)n_kv : most;
}
static size_t scratch(const sl_attn_spec *spec, int n_kv) {
    return sl_attn_certifies_layer(spec) ? (size_t)n_kv + 2 * SL_PILOT : 2 * most_draws(spec);
}

const sl_draw sl_draw_importance = {.size_power = by_norm,
                                    .size_norms = size_norms,
                                    .keeps = sl_carries_threshold,
                                    .capacity = capacity,
                                    .scratch = scratch,
                                    .prepare = prepare,
                                    .plan = sl_threshold_plan,
                                    .run = run,
                                    .measure = measure,
                                    .settle = sl_threshold_settle};
