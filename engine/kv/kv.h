// engine/kv/kv.h - the paged KV cache: who owns which page, and the view of it that attention reads.
//
// A page holds SL_PAGE (256) consecutive tokens of one sequence and is valid for all layers. Per layer and KV head a page of
// K is one contiguous [256][head_dim] bf16 block, V the same. The pool is reserved at the start and committed by first
// touch; sl_kv_reserve takes pages before a step, never within one.
#ifndef SLEIGH_KV_H
#define SLEIGH_KV_H

#include "engine/backend/backend.h"

#include <stddef.h>

enum {
    SL_PAGE = 256,     // tokens of a page; also the tile of every sampler
    SL_KV_EXTRAS = 32, // kinds of page extras that a pool keeps at once
};

// A page extra: what an attention method wants kept beside K and V, made once from a full page of one KV head in one layer
// (quantised keys, norms of V, channel bounds, hashes). `arg` is the kind's setting; equal kind and arg share the memory.
// Pages of one layer to build on a device; all pointers are the device's.
typedef struct sl_kv_device_build {
    int arg, head_dim, n_kv_heads;
    size_t size;           // bytes of a block
    int n;                 // pages
    const int32_t *pages;  // [n]
    const int32_t *before; // [n] the sequence's page before, -1: none. Of a chained kind, which builds in order
    const bf16 *k, *v;     // [n_pages][n_kv_heads][256][head_dim]
    void *data;            // [n_pages][n_kv_heads][size]
    void *stream;          // cudaStream_t
} sl_kv_device_build;

typedef struct sl_kv_extra_kind {
    const char *name;
    int chained;                           // build reads `before`
    size_t (*size)(int arg, int head_dim); // bytes of one page of one KV head; a multiple of 64
    // What all pages of one KV head in one layer share (random projections): its bytes, and what fills them. It depends on the
    // pool's seed, the layer and the KV head; never on a sequence or a position, because sequences share pages. NULL: nothing
    size_t (*shared_size)(int arg, int head_dim);
    void (*share)(int arg, int head_dim, uint32_t seed, int layer, int head, void *out);
    // k, v: [256][head_dim]. before: of a chained kind, the block of the sequence's page before; NULL for the first.
    void (*build)(int arg, int head_dim, const bf16 *k, const bf16 *v, const void *before, const void *shared, void *out);
    // The same for many pages on a device, the same bits. NULL: not kept there
    void (*build_device)(const sl_kv_device_build *pages);
} sl_kv_extra_kind;

typedef struct sl_kv_need {
    const sl_kv_extra_kind *kind;
    int arg;
} sl_kv_need;

typedef struct sl_kv_store { // one kind's memory
    sl_kv_need need;
    size_t size;    // bytes of a block
    char *data;     // [n_layers][n_pages][n_kv_heads][size], committed by first touch
    uint8_t *built; // [n_layers][n_pages]
    char *shared;   // [n_layers][n_kv_heads][shared_size]; NULL: nothing
} sl_kv_store;

typedef struct sl_kv_pool {
    const sl_backend *backend; // whose memory k and v are
    int n_layers, n_kv_heads, head_dim, n_pages;
    uint32_t seed; // of what pages share; set it before the first sl_kv_keep
    bf16 *k, *v;   // [n_layers][n_pages][n_kv_heads][256][head_dim]
    int32_t *refs; // [n_pages] sequences that hold the page; 0: free
    int32_t *free; // stack of free page ids
    int n_free;
    size_t n_bytes; // of k and v together
    sl_kv_store stores[SL_KV_EXTRAS];
    int n_stores;
    int32_t *to_build;        // [2][n_pages] scratch of sl_kv_build
    int32_t *device_to_build; // the same in a device's memory; NULL on the CPU
} sl_kv_pool;

// One sequence's pages. n_tokens counts rows that hold data in every layer.
typedef struct sl_kv_seq {
    int32_t *pages; // [n_pages] page ids in order
    int n_pages, cap_pages;
    int n_tokens;
} sl_kv_seq;

