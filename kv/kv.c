// kv/kv.c - see kv.h.
#include "kv/kv.h"
#include "backend/backend.h"
#include "kv/kv_offload.h"

#include <stdlib.h>
#include <string.h>

static size_t page_bytes(const sl_kv_pool *pool, sl_format f) { // of a layer
    return pool->n_kv_heads * sl_kv_block_bytes(f, pool->head_dim);
}

static size_t layer_bytes(const sl_kv_pool *pool, sl_format f) { // of pool->k or pool->v
    size_t n_pages = pool->offload ? pool->offload->n_frames : pool->n_pages;
    return n_pages * page_bytes(pool, f);
}

size_t sl_kv_bytes_per_token(int n_layers, int n_kv_heads, int head_dim, sl_kv_formats formats) {
    return (size_t)n_layers * n_kv_heads * (sl_kv_row_bytes(formats.k, head_dim) + sl_kv_row_bytes(formats.v, head_dim));
}

// Allocates the arrays of a pool whose numbers are set.
static int new_pool(sl_kv_pool *pool, sl_error *err) {
    const sl_backend *be = pool->backend;
    size_t k_bytes = layer_bytes(pool, pool->formats.k) * pool->n_layers;
    size_t v_bytes = layer_bytes(pool, pool->formats.v) * pool->n_layers;
    int n_pages = pool->n_pages;
    pool->n_bytes = k_bytes + v_bytes;
    pool->k = be->alloc(be, k_bytes);
    pool->v = be->alloc(be, v_bytes);
    pool->refs = calloc(n_pages, sizeof *pool->refs);
    pool->free = malloc(n_pages * sizeof *pool->free);
    pool->versions = calloc(n_pages, sizeof *pool->versions);
    if (!pool->k || !pool->v || !pool->refs || !pool->free || !pool->versions) {
        sl_kv_pool_free(pool);
        return sl_fail(err, SL_ERR_MEMORY, "KV cache of %zu MiB (%d tokens) cannot be reserved; pass a smaller {n_ctx}",
                       (k_bytes + v_bytes) >> 20, n_pages * SL_PAGE);
    }
    for (int i = 0; i < n_pages; i++) pool->free[pool->n_free++] = n_pages - 1 - i; // page 0 is taken first
    return 0;
}

int sl_kv_pool_init_formats(sl_kv_pool *pool, const sl_backend *backend, int n_layers, int n_kv_heads, int head_dim,
                            int n_pages, sl_kv_formats formats, sl_error *err) {
    *pool = (sl_kv_pool){.backend = backend,
                         .n_layers = n_layers,
                         .n_kv_heads = n_kv_heads,
                         .head_dim = head_dim,
                         .n_pages = n_pages,
                         .formats = formats};
    return new_pool(pool, err);
}

int sl_kv_pool_init(sl_kv_pool *pool, const sl_backend *backend, int n_layers, int n_kv_heads, int head_dim, int n_pages,
                    sl_error *err) {
    return sl_kv_pool_init_formats(pool, backend, n_layers, n_kv_heads, head_dim, n_pages, (sl_kv_formats){0}, err);
}

static size_t n_hot_sets(const sl_kv_pool *pool) {
    return (size_t)pool->n_layers * pool->n_kv_heads * pool->offload->hot.n_sets;
}

static int new_hot(sl_kv_pool *pool) { // 0: no memory
    const sl_backend *be = pool->backend;
    sl_kv_offload *offload = pool->offload;
    size_t n = n_hot_sets(pool), ways = n * SL_KV_HOT_WAYS;
    if (!n) return 1;
    offload->hot.tags = be->alloc(be, ways * sizeof *offload->hot.tags);
    offload->hot.order = be->alloc(be, n * sizeof *offload->hot.order);
    offload->hot.rows = be->alloc(be, ways * 2 * pool->head_dim * sizeof(bf16));
    return offload->hot.tags && offload->hot.order && offload->hot.rows;
}

