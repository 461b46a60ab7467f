// engine/kv/kv.c - see kv.h.
#include "engine/kv/kv.h"

#include <stdlib.h>
#include <string.h>

static size_t layer_elems(const sl_kv_pool *pool) {
    return (size_t)pool->n_pages * pool->n_kv_heads * SL_PAGE * pool->head_dim;
}

static size_t store_bytes(const sl_kv_pool *pool, size_t size) {
    return (size_t)pool->n_layers * pool->n_pages * pool->n_kv_heads * size;
}

size_t sl_kv_bytes_per_token(int n_layers, int n_kv_heads, int head_dim) {
    return (size_t)n_layers * n_kv_heads * head_dim * 2 * sizeof(bf16);
}

int sl_kv_pool_init(sl_kv_pool *pool, const sl_backend *backend, int n_layers, int n_kv_heads, int head_dim, int n_pages,
                    sl_error *err) {
    *pool = (sl_kv_pool){
        .backend = backend, .n_layers = n_layers, .n_kv_heads = n_kv_heads, .head_dim = head_dim, .n_pages = n_pages};
    size_t bytes = layer_elems(pool) * n_layers * sizeof(bf16);
    pool->n_bytes = 2 * bytes;
    pool->k = backend->alloc(backend, bytes);
    pool->v = backend->alloc(backend, bytes);
    pool->refs = calloc(n_pages, sizeof *pool->refs);
    pool->free = malloc(n_pages * sizeof *pool->free);
    pool->to_build = malloc(2 * (size_t)n_pages * sizeof *pool->to_build);
    if (backend->is_device) pool->device_to_build = backend->alloc(backend, 2 * (size_t)n_pages * sizeof *pool->to_build);
    if (!pool->to_build || (backend->is_device && !pool->device_to_build) || !pool->k || !pool->v || !pool->refs ||
        !pool->free) {
        sl_kv_pool_free(pool);
        return sl_fail(err, SL_ERR_MEMORY, "KV cache of %zu MiB (%d tokens) cannot be reserved; pass a smaller --ctx-size",
                       2 * bytes >> 20, n_pages * SL_PAGE);
    }
    for (int i = 0; i < n_pages; i++) pool->free[pool->n_free++] = n_pages - 1 - i; // page 0 is handed out first
    return 0;
}

void sl_kv_pool_free(sl_kv_pool *pool) {
    const sl_backend *be = pool->backend;
    if (be) {
        be->release(be, pool->k, pool->n_bytes / 2);
        be->release(be, pool->v, pool->n_bytes / 2);
        be->release(be, pool->device_to_build, 2 * (size_t)pool->n_pages * sizeof *pool->to_build);
    }
    for (int i = 0; i < pool->n_stores; i++) {
        be->release(be, pool->stores[i].data, store_bytes(pool, pool->stores[i].size));
        free(pool->stores[i].built);
        free(pool->stores[i].shared);
    }
    free(pool->refs);
    free(pool->free);
    free(pool->to_build);
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
    size_t block = (size_t)pool->n_kv_heads * SL_PAGE * pool->head_dim, pitch = layer_elems(pool) * sizeof(bf16);
    be->copy(be, pool->k + to * block, pool->k + from * block, pitch, block * sizeof(bf16), pool->n_layers);
    be->copy(be, pool->v + to * block, pool->v + from * block, pitch, block * sizeof(bf16), pool->n_layers);
}

// The page's rows change: what was built of them is void.
static void forget_extras(sl_kv_pool *pool, int32_t id) {
    for (int i = 0; i < pool->n_stores; i++)
        for (int layer = 0; layer < pool->n_layers; layer++) pool->stores[i].built[(size_t)layer * pool->n_pages + id] = 0;
}

static int32_t take_page(sl_kv_pool *pool) {
    int32_t id = pool->free[--pool->n_free];
    pool->refs[id] = 1;
    forget_extras(pool, id);
    return id;
}

static void drop_page(sl_kv_pool *pool, int32_t id) {
    SL_CHECK(pool->refs[id] > 0);
    if (--pool->refs[id] == 0) pool->free[pool->n_free++] = id;
}

static int check_free(const sl_kv_pool *pool, int n, sl_error *err) {
    if (n <= pool->n_free) return 0;
    return sl_fail(err, SL_ERR_MEMORY,
                   "KV cache is full: %d more pages of %d tokens needed, %d free of %d; pass a larger --ctx-size or "
                   "fewer sequences",
                   n, SL_PAGE, pool->n_free, pool->n_pages);
}

