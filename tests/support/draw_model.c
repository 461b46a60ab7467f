// tests/support/draw_model.c - see draw_model.h.
#include "tests/support/draw_model.h"
#include "tests/test.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

typedef unsigned __int128 u128;

watched_head watched[MODEL_HEADS];
static sl_draw watched_draw;

// ---- what a decode does ----

static watched_head *of_head(const sl_head *x) {
    return &watched[x->group->h * x->group->n + x->index];
}

static double stored(const sl_masses *m, int j, int top) {
    return ldexp(sl_bf16_to_f32(m->stored[j]), m->ref[j / SL_BLOCK] - top + 38);
}

static void run(sl_head *x) {
    watched_head *w = of_head(x);
    double total = 0;
    CHECK(x->group->kv->n_kv <= MODEL_ROWS && x->group->head_dim == MODEL_DIM);
    *w = (watched_head){.ran = 1, .n = x->masses.n, .n_sized = x->sizes.stored ? x->sizes.n : 0, .S = x->S};
    for (int j = 0; j < w->n; j++) total += (double)sl_masses_of_row(&x->masses, j);
    for (int j = 0; j < w->n; j++) w->stored_p[j] = stored(&x->masses, j, x->masses.top) / total;
    for (int j = 0; j < w->n_sized; j++)
        w->stored_w[j] = stored(&x->sizes, j, x->sizes.top), w->w[j] = sl_masses_of_row(&x->sizes, j);
    for (int page = 0; sl_composition_of(x->group->args->spec).propose == &sl_propose_quantised && page * SL_PAGE < w->n;
         page++)
        w->page_bound[page] = sl_quantised_bound(x, page);
    w->log2_total = log2(total) + x->masses.top - 38; // mass 2^top is the integer 2^38
    w->top_above = x->sizes.top - SL_REF_EMPTY;
    for (int b = 0; b * SL_BLOCK < w->n_sized; b++) w->top_above = (int)fmin(w->top_above, x->sizes.top - x->sizes.ref[b]);
    w->unit = ldexp(1 / total, x->sizes.top - x->masses.top);
    watched_draw.run(x);
    for (int i = 0; i < x->draws.n; i++) {
        CHECK(i == 0 || x->draws.row[i] > x->draws.row[i - 1]);
        w->count[x->draws.row[i]] = x->draws.count[i], w->inv_pi[x->draws.row[i]] = x->draws.inv_pi[i];
    }
    w->drawn = x->step;
}

static void measure(sl_head *x) {
    watched_head *w = of_head(x);
    if (watched_draw.measure) watched_draw.measure(x);
    w->measured = x->step;
    for (int d = 0; d < MODEL_DIM; d++) w->out[d] = x->out[d];
}

void watch_draw(sl_attn_spec *spec, watched_method *toy) {
    watched_draw = *spec->method->stages->draw;
    toy->draw = watched_draw, toy->draw.run = run, toy->draw.measure = measure;
    toy->draw.ranges = NULL; // rows of ranges are drawn too, so that they can be watched
    toy->stages = *spec->method->stages, toy->stages.draw = &toy->draw;
    toy->method = *spec->method, toy->method.stages = &toy->stages;
    spec->method = &toy->method;
}

// ---- draws ----

// Key (seed, sequence), counter (position, layer and head, index, 0).
static uint64_t number(const model_numbers *u, uint32_t m) {
    uint32_t index = u->shared ? 0 : m;
    if (u->of_try >= 0) index += (uint32_t)u->of_try << 20;
    sl_philox4 r = sl_philox(u->id.seed, u->id.sequence, u->id.position, (u->id.layer << 16) + u->id.head, index, 0);
    return (uint64_t)r.v[0] << 32 | r.v[1];
}

// Takes heavy rows once. Light rows: `k` points (m + u_m) light / k, or, with k = -1, the points (m + u_m) kappa below light.
static void draw_rows(const watched_head *x, const char *heavy, int k, uint64_t kappa, const model_numbers *u,
                      model_draw *out) {
    uint64_t running = 0, point;
    uint32_t m = 0;
    out->n = out->distinct = 0;
    memset(out->count, 0, sizeof out->count), memset(out->inv_pi, 0, sizeof out->inv_pi);
    for (int j = 0; j < x->n_sized; j++) {
        if (heavy[j]) out->count[j] = 1, out->inv_pi[j] = 1;
        for (running += heavy[j] ? 0 : x->w[j]; k < 0 || m < (uint32_t)k; m++) {
            uint64_t width = k < 0 ? kappa : out->light;
            point = (uint64_t)((u128)number(u, m) * width >> 64);
            point = k < 0 ? m * kappa + point : (uint64_t)(((u128)m * out->light + point) / (unsigned)k);
            if (point >= running) break;
            out->count[j]++, out->inv_pi[j] = out->kappa / (double)x->w[j];
        }
        out->n += out->count[j], out->distinct += out->count[j] > 0;
    }
}

