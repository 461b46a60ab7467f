// kv/kv_extras.c - see kv_extras.h.
#include "kv/kv_extras.h"
#include "backend/backend.h"
#include "base/thread_pool.h"
#include "kv/kv_offload.h"

#include <stdlib.h>

typedef struct store { // the memory of one extra
    sl_kv_need need;
    size_t size;     // bytes of a block
    char *data;      // [n_layers][n_pages][n_kv_heads][size], committed by first touch
    uint64_t *built; // [n_layers][n_pages] version of the page that its blocks were built from; 0: none
    char *shared;    // [n_layers][n_kv_heads][shared_size]; NULL: the kind shares nothing
    // Of a span: few pages end a span, so their blocks lie close together, in the lowest free slots. NULL: the slot of a page
    // is the page's id.
    struct sl_kv_slot {
        int32_t owner;    // the page that the slot belongs to; -1: none
        uint64_t version; // of the owner, when it took the slot
    } * slots;            // [n_slots]
    int n_slots;
    int32_t *slot_of;        // [n_pages] the slot of a page; -1: none
    int32_t *device_slot_of; // the same in device memory; NULL on the CPU
} store;

struct sl_kv_extras {
    store stores[SL_KV_EXTRAS];
    int n_stores;
    int32_t *to_build;        // [BUILD_LISTS][n_pages] scratch of build_on_device
    int32_t *device_to_build; // the same in device memory; NULL on the CPU
};

// Lists of build_on_device: pages, before, index, slots; parts of spans, which are pages of one sequence.
enum { PAGES, BEFORE, INDEX, SLOTS, PARTS, BUILD_LISTS };

static store *find_store(const sl_kv_pool *pool, sl_kv_need need) {
    struct sl_kv_extras *x = pool->extras;
    for (int i = 0; x && i < x->n_stores; i++)
        if (x->stores[i].need.kind == need.kind && x->stores[i].need.arg == need.arg) return &x->stores[i];
    return NULL;
}

static char *shared_of(const sl_kv_pool *pool, const store *s, int layer, int h) {
    if (!s->shared) return NULL;
    size_t size = s->need.kind->shared_size(s->need.arg, pool->head_dim);
    return s->shared + ((size_t)layer * pool->n_kv_heads + h) * size;
}

typedef struct share_call {
    const sl_kv_pool *pool;
    const store *s;
} share_call;

static void share_head(void *ctx, size_t i, int thread) {
    (void)thread;
    const share_call *c = ctx;
    const sl_kv_pool *pool = c->pool;
    int layer = (int)i / pool->n_kv_heads, h = (int)i % pool->n_kv_heads;
    c->s->need.kind->share(c->s->need.arg, pool->head_dim, pool->seed, layer, h, shared_of(pool, c->s, layer, h));
}

// Makes the data that the pages of each KV head share. Returns 0 when there is no memory.
static int make_shared(const sl_kv_pool *pool, store *s) {
    const sl_kv_extra_kind *kind = s->need.kind;
    int n = pool->n_layers * pool->n_kv_heads;
    if (!kind->share) return 1;
    s->shared = malloc(n * kind->shared_size(s->need.arg, pool->head_dim));
    if (!s->shared) return 0;
    sl_parallel(n, share_head, &(share_call){pool, s});
    return 1;
}

// ---- slots of spans ----

static size_t blocks_of(const sl_kv_pool *pool, const store *s) { // of a layer and KV head
    return s->slots ? s->n_slots : pool->n_pages;
}

static int make_slots(const sl_kv_pool *pool, store *s) { // 0: no memory
    const sl_backend *be = pool->backend;
    if (!s->need.kind->span) return 1;
    s->n_slots = pool->n_pages;
    if (be->is_device && pool->n_pages / 8 + SL_KV_SPARE_SLOTS < pool->n_pages)
        s->n_slots = pool->n_pages / 8 + SL_KV_SPARE_SLOTS;
    s->slots = malloc(s->n_slots * sizeof *s->slots);
    s->slot_of = malloc(pool->n_pages * sizeof *s->slot_of);
    if (be->is_device) s->device_slot_of = be->alloc(be, pool->n_pages * sizeof *s->slot_of);
    if (!s->slots || !s->slot_of || (be->is_device && !s->device_slot_of)) return 0;
    for (int i = 0; i < s->n_slots; i++) s->slots[i] = (struct sl_kv_slot){-1, 0};
    for (int i = 0; i < pool->n_pages; i++) s->slot_of[i] = -1;
    if (be->is_device) be->upload(be, s->device_slot_of, s->slot_of, pool->n_pages * sizeof *s->slot_of);
    return 1;
}

