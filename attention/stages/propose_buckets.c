// attention/stages/propose_buckets.c - the proposals of SAAP, and its draw: rows of the buckets that a KV head visits, each
// once.
//
// The group's queries choose l buckets together (SAAP, section 5, "Batched queries"). The score of a bucket is
//   sl_propose_buckets,
//   sl_propose_cells      the sum over the group's queries of the classifier's probability, softmax(w2 relu(w1 x + b1) + b2)
//   sl_propose_centroids  the inner product of the centroid with the sum over the group's queries of x / |x|
// x is a query before RoPE. A step has queries after RoPE, so x is the query rotated back by its position. With rope=1 x is
// the query after RoPE. Equal scores: the lower bucket first. A NaN among the queries makes all scores NaN, and then the
// buckets 0 to l - 1 are visited.
//
// The rows of a step: the sink, the sliding window, rows that have no bucket yet (the newest page), and the rows of the visited
// buckets. A bitmap of the rows holds them, so a row counts once.
#include "attention/extras/bucket_visit.h"

#include <math.h>
#include <string.h>

enum { MAX_DIM = 256 };

// ---- what a step of a KV head keeps ----

// The arrays in the memory from `base` on. Returns their size.
static size_t lay_out(const sl_buckets *b, int n_kv, void *base, sl_bucket_visit *out) {
    size_t at = 0, C = (size_t)b->n_buckets;
#define TAKE(FIELD, N) out->FIELD = (void *)((uintptr_t)base + sl_workspace_take(&at, (N) * sizeof *out->FIELD))
    TAKE(bytes, 1);
    TAKE(keys, C);
    TAKE(bitmap, ((size_t)n_kv + 63) / 64);
    TAKE(score, C);
    TAKE(hidden, (size_t)b->width);
    TAKE(logits, C);
    TAKE(visited, C);
#undef TAKE
    return at;
}

static size_t state(const sl_attn_geom *geom, const sl_attn_spec *spec, int n_kv) {
    sl_bucket_visit v;
    (void)spec;
    SL_CHECK(geom->buckets != NULL);
    return lay_out(geom->buckets, n_kv, NULL, &v);
}

sl_bucket_visit sl_bucket_visit_of(const sl_group *g) {
    const sl_attn_spec *spec = g->args->spec;
    int n = g->kv->n_kv, sink = (int)sl_attn_get(spec, "sink"), window = (int)sl_attn_get(spec, "window");
    int without_bucket = sl_kv_n_built(g->kv) * SL_PAGE;
    sl_bucket_visit v;
    lay_out(g->args->geom->buckets, n, g->state, &v);
    v.sink = sink < n ? sink : n;
    v.window = window < n ? n - window : 0;
    if (v.window > without_bucket) v.window = without_bucket;
    return v;
}

static int is_dense_layer(const sl_group *g) {
    return g->args->layer < (int)sl_attn_get(g->args->spec, "dense-layers");
}

static int is_roped(const sl_attn_spec *spec) {
    return sl_attn_has(spec, "rope") && sl_attn_get(spec, "rope") > 0;
}

static int needs(const sl_attn_spec *spec, sl_kv_need *out) {
    out[0] = (sl_kv_need){&sl_bucket_rows_kind, is_roped(spec)};
    out[1] = (sl_kv_need){&sl_bucket_lists_kind, is_roped(spec)};
    return 2;
}

// ---- the scores of the buckets ----

// out[r] = x . rows[r], rows: [n][dim] bf16.
static void multiply(const sl_group *g, const float *x, const bf16 *rows, int n, int dim, float *out) {
    enum { BATCH = 64 };
    sl_kv_row row[BATCH];
    for (int from = 0; from < n; from += BATCH) {
        int m = n - from < BATCH ? n - from : BATCH;
        for (int i = 0; i < m; i++) row[i] = sl_kv_row_at(sl_kv_bf16_run(rows), dim, from + i);
        g->kernels->score_rows(x, SL_BF16, row, m, dim, 1, out + from);
    }
}

static size_t model_head(const sl_group *g) { // index of the model's numbers
    return (size_t)g->kv->layer * g->args->geom->buckets->n_kv_heads + g->h;
}

static void query_before_rope(const sl_group *g, int i, float *x) {
    sl_rotate_back(g->args->geom->buckets->inv_freq, g->head_dim, (int)g->query->position, g->q + (size_t)i * g->head_dim, x);
}