// Allocates the arrays of pool->offload, whose numbers are set.
static int new_offload(sl_kv_pool *pool, sl_error *err) {
    const sl_backend *be = pool->backend;
    sl_kv_offload *offload = pool->offload;
    size_t page = (size_t)pool->n_kv_heads * SL_PAGE * pool->head_dim * sizeof(bf16), staged = 2 * offload->n_staged * page;
    offload->n_bytes = 2 * page * pool->n_pages * pool->n_layers;
    offload->rows = be->alloc_host(be, offload->n_bytes);
    offload->frame_of = malloc(pool->n_pages * sizeof *offload->frame_of);
    offload->page_of = malloc(offload->n_frames * sizeof *offload->page_of);
    offload->held = calloc(offload->n_frames, sizeof *offload->held);
    int32_t *in_order = malloc(offload->n_staged * sizeof *in_order);
    offload->staged_k = be->alloc(be, staged), offload->staged_v = be->alloc(be, staged);
    offload->in_order = be->alloc(be, offload->n_staged * sizeof *in_order);
    offload->versions = be->alloc(be, pool->n_pages * sizeof *offload->versions);
    int ok = new_hot(pool) && offload->versions && offload->rows && offload->frame_of && offload->page_of && offload->held &&
             in_order && offload->staged_k && offload->staged_v && offload->in_order;
    for (int i = 0; ok && i < offload->n_staged; i++) in_order[i] = i;
    if (ok) be->upload(be, offload->in_order, in_order, offload->n_staged * sizeof *in_order);
    for (int i = 0; ok && i < pool->n_pages; i++) offload->frame_of[i] = -1;
    for (int i = 0; ok && i < offload->n_frames; i++) offload->page_of[i] = -1;
    offload->hot.versions = offload->versions;
    free(in_order);
    if (ok) return 0;
    size_t mib = offload->n_bytes >> 20, staged_mib = 2 * staged >> 20;
    sl_kv_pool_free(pool);
    return sl_fail(
        err, SL_ERR_MEMORY,
        "KV cache of %zu MiB of page-locked host memory, and %zu MiB of the device for two layers: out of memory; pass "
        "a smaller {n_ctx}",
        mib, staged_mib);
}

int sl_kv_pool_init_offloaded(sl_kv_pool *pool, const sl_backend *backend, int n_layers, int n_kv_heads, int head_dim,
                              int n_pages, int n_frames, int n_staged, int n_hot, sl_error *err) {
    *pool = (sl_kv_pool){
        .backend = backend, .n_layers = n_layers, .n_kv_heads = n_kv_heads, .head_dim = head_dim, .n_pages = n_pages};
    SL_CHECK(n_frames > SL_KV_SPARE_FRAMES && n_staged > 0);
    if (!(pool->offload = calloc(1, sizeof *pool->offload))) return sl_fail(err, SL_ERR_MEMORY, "KV cache: out of memory");
    SL_CHECK((int64_t)n_pages * n_kv_heads * SL_PAGE < SL_KV_OFFLOADED_ROWS);
    pool->offload->n_frames = n_frames, pool->offload->n_staged = n_staged;
    pool->offload->hot = (sl_kv_hot_rows){.n_sets = n_hot / SL_KV_HOT_WAYS, .imposed = -1};
    int rc = new_pool(pool, err);
    return rc ? rc : new_offload(pool, err);
}

static void free_offload(sl_kv_pool *pool) {
    const sl_backend *be = pool->backend;
    sl_kv_offload *offload = pool->offload;
    size_t staged = 2 * (size_t)offload->n_staged * pool->n_kv_heads * SL_PAGE * pool->head_dim * sizeof(bf16);
    be->release_host(be, offload->rows, offload->n_bytes);
    be->release(be, offload->staged_k, staged);
    be->release(be, offload->staged_v, staged);
    be->release(be, offload->in_order, offload->n_staged * sizeof *offload->in_order);
    be->release(be, offload->versions, pool->n_pages * sizeof *offload->versions);
    size_t sets = n_hot_sets(pool), ways = sets * SL_KV_HOT_WAYS;
    be->release(be, offload->hot.tags, ways * sizeof *offload->hot.tags);
    be->release(be, offload->hot.order, sets * sizeof *offload->hot.order);
    be->release(be, offload->hot.rows, ways * 2 * pool->head_dim * sizeof(bf16));
    free(offload->frame_of);
    free(offload->page_of);
    free(offload->held);
    free(offload);
}

static size_t scales_bytes(const sl_kv_pool *pool) { // of k_scales or v_scales
    return (size_t)pool->n_layers * pool->n_kv_heads * sizeof(float);
}

