// engine/finite.c - refuses logits that are not finite, so that no token is sampled from them. The error names the layer, KV
// head and position of the first key in the cache that is not finite. The arithmetic failed there first.
#include "engine/engine_internal.h"
#include "kv/kv_offload.h"

#include <stdlib.h>
#include <string.h>

static int count_not_finite(const float *x, int n) {
    int count = 0;
    for (int i = 0; i < n; i++) {
        uint32_t bits;
        memcpy(&bits, x + i, sizeof bits);
        count += (bits & 0x7f800000) == 0x7f800000;
    }
    return count;
}

// The first of n_rows rows of a page of [n_kv_heads] blocks that is not finite: row * n_kv_heads + KV head; -1: none
static int find_in_page(const void *page, sl_format format, const sl_attn_geom *g, int n_rows) {
    for (int row = 0; row < n_rows; row++)
        for (int h = 0; h < g->n_kv_heads; h++) {
            sl_kv_row x = sl_kv_row_at(sl_kv_run_of(page, format, g->head_dim, (size_t)h), g->head_dim, row);
            for (int d = 0; d < g->head_dim; d++) {
                float number = sl_kv_number(x, format, d);
                if (count_not_finite(&number, 1)) return row * g->n_kv_heads + h;
            }
        }
    return -1;
}

// K of a bf16 page [n_kv_heads][256][head_dim] whose rows are on the host.
static void copy_from_host(const sl_kv_pool *pool, int layer, int32_t id, bf16 *page) {
    for (int h = 0; h < pool->n_kv_heads; h++)
        for (int j = 0; j < SL_PAGE; j++, page += pool->head_dim)
            memcpy(page, sl_kv_offloaded_row(pool, layer, id, h, j), pool->head_dim * sizeof *page);
}

// Searches layer by layer, then by position, and describes the first key found. page: scratch memory of one page
static void describe_keys(const sl_session *s, void *page, char *text, size_t size) {
    const sl_engine *e = s->engine;
    const sl_attn_geom *g = &e->geom;
    const sl_format format = e->device.formats.k;
    size_t page_bytes = g->n_kv_heads * sl_kv_block_bytes(format, g->head_dim);
    int n_rows = s->kv.n_tokens;
    sl_kv_write_out(&s->engine->device.pool, &s->kv);
    if (e->device.pool.offload) e->device.backend->finish(e->device.backend, NULL);
    for (int layer = 0; layer < g->n_layers; layer++)
        for (int i = 0; i * SL_PAGE < n_rows; i++) {
            const char *from = (const char *)sl_kv_layer(&e->device.pool, layer).k + s->kv.pages[i] * page_bytes;
            if (e->device.pool.offload)
                copy_from_host(&e->device.pool, layer, s->kv.pages[i], page);
            else if (e->device.backend->is_device)
                e->device.backend->download(e->device.backend, page, from, page_bytes);
            else
                memcpy(page, from, page_bytes);
            int left = n_rows - i * SL_PAGE, found = find_in_page(page, format, g, left < SL_PAGE ? left : SL_PAGE);
            if (found < 0) continue;
            snprintf(text, size, "the first key that is not finite is in layer %d, KV head %d, position %d", layer,
                     found % g->n_kv_heads, i * SL_PAGE + found / g->n_kv_heads);
            return;
        }
    snprintf(text, size, "all keys of the cache are finite");
}

// n_bad: how many logits of s are not finite.
static int fail_not_finite(const sl_session *s, int n_bad, sl_error *err) {
    const sl_attn_geom *g = &s->engine->geom;
    char where[128] = "the keys could not be checked: out of memory";
    void *page = malloc(g->n_kv_heads * sl_kv_block_bytes(s->engine->device.formats.k, g->head_dim));
    if (page) describe_keys(s, page, where, sizeof where);
    free(page);
    return sl_fail(err, SL_ERR_NOT_FINITE, "sequence %u: %d of %d logits after %d tokens are not finite; %s", s->sequence,
                   n_bad, s->engine->model->config.n_vocab, s->kv.n_tokens, where);
}

int sl_session_check_logits(const sl_session *s, sl_error *err) {
    const float *logits = sl_session_logits(s, err);
    if (!logits) return SL_ERR_ARG;
    int n_bad = count_not_finite(logits, s->engine->model->config.n_vocab);
    return n_bad ? fail_not_finite(s, n_bad, err) : 0;
}
