// engine/cuda/attend.c - attention on the GPU: what a step's rows mean to a method's kernels.
#include "attention/cuda.h"
#include "attention/stages.h"
#include "engine/cuda/backend.h"
#include "engine/cuda/cuda.h"
#include "engine/internal.h"

#include <stdlib.h>
#include <string.h>

static const sl_attn_cuda_ops *ops_of(const sl_attn_spec *spec) {
    return spec->method->cuda;
}

static int needs(const sl_attn_spec *spec, sl_kv_need *out) {
    return ops_of(spec)->needs ? ops_of(spec)->needs(spec, out) : 0;
}

static size_t state(const sl_engine *e, const sl_attn_spec *spec) {
    return ops_of(spec)->state ? ops_of(spec)->state(&e->geom, spec) : 0;
}

static int check_layer(sl_engine *e, int layer, const sl_attn_spec *spec, sl_error *err) {
    sl_kv_need need[SL_MAX_NEEDS];
    if (sl_budget_wanted(spec))
        return sl_fail(err, SL_ERR_UNSUPPORTED,
                       "--budget variance: not offered on a GPU, where no head waits for the others (layer %d, --attn %s); use "
                       "--budget even, or --device cpu",
                       layer, spec->method->name);
    if (!sl_attn_on_gpu(spec))
        return sl_fail(err, SL_ERR_UNSUPPORTED, "--attn %s%s%s: not offered on a GPU (layer %d); use --device cpu",
                       spec->method->name, spec->plus ? "+" : "", spec->plus ? spec->plus->name : "", layer);
    int most = spec->plus ? spec->plus->cuda->max_rows : ops_of(spec)->max_rows;
    if (most && e->n_ctx > most)
        return sl_fail(err, SL_ERR_UNSUPPORTED, "--attn %s: a context of %d tokens, at most %d on a GPU (layer %d)",
                       spec->method->name, e->n_ctx, most, layer);
    int rc = spec->method->supports ? spec->method->supports(&e->geom, spec, err) : 0, n = rc ? 0 : needs(spec, need);
    for (int i = 0; !rc && i < n; i++) rc = sl_kv_keep(&e->pool, need[i], err);
    return rc;
}

// Where in the scratch memory each layer's method has its part: one for each method and specification. Returns the size of all.
static size_t lay_out(const sl_engine *e, const sl_attn_plan *plan, size_t *at) {
    size_t total = 0;
    for (int i = 0; i < plan->n_layers; i++) {
        const sl_attn_spec *spec = &plan->layer[i];
        int same = 0;
        while (same < i && memcmp(&plan->layer[same], spec, sizeof *spec)) same++;
        at[i] = same < i ? at[same] : total;
        if (same == i) total += (ops_of(spec)->workspace(&e->geom, spec, e->n_sequences, 1, e->n_ctx) + 255) / 256 * 256;
    }
    return total;
}

static int plan_cuda(sl_engine *e, const sl_attn_plan *plan, sl_error *err) {
    const sl_backend *be = e->backend;
    int rc = 0;
    for (int i = 0; !rc && i < plan->n_layers; i++) rc = check_layer(e, i, &plan->layer[i], err);
    if (rc) return rc;
    if (!e->step_ws_at) e->step_ws_at = malloc(e->geom.n_layers * sizeof *e->step_ws_at);
    if (!e->step_stats) e->step_stats = be->alloc(be, sizeof(sl_attn_cuda_stats));
    if (!e->step_ws_at || !e->step_stats) return sl_fail(err, SL_ERR_MEMORY, "--attn: out of memory");
    size_t size = lay_out(e, plan, e->step_ws_at);
    if (size > e->step_ws_size) {
        void *ws = be->alloc(be, size);
        if (!ws) return sl_fail(err, SL_ERR_MEMORY, "--attn: %zu MiB of scratch memory on the GPU: out of memory", size >> 20);
        be->release(be, e->step_ws, e->step_ws_size);
        e->step_ws = ws;
        e->step_ws_size = size;
    }
    be->clear(be, e->step_ws, e->step_ws_size); // another method's leavings
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
    sl_kv_need need[SL_MAX_NEEDS];
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
        .stats = e->step_stats,
        .ws = (char *)e->step_ws + e->step_ws_at[layer],
        .stream = sl_cuda_of(e->backend)->stream,
    };
    for (int i = 0; i < layer; i++) args.state_at += (state(e, &e->plan.layer[i]) + 255) / 256 * 256;
    for (int i = 0, n_needs = needs(spec, need); i < n_needs; i++)
        args.extra[i] = sl_kv_extra_layer(&e->pool, need[i], layer, &args.extra_size[i]);
    ops_of(spec)->decode(&args);
}

// What dense attention would read, and what methods whose reading follows from the length do.
static void account(sl_engine *e, sl_session *const *batch, int n) {
    const sl_attn_geom *g = &e->geom;
    for (int i = 0; i < n; i++)
        for (int layer = 0; layer < g->n_layers; layer++) {
            const sl_attn_spec *spec = &e->plan.layer[layer];
            int n_kv = batch[i]->kv.n_tokens + 1;
            uint64_t rows = n_kv;
            sl_attn_stats step = {.steps = g->n_heads,
                                  .dense_k_rows = rows * g->n_kv_heads,
                                  .dense_v_rows = rows * g->n_heads,
                                  .dense_bytes = rows * g->n_kv_heads * g->head_dim * 2 * sizeof(bf16)};
            if (ops_of(spec)->account) ops_of(spec)->account(g, spec, n_kv, &step);
            sl_attn_stats_add(&e->stats, &step);
        }
}

// Adds what the methods' kernels have counted since the last time to the engine's statistics.
static void collect(sl_engine *e) {
    const sl_backend *be = e->backend;
    sl_attn_cuda_stats c;
    be->download(be, &c, e->step_stats, sizeof c);
    be->clear(be, e->step_stats, sizeof c);
    const sl_attn_stats more = {.k_rows = c.k_rows,
                                .v_rows = c.v_rows,
                                .v_distinct = c.v_distinct,
                                .samples = c.samples,
                                .bytes = c.bytes,
                                .tries = c.tries,
                                .fallbacks = c.fallbacks,
                                .features = (double)c.features / 1024};
    sl_attn_stats_add(&e->stats, &more);
}

const sl_attend sl_cuda_attend = {.plan = plan_cuda,
                                  .needs = needs,
                                  .state = state,
                                  .prefill = prefill,
                                  .decode = decode,
                                  .account = account,
                                  .collect = collect};
