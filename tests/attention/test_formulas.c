// tests/attention/test_formulas.c - every number that santa-pps and santa-is compute for a step, against a second
// implementation (tests/support/draw_model.h): sizes, draws, output, the step of a head, reports, and what the layer carries
// to the next step. The heads of a layer are hard cases. Each step follows the step before it, except
// one.
#include "tests/support/draw_model.h"
#include "tests/support/reference.h"
#include "tests/test.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { HEADS = MODEL_HEADS, GROUP = 2, KV_HEADS = HEADS / GROUP, DIM = MODEL_DIM, STEPS = 6, LAYER = 3, SEED = 11 };

// ---- a layer ----

// Kinds of heads: f flat, m mild, p peaked, d one key dominates, l large scores, h scores whose proposals have no useful bound,
// s row 0 has most of the mass, x scores out of the range of stored masses. Kinds of values, for each KV head: n normal with a
// mean, z a third of the rows is zero and few are large, e equal, so that sizes tie, v zero, o on one line.
typedef struct scenario {
    const char *attn;
    int n;
    const char *kinds, *values;
    double keys; // scale; below 0: of the newest page with quantised keys only
} scenario;

typedef struct layer {
    const scenario *of;
    ref_cache c;
    sl_attn_spec spec;
    watched_method toy;
    sl_layer_state *state;
    float base[HEADS * DIM]; // queries
    double *score;           // [HEADS][n] exact scores in octaves
    const bf16 **v;          // [KV_HEADS][n]
    int n, n_sized;          // n_sized: rows that the draw has sizes of
    int is, certifies, carries, shared;
    int S;
    double epsilon, delta;
    sl_stated_bound bound;
    uint32_t position, before; // of this step and of the step before
    int follows;
    sl_threshold carried;      // before the step
    double norm_before[HEADS]; // -1: none
} layer;

static void write_values(layer *l, int h, char kind, uint64_t *rng) {
    for (int j = 0; j < l->n; j++)
        for (int d = 0; d < DIM; d++) {
            double x = test_normal(rng) + (kind == 'n'), y = d == 0 ? 1 + 0.5 * test_normal(rng) : 0;
            if (kind == 'z') x *= j % 3 == 1 ? 0 : j % 50 == 3 ? 30 : 1;
            if (kind == 'e') x = d % 4 ? 0 : 0.5;
            if (kind == 'v') x = 0;
            ((bf16 *)ref_v_row(&l->c, 0, h, j))[d] = sl_f32_to_bf16((float)(kind == 'o' ? y : x));
        }
}

static layer *layer_new(const scenario *of, uint64_t rng) {
    layer *l = calloc(1, sizeof *l);
    sl_error err;
    *l = (layer){.of = of, .c = ref_cache_new(HEADS, KV_HEADS, DIM, 1, &of->n, 1, rng), .n = of->n};
    CHECK_OK(sl_attn_parse(of->attn, &l->spec, &err), err);
    l->is = !strncmp(of->attn, "santa-is", 8), l->n_sized = l->is ? (l->n - 1) / SL_PAGE * SL_PAGE : l->n;
    l->S = (int)sl_attn_get(&l->spec, "S");
    if (sl_attn_has(&l->spec, "epsilon")) {
        l->epsilon = sl_attn_get(&l->spec, "epsilon"), l->delta = sl_attn_get(&l->spec, "delta");
        l->bound = (sl_stated_bound)sl_attn_get(&l->spec, "bound");
    }
    l->certifies = l->epsilon > 0 && (l->is || sl_attn_chooses(&l->spec, "certify", "layer"));
    l->carries = l->epsilon == 0 && sl_attn_chooses(&l->spec, "budget", "carried");
    l->shared = sl_attn_has(&l->spec, "pps") && sl_attn_chooses(&l->spec, "pps", "sys");
    l->state = calloc(1, sizeof *l->state + HEADS * sizeof *l->state->norm);
    watch_draw(&l->spec, &l->toy);
    for (int h = 0; h < KV_HEADS; h++) {
        write_values(l, h, of->values[h], &rng);
        for (int j = 0; j < l->n; j++)
            for (int d = 0; d < DIM; d++) {
                bf16 *k = (bf16 *)ref_k_row(&l->c, 0, h, j) + d;
                int last = j >= l->n_sized - SL_PAGE && j < l->n_sized;
                *k = sl_f32_to_bf16((float)(of->keys > 0 ? of->keys : last ? -of->keys : 1) * sl_bf16_to_f32(*k));
            }
    }
    for (int head = 0; head < HEADS; head++)
        for (int d = 0; d < DIM; d++) {
            char kind = of->kinds[head];
            int row = kind == 'd' ? 37 % l->n : 0;
            double x = test_normal(&rng), scale = kind == 'f'   ? 0
                                                  : kind == 'p' ? 3
                                                  : kind == 'l' ? 60
                                                  : kind == 'h' ? 700
                                                  : kind == 'x' ? 1e6
                                                                : 1;
            double key = sl_bf16_to_f32(ref_k_row(&l->c, 0, head / GROUP, row)[d]) / fabs(of->keys);
            l->base[head * DIM + d] = (float)(kind == 'd' ? 12 * key : kind == 's' ? key : scale * x);
        }
    l->score = malloc(sizeof *l->score * HEADS * l->n), l->v = malloc(sizeof *l->v * KV_HEADS * l->n);
    for (int h = 0; h < KV_HEADS; h++)
        for (int j = 0; j < l->n; j++) l->v[h * l->n + j] = ref_v_row(&l->c, 0, h, j);
    return l;
}

