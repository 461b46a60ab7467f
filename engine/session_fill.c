// engine/session_fill.c - a session of random rows, for benches of long contexts that a prefill would take too long to make.
#include "backend/dummy_weights.h"
#include "base/comm.h"
#include "engine/engine_internal.h"
#include "kv/kv_offload.h"

#include <stdlib.h>
#include <string.h>

// The key of a page of K (is_v 0) or V. Different pages have different numbers.
static uint64_t key_of(const sl_session *s, int layer, int page_index, int is_v) {
    char name[96];
    snprintf(name, sizeof name, "%s of page %d, layer %d, sequence %u", is_v ? "V" : "K", page_index, layer, s->sequence);
    return sl_dummy_key(name);
}

// Fills page number `page` of a layer's K, or of its V. A page of the whole model has the KV heads of all ranks, and `rank` has
// its heads. numbers: the backend's memory for a page in bf16, for another format.
static void fill_page(const sl_kv_pool *pool, int rank, uint64_t key, const bf16 *quantiles, bf16 *rows, sl_format format,
                      size_t page, bf16 *numbers) {
    const sl_backend *be = pool->backend;
    const int n_rows = pool->n_kv_heads * SL_PAGE;
    size_t n = (size_t)n_rows * pool->head_dim;
    char *to = (char *)rows + page * n_rows * sl_kv_row_bytes(format, pool->head_dim);
    be->fill(be, key, quantiles, (size_t)rank * n, n, format == SL_BF16 ? (bf16 *)to : numbers);
    if (format != SL_BF16) be->store_rows(be, numbers, format, pool->head_dim, n_rows, to);
}

// Fills the pages of one layer.
static void fill_layer(sl_session *s, int layer, const bf16 *quantiles, bf16 *numbers) {
    sl_kv_pool *pool = &s->engine->device.pool;
    int rank = sl_comm_rank(s->engine->comm);
    sl_kv_rows rows = pool->offload ? sl_kv_staged(pool, layer) : sl_kv_layer(pool, layer);
    for (int i = 0; i < s->kv.n_pages; i++) {
        size_t page = pool->offload ? i : s->kv.pages[i];
        fill_page(pool, rank, key_of(s, layer, i, 0), quantiles, rows.k, pool->formats.k, page, numbers);
        fill_page(pool, rank, key_of(s, layer, i, 1), quantiles, rows.v, pool->formats.v, page, numbers);
    }
    if (pool->offload) sl_kv_write_rows(pool, layer, s->kv.pages, s->kv.n_pages, 0);
}

int sl_session_fill(sl_session *s, int n, sl_error *err) {
    sl_engine *e = s->engine;
    const sl_backend *be = e->device.backend;
    if (s->kv.n_tokens > 0)
        return sl_fail(err, SL_ERR_ARG, "random rows: expected an empty session, found %d tokens", s->kv.n_tokens);
    if (n < 1 || n > e->n_ctx) return sl_fail(err, SL_ERR_ARG, "%d random rows: expected 1 to {n_ctx} %d", n, e->n_ctx);
    int rc = sl_engine_enter(e, err);
    if (rc) return rc;
    const sl_kv_pool *pool = &e->device.pool;
    size_t size = SL_DUMMY_QUANTILES * sizeof(bf16);
    bf16 *values = malloc(size), *quantiles = be->alloc(be, size);
    int rounds = pool->formats.k != SL_BF16 || pool->formats.v != SL_BF16;
    size_t page = (size_t)pool->n_kv_heads * SL_PAGE * pool->head_dim * sizeof(bf16);
    bf16 *numbers = rounds ? be->alloc(be, page) : NULL;
    rc = values && quantiles && (numbers || !rounds) ? sl_session_sync_state(s, err)
                                                     : sl_fail(err, SL_ERR_MEMORY, "random rows: out of memory");
    if (!rc) rc = sl_kv_reserve(&e->device.pool, &s->kv, n, err);
    if (!rc) {
        sl_dummy_quantiles(1, values);
        be->upload(be, quantiles, values, size);
        for (int layer = 0; layer < e->geom.n_layers; layer++) fill_layer(s, layer, quantiles, numbers);
        s->kv.n_tokens = s->n_prefilled = n;
        memset(s->ids, 0xff, (size_t)n * sizeof *s->ids); // no tokens
        sl_session_build_extras(s);
        rc = be->finish(be, err);
        if (rc) sl_session_cut_rows(s, 0);
    }
    be->release(be, quantiles, size);
    free(values);
    be->release(be, numbers, page);
    sl_engine_leave(e);
    return rc;
}
