// attention/stages/draw_unvisited.c - the draw of saap-is: every row that saap reads, once, and S rows of the buckets that are
// not visited, drawn with known probabilities (docs/methods-theory.md, saap-is).
//
// Only rows that are not read exactly may be drawn: rows of buckets that are not visited, outside of the sink and the sliding
// window. They are ordered by span, bucket and position; rows after the last full span by page, bucket and position. A row j
// has an integer size w_j > 0, equal for the rows of a cell (or of a bucket), so the running size needs no walk row by row.
// Draw m of S has the threshold floor((m W + floor(u_m W / 2^64)) / S) on the running size, W = sum w_j. So draws are
// stratified, and E c_j = S w_j / W.
//
// --proposal=cells: w_j = 2^30 e^(t - max t), rounded down, over rows that may be drawn, with t = q.m / sqrt(d) + sum_c q_c^2
// var_c / (2 d) from the mean m and the variance of the keys of the row's cell. e^t is the mean of e^s if the keys are normal.
// A row after the last full span has the mean size of the others.
// --proposal=classifier: w_j = 2^30 x / max x, rounded down, with x = f_b^gamma / n_b for the bucket b of the row, f_b the
// group's mean probability of the bucket, n_b the number of its rows that may be drawn.
// Then every size is raised by the same number, so that the share ALPHA of W is uniform. A t or x that is not finite counts as
// size 0 before that.
#include "attention/extras/bucket_visit.h"
#include "attention/budgets/pareto.h"

#include <math.h>
#include <string.h>

typedef unsigned __int128 u128;

enum { BY_CELLS, BY_CLASSIFIER };
static const double ALPHA = 0.1; // share of the uniform part
static const double UNIT = 1 << 30;

// ---- the rows that may be drawn, in runs of one bucket ----

typedef struct rows_run {
    int base, n, bucket;
    int span;             // -1: after the last full span
    const uint16_t *wide; // [n] rows counted from base; NULL: narrow
    const uint8_t *narrow;
} rows_run;

static int row_of(const rows_run *r, int i) {
    return r->base + (r->wide ? r->wide[i] : r->narrow[i]);
}

// Drops rows of the sink and the window at both ends of the run. Returns 1 when rows remain.
static int trim(rows_run *r, const sl_bucket_visit *v) {
    int first = 0;
    while (first < r->n && row_of(r, first) < v->sink) first++;
    while (r->n > first && row_of(r, r->n - 1) >= v->window) r->n--;
    r->n -= first;
    if (r->wide)
        r->wide += first;
    else
        r->narrow += first;
    return r->n > 0;
}

typedef int (*run_fn)(void *ctx, const rows_run *r); // not 0: no more runs

static void each_run(const sl_group *g, const sl_bucket_visit *v, run_fn fn, void *ctx) {
    int C = g->args->geom->buckets->n_buckets, n_spans = sl_bucket_n_spans(g, v);
    for (int s = 0; s < n_spans; s++) {
        const sl_bucket_lists *lists =
            sl_kv_extra(g->kv, (sl_kv_need){&sl_bucket_lists_kind, 0}, (s + 1) * SL_BUCKET_SPAN - 1, g->h);
        for (int c = 0; c < C; c++) {
            rows_run r = {.base = s * SL_BUCKET_SPAN_ROWS,
                          .n = lists->first[c + 1] - lists->first[c],
                          .bucket = c,
                          .span = s,
                          .wide = lists->row + lists->first[c]};
            if (!v->visited[c] && trim(&r, v) && fn(ctx, &r)) return;
        }
    }
    for (int page = n_spans * SL_BUCKET_SPAN; page * SL_PAGE < v->window; page++) {
        const sl_bucket_rows *rows = sl_kv_extra(g->kv, (sl_kv_need){&sl_bucket_rows_kind, 0}, page, g->h);
        for (int i = 0, end; i < SL_PAGE; i = end) {
            for (end = i; end < SL_PAGE && rows->bucket[end] == rows->bucket[i];) end++;
            rows_run r = {.base = page * SL_PAGE, .n = end - i, .bucket = rows->bucket[i], .span = -1, .narrow = rows->row + i};
            if (!v->visited[r.bucket] && trim(&r, v) && fn(ctx, &r)) return;
        }
    }
}

// ---- sizes ----

typedef struct sizes {
    const sl_head *x;
    int by;               // BY_...
    double *of;           // [spans][64], or [C]: scores in log2 units, then sizes
    double most;          // largest score of a row that may be drawn
    uint64_t rest;        // size of a row after the last full span, with BY_CELLS
    uint64_t rows, total; // of all rows that may be drawn
    uint64_t after;       // of these rows: after the last full span
    uint64_t uniform;     // added to every size
} sizes;

static double finite_or_none(double x) { // a score that is not finite has no size
    return isfinite(x) ? x : -INFINITY;
}

