// engine/attend/attn_runner_host.c - attention on the host: translates a batch into the arguments of a method.
#include "engine/engine_internal.h"

#include <stdlib.h>

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
    *size = m->cpu->workspace(&e->geom, spec, e->n_step_rows, 1, e->n_ctx);
    sl_kv_need need[SL_MAX_NEEDS];
    for (int i = 0, n = needs(spec, need); !rc && i < n; i++) rc = sl_kv_keep(&e->device.pool, need[i], err);
    return rc;
}

static int prepare(sl_engine *e, sl_plan *plan, sl_plan *replaced, sl_error *err) {
    const sl_attn_spec dense = {.method = &sl_method_dense};
    size_t most = dense.method->cpu->workspace(&e->geom, &dense, 1, e->prefill_chunk, e->n_ctx);
    int rc = 0;
    (void)replaced; // the engine has one workspace, which no method reads in a later step
    for (int i = 0; !rc && i < plan->methods.n_layers; i++) {
        size_t size = 0;
        rc = check_layer(e, &plan->methods.layer[i], &size, err);
        if (size > most) most = size;
    }
    return rc ? rc : sl_workspace_reserve(&e->device.pass.workspace, most, err);
}

// ---- prefill ----

static int prepare_prefill(sl_engine *e, const sl_attn_plan *plan, int n_tokens, sl_error *err) {
    sl_prefill_mask mask = sl_mask_of(e->geom.n_heads, n_tokens, e->n_ctx);
    size_t most = sl_mask_measure_workspace(&e->geom, e->n_ctx), bytes = sl_mask_bytes(&mask);
    for (int i = 0; i < plan->n_layers; i++) {
        size_t size = sl_mask_workspace(&e->geom, &plan->layer[i], n_tokens, e->n_ctx);
        if (size > most) most = size;
    }
    int rc = sl_workspace_reserve(&e->device.pass.workspace, most, err);
    sl_mask_memory *masks = &e->prefill.masks;
    if (rc || bytes <= masks->host_size) return rc;
    uint64_t *bits = realloc(masks->host.bits, bytes);
    if (!bits) return sl_fail(err, SL_ERR_MEMORY, "{attn_prefill}: %zu MiB for masks: out of memory", bytes >> 20);
    masks->host.bits = bits, masks->host_size = bytes;
    return 0;
}

// Sets the engine's mask to the mask of the batch in this layer.
static void propose(const sl_batch *b, int layer, sl_queries q) {
    const sl_row_range *range = &b->ranges[0];
    sl_engine *e = range->session->engine;
    const sl_attn_spec *spec = &e->prefill.plan.layer[layer];
    sl_mask_memory *masks = &e->prefill.masks;
    uint64_t *bits = masks->host.bits;
    int n = b->n_rows, n_kv = range->position + n;
    if (!spec->method->cpu->mask) return;
    masks->host = sl_mask_of(e->geom.n_heads, n, n_kv), masks->host.bits = bits;
    SL_CHECK(sl_mask_bytes(&masks->host) <= masks->host_size);
    sl_mask_report reports[e->geom.n_heads];
    const sl_mask_args args = {.geom = &e->geom,
                               .spec = spec,
                               .layer = layer,
                               .n_tokens = n,
                               .q = q.data,
                               .kv = sl_kv_view_of(b->kv, &range->session->kv, layer, n_kv),
                               .ws = &e->device.pass.workspace,
                               .mask = &masks->host,
                               .reports = reports};
    sl_mask_propose(&args);
    for (int h = 0; h < e->geom.n_heads; h++) {
        sl_prefill_report *r = &e->prefill.pass_reports[(size_t)layer * e->geom.n_heads + h];
        r->kept = reports[h].kept;
        for (int i = 0; i < sl_prefill_n_checked(e, n); i++) {
            const sl_prefill_report one = {.kept = SL_MASK_NOT_SAMPLED,
                                           .measured = sl_mask_measure(&args, h, sl_prefill_checked_row(e, n, i), 1)};
            sl_prefill_report_add(r, &one);
        }
    }
}

