// kv/kv_offload.c - see kv_offload.h.
#include "kv/kv_offload.h"
#include "backend/backend.h"

#include <stdlib.h>

static size_t page_elems(const sl_kv_pool *pool) { // of K, or of V
    return (size_t)pool->n_kv_heads * SL_PAGE * pool->head_dim;
}

// ---- the cache of hot rows ----

// The device's version of a page changes with its rows on the host, so the cache does not find copies of the rows before.
static void publish(const sl_kv_pool *pool, int32_t page) {
    uint32_t version = (uint32_t)pool->versions[page];
    if (version == 0) version = 1u << 31; // 0 is no version
    pool->backend->upload(pool->backend, pool->offload->versions + page, &version, sizeof version);
}

void sl_kv_publish(sl_kv_pool *pool, const sl_kv_seq *seq) {
    for (int i = 0; pool->offload && i < seq->n_pages; i++) publish(pool, seq->pages[i]);
}

sl_kv_hot_rows sl_kv_hot_layer(const sl_kv_pool *pool, int layer) {
    if (!pool->offload) return (sl_kv_hot_rows){.imposed = -1};
    sl_kv_hot_rows hot = pool->offload->hot;
    size_t sets = (size_t)layer * pool->n_kv_heads * hot.n_sets;
    if (!hot.n_sets) return hot;
    hot.tags += sets * SL_KV_HOT_WAYS, hot.order += sets;
    hot.rows += sets * SL_KV_HOT_WAYS * 2 * pool->head_dim;
    return hot;
}

// ---- copies ----

sl_kv_rows sl_kv_staged(const sl_kv_pool *pool, int layer) {
    size_t at = (size_t)(layer % 2) * pool->offload->n_staged * page_elems(pool);
    return (sl_kv_rows){.k = pool->offload->staged_k + at, .v = pool->offload->staged_v + at};
}

static sl_page_move move_of(const sl_kv_pool *pool, int to_host) {
    return (sl_page_move){.n_layers = pool->n_layers,
                          .n_kv_heads = pool->n_kv_heads,
                          .head_dim = pool->head_dim,
                          .page_rows = SL_PAGE,
                          .to_host = to_host,
                          .k = pool->k,
                          .v = pool->v,
                          .rows = pool->offload->rows,
                          .k_layer = pool->offload->n_frames * page_elems(pool),
                          .rows_layer = 2 * pool->n_pages * page_elems(pool)};
}

// Copies a page between its frame and the host, in all layers.
static void move_page(const sl_kv_pool *pool, int32_t page, int32_t frame, int to_host) {
    sl_page_move m = move_of(pool, to_host);
    m.n = 1, m.at[0] = frame, m.page[0] = page;
    pool->backend->move_pages(pool->backend, &m);
}

// m: move_of
static void move_staged(const sl_kv_pool *pool, int layer, const int32_t *pages, int n, int at, sl_page_move m) {
    sl_kv_rows staged = sl_kv_staged(pool, layer);
    SL_CHECK(at >= 0 && at + n <= pool->offload->n_staged);
    for (int i = 0; i < n; i++) SL_CHECK(pool->offload->frame_of[pages[i]] < 0);
    m.n_layers = 1;
    m.k = staged.k, m.v = staged.v;
    m.rows += layer * m.rows_layer;
    for (int i = 0; i < n; i += m.n) {
        m.n = n - i < SL_MOVE_MOST ? n - i : SL_MOVE_MOST;
        for (int j = 0; j < m.n; j++) m.at[j] = at + i + j, m.page[j] = pages[i + j];
        pool->backend->move_pages(pool->backend, &m);
    }
}

void sl_kv_bring(const sl_kv_pool *pool, int layer, const int32_t *pages, int n, int at) {
    move_staged(pool, layer, pages, n, at, move_of(pool, 0));
}

void sl_kv_bring_aside(const sl_kv_pool *pool, int layer, const int32_t *pages, int n) {
    sl_page_move m = move_of(pool, 0);
    m.aside = 1;
    move_staged(pool, layer, pages, n, 0, m);
}

