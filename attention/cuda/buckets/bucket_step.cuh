// attention/cuda/buckets/bucket_step.cuh - a step of a saap method in one layer, on CUDA: what its kernels share, and the
// functions that launch them.
//
// | file               | makes                                       | which is read by                    |
// |--------------------|---------------------------------------------|-------------------------------------|
// | bucket_scores.cu   | scores of buckets                           | bucket_visit.cu                     |
// | bucket_visit.cu    | the visited buckets and lists of their rows | attend_buckets.cuh, bucket_draws.cu |
// | bucket_draws.cu    | rows and weights, for saap-is               | attend_buckets.cuh                  |
// | attend_buckets.cuh | the output of attention                     | the output projection               |
//
// saap.cu launches them in this order. bucket_scores.cu states which kernel waits for which one.
#ifndef SLEIGH_BUCKET_STEP_CUH
#define SLEIGH_BUCKET_STEP_CUH

#include "attention/attention_cuda.h"
#include "attention/cuda/decode_ring.cuh"
#include "attention/cuda/workspace.cuh"
#include "attention/extras/bucket_index.h"
#include "backend/cuda/device.cuh"

#include <cuda_bf16.h>

// What the kernels of a step share.
struct bucket_step {
    const sl_row *rows; // [n_seqs]
    const bf16 *q;      // [n_seqs][n_kv_heads][group][head_dim]
    int n_seqs, n_kv_heads, group, head_dim;
    int l, sink, window; // of the specification; l at most C
    int scores;          // 1: buckets are scored
    int roped, C, W;
    // of the layer: sl_buckets from KV head 0 on; w1 NULL: buckets are scored by their centroids
    const bf16 *centroids, *w1, *w2;
    const float *b1, *b2, *inv_freq;
    const char *page_rows, *lists; // page extras: sl_bucket_rows, sl_bucket_lists
    size_t page_rows_size, lists_size;
    const int32_t *slots; // of lists
    // of saap-is
    const int32_t *cell_slots; // of bucket cells
    int *cell_count;   // [n_seqs * n_kv_heads][max_sections][CELL_COUNTS] rows that may be drawn: of 64 cells and 0; in a
                       // section without cells of 16 pages, and at the end of all pages
    float *hidden;     // [n_seqs * n_heads][W]
    float *logits;     // [n_seqs * n_heads][C]
    float *score;      // [n_seqs * n_kv_heads][C] by centroids
    uint32_t *visited; // [n_seqs * n_kv_heads][VISIT_WORDS] bit c: bucket c is visited
    int *count;        // [n_seqs * n_kv_heads][max_sections] listed rows
    int32_t *list;     // [n_seqs * n_kv_heads][max_sections][4096] pool rows
    int max_sections;
    sl_attn_cuda_stats *stats;
};

// The draws of saap-is.
struct bucket_draws {
    bucket_step visit;
    const char *cells; // page extra: [64][2][head_dim] mean and variance
    size_t cells_size;
    float scale; // log2(e) / sqrt(head_dim)
    int S, layer, first_head;
    float *score;  // [n_seqs * n_heads][max_sections][64] log2; -inf: no score
    int *drawable; // [n_seqs * n_kv_heads] rows that may be drawn
    int32_t *draw; // [n_seqs * n_heads][S] pool rows
    float *weight; // [n_seqs * n_heads][S] log2 of 1 / pi
};

// bucket_scores.cu
void sl_cuda_score_buckets(const bucket_step &p, cudaStream_t stream);
// bucket_visit.cu. draws: counts the rows that may be drawn.
void sl_cuda_visit_buckets(const bucket_step &p, bool draws, cudaStream_t stream);
// bucket_draws.cu. Scores of cells do not depend on the visited buckets.
void sl_cuda_score_cells(const bucket_draws &p, cudaStream_t stream);
void sl_cuda_draw_cells(const bucket_draws &p, cudaStream_t stream);

