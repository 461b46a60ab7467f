// attention/dense.c - exact attention. Decode is a composition without a draw (online_softmax.c). Prefill is one pass over
// pages for each tile of queries, with an online softmax.
#include "attention/stages.h"

#include <math.h>
#include <omp.h>
#include <string.h>

// ---- prefill ----
// A task is a tile of query tokens for one KV head. It reads the pages in order. Each row of the tile has an online softmax.

enum { TILE_ROWS = 256 }; // rows of a query tile; a row is a (token, query head of the group)

static int tile_tokens(int group) {
    return group >= TILE_ROWS ? 1 : TILE_ROWS / group;
}

static int tile_rows(int group) { // padded to a multiple of SL_GEMM_ROWS
    return (tile_tokens(group) * group + SL_GEMM_ROWS - 1) / SL_GEMM_ROWS * SL_GEMM_ROWS;
}

// Floats of scratch of one thread: q, o [rows][head_dim]; s [rows][256]; k^T [head_dim][256]; v [256][head_dim]; m, l [rows].
static size_t tile_floats(const sl_attn_geom *g) {
    size_t rows = tile_rows(g->n_heads / g->n_kv_heads);
    return rows * (2 * g->head_dim + SL_PAGE + 2) + 2 * (size_t)SL_PAGE * g->head_dim;
}

typedef struct tile {
    int rows, first, n_tokens; // rows without padding; tokens [first, first + n_tokens) of the call
    float *q, *o, *s, *kt, *v, *m, *l;
} tile;

static tile tile_at(const sl_attn_geom *g, float *scratch) {
    size_t rows = tile_rows(g->n_heads / g->n_kv_heads), dim = g->head_dim;
    tile t = {.q = scratch};
    t.o = t.q + rows * dim;
    t.s = t.o + rows * dim;
    t.kt = t.s + rows * SL_PAGE;
    t.v = t.kt + SL_PAGE * dim;
    t.m = t.v + SL_PAGE * dim;
    t.l = t.m + rows;
    return t;
}

static void prefill_page(const sl_attn_prefill_args *a, const sl_attn_kernels *kernels, tile *t, int h, int page) {
    const sl_attn_geom *g = a->geom;
    int dim = g->head_dim, group = g->n_heads / g->n_kv_heads, base = a->kv.n_kv - a->n_tokens, from = page * SL_PAGE;
    int n = a->kv.n_kv - from < SL_PAGE ? a->kv.n_kv - from : SL_PAGE;
    int rows = (t->rows + SL_GEMM_ROWS - 1) / SL_GEMM_ROWS * SL_GEMM_ROWS;
    size_t block = sl_kv_block(&a->kv, g->n_kv_heads, dim, page, h);
    kernels->widen_transposed(a->kv.k + block, n, dim, t->kt);
    kernels->widen(a->kv.v + block, n * dim, t->v);
    memset(t->v + (size_t)n * dim, 0, (size_t)(SL_PAGE - n) * dim * sizeof *t->v);
    kernels->gemm(t->q, dim, t->kt, SL_PAGE, rows, SL_PAGE, dim, 0, t->s, SL_PAGE);
    for (int r = 0; r < rows; r++) {
        int visible = r < t->rows ? base + t->first + r / group + 1 - from : 0;
        if (visible > SL_PAGE) visible = SL_PAGE;
        if (visible < 0) visible = 0;
        float factor = kernels->softmax_row(t->s + (size_t)r * SL_PAGE, visible, sl_score_scale(dim), t->m + r, t->l + r);
        if (factor != 1) kernels->scale_row(t->o + (size_t)r * dim, dim, factor);
    }
    kernels->gemm(t->s, SL_PAGE, t->v, dim, rows, dim, SL_PAGE, 1, t->o, dim);
}

static void prefill_tile(const sl_attn_prefill_args *a, const sl_attn_kernels *kernels, int h, int first, float *scratch) {
    const sl_attn_geom *g = a->geom;
    int dim = g->head_dim, group = g->n_heads / g->n_kv_heads, most = tile_tokens(group);
    tile t = tile_at(g, scratch);
    t.first = first;
    t.n_tokens = a->n_tokens - first < most ? a->n_tokens - first : most;
    t.rows = t.n_tokens * group;
    memset(t.q, 0, 2 * (size_t)tile_rows(group) * dim * sizeof *t.q); // q and o, with padding rows
    for (int r = 0; r < tile_rows(group); r++) t.m[r] = -INFINITY, t.l[r] = 0;
    size_t row = (size_t)g->n_heads * dim;
    for (int r = 0; r < t.rows; r++)
        memcpy(t.q + (size_t)r * dim, a->q + (first + r / group) * row + (size_t)(h * group + r % group) * dim,
               dim * sizeof *t.q);
    int last = a->kv.n_kv - a->n_tokens + first + t.n_tokens - 1; // position of the tile's last token
    for (int page = 0; page <= last / SL_PAGE; page++) prefill_page(a, kernels, &t, h, page);
    for (int r = 0; r < t.rows; r++) {
        float *out = a->out + (first + r / group) * row + (size_t)(h * group + r % group) * dim;
        for (int d = 0; d < dim; d++) out[d] = t.o[(size_t)r * dim + d] / t.l[r];
    }
}

static void prefill(const sl_attn_prefill_args *a) {
    const sl_attn_geom *g = a->geom;
    const sl_attn_kernels *kernels = sl_attn_kernels_best();
    int step = tile_tokens(g->n_heads / g->n_kv_heads), n_tiles = (a->n_tokens + step - 1) / step;
    float *scratch = a->ws->data;
    SL_CHECK(tile_floats(g) * sizeof(float) * omp_get_max_threads() <= a->ws->size);
#pragma omp parallel for schedule(dynamic)
    for (int task = 0; task < n_tiles * g->n_kv_heads; task++) {
        int index = n_tiles - 1 - task / g->n_kv_heads; // the last tile reads the most rows, so it starts first
        prefill_tile(a, kernels, task % g->n_kv_heads, index * step, scratch + tile_floats(g) * omp_get_thread_num());
    }
}

// ---- the method ----

static size_t workspace(const sl_attn_geom *g, const sl_attn_spec *spec, int n_seqs, int n_tokens, int n_kv) {
    (void)n_tokens; // the scratch of prefill depends only on the tile
    size_t decode_bytes = sl_stages_ops.workspace(g, spec, n_seqs, 1, n_kv);
    size_t prefill_bytes = sizeof(float) * tile_floats(g) * omp_get_max_threads();
    return decode_bytes > prefill_bytes ? decode_bytes : prefill_bytes;
}

static const sl_attn_ops ops = {.workspace = workspace, .decode = sl_stages_decode, .prefill = prefill};
static const sl_composition stages = {.propose = &sl_propose_exact};

const sl_attn_method sl_method_dense = {
    .name = "dense",
    .summary = "exact attention over every row",
    .source = "softmax(q K^T / sqrt(d)) V",
    .mean = SL_MEAN_EXACT,
    .stages = &stages,
    .cpu = &ops,
    .cuda = SL_ON_CUDA(sl_dense_cuda_ops),
};
