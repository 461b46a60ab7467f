// kv/kv.c - see kv.h.
#include "kv/kv.h"
#include "kv/kv_host.h"

#include <stdlib.h>
#include <string.h>

static size_t layer_elems(const sl_kv_pool *pool) { // of pool->k
    size_t n_pages = pool->host ? pool->host->n_frames : pool->n_pages;
    return n_pages * pool->n_kv_heads * SL_PAGE * pool->head_dim;
}

size_t sl_kv_bytes_per_token(int n_layers, int n_kv_heads, int head_dim) {
    return (size_t)n_layers * n_kv_heads * head_dim * 2 * sizeof(bf16);
}

// Allocates the arrays of a pool whose numbers are set.
static int new_pool(sl_kv_pool *pool, sl_error *err) {
    const sl_backend *be = pool->backend;
    size_t bytes = layer_elems(pool) * pool->n_layers * sizeof(bf16);
    int n_pages = pool->n_pages;
    pool->n_bytes = 2 * bytes;
    pool->k = be->alloc(be, bytes);
    pool->v = be->alloc(be, bytes);
    pool->refs = calloc(n_pages, sizeof *pool->refs);
    pool->free = malloc(n_pages * sizeof *pool->free);
    pool->versions = calloc(n_pages, sizeof *pool->versions);
    if (!pool->k || !pool->v || !pool->refs || !pool->free || !pool->versions) {
        sl_kv_pool_free(pool);
        return sl_fail(err, SL_ERR_MEMORY, "KV cache of %zu MiB (%d tokens) cannot be reserved; pass a smaller {n_ctx}",
                       2 * bytes >> 20, n_pages * SL_PAGE);
    }
    for (int i = 0; i < n_pages; i++) pool->free[pool->n_free++] = n_pages - 1 - i; // page 0 is taken first
    return 0;
}

int sl_kv_pool_init(sl_kv_pool *pool, const sl_backend *backend, int n_layers, int n_kv_heads, int head_dim, int n_pages,
                    sl_error *err) {
    *pool = (sl_kv_pool){
        .backend = backend, .n_layers = n_layers, .n_kv_heads = n_kv_heads, .head_dim = head_dim, .n_pages = n_pages};
    return new_pool(pool, err);
}

static size_t n_hot_sets(const sl_kv_pool *pool) {
    return (size_t)pool->n_layers * pool->n_kv_heads * pool->host->hot.n_sets;
}

static int new_hot(sl_kv_pool *pool) { // 0: no memory
    const sl_backend *be = pool->backend;
    sl_kv_host *host = pool->host;
    size_t n = n_hot_sets(pool), ways = n * SL_KV_HOT_WAYS;
    if (!n) return 1;
    host->hot.tags = be->alloc(be, ways * sizeof *host->hot.tags);
    host->hot.order = be->alloc(be, n * sizeof *host->hot.order);
    host->hot.rows = be->alloc(be, ways * 2 * pool->head_dim * sizeof(bf16));
    return host->hot.tags && host->hot.order && host->hot.rows;
}

// Allocates the arrays of pool->host, whose numbers are set.
static int new_host(sl_kv_pool *pool, sl_error *err) {
    const sl_backend *be = pool->backend;
    sl_kv_host *host = pool->host;
    size_t page = (size_t)pool->n_kv_heads * SL_PAGE * pool->head_dim * sizeof(bf16), staged = 2 * host->n_staged * page;
    host->n_bytes = 2 * page * pool->n_pages * pool->n_layers;
    host->rows = be->alloc_host(be, host->n_bytes);
    host->frame_of = malloc(pool->n_pages * sizeof *host->frame_of);
    host->page_of = malloc(host->n_frames * sizeof *host->page_of);
    host->held = calloc(host->n_frames, sizeof *host->held);
    int32_t *in_order = malloc(host->n_staged * sizeof *in_order);
    host->staged_k = be->alloc(be, staged), host->staged_v = be->alloc(be, staged);
    host->in_order = be->alloc(be, host->n_staged * sizeof *in_order);
    host->versions = be->alloc(be, pool->n_pages * sizeof *host->versions);
    int ok = new_hot(pool) && host->versions && host->rows && host->frame_of && host->page_of && host->held && in_order &&
             host->staged_k && host->staged_v && host->in_order;
    for (int i = 0; ok && i < host->n_staged; i++) in_order[i] = i;
    if (ok) be->upload(be, host->in_order, in_order, host->n_staged * sizeof *in_order);
    for (int i = 0; ok && i < pool->n_pages; i++) host->frame_of[i] = -1;
    for (int i = 0; ok && i < host->n_frames; i++) host->page_of[i] = -1;
    host->hot.versions = host->versions;
    free(in_order);
    if (ok) return 0;
    size_t mib = host->n_bytes >> 20, staged_mib = 2 * staged >> 20;
    sl_kv_pool_free(pool);
    return sl_fail(
        err, SL_ERR_MEMORY,
        "KV cache of %zu MiB of page-locked host memory, and %zu MiB of the device for two layers: out of memory; pass "
        "a smaller {n_ctx}",
        mib, staged_mib);
}