// Gives the page a slot, if one is free. A slot is free if its owner is free or was written again: no sequence reads its
// blocks. Returns 1 when slots changed.
static int take_slot(const sl_kv_pool *pool, store *s, int32_t page) {
    int32_t slot = s->slot_of[page], before = slot, owner;
    for (int32_t i = 0; slot < 0 && i < s->n_slots; i++) {
        owner = s->slots[i].owner;
        if (owner < 0 || !pool->refs[owner] || pool->versions[owner] != s->slots[i].version) slot = i;
    }
    if (slot < 0) return 0;
    owner = s->slots[slot].owner;
    if (owner >= 0) s->slot_of[owner] = -1;
    s->slots[slot] = (struct sl_kv_slot){page, pool->versions[page]};
    s->slot_of[page] = slot;
    return slot != before;
}

static size_t store_bytes(const sl_kv_pool *pool, const store *s) {
    return pool->n_layers * blocks_of(pool, s) * pool->n_kv_heads * s->size;
}

static void free_store(const sl_kv_pool *pool, store *s) {
    pool->backend->release(pool->backend, s->data, store_bytes(pool, s));
    free(s->built);
    free(s->shared);
    free(s->slots);
    free(s->slot_of);
    pool->backend->release(pool->backend, s->device_slot_of, pool->n_pages * sizeof *s->slot_of);
}

static size_t list_bytes(const sl_kv_pool *pool) {
    return BUILD_LISTS * (size_t)pool->n_pages * sizeof(int32_t);
}

static void free_extras(sl_kv_pool *pool) {
    struct sl_kv_extras *x = pool->extras;
    for (int i = 0; i < x->n_stores; i++) free_store(pool, &x->stores[i]);
    pool->backend->release(pool->backend, x->device_to_build, list_bytes(pool));
    free(x->to_build);
    free(x);
    pool->extras = NULL;
}

// Creates pool->extras.
static int init_extras(sl_kv_pool *pool, sl_error *err) {
    const sl_backend *be = pool->backend;
    struct sl_kv_extras *x = pool->extras = calloc(1, sizeof *x);
    pool->free_extras = free_extras;
    if (x) x->to_build = malloc(list_bytes(pool));
    if (x && be->is_device) x->device_to_build = be->alloc(be, list_bytes(pool));
    if (x && x->to_build && (x->device_to_build || !be->is_device)) return 0;
    if (x) free_extras(pool);
    return sl_fail(err, SL_ERR_MEMORY, "page extras of the KV cache: out of memory");
}

int sl_kv_keep(sl_kv_pool *pool, sl_kv_need need, sl_error *err) {
    const sl_kv_extra_kind *kind = need.kind;
    if (find_store(pool, need)) return 0;
    if (pool->backend->is_device && (!kind->build_device || kind->share))
        return sl_fail(err, SL_ERR_UNSUPPORTED, "page extra \"%s\": a GPU cannot build it; use {device} cpu", kind->name);
    int rc = pool->extras ? 0 : init_extras(pool, err);
    if (rc) return rc;
    struct sl_kv_extras *x = pool->extras;
    if (x->n_stores == SL_KV_EXTRAS)
        return sl_fail(err, SL_ERR_MEMORY,
                       "page extra \"%s\": the KV cache already has %d page extras, the most that it can have", kind->name,
                       SL_KV_EXTRAS);
    store s = {.need = need, .size = kind->size(need.arg, pool->head_dim)};
    s.built = calloc((size_t)pool->n_layers * pool->n_pages, sizeof *s.built);
    if (s.built && make_slots(pool, &s) && make_shared(pool, &s))
        s.data = pool->backend->alloc(pool->backend, store_bytes(pool, &s));
    if (!s.data) {
        free_store(pool, &s);
        return sl_fail(err, SL_ERR_MEMORY, "\"%s\" of the KV cache: %zu MiB cannot be reserved; pass a smaller {n_ctx}",
                       kind->name, store_bytes(pool, &s) >> 20);
    }
    x->stores[x->n_stores++] = s;
    return 0;
}

static char *layer_of(const sl_kv_pool *pool, const store *s, int layer) { // all blocks of a layer
    return s->data + layer * blocks_of(pool, s) * pool->n_kv_heads * s->size;
}

static char *block_of(const sl_kv_pool *pool, const store *s, int layer, int32_t page, int h) {
    int32_t slot = s->slots ? s->slot_of[page] : page;
    SL_CHECK(slot >= 0);
    return layer_of(pool, s, layer) + ((size_t)slot * pool->n_kv_heads + h) * s->size;
}