int sl_kv_pool_set_scales(sl_kv_pool *pool, const float *k, const float *v, sl_error *err) {
    const sl_backend *be = pool->backend;
    const size_t size = scales_bytes(pool);
    if (k) pool->k_scales = be->alloc(be, size);
    if (v) pool->v_scales = be->alloc(be, size);
    if ((k && !pool->k_scales) || (v && !pool->v_scales))
        return sl_fail(err, SL_ERR_MEMORY, "scales of the KV cache: out of memory");
    if (k) be->upload(be, pool->k_scales, k, size);
    if (v) be->upload(be, pool->v_scales, v, size);
    return 0;
}

void sl_kv_pool_free(sl_kv_pool *pool) {
    const sl_backend *be = pool->backend;
    if (be) {
        be->release(be, pool->k, layer_bytes(pool, pool->formats.k) * pool->n_layers);
        be->release(be, pool->v, layer_bytes(pool, pool->formats.v) * pool->n_layers);
        be->release(be, pool->k_scales, scales_bytes(pool));
        be->release(be, pool->v_scales, scales_bytes(pool));
    }
    if (pool->offload) free_offload(pool);
    if (pool->extras) pool->free_extras(pool);
    free(pool->refs);
    free(pool->free);
    free(pool->versions);
    *pool = (sl_kv_pool){0};
}

static int grow_table(sl_kv_seq *seq, int n_pages, sl_error *err) {
    if (n_pages <= seq->cap_pages) return 0;
    int cap = n_pages > 2 * seq->cap_pages ? n_pages : 2 * seq->cap_pages;
    int32_t *pages = realloc(seq->pages, cap * sizeof *pages);
    if (!pages) return sl_fail(err, SL_ERR_MEMORY, "page table of %d pages: out of memory", cap);
    seq->pages = pages;
    seq->cap_pages = cap;
    return 0;
}

// Copies all layers of one page.
static void copy_page(sl_kv_pool *pool, int32_t to, int32_t from) {
    const sl_backend *be = pool->backend;
    if (pool->offload) {
        sl_kv_offload_copy(pool, to, from);
        return;
    }
    for (int is_v = 0; is_v < 2; is_v++) {
        sl_format f = is_v ? pool->formats.v : pool->formats.k;
        size_t page = page_bytes(pool, f), pitch = layer_bytes(pool, f);
        char *rows = (char *)(is_v ? pool->v : pool->k);
        be->copy(be, rows + to * page, pitch, rows + from * page, pitch, page, pool->n_layers);
    }
}

static int32_t take_page(sl_kv_pool *pool) {
    int32_t id = pool->free[--pool->n_free];
    pool->refs[id] = 1;
    pool->versions[id]++;
    return id;
}

void sl_kv_page_use(sl_kv_pool *pool, int32_t id) {
    SL_CHECK(pool->refs[id] > 0);
    pool->refs[id]++;
}

void sl_kv_page_drop(sl_kv_pool *pool, int32_t id) {
    SL_CHECK(pool->refs[id] > 0);
    if (--pool->refs[id] > 0) return;
    sl_kv_offload_forget(pool, id);
    pool->free[pool->n_free++] = id;
}

static int check_free(const sl_kv_pool *pool, int n, sl_error *err) {
    if (n <= pool->n_free) return 0;
    return sl_fail(err, SL_ERR_MEMORY,
                   "KV cache is full: %d more pages of %d tokens needed, %d free of %d; use fewer sequences, a "
                   "larger {n_ctx}, or more tokens of cache",
                   n, SL_PAGE, pool->n_free, pool->n_pages);
}

// 1: rows up to n_tokens begin in a partly filled page.
static int fills_page(const sl_kv_seq *seq, int n_tokens) {
    return n_tokens > seq->n_tokens && seq->n_tokens % SL_PAGE;
}

// 1: this page is copied before it is written, because another sequence also holds it.
static int copies_page(const sl_kv_pool *pool, const sl_kv_seq *seq, int n_tokens) {
    return fills_page(seq, n_tokens) && pool->refs[seq->pages[seq->n_tokens / SL_PAGE]] > 1;
}

int sl_kv_lacking(const sl_kv_pool *pool, const sl_kv_seq *seq, int n_tokens) {
    int want = sl_kv_pages_of(n_tokens), more = want > seq->n_pages ? want - seq->n_pages : 0;
    return more + copies_page(pool, seq, n_tokens);
}

