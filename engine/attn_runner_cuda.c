// engine/attn_runner_cuda.c - attention on the GPU: what a step's rows mean to a method's kernels.
#include "attention/attention_cuda.h"
#include "attention/stages.h"
#include "engine/backend/cuda/cuda_backend.h"
#include "engine/backend/cuda/cuda.h"
#include "engine/observe_cuda.h"
#include "engine/engine_internal.h"

#include <stdio.h>
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

int sl_cuda_check_method(sl_engine *e, const sl_attn_spec *spec, const char *where, sl_error *err) {
    sl_kv_need need[SL_MAX_NEEDS];
    if (sl_budget_is_by_variance(spec))
        return sl_fail(
            err, SL_ERR_UNSUPPORTED,
            "--budget variance: not offered on a GPU, where no head waits for the others (%s, --attn %s); use --budget "
            "even, or --device cpu",
            where, spec->method->name);
    if (!sl_attn_on_gpu(spec))
        return sl_fail(err, SL_ERR_UNSUPPORTED, "--attn %s%s%s: not offered on a GPU (%s); use --device cpu",
                       spec->method->name, spec->plus ? "+" : "", spec->plus ? spec->plus->name : "", where);
    int most = spec->plus ? spec->plus->cuda->max_rows : ops_of(spec)->max_rows;
    if (most && e->n_ctx > most)
        return sl_fail(err, SL_ERR_UNSUPPORTED, "--attn %s: a context of %d tokens, at most %d on a GPU (%s)",
                       spec->method->name, e->n_ctx, most, where);
    int most_seqs = sl_cuda_most_seqs(&e->geom, spec->method == &sl_method_dense);
    if (e->n_sequences > most_seqs)
        return sl_fail(err, SL_ERR_UNSUPPORTED, "--attn %s: %d sequences, at most %d on a GPU for this model (%s)",
                       spec->method->name, e->n_sequences, most_seqs, where);
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
    for (int i = 0; !rc && i < plan->n_layers; i++) {
        char where[32];
        snprintf(where, sizeof where, "layer %d", i);
        rc = sl_cuda_check_method(e, &plan->layer[i], where, err);
    }
    if (rc) return rc;
    if (!e->step_ws_at) e->step_ws_at = malloc(e->geom.n_layers * sizeof *e->step_ws_at);
    e->step_stats_size = sizeof(sl_attn_cuda_stats);
    if (!e->step_stats) e->step_stats = be->alloc(be, e->step_stats_size);
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
    const sl_attn_spec dense = {.method = &sl_method_dense};
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
        .stream = e->backend->stream(e->backend),
    };
    ops_of(&dense)->prefill(&args);
}

sl_attn_cuda_decode_args sl_cuda_decode_args_of(sl_engine *e, const sl_attn_spec *spec, int layer, const bf16 *q) {
    sl_kv_rows kv = sl_kv_layer(&e->pool, layer);
    sl_kv_need need[SL_MAX_NEEDS];
    sl_attn_cuda_decode_args args = {
        .geom = &e->geom,
        .spec = spec,
        .layer = layer,
        .max_kv = e->n_ctx,
        .q = q,
        .k = kv.k,
        .v = kv.v,
        .stream = e->backend->stream(e->backend),
    };
    for (int i = 0, n_needs = needs(spec, need); i < n_needs; i++)
        args.extra[i] = sl_kv_extra_layer(&e->pool, need[i], layer, &args.extra_size[i]);
    return args;
}

static void decode(sl_engine *e, sl_session *const *batch, int n, int layer, sl_queries q, void *out) {
    if (sl_cuda_of(e->backend)->skipped_parts & SL_PART_ATTENTION) return;
    SL_CHECK(q.stride == (size_t)e->geom.n_heads * e->geom.head_dim);
    sl_attn_cuda_decode_args args = sl_cuda_decode_args_of(e, &e->plan.layer[layer], layer, q.data);
    args.n_seqs = n;
    args.rows = e->step_rows;
    args.out = out;
    args.stats = e->step_stats;
    args.ws = (char *)e->step_ws + e->step_ws_at[layer];
    for (int i = 0; i < layer; i++) args.state_at += (state(e, &e->plan.layer[i]) + 255) / 256 * 256;
    if (e->observation.observer.fn)
        sl_cuda_observe(e, &args, batch);
    else
        ops_of(args.spec)->decode(&args);
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

sl_attn_stats sl_cuda_counted(const sl_attn_cuda_stats *c) {
    uint32_t bits = (uint32_t)c->kurtosis;
    float kurtosis;
    memcpy(&kurtosis, &bits, sizeof kurtosis);
    return (sl_attn_stats){.k_rows = c->k_rows,
                           .v_rows = c->v_rows,
                           .v_distinct = c->v_distinct,
                           .samples = c->samples,
                           .bytes = c->bytes,
                           .tries = c->tries,
                           .fallbacks = c->fallbacks,
                           .heavy_tails = c->heavy_tails,
                           .kurtosis = kurtosis,
                           .features = (double)c->features / 1024};
}

// Adds what the methods' kernels have counted since the last time to the engine's statistics.
static void collect(sl_engine *e) {
    const sl_backend *be = e->backend;
    sl_attn_cuda_stats counted;
    be->download(be, &counted, e->step_stats, sizeof counted);
    be->clear(be, e->step_stats, sizeof counted);
    const sl_attn_stats more = sl_cuda_counted(&counted);
    sl_attn_stats_add(&e->stats, &more);
}

const sl_attend sl_cuda_attend = {.plan = plan_cuda,
                                  .needs = needs,
                                  .state = state,
                                  .prefill = prefill,
                                  .decode = decode,
                                  .account = account,
                                  .collect = collect,
                                  .check_shadow = sl_cuda_check_shadow,
                                  .observe = sl_cuda_new_observation,
                                  .unobserve = sl_cuda_free_observation};