namespace {

enum {
    VISIT_WORDS = SL_BUCKETS_MOST / 32,
    SECTIONS_MOST = SL_CUDA_LONG_ROWS / SL_BUCKET_SPAN_ROWS + 1,
    CELL_COUNTS = SL_BUCKET_CELLS + 1,
};

// ---- the rows of a step ----

// Rows [0, sink) and [window, n_kv) are always read. Rows between them are read if their bucket is visited. window <= sink: no
// row is between them.
struct visit_range {
    int n_kv, sink, window;
    int n_built;    // pages with a bucket index
    int n_sections; // 0: no row is between sink and window
    __device__ int n_spans() const { return n_sections - 1; }
};

__device__ visit_range range_of(const bucket_step &p, const sl_row &row) {
    visit_range r;
    r.n_kv = row.position + 1, r.n_built = row.position / SL_PAGE;
    r.sink = min(p.sink, r.n_kv);
    r.window = min(p.window < r.n_kv ? r.n_kv - p.window : 0, r.n_built * SL_PAGE);
    r.n_sections = 0;
    if (r.sink >= r.window)
        r.sink = r.window = r.n_kv; // every row is read
    else
        r.n_sections = min(ceil_div(r.window, SL_BUCKET_SPAN_ROWS), r.n_built / SL_BUCKET_SPAN) + 1;
    return r;
}

// ---- the index ----

// The first of the ascending rows [0, n) that is at least `row`.
__device__ int first_from(const uint16_t *rows, int n, int row) {
    int from = 0;
    while (from < n) {
        int middle = (from + n) / 2;
        if (rows[middle] < row)
            from = middle + 1;
        else
            n = middle;
    }
    return from;
}

// Rows of a run that lie in [sink, window). *rows moves to the first of them. base: position of row 0 of the span.
__device__ int trim_run(const visit_range &r, int base, const uint16_t **rows, int n) {
    if (base < r.sink) {
        int first = first_from(*rows, n, r.sink - base);
        *rows += first, n -= first;
    }
    return base + SL_BUCKET_SPAN_ROWS > r.window ? first_from(*rows, n, r.window - base) : n;
}

// The slot of a span's lists; -1: it has none.
__device__ int slot_of(const bucket_step &p, const visit_range &r, const sl_row &row, int section) {
    return section < r.n_spans() ? __ldcg(p.slots + row.pages[(section + 1) * SL_BUCKET_SPAN - 1]) : -1;
}

__device__ const sl_bucket_lists *lists_of(const bucket_step &p, int seq_head, int slot) {
    size_t block = (size_t)slot * p.n_kv_heads + seq_head % p.n_kv_heads;
    return slot < 0 ? NULL : (const sl_bucket_lists *)(p.lists + block * p.lists_size);
}

__device__ const sl_bucket_rows *bucket_rows_of(const bucket_step &p, const sl_row &row, int seq_head, int page) {
    size_t block = (size_t)row.pages[page] * p.n_kv_heads + seq_head % p.n_kv_heads;
    return (const sl_bucket_rows *)(p.page_rows + block * p.page_rows_size);
}

// The first pool row of a page.
__device__ int pool_page(const bucket_step &p, const sl_row &row, int seq_head, int page) {
    return (row.pages[page] * p.n_kv_heads + seq_head % p.n_kv_heads) * SL_PAGE;
}

// The slot of a span's cells; -1: it has none.
__device__ int cell_slot_of(const bucket_step &p, const visit_range &r, const sl_row &row, int section) {
    return section < r.n_spans() ? __ldcg(p.cell_slots + row.pages[(section + 1) * SL_BUCKET_SPAN - 1]) : -1;
}

// The buckets of a cell: [*first, *end).
__device__ void buckets_of_cell(int cell, int C, int *first, int *end) {
    bool is_few = C < SL_BUCKET_CELLS;
    *first = is_few ? min(cell, C) : ceil_div(cell * C, SL_BUCKET_CELLS);
    *end = is_few ? min(cell + 1, C) : ceil_div((cell + 1) * C, SL_BUCKET_CELLS);
}

// ---- numbers ----

// part[0] + part[1] + part[2] = x, as pairs of bf16: each part is the rounded rest.
__device__ __forceinline__ void split(float2 x, uint32_t part[3]) {
#pragma unroll
    for (int i = 0; i < 3; i++) {
        part[i] = sl_pack_bf16(x.x, x.y);
        x.x -= sl_widen((bf16)part[i]), x.y -= sl_widen((bf16)(part[i] >> 16));
    }
}

// ---- the workspace ----

// The arrays of the visit.
inline void take_visit(arena *a, bucket_step *p, int n_seqs, int max_kv) {
    size_t seq_heads = (size_t)n_seqs * p->n_kv_heads, heads = seq_heads * p->group;
    p->max_sections = (max_kv - 1) / SL_BUCKET_SPAN_ROWS + 1;
    p->count = a->take<int>(seq_heads * p->max_sections);
    p->list = a->take<int32_t>(seq_heads * p->max_sections * SL_BUCKET_SPAN_ROWS);
    p->visited = a->take<uint32_t>(seq_heads * VISIT_WORDS);
    p->score = a->take<float>(seq_heads * p->C);
    p->hidden = p->logits = NULL;
    if (!p->W) return;
    p->hidden = a->take<float>(heads * p->W);
    p->logits = a->take<float>(heads * p->C);
}

// The arrays of the draws.
inline void take_draws(arena *a, bucket_draws *p, int n_seqs) {
    const bucket_step &v = p->visit;
    size_t seq_heads = (size_t)n_seqs * v.n_kv_heads, heads = seq_heads * v.group;
    p->visit.cell_count = a->take<int>(seq_heads * v.max_sections * CELL_COUNTS);
    p->score = a->take<float>(heads * v.max_sections * SL_BUCKET_CELLS);
    p->drawable = a->take<int>(seq_heads);
    p->draw = a->take<int32_t>(heads * p->S);
    p->weight = a->take<float>(heads * p->S);
}

} // namespace

#endif