int sl_kv_pool_init_on_host(sl_kv_pool *pool, const sl_backend *backend, int n_layers, int n_kv_heads, int head_dim,
                            int n_pages, int n_frames, int n_staged, int n_hot, sl_error *err) {
    *pool = (sl_kv_pool){
        .backend = backend, .n_layers = n_layers, .n_kv_heads = n_kv_heads, .head_dim = head_dim, .n_pages = n_pages};
    SL_CHECK(n_frames > SL_KV_SPARE_FRAMES && n_staged > 0);
    if (!(pool->host = calloc(1, sizeof *pool->host))) return sl_fail(err, SL_ERR_MEMORY, "KV cache: out of memory");
    SL_CHECK((int64_t)n_pages * n_kv_heads * SL_PAGE < SL_KV_HOST_ROWS);
    pool->host->n_frames = n_frames, pool->host->n_staged = n_staged;
    pool->host->hot = (sl_kv_hot_rows){.n_sets = n_hot / SL_KV_HOT_WAYS, .imposed = -1};
    int rc = new_pool(pool, err);
    return rc ? rc : new_host(pool, err);
}

static void free_host(sl_kv_pool *pool) {
    const sl_backend *be = pool->backend;
    sl_kv_host *host = pool->host;
    size_t staged = 2 * (size_t)host->n_staged * pool->n_kv_heads * SL_PAGE * pool->head_dim * sizeof(bf16);
    be->release_host(be, host->rows, host->n_bytes);
    be->release(be, host->staged_k, staged);
    be->release(be, host->staged_v, staged);
    be->release(be, host->in_order, host->n_staged * sizeof *host->in_order);
    be->release(be, host->versions, pool->n_pages * sizeof *host->versions);
    size_t sets = n_hot_sets(pool), ways = sets * SL_KV_HOT_WAYS;
    be->release(be, host->hot.tags, ways * sizeof *host->hot.tags);
    be->release(be, host->hot.order, sets * sizeof *host->hot.order);
    be->release(be, host->hot.rows, ways * 2 * pool->head_dim * sizeof(bf16));
    free(host->frame_of);
    free(host->page_of);
    free(host->held);
    free(host);
}

void sl_kv_pool_free(sl_kv_pool *pool) {
    const sl_backend *be = pool->backend;
    if (be) {
        be->release(be, pool->k, pool->n_bytes / 2);
        be->release(be, pool->v, pool->n_bytes / 2);
    }
    if (pool->host) free_host(pool);
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
    if (pool->host) {
        sl_kv_host_copy(pool, to, from);
        return;
    }
    size_t block = (size_t)pool->n_kv_heads * SL_PAGE * pool->head_dim, pitch = layer_elems(pool) * sizeof(bf16);
    be->copy(be, pool->k + to * block, pitch, pool->k + from * block, pitch, block * sizeof(bf16), pool->n_layers);
    be->copy(be, pool->v + to * block, pitch, pool->v + from * block, pitch, block * sizeof(bf16), pool->n_layers);
}

static int32_t take_page(sl_kv_pool *pool) {
    int32_t id = pool->free[--pool->n_free];
    pool->refs[id] = 1;
    pool->versions[id]++;
    return id;
}

static void drop_page(sl_kv_pool *pool, int32_t id) {
    SL_CHECK(pool->refs[id] > 0);
    if (--pool->refs[id] > 0) return;
    sl_kv_host_forget(pool, id);
    pool->free[pool->n_free++] = id;
}

static int check_free(const sl_kv_pool *pool, int n, sl_error *err) {
    if (n <= pool->n_free) return 0;
    return sl_fail(err, SL_ERR_MEMORY,
                   "KV cache is full: %d more pages of %d tokens needed, %d free of %d; pass a larger {n_ctx} or "
                   "fewer sequences",
                   n, SL_PAGE, pool->n_free, pool->n_pages);
}

int sl_kv_reserve(sl_kv_pool *pool, sl_kv_seq *seq, int n_tokens, sl_error *err) {
    int want = sl_kv_pages_of(n_tokens), more = want > seq->n_pages ? want - seq->n_pages : 0;
    // If another sequence also holds the partly filled last page, the page is copied before it is written.
    int last = seq->n_tokens / SL_PAGE,
        shared = n_tokens > seq->n_tokens && seq->n_tokens % SL_PAGE && pool->refs[seq->pages[last]] > 1;
    if (n_tokens > seq->n_tokens && seq->n_tokens % SL_PAGE && !shared) pool->versions[seq->pages[last]]++;
    if (more + shared == 0) return 0;
    int rc = check_free(pool, more + shared, err);
    if (!rc) rc = grow_table(seq, want, err);
    if (rc) return rc;
    if (shared) {
        int32_t own = take_page(pool);
        copy_page(pool, own, seq->pages[last]);
        drop_page(pool, seq->pages[last]);
        seq->pages[last] = own;
    }
    while (seq->n_pages < want) seq->pages[seq->n_pages++] = take_page(pool);
    return 0;
}

void sl_kv_truncate(sl_kv_pool *pool, sl_kv_seq *seq, int n_tokens) {
    SL_CHECK(n_tokens >= 0 && n_tokens <= seq->n_tokens);
    int keep = sl_kv_pages_of(n_tokens);
    while (seq->n_pages > keep) drop_page(pool, seq->pages[--seq->n_pages]);
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

void sl_kv_seq_free(sl_kv_pool *pool, sl_kv_seq *seq) {
    while (seq->n_pages > 0) drop_page(pool, seq->pages[--seq->n_pages]);
    free(seq->pages);
    *seq = (sl_kv_seq){0};
}

sl_kv_rows sl_kv_layer(const sl_kv_pool *pool, int layer) {
    size_t base = layer * layer_elems(pool);
    return (sl_kv_rows){.k = pool->k + base, .v = pool->v + base};
}

sl_kv_view sl_kv_view_of(const sl_kv_pool *pool, const sl_kv_seq *seq, int layer, int n_kv) {
    sl_kv_rows rows = sl_kv_layer(pool, layer);
    return (sl_kv_view){.k = rows.k, .v = rows.v, .pages = seq->pages, .n_kv = n_kv, .pool = pool, .layer = layer};
}
