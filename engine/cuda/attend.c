// engine/cuda/attend.c - attention on the GPU: what a step's rows mean to a method's kernels.
#include "attention/cuda.h"
#include "engine/cuda/backend.h"
#include "engine/cuda/cuda.h"
#include "engine/internal.h"

static const sl_attn_cuda_ops *ops_of(const sl_attn_spec *spec) {
    return spec->method->cuda;
}

static int plan_cuda(sl_engine *e, const sl_attn_plan *plan, sl_error *err) {
    const sl_backend *be = e->backend;
    const sl_attn_spec dense = {.method = sl_attn_methods[0]};
    size_t most = ops_of(&dense)->workspace(&e->geom, &dense, 1, e->prefill_chunk, e->n_ctx);
    for (int i = 0; i < plan->n_layers; i++) {
        const sl_attn_spec *spec = &plan->layer[i];
        if (!ops_of(spec) || !ops_of(spec)->decode || spec->plus)
            return sl_fail(err, SL_ERR_UNSUPPORTED, "--attn %s: not offered on a GPU (layer %d); use --device cpu",
                           spec->method->name, i);
        size_t size = ops_of(spec)->workspace(&e->geom, spec, e->n_sequences, 1, e->n_ctx);
        if (size > most) most = size;
    }
    if (most <= e->step_ws_size) return 0;
    void *ws = be->alloc(be, most);
    if (!ws) return sl_fail(err, SL_ERR_MEMORY, "--attn: %zu MiB of scratch memory on the GPU: out of memory", most >> 20);
    be->release(be, e->step_ws, e->step_ws_size);
    e->step_ws = ws;
    e->step_ws_size = most;
    return 0;
}

static void prefill(sl_engine *e, sl_session *s, int layer, int position, int n, sl_queries q, void *out) {
    const sl_attn_spec dense = {.method = sl_attn_methods[0]};
    sl_kv_rows kv = sl_kv_layer(&e->pool, layer);
    sl_attn_cuda_prefill_args args = {
        .geom = &e->geom,
        .spec = &dense,
        .layer = layer,
        .n_tokens = n,
        .first = position,
        .n_pages = e->pool.n_pages,
        .q = q.data,
        .q_stride = q.stride,
        .out = out,
        .k = kv.k,
        .v = kv.v,
        .pages = s->pages,
        .ws = e->step_ws,
        .stream = sl_cuda_of(e->backend)->stream,
    };
    ops_of(&dense)->prefill(&args);
}

static void decode(sl_engine *e, sl_session *const *batch, int n, int layer, sl_queries q, void *out) {
    (void)batch; // its rows are in device memory
    if (sl_cuda_of(e->backend)->left_out & SL_PART_ATTENTION) return;
    const sl_attn_spec *spec = &e->plan.layer[layer];
    sl_kv_rows kv = sl_kv_layer(&e->pool, layer);
    SL_CHECK(q.stride == (size_t)e->geom.n_heads * e->geom.head_dim);
    sl_attn_cuda_decode_args args = {
        .geom = &e->geom,
        .spec = spec,
        .layer = layer,
        .n_seqs = n,
        .max_kv = e->n_ctx,
        .rows = e->step_rows,
        .q = q.data,
        .out = out,
        .k = kv.k,
        .v = kv.v,
        .ws = e->step_ws,
        .stream = sl_cuda_of(e->backend)->stream,
    };
    ops_of(spec)->decode(&args);
}

// Dense attention reads every row: known without asking the device.
static void account(sl_engine *e, sl_session *const *batch, int n) {
    const sl_attn_geom *g = &e->geom;
    for (int i = 0; i < n; i++) {
        uint64_t rows = (uint64_t)batch[i]->kv.n_tokens + 1, per_kv = rows * g->n_kv_heads, per_head = rows * g->n_heads;
        uint64_t bytes = per_kv * g->head_dim * 2 * sizeof(bf16);
        const sl_attn_stats layer = {.steps = g->n_heads,
                                     .k_rows = per_kv,
                                     .v_rows = per_head,
                                     .v_distinct = per_kv,
                                     .bytes = bytes,
                                     .features = g->n_heads,
                                     .dense_k_rows = per_kv,
                                     .dense_v_rows = per_head,
                                     .dense_bytes = bytes};
        for (int j = 0; j < g->n_layers; j++) sl_attn_stats_add(&e->stats, &layer);
    }
}

const sl_attend sl_cuda_attend = {.plan = plan_cuda, .prefill = prefill, .decode = decode, .account = account};