static void score_by_centroid(const sl_group *g, const sl_bucket_visit *v) {
    const sl_buckets *b = g->args->geom->buckets;
    int dim = g->head_dim, roped = is_roped(g->args->spec);
    const bf16 *centroids = (roped ? b->roped : b->centroids) + model_head(g) * b->n_buckets * dim;
    float sum[MAX_DIM] = {0}, x[MAX_DIM];
    for (int i = 0; i < g->n; i++) {
        if (roped)
            memcpy(x, g->q + (size_t)i * dim, dim * sizeof *x);
        else
            query_before_rope(g, i, x);
        float norm = (float)sl_norm(x, dim);
        for (int d = 0; d < dim && norm > 0; d++) sum[d] += x[d] / norm;
        for (int d = 0; d < dim && isnan(norm); d++) sum[d] = NAN;
    }
    multiply(g, sum, centroids, b->n_buckets, dim, v->score);
    *v->bytes += (uint64_t)b->n_buckets * dim * sizeof(bf16);
}

static void add_softmax(const float *logits, int n, float *sum) {
    float most = -INFINITY;
    double total = 0;
    for (int c = 0; c < n; c++) most = fmaxf(most, logits[c]);
    for (int c = 0; c < n; c++) total += exp((double)logits[c] - most);
    for (int c = 0; c < n; c++) sum[c] += (float)(exp((double)logits[c] - most) / total);
}

static void score_by_classifier(const sl_group *g, const sl_bucket_visit *v) {
    const sl_buckets *b = g->args->geom->buckets;
    int C = b->n_buckets, W = b->width;
    size_t head = model_head(g);
    const float *b1 = b->b1 + head * W, *b2 = b->b2 + head * C;
    float x[MAX_DIM];
    memset(v->score, 0, (size_t)C * sizeof *v->score);
    for (int i = 0; i < g->n; i++) {
        query_before_rope(g, i, x);
        multiply(g, x, b->w1 + head * W * g->head_dim, W, g->head_dim, v->hidden);
        for (int w = 0; w < W; w++) {
            float y = v->hidden[w] + b1[w];
            v->hidden[w] = y < 0 ? 0 : y; // NaN stays NaN
        }
        multiply(g, v->hidden, b->w2 + head * C * W, C, W, v->logits);
        for (int c = 0; c < C; c++) v->logits[c] += b2[c];
        add_softmax(v->logits, C, v->score);
    }
    *v->bytes += ((uint64_t)W * g->head_dim + (uint64_t)C * W) * sizeof(bf16) + ((uint64_t)W + C) * sizeof(float);
}

// Sorts the buckets by score into v->keys, the largest score first. The low 32 bits of a key are the bucket.
static void sort_buckets(const sl_bucket_visit *v, int C) {
    for (int c = 0; c < C; c++) {
        uint32_t bits;
        memcpy(&bits, &v->score[c], sizeof bits);
        bits = bits >> 31 ? ~bits : bits | 0x80000000; // the order of the numbers
        v->keys[c] = (uint64_t)(isnan(v->score[c]) ? UINT32_MAX : ~bits) << 32 | (uint32_t)c;
    }
    sl_sort(v->keys, C);
}

// Marks the l buckets of largest score in v->visited.
static void choose(const sl_bucket_visit *v, int C, int l) {
    sort_buckets(v, C);
    for (int c = 0; c < C; c++) v->visited[c] = 0;
    for (int i = 0; i < l && i < C; i++) v->visited[(uint32_t)v->keys[i]] = 1;
}

// ---- the rows ----

static void mark(uint64_t *bitmap, int row) {
    bitmap[row / 64] |= 1ull << row % 64;
}

static void mark_range(uint64_t *bitmap, int first, int end) {
    for (int j = first; j < end; j++) mark(bitmap, j);
}

int sl_bucket_n_spans(const sl_group *g, const sl_bucket_visit *v) {
    int n = (v->window + SL_BUCKET_SPAN_ROWS - 1) / SL_BUCKET_SPAN_ROWS, full = sl_kv_n_spans(g->kv, SL_BUCKET_SPAN);
    return n < full ? n : full;
}