void sl_kv_write_rows(sl_kv_pool *pool, int layer, const int32_t *pages, int n, int at) {
    move_staged(pool, layer, pages, n, at, move_of(pool, 1));
    for (int i = 0; layer + 1 == pool->n_layers && i < n; i++) publish(pool, pages[i]); // no step runs before the last layer
}

bf16 *sl_kv_offloaded_row(const sl_kv_pool *pool, int layer, int32_t page, int h, int row) {
    size_t number = (((size_t)layer * pool->n_pages + page) * pool->n_kv_heads + h) * SL_PAGE + row;
    return pool->offload->rows + number * 2 * pool->head_dim;
}

// ---- frames ----

static void free_frame(sl_kv_offload *offload, int32_t frame) {
    offload->frame_of[offload->page_of[frame]] = -1;
    offload->page_of[frame] = -1;
}

static void write_out(sl_kv_pool *pool, int32_t page) {
    int32_t frame = pool->offload->frame_of[page];
    if (frame < 0) return;
    move_page(pool, page, frame, 1);
    publish(pool, page);
    free_frame(pool->offload, frame);
}

// Gives the page a frame, without its rows. A free frame is taken first, then the one whose last hold is the longest ago.
static int32_t take_frame(sl_kv_pool *pool, int32_t page) {
    sl_kv_offload *offload = pool->offload;
    int32_t best = 0;
    SL_CHECK(offload->frame_of[page] < 0);
    for (int32_t i = 0; i < offload->n_frames && offload->page_of[best] >= 0; i++)
        if (offload->page_of[i] < 0 || offload->held[i] < offload->held[best]) best = i;
    if (offload->page_of[best] >= 0) write_out(pool, offload->page_of[best]);
    offload->page_of[best] = page;
    offload->frame_of[page] = best;
    offload->held[best] = ++offload->time;
    return best;
}

void sl_kv_hold(sl_kv_pool *pool, const sl_kv_seq *seq) {
    sl_kv_offload *offload = pool->offload;
    if (!offload) return;
    int newest = seq->n_tokens / SL_PAGE;
    SL_CHECK(newest < seq->n_pages);
    for (int i = 0; i < newest; i++) write_out(pool, seq->pages[i]);
    int32_t page = seq->pages[newest], frame = offload->frame_of[page];
    if (frame >= 0) {
        offload->held[frame] = ++offload->time;
        return;
    }
    frame = take_frame(pool, page);
    if (seq->n_tokens % SL_PAGE) move_page(pool, page, frame, 0);
}

void sl_kv_write_out(sl_kv_pool *pool, const sl_kv_seq *seq) {
    for (int i = 0; pool->offload && i < seq->n_pages; i++) write_out(pool, seq->pages[i]);
}

int32_t sl_kv_entry(const sl_kv_pool *pool, const sl_kv_seq *seq, int i) {
    int32_t page = seq->pages[i];
    if (!pool->offload || i < seq->n_tokens / SL_PAGE) return page;
    return pool->offload->frame_of[page] >= 0 ? pool->offload->frame_of[page] : page;
}

void sl_kv_offload_forget(sl_kv_pool *pool, int32_t page) {
    if (pool->offload && pool->offload->frame_of[page] >= 0) free_frame(pool->offload, pool->offload->frame_of[page]);
}

void sl_kv_offload_copy(sl_kv_pool *pool, int32_t to, int32_t from) {
    const sl_backend *be = pool->backend;
    sl_kv_offload *offload = pool->offload;
    if (offload->frame_of[from] >= 0) offload->held[offload->frame_of[from]] = ++offload->time; // so that take_frame leaves it
    int32_t frame = take_frame(pool, to), source = offload->frame_of[from];
    if (source < 0) {
        move_page(pool, from, frame, 0);
        return;
    }
    size_t page = page_elems(pool), pitch = offload->n_frames * page * sizeof(bf16), size = page * sizeof(bf16);
    be->copy(be, pool->k + frame * page, pitch, pool->k + source * page, pitch, size, pool->n_layers);
    be->copy(be, pool->v + frame * page, pitch, pool->v + source * page, pitch, size, pool->n_layers);
}
