// attention/stages/draw_verified.c - the draw of vAttention ("vAttention: Verified Sparse Attention", Algorithm 1 and section
// 4).
//
// Fixed rows are always taken: sink, window and predicted top-k. The other n_s rows are the residual. The draw takes b of them
// uniformly without replacement. b follows from an (epsilon, delta) error of the denominator D = sum e^s, the numerator N = sum
// e^s v or the output N / D.
//
// A base sample estimates the variance of the residual. It is a prefix of a random permutation; the sample of b rows is a
// longer prefix of the same permutation. e^s is measured in units of the total mass (oracle) or of the largest fixed or sampled
// row (quest, int4). The number of rows does not depend on this unit.
//
// There are three bounds:
//   clt        (the paper's) takes moments of the base sample as moments of the residual. It exceeds delta
//              on heavy tails of e^s or of e^s v, where a few rows that are not in the base sample have most of
//              the variance. The reported kurtosis warns of tails that the base sample shows. A base sample that
//              has none of the large rows gives no warning.
//   hoeffding  uses certified ranges, and D and |N| of the base sample.
//   bernstein  uses certified ranges, and bounds D and |N| too. It holds for every tail.
#include "attention/budgets/bernstein.h"
#include "attention/stages/stages.h"
#include "base/quantile.h"

#include <math.h>
#include <string.h>

enum { FREE, FIXED, DRAWN }; // of a row

typedef struct verified {
    sl_head *x;
    const sl_attn_spec *spec;
    int n, n_fixed, n_residual;
    int exact, verify, bound; // of the specification
    int32_t *residual;        // [n_residual], permuted
    uint8_t *mark;            // [n]
    double shift;             // the largest refined score: refined e^s are 2^(score - shift)
    double hi;                // log2 of a bound on e^s of every residual row; unused by clt
    double D, N;              // estimates of D and |N|, with the fixed rows
    double sigma;             // estimate: standard deviation of e^s over the residual
    double trace;             // estimate: trace of the covariance of e^s v over the residual
    sl_bernstein base;        // sums over the base sample
} verified;

// ---- fixed rows ----

static void fix_row(verified *f, int j) {
    if (f->mark[j] == FIXED) return;
    f->mark[j] = FIXED;
    f->n_fixed++;
}

// log2 of an upper bound on e^s of all rows that are not in rows[0..n). The factor 1 + 2^-8 covers the rounding to bf16. A
// score from 4-bit keys can lie below the exact score by the bound of its page.
static double largest_left(const sl_head *x, int quantised, const int32_t *rows, int n) {
    const sl_masses *masses = &x->masses;
    double most = -INFINITY;
    for (int j = 0, i = 0; j < masses->n; j++) {
        if (i < n && rows[i] == j) {
            i++;
            continue;
        }
        double own = masses->stored[j] ? log2(sl_bf16_to_f32(masses->stored[j])) : -133; // smaller numbers round to 0
        if (masses->stored[j] || quantised)
            most = fmax(most, own + masses->ref[j / SL_BLOCK] + (quantised ? sl_quantised_bound(x, j / SL_PAGE) : 0));
    }
    return most + log2(1 + 0x1p-8);
}