// Marks the rows of the visited buckets that lie in pages before the window.
static void walk(const sl_group *g, const sl_bucket_visit *v) {
    int C = g->args->geom->buckets->n_buckets, n_spans = sl_bucket_n_spans(g, v);
    sl_kv_need need[SL_MAX_NEEDS];
    needs(g->args->spec, need);
    for (int s = 0; s < n_spans; s++) {
        const sl_bucket_lists *lists = sl_kv_extra(g->kv, need[1], (s + 1) * SL_BUCKET_SPAN - 1, g->h);
        for (int c = 0; c < C; c++) {
            if (!v->visited[c]) continue;
            for (int i = lists->first[c]; i < lists->first[c + 1]; i++)
                mark(v->bitmap, s * SL_BUCKET_SPAN_ROWS + lists->row[i]);
            *v->bytes += (2 + (uint64_t)(lists->first[c + 1] - lists->first[c])) * sizeof(uint16_t);
        }
    }
    for (int page = n_spans * SL_BUCKET_SPAN; page * SL_PAGE < v->window; page++) {
        const sl_bucket_rows *rows = sl_kv_extra(g->kv, need[0], page, g->h);
        for (int i = 0; i < SL_PAGE; i++)
            if (v->visited[rows->bucket[i]]) mark(v->bitmap, page * SL_PAGE + rows->row[i]);
        *v->bytes += sizeof *rows;
    }
}

static void begin(sl_group *g, void (*score)(const sl_group *g, const sl_bucket_visit *v)) {
    const sl_attn_spec *spec = g->args->spec;
    sl_bucket_visit v = sl_bucket_visit_of(g);
    int n = g->kv->n_kv, C = g->args->geom->buckets->n_buckets, l = (int)sl_attn_get(spec, "l");
    int is_dense = is_dense_layer(g);
    memset(v.bitmap, 0, ((size_t)n + 63) / 64 * sizeof *v.bitmap);
    memset(v.visited, is_dense, (size_t)C);
    *v.bytes = 0;
    mark_range(v.bitmap, 0, is_dense ? n : v.sink);
    mark_range(v.bitmap, v.window, n);
    int draws_by_score = sl_attn_has(spec, "proposal") && sl_attn_chooses(spec, "proposal", "classifier");
    if (is_dense || v.sink >= v.window || (l == 0 && !draws_by_score)) return; // no row is left, or no score is read
    score(g, &v);
    choose(&v, C, l);
    walk(g, &v);
}

static void begin_classifier(sl_group *g) {
    begin(g, score_by_classifier);
}
static void begin_centroids(sl_group *g) {
    begin(g, score_by_centroid);
}

static uint64_t bytes(const sl_group *g) { // with the keys of the newest page, which decode.c does not count as refined
    return *sl_bucket_visit_of(g).bytes + sl_newest_bytes(g);
}

// saap-is: the same buckets, and the cells of the spans before the window, if draws read them.
static int reads_cells(const sl_attn_spec *spec) {
    return sl_attn_get(spec, "S") > 0 && sl_attn_chooses(spec, "proposal", "cells");
}
static int needs_cells(const sl_attn_spec *spec, sl_kv_need *out) {
    int n = needs(spec, out);
    if (reads_cells(spec)) out[n++] = (sl_kv_need){&sl_bucket_cells_kind, 0};
    return n;
}
static uint64_t bytes_with_cells(const sl_group *g) {
    sl_bucket_visit v = sl_bucket_visit_of(g);
    if (is_dense_layer(g) || !reads_cells(g->args->spec)) return bytes(g);
    return bytes(g) + sl_bucket_n_spans(g, &v) * (uint64_t)sl_bucket_cells_kind.size(0, g->head_dim);
}

const sl_proposal sl_propose_buckets = {.unit = 0, .needs = needs, .state = state, .begin = begin_classifier, .bytes = bytes};
const sl_proposal sl_propose_cells = {
    .unit = 0, .needs = needs_cells, .state = state, .begin = begin_classifier, .bytes = bytes_with_cells};
const sl_proposal sl_propose_centroids = {.unit = 0, .needs = needs, .state = state, .begin = begin_centroids, .bytes = bytes};

// ---- the order of the buckets as scores of rows ----
// For methods that ask for the largest rows (vattention): the rows of the best bucket come before the rows of the second one.
// The newest page gets its buckets when it is scored. Without a classifier, centroids order the buckets. A layer without
// trained numbers has scores of NaN, and so its heads attend exactly and count a fallback.

enum { OCTAVES = 64 }; // from the best bucket to the worst: the masses of two of 4096 ranks differ after rounding to bf16