int sl_kv_reserve(sl_kv_pool *pool, sl_kv_seq *seq, int n_tokens, sl_error *err) {
    int want = (n_tokens + SL_PAGE - 1) / SL_PAGE, more = want > seq->n_pages ? want - seq->n_pages : 0;
    // A partly used last page that another sequence holds too becomes our own copy before it is written.
    int last = seq->n_tokens / SL_PAGE,
        shared = n_tokens > seq->n_tokens && seq->n_tokens % SL_PAGE && pool->refs[seq->pages[last]] > 1;
    if (n_tokens > seq->n_tokens && seq->n_tokens % SL_PAGE && !shared) forget_extras(pool, seq->pages[last]);
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
    int keep = (n_tokens + SL_PAGE - 1) / SL_PAGE;
    while (seq->n_pages > keep) drop_page(pool, seq->pages[--seq->n_pages]);
    seq->n_tokens = n_tokens;
}

// Gives dst the pages of src's first n_tokens: the first n_shared by reference, copies of the others.
static int branch(sl_kv_pool *pool, const sl_kv_seq *src, sl_kv_seq *dst, int n_tokens, int n_shared, sl_error *err) {
    SL_CHECK(dst->n_pages == 0 && n_tokens <= src->n_tokens);
    int n_pages = (n_tokens + SL_PAGE - 1) / SL_PAGE, rc = check_free(pool, n_pages - n_shared, err);
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

// ---- page extras ----

static sl_kv_store *find_store(const sl_kv_pool *pool, sl_kv_need need) {
    for (int i = 0; i < pool->n_stores; i++)
        if (pool->stores[i].need.kind == need.kind && pool->stores[i].need.arg == need.arg)
            return (sl_kv_store *)&pool->stores[i];
    return NULL;
}

static char *shared_of(const sl_kv_pool *pool, const sl_kv_store *store, int layer, int h) {
    if (!store->shared) return NULL;
    size_t size = store->need.kind->shared_size(store->need.arg, pool->head_dim);
    return store->shared + ((size_t)layer * pool->n_kv_heads + h) * size;
}

// Fills what the pages of each KV head share. 0: out of memory
static int make_shared(const sl_kv_pool *pool, sl_kv_store *store) {
    const sl_kv_extra_kind *kind = store->need.kind;
    int n = pool->n_layers * pool->n_kv_heads;
    if (!kind->share) return 1;
    store->shared = malloc(n * kind->shared_size(store->need.arg, pool->head_dim));
    if (!store->shared) return 0;
#pragma omp parallel for schedule(dynamic)
    for (int i = 0; i < n; i++) {
        int layer = i / pool->n_kv_heads, h = i % pool->n_kv_heads;
        kind->share(store->need.arg, pool->head_dim, pool->seed, layer, h, shared_of(pool, store, layer, h));
    }
    return 1;
}

int sl_kv_keep(sl_kv_pool *pool, sl_kv_need need, sl_error *err) {
    if (find_store(pool, need)) return 0;
    if (pool->n_stores == SL_KV_EXTRAS)
        return sl_fail(err, SL_ERR_MEMORY, "the KV cache keeps %d kinds of page extras already; \"%s\" would be one more",
                       SL_KV_EXTRAS, need.kind->name);
    const sl_kv_extra_kind *kind = need.kind;
    if (pool->backend->is_device && (!kind->build_device || kind->share))
        return sl_fail(err, SL_ERR_UNSUPPORTED, "\"%s\" of the KV cache is not kept on a GPU; use --device cpu", kind->name);
    sl_kv_store store = {.need = need, .size = kind->size(need.arg, pool->head_dim)};
    size_t bytes = store_bytes(pool, store.size);
    store.built = calloc((size_t)pool->n_layers * pool->n_pages, 1);
    if (store.built && make_shared(pool, &store)) store.data = pool->backend->alloc(pool->backend, bytes);
    if (!store.data) {
        free(store.built);
        free(store.shared);
        return sl_fail(err, SL_ERR_MEMORY, "\"%s\" of the KV cache: %zu MiB cannot be reserved; pass a smaller --ctx-size",
                       kind->name, bytes >> 20);
    }
    pool->stores[pool->n_stores++] = store;
    return 0;
}

static char *block_of(const sl_kv_pool *pool, const sl_kv_store *store, int layer, int32_t page, int h) {
    return store->data + (((size_t)layer * pool->n_pages + page) * pool->n_kv_heads + h) * store->size;
}

static void build_page(const sl_kv_pool *pool, const sl_kv_store *store, const sl_kv_view *view, int i, int h) {
    const sl_kv_extra_kind *kind = store->need.kind;
    size_t rows = sl_kv_block(view, pool->n_kv_heads, pool->head_dim, i, h);
    const void *before = kind->chained && i ? block_of(pool, store, view->layer, view->pages[i - 1], h) : NULL;
    kind->build(store->need.arg, pool->head_dim, view->k + rows, view->v + rows, before, shared_of(pool, store, view->layer, h),
                block_of(pool, store, view->layer, view->pages[i], h));
}

static void build_on_host(sl_kv_pool *pool, sl_kv_store *store, const sl_kv_seq *seq, int layer, int first, int n_full) {
    const uint8_t *built = store->built + (size_t)layer * pool->n_pages;
    sl_kv_view view = sl_kv_view_of(pool, seq, layer, seq->n_tokens);
    int stride = store->need.kind->chained ? n_full - first : 1,
        n_runs = (n_full - first) / stride; // a chain is built in order
#pragma omp parallel for schedule(dynamic) collapse(2)
    for (int h = 0; h < pool->n_kv_heads; h++)
        for (int run = 0; run < n_runs; run++)
            for (int i = first + run * stride; i < first + (run + 1) * stride; i++)
                if (!built[seq->pages[i]]) build_page(pool, store, &view, i, h);
}

static void build_on_device(sl_kv_pool *pool, sl_kv_store *store, const sl_kv_seq *seq, int layer, int first, int n_full) {
    const sl_backend *be = pool->backend;
    const uint8_t *built = store->built + (size_t)layer * pool->n_pages;
    int32_t *pages = pool->to_build, *before = pages + pool->n_pages;
    int n = 0;
    for (int i = first; i < n_full; i++) {
        if (built[seq->pages[i]]) continue;
        pages[n] = seq->pages[i];
        before[n++] = i ? seq->pages[i - 1] : -1;
    }
    be->upload(be, pool->device_to_build, pages, n * sizeof *pages);
    be->upload(be, pool->device_to_build + pool->n_pages, before, n * sizeof *before);
    sl_kv_rows rows = sl_kv_layer(pool, layer);
    store->need.kind->build_device(&(sl_kv_device_build){.arg = store->need.arg,
                                                         .head_dim = pool->head_dim,
                                                         .n_kv_heads = pool->n_kv_heads,
                                                         .size = store->size,
                                                         .n = n,
                                                         .pages = pool->device_to_build,
                                                         .before = pool->device_to_build + pool->n_pages,
                                                         .k = rows.k,
                                                         .v = rows.v,
                                                         .data = block_of(pool, store, layer, 0, 0),
                                                         .stream = be->stream(be)});
}

void sl_kv_build(sl_kv_pool *pool, const sl_kv_seq *seq, int layer, sl_kv_need need) {
    sl_kv_store *store = find_store(pool, need);
    SL_CHECK(store != NULL);
    int n_full = seq->n_tokens / SL_PAGE, first = 0;
    uint8_t *built = store->built + (size_t)layer * pool->n_pages;
    while (first < n_full && built[seq->pages[first]]) first++;
    if (first == n_full) return;
    if (pool->backend->is_device)
        build_on_device(pool, store, seq, layer, first, n_full);
    else
        build_on_host(pool, store, seq, layer, first, n_full);
    for (int i = first; i < n_full; i++) built[seq->pages[i]] = 1;
}

void *sl_kv_extra_layer(const sl_kv_pool *pool, sl_kv_need need, int layer, size_t *size) {
    const sl_kv_store *store = find_store(pool, need);
    SL_CHECK(store != NULL);
    *size = store->size;
    return block_of(pool, store, layer, 0, 0);
}

const void *sl_kv_extra(const sl_kv_view *view, sl_kv_need need, int page_index, int h) {
    const sl_kv_store *store = find_store(view->pool, need);
    SL_CHECK(store != NULL && page_index < sl_kv_n_built(view));
    return block_of(view->pool, store, view->layer, view->pages[page_index], h);
}

const void *sl_kv_shared(const sl_kv_view *view, sl_kv_need need, int h) {
    const sl_kv_store *store = find_store(view->pool, need);
    SL_CHECK(store != NULL);
    return shared_of(view->pool, store, view->layer, h);
}
