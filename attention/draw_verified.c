// attention/draw_verified.c - vAttention (Desai et al.): rows that are always taken (sink, window, predicted top-k) and, of the
// residual n_s rows, as many drawn uniformly without replacement as an (epsilon, delta) error of the denominator D = sum e^s,
// the numerator N = sum e^s v or the output N / D needs (their Algorithm 1, section 4).
//
// A base sample estimates the residual's spread; the sample that follows is a longer prefix of the same random permutation.
// e^s is measured in units of the total (oracle) or of the largest fixed row (quest): budgets do not depend on it.
#include "attention/stages.h"

#include <math.h>
#include <string.h>

enum { FREE, FIXED, DRAWN }; // of a row

typedef struct verified {
    sl_head *x;
    const sl_attn_spec *spec;
    int n, n_fixed, n_residual;
    int32_t *residual; // [n_residual], permuted
    uint8_t *mark;     // [n]
    double shift;      // refined scores are measured from here
    double hi;         // no residual row's e^s exceeds it
    double D, N;       // estimates, the fixed part included; N: |N|
    double sigma;      // standard deviation of e^s over the residual
    double trace;      // trace of the covariance of e^s v over it
} verified;

// ---- rows that are always taken ----

static void fix_row(verified *f, int j) {
    if (f->mark[j] == FIXED) return;
    f->mark[j] = FIXED;
    f->n_fixed++;
}

// The largest entry of the weights that is not among rows[0..n), as log2; for a bound rounded to bf16, not below it.
static double largest_left(const sl_weights *wt, const int32_t *rows, int n) {
    double most = -INFINITY;
    for (int j = 0, i = 0; j < wt->n; j++) {
        if (i < n && rows[i] == j) {
            i++;
            continue;
        }
        if (wt->w[j]) most = fmax(most, log2(sl_bf16_to_f32(wt->w[j])) + wt->ref[j / SL_BLOCK]);
    }
    return most + log2(1 + 0x1p-8);
}

static void fix_rows(verified *f) {
    sl_head *x = f->x;
    int unit = sl_composition_of(f->spec).propose->unit, sink = (int)sl_attn_get(f->spec, "sink");
    int window = (int)sl_attn_get(f->spec, "window"), k = (int)ceil(sl_attn_get(f->spec, "top") * x->weights.n);
    int n = k ? sl_weights_largest(&x->weights, k, x->draws.row) : 0;
    f->hi = largest_left(&x->weights, x->draws.row, n);
    memset(f->mark, FREE, f->n);
    for (int i = 0; i < n; i++)
        for (int j = x->draws.row[i] * unit; j < (x->draws.row[i] + 1) * unit && j < f->n; j++) fix_row(f, j);
    for (int j = 0; j < sink && j < f->n; j++) fix_row(f, j);
    for (int j = f->n - window > 0 ? f->n - window : 0; j < f->n; j++) fix_row(f, j);
    f->n_residual = 0;
    for (int j = 0; j < f->n; j++)
        if (f->mark[j] == FREE) f->residual[f->n_residual++] = j;
}

// ---- the permutation ----

static void permute(verified *f, int from, int to) { // places [from, to): Fisher-Yates
    for (int i = from; i < to; i++) {
        uint64_t u = f->x->u.next(f->x->u.ctx, (uint32_t)i);
        int other = i + (int)((unsigned __int128)u * (unsigned)(f->n_residual - i) >> 64);
        int32_t row = f->residual[i];
        f->residual[i] = f->residual[other], f->residual[other] = row;
    }
}

// ---- what the base sample says ----

// e^s of draws.row[0..draws.n) into x->coef.
static void exponentials(verified *f) {
    sl_head *x = f->x;
    int exact = sl_composition_of(f->spec).propose->exact;
    if (!exact) sl_refine(x);
    double total = exact ? (double)sl_weights_total(&x->weights) : 1;
    for (int i = 0; !exact && isinf(f->shift) && i < x->draws.n; i++) f->shift = fmax(f->shift, x->score[i]);
    for (int i = 0; i < x->draws.n; i++)
        x->coef[i] =
            (float)(exact ? (double)sl_weights_mass(&x->weights, x->draws.row[i]) / total : exp2(x->score[i] - f->shift));
}

