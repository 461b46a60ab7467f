// attention/budgets/carried.c - thresholds that a layer carries from step to step (threshold.h): which specifications carry
// one, the plan of a step, the draw of a head, and what the heads' draws say about the next step.
#include "attention/stages/stages.h"
#include "base/quantile.h"

#include <math.h>

sl_stated sl_stated_of(double delta, sl_stated_bound bound) {
    double one_sided = sl_normal_quantile(1 - delta), z = sl_normal_quantile(1 - delta / 2);
    double t = 2.0 / 9, root = 1 - t + one_sided * sqrt(t);
    return (sl_stated){bound, z, one_sided, log(2 / delta), z * z / (root * root * root) - 1};
}

double sl_bound_of_draws(const void *stated, double light, int k) {
    double kappa = k ? light / k : 0;
    return sl_error_bound(stated, 1, kappa, kappa * light, k);
}

int sl_carries_threshold(const sl_attn_spec *spec) {
    return sl_attn_carries_budget(spec) || sl_attn_certifies_layer(spec);
}

// ---- before the draws ----

// A search of few rows costs little. While nearly every row is taken, the rows say little about the next kappa.
static int is_short(const sl_layer *l) {
    return sl_attn_carries_budget(l->args->spec) && l->query->kv.n_kv <= SL_BUDGET_MOST * (int)sl_attn_get(l->args->spec, "S");
}

void sl_threshold_plan(sl_layer *l) {
    if (!sl_carries_threshold(l->args->spec)) return;
    SL_CHECK(l->state);
    sl_threshold *t = &l->state->threshold;
    if (!l->follows) *t = (sl_threshold){.margin = 0.8, .spread = 1};
    if (is_short(l)) t->kappa = 0;
    for (int h = 0; h < l->args->geom->n_heads; h++) l->heads[h].kappa = t->kappa, l->heads[h].report->kappa = 0;
}

// ---- the draw of a head ----

static void keep_step(sl_head *x, sl_take_all r) {
    double light = (double)r.light * x->unit, kappa = r.k ? light / r.k : 0;
    x->step = (sl_threshold_step){.total = (double)sl_masses_total(&x->sizes) * x->unit,
                                  .rows = r.n_heavy + r.k,
                                  .light = light,
                                  .k = r.k,
                                  .kappa = kappa,
                                  .B = kappa * light};
    x->report->kappa = (float)kappa;
}

// Draws at x->kappa, and fills x->step. Returns 0 without draws if the layer has no kappa, or if the head would take more than
// `most` rows.
static int draw_carried(sl_head *x, double most, int shared) {
    double units = x->kappa * x->units;
    if (!(x->kappa > 0)) return 0;
    uint64_t kappa = units < 1 ? 1 : units < 0x1p62 ? (uint64_t)units : (uint64_t)1 << 62;
    sl_take_all r = sl_split_sizes(&x->sizes, kappa);
    double k = (double)r.light / (double)kappa, width = (double)kappa * x->unit, light = (double)r.light * x->unit;
    x->step = (sl_threshold_step){.total = (double)sl_masses_total(&x->sizes) * x->unit,
                                  .rows = fmin(r.n_heavy + k, most),
                                  .light = light,
                                  .k = k,
                                  .kappa = width,
                                  .B = width * light};
    x->report->budget = (uint32_t)x->step.rows;
    x->report->kappa = (float)width;
    if (!((double)r.light <= (most - r.n_heavy) * (double)kappa)) return 0; // n_heavy + k > most
    sl_draw_at(&x->sizes, kappa, shared, x->u, &x->draws);
    return 1;
}

typedef struct try_uniform {
    sl_uniform of;
    int i;
} try_uniform;
static uint64_t next_of_try(const void *ctx, uint32_t index) {
    const try_uniform *t = ctx;
    return t->of.next(t->of.ctx, sl_try_index(t->i, index));
}

sl_take_all sl_draw_try(sl_head *x, int S, int i) {
    try_uniform t = {x->u, i};
    SL_CHECK(i < SL_TRIES && S <= SL_TRY_DRAWS);
    return sl_draw_take_all(&x->sizes, S, 0, (sl_uniform){next_of_try, &t}, &x->draws);
}

void sl_take_every_row(sl_head *x) {
    sl_draws_clear(&x->draws);
    for (int j = 0; j < x->sizes.n; j++) sl_draws_add(&x->draws, j, 1);
    x->report->fallback = 1;
}

// The first step of a layer: every head draws as many rows as its own stated error needs. A pilot gives the norm of its output.
static void search_error(sl_head *x, void (*estimate)(sl_head *x)) {
    const sl_attn_spec *spec = x->group->args->spec;
    double epsilon = sl_attn_get(spec, "epsilon");
    sl_stated s = sl_stated_of(sl_attn_get(spec, "delta"), SL_STATED_CLT);
    sl_draw_try(x, SL_PILOT, 0);
    estimate(x);
    double target = 0.95 * epsilon / (1 + epsilon) * sl_norm(x->out, x->group->head_dim);
    int S = sl_plan_take_all(&x->sizes, x->sizes.n / 2, target / x->unit, sl_bound_of_draws, &s, &x->draws);
    sl_take_all r = {.n_heavy = x->sizes.n};
    if (S > 0)
        r = sl_draw_try(x, S, 1);
    else
        sl_take_every_row(x);
    keep_step(x, r);
    x->report->budget = (uint32_t)(S ? S : x->sizes.n);
}

