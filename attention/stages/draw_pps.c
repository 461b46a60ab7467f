// attention/stages/draw_pps.c - the draw of santa-pps: take-all + PPS by p |v|, with S draws or, with --epsilon, with as many
// draws as a stated error needs (docs/methods-theory.md, santa-pps, "a stated error").
//
// In units of the output, B = kappa * sum_light p_j |v_j| bounds the trace of the covariance of stratified draws, and no
// summand exceeds kappa. A head is certified when its error bound b is at most epsilon / (1 + epsilon) |mu^|. Then |err| <= b
// implies |err| <= epsilon |mu|, and |err| > b has probability delta at most. Try i has the share delta / 2^i of delta and
// uniform numbers that no other try uses. Its plan uses the estimate of the previous try, so the plan does not depend on the
// draws of the try.
//
// The sizes bound nothing where a |v| is infinite or NaN (sl_sizes_out_of_range). Then a layer has no bound, and a head that
// certifies its own error attends to every row exactly.
#include "attention/stages/stages.h"

#include <math.h>

enum { MOST_TRIES = 3 }; // after so many tries, every row is taken once

static int certifies_head(const sl_attn_spec *spec) {
    return sl_attn_states_error(spec) && !sl_attn_certifies_layer(spec);
}

static void estimate(sl_head *x) {
    sl_combine(x, SL_BY_TOTAL, 0);
}

static void certify_head(sl_head *x, double epsilon) {
    const sl_attn_spec *spec = x->group->args->spec;
    double delta = sl_attn_get(spec, "delta"), norm = x->norm_before, most = x->masses.n / 2;
    sl_stated_bound bound = (sl_stated_bound)sl_attn_get(spec, "bound");
    int dim = x->group->head_dim;
    if (norm < 0) {
        sl_draw_try(x, SL_PILOT, 0);
        estimate(x);
        norm = sl_norm(x->out, dim);
    }
    for (int i = 1; i <= MOST_TRIES; i++) {
        sl_stated s = sl_stated_of(delta / exp2(i), bound);
        double slack = i == 1 ? 0.95 : 0.8, target = slack * epsilon / (1 + epsilon) * norm;
        int S = sl_plan_take_all(&x->sizes, (int)most, target / x->unit, sl_bound_of_draws, &s, &x->draws);
        if (S == 0) break;
        sl_take_all r = sl_draw_try(x, S, i);
        estimate(x);
        norm = sl_norm(x->out, dim);
        double b = x->unit * sl_bound_of_draws(&s, (double)r.light, r.k);
        x->report->tries = (uint32_t)i;
        x->report->budget = (uint32_t)S;
        x->report->error_bound = (float)sl_relative_bound(b, norm);
        if (b <= epsilon / (1 + epsilon) * norm) return;
    }
    sl_take_every_row(x);
    x->report->error_bound = 0;
}

static void run(sl_head *x) {
    const sl_attn_spec *spec = x->group->args->spec;
    double epsilon = sl_attn_get(spec, "epsilon");
    int shared = sl_attn_chooses(spec, "pps", "sys");
    if (sl_carries_threshold(spec))
        sl_draw_of_layer(x, shared, estimate);
    else if (certifies_head(spec))
        certify_head(x, epsilon);
    else
        sl_draw_take_all(&x->sizes, x->S, shared, x->u, &x->draws);
}

static void prepare(sl_head *x) {
    x->unit = sl_masses_share(&x->sizes, 1, &x->masses); // sizes in units of the output
    x->units = sl_masses_units(&x->sizes, &x->masses);
    sl_budget_profile(x);
    if (x->is_unbounded && certifies_head(x->group->args->spec)) x->needs_exact = 1;
}

static void plan(sl_layer *l) {
    sl_budget_by_variance(l);
    sl_threshold_plan(l);
}

static void measure(sl_head *x) {
    const sl_attn_spec *spec = x->group->args->spec;
    if (!sl_attn_certifies_layer(spec)) return;
    if (x->is_unbounded) x->step.B = INFINITY;
    if (sl_attn_chooses(spec, "bound", "chi2")) x->step.trace_squares = pow(x->step.kappa, 4) * sl_pairs(x, NULL);
}

static int keeps(const sl_attn_spec *spec) {
    return sl_budget_is_by_variance(spec) || sl_attn_states_error(spec) || sl_carries_threshold(spec);
}

static int by_norm(const sl_attn_spec *spec) {
    (void)spec;
    return 1;
}

static size_t most_draws(const sl_attn_spec *spec) {
    int even = !sl_budget_is_by_variance(spec) && !sl_attn_carries_budget(spec);
    return (size_t)sl_attn_get(spec, "S") * (even ? 1 : SL_BUDGET_MOST);
}
static size_t capacity(const sl_attn_spec *spec, int n_kv) { // with a stated error, a head may take every row
    size_t most = most_draws(spec);
    return sl_attn_get(spec, "epsilon") > 0 || most > (size_t)n_kv ? (size_t)n_kv : most;
}
static size_t scratch(const sl_attn_spec *spec, int n_kv) {
    return sl_attn_get(spec, "epsilon") > 0 ? (size_t)n_kv + 2 * SL_PILOT : 2 * most_draws(spec);
}

const sl_draw sl_draw_pps = {.size_power = by_norm,
                             .keeps = keeps,
                             .capacity = capacity,
                             .scratch = scratch,
                             .prepare = prepare,
                             .plan = plan,
                             .run = run,
                             .measure = measure,
                             .settle = sl_threshold_settle};