static void take(verified *f, int fixed, int m) { // draws.row: the fixed rows, or the first m of the permutation
    sl_head *x = f->x;
    x->draws.n = 0;
    for (int j = 0; fixed && j < f->n; j++)
        if (f->mark[j] == FIXED) x->draws.row[x->draws.n++] = j;
    for (int i = 0; !fixed && i < m; i++) x->draws.row[x->draws.n++] = f->residual[i];
    exponentials(f);
}

// sum e^s v into x->out, sum e^s and sum (e^s |v|)^2.
static void sums(const verified *f, double *e, double *squares, double *ev_squares) {
    sl_head *x = f->x;
    const sl_group *g = x->group;
    *e = *squares = *ev_squares = 0;
    for (int i = 0; i < x->draws.n; i++) {
        int j = x->draws.row[i];
        const bf16 *v = x->rows[i] = sl_v_page(g, j / SL_PAGE) + (size_t)(j % SL_PAGE) * g->head_dim;
        double norm = 0, own = x->coef[i];
        for (int c = 0; c < g->head_dim; c++) norm += (double)sl_bf16_to_f32(v[c]) * sl_bf16_to_f32(v[c]);
        *e += own, *squares += own * own, *ev_squares += own * own * norm;
    }
    g->kernels->gather(x->rows, x->coef, x->draws.n, g->head_dim, x->out);
}

static void estimate(verified *f, int m) {
    sl_head *x = f->x;
    int dim = x->group->head_dim;
    double e, squares, ev_squares, fixed_e, unused, N[512], own = 0, all = 0;
    f->shift = -INFINITY;
    take(f, 1, 0);
    sums(f, &fixed_e, &unused, &unused);
    for (int c = 0; c < dim; c++) N[c] = x->out[c];
    take(f, 0, m);
    sums(f, &e, &squares, &ev_squares);
    for (int c = 0; c < dim; c++) {
        double sum = x->out[c];
        own += sum * sum / m;
        N[c] += sum * f->n_residual / m;
        all += N[c] * N[c];
    }
    f->D = fixed_e + e * f->n_residual / m;
    f->N = sqrt(all);
    f->sigma = sqrt(fmax(0, (squares - e * e / m) / (m - 1)));
    f->trace = fmax(0, (ev_squares - own) / (m - 1));
}

// ---- how many rows ----

static double square(double x) {
    return x * x;
}

// Largest |v| of all rows.
static double largest_norm(const verified *f) {
    const sl_group *g = f->x->group;
    float norms[SL_PAGE], most = -INFINITY;
    for (int page = 0; page * SL_PAGE < f->n; page++) {
        const float *from = norms;
        if (page < sl_kv_n_built(g->kv))
            from = sl_kv_extra(g->kv, (sl_kv_need){&sl_page_norms, 0}, page, g->h);
        else
            sl_log_norms(sl_v_page(g, page), sl_page_rows(g->kv, page), g->head_dim, norms);
        for (int j = 0; j < sl_page_rows(g->kv, page); j++) most = fmaxf(most, from[j]);
    }
    return exp2(most);
}

enum { DENOMINATOR, NUMERATOR, OUTPUT };

// Central limit theorem: half the interval of n_s rows' mean from b draws is z sigma / sqrt(b).
static double clt_budget(const verified *f, int verify, double epsilon, double delta) {
    double z = sl_normal_quantile(1 - delta / 2), n = f->n_residual, best = INFINITY;
    if (verify == DENOMINATOR) return square(z * n * f->sigma / (epsilon * f->D));
    if (verify == NUMERATOR) return square(z * n * sqrt(f->trace) / (epsilon * f->N));
    for (int i = 1; i < 50; i++) { // delta split between the two
        double part = delta * i / 50, A = sl_normal_quantile(1 - part / 2) * f->sigma / f->D;
        double C = sl_normal_quantile(1 - (delta - part) / 2) * sqrt(f->trace) / f->N;
        best = fmin(best, square(2 * n * (A + C) / epsilon));
    }
    return best;
}