// Scores of all cells in log2 units.
static void score_cells(const sl_group *g, const sl_bucket_visit *v, const float *q, double *score) {
    int dim = g->head_dim;
    float square[256], mean_part[SL_BUCKET_CELLS], variance_part[SL_BUCKET_CELLS];
    float half = 0.34657359f * g->scale * g->scale; // ln 2 / 2: the variance of a score in log2 units, as a mean of 2^score
    for (int d = 0; d < dim; d++) square[d] = q[d] * q[d];
    for (int s = 0; s < sl_bucket_n_spans(g, v); s++) {
        const bf16 *cells = sl_kv_extra(g->kv, (sl_kv_need){&sl_bucket_cells_kind, 0}, (s + 1) * SL_BUCKET_SPAN - 1, g->h);
        sl_kv_row mean[SL_BUCKET_CELLS], variance[SL_BUCKET_CELLS];
        for (int i = 0; i < SL_BUCKET_CELLS; i++) {
            mean[i] = sl_kv_row_at(sl_kv_bf16_run(cells), dim, 2 * i);
            variance[i] = sl_kv_row_at(sl_kv_bf16_run(cells), dim, 2 * i + 1);
        }
        g->kernels->score_rows(q, SL_BF16, mean, SL_BUCKET_CELLS, dim, g->scale, mean_part);
        g->kernels->score_rows(square, SL_BF16, variance, SL_BUCKET_CELLS, dim, half, variance_part);
        for (int i = 0; i < SL_BUCKET_CELLS; i++)
            score[s * SL_BUCKET_CELLS + i] = finite_or_none((double)mean_part[i] + variance_part[i]);
    }
}

static int count_bucket(void *ctx, const rows_run *r) {
    ((double *)ctx)[r->bucket] += r->n;
    return 0;
}

static void score_buckets(const sl_group *g, const sl_bucket_visit *v, double *score) {
    int C = g->args->geom->buckets->n_buckets;
    double gamma = sl_attn_get(g->args->spec, "gamma");
    for (int c = 0; c < C; c++) score[c] = 0;
    each_run(g, v, count_bucket, score);
    for (int c = 0; c < C; c++)
        score[c] = score[c] > 0 ? finite_or_none((gamma > 0 ? gamma * log2((double)v->score[c] / g->n) : 0) - log2(score[c]))
                                : -INFINITY;
}

static double *place_of(const sizes *w, const rows_run *r) { // in w->of; NULL: the run has no score
    if (w->by == BY_CLASSIFIER) return &w->of[r->bucket];
    if (r->span < 0) return NULL;
    return &w->of[r->span * SL_BUCKET_CELLS + sl_bucket_cell(r->bucket, w->x->group->args->geom->buckets->n_buckets)];
}

static uint64_t size_of_row(const sizes *w, const rows_run *r) { // without the uniform part
    const double *size = place_of(w, r);
    return size ? (uint64_t)*size : w->rest;
}

static int find_most(void *ctx, const rows_run *r) {
    sizes *w = ctx;
    const double *score = place_of(w, r);
    if (score) w->most = fmax(w->most, *score);
    return 0;
}

static int add_size(void *ctx, const rows_run *r) {
    sizes *w = ctx;
    w->rows += (uint64_t)r->n;
    if (place_of(w, r))
        w->total += (uint64_t)r->n * size_of_row(w, r);
    else
        w->after += (uint64_t)r->n;
    return 0;
}

static sizes sizes_of(const sl_head *x, const sl_bucket_visit *v, double *of) {
    const sl_group *g = x->group;
    sizes w = {.x = x, .by = (int)sl_attn_get(g->args->spec, "proposal"), .of = of, .most = -INFINITY};
    int n = w.by == BY_CELLS ? sl_bucket_n_spans(g, v) * SL_BUCKET_CELLS : g->args->geom->buckets->n_buckets;
    if (w.by == BY_CELLS)
        score_cells(g, v, x->q, of);
    else
        score_buckets(g, v, of);
    each_run(g, v, find_most, &w);
    for (int i = 0; i < n; i++) of[i] = of[i] > -INFINITY ? floor(UNIT * fmin(exp2(of[i] - w.most), 1)) : 0;
    each_run(g, v, add_size, &w);
    uint64_t scored = w.rows - w.after;
    w.rest = scored ? w.total / scored : 0;
    w.total += w.rest * w.after;
    if (w.rows) w.uniform = (uint64_t)(ALPHA / (1 - ALPHA) * (double)w.total / (double)w.rows) + 1;
    w.total += w.uniform * w.rows;
    return w;
}

// ---- draws ----

typedef struct drawing {
    const sizes *w;
    int S, m;         // draw m is next
    uint64_t running; // size of the runs so far
    uint64_t point;   // threshold of draw m
    uint64_t *rows;   // [S] row << 32 | draw
    double *inverse;  // [S] 1 / pi
} drawing;

