// kv/kv_extras.h - page extras: what an attention method keeps for every full page in addition to K and V (quantised
// keys, norms of V, channel bounds, hashes).
//
// An extra is a block of bytes for each layer, page and KV head. The block is built once, from the rows of a full page.
// Sequences that share a page also share the extras of the page. An extra is a kind (how to build it) and an argument of this
// kind; methods that need the same kind and argument share the memory.
//
// The kind of a span has one block for `span` consecutive pages of a sequence: pages [i span, (i + 1) span) share the block
// that is kept with their last page. It is built from the blocks of another extra. The pages before a page of a sequence do not
// change while the page does not change: sequences share prefixes only, and a cut drops the later pages. So the block of a span
// is valid as long as its last page is.
//
// Few pages end a span, and the memory of a device is not committed by first touch. So a device has blocks of spans for an
// eighth of the pages, and SL_KV_SPARE_SLOTS more. Without forks a sixteenth is enough. Many forks of one long prompt can need
// more: then the last page of a span has no block, and readers use the extra `of` of the span's pages.
#ifndef SLEIGH_KV_EXTRAS_H
#define SLEIGH_KV_EXTRAS_H

#include "kv/kv.h"

enum {
    SL_KV_EXTRAS = 32,     // extras that one pool keeps at most
    SL_KV_SPARE_SLOTS = 16 // of spans on a device
};

// Pages of one layer to build on a device, or spans. All pointers are device memory, except for `buckets`.
typedef struct sl_kv_device_build {
    int arg, head_dim, n_kv_heads;
    size_t size;           // bytes of a block
    int n;                 // number of blocks to build, for all KV heads
    const int32_t *pages;  // [n] page ids; of a span: of its last page
    const int32_t *before; // [n] page id of the previous page of the sequence, -1: none. A chained kind builds in this order
    const bf16 *k, *v;     // [places][n_kv_heads] blocks of 256 rows (kv_rows.h)
    sl_format format;      // of k and v
    const int32_t *from;   // [n] the place of a page in k and v: its id, if k and v are those of the pool. Of a span: [n][span]
    void *data;            // [n_pages][n_kv_heads][size]; of a span: [slots][n_kv_heads][size]
    void *stream;          // cudaStream_t
    int layer;
    const int32_t *index; // [n] number of the page in its sequence: its first row has the position 256 * index
    // Of a span.
    const int32_t *parts; // [n][span] page ids
    const int32_t *slots; // [n] the block of `data` to write
    const void *of;       // data of the extra `of`: [n_pages][n_kv_heads][of_size]
    size_t of_size;
    const struct sl_buckets *buckets; // sl_kv_pool.buckets
} sl_kv_device_build;

// What build reads: one full page of one KV head, or one span.
typedef struct sl_kv_page {
    int arg, head_dim, layer, h;      // h: KV head
    int first;                        // position of row 0; of a span: of its first row
    sl_kv_run k, v;                   // [256][head_dim]; data NULL for a span
    const void *before;               // the block of the previous page, for a chained kind; NULL: the first page
    const void *const *parts;         // [span] the blocks of the pages of a span in the extra `of`; NULL: no span
    const sl_kv_run *k_parts;         // [span] K of these pages, [256][head_dim] each
    const void *shared;               // data of the KV head; NULL: none
    const struct sl_buckets *buckets; // sl_kv_pool.buckets
} sl_kv_page;

enum { SL_KV_SPAN_MOST = 16 };

typedef struct sl_kv_extra_kind {
    const char *name;
    int chained;                           // 1: build reads the block of the previous page
    int span;                              // pages of a block, at most SL_KV_SPAN_MOST; 0: a block for each page
    const struct sl_kv_extra_kind *of;     // of a span: it is built from this kind with the same argument, which the pool keeps
    size_t (*size)(int arg, int head_dim); // bytes of a block, a multiple of 64
    // Data that all pages of one KV head in one layer share (random projections): the number of bytes, and the function that
    // computes the data. The data depend on the seed of the pool, the layer and the KV head, but not on a sequence or a
    // position, because sequences share pages. NULL: no such data
    size_t (*shared_size)(int arg, int head_dim);
    void (*share)(int arg, int head_dim, uint32_t seed, int layer, int head, void *out);
    void (*build)(const sl_kv_page *page, void *out); // one block
    // Builds many pages on a device, with the same bits as build. NULL: not available on a device
    void (*build_device)(const sl_kv_device_build *pages);
} sl_kv_extra_kind;

typedef struct sl_kv_need { // one extra
    const sl_kv_extra_kind *kind;
    int arg;
} sl_kv_need;

// Makes the pool keep an extra. A second call for the same extra does nothing. SL_ERR_MEMORY: no memory, or too many extras.
int sl_kv_keep(sl_kv_pool *pool, sl_kv_need need, sl_error *err);
// Builds an extra in one layer, for every full page (or full span) of the sequence whose block is missing or out of date. The
// pool must keep the extra. Build the extra `of` of a span first.
void sl_kv_build(sl_kv_pool *pool, const sl_kv_seq *seq, int layer, sl_kv_need need);

// Number of pages of the view that have extras: all pages except the page of the newest row. This step may have filled that
// page, and its extras are built later.
static inline int sl_kv_n_built(const sl_kv_view *view) {
    return (view->n_kv - 1) / SL_PAGE;
}
// All blocks of an extra in one layer: [n_pages][n_kv_heads][*size], of a span [slots][n_kv_heads][*size]. The pool must keep
// the extra.
void *sl_kv_extra_layer(const sl_kv_pool *pool, sl_kv_need need, int layer, size_t *size);
// Of a span, on a device: the slots of the pages, [n_pages] in device memory, -1: the page has no block. NULL: no span.
const int32_t *sl_kv_extra_slots(const sl_kv_pool *pool, sl_kv_need need);
// Number of spans of `span` pages that have a block.
static inline int sl_kv_n_spans(const sl_kv_view *view, int span) {
    return sl_kv_n_built(view) / span;
}
// The block of page number `page_index` < sl_kv_n_built(view) and KV head h. The pool must keep the extra. Of a span:
// page_index is its last page.
const void *sl_kv_extra(const sl_kv_view *view, sl_kv_need need, int page_index, int h);
// The data that the pages of KV head h share; NULL: the kind has none.
const void *sl_kv_shared(const sl_kv_view *view, sl_kv_need need, int h);

#endif