void sl_draw_of_layer(sl_head *x, int shared, void (*estimate)(sl_head *x)) {
    int certifies = sl_attn_certifies_layer(x->group->args->spec), most = SL_BUDGET_MOST * x->S;
    if (draw_carried(x, certifies ? x->sizes.n / 2.0 : most, shared)) return;
    if (!certifies) {
        x->report->budget = (uint32_t)(x->kappa > 0 ? most : x->S);
        keep_step(x, sl_draw_take_all(&x->sizes, (int)x->report->budget, shared, x->u, &x->draws));
        if (x->kappa > 0) x->step.light = x->step.k = 0; // a smaller kappa would give this head no more rows
    } else if (x->kappa > 0) {
        double k = x->step.k, B = x->step.B, kappa = x->step.kappa; // of the draws that the head does not make
        sl_take_every_row(x);
        keep_step(x, (sl_take_all){.n_heavy = x->sizes.n});
        x->step.spared_k = k, x->step.spared_B = B, x->step.kappa = kappa;
        x->report->budget = (uint32_t)x->sizes.n;
    } else {
        search_error(x, estimate);
    }
}

// ---- after the draws ----

enum { MOST_PAIRED = 64 }; // draws of a head that are compared with each other

// (v - centre) / |v - centre|; 0 for v = centre.
static void unit_vector(sl_kv_row v, sl_format format, const float *centre, int dim, float *out) {
    for (int c = 0; c < dim; c++) out[c] = sl_kv_number(v, format, c) - (centre ? centre[c] : 0);
    double norm = sl_norm(out, dim), inverse = norm > 0 ? 1 / norm : 0;
    for (int c = 0; c < dim; c++) out[c] = (float)(out[c] * inverse);
}

static double square_of_dot(const float *a, const float *b, int dim) {
    float dot = 0;
    for (int c = 0; c < dim; c++) dot += a[c] * b[c];
    return (double)dot * dot;
}

// The mean over pairs of at most MOST_PAIRED draws, at equal distances in the order of rows, stands for all pairs. A draw and
// itself count as a pair, with 1.
double sl_pairs(const sl_head *x, const float *centre) {
    const sl_draws *d = &x->draws;
    int dim = x->group->head_dim, n = 0, n_light = 0, seen = 0;
    float unit[MOST_PAIRED][SL_QUANT_DIM];
    double sum = 0;
    SL_CHECK(dim <= SL_QUANT_DIM);
    for (int i = 0; i < d->n; i++) n_light += d->inv_pi[i] > 1 ? d->count[i] : 0;
    int step = (n_light + MOST_PAIRED - 1) / MOST_PAIRED;
    for (int i = 0; i < d->n; i++)
        for (int c = 0; c < d->count[i] && d->inv_pi[i] > 1; c++)
            if (seen++ % step == 0) unit_vector(x->rows[i], x->group->kv->formats.v, centre, dim, unit[n++]);
    for (int i = 0; i < n; i++)
        for (int j = 0; j < i; j++) sum += square_of_dot(unit[i], unit[j], dim);
    double mean = n > 1 ? sum / (n * (n - 1) / 2.0) : 1;
    return n_light * (1 + (n_light - 1) * mean);
}

static void certify(sl_layer *l, const sl_threshold_step *s) {
    const sl_attn_spec *spec = l->args->spec;
    double epsilon = sl_attn_get(spec, "epsilon"), share = epsilon / (1 + epsilon), size = sqrt(s->squares);
    sl_stated stated = sl_stated_of(sl_attn_get(spec, "delta"), (sl_stated_bound)sl_attn_get(spec, "bound"));
    double b = sl_threshold_error(&l->state->threshold, s, &stated, share, sl_attn_get(spec, "aim"));
    int certified = sl_is_certified(b, size, share);
    l->goes_dense = !certified && sl_attn_has(spec, "on-miss") && sl_attn_chooses(spec, "on-miss", "dense");
    for (int h = 0; h < l->args->geom->n_heads; h++) {
        sl_attn_report *r = l->heads[h].report;
        r->error_bound = (float)sl_relative_bound(b, size);
        r->stated_error = (float)sl_stated_error(b, size);
        r->certified = (uint32_t)certified;
    }
}

void sl_threshold_settle(sl_layer *l) {
    const sl_attn_spec *spec = l->args->spec;
    int n_heads = l->args->geom->n_heads;
    sl_threshold_step s = {0};
    if (!sl_carries_threshold(spec)) return;
    for (int h = 0; h < n_heads; h++) {
        const sl_head *x = &l->heads[h];
        double norm = sl_norm(x->out, x->group->head_dim);
        s.total += x->step.total, s.rows += x->step.rows, s.light += x->step.light;
        s.k += x->step.k, s.B += x->step.B, s.trace_squares += x->step.trace_squares;
        s.spared_k += x->step.spared_k, s.spared_B += x->step.spared_B;
        s.kappa = fmax(s.kappa, x->step.kappa);
        s.squares += norm * norm;
    }
    if (sl_attn_carries_budget(spec))
        sl_threshold_budget(&l->state->threshold, &s, sl_attn_get(spec, "S") * n_heads);
    else
        certify(l, &s);
}