int sl_kv_reserve(sl_kv_pool *pool, sl_kv_seq *seq, int n_tokens, sl_error *err) {
    int want = sl_kv_pages_of(n_tokens), lacking = sl_kv_lacking(pool, seq, n_tokens), last = seq->n_tokens / SL_PAGE;
    int shared = copies_page(pool, seq, n_tokens);
    if (fills_page(seq, n_tokens) && !shared) pool->versions[seq->pages[last]]++;
    if (lacking == 0) return 0;
    int rc = check_free(pool, lacking, err);
    if (!rc) rc = grow_table(seq, want, err);
    if (rc) return rc;
    if (shared) {
        int32_t own = take_page(pool);
        copy_page(pool, own, seq->pages[last]);
        sl_kv_page_drop(pool, seq->pages[last]);
        seq->pages[last] = own;
    }
    while (seq->n_pages < want) seq->pages[seq->n_pages++] = take_page(pool);
    return 0;
}

void sl_kv_truncate(sl_kv_pool *pool, sl_kv_seq *seq, int n_tokens) {
    SL_CHECK(n_tokens >= 0 && n_tokens <= seq->n_tokens);
    int keep = sl_kv_pages_of(n_tokens);
    while (seq->n_pages > keep) sl_kv_page_drop(pool, seq->pages[--seq->n_pages]);
    seq->n_tokens = n_tokens;
}

// Gives dst the pages of the first n_tokens rows of src: shares the first n_shared pages, copies the others.
static int branch(sl_kv_pool *pool, const sl_kv_seq *src, sl_kv_seq *dst, int n_tokens, int n_shared, sl_error *err) {
    SL_CHECK(dst->n_pages == 0 && n_tokens <= src->n_tokens);
    int n_pages = sl_kv_pages_of(n_tokens), rc = check_free(pool, n_pages - n_shared, err);
    if (!rc) rc = grow_table(dst, n_pages, err);
    if (rc) return rc;
    for (int i = 0; i < n_pages; i++) {
        dst->pages[i] = i < n_shared ? src->pages[i] : take_page(pool);
        if (i < n_shared)
            pool->refs[dst->pages[i]]++;
        else
            copy_page(pool, dst->pages[i], src->pages[i]);
    }
    dst->n_pages = n_pages;
    dst->n_tokens = n_tokens;
    return 0;
}

int sl_kv_fork(sl_kv_pool *pool, const sl_kv_seq *src, sl_kv_seq *dst, int n_tokens, sl_error *err) {
    return branch(pool, src, dst, n_tokens, n_tokens / SL_PAGE, err);
}

int sl_kv_copy(sl_kv_pool *pool, const sl_kv_seq *src, sl_kv_seq *dst, int n_tokens, sl_error *err) {
    return branch(pool, src, dst, n_tokens, 0, err);
}

int sl_kv_share(sl_kv_pool *pool, sl_kv_seq *dst, const int32_t *pages, int n, sl_error *err) {
    SL_CHECK(dst->n_pages == 0);
    int rc = grow_table(dst, n, err);
    if (rc) return rc;
    for (int i = 0; i < n; i++) sl_kv_page_use(pool, dst->pages[i] = pages[i]);
    dst->n_pages = n, dst->n_tokens = n * SL_PAGE;
    return 0;
}

void sl_kv_seq_free(sl_kv_pool *pool, sl_kv_seq *seq) {
    while (seq->n_pages > 0) sl_kv_page_drop(pool, seq->pages[--seq->n_pages]);
    free(seq->pages);
    *seq = (sl_kv_seq){0};
}

sl_kv_rows sl_kv_layer(const sl_kv_pool *pool, int layer) {
    const sl_kv_formats f = pool->formats;
    const size_t head = (size_t)layer * pool->n_kv_heads;
    return (sl_kv_rows){.k = (bf16 *)((char *)pool->k + layer * layer_bytes(pool, f.k)),
                        .v = (bf16 *)((char *)pool->v + layer * layer_bytes(pool, f.v)),
                        .formats = f,
                        .k_scales = pool->k_scales ? pool->k_scales + head : NULL,
                        .v_scales = pool->v_scales ? pool->v_scales + head : NULL};
}

sl_kv_view sl_kv_view_of(const sl_kv_pool *pool, const sl_kv_seq *seq, int layer, int n_kv) {
    sl_kv_rows rows = sl_kv_layer(pool, layer);
    return (sl_kv_view){
        .k = rows.k, .v = rows.v, .formats = rows.formats, .pages = seq->pages, .n_kv = n_kv, .pool = pool, .layer = layer};
}