void model_draw_at(const watched_head *x, uint64_t kappa, model_numbers u, model_draw *out) {
    static char heavy[MODEL_ROWS];
    out->n_heavy = out->k = 0, out->light = 0, out->kappa = (double)kappa;
    for (int j = 0; j < x->n_sized; j++) {
        heavy[j] = x->w[j] >= kappa;
        out->n_heavy += heavy[j], out->light += heavy[j] ? 0 : x->w[j];
    }
    draw_rows(x, heavy, -1, kappa, &u, out);
}

static const watched_head *sorted_by;
static int by_stored_size(const void *a, const void *b) { // descending, on ties the lower row first
    int i = *(const int *)a, j = *(const int *)b;
    double x = sorted_by->stored_w[i], y = sorted_by->stored_w[j];
    return x != y ? (x < y) - (x > y) : i - j;
}
static int by_size(const void *a, const void *b) {
    int i = *(const int *)a, j = *(const int *)b;
    return sorted_by->w[i] != sorted_by->w[j] ? (sorted_by->w[i] < sorted_by->w[j]) - (sorted_by->w[i] > sorted_by->w[j])
                                              : i - j;
}

// The `most` largest rows, without those whose integer is 0. Returns their number.
static int sort_rows(const watched_head *x, int most, int *order) {
    int n = 0;
    sorted_by = x;
    for (int j = 0; j < x->n_sized; j++) order[j] = j;
    qsort(order, x->n_sized, sizeof *order, by_stored_size);
    for (int i = 0; i < most && i < x->n_sized; i++)
        if (x->w[order[i]]) order[n++] = order[i];
    qsort(order, n, sizeof *order, by_size);
    return n;
}

// The h of a search: rows above kappa = (size of the others) / (S - h) are heavy, and one draw at least is light.
static int count_heavy(const watched_head *x, const int *order, int n, int S, uint64_t *light) {
    int h = 0;
    *light = 0;
    for (int j = 0; j < x->n_sized; j++) *light += x->w[j];
    if (n < S) {
        *light = 0;
        return n;
    }
    for (; h < S - 1 && (u128)x->w[order[h]] * (unsigned)(S - h) > *light; h++) *light -= x->w[order[h]];
    return h;
}

void model_search(const watched_head *x, int S, model_numbers u, model_draw *out) {
    static char heavy[MODEL_ROWS];
    static int order[MODEL_ROWS];
    int n = sort_rows(x, S, order);
    memset(heavy, 0, sizeof heavy);
    out->n_heavy = count_heavy(x, order, n, S, &out->light);
    for (int i = 0; i < out->n_heavy; i++) heavy[order[i]] = 1;
    out->k = out->light ? S - out->n_heavy : 0;
    out->kappa = out->k ? (double)out->light / out->k : 0;
    draw_rows(x, heavy, out->k, 0, &u, out);
}

void model_take_all(const watched_head *x, model_draw *out) {
    static char heavy[MODEL_ROWS];
    memset(heavy, 1, sizeof heavy);
    out->n_heavy = x->n_sized, out->k = 0, out->light = 0, out->kappa = 0;
    draw_rows(x, heavy, 0, 0, &(model_numbers){.of_try = -1}, out);
}

static double bound_of_search(const watched_head *x, const int *order, int n, int S, sl_stated_bound bound, double delta) {
    uint64_t light;
    int k = S - count_heavy(x, order, n, S, &light);
    double kappa = (double)light * x->unit / k;
    return model_bound(bound, delta, 1, kappa, kappa * kappa * k, k);
}

int model_plan(const watched_head *x, int most, double target, sl_stated_bound bound, double delta, int found, double near) {
    static int order[MODEL_ROWS];
    int n = sort_rows(x, most, order);
    if (n < most) return n;
    if (found > 0 && found <= most && bound_of_search(x, order, n, found, bound, delta) <= target * (1 + near) &&
        (found == 1 || bound_of_search(x, order, n, found - 1, bound, delta) > target * (1 - near)))
        return found;
    if (found > most && most > 0 && bound_of_search(x, order, n, most, bound, delta) > target * (1 - near)) return 0;
    for (int S = 1; S <= most; S++)
        if (bound_of_search(x, order, n, S, bound, delta) <= target) return S;
    return 0;
}