static void next_point(drawing *d) {
    uint64_t W = d->w->total, u = sl_bucket_random(&d->w->x->id, (uint32_t)d->m);
    d->point = (uint64_t)(((u128)(unsigned)d->m * W + (uint64_t)((u128)u * W >> 64)) / (unsigned)d->S);
}

static int draw_from(void *ctx, const rows_run *r) {
    drawing *d = ctx;
    uint64_t size = size_of_row(d->w, r) + d->w->uniform, end = d->running + size * (uint64_t)r->n;
    while (d->m < d->S && d->point < end) {
        d->rows[d->m] = (uint64_t)row_of(r, (int)((d->point - d->running) / size)) << 32 | (uint32_t)d->m;
        d->inverse[d->m] = (double)d->w->total / ((double)d->S * (double)size);
        d->m++;
        if (d->m < d->S) next_point(d);
    }
    d->running = end;
    return d->m == d->S;
}

// Adds the exact rows and the drawn rows, ascending. rows: [n] sorted
static void merge(sl_head *x, const sl_bucket_visit *v, const uint64_t *rows, const double *inverse, int n) {
    int i = 0;
    sl_draws_clear(&x->draws);
    for (int word = 0; word < (x->group->kv->n_kv + 63) / 64; word++) {
        for (uint64_t bits = v->bitmap[word]; bits; bits &= bits - 1) {
            int row = word * 64 + __builtin_ctzll(bits);
            for (; i < n && (int)(rows[i] >> 32) < row; i++)
                sl_draws_add(&x->draws, (int)(rows[i] >> 32), (float)inverse[(uint32_t)rows[i]]);
            sl_draws_add(&x->draws, row, 1);
        }
    }
    SL_CHECK(i == n); // the newest row is always exact
}

static int budget(const sl_attn_spec *spec, int n_kv) {
    (void)n_kv;
    return (int)sl_attn_get(spec, "S");
}
static size_t capacity(const sl_attn_spec *spec, int n_kv) {
    (void)spec;
    return (size_t)n_kv;
}
// Draws and their 1 / pi; the scores of cells or buckets. measure overwrites the first two.
static size_t scratch(const sl_attn_spec *spec, int n_kv) {
    size_t cells = (size_t)n_kv / SL_BUCKET_SPAN_ROWS * SL_BUCKET_CELLS;
    return 2 * (size_t)sl_attn_get(spec, "S") + (cells > SL_BUCKETS_MOST ? cells : SL_BUCKETS_MOST);
}

static void run(sl_head *x) {
    sl_bucket_visit v = sl_bucket_visit_of(x->group);
    uint64_t *rows = x->draws.scratch;
    double *inverse = (double *)(rows + x->S), *of = inverse + x->S;
    sizes w = {0};
    drawing d = {.w = &w, .S = x->S, .rows = rows, .inverse = inverse};
    if (x->S > 0) w = sizes_of(x, &v, of);
    if (w.rows > 0) {
        next_point(&d);
        each_run(x->group, &v, draw_from, &d);
        SL_CHECK(d.m == d.S);
        sl_sort(rows, d.m);
    }
    merge(x, &v, rows, inverse, d.m);
}

// ---- how certain the output is ----

static int is_exact(const sl_bucket_visit *v, int row) {
    return v->bitmap[row / 64] >> row % 64 & 1;
}

// The summands of a draw of row j are a_j (v_j - o), with a_j its share of the normaliser and o the output (the first order of
// the self-normalised estimate). Their sample variance times S estimates the variance of o for independent draws.
static void measure(sl_head *x) {
    sl_bucket_visit v = sl_bucket_visit_of(x->group);
    int n = 0, dim = x->group->head_dim;
    double *share = (double *)x->draws.scratch, sum[256] = {0}, squares = 0, square_of_sum = 0, most = 0;
    for (int i = 0; i < x->draws.n; i++) {
        int count = x->draws.count[i];
        if (is_exact(&v, x->draws.row[i])) continue;
        double a = (double)x->coef[i] / count;
        most = fmax(most, a);
        for (int d = 0; d < dim; d++) {
            double r = a * ((double)sl_kv_number(x->rows[i], x->group->kv->formats.v, d) - x->out[d]);
            sum[d] += count * r, squares += count * r * r;
        }
        for (int c = 0; c < count; c++) share[n++] = a;
    }
    if (n == 0) return;
    for (int d = 0; d < dim; d++) square_of_sum += sum[d] * sum[d];
    x->report->largest_draw = (float)most;
    double deviation = squares - square_of_sum / n; // NaN stays NaN: there is no standard error
    if (n > 1) x->report->standard_error = (float)(sqrt((deviation < 0 ? 0 : deviation) * n / (n - 1)) / sl_norm(x->out, dim));
    sl_sort((uint64_t *)share, n); // positive doubles have the order of their bits
    x->report->pareto_shape = (float)sl_pareto_shape(share, n);
}

const sl_draw sl_draw_unvisited = {.budget = budget, .capacity = capacity, .scratch = scratch, .run = run, .measure = measure};
