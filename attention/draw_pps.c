// attention/draw_pps.c - the draw of santa-pps: take-all + PPS by p |v|, with S draws or, with --epsilon, with as many draws as
// a stated error needs (docs/methods.md, santa-pps, "a stated error").
//
// In units of the output, B = kappa * sum_light p_j |v_j| bounds the trace of the covariance of stratified draws, and no
// summand exceeds kappa. A head is certified when its error bound b is at most epsilon / (1 + epsilon) |mu^|. Then |err| <= b
// implies |err| <= epsilon |mu|, and |err| > b has probability delta at most. Try i has the share delta / 2^i of delta and
// uniform numbers that no other try uses. Its plan uses the estimate of the previous try, so the plan does not depend on the
// draws of the try.
#include "attention/stages.h"

#include <math.h>
#include <string.h>

enum {
    PILOT = 128,    // draws of the pilot, which plans the first try if there is no previous output
    MOST_TRIES = 3, // after so many tries, every row is taken once
};

// The bound of k draws from light rows of total size `light`: an sl_bound_fn.
static double error_bound(const void *stated, double light, int k) {
    double kappa = k ? light / k : 0;
    return sl_error_bound(stated, 1, kappa, kappa * light, k);
}

typedef struct try_uniform {
    sl_uniform of;
    uint32_t first;
} try_uniform;
static uint64_t next_of_try(const void *ctx, uint32_t index) {
    const try_uniform *t = ctx;
    return t->of.next(t->of.ctx, t->first | index);
}

static sl_take_all draw_try(sl_head *x, int S, int i) {
    try_uniform t = {x->u, sl_try_index(i, 0)};
    return sl_draw_take_all(&x->sizes, S, 0, (sl_uniform){next_of_try, &t}, &x->draws);
}

static void take_every_row(sl_head *x) {
    sl_draws_clear(&x->draws);
    for (int j = 0; j < x->masses.n; j++) sl_draws_add(&x->draws, j, 1);
    x->report->fallback = 1;
    x->report->error_bound = 0;
    sl_step_of_search(x, (sl_take_all){.n_heavy = x->masses.n});
}

static int carries_threshold(const sl_attn_spec *spec) {
    return sl_attn_carries_budget(spec) || sl_attn_certifies_layer(spec);
}

static void certify_head(sl_head *x, double epsilon) {
    const sl_attn_spec *spec = x->group->args->spec;
    double delta = sl_attn_get(spec, "delta"), norm = x->norm_before, most = x->masses.n / 2;
    sl_stated_bound bound = (sl_stated_bound)sl_attn_get(spec, "bound");
    int dim = x->group->head_dim;
    if (norm < 0) {
        draw_try(x, PILOT, 0);
        sl_combine(x, SL_BY_TOTAL, 0);
        norm = sl_norm(x->out, dim);
    }
    for (int i = 1; i <= MOST_TRIES; i++) {
        sl_stated s = sl_stated_of(delta / exp2(i), bound);
        double slack = i == 1 ? 0.95 : 0.8, target = slack * epsilon / (1 + epsilon) * norm;
        int S = sl_plan_take_all(&x->sizes, (int)most, target / x->unit, error_bound, &s, &x->draws);
        if (S == 0) break;
        sl_take_all r = draw_try(x, S, i);
        sl_combine(x, SL_BY_TOTAL, 0);
        norm = sl_norm(x->out, dim);
        double b = x->unit * error_bound(&s, (double)r.light, r.k);
        x->report->tries = (uint32_t)i;
        x->report->budget = (uint32_t)S;
        x->report->error_bound = (float)(b / norm);
        if (b <= epsilon / (1 + epsilon) * norm) return;
    }
    take_every_row(x);
}

// The first step of a layer: every head draws as many rows as its own stated error needs. A pilot gives the norm of its output.
static void search_error(sl_head *x, double epsilon) {
    sl_stated s = sl_stated_of(sl_attn_get(x->group->args->spec, "delta"), SL_STATED_CLT);
    draw_try(x, PILOT, 0);
    sl_combine(x, SL_BY_TOTAL, 0);
    double norm = sl_norm(x->out, x->group->head_dim), target = 0.95 * epsilon / (1 + epsilon) * norm;
    int S = sl_plan_take_all(&x->sizes, x->masses.n / 2, target / x->unit, error_bound, &s, &x->draws);
    if (S == 0) {
        take_every_row(x);
        return;
    }
    sl_step_of_search(x, draw_try(x, S, 1));
    x->report->budget = (uint32_t)S;
}

static void run(sl_head *x) {
    const sl_attn_spec *spec = x->group->args->spec;
    double epsilon = sl_attn_get(spec, "epsilon");
    int shared = sl_attn_get(spec, "pps") == 1, most = SL_BUDGET_MOST * x->S;
    if (sl_attn_certifies_layer(spec)) {
        if (sl_draw_carried(x, x->masses.n / 2.0, shared)) return;
        if (x->kappa > 0)
            take_every_row(x);
        else
            search_error(x, epsilon);
    } else if (epsilon > 0) {
        certify_head(x, epsilon);
    } else if (!sl_attn_carries_budget(spec)) {
        sl_draw_take_all(&x->sizes, x->S, shared, x->u, &x->draws);
    } else if (!sl_draw_carried(x, most, shared)) {
        sl_step_of_search(x, sl_draw_take_all(&x->sizes, x->kappa > 0 ? most : x->S, shared, x->u, &x->draws));
    }
}

static void prepare(sl_head *x) {
    x->unit = sl_masses_share(&x->sizes, 1, &x->masses); // sizes in units of the output
    sl_budget_profile(x);
}

static void plan(sl_layer *l) {
    sl_budget_by_variance(l);
    if (carries_threshold(l->args->spec)) sl_threshold_plan(l);
}

static void measure(sl_head *x) {
    const sl_attn_spec *spec = x->group->args->spec;
    if (sl_attn_certifies_layer(spec) && sl_attn_get(spec, "bound") == SL_STATED_CHI2) x->step.pairs = sl_pairs(x, NULL);
}

static void settle(sl_layer *l) {
    if (carries_threshold(l->args->spec)) sl_threshold_settle(l);
}

static int keeps(const sl_attn_spec *spec) {
    return sl_budget_is_by_variance(spec) || sl_attn_states_error(spec) || carries_threshold(spec);
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
    return sl_attn_get(spec, "epsilon") > 0 ? (size_t)n_kv + 2 * PILOT : 2 * most_draws(spec);
}

const sl_draw sl_draw_pps = {.size_power = by_norm,
                             .keeps = keeps,
                             .capacity = capacity,
                             .scratch = scratch,
                             .prepare = prepare,
                             .plan = plan,
                             .run = run,
                             .measure = measure,
                             .settle = settle};
