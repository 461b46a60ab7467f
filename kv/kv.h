// kv/kv.h - the paged KV cache: a pool of pages, the sequences that hold them, and the view that attention reads.
//
// A page holds SL_PAGE (256) consecutive rows of one sequence, in all layers. In each layer and KV head, K of the page is one
// contiguous block of 256 rows, and so is V; kv/kv_rows.h has the formats of a block. Sequences share full pages by reference
// count. The pool reserves address space at the start; the operating system commits memory at first touch. sl_kv_reserve takes
// pages before a step, never within it. What attention methods keep for each page is in kv/kv_extras.h.
//
// Pointers to the rows of a pool are bf16 pointers, because most caches are bf16, and caches with `offload` always are. With
// another format they are addresses of blocks, and sl_kv_k_run and sl_kv_v_run find the rows. On a GPU, K and V have the same
// format.
#ifndef SLEIGH_KV_H
#define SLEIGH_KV_H

#include "backend/row.h"
#include "base/error.h"
#include "kv/kv_rows.h"

#include <stddef.h>

typedef struct sl_backend sl_backend;

typedef struct sl_kv_pool {
    const sl_backend *backend; // k and v lie in its memory
    int n_layers, n_kv_heads, head_dim, n_pages;
    sl_kv_formats formats;
    float *k_scales, *v_scales; // [n_layers][n_kv_heads] of a checkpoint, in the backend's memory; NULL: each row's own
    uint32_t seed;              // of the random numbers that page extras use; set it before the first sl_kv_keep
    const struct sl_buckets
        *buckets;                  // the model's, for page extras that read them (attention/extras/buckets.h); NULL: none yet
    bf16 *k, *v;                   // [n_layers][n_pages][n_kv_heads] blocks; with `offload`: n_frames in place of n_pages
    struct sl_kv_offload *offload; // the rows are in host memory (kv_offload.h); NULL: they are in k and v
    int32_t *refs;                 // [n_pages] holders of the page, sequences and prefix trees; 0: free
    int32_t *free;                 // [n_free] ids of free pages, a stack
    int n_free;                    // pages
    uint64_t *versions;            // [n_pages] grows before rows of the page change; never 0. See kv_extras.c
    size_t n_bytes;                // of k and v together
    struct sl_kv_extras *extras;   // of kv_extras.c; NULL: none yet
    void (*free_extras)(struct sl_kv_pool *pool); // kv_extras.c sets this pointer, because kv.c must not call kv_extras.c
} sl_kv_pool;

typedef struct sl_kv_seq {
    int32_t *pages; // [n_pages] page ids, in the order of the rows
    int n_pages, cap_pages;
    int n_tokens; // rows that hold data in every layer
} sl_kv_seq;

// One layer of one sequence, for reading. Row j of KV head h is row j % 256 of block number pages[j / 256] * n_kv_heads + h.
typedef struct sl_kv_view {
    const bf16 *k, *v; // this layer: [n_pages][n_kv_heads] blocks
    sl_kv_formats formats;
    const int32_t *pages; // page ids of the sequence
    int n_kv;             // visible rows; the row of the current token is the last one
    const sl_kv_pool *pool;
    int layer;
} sl_kv_view;

// One layer for writing: [n_pages][n_kv_heads] blocks.
typedef struct sl_kv_rows {
    bf16 *k, *v;
    sl_kv_formats formats;
    const float *k_scales, *v_scales; // [n_kv_heads] of this layer; NULL: each row has its own scale
} sl_kv_rows;

int sl_kv_pool_init(sl_kv_pool *pool, const sl_backend *backend, int n_layers, int n_kv_heads, int head_dim, int n_pages,
                    sl_error *err); // bf16
int sl_kv_pool_init_formats(sl_kv_pool *pool, const sl_backend *backend, int n_layers, int n_kv_heads, int head_dim,
                            int n_pages, sl_kv_formats formats, sl_error *err);
// A pool of bf16 whose rows lie in host memory (kv_offload.h), with n_frames pages in the backend's memory, at least
// SL_KV_SPARE_FRAMES
// + 1, n_staged pages of one layer, and a cache of at most n_hot rows of each layer and KV head.
int sl_kv_pool_init_offloaded(sl_kv_pool *pool, const sl_backend *backend, int n_layers, int n_kv_heads, int head_dim,
                              int n_pages, int n_frames, int n_staged, int n_hot, sl_error *err);
// Rows that a pass appends get these scales, [n_layers][n_kv_heads] each; NULL: scales of their own. Rows of a session file and
// random rows keep theirs. Call it before the first row.
int sl_kv_pool_set_scales(sl_kv_pool *pool, const float *k, const float *v, sl_error *err); // SL_ERR_MEMORY
void sl_kv_pool_free(sl_kv_pool *pool);

static inline int sl_kv_pages_of(int n_tokens) {
    return (int)(((int64_t)n_tokens + SL_PAGE - 1) / SL_PAGE);
}
// Bytes of K and V per token, over all layers, with scales.
size_t sl_kv_bytes_per_token(int n_layers, int n_kv_heads, int head_dim, sl_kv_formats formats);

// Makes room for rows [0, n_tokens). If the next row lies in a page that another sequence also holds, the sequence gets a copy
// of this page. SL_ERR_MEMORY when the pool has too few free pages; then nothing changes.
int sl_kv_reserve(sl_kv_pool *pool, sl_kv_seq *seq, int n_tokens, sl_error *err);
// The free pages that sl_kv_reserve needs, with one for the copy of a shared page.
int sl_kv_lacking(const sl_kv_pool *pool, const sl_kv_seq *seq, int n_tokens);
// Keeps the first n_tokens rows, and releases the pages that hold no such row.
void sl_kv_truncate(sl_kv_pool *pool, sl_kv_seq *seq, int n_tokens);
// dst (empty) gets the first n_tokens rows of src: full pages are shared, a partly filled last page is copied. Later writes of
// one sequence do not change rows of the other.
int sl_kv_fork(sl_kv_pool *pool, const sl_kv_seq *src, sl_kv_seq *dst, int n_tokens, sl_error *err);
// The same as sl_kv_fork, but every page is copied.
int sl_kv_copy(sl_kv_pool *pool, const sl_kv_seq *src, sl_kv_seq *dst, int n_tokens, sl_error *err);
void sl_kv_seq_free(sl_kv_pool *pool, sl_kv_seq *seq);
// dst (empty) shares the n full pages.
int sl_kv_share(sl_kv_pool *pool, sl_kv_seq *dst, const int32_t *pages, int n, sl_error *err);
void sl_kv_page_use(sl_kv_pool *pool, int32_t page);  // one more holder of a page that is held already
void sl_kv_page_drop(sl_kv_pool *pool, int32_t page); // one holder less; without a holder the page is free

sl_kv_rows sl_kv_layer(const sl_kv_pool *pool, int layer); // with `offload`: the frames
sl_kv_view sl_kv_view_of(const sl_kv_pool *pool, const sl_kv_seq *seq, int layer, int n_kv);

// The rows of K (or V) of page number `page_index` of the view and KV head h.
static inline sl_kv_run sl_kv_k_run(const sl_kv_view *view, int n_kv_heads, int head_dim, int page_index, int h) {
    return sl_kv_run_of(view->k, view->formats.k, head_dim, (size_t)view->pages[page_index] * n_kv_heads + h);
}
static inline sl_kv_run sl_kv_v_run(const sl_kv_view *view, int n_kv_heads, int head_dim, int page_index, int h) {
    return sl_kv_run_of(view->v, view->formats.v, head_dim, (size_t)view->pages[page_index] * n_kv_heads + h);
}

#endif