// What a kernel reads: one layer of one sequence.
// Row j of KV head h starts at k + ((size_t)pages[j / 256] * n_kv_heads + h) * 256 * head_dim + (j % 256) * head_dim.
typedef struct sl_kv_view {
    const bf16 *k, *v;      // this layer: [n_pages][n_kv_heads][256][head_dim]
    const int32_t *pages;   // the sequence's page ids
    int n_kv;               // rows visible, the current token's own included
    const sl_kv_pool *pool; // whose extras sl_kv_extra finds
    int layer;
} sl_kv_view;

int sl_kv_pool_init(sl_kv_pool *pool, const sl_backend *backend, int n_layers, int n_kv_heads, int head_dim, int n_pages,
                    sl_error *err);
void sl_kv_pool_free(sl_kv_pool *pool);

// Bytes of K and V per token over all layers.
size_t sl_kv_bytes_per_token(int n_layers, int n_kv_heads, int head_dim);

// Makes room for rows [0, n_tokens) and makes the page of the next row this sequence's own. SL_ERR_MEMORY when the pool is out
// of pages (nothing is taken then).
int sl_kv_reserve(sl_kv_pool *pool, sl_kv_seq *seq, int n_tokens, sl_error *err);
// Keeps the first n_tokens rows and gives back pages that hold none of them.
void sl_kv_truncate(sl_kv_pool *pool, sl_kv_seq *seq, int n_tokens);
// dst (empty) gets the full pages of src's first n_tokens, shared by reference count, and its own copy of the last,
// partly filled one: the prefix is then read by both, written by neither.
int sl_kv_fork(sl_kv_pool *pool, const sl_kv_seq *src, sl_kv_seq *dst, int n_tokens, sl_error *err);
// The same with copies of all of them: as much memory as a sequence of its own.
int sl_kv_copy(sl_kv_pool *pool, const sl_kv_seq *src, sl_kv_seq *dst, int n_tokens, sl_error *err);
void sl_kv_seq_free(sl_kv_pool *pool, sl_kv_seq *seq);

// Makes the pool keep an extra; asking again is free. SL_ERR_MEMORY when it cannot.
int sl_kv_keep(sl_kv_pool *pool, sl_kv_need need, sl_error *err);
// Builds it for the sequence's full pages that lack it, in one layer. A page is built once, whoever shares it; writing to a
// page, or giving it back, forgets what was built.
void sl_kv_build(sl_kv_pool *pool, const sl_kv_seq *seq, int layer, sl_kv_need need);

// One layer's K and V for writing: [n_pages][n_kv_heads][256][head_dim].
typedef struct sl_kv_rows {
    bf16 *k, *v;
} sl_kv_rows;
sl_kv_rows sl_kv_layer(const sl_kv_pool *pool, int layer);
sl_kv_view sl_kv_view_of(const sl_kv_pool *pool, const sl_kv_seq *seq, int layer, int n_kv);

// The block of 256 rows that page number `page_index` of the view holds for KV head h: [256][head_dim].
static inline size_t sl_kv_block(const sl_kv_view *view, int n_kv_heads, int head_dim, int page_index, int h) {
    return ((size_t)view->pages[page_index] * n_kv_heads + h) * SL_PAGE * head_dim;
}

// Pages that have their extras: all but the one that the newest row lies in, which may have been written in this very step.
static inline int sl_kv_n_built(const sl_kv_view *view) {
    return (view->n_kv - 1) / SL_PAGE;
}
// The blocks of extra `need` of all pages in one layer: [n_pages][n_kv_heads][*size]. The pool must keep it.
void *sl_kv_extra_layer(const sl_kv_pool *pool, sl_kv_need need, int layer, size_t *size);
// The block of extra `need` that page number `page_index` < sl_kv_n_built holds for KV head h. The pool must keep it.
const void *sl_kv_extra(const sl_kv_view *view, sl_kv_need need, int page_index, int h);
const void *sl_kv_shared(const sl_kv_view *view, sl_kv_need need, int h); // what the pages of KV head h share

#endif
