// attention/draw_verified.c - vAttention (Desai et al.): rows that are always taken (sink, window, predicted top-k) and, of the
// residual n_s rows, as many drawn uniformly without replacement as an (epsilon, delta) error of the denominator D = sum e^s,
// the numerator N = sum e^s v or the output N / D needs (their Algorithm 1, section 4).
//
// A base sample estimates the residual's spread; the sample that follows is a longer prefix of the same random permutation.
// e^s is measured in units of the total (oracle) or of the largest fixed or sampled row (quest): budgets do not depend on it.
#include "attention/stages.h"

#include <math.h>
#include <string.h>

enum { FREE, FIXED, DRAWN }; // of a row

typedef struct verified {
    sl_head *x;
    const sl_attn_spec *spec;
    int n, n_fixed, n_residual;
    int exact, verify, hoeffding; // of the specification
    int32_t *residual;            // [n_residual], permuted
    uint8_t *mark;                // [n]
    double shift;                 // refined scores are measured from here
    double hi;                    // hoeffding: log2 of what no residual row's e^s exceeds
    double D, N;                  // estimates, the fixed part included; N: |N|
    double sigma;                 // standard deviation of e^s over the residual
    double trace;                 // trace of the covariance of e^s v over it
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
    if (f->hoeffding) f->hi = largest_left(&x->weights, x->draws.row, n);
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

// The fixed rows, then the first m of the permutation, into draws.row; their e^s into x->coef.
static void take(verified *f, int m) {
    sl_head *x = f->x;
    double total = (double)sl_weights_total(&x->weights);
    x->draws.n = 0;
    for (int j = 0; j < f->n; j++)
        if (f->mark[j] == FIXED) x->draws.row[x->draws.n++] = j;
    for (int i = 0; i < m; i++) x->draws.row[x->draws.n++] = f->residual[i];
    if (!f->exact) sl_refine(x);
    f->shift = -INFINITY;
    for (int i = 0; !f->exact && i < x->draws.n; i++) f->shift = fmax(f->shift, x->score[i]);
    for (int i = 0; i < x->draws.n; i++)
        x->coef[i] =
            (float)(f->exact ? (double)sl_weights_mass(&x->weights, x->draws.row[i]) / total : exp2(x->score[i] - f->shift));
}

typedef struct totals {
    double e, squares, ev_squares; // sum e^s, (e^s)^2, |e^s v|^2; sum e^s v is in x->out
} totals;

static totals sums(const verified *f, int from, int n) { // of draws.row[from..from + n)
    sl_head *x = f->x;
    const sl_group *g = x->group;
    totals t = {0};
    for (int i = from; i < from + n; i++) {
        int j = x->draws.row[i];
        const bf16 *v = x->rows[i] = sl_v_page(g, j / SL_PAGE) + (size_t)(j % SL_PAGE) * g->head_dim;
        double norm = 0, own = x->coef[i];
        for (int c = 0; c < g->head_dim; c++) norm += (double)sl_bf16_to_f32(v[c]) * sl_bf16_to_f32(v[c]);
        t.e += own, t.squares += own * own, t.ev_squares += own * own * norm;
    }
    g->kernels->gather(x->rows + from, x->coef + from, n, g->head_dim, x->out);
    return t;
}

static void estimate(verified *f, int m) {
    sl_head *x = f->x;
    int dim = x->group->head_dim;
    double N[512], own = 0, all = 0;
    take(f, m);
    totals fixed = sums(f, 0, f->n_fixed);
    for (int c = 0; c < dim; c++) N[c] = x->out[c];
    totals t = sums(f, f->n_fixed, m);
    for (int c = 0; c < dim; c++) {
        double sum = x->out[c];
        own += sum * sum / m;
        N[c] += sum * f->n_residual / m;
        all += N[c] * N[c];
    }
    f->D = fixed.e + t.e * f->n_residual / m;
    f->N = sqrt(all);
    f->sigma = sqrt(fmax(0, (t.squares - t.e * t.e / m) / (m - 1)));
    f->trace = fmax(0, (t.ev_squares - own) / (m - 1));
}

// ---- how many rows ----

static double square(double x) {
    return x * x;
}

// Largest |v| of all rows.
static double largest_norm(const verified *f) {
    const sl_group *g = f->x->group;
    bf16 norms[SL_PAGE], most = 0;
    for (int page = 0; page * SL_PAGE < f->n; page++) {
        sl_norms_of_page(g, page, norms);
        for (int j = 0; j < sl_page_rows(g->kv, page); j++) most = norms[j] > most ? norms[j] : most;
    }
    return sl_bf16_to_f32(most);
}

enum { DENOMINATOR, NUMERATOR, OUTPUT };

// Rows for a relative error of 1: for epsilon, 1 / epsilon^2 times as many.
// Central limit theorem: half the interval of n_s rows' mean from b draws is z sigma / sqrt(b).
static double clt_budget(const verified *f, double delta) {
    double z = sl_normal_quantile(1 - delta / 2), n = f->n_residual, best = INFINITY;
    if (f->verify == DENOMINATOR) return square(z * n * f->sigma / f->D);
    if (f->verify == NUMERATOR) return square(z * n * sqrt(f->trace) / f->N);
    for (int i = 1; i < 50; i++) { // delta split between the two
        double part = delta * i / 50, A = sl_normal_quantile(1 - part / 2) * f->sigma / f->D;
        double C = sl_normal_quantile(1 - (delta - part) / 2) * sqrt(f->trace) / f->N;
        best = fmin(best, square(2 * n * (A + C)));
    }
    return best;
}

// Hoeffding, with e^s in [0, hi] certified by the prediction. The output takes a quarter of epsilon and half of delta for each
// of numerator and denominator: (e1 + e2) / (1 - e2) <= 2 (e1 + e2) (their Lemma 4.2).
static double hoeffding_budget(const verified *f, int verify, double delta) {
    double n = f->n_residual, log_term = log(2 / delta);
    double hi =
        f->exact ? exp2(f->hi) / sl_weights_value(&f->x->weights, sl_weights_total(&f->x->weights)) : exp2(f->hi - f->shift);
    if (verify == DENOMINATOR) return square(n * hi / f->D) * log_term / 2;
    if (verify == NUMERATOR) return 2 * square(n * hi * largest_norm(f) / f->N) * log_term;
    return 16 * fmax(hoeffding_budget(f, DENOMINATOR, delta / 2), hoeffding_budget(f, NUMERATOR, delta / 2));
}

// How many rows, and the relative error that the formula gives for as many: at most epsilon, less where the base sample is the
// larger. Drawn without replacement: variances shrink by 1 - b / n_s. Hoeffding goes without: no such factor is proven for N.
static int rows_needed(const verified *f, int base, double *achieved) {
    double epsilon = sl_attn_get(f->spec, "epsilon"), delta = sl_attn_get(f->spec, "delta"), n = f->n_residual;
    double unit = f->hoeffding ? hoeffding_budget(f, f->verify, delta) : clt_budget(f, delta), b = unit / square(epsilon);
    if (!f->hoeffding) b /= 1 + b / n;
    *achieved = 0;
    if (!(b < n)) return f->n_residual; // nor where D or |N| is zero or no number
    int rows = (int)ceil(b) > base ? (int)ceil(b) : base;
    if (rows < f->n_residual) *achieved = sqrt(unit * (1.0 / rows - (f->hoeffding ? 0 : 1 / n)));
    return rows;
}

// ---- the draw ----

static void run(sl_head *x) {
    const sl_attn_spec *spec = x->group->args->spec;
    verified f = {.x = x, .spec = spec, .n = x->group->kv->n_kv, .exact = sl_composition_of(spec).propose->exact};
    double achieved = 0; // of all rows
    f.verify = (int)sl_attn_get(spec, "verify"), f.hoeffding = sl_attn_get(spec, "bound") == 1;
    f.residual = (int32_t *)x->draws.scratch;
    f.mark = (uint8_t *)(f.residual + f.n);
    fix_rows(&f);
    int b = (int)ceil(sl_attn_get(spec, "base") * f.n_residual);
    b = b < 2 ? 2 : b;
    if (b < f.n_residual) {
        permute(&f, 0, b);
        estimate(&f, b);
        int more = rows_needed(&f, b, &achieved);
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
    x->report->error_bound = (float)achieved;
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
