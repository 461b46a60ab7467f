// attention/prefill/prefill_tiles.c - attention of many consecutive queries on the CPU: dense, with a mask of key blocks, or
// with a rule that skips blocks of small scores.
//
// A task is a tile of queries. It visits its key blocks in increasing order, two blocks (a page) at a time where it can, and
// each row has an online softmax. A row is a query of one head. The result of a row depends on the key blocks that the row
// visits, and not on the other rows of the tile. So a full mask gives the bits of dense attention, for every split into calls,
// tiles and threads.
#include "attention/prefill/prefill_mask.h"
#include "attention/stages/stages.h"
#include "base/thread_pool.h"

#include <math.h>
#include <string.h>

enum { TILE_ROWS = 256, BLOCK = SL_MASK_BLOCK };
_Static_assert(SL_PAGE == 2 * BLOCK, "the blocks that a tile visits in a page are one range of keys");

typedef struct tile {
    int first, n_tokens;     // tokens [first, first + n_tokens) of the call
    int first_head, n_heads; // row r: token first + r / n_heads, query head first_head + r % n_heads; one KV head
    int rows;                // n_tokens * n_heads
    const uint64_t *mask;    // key blocks; NULL: all
    float *q, *o;            // [rows][head_dim]
    float *s;                // [rows][256]
    float *kt, *v;           // [head_dim][256], [256][head_dim]
    float *m, *l;            // [rows] online softmax
    float *top, *lost;       // [rows] largest score of a block; D of the skipped blocks, in units of 2^m
} tile;

// Dense attention: a tile has all query heads of a KV head.
static int dense_tokens(int group) {
    return group >= TILE_ROWS ? 1 : TILE_ROWS / group;
}

static int padded(int rows) {
    return (rows + SL_GEMM_ROWS - 1) / SL_GEMM_ROWS * SL_GEMM_ROWS;
}

static size_t tile_floats(const sl_attn_geom *g) {
    int group = g->n_heads / g->n_kv_heads, most = dense_tokens(group) * group;
    size_t rows = padded(most > BLOCK ? most : BLOCK);
    return rows * (2 * g->head_dim + SL_PAGE + 4) + 2 * (size_t)SL_PAGE * g->head_dim;
}

size_t sl_prefill_workspace(const sl_attn_geom *g) {
    return sizeof(float) * tile_floats(g) * sl_threads_n();
}

static void lay_out(const sl_attn_geom *g, float *scratch, tile *t) {
    size_t rows = padded(t->rows), dim = g->head_dim;
    t->q = scratch;
    t->o = t->q + rows * dim;
    t->s = t->o + rows * dim;
    t->kt = t->s + rows * SL_PAGE;
    t->v = t->kt + SL_PAGE * dim;
    t->m = t->v + SL_PAGE * dim;
    t->l = t->m + rows;
    t->top = t->l + rows;
    t->lost = t->top + rows;
}

static size_t row_at(const sl_attn_prefill_args *a, const tile *t, int r) { // in q and out
    size_t token = t->first + r / t->n_heads, head = t->first_head + r % t->n_heads;
    return (token * a->geom->n_heads + head) * a->geom->head_dim;
}

// How many of the keys [from, from + n) row r sees.
static int visible(const sl_attn_prefill_args *a, const tile *t, int r, int from, int n) {
    int seen = r < t->rows ? a->kv.n_kv - a->n_tokens + t->first + r / t->n_heads + 1 - from : 0;
    return seen < 0 ? 0 : seen < n ? seen : n;
}

static float largest(const float *s, int n) { // NaN if one of them is NaN
    float most = -INFINITY;
    int is_nan = 0;
    for (int i = 0; i < n; i++) {
        most = s[i] > most ? s[i] : most;
        is_nan |= isnan(s[i]);
    }
    return is_nan ? NAN : most;
}