// ---- bounds ----

static double normal_quantile(double beyond) { // z with P(N > z) = beyond
    double low = 0, high = 40;
    for (int i = 0; i < 80; i++) {
        double mid = (low + high) / 2;
        if (erfc(mid / sqrt(2)) / 2 > beyond)
            low = mid;
        else
            high = mid;
    }
    return low;
}

static double cube_of_wilson_hilferty(double z, double spread) { // (1 - 2 / (9 nu) + z sqrt(2 / (9 nu)))^3
    return pow(1 - 2 * spread / 9 + z * sqrt(2 * spread / 9), 3);
}

double model_bound(sl_stated_bound bound, double delta, double spread, double kappa, double B, double k) {
    static double of_delta, two_sided, one_sided;
    if (delta != of_delta) of_delta = delta, two_sided = normal_quantile(delta / 2), one_sided = normal_quantile(delta);
    double L = log(2 / delta), z2 = two_sided * two_sided;
    if (B == 0) return 0;
    if (bound == SL_STATED_BERNSTEIN || k < 30) return sqrt(2 * B * L) + 4.0 / 3 * kappa * L;
    if (bound == SL_STATED_CLT) return two_sided * sqrt(B);
    double scaled = 1 + spread * (z2 / cube_of_wilson_hilferty(one_sided, 1) - 1); // exact, z^2, at one degree of freedom
    double q = fmax(cube_of_wilson_hilferty(one_sided, spread) * scaled, 1 + (z2 - 1) * sqrt(spread));
    return sqrt(fmin(q, z2) * B);
}

// ---- what a layer carries ----

static void move(sl_threshold *t, const sl_threshold_step *s, double ratio) {
    double from = t->kappa > 0 ? t->kappa : s->k > 0 ? s->light / s->k : 0; // after a search: the heads' mean
    t->kappa = fmin(from * (0.7 + 0.3 * fmin(ratio, 4)), s->total);
}

void model_carry_budget(sl_threshold *t, const sl_threshold_step *s, double rows) {
    double ratio = s->rows / rows;
    move(t, s, s->light == 0 && ratio < 1 ? 1 : ratio);
}

double model_carry_error(sl_threshold *t, const sl_threshold_step *s, const model_rule *r) {
    double share = r->epsilon / (1 + r->epsilon), size = sqrt(s->squares);
    double own = s->trace_squares > 0 && s->B > 0 && s->B < INFINITY ? s->trace_squares / s->B / s->B : t->spread;
    double spread = fmin(1, fmax(own, t->spread)), b = model_bound(r->bound, r->delta, spread, s->kappa, s->B, s->k);
    double planned = model_bound(r->bound, r->delta, spread, s->kappa, s->B + s->spared_B, s->k + s->spared_k);
    move(t, s, planned > 0 ? t->margin * pow(share * size / planned, 2) : 4);
    if (s->B > 0) t->margin *= b <= share * size ? 1 + 0.1 * (1 - r->aim) : 1 - 0.1 * r->aim;
    t->margin = fmin(fmax(t->margin, 0.01), 2);
    t->spread = 0.7 * t->spread + 0.3 * fmin(own, 1);
    return b;
}

double model_pairs(const model_draw *d, int n, const bf16 *const *v, const double *centre) {
    static int light[2 * MODEL_ROWS], chosen[64];
    int n_light = 0, n_chosen = 0;
    double sum = 0;
    for (int j = 0; j < n; j++)
        for (int c = 0; c < d->count[j] && (float)d->inv_pi[j] > 1; c++) light[n_light++] = j;
    for (int i = 0, step = (n_light + 63) / 64; i < n_light; i += step) chosen[n_chosen++] = light[i];
    for (int a = 0; a < n_chosen; a++)
        for (int b = 0; b < n_chosen; b++) {
            double dot = 0, of_a = 0, of_b = 0;
            for (int c = 0; c < MODEL_DIM && a != b; c++) {
                double x = sl_bf16_to_f32(v[chosen[a]][c]) - (centre ? centre[c] : 0);
                double y = sl_bf16_to_f32(v[chosen[b]][c]) - (centre ? centre[c] : 0);
                dot += x * y, of_a += x * x, of_b += y * y;
            }
            if (of_a * of_b > 0) sum += dot * dot / (of_a * of_b);
        }
    double pairs = (double)n_light * (n_light - 1), mean = n_chosen > 1 ? sum / (n_chosen * (n_chosen - 1.0)) : 1;
    return n_light + pairs * mean; // a draw and itself: 1
}