// Adds the errors of the checked rows among the rows [first, first + args->n_tokens) of the pass.
static void check_rows(sl_engine *e, const sl_attn_prefill_args *args, int first, int n_pass) {
    int n_heads = e->geom.n_heads;
    float *error = e->prefill.checked + (size_t)n_heads * e->geom.head_dim;
    for (int i = 0; i < sl_prefill_n_checked(e, n_pass); i++) {
        int row = sl_prefill_checked_row(e, n_pass, i);
        if (row < first || row >= first + args->n_tokens) continue;
        sl_prefill_errors(args, row - first, 1, e->prefill.checked, error);
        for (int h = 0; h < n_heads; h++) {
            const sl_prefill_report one = {.kept = SL_MASK_NOT_SAMPLED,
                                           .measured = SL_MASK_NOT_SAMPLED,
                                           .n_errors = 1,
                                           .errors = error[h],
                                           .error_max = error[h]};
            sl_prefill_report_add(&e->prefill.pass_reports[(size_t)args->layer * n_heads + h], &one);
        }
    }
}

static void prefill(const sl_batch *b, int layer, int first, int n, sl_queries q, void *out) {
    sl_engine *e = b->ranges[0].session->engine;
    const sl_attn_spec *spec = &e->prefill.plan.layer[layer];
    const sl_attn_ops *ops = spec->method->cpu;
    sl_attn_prefill_args args = {
        .geom = &e->geom,
        .spec = spec,
        .layer = layer,
        .n_tokens = n,
        .q = q.data,
        .out = out,
        .ws = &e->device.pass.workspace,
        .kv = sl_kv_view_of(b->kv, &b->ranges[0].session->kv, layer, b->ranges[0].position + first + n),
        .mask = ops->mask ? &e->prefill.masks.host : NULL,
        .skip_distance = ops->skip_distance ? ops->skip_distance(spec) : 0,
        .counts = e->prefill.segment_tokens ? e->prefill.counts + (size_t)layer * e->geom.n_heads : NULL,
    };
    sl_method_dense.cpu->prefill(&args); // runs every method of prefill
    if (e->prefill.segment_tokens && e->prefill.checked) check_rows(e, &args, first, b->n_rows);
    const struct sl_pass_progress *p = &e->prefill.progress;
    double share = (layer + (double)(first + n) / b->n_rows) / e->geom.n_layers;
    sl_progress_report(&p->progress, p->from + (int)(share * p->n), p->total);
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
    SL_CHECK(first == 0 && n == b->n_rows);
    for (int i = 0, at = 0; i < b->n_ranges; i++) {
        const sl_row_range *range = &b->ranges[i];
        for (int j = 0; j < range->n_rows; j++, at++)
            e->device.pass.queries[at] = (sl_attn_query){
                .q = (const float *)q.data + at * row,
                .out = (float *)out + at * row,
                .sequence = range->session->sequence,
                .position = range->position + j,
                .seed = range->session->seed,
                .kv = sl_kv_view_of(b->kv, &range->session->kv, layer, range->position + j + 1),
                .state = range->session->state[layer].data,
                .stats = range->session->work,
            };
    }
    const sl_plan *plan = sl_session_plan(b->ranges[0].session);
    const sl_attn_spec *spec = &plan->methods.layer[layer];
    sl_attn_decode_args args = {
        .geom = &e->geom,
        .spec = spec,
        .layer = layer,
        .exact_below = sl_plan_exact_below(e, plan, layer),
        .n_seqs = n,
        .seqs = e->device.pass.queries,
        .ws = &e->device.pass.workspace,
        .stats = &e->stats,
        .reports = e->observation.running,
    };
    spec->method->cpu->decode(&args);
    if (e->observation.observer.fn) sl_host_observe(e, &args, b);
}

const sl_attn_runner sl_host_attn_runner = {
    .prepare = prepare,
    .needs = needs,
    .state_size = state_size,
    .prepare_prefill = prepare_prefill,
    .propose = propose,
    .attend = attend,
    .check_shadow = sl_host_check_shadow,
};
