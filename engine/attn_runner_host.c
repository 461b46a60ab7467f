// engine/attn_runner_host.c - attention on the host: translates a batch into the arguments of a method.
#include "engine/engine_internal.h"

static int needs(const sl_attn_spec *spec, sl_kv_need *out) {
    return spec->method->cpu->needs ? spec->method->cpu->needs(spec, out) : 0;
}

static size_t state_size(const sl_engine *e, const sl_attn_spec *spec) {
    return spec->method->cpu->state ? spec->method->cpu->state(&e->geom, spec) : 0;
}

static int check_layer(sl_engine *e, const sl_attn_spec *spec, size_t *size, sl_error *err) {
    const sl_attn_method *m = spec->method;
    int rc = sl_attn_check_decode(spec, err);
    if (!rc && m->supports) rc = m->supports(&e->geom, spec, err);
    if (rc) return rc;
    *size = m->cpu->workspace(&e->geom, spec, e->n_sequences, 1, e->n_ctx);
    sl_kv_need need[SL_MAX_NEEDS];
    for (int i = 0, n = needs(spec, need); !rc && i < n; i++) rc = sl_kv_keep(&e->pool, need[i], err);
    return rc;
}

static int prepare(sl_engine *e, const sl_attn_plan *plan, sl_error *err) {
    const sl_attn_spec dense = {.method = &sl_method_dense};
    size_t most = dense.method->cpu->workspace(&e->geom, &dense, 1, e->prefill_chunk, e->n_ctx);
    int rc = 0;
    for (int i = 0; !rc && i < plan->n_layers; i++) {
        size_t size = 0;
        rc = check_layer(e, &plan->layer[i], &size, err);
        if (size > most) most = size;
    }
    return rc ? rc : sl_workspace_reserve(&e->workspace, most, err);
}

static void prefill(const sl_batch *b, int layer, int first, int n, sl_queries q, void *out) {
    sl_engine *e = b->ranges[0].session->engine;
    const sl_attn_spec dense = {.method = &sl_method_dense}; // prefill is dense whatever the plan decodes with
    sl_attn_prefill_args args = {
        .geom = &e->geom,
        .spec = &dense,
        .layer = layer,
        .n_tokens = n,
        .q = q.data,
        .out = out,
        .ws = &e->workspace,
        .kv = sl_kv_view_of(b->kv, &b->ranges[0].session->kv, layer, b->ranges[0].position + first + n),
    };
    dense.method->cpu->prefill(&args);
}

static void attend(const sl_batch *b, int layer, int first, int n, sl_queries q, void *out) {
    sl_engine *e = b->ranges[0].session->engine;
    size_t row = (size_t)e->geom.n_heads * e->geom.head_dim;
    SL_CHECK(q.stride == row);
    if (!b->ranges[0].is_decode) {
        SL_CHECK(b->n_ranges == 1);
        prefill(b, layer, first, n, q, out);
        return;
    }
    SL_CHECK(first == 0 && n == b->n_ranges);
    for (int i = 0; i < n; i++) {
        const sl_row_range *range = &b->ranges[i];
        e->queries[i] = (sl_attn_query){
            .q = (const float *)q.data + i * row,
            .out = (float *)out + i * row,
            .sequence = range->session->sequence,
            .position = range->position,
            .kv = sl_kv_view_of(b->kv, &range->session->kv, layer, range->position + 1),
            .state = range->session->state[layer].data,
        };
    }
    const sl_attn_spec *spec = &b->ranges[0].session->plan->layer[layer];
    sl_attn_decode_args args = {
        .geom = &e->geom,
        .spec = spec,
        .layer = layer,
        .seed = e->seed,
        .n_seqs = n,
        .seqs = e->queries,
        .ws = &e->workspace,
        .stats = &e->stats,
        .reports = e->observation.running,
    };
    spec->method->cpu->decode(&args);
    if (e->observation.observer.fn) sl_host_observe(e, &args, b);
}

const sl_attn_runner sl_host_attn_runner = {
    .prepare = prepare, .needs = needs, .state_size = state_size, .attend = attend, .check_shadow = sl_host_check_shadow};
