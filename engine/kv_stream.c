// engine/kv_stream.c - a prefill with K and V in host memory (kv/kv_offload.h).
//
// The pass runs in the staged pages: page i of the sequence is staged page i. For each layer, the rows before the pass are
// streamed from the host to the staged pages, the model appends its rows there, attention reads the staged pages, and the pages
// with new rows are written out. So attention has the kernels and the bits of a prefill with the cache on the GPU. While a
// layer runs, the rows of the next layer are streamed aside: there are staged pages for two layers.
#include "engine/engine_internal.h"
#include "kv/kv_offload.h"

// Writes the pages with rows of the pass out.
static void write_new(const sl_batch *b, int layer) {
    sl_session *s = b->ranges[0].session;
    int first = b->ranges[0].position / SL_PAGE, end = (b->ranges[0].position + b->n_rows - 1) / SL_PAGE + 1;
    sl_kv_write_rows(&s->engine->device.pool, layer, s->kv.pages + first, end - first, first);
}

sl_kv_rows sl_kv_stream_open(const sl_batch *b, int layer) {
    sl_session *s = b->ranges[0].session;
    const sl_backend *be = b->backend;
    sl_kv_pool *pool = &s->engine->device.pool;
    int n_old = sl_kv_pages_of(b->ranges[0].position);
    if (layer == 0)
        sl_kv_bring(pool, 0, s->kv.pages, n_old, 0);
    else {
        write_new(b, layer - 1);
        be->aside_end(be); // this layer's rows have come
    }
    if (layer + 1 < pool->n_layers) {
        be->aside_begin(be); // after write_new, which reads the staged pages that the next layer gets
        sl_kv_bring_aside(pool, layer + 1, s->kv.pages, n_old);
    }
    return sl_kv_staged(pool, layer);
}

void sl_kv_stream_close(const sl_batch *b) {
    write_new(b, b->ranges[0].session->engine->geom.n_layers - 1);
}
