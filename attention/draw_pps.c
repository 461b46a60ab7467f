// attention/draw_pps.c - the draw of santa-pps: take-all + PPS by p |v|, with S draws or, with --epsilon, with as many draws as
// a stated error needs (docs/methods.md, santa-pps, "a stated error").
//
// In units of the output, B = kappa * sum_light p_j |v_j| bounds the trace of the covariance of stratified draws, and no
// summand exceeds kappa. A head is certified when its error bound b is at most epsilon / (1 + epsilon) |mu^|. Then |err| <= b
// implies |err| <= epsilon |mu|, and |err| > b has probability delta at most. Try i has the share delta / 2^i of delta and
// uniform numbers that no other try uses. Its plan uses the estimate of the previous try, so the plan does not depend on the
// draws of the try.
#include "attention/stages.h"
#include "engine/base/quantile.h"

#include <math.h>
#include <string.h>

enum {
    PILOT = 128,    // draws of the pilot, which plans the first try if there is no previous output
    MOST_TRIES = 3, // after so many tries, every row is taken once
    FEW = 30,       // with fewer draws, Bernstein's inequality replaces the central limit theorem
};

typedef struct stated {
    double z, log_term; // z(1 - delta / 2), ln(2 / delta)
    int bernstein;
} stated;

static stated stated_error(double delta, int bernstein) {
    return (stated){sl_normal_quantile(1 - delta / 2), log(2 / delta), bernstein};
}

// Error bound of k draws from light rows of total size `light`.
static double error_bound(const void *ctx, double light, int k) {
    const stated *s = ctx;
    if (light <= 0) return 0;
    double kappa = light / k, B = kappa * light;
    if (!s->bernstein && k >= FEW) return s->z * sqrt(B);
    return sqrt(2 * B * s->log_term) + 4.0 / 3 * kappa * s->log_term;
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

static void draw_every_row(sl_head *x) {
    sl_draws_clear(&x->draws);
    for (int j = 0; j < x->masses.n; j++) sl_draws_add(&x->draws, j, 1);
    x->report->fallback = 1;
    x->report->error_bound = 0;
}

static void run_certified(sl_head *x, double epsilon) {
    const sl_attn_spec *spec = x->group->args->spec;
    double delta = sl_attn_get(spec, "delta"), norm, most = x->masses.n / 2;
    int bernstein = sl_attn_get(spec, "bound") == 1, dim = x->group->head_dim;
    double unit = sl_masses_share(&x->sizes, 1, &x->masses); // one unit of size, in units of the output
    if (x->previous) {
        norm = sl_norm(x->previous, dim);
    } else {
        draw_try(x, PILOT, 0);
        sl_combine(x, SL_BY_TOTAL, 0);
        norm = sl_norm(x->out, dim);
    }
    for (int i = 1; i <= MOST_TRIES; i++) {
        stated s = stated_error(delta / exp2(i), bernstein);
        double slack = i == 1 ? 0.95 : 0.8, target = slack * epsilon / (1 + epsilon) * norm;
        int S = sl_plan_take_all(&x->sizes, (int)most, target / unit, error_bound, &s, &x->draws);
        if (S == 0) break;
        sl_take_all r = draw_try(x, S, i);
        sl_combine(x, SL_BY_TOTAL, 0);
        norm = sl_norm(x->out, dim);
        double b = unit * error_bound(&s, (double)r.light, r.k);
        x->report->tries = (uint32_t)i;
        x->report->budget = (uint32_t)S;
        x->report->error_bound = (float)(b / norm);
        if (b <= epsilon / (1 + epsilon) * norm) return;
    }
    draw_every_row(x);
}

static void run(sl_head *x) {
    const sl_attn_spec *spec = x->group->args->spec;
    double epsilon = sl_attn_get(spec, "epsilon");
    if (epsilon > 0)
        run_certified(x, epsilon);
    else
        sl_draw_take_all(&x->sizes, x->S, sl_attn_get(spec, "pps") == 1, x->u, &x->draws);
}

static int by_norm(const sl_attn_spec *spec) {
    (void)spec;
    return 1;
}

static size_t most_draws(const sl_attn_spec *spec) {
    return (size_t)sl_attn_get(spec, "S") * (sl_budget_is_by_variance(spec) ? SL_BUDGET_MOST : 1);
}
static size_t capacity(const sl_attn_spec *spec, int n_kv) { // with a stated error, a head may take every row
    size_t most = most_draws(spec);
    return sl_attn_get(spec, "epsilon") > 0 || most > (size_t)n_kv ? (size_t)n_kv : most;
}
static size_t scratch(const sl_attn_spec *spec, int n_kv) {
    return sl_attn_get(spec, "epsilon") > 0 ? (size_t)n_kv + 2 * PILOT : 2 * most_draws(spec);
}

const sl_draw sl_draw_pps = {.size_power = by_norm, .capacity = capacity, .scratch = scratch, .run = run};