static void build_page(const sl_kv_pool *pool, const store *s, const sl_kv_view *view, int i, int h) {
    const sl_kv_extra_kind *kind = s->need.kind;
    const void *parts[SL_KV_SPAN_MOST];
    sl_kv_run k_parts[SL_KV_SPAN_MOST];
    int first = kind->span ? i + 1 - kind->span : i;
    sl_kv_page page = {.arg = s->need.arg,
                       .head_dim = pool->head_dim,
                       .layer = view->layer,
                       .h = h,
                       .first = first * SL_PAGE,
                       .before = kind->chained && i ? block_of(pool, s, view->layer, view->pages[i - 1], h) : NULL,
                       .shared = shared_of(pool, s, view->layer, h),
                       .buckets = pool->buckets};
    if (kind->span) {
        const store *from = find_store(pool, (sl_kv_need){kind->of, s->need.arg});
        SL_CHECK(from != NULL);
        for (int j = first; j <= i; j++) {
            parts[j - first] = block_of(pool, from, view->layer, view->pages[j], h);
            k_parts[j - first] = sl_kv_k_run(view, pool->n_kv_heads, pool->head_dim, j, h);
        }
        page.parts = parts, page.k_parts = k_parts;
    } else {
        page.k = sl_kv_k_run(view, pool->n_kv_heads, pool->head_dim, i, h);
        page.v = sl_kv_v_run(view, pool->n_kv_heads, pool->head_dim, i, h);
    }
    kind->build(&page, block_of(pool, s, view->layer, view->pages[i], h));
}

// Returns 1 when the sequence's page number i has no block, or when its block was built from the rows that the page has now.
static int is_built(const sl_kv_pool *pool, const store *s, const sl_kv_seq *seq, int layer, int i) {
    if (s->need.kind->span && (i + 1) % s->need.kind->span) return 1;
    return s->built[(size_t)layer * pool->n_pages + seq->pages[i]] == pool->versions[seq->pages[i]];
}

typedef struct build_call {
    const sl_kv_pool *pool;
    store *s;
    const sl_kv_seq *seq;
    sl_kv_view view;
    int layer, first, stride, n_runs;
} build_call;

static void build_run(void *ctx, size_t task, int thread) {
    (void)thread;
    const build_call *c = ctx;
    int h = (int)task / c->n_runs, from = c->first + (int)task % c->n_runs * c->stride;
    for (int i = from; i < from + c->stride; i++)
        if (!is_built(c->pool, c->s, c->seq, c->layer, i)) build_page(c->pool, c->s, &c->view, i, h);
}

static void build_on_cpu(const sl_kv_pool *pool, store *s, const sl_kv_seq *seq, int layer, int first, int n_full) {
    SL_CHECK(!pool->offload);
    for (int i = first; s->slots && i < n_full; i++)
        if (!is_built(pool, s, seq, layer, i)) take_slot(pool, s, seq->pages[i]);
    // Threads build single pages in any order. Pages of a chained kind are built in order, as one run.
    int stride = s->need.kind->chained ? n_full - first : 1, n_runs = (n_full - first) / stride;
    build_call c = {.pool = pool, .s = s, .seq = seq, .layer = layer, .first = first, .stride = stride, .n_runs = n_runs};
    c.view = sl_kv_view_of(pool, seq, layer, seq->n_tokens);
    sl_parallel((size_t)pool->n_kv_heads * n_runs, build_run, &c);
}

// Fills the lists of the blocks to build. Returns their number.
static int list_blocks(const sl_kv_pool *pool, store *s, const sl_kv_seq *seq, int layer, int first, int n_full,
                       int32_t *lists) {
    const sl_backend *be = pool->backend;
    int n = 0, span = s->need.kind->span, size = pool->n_pages, moved = 0;
    for (int i = first; i < n_full; i++) {
        int32_t page = seq->pages[i];
        if (is_built(pool, s, seq, layer, i)) continue;
        if (span) moved |= take_slot(pool, s, page);
        if (span && s->slot_of[page] < 0) continue;
        for (int j = 0; j < span; j++) lists[PARTS * size + n * span + j] = seq->pages[i + 1 - span + j];
        lists[PAGES * size + n] = page;
        lists[BEFORE * size + n] = i ? seq->pages[i - 1] : -1;
        lists[INDEX * size + n] = i;
        lists[SLOTS * size + n++] = span ? s->slot_of[page] : page;
    }
    if (moved) be->upload(be, s->device_slot_of, s->slot_of, size * sizeof *s->slot_of);
    return n;
}