static void layer_free(layer *l) {
    ref_cache_free(&l->c);
    free(l->state), free(l->score), free(l->v), free(l);
}

static const bf16 *const *values_of(const layer *l, int head) {
    return l->v + (size_t)(head / GROUP) * l->n;
}

static double norm_of(const double *x, int n) {
    double square = 0;
    for (int i = 0; i < n; i++) square += x[i] * x[i];
    return sqrt(square);
}

// Sets the queries of a step, and decodes it.
static void decode_step(layer *l, uint32_t position, uint64_t *rng) {
    l->follows = l->before && position == l->before + 1, l->position = position, l->carried = l->state->threshold;
    for (int head = 0; head < HEADS; head++) {
        l->norm_before[head] = l->follows ? l->state->norm[head] : -1;
        for (int d = 0; d < DIM; d++) l->c.q[head * DIM + d] = l->base[head * DIM + d] * (float)(1 + 0.2 * test_normal(rng));
        for (int j = 0; j < l->n; j++) {
            double dot = 0;
            const bf16 *k = ref_k_row(&l->c, 0, head / GROUP, j);
            for (int d = 0; d < DIM; d++) dot += (double)l->c.q[head * DIM + d] * sl_bf16_to_f32(k[d]);
            l->score[head * l->n + j] = dot / sqrt(DIM) / log(2);
        }
    }
    memset(watched, 0, sizeof watched);
    l->c.queries[0].position = position, l->c.queries[0].state = l->state;
    ref_decode_spec(&l->c, &l->spec, 0, 1, SEED, LAYER);
    l->c.queries[0].state = NULL;
    l->before = position;
    for (int head = 0; head < HEADS && l->is; head++) {
        watched_head *x = &watched[head];
        double all = 0;
        if (x->ran && l->n_sized == 0) x->n_sized = 0; // no row is drawn
        for (int j = 0; j < x->n_sized; j++) all += (double)x->w[j];
        if (!l->certifies && all > 0) x->unit = 1 / all; // S draws: sizes are shares of their total
    }
}