// 1: every row's scores of the block lie more than skip_distance below the row's running maximum. The rows lose the block.
static int skips(const sl_attn_prefill_args *a, tile *t, int from) {
    float scale = sl_score_scale(a->geom->head_dim);
    for (int r = 0; r < t->rows; r++) {
        t->top[r] = largest(t->s + (size_t)r * SL_PAGE, visible(a, t, r, from, BLOCK)) * scale;
        if (!(t->m[r] - t->top[r] > a->skip_distance)) return 0;
    }
    for (int r = 0; r < t->rows; r++) t->lost[r] += BLOCK * exp2f(t->top[r] - t->m[r]);
    return 1;
}

// Visits n keys, in one page. Returns 0 if the rule skips them.
static int visit(const sl_attn_prefill_args *a, const sl_attn_kernels *kernels, tile *t, int from, int n) {
    const sl_attn_geom *g = a->geom;
    int dim = g->head_dim, rows = padded(t->rows), h = t->first_head / (g->n_heads / g->n_kv_heads);
    int n_keys = visible(a, t, t->rows - 1, from, n); // of the last token, which sees the most
    int width = (n_keys + SL_GEMM_WIDTH - 1) / SL_GEMM_WIDTH * SL_GEMM_WIDTH;
    sl_kv_run k = sl_kv_k_run(&a->kv, g->n_kv_heads, dim, from / SL_PAGE, h);
    sl_kv_run v = sl_kv_v_run(&a->kv, g->n_kv_heads, dim, from / SL_PAGE, h);
    kernels->widen_transposed(sl_kv_run_from(k, dim, from % SL_PAGE), n_keys, dim, t->kt);
    kernels->gemm(t->q, dim, t->kt, SL_PAGE, rows, width, dim, 0, t->s, SL_PAGE);
    if (a->skip_distance > 0 && skips(a, t, from)) return 0;
    kernels->widen(sl_kv_run_from(v, dim, from % SL_PAGE), n_keys, dim, t->v);
    for (int r = 0; r < rows; r++) {
        float *s = t->s + (size_t)r * SL_PAGE;
        float factor = kernels->softmax_row(s, visible(a, t, r, from, n), sl_score_scale(dim), t->m + r, t->l + r);
        if (factor == 1) continue;
        kernels->scale_row(t->o + (size_t)r * dim, dim, factor);
        t->lost[r] *= factor;
    }
    kernels->gemm(t->s, SL_PAGE, t->v, dim, rows, dim, n_keys, 1, t->o, dim);
    return 1;
}

static int next_block(const tile *t, int from, int last) {
    return t->mask ? sl_mask_next(t->mask, from, last) : from;
}

// Visits all key blocks of the tile. Returns how many it did not skip.
static int visit_blocks(const sl_attn_prefill_args *a, const sl_attn_kernels *kernels, tile *t, int last) {
    int n_visited = 0;
    for (int b = next_block(t, 0, last), n; b <= last; b = next_block(t, b + n, last)) {
        int whole_page = b % 2 == 0 && b < last && next_block(t, b + 1, last) == b + 1;
        n = whole_page && !(a->skip_distance > 0) ? 2 : 1; // the rule skips single blocks
        n_visited += n * visit(a, kernels, t, b * BLOCK, n * BLOCK);
    }
    return n_visited;
}

static void attend_tile(const sl_attn_prefill_args *a, const sl_attn_kernels *kernels, tile *t, float *scratch) {
    int dim = a->geom->head_dim;
    t->rows = t->n_tokens * t->n_heads;
    lay_out(a->geom, scratch, t);
    memset(t->q, 0, 2 * (size_t)padded(t->rows) * dim * sizeof *t->q); // q and o, with padding rows
    for (int r = 0; r < padded(t->rows); r++) t->m[r] = -INFINITY, t->l[r] = t->lost[r] = 0;
    for (int r = 0; r < t->rows; r++) memcpy(t->q + (size_t)r * dim, a->q + row_at(a, t, r), dim * sizeof *t->q);
    int last = (a->kv.n_kv - a->n_tokens + t->first + t->n_tokens - 1) / BLOCK; // block of the tile's last token
    int n_visited = visit_blocks(a, kernels, t, last);
    for (int r = 0; r < t->rows; r++) {
        float *out = a->out + row_at(a, t, r);
        for (int d = 0; d < dim; d++) out[d] = t->o[(size_t)r * dim + d] / t->l[r];
        if (a->lost) a->lost[row_at(a, t, r) / dim] = t->lost[r] / (t->l[r] + t->lost[r]);
    }
    for (int h = 0; a->counts && h < t->n_heads; h++) {
        sl_prefill_count *count = &a->counts[t->first_head + h];
        __atomic_fetch_add(&count->visited, n_visited, __ATOMIC_RELAXED);
        __atomic_fetch_add(&count->causal, last + 1, __ATOMIC_RELAXED);
    }
}