static int needs_rows(const sl_attn_spec *spec, sl_kv_need *out) {
    (void)spec;
    *out = (sl_kv_need){&sl_bucket_rows_kind, 0};
    return 1;
}

static void begin_ranks(sl_group *g) {
    const sl_buckets *b = g->args->geom->buckets;
    sl_bucket_visit v = sl_bucket_visit_of(g);
    int C = b->n_buckets, has_ranks = g->args->layer >= b->n_dense;
    *v.bytes = 0;
    if (has_ranks && b->width)
        score_by_classifier(g, &v);
    else if (has_ranks)
        score_by_centroid(g, &v);
    if (has_ranks) sort_buckets(&v, C);
    for (int i = 0; i < C; i++)
        v.logits[has_ranks ? (uint32_t)v.keys[i] : (uint32_t)i] = has_ranks ? -(float)i * OCTAVES / (float)C : NAN;
    *v.bytes += (uint64_t)sl_kv_n_built(g->kv) * sizeof(sl_bucket_rows) + (uint64_t)C * g->head_dim * sizeof(bf16);
}

static void score_ranks(const sl_group *g, int page, float *out) {
    const sl_buckets *b = g->args->geom->buckets;
    sl_bucket_visit v = sl_bucket_visit_of(g);
    int n = sl_page_rows(g->kv, page);
    if (page < sl_kv_n_built(g->kv)) {
        const sl_bucket_rows *rows = sl_kv_extra(g->kv, (sl_kv_need){&sl_bucket_rows_kind, 0}, page, g->h);
        for (int i = 0; i < SL_PAGE; i++) out[rows->row[i]] = v.logits[rows->bucket[i]];
    } else {
        uint16_t bucket[SL_PAGE];
        sl_bucket_assign(b, 0, g->kv->layer, g->h, sl_k_page(g, page), n, page * SL_PAGE, bucket);
        for (int j = 0; j < n; j++) out[j] = v.logits[bucket[j]];
    }
    for (int i = 1; i < g->n; i++) memcpy(out + (size_t)i * SL_CHUNK, out, (size_t)n * sizeof *out);
}

const sl_proposal sl_propose_bucket_ranks = {
    .unit = 1, .needs = needs_rows, .state = state, .begin = begin_ranks, .score = score_ranks, .bytes = bytes};

// ---- the draw ----

static size_t capacity(const sl_attn_spec *spec, int n_kv) { // all rows may lie in the visited buckets
    (void)spec;
    return (size_t)n_kv;
}
static int no_budget(const sl_attn_spec *spec, int n_kv) { // the number of rows follows from the buckets
    (void)spec, (void)n_kv;
    return 0;
}
static void run(sl_head *x) {
    sl_bucket_visit v = sl_bucket_visit_of(x->group);
    sl_draws_clear(&x->draws);
    for (int w = 0; w < (x->group->kv->n_kv + 63) / 64; w++)
        for (uint64_t bits = v.bitmap[w]; bits; bits &= bits - 1) sl_draws_add(&x->draws, w * 64 + __builtin_ctzll(bits), 1);
}

// The rows of [first, end) in the bitmap.
static int count_marked(const uint64_t *bitmap, int first, int end) {
    int n = 0;
    for (int w = first / 64; w < (end + 63) / 64; w++) {
        uint64_t bits = bitmap[w];
        if (w == first / 64) bits &= UINT64_MAX << first % 64;
        if (w == end / 64) bits &= ~(UINT64_MAX << end % 64);
        n += __builtin_popcountll(bits);
    }
    return n;
}

// Where the visited buckets hold more than a share of the rows between sink and window, the head attends to every row exactly:
// the buckets do not fit the text, and dense attention reads rows in order.
static void check_share(sl_head *x) {
    const sl_group *g = x->group;
    sl_bucket_visit v = sl_bucket_visit_of(g);
    double share = sl_attn_get(g->args->spec, "dense-above");
    if (share == 1 || is_dense_layer(g) || v.window <= v.sink) return; // no more rows can be visited, or it reads every row
    if (count_marked(v.bitmap, v.sink, v.window) > share * (v.window - v.sink)) x->needs_exact = 1;
}

const sl_draw sl_draw_visited = {.budget = no_budget, .capacity = capacity, .prepare = check_share, .run = run, .takes_set = 1};