#define NEAR(HEAD, GOT, WANT, RELATIVE)                                                                                        \
    do {                                                                                                                       \
        double g_ = (GOT), w_ = (WANT), t_ = (RELATIVE);                                                                       \
        if (g_ != w_ && !(isnan(g_) && isnan(w_)) && !(isfinite(w_) && fabs(g_ - w_) <= t_ * fabs(w_) + 1e-200))               \
            FAIL("%s, %d rows, heads %s, position %u, head %d: %s is %.9g, expected %.9g", l->of->attn, l->n, l->of->kinds,    \
                 l->position, (HEAD), #GOT, g_, w_);                                                                           \
    } while (0)

// ---- sizes ----

// m of santa-is: 1.25 of the head's previous |output|, else the mean |v| of the newest page with quantised keys.
static double size_of_mean(const layer *l, int head) {
    double sum = 0;
    if (l->norm_before[head] > 0) return 1.25 * l->norm_before[head];
    for (int j = l->n_sized - SL_PAGE; j < l->n_sized; j++) {
        bf16 norm;
        sl_norms(sl_kv_bf16_run(values_of(l, head)[j]), 1, DIM, &norm);
        sum += sl_bf16_to_f32(norm) / SL_PAGE;
    }
    return fmax(sum, 1e-30);
}

// b_page in octaves: sum |q_c| step_c / 2, and half a unit of the query times half the codes for each channel.
static double score_bound(const layer *l, int head, int page) {
    const f16 *step = sl_kv_extra(&l->c.queries[0].kv, (sl_kv_need){&sl_quantised_keys, 8}, page, head / GROUP);
    double sum = 0, most = 0;
    for (int d = 0; d < DIM; d++) {
        double x = fabs(l->c.q[head * DIM + d]) * sl_f16_to_f32(step[d]) / sqrt(DIM) / log(2);
        sum += x / 2, most = fmax(most, x);
    }
    return sum + most / (127 * 128) * 127.5 * DIM / 2;
}

// A stored mass equals the mass of the row's score within the rounding to bf16. With santa-is the difference may also be
// b_page. A stored size is p |v|, or p e^b (|v| + m): |v| and the sum are rounded upwards to bf16 (2^-7 each), and the product
// is rounded to the nearest bf16 (2^-8). With S draws of santa-is the size of a row with a quantised key is 0.99 p + 0.01 / n,
// as an integer.
static void check_sizes(const layer *l, int head) {
    const watched_head *x = &watched[head];
    const double *s = l->score + (size_t)head * l->n;
    double all = 0, of_built = 0, most = 0, m = l->certifies && l->is && l->n_sized ? size_of_mean(l, head) : 0;
    for (int j = 0; j < l->n; j++) most = fmax(most, fabs(s[j]));
    CHECK(x->n == l->n && x->n_sized == l->n_sized);
    if (l->certifies && l->is && l->n_sized) CHECK_INT(x->top_above, 0); // the newest page has no part in the unit of sizes
    for (int j = 0; j < l->n_sized; j++) all += (double)x->w[j], of_built += x->stored_p[j];
    for (int j = 0; j < l->n; j++) {
        double b = l->is && j < l->n_sized && l->epsilon > 0 ? score_bound(l, head, j / SL_PAGE) : 0, norm = 0, got, want;
        if (x->stored_p[j] > 0x1p-60 && (!l->is || l->epsilon > 0 || j >= l->n_sized) &&
            !(fabs(log2(x->stored_p[j]) + x->log2_total - s[j]) <= b + 0x1p-7 + 1e-6 * most))
            FAIL("%s, head %d, row %d: score %g, expected %g", l->of->attn, head, j, log2(x->stored_p[j]) + x->log2_total,
                 s[j]);
        if (j >= l->n_sized) continue;
        for (int d = 0; d < DIM; d++) norm += pow(sl_bf16_to_f32(values_of(l, head)[j][d]), 2);
        got = x->stored_w[j] * x->unit, want = x->stored_p[j] * (sqrt(norm) + m) * exp2(fmin(b, 12));
        double below = 0x1p-8 + 0.001 * fmin(b, 40), least = 1e-30, above = (m > 0 ? 2 : 1) * 0x1p-7 + below;
        if (l->is && !l->certifies)
            got = (double)x->w[j] / all, want = 0.99 * x->stored_p[j] / of_built + 0.01 / l->n_sized, below = above = 1e-6,
            least = 4e-9;
        if (!(got >= want * (1 - below) - least && got <= want * (1 + above) + least))
            FAIL("%s, %d rows, position %u, head %d, row %d: size %g, expected %g", l->of->attn, l->n, l->position, head, j,
                 got, want);
    }
}

// ---- the draw ----

// The model's draws of a head with its output. santa-is adds the rows of the newest page, and has exact masses.
typedef struct output {
    double out[DIM], log2_total, ess; // log2_total: of sum c_j / pi_j 2^s_j
} output;

static output combine(const layer *l, int head, const model_draw *d) {
    output o = {0};
    const double *s = l->score + (size_t)head * l->n;
    double top = -INFINITY, sum = 0, squares = 0;
    for (int j = 0; j < l->n; j++)
        if (d->count[j] || j >= l->n_sized) top = fmax(top, s[j]);
    for (int j = 0; j < l->n; j++) {
        double times = j >= l->n_sized ? 1 : d->count[j] * d->inv_pi[j];
        double share = times * (l->is ? exp2(s[j] - top) : watched[head].stored_p[j]);
        if (times == 0) continue;
        sum += share, squares += share * share;
        for (int c = 0; c < DIM; c++) o.out[c] += share * sl_bf16_to_f32(values_of(l, head)[j][c]);
    }
    for (int c = 0; c < DIM && l->is; c++) o.out[c] /= sum;
    o.log2_total = log2(sum) + top, o.ess = squares > 0 ? sum * sum / squares : 0;
    return o;
}

static model_numbers numbers(const layer *l, int head, int of_try) {
    sl_rng_id id = {SEED, l->c.queries[0].sequence, l->position, LAYER, (uint32_t)head};
    return (model_numbers){.id = id, .of_try = of_try, .shared = l->shared};
}

typedef struct prediction {
    model_draw draw;
    sl_threshold_step step;
    int budget, fallback;
} prediction;

static void set_step(const watched_head *x, const model_draw *d, double k, double rows, sl_threshold_step *s) {
    double light = (double)d->light * x->unit, kappa = d->kappa * x->unit;
    *s = (sl_threshold_step){.rows = rows, .light = light, .k = k, .kappa = kappa, .B = kappa * light};
    for (int j = 0; j < x->n_sized; j++) s->total += (double)x->w[j] * x->unit;
}

// A score is a sum in fp32, which is rounded. The masses of santa-is are exact, so this rounding changes its output.
static double rounding(const layer *l, int head) {
    double most = 0;
    for (int j = 0; j < l->n; j++) most = fmax(most, fabs(l->score[head * l->n + j]));
    return 1e-5 + (l->is ? 2e-6 * most : 0);
}

// The first step of a stated error: the fewest draws for 0.95 of the error that the head's pilot allows.
static void predict_search(const layer *l, int head, prediction *p) {
    const watched_head *x = &watched[head];
    model_search(x, 128, numbers(l, head, 0), &p->draw);
    output pilot = combine(l, head, &p->draw);
    double target = 0.95 * l->epsilon / (1 + l->epsilon) * norm_of(pilot.out, DIM);
    int S = model_plan(x, l->n_sized / 2, target, SL_STATED_CLT, l->delta, (int)l->c.reports[head].budget, rounding(l, head));
    p->budget = S ? S : l->n_sized, p->fallback = !S;
    if (S)
        model_search(x, S, numbers(l, head, 1), &p->draw);
    else
        model_take_all(x, &p->draw);
    set_step(x, &p->draw, p->draw.k, p->draw.n_heavy + p->draw.k, &p->step);
}

// kappa: what the layer carries; 0: nothing. At kappa a head takes its heavy rows and light / kappa others, at most 4 S rows of
// a budget and at most half of its rows of a stated error.
static void predict(const layer *l, int head, double kappa, prediction *p) {
    const watched_head *x = &watched[head];
    double most = l->certifies ? l->n_sized / 2.0 : 4 * l->S;
    *p = (prediction){.budget = l->S};
    if (l->n_sized == 0) return;
    if (kappa > 0) {
        double of_unit = fmin(kappa / x->unit, 0x1p62);
        model_draw_at(x, of_unit < 1 ? 1 : (uint64_t)of_unit, numbers(l, head, -1), &p->draw);
        double k = (double)p->draw.light / p->draw.kappa, rows = p->draw.n_heavy + k;
        set_step(x, &p->draw, k, fmin(rows, most), &p->step);
        p->budget = (int)p->step.rows;
        if (rows <= most) return;
        sl_threshold_step spared = p->step;
        if (l->certifies) {
            model_take_all(x, &p->draw);
            p->step = (sl_threshold_step){.total = spared.total, .rows = l->n_sized, .kappa = spared.kappa};
            p->step.spared_k = k, p->step.spared_B = spared.B;
            p->budget = l->n_sized, p->fallback = 1;
        } else {
            model_search(x, p->budget = 4 * l->S, numbers(l, head, -1), &p->draw);
            set_step(x, &p->draw, 0, p->draw.n_heavy + p->draw.k, &p->step);
            p->step.light = 0;
        }
    } else if (l->certifies) {
        predict_search(l, head, p);
    } else {
        model_search(x, l->S, numbers(l, head, -1), &p->draw);
        if (l->carries) set_step(x, &p->draw, p->draw.k, p->draw.n_heavy + p->draw.k, &p->step);
    }
}

static void check_same_step(const layer *l, int head, const sl_threshold_step *got, const sl_threshold_step *want,
                            double near) {
    NEAR(head, got->total, want->total, 1e-9);
    NEAR(head, got->rows, want->rows, 1e-9);
    NEAR(head, got->light, want->light, 1e-9);
    NEAR(head, got->k, want->k, 1e-9);
    NEAR(head, got->kappa, want->kappa, near);
    NEAR(head, got->B, want->B, 2 * near);
    NEAR(head, got->spared_k, want->spared_k, 1e-9);
    NEAR(head, got->spared_B, want->spared_B, 1e-9);
    NEAR(head, got->trace_squares, want->trace_squares, 1e-4 + 4 * near);
}

// santa-is widens kappa by (Z~ / Z^) max(1, |mu^| / m), and B by its square. B is unbounded where a page's scores
// are, unless every row was taken.
static void widen(const layer *l, int head, const output *o, int took_all, sl_threshold_step *s) {
    if (!l->is || !l->certifies || !l->n_sized) return;
    double by = exp2(watched[head].log2_total - o->log2_total) * fmax(1, norm_of(o->out, DIM) / size_of_mean(l, head));
    s->kappa *= by, s->B *= by * by;
    for (int page = 0; page < l->n_sized / SL_PAGE; page++)
        if (!took_all && score_bound(l, head, page) > 12) s->B = INFINITY;
}

// 1: every head attended to every row after its draw, because the layer's error is not certified. check_layer checks why.
static int is_repaired(const layer *l) {
    return l->certifies && sl_attn_chooses(&l->spec, "on-miss", "dense") && !l->c.reports[0].certified;
}

// Compares the rows of a head, and the output that they give.
static void check_draw(const layer *l, int head, const model_draw *d, const output *o) {
    const watched_head *x = &watched[head];
    const sl_attn_report *r = &l->c.reports[head];
    double size = 0, near = rounding(l, head);
    for (int j = 0; j < l->n; j++) {
        int count = j < l->n_sized ? d->count[j] : 1;
        if (x->count[j] != count)
            FAIL("%s, %d rows, position %u, head %d: %d draws of row %d, expected %d", l->of->attn, l->n, l->position, head,
                 x->count[j], j, count);
        if (count) NEAR(head, x->inv_pi[j], j < l->n_sized ? d->inv_pi[j] : 1, 1e-6);
        for (int c = 0; c < DIM && count; c++) size = fmax(size, fabs(sl_bf16_to_f32(values_of(l, head)[j][c])));
    }
    if (!is_repaired(l)) {
        CHECK_INT(r->samples, d->n + l->n - l->n_sized);
        CHECK_INT(r->v_rows, d->distinct + l->n - l->n_sized);
    }
    NEAR(head, r->ess, o->ess, 4 * near);
    for (int c = 0; c < DIM; c++)
        if (!(fabs(x->out[c] - o->out[c]) <= near * (size + norm_of(o->out, DIM))))
            FAIL("%s, position %u, head %d: output %d is %g, expected %g", l->of->attn, l->position, head, c, x->out[c],
                 o->out[c]);
}

// 1: the scores of the head are out of range, so it attends to every row and draws nothing.
static int is_exact(const layer *l, int head) {
    const sl_attn_report *r = &l->c.reports[head];
    if (watched[head].ran) return 0;
    CHECK(l->of->kinds[head] == 'x' && r->fallback == 1 && (int)r->v_rows == l->n && (int)r->samples == l->n);
    return 1;
}

// 1: |output| in fp32 is so small that it has few digits.
static int has_few_digits(double norm) {
    return norm > 0 && norm < 1e-37;
}

// Compares a head's draw, output and step with the model's. Returns the step: it equals the model's but for rounding, which
// must not add up over steps.
static sl_threshold_step check_head(const layer *l, int head, double kappa) {
    static prediction p;
    const watched_head *x = &watched[head];
    const sl_attn_report *r = &l->c.reports[head];
    if (is_exact(l, head)) return (sl_threshold_step){0};
    check_sizes(l, head);
    predict(l, head, kappa, &p);
    output o = combine(l, head, &p.draw);
    check_draw(l, head, &p.draw, &o);
    CHECK_INT(r->budget, p.budget);
    CHECK_INT(r->fallback, p.fallback || is_repaired(l));
    if (l->carries || l->certifies) NEAR(head, r->kappa, p.fallback ? 0 : (float)(p.draw.kappa * x->unit), 1e-6);
    check_same_step(l, head, &x->drawn, &p.step, 1e-9);
    widen(l, head, &o, p.fallback, &p.step);
    if (l->certifies && l->bound == SL_STATED_CHI2 && l->n_sized)
        p.step.trace_squares =
            pow(p.step.kappa, 4) * model_pairs(&p.draw, l->n_sized, values_of(l, head), l->is ? o.out : NULL);
    if (!has_few_digits(norm_of(o.out, DIM)) && !has_few_digits(l->norm_before[head]))
        check_same_step(l, head, &x->measured, &p.step, l->is ? 10 * rounding(l, head) : 1e-9);
    return x->measured;
}

// ---- what a layer states and carries ----

static double clamp(double x, double low, double high) {
    return fmin(fmax(x, low), high);
}

static void check_layer(const layer *l, const sl_threshold_step *s, double kappa) {
    const sl_threshold *got = &l->state->threshold;
    const sl_attn_report *r = l->c.reports;
    sl_threshold want = {
        .kappa = kappa, .margin = l->follows ? l->carried.margin : 0.8, .spread = l->follows ? l->carried.spread : 1};
    double b = 0, size = sqrt(s->squares);
    if (l->carries) {
        model_carry_budget(&want, s, HEADS * l->S);
    } else {
        model_rule rule = {l->bound, l->delta, l->epsilon, sl_attn_get(&l->spec, "aim")};
        b = model_carry_error(&want, s, &rule);
        CHECK_INT(r[0].certified, b <= l->epsilon / (1 + l->epsilon) * size);
    }
    for (int head = 0; head < HEADS && l->certifies; head++) {
        CHECK_INT(r[head].certified, r[0].certified);
        if (is_repaired(l)) {
            CHECK(r[head].fallback == 1 && (int)r[head].v_rows == l->n);
            CHECK(r[head].error_bound == 0 && r[head].stated_error == 0);
            continue;
        }
        NEAR(head, r[head].error_bound, b > 0 ? (float)(b / size) : 0, 1e-5);
        NEAR(head, r[head].stated_error, b == 0 ? 0 : b < size ? b / (size - b) : INFINITY, 1e-4 / fabs(1 - b / size));
    }
    NEAR(-1, got->margin, want.margin, 1e-9);
    NEAR(-1, got->spread, want.spread, 1e-9);
    NEAR(-1, got->kappa, want.kappa, 1e-5);
}

static void check_layer_step(const layer *l) {
    sl_threshold_step s = {0};
    double kappa = l->follows && !(l->carries && l->n <= 4 * l->S) ? l->carried.kappa : 0;
    for (int head = 0; head < HEADS; head++) {
        sl_threshold_step x = check_head(l, head, l->carries || l->certifies ? kappa : 0);
        s.total += x.total, s.rows += x.rows, s.light += x.light, s.k += x.k, s.B += x.B, s.trace_squares += x.trace_squares;
        s.spared_k += x.spared_k, s.spared_B += x.spared_B;
        if (x.kappa > s.kappa) s.kappa = x.kappa;
        for (int d = 0; d < DIM; d++) // before a repair
            s.squares += pow(watched[head].ran ? watched[head].out[d] : l->c.out[head * DIM + d], 2);
    }
    if (l->carries || l->certifies) check_layer(l, &s, kappa);
}

// ---- a stated error of every head ----

// Tries of santa-pps: the plan of a try has the norm of the estimate before it. Returns the number of tries, 4 after a
// fallback.
static int check_tries(const layer *l, int head) {
    static model_draw d;
    const watched_head *x = &watched[head];
    const sl_attn_report *r = &l->c.reports[head];
    double share = l->epsilon / (1 + l->epsilon), norm = l->norm_before[head], b = 0;
    int S = 1, tries = 0, budget = l->S, accepted = 0;
    output o;
    if (norm < 0) {
        model_search(x, 128, numbers(l, head, 0), &d);
        o = combine(l, head, &d), norm = norm_of(o.out, DIM);
    }
    for (int i = 1; i <= 3 && !accepted; i++) {
        S = model_plan(x, l->n / 2, (i == 1 ? 0.95 : 0.8) * share * norm, l->bound, l->delta / exp2(i),
                       i == (int)r->tries ? (int)r->budget : 0, 1e-6);
        if (S == 0) break;
        tries = i;
        model_search(x, budget = S, numbers(l, head, i), &d);
        o = combine(l, head, &d), norm = norm_of(o.out, DIM);
        b = model_bound(l->bound, l->delta / exp2(i), 1, d.kappa * x->unit, d.kappa * x->unit * (double)d.light * x->unit, d.k);
        accepted = b <= share * norm;
    }
    if (!accepted) model_take_all(x, &d), o = combine(l, head, &d);
    check_draw(l, head, &d, &o);
    CHECK_INT(r->tries, tries);
    CHECK_INT(r->budget, budget);
    CHECK_INT(r->fallback, !accepted);
    NEAR(head, r->error_bound, accepted && b > 0 ? b / norm : 0, 1e-5);
    return accepted ? tries : 4;
}

// ---- budgets over heads ----

// The draws that a head asks for at the threshold t of the layer. m is the output of the head in the step before. With draws in
// proportion to p |v| the demand follows from x_j = p_j |v_j| / |m|. With draws in proportion to p it follows from
// a = sqrt(sum p |v|^2 - |m|^2) / |m|.
static double demand(const layer *l, int head, double t) {
    const watched_head *x = &watched[head];
    double m = fmax(l->norm_before[head], 1e-30), want = 0, second = 0;
    if (!x->ran) return l->S;
    for (int j = 0; j < l->n; j++) {
        double size = (double)x->w[j] * x->unit / m;
        want += size >= t ? 1 : size / t, second += (double)x->w[j] * x->unit;
    }
    if (strncmp(l->of->attn, "santa-pps", 9)) want = sqrt(fmax(0, second - m * m)) / m / t;
    return clamp(want, fmax(1, l->S / 4.0), 4 * l->S);
}

// All draws are given away unless every head is at its limit. Largest remainders get the draws that rounding leaves.
static void check_split(const layer *l) {
    double low = -150, high = 150, want[HEADS], up = 1, down = 0;
    int left = HEADS * l->S, can_rise = 0;
    for (int i = 0; i < 100; i++) {
        double mid = (low + high) / 2, sum = 0;
        for (int head = 0; head < HEADS; head++) sum += demand(l, head, exp2(mid));
        *(sum > HEADS * l->S ? &low : &high) = mid;
    }
    for (int head = 0; head < HEADS; head++) {
        int S = watched[head].ran ? watched[head].S : (int)l->c.reports[head].budget;
        want[head] = l->follows ? demand(l, head, exp2(high)) : l->S;
        left -= S, can_rise += S < want[head] - 1e-6;
        if (!(S > want[head] - 1 - 1e-6 && S < want[head] + 1))
            FAIL("%s, position %u, head %d: %d draws, demand %g", l->of->attn, l->position, head, S, want[head]);
        double rest = want[head] - floor(want[head] + 1e-9);
        if (rest > 1e-6 && S > want[head]) up = fmin(up, rest);
        if (rest > 1e-6 && S < want[head]) down = fmax(down, rest);
        if (strncmp(l->of->attn, "santa-pps", 9) || !watched[head].ran) continue;
        static model_draw d;
        model_search(&watched[head], S, numbers(l, head, -1), &d);
        output o = combine(l, head, &d);
        check_draw(l, head, &d, &o);
        CHECK_INT(l->c.reports[head].budget, S);
    }
    CHECK(left == 0 || (left > 0 && !can_rise));
    CHECK(up >= down - 1e-6);
}

// ---- the cases ----

static int n_tries[5]; // heads by their number of tries

static void check_step(const layer *l) {
    int heads = l->epsilon > 0 && !l->certifies, keeps = l->carries || l->certifies || heads;
    if (sl_attn_has(&l->spec, "budget") && sl_attn_chooses(&l->spec, "budget", "variance")) {
        check_split(l), keeps = 1;
    } else if (!heads) {
        check_layer_step(l);
    }
    for (int head = 0; head < HEADS; head++) {
        if (heads && !is_exact(l, head)) check_sizes(l, head), n_tries[check_tries(l, head)]++;
        double out[DIM];
        for (int d = 0; d < DIM; d++) out[d] = l->c.out[head * DIM + d];
        if (keeps && !has_few_digits(norm_of(out, DIM))) NEAR(head, l->state->norm[head], norm_of(out, DIM), 1e-6);
    }
    if (keeps) CHECK_INT(l->state->threshold.next, l->position + 1);
}

// What the test changes in the state before a step: a spread below the step's own, margins near their limits, a small kappa, at
// which heads reach their limits, and a kappa above all sizes.
static void change_state(sl_threshold *t, int step) {
    static const double kappas[STEPS] = {1, 1, 0.02, 3000, 1, 0.12}, margins[STEPS] = {0, 1.99, 0, 0.0101, 0, 0.05};
    t->kappa *= kappas[step];
    if (step == 1) t->spread *= 0.05;
    if (margins[step] > 0) t->margin = margins[step];
}

static void run_scenarios(const scenario *of, int n) {
    static const uint32_t positions[STEPS] = {5, 6, 7, 8, 20, 21};
    for (int i = 0; i < n; i++) {
        uint64_t rng = test_seed + i;
        layer *l = layer_new(&of[i], rng);
        for (int step = 0; step < STEPS; step++) {
            change_state(&l->state->threshold, step);
            decode_step(l, positions[step], &rng);
            check_step(l);
        }
        layer_free(l);
    }
}

// Steps that follow one another, so b comes near the error that certifies a step, from both sides.
static void long_runs(void) {
    static const scenario of[] = {
        {"santa-pps:epsilon=0.3:delta=0.1:bound=clt", 400, "mmpsmmpm", "nnnn", 1},
        {"santa-pps:epsilon=0.3:delta=0.1:on-miss=dense", 400, "mmpsmmpm", "noon", 1},
        {"santa-is:proposal=int8:epsilon=0.4:delta=0.1", 500, "mmpsmmpm", "nnno", 1},
    };
    for (int i = 0; i < 3; i++) {
        uint64_t rng = test_seed + i;
        layer *l = layer_new(&of[i], rng);
        int certified = 0;
        for (uint32_t step = 0; step < 25; step++) {
            decode_step(l, 5 + step, &rng);
            check_step(l);
            certified += (int)l->c.reports[0].certified;
        }
        CHECK(certified > 5 && certified < 25);
        layer_free(l);
    }
}

static void carried_budgets(void) {
    static const scenario of[] = {
        {"santa-pps:S=16", 700, "fmpdlsmm", "nzev", 1},
        {"santa-pps:S=16", 1500, "fddddddd", "nnzo", 1},
        {"santa-pps:S=16:pps=sys", 700, "fmpdlxmm", "ozne", 1},
        {"santa-pps:S=32", 128, "fmpdlsmm", "nzeo", 1},
        {"santa-pps:S=32", 129, "fmpdlsmm", "nzeo", 1},
        {"santa-pps:S=16", 1, "fmpdlsmm", "nzev", 1},
        {"santa-pps:S=16", 65, "dddddddd", "nzen", 1},
        {"santa-pps:S=8", 600, "ffffffff", "vvvv", 1},
        {"santa-pps:S=8", 600, "mmmmffmm", "nnno", 1}, // a small kappa: every head is at its limit
        {"santa-pps:S=1", 600, "fmpdfmpd", "neoz", 1},
        {"santa-is:S=16:budget=carried", 700, "fmpdlsmm", "nzev", 1},
        {"santa-is:S=16:budget=carried", 1500, "fddddddd", "nnzo", 0.5},
        {"santa-is:S=16:budget=carried", 256, "fmpdlsmm", "nzev", 1},
    };
    run_scenarios(of, sizeof of / sizeof *of);
}

static void even_budgets(void) {
    static const scenario of[] = {
        {"santa-pps:S=16:budget=even", 700, "fmpdlsmm", "nzev", 1},
        {"santa-pps:S=700:budget=even", 700, "fmpdlsmm", "nzen", 1},
        {"santa-pps:S=50:budget=even:pps=sys", 33, "fmpdlxmm", "onez", 1},
        {"santa-is:S=16", 700, "fmpdlsmm", "nzev", 1},
        {"santa-is:S=300", 257, "fmpdlxmm", "nzev", 1},
        {"santa-is:S=40:proposal=int3", 900, "fmpmmsmm", "nnnn", 0.2},
        {"santa-is:S=5", 1, "fmpdlsmm", "nzev", 1},
    };
    run_scenarios(of, sizeof of / sizeof *of);
}

#define PPS "santa-pps:epsilon="
#define IS "santa-is:proposal=int8:epsilon="
static void stated_errors(void) {
    static const scenario of[] = {
        {PPS "0.2", 1500, "fmpdlsmm", "nnzo", 1},
        {PPS "0.3:delta=0.1:bound=clt", 1500, "mmpsmmpm", "nnnn", 1},
        {PPS "0.3:delta=0.2:bound=bernstein:aim=0.9", 1500, "fmpdmsmm", "nnno", 1},
        {PPS "0.2:bound=clt", 700, "dddddmdd", "nnnn", 1}, // fewer than 30 draws
        {PPS "0.3:bound=clt", 700, "dddfdddd", "nnnn", 1}, // and heads that take every row
        {PPS "0.02:bound=chi2", 700, "fmpdlxmm", "nzev", 1},
        {PPS "0.3:delta=0.2:bound=clt:on-miss=dense", 900, "fmpmmsmm", "nnno", 1},
        {PPS "0.2", 1, "fmpdlsmm", "nzev", 1},
        {PPS "0.5", 300, "ffffffff", "vvvv", 1},
        {PPS "0.6:delta=0.2", 1500, "mmmmmmmm", "nnon", 1},
        {IS "0.3:bound=clt", 1500, "fmpsmsmm", "nnno", 1},
        {IS "0.5", 1500, "mmmmmmmm", "nonn", 0.5},
        {IS "0.3:delta=0.1", 1500, "fmpdlsmm", "nzov", 1},
        {IS "0.5:delta=0.2", 900, "hmmmhsmm", "nnov", 1},
        {IS "0.5:delta=0.2", 900, "mmmmpmfm", "nnov", -600},
        {IS "0.3", 700, "dmdmdmdm", "zzzz", 3}, // outputs are 0, values are not
        {IS "0.4:on-miss=dense", 1281, "fmpmmsmm", "nnno", 1},
        {IS "0.3", 200, "fmpdlsmm", "nzev", 1},
    };
    run_scenarios(of, sizeof of / sizeof *of);
}

// Random steps and states, for the rules of threshold.h alone.
static double log_uniform(uint64_t *rng, double low, double high) {
    return low * pow(high / low, test_uniform(rng));
}

static void random_rules(void) {
    uint64_t rng = test_seed;
    for (int i = 0; i < 50000; i++) {
        model_rule r = {(sl_stated_bound)(i % 3), i / 3 % 2 ? 0.05 : 0.1, log_uniform(&rng, 0.01, 1),
                        0.5 + 0.49 * test_uniform(&rng)};
        sl_stated stated = sl_stated_of(r.delta, r.bound);
        sl_threshold got = {.kappa = i % 5 ? log_uniform(&rng, 1e-3, 1) : 0,
                            .margin = log_uniform(&rng, 0.01, 2),
                            .spread = log_uniform(&rng, 0.01, 1)},
                     want = got;
        sl_threshold_step s = {.total = log_uniform(&rng, 0.01, 1e3),
                               .rows = log_uniform(&rng, 1, 1e3),
                               .kappa = log_uniform(&rng, 1e-3, 1),
                               .squares = log_uniform(&rng, 0.01, 1e3)};
        if (i % 7) s.k = log_uniform(&rng, 3, 300), s.light = s.kappa * s.k, s.B = s.kappa * s.light;
        if (i % 4) s.trace_squares = log_uniform(&rng, 1e-3, 2) * s.B * s.B;
        if (i % 2) s.spared_k = log_uniform(&rng, 3, 300), s.spared_B = s.kappa * s.kappa * s.spared_k;
        if (i / 2 % 4 == 0) {
            sl_threshold_budget(&got, &s, 100);
            model_carry_budget(&want, &s, 100);
        } else {
            double b = sl_threshold_error(&got, &s, &stated, r.epsilon / (1 + r.epsilon), r.aim);
            CHECK_NEAR(b / fmax(model_carry_error(&want, &s, &r), 1e-300), b > 0, 1e-6);
        }
        if (!(fabs(got.kappa - want.kappa) <= 1e-6 * want.kappa && fabs(got.margin - want.margin) <= 1e-9 &&
              fabs(got.spread - want.spread) <= 1e-9))
            FAIL("step %d: kappa %g, margin %g, spread %g; expected %g, %g, %g", i, got.kappa, got.margin, got.spread,
                 want.kappa, want.margin, want.spread);
    }
}

#define EACH "santa-pps:certify=head:epsilon="
static void stated_errors_of_heads(void) {
    static const scenario of[] = {
        {EACH "0.3:delta=0.2:bound=clt", 1500, "fmmdmmmp", "nnnn", 1},
        {EACH "0.2:bound=bernstein", 1500, "fmpxmsmm", "nnzo", 1},
        {EACH "0.1:bound=chi2", 700, "fmpdlsmm", "nzev", 1},
        {EACH "0.3", 1, "fmpdlsmm", "nzev", 1},
        {EACH "0.2:bound=clt", 300, "dddddddd", "zzzz", 1}, // the row of all mass is 0
        {EACH "0.5:delta=0.2:bound=clt", 1500, "pppppppp", "nznz", 0.6},
        {EACH "0.6:delta=0.2:bound=bernstein", 1500, "pmpmpmpm", "zzzz", 0.7},
    };
    memset(n_tries, 0, sizeof n_tries);
    run_scenarios(of, sizeof of / sizeof *of);
    CHECK(n_tries[1] > 0 && n_tries[2] > 0 && n_tries[4] > 0);
}

static void budgets_by_variance(void) {
    static const scenario of[] = {
        {"santa-pps:S=32:budget=variance", 1500, "fmpldsmm", "nzen", 1},
        {"santa-pps:S=30:budget=variance", 700, "fdddxddd", "nnnn", 1},
        {"santa-pps:S=7:budget=variance", 700, "mmmmfmmm", "nzno", 1},
        {"santa-pps:S=8:budget=variance", 700, "ddpdpdpd", "nnnn", 1},
        {"santa-pps:S=8:budget=variance", 700, "dmdmdmdm", "zzzz", 3}, // outputs are 0, values are not
        {"santa-pps:S=1:budget=variance", 700, "fmpldsmm", "nzen", 1},
        {"santa-pps:S=32:budget=variance", 20, "fmpldsmm", "nzev", 1},
        {"santa-pps:S=7:budget=variance", 20, "dddfdddd", "nnnn", 1}, // a head with more heavy rows than S
        {"santa:S=32:budget=variance", 1500, "fmpxdsmm", "nzen", 1},
        {"santa-sys:S=9:budget=variance", 700, "ffffffff", "nzno", 1},
        {"santa-prop:S=2:budget=variance", 700, "dddddddf", "nnnn", 1},
    };
    run_scenarios(of, sizeof of / sizeof *of);
}

static const test_case cases[] = {
    {"carried-budgets", 0, carried_budgets},
    {"even-budgets", 0, even_budgets},
    {"stated-errors", 0, stated_errors},
    {"long-runs", 0, long_runs},
    {"random-rules", 0, random_rules},
    {"stated-errors-of-heads", 0, stated_errors_of_heads},
    {"budgets-by-variance", 0, budgets_by_variance},
    {0},
};
const test_suite suite_formulas = {"formulas", cases};