// Tile `task` of dense attention. The last tiles see the most keys, so they come first.
static tile dense_tile(const sl_attn_prefill_args *a, int task) {
    int n_kv_heads = a->geom->n_kv_heads, group = a->geom->n_heads / n_kv_heads, step = dense_tokens(group);
    int first = ((a->n_tokens - 1) / step - task / n_kv_heads) * step, left = a->n_tokens - first;
    return (tile){
        .first = first, .n_tokens = left < step ? left : step, .first_head = task % n_kv_heads * group, .n_heads = group};
}

// Tile `task` with a mask or a rule: the queries of one query block and one head.
static tile block_tile(const sl_attn_prefill_args *a, int task) {
    int n_heads = a->geom->n_heads, base = a->kv.n_kv - a->n_tokens, head = task % n_heads;
    int i = (a->kv.n_kv - 1) / BLOCK - task / n_heads, first = i * BLOCK - base, end = first + BLOCK;
    if (first < 0) first = 0;
    if (end > a->n_tokens) end = a->n_tokens;
    return (tile){.first = first,
                  .n_tokens = end - first,
                  .first_head = head,
                  .n_heads = 1,
                  .mask = a->mask ? sl_mask_row(a->mask, head, i) : NULL};
}

static void run_tile(void *ctx, size_t task, int thread) {
    const sl_attn_prefill_args *a = ctx;
    int by_block = a->mask || a->skip_distance > 0;
    tile t = by_block ? block_tile(a, (int)task) : dense_tile(a, (int)task);
    attend_tile(a, sl_attn_kernels_best(), &t, (float *)a->ws->data + tile_floats(a->geom) * (size_t)thread);
}

void sl_prefill_tiles(const sl_attn_prefill_args *a) {
    const sl_attn_geom *g = a->geom;
    int by_block = a->mask || a->skip_distance > 0, step = dense_tokens(g->n_heads / g->n_kv_heads);
    int first_block = (a->kv.n_kv - a->n_tokens) / BLOCK, last_block = (a->kv.n_kv - 1) / BLOCK;
    int n_tasks = by_block ? (last_block - first_block + 1) * g->n_heads : (a->n_tokens + step - 1) / step * g->n_kv_heads;
    SL_CHECK(sl_prefill_workspace(g) <= a->ws->size);
    SL_CHECK(!a->mask || (first_block >= a->mask->first && last_block < a->mask->first + a->mask->n));
    sl_parallel(n_tasks, run_tile, (void *)a);
}

void sl_prefill_errors(const sl_attn_prefill_args *a, int first, int n, float *exact, float *error) {
    int dim = a->geom->head_dim, n_heads = a->geom->n_heads;
    size_t at = (size_t)first * n_heads * dim;
    sl_attn_prefill_args dense = {.geom = a->geom,
                                  .spec = a->spec,
                                  .layer = a->layer,
                                  .n_tokens = n,
                                  .q = a->q + at,
                                  .out = exact,
                                  .kv = a->kv,
                                  .ws = a->ws};
    dense.kv.n_kv -= a->n_tokens - first - n;
    sl_prefill_tiles(&dense);
    for (int i = 0; i < n * n_heads; i++) {
        double square = 0, norm = sl_norm(exact + (size_t)i * dim, dim);
        for (int d = 0; d < dim; d++) square += pow(a->out[at + (size_t)i * dim + d] - exact[(size_t)i * dim + d], 2);
        error[i] = (float)(sqrt(square) / norm);
    }
}