// Builds blocks [first, first + n) of the lists in device memory. from: places of the rows of their pages, of block 0 on.
static void build_blocks(const sl_kv_pool *pool, const store *s, int layer, int first, int n, sl_kv_rows rows,
                         const int32_t *from) {
    const sl_kv_extra_kind *kind = s->need.kind;
    const store *of = kind->span ? find_store(pool, (sl_kv_need){kind->of, s->need.arg}) : NULL;
    const int32_t *on_device = pool->extras->device_to_build + first;
    int size = pool->n_pages;
    kind->build_device(&(sl_kv_device_build){.arg = s->need.arg,
                                             .head_dim = pool->head_dim,
                                             .n_kv_heads = pool->n_kv_heads,
                                             .layer = layer,
                                             .size = s->size,
                                             .n = n,
                                             .pages = on_device + PAGES * size,
                                             .before = on_device + BEFORE * size,
                                             .index = on_device + INDEX * size,
                                             .from = from,
                                             .k = rows.k,
                                             .v = rows.v,
                                             .format = pool->formats.k,
                                             .data = layer_of(pool, s, layer),
                                             .stream = pool->backend->stream(pool->backend),
                                             .parts = pool->extras->device_to_build + PARTS * size + first * kind->span,
                                             .slots = on_device + SLOTS * size,
                                             .of = of ? layer_of(pool, of, layer) : NULL,
                                             .of_size = of ? of->size : 0,
                                             .buckets = pool->buckets});
}

static void build_on_device(const sl_kv_pool *pool, store *s, const sl_kv_seq *seq, int layer, int first, int n_full) {
    const sl_backend *be = pool->backend;
    const sl_kv_extra_kind *kind = s->need.kind;
    int32_t *lists = pool->extras->to_build, *on_device = pool->extras->device_to_build;
    int size = pool->n_pages, n = list_blocks(pool, s, seq, layer, first, n_full, lists);
    int each = kind->span ? kind->span : 1, which = kind->span ? PARTS : PAGES; // pages that a block is built from
    if (n == 0) return;
    for (int i = 0; i < BUILD_LISTS; i++)
        if (i < PARTS || kind->span)
            be->upload(be, on_device + i * size, lists + i * size, (size_t)n * (i < PARTS ? 1 : each) * sizeof *lists);
    if (!pool->offload) {
        build_blocks(pool, s, layer, 0, n, sl_kv_layer(pool, layer), on_device + which * size);
        return;
    }
    int most = pool->offload->n_staged / each;
    SL_CHECK(most > 0);
    for (int i = 0, m; i < n; i += m) {
        m = n - i < most ? n - i : most;
        sl_kv_bring(pool, layer, lists + which * size + i * each, m * each, 0);
        build_blocks(pool, s, layer, i, m, sl_kv_staged(pool, layer), pool->offload->in_order);
    }
}

void sl_kv_build(sl_kv_pool *pool, const sl_kv_seq *seq, int layer, sl_kv_need need) {
    store *s = find_store(pool, need);
    SL_CHECK(s != NULL);
    int n_full = seq->n_tokens / SL_PAGE, first = 0;
    while (first < n_full && is_built(pool, s, seq, layer, first)) first++;
    if (first == n_full) return;
    if (pool->backend->is_device)
        build_on_device(pool, s, seq, layer, first, n_full);
    else
        build_on_cpu(pool, s, seq, layer, first, n_full);
    for (int i = first; i < n_full; i++)
        s->built[(size_t)layer * pool->n_pages + seq->pages[i]] = pool->versions[seq->pages[i]];
}

void *sl_kv_extra_layer(const sl_kv_pool *pool, sl_kv_need need, int layer, size_t *size) {
    const store *s = find_store(pool, need);
    SL_CHECK(s != NULL);
    *size = s->size;
    return layer_of(pool, s, layer);
}

const int32_t *sl_kv_extra_slots(const sl_kv_pool *pool, sl_kv_need need) {
    const store *s = find_store(pool, need);
    SL_CHECK(s != NULL);
    return s->device_slot_of;
}

const void *sl_kv_extra(const sl_kv_view *view, sl_kv_need need, int page_index, int h) {
    const store *s = find_store(view->pool, need);
    SL_CHECK(s != NULL && page_index < sl_kv_n_built(view));
    return block_of(view->pool, s, view->layer, view->pages[page_index], h);
}

const void *sl_kv_shared(const sl_kv_view *view, sl_kv_need need, int h) {
    const store *s = find_store(view->pool, need);
    SL_CHECK(s != NULL);
    return shared_of(view->pool, s, view->layer, h);
}