// Hoeffding, with e^s in [0, hi] certified by the prediction. The output takes a quarter of epsilon and half of delta for each
// of numerator and denominator: (e1 + e2) / (1 - e2) <= 2 (e1 + e2) (their Lemma 4.2).
static double hoeffding_budget(const verified *f, int verify, double epsilon, double delta) {
    double n = f->n_residual, log_term = log(2 / delta);
    double hi = sl_composition_of(f->spec).propose->exact
                    ? exp2(f->hi) / sl_weights_value(&f->x->weights, sl_weights_total(&f->x->weights))
                    : exp2(f->hi - f->shift);
    if (verify == DENOMINATOR) return square(n * hi / (epsilon * f->D)) * log_term / 2;
    if (verify == NUMERATOR) return 2 * square(n * hi * largest_norm(f) / (epsilon * f->N)) * log_term;
    return fmax(hoeffding_budget(f, DENOMINATOR, epsilon / 4, delta / 2),
                hoeffding_budget(f, NUMERATOR, epsilon / 4, delta / 2));
}

static int rows_needed(const verified *f, int base) {
    int verify = (int)sl_attn_get(f->spec, "verify"), hoeffding = sl_attn_get(f->spec, "bound") == 1;
    double epsilon = sl_attn_get(f->spec, "epsilon"), delta = sl_attn_get(f->spec, "delta");
    double b = hoeffding ? hoeffding_budget(f, verify, epsilon, delta) : clt_budget(f, verify, epsilon, delta);
    if (!hoeffding) b /= 1 + b / f->n_residual; // drawn without replacement
    if (!(b < f->n_residual)) return f->n_residual;
    return (int)ceil(b) > base ? (int)ceil(b) : base;
}

// ---- the draw ----

static void run(sl_head *x) {
    verified f = {.x = x, .spec = x->group->args->spec, .n = x->group->kv->n_kv};
    f.residual = (int32_t *)x->draws.scratch;
    f.mark = (uint8_t *)(f.residual + f.n);
    fix_rows(&f);
    int b = (int)ceil(sl_attn_get(f.spec, "base") * f.n_residual);
    b = b < 2 ? 2 : b;
    if (b < f.n_residual) {
        permute(&f, 0, b);
        estimate(&f, b);
        int more = rows_needed(&f, b);
        if (more < f.n_residual) permute(&f, b, more);
        b = more;
    }
    if (b > f.n_residual) b = f.n_residual;
    for (int i = 0; i < b; i++) f.mark[f.residual[i]] = DRAWN;
    sl_draws_clear(&x->draws);
    for (int j = 0; j < f.n; j++)
        if (f.mark[j] != FREE) sl_draws_add(&x->draws, j, f.mark[j] == FIXED ? 1 : (float)f.n_residual / (float)b);
    x->report->budget = (uint32_t)b;
    x->report->tries = 1;
}

static int needs(const sl_attn_spec *spec, sl_kv_need *out) {
    *out = (sl_kv_need){&sl_page_norms, 0};
    return sl_attn_get(spec, "bound") == 1 && sl_attn_get(spec, "verify") != DENOMINATOR;
}
static int no_budget(const sl_attn_spec *spec, int n_kv) {
    (void)spec, (void)n_kv;
    return 0;
}
static size_t capacity(const sl_attn_spec *spec, int n_kv) {
    (void)spec;
    return n_kv;
}
static size_t scratch(const sl_attn_spec *spec, int n_kv) { // residual and mark
    (void)spec;
    return ((size_t)n_kv * 5 + 7) / 8;
}

const sl_draw sl_draw_verified = {.needs = needs, .budget = no_budget, .capacity = capacity, .scratch = scratch, .run = run};