static void fix_rows(verified *f) {
    sl_head *x = f->x;
    const sl_proposal *propose = sl_composition_of(f->spec).propose;
    int unit = propose->unit, sink = (int)sl_attn_get(f->spec, "sink");
    int window = (int)sl_attn_get(f->spec, "window"), k = (int)ceil(sl_attn_get(f->spec, "top") * x->masses.n);
    int n = k ? sl_masses_largest(&x->masses, k, x->draws.row) : 0;
    if (f->bound != SL_BOUND_CLT) f->hi = largest_left(x, propose == &sl_propose_quantised, x->draws.row, n);
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

static void permute(verified *f, int from, int to) { // positions [from, to) of the permutation: Fisher-Yates
    for (int i = from; i < to; i++) {
        uint64_t u = f->x->u.next(f->x->u.ctx, (uint32_t)i);
        int other = i + (int)((unsigned __int128)u * (unsigned)(f->n_residual - i) >> 64);
        int32_t row = f->residual[i];
        f->residual[i] = f->residual[other], f->residual[other] = row;
    }
}

// ---- estimates of the base sample ----

// Writes the fixed rows and the first m rows of the permutation into draws.row, and their e^s into x->coef.
static void take(verified *f, int m) {
    sl_head *x = f->x;
    x->draws.n = 0;
    for (int j = 0; j < f->n; j++)
        if (f->mark[j] == FIXED) x->draws.row[x->draws.n++] = j;
    for (int i = 0; i < m; i++) x->draws.row[x->draws.n++] = f->residual[i];
    if (!f->exact) sl_refine(x);
    f->shift = -INFINITY;
    for (int i = 0; !f->exact && i < x->draws.n; i++) f->shift = fmax(f->shift, x->score[i]);
    for (int i = 0; i < x->draws.n; i++)
        x->coef[i] = (float)(f->exact ? sl_masses_probability(&x->masses, x->draws.row[i]) : exp2(x->score[i] - f->shift));
}

typedef struct totals {
    double e, squares, cubes, fourths; // sum e^s and its powers
    double ev_squares, ev_fourths;     // sum |e^s v|^2 and |e^s v|^4; sum e^s v is in x->out
} totals;

static totals sums(const verified *f, int from, int n) { // of draws.row[from..from + n)
    sl_head *x = f->x;
    const sl_group *g = x->group;
    totals t = {0};
    for (int i = from; i < from + n; i++) {
        int j = x->draws.row[i];
        x->rows[i] = sl_kv_row_at(sl_v_page(g, j / SL_PAGE), g->head_dim, j % SL_PAGE);
        double norm = 0, own = x->coef[i];
        for (int c = 0; c < g->head_dim; c++) {
            double v = sl_kv_number(x->rows[i], g->kv->formats.v, c);
            norm += v * v;
        }
        double square = own * own;
        t.e += own, t.squares += square, t.cubes += square * own, t.fourths += square * square;
        t.ev_squares += square * norm, t.ev_fourths += square * norm * square * norm;
    }
    g->kernels->gather(g->kv->formats.v, x->rows + from, x->coef + from, n, g->head_dim, x->out);
    return t;
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

static double certified_most(const verified *f) { // upper bound on e^s of every residual row
    const sl_masses *masses = &f->x->masses;
    return f->exact ? exp2(f->hi - masses->top + 38) / (double)sl_masses_total(masses) : exp2(f->hi - f->shift);
}

static void report_tail(const verified *f, const totals *t, int m) {
    double kurtosis = sl_tail_kurtosis(f->verify, sl_kurtosis(t->e, t->squares, t->cubes, t->fourths, m),
                                       sl_vector_kurtosis(t->ev_squares, t->ev_fourths, m));
    f->x->report->kurtosis = (float)kurtosis;
    f->x->report->heavy_tail = sl_is_heavy_tail(kurtosis, m);
}

static double at_least_0(double x) { // NaN stays NaN, and then every row is taken
    return x < 0 ? 0 : x;
}

static void estimate(verified *f, int m) {
    sl_head *x = f->x;
    int dim = x->group->head_dim;
    double N[512], own = 0, all = 0, sampled = 0;
    take(f, m);
    totals fixed = sums(f, 0, f->n_fixed);
    for (int c = 0; c < dim; c++) N[c] = x->out[c];
    totals t = sums(f, f->n_fixed, m);
    for (int c = 0; c < dim; c++) {
        double sum = x->out[c];
        own += sum * sum / m;
        sampled += sum * sum;
        N[c] += sum * f->n_residual / m;
        all += N[c] * N[c];
    }
    f->D = fixed.e + t.e * f->n_residual / m;
    f->N = sqrt(all);
    f->sigma = sqrt(at_least_0((t.squares - t.e * t.e / m) / (m - 1)));
    f->trace = at_least_0((t.ev_squares - own) / (m - 1));
    report_tail(f, &t, m);
    if (f->bound == SL_BOUND_CLT) return;
    f->base = (sl_bernstein){.n = f->n_residual,
                             .m = m,
                             .e = t.e,
                             .squares = t.squares,
                             .ev_squares = t.ev_squares,
                             .ev = sqrt(sampled),
                             .fixed = fixed.e,
                             .numerator = f->N,
                             .most = certified_most(f),
                             .norm = f->verify ? largest_norm(f) : 0};
}

// ---- how many rows ----

static double square(double x) {
    return x * x;
}

// Both functions return the rows for a relative error of 1. A relative error epsilon needs 1 / epsilon^2 times as many rows.

// Central limit theorem: the mean of n_s rows from b draws has a confidence interval of half-width z sigma / sqrt(b).
static double clt_budget(const verified *f, double delta) {
    double z = sl_normal_quantile(1 - delta / 2), n = f->n_residual, best = INFINITY;
    if (f->verify == SL_VERIFY_DENOMINATOR) return square(z * n * f->sigma / f->D);
    if (f->verify == SL_VERIFY_NUMERATOR) return square(z * n * sqrt(f->trace) / f->N);
    for (int i = 1; i < 50; i++) { // delta is split between numerator and denominator
        double part = delta * i / 50, A = sl_normal_quantile(1 - part / 2) * f->sigma / f->D;
        double C = sl_normal_quantile(1 - (delta - part) / 2) * sqrt(f->trace) / f->N;
        best = fmin(best, square(2 * n * (A + C)));
    }
    return best;
}

// Hoeffding, with e^s in [0, hi]. The prediction certifies hi. For the output, numerator and denominator get a quarter of
// epsilon and half of delta each, because (e1 + e2) / (1 - e2) <= 2 (e1 + e2) (Lemma 4.2 of the paper).
static double hoeffding_budget(const verified *f, int verify, double delta) {
    double n = f->n_residual, log_term = log(2 / delta), hi = f->base.most;
    if (verify == SL_VERIFY_DENOMINATOR) return square(n * hi / f->D) * log_term / 2;
    if (verify == SL_VERIFY_NUMERATOR) return 2 * square(n * hi * f->base.norm / f->N) * log_term;
    return 16 *
           fmax(hoeffding_budget(f, SL_VERIFY_DENOMINATOR, delta / 2), hoeffding_budget(f, SL_VERIFY_NUMERATOR, delta / 2));
}

// Returns the number of rows. *achieved: the relative error that the formula states for them, at most epsilon. Sampling without
// replacement multiplies variances by 1 - b / n_s. Only clt uses this factor: for N it is not proven with Hoeffding's bound.
static int rows_needed(const verified *f, int base, double *achieved) {
    double epsilon = sl_attn_get(f->spec, "epsilon"), delta = sl_attn_get(f->spec, "delta"), n = f->n_residual;
    if (f->bound == SL_BOUND_BERNSTEIN) return sl_bernstein_rows(&f->base, f->verify, epsilon, delta, achieved);
    int clt = f->bound == SL_BOUND_CLT;
    double unit = clt ? clt_budget(f, delta) : hoeffding_budget(f, f->verify, delta), b = unit / square(epsilon);
    if (clt) b /= 1 + b / n;
    *achieved = 0;
    if (!(b < n)) return f->n_residual; // also if D or |N| is 0 or NaN
    int rows = (int)ceil(b) > base ? (int)ceil(b) : base;
    if (rows < f->n_residual) *achieved = sqrt(unit * (1.0 / rows - (clt ? 1 / n : 0)));
    return rows;
}

// ---- the draw ----

static void run(sl_head *x) {
    const sl_attn_spec *spec = x->group->args->spec;
    verified f = {.x = x, .spec = spec, .n = x->group->kv->n_kv, .exact = sl_composition_of(spec).propose->exact};
    double achieved = 0; // with all rows there is no error
    f.verify = (int)sl_attn_get(spec, "verify"), f.bound = (int)sl_attn_get(spec, "bound");
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
    return sl_attn_get(spec, "bound") != SL_BOUND_CLT && sl_attn_get(spec, "verify") != SL_VERIFY_DENOMINATOR;
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
