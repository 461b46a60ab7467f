// engine/attend/attn_runner_cuda.c - attention on the GPU: translates a batch into the arguments of a method's kernels.
//
// sl_backend.stream makes the engine's GPU the current device, so every launch here and in observe_cuda.c goes to that GPU.
#include "attention/exact_step_cuda.h"
#include "attention/prefill/prefill_mask.h"
#include "engine/attend/attn_launch_cuda.h"
#include "backend/cuda/cuda_backend.h"
#include "kv/kv_offload.h"
#include "engine/attend/observe_cuda.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static size_t state_size(const sl_engine *e, const sl_attn_spec *spec) {
    return spec->method->cuda->state ? spec->method->cuda->state(&e->geom, spec) : 0;
}

// Sets at[layer], the offset of the layer's method in the workspace. Layers of equal specification share a part. Returns the
// size of the workspace.
static size_t lay_out(const sl_engine *e, const sl_attn_plan *plan, int is_host, int n_ctx, size_t *at) {
    size_t total = 0;
    for (int i = 0; i < plan->n_layers; i++) {
        const sl_attn_spec *spec = &plan->layer[i];
        int same = 0;
        while (same < i && !sl_attn_same(&plan->layer[same], spec)) same++;
        if (at) at[i] = same < i ? at[same] : total;
        const sl_attn_cuda_ops *ops = is_host ? spec->method->cuda->offloaded : sl_cuda_ops_of(e, spec);
        if (same == i) total += sl_align(ops->workspace(&e->geom, spec, e->n_step_rows, 1, n_ctx));
    }
    return total;
}

static size_t offloaded_scratch(const sl_engine *e, const sl_attn_plan *plan, int n_ctx) {
    return lay_out(e, plan, 1, n_ctx, NULL);
}

static const sl_attn_spec dense = {.method = &sl_method_dense};

// Reserves the workspace of a plan.
static int reserve(sl_engine *e, sl_plan *plan, sl_plan *replaced, sl_error *err) {
    const sl_backend *be = e->device.backend;
    plan->ws_at = malloc(e->geom.n_layers * sizeof *plan->ws_at);
    size_t size = plan->ws_at ? lay_out(e, &plan->methods, e->device.pool.offload != NULL, e->n_ctx, plan->ws_at) : 0;
    plan->exact_ws_at = size;
    if (plan->n_splits) size += sl_align(sl_cuda_ops_of(e, &dense)->workspace(&e->geom, &dense, e->n_step_rows, 1, e->n_ctx));
    sl_pass_buffers *pass = &e->device.pass;
    pass->stats_size = 2 * sizeof(sl_attn_cuda_stats);
    if (!pass->stats) pass->stats = be->alloc(be, pass->stats_size);
    int takes = replaced && replaced->ws && size <= replaced->ws_size;
    if (!takes && size) plan->ws = be->alloc(be, size);
    if (!plan->ws_at || !pass->stats || (size && !takes && !plan->ws))
        return sl_fail(err, SL_ERR_MEMORY, "{attn}: %zu MiB of scratch memory on the GPU: out of memory", size >> 20);
    plan->ws_size = size;
    if (takes) plan->ws = replaced->ws, plan->ws_size = replaced->ws_size, replaced->ws = NULL, replaced->ws_size = 0;
    if (plan->ws) be->clear(be, plan->ws, plan->ws_size); // kernels expect counters of zero
    return 0;
}

static int prepare(sl_engine *e, sl_plan *plan, sl_plan *replaced, sl_error *err) {
    int rc = 0;
    for (int i = 0; !rc && i < plan->methods.n_layers; i++) {
        char where[32];
        snprintf(where, sizeof where, "layer %d", i);
        rc = sl_cuda_check_method(e, &plan->methods.layer[i], where, err);
    }
    return rc ? rc : reserve(e, plan, replaced, err);
}

// ---- prefill ----

static int has_mask(const sl_attn_spec *spec) {
    return spec->method->cuda && spec->method->cuda->mask;
}

static size_t prefill_stats_size(const sl_engine *e) {
    return (size_t)e->geom.n_layers * e->geom.n_heads * sizeof(sl_attn_cuda_prefill_stats);
}

// Bytes of workspace for the masks of a plan, and for attention with them.
static size_t prefill_ws_size(const sl_engine *e, const sl_attn_plan *plan, int n_tokens) {
    size_t most = sl_cuda_query_blocks_workspace(&e->geom, e->device.pass.max_rows);
    for (int i = 0; i < plan->n_layers; i++) {
        const sl_attn_spec *spec = &plan->layer[i];
        if (!has_mask(spec) || !spec->method->cuda->mask_workspace) continue;
        size_t size = spec->method->cuda->mask_workspace(&e->geom, spec, n_tokens, e->n_ctx);
        if (size > most) most = size;
    }
    return most;
}

// Moves the counts of a pass to the engine's, and clears them.
static void collect_prefill(sl_engine *e) {
    const sl_backend *be = e->device.backend;
    size_t n = (size_t)e->geom.n_layers * e->geom.n_heads;
    void *stats = e->prefill.masks.device;
    if (!stats) return;
    sl_attn_cuda_prefill_stats counted[n];
    be->download(be, counted, stats, sizeof counted);
    be->clear(be, stats, sizeof counted);
    for (size_t i = 0; i < n; i++) {
        e->prefill.counts[i].visited += counted[i].visited;
        if (counted[i].unkept) e->prefill.pass_reports[i].kept = (1 << SL_SHARE_BITS) + 1 - (int32_t)counted[i].unkept;
    }
}

static int prepare_prefill(sl_engine *e, const sl_attn_plan *plan, int n_tokens, sl_error *err) {
    const sl_backend *be = e->device.backend;
    for (int i = 0; i < plan->n_layers; i++) {
        const sl_attn_spec *spec = &plan->layer[i];
        if (sl_attn_prefills_on_gpu(spec)) continue;
        if (sl_attn_has(spec, "repair")) // a GPU offers this method without repair
            return sl_fail(err, SL_ERR_UNSUPPORTED,
                           "{attn_prefill} %s: found {repair} %g, expected 0: not offered on a GPU (layer %d); or {device} cpu",
                           spec->method->name, sl_attn_get(spec, "repair"), i);
        return sl_fail(err, SL_ERR_UNSUPPORTED,
                       "{attn_prefill} %s: not offered on a GPU (layer %d); use {attn_prefill} sample, or {device} cpu",
                       spec->method->name, i);
    }
    be->stream(be);               // makes the engine's GPU the current device
    int more = SL_MASK_BLOCK - 1; // a segment may begin and end inside a block
    sl_prefill_mask mask = sl_mask_of(e->geom.n_heads, n_tokens + more, e->n_ctx + more);
    size_t mask_size = sl_align(sl_mask_bytes(&mask)), ws_size = prefill_ws_size(e, plan, n_tokens);
    sl_mask_memory *masks = &e->prefill.masks;
    size_t old_mask = masks->ws_at - masks->mask_at, old_ws = masks->device_size - masks->ws_at;
    if (mask_size <= old_mask && ws_size <= old_ws) return 0;
    if (mask_size < old_mask) mask_size = old_mask; // the previous plan stays if a later step fails
    if (ws_size < old_ws) ws_size = old_ws;
    size_t mask_at = sl_align(prefill_stats_size(e)), size = mask_at + mask_size + ws_size;
    void *memory = be->alloc(be, size);
    if (!memory) return sl_fail(err, SL_ERR_MEMORY, "{attn_prefill}: %zu MiB for masks on the GPU: out of memory", size >> 20);
    be->release(be, masks->device, masks->device_size);
    masks->device = memory, masks->device_size = size;
    masks->mask_at = mask_at, masks->ws_at = mask_at + mask_size;
    return 0;
}

// The mask of the batch, in the GPU's memory.
static sl_prefill_mask mask_of(const sl_batch *b) {
    const sl_engine *e = b->ranges[0].session->engine;
    sl_prefill_mask mask = sl_mask_of(e->geom.n_heads, b->n_rows, b->ranges[0].position + b->n_rows);
    const sl_mask_memory *masks = &e->prefill.masks;
    mask.bits = (uint64_t *)((char *)masks->device + masks->mask_at);
    SL_CHECK(sl_mask_bytes(&mask) <= masks->ws_at - masks->mask_at);
    return mask;
}

static sl_attn_cuda_prefill_stats *prefill_stats(const sl_engine *e, int layer) {
    return (sl_attn_cuda_prefill_stats *)e->prefill.masks.device + (size_t)layer * e->geom.n_heads;
}

// The rows that prefill kernels read: pages of bf16.
typedef struct prefill_rows {
    const bf16 *k, *v;
    const int32_t *pages; // page table of the sequence
    int n_pages;          // of k and v
} prefill_rows;

// Of the first n rows of a session. A cache of fp8 or int8 is widened in memory that the next call overwrites. Each chunk of a
// prompt widens the rows of earlier chunks again. This moves 3 bytes for each number. For a long chunk this is little beside
// its attention; for a few tokens after a long context it takes longer than the attention.
static prefill_rows rows_of(const sl_batch *b, const sl_session *s, int layer, int n, int only_k, void *stream) {
    const sl_kv_offload *offload = b->kv->offload; // the layer is in the staged pages (kv_stream.c)
    const sl_kv_rows kv = offload ? sl_kv_staged(b->kv, layer) : sl_kv_layer(b->kv, layer);
    const struct sl_wide_rows *wide = &s->engine->device.pass.wide;
    if (offload) return (prefill_rows){kv.k, kv.v, offload->in_order, offload->n_staged};
    if (kv.formats.k == SL_BF16) return (prefill_rows){kv.k, kv.v, s->device_pages, b->kv->n_pages};
    sl_cuda_widen_rows(&(sl_attn_cuda_widen_args){.format = kv.formats.k,
                                                  .n_rows = n,
                                                  .n_kv_heads = b->kv->n_kv_heads,
                                                  .head_dim = b->kv->head_dim,
                                                  .k = kv.k,
                                                  .v = kv.v,
                                                  .pages = s->device_pages,
                                                  .to_k = wide->k,
                                                  .to_v = only_k ? NULL : wide->v,
                                                  .stream = stream});
    return (prefill_rows){wide->k, wide->v, wide->in_order, wide->n_pages};
}

static void propose(const sl_batch *b, int layer, sl_queries q) {
    const sl_engine *e = b->ranges[0].session->engine;
    const sl_attn_spec *spec = &e->prefill.plan.layer[layer];
    if (!has_mask(spec)) return;
    sl_prefill_mask mask = mask_of(b);
    const sl_row_range *range = &b->ranges[0];
    void *stream = b->backend->stream(b->backend);
    prefill_rows rows = rows_of(b, range->session, layer, range->position + b->n_rows, 1, stream);
    sl_attn_cuda_mask_args args = {
        .geom = &e->geom,
        .spec = spec,
        .n_tokens = b->n_rows,
        .first = range->position,
        .q = q.data,
        .q_stride = q.stride,
        .k = rows.k,
        .pages = rows.pages,
        .mask = &mask,
        .stats = prefill_stats(e, layer),
        .ws = (char *)e->prefill.masks.device + e->prefill.masks.ws_at,
        .stream = stream,
    };
    spec->method->cuda->mask(&args);
}

// Counts the key blocks that dense attention visits for tokens [first, first + n) of a layer.
static void count_causal(sl_engine *e, int layer, int first, int n, int is_dense) {
    sl_prefill_mask call = sl_mask_of(e->geom.n_heads, n, first + n);
    for (int head = 0; head < e->geom.n_heads; head++) {
        sl_prefill_count *count = &e->prefill.counts[(size_t)layer * e->geom.n_heads + head];
        count->causal += sl_mask_causal(&call);
        if (is_dense) count->visited += sl_mask_causal(&call);
    }
}

// Tokens [first, first + n) of a range.
static void prefill_range(const sl_batch *b, const sl_row_range *range, int layer, int first, int n, const bf16 *q,
                          size_t q_stride, bf16 *out, void *stream) {
    sl_session *s = range->session;
    sl_engine *e = s->engine;
    const sl_attn_spec *spec = &e->prefill.plan.layer[layer];
    sl_prefill_mask mask;
    prefill_rows rows = rows_of(b, s, layer, range->position + first + n, 0, stream);
    sl_attn_cuda_prefill_args args = {
        .geom = &e->geom,
        .spec = spec,
        .layer = layer,
        .n_tokens = n,
        .first = range->position + first,
        .n_pages = rows.n_pages,
        .q = q,
        .q_stride = q_stride,
        .out = out,
        .k = rows.k,
        .v = rows.v,
        .pages = rows.pages,
        .stream = stream,
    };
    if (has_mask(spec)) {
        mask = mask_of(b);
        args.mask = &mask;
        args.ws = (char *)e->prefill.masks.device + e->prefill.masks.ws_at;
        args.stats = prefill_stats(e, layer);
    }
    if (e->prefill.segment_tokens) count_causal(e, layer, args.first, n, !args.mask);
    sl_method_dense.cuda->prefill(&args); // runs every method of prefill
}

// Rows [first, first + n) of the batch. The kernels of several ranges run beside each other, because few queries that attend to
// many keys leave most multiprocessors idle. With a cache of fp8 or int8 they run one after the other, because all of them
// widen rows in the same memory.
static void prefill(const sl_batch *b, int layer, int first, int n, sl_queries q, bf16 *out) {
    const sl_attn_geom *g = &b->ranges[0].session->engine->geom;
    size_t out_stride = (size_t)g->n_heads * g->head_dim;
    sl_cuda *c = sl_cuda_of(b->backend);
    int branches = b->n_ranges > 1 && b->kv->formats.k == SL_BF16;
    if (branches) sl_cuda_branch_out(c);
    for (int i = 0; i < b->n_ranges; i++) {
        const sl_row_range *range = &b->ranges[i];
        int from = range->first > first ? range->first : first, end = range->first + range->n_rows;
        if (end > first + n) end = first + n;
        if (from >= end) continue;
        size_t row = (size_t)(from - first);
        prefill_range(b, range, layer, from - range->first, end - from, (const bf16 *)q.data + row * q.stride, q.stride,
                      out + row * out_stride, branches ? c->branches[i % SL_BRANCHES] : b->backend->stream(b->backend));
    }
    if (branches) sl_cuda_branch_in(c);
}

// Leaves the rows out that come before row `first`.
static void skip_rows(sl_attn_cuda_decode_args *args, int first) {
    size_t row = (size_t)args->geom->n_heads * args->geom->head_dim;
    args->n_seqs -= first, args->rows += first, args->q += first * row, args->out += first * row;
}

// Ends a step of layers that carry a threshold, with one kernel for each run of layers of the same specification. Rows that
// attend exactly move no threshold. args: of all rows in a layer of the step.
static void end_step(const sl_batch *b, const sl_attn_plan *plan, const sl_attn_cuda_decode_args *args) {
    const sl_engine *e = b->ranges[0].session->engine;
    for (int first = 0, end; first < plan->n_layers; first = end) {
        sl_attn_cuda_decode_args part = *args;
        for (end = first + 1; end < plan->n_layers && sl_attn_same(&plan->layer[first], &plan->layer[end]);) end++;
        part.spec = &plan->layer[first], part.state_at = sl_device_state_at(e, plan, first);
        skip_rows(&part, sl_cuda_exact_rows(b, first));
        if (part.n_seqs) sl_cuda_end_step(&part, end - first, sl_align(state_size(e, part.spec)));
    }
}

// The first rows attend exactly, the others with the layer's method. Without rows of both kinds, there is one launch.
static void decode_rows(const sl_batch *b, const sl_plan *plan, const sl_attn_cuda_decode_args *args) {
    sl_engine *e = b->ranges[0].session->engine;
    int n_exact = sl_cuda_exact_rows(b, args->layer);
    sl_attn_cuda_decode_args drawn = *args;
    if (n_exact) {
        sl_attn_cuda_decode_args exact = sl_cuda_exact_args_of(e, plan, args);
        exact.n_seqs = n_exact;
        sl_cuda_ops_of(e, exact.spec)->decode(&exact);
        exact.spec = args->spec;
        sl_cuda_exact_step(&exact);
    }
    skip_rows(&drawn, n_exact);
    if (drawn.n_seqs) sl_cuda_ops_of(e, drawn.spec)->decode(&drawn);
}

_Static_assert(SL_MAX_DRAFT + 1 <= SL_CUDA_RUN_MOST, "rows that the kernel before attention writes");

static void attend(const sl_batch *b, int layer, int first, int n, sl_queries q, void *out) {
    sl_engine *e = b->ranges[0].session->engine;
    if (!b->ranges[0].is_decode) {
        prefill(b, layer, first, n, q, out);
        return;
    }
    if (sl_cuda_of(b->backend)->skipped_parts & SL_PART_ATTENTION) return;
    SL_CHECK(first == 0 && n == b->n_rows && q.stride == (size_t)e->geom.n_heads * e->geom.head_dim);
    const sl_plan *plan = sl_session_plan(b->ranges[0].session);
    const sl_attn_plan *methods = &plan->methods;
    sl_attn_cuda_decode_args args = sl_cuda_decode_args_of(e, &methods->layer[layer], layer, q.data);
    args.n_seqs = n;
    args.has_runs = b->n_rows > b->n_ranges;
    args.rows = b->rows;
    args.out = out;
    args.stats = e->device.pass.stats;
    args.ws = (char *)plan->ws + plan->ws_at[layer];
    args.state_at = sl_device_state_at(e, methods, layer);
    if (e->observation.observer.fn) {
        sl_cuda_observe(b, &args);
        return;
    }
    decode_rows(b, plan, &args);
    if (layer == methods->n_layers - 1) end_step(b, methods, &args);
}

// Counts what dense attention would read, and what methods read whose reads follow from the length.
static void account(sl_engine *e, const sl_session *s, int n_rows) {
    const sl_attn_geom *g = &e->geom;
    for (int i = 0; i < n_rows; i++)
        for (int layer = 0; layer < g->n_layers; layer++) {
            const sl_plan *plan = sl_session_plan(s);
            int n_kv = s->kv.n_tokens + 1 + i, exact = n_kv < sl_plan_exact_below(e, plan, layer);
            const sl_attn_spec *spec = exact ? &dense : &plan->methods.layer[layer];
            uint64_t rows = n_kv;
            sl_attn_stats step = {.steps = g->n_heads,
                                  .dense_k_rows = rows * g->n_kv_heads,
                                  .dense_v_rows = rows * g->n_heads,
                                  .dense_bytes =
                                      rows * sl_kv_bytes_per_token(1, g->n_kv_heads, g->head_dim, e->device.formats)};
            const sl_attn_cuda_ops *ops = sl_cuda_ops_of(e, spec);
            if (ops->account) ops->account(g, spec, n_kv, &step);
            if (exact) step.exact_heads = g->n_heads;
            sl_attn_stats_add(&e->stats, &step);
        }
}

// Moves the counts of the kernels to the engine's statistics.
static void collect(sl_engine *e) {
    const sl_backend *be = e->device.backend;
    sl_attn_cuda_stats counted;
    be->download(be, &counted, e->device.pass.stats, sizeof counted);
    be->clear(be, e->device.pass.stats, sizeof counted);
    const sl_attn_stats more = sl_attn_stats_of_kernels(&counted);
    sl_attn_stats_add(&e->stats, &more);
}

// pass.stats has the counts, and behind them those that were saved.
static void set_aside(sl_engine *e, int back) {
    const sl_backend *be = e->device.backend;
    sl_attn_cuda_stats *counted = e->device.pass.stats, *saved = counted + 1;
    size_t size = sizeof *counted;
    be->copy(be, back ? counted : saved, size, back ? saved : counted, size, size, 1);
}

const sl_attn_runner sl_cuda_attn_runner = {
    .prepare = prepare,
    .needs = sl_cuda_needs,
    .state_size = state_size,
    .offloaded_scratch = offloaded_scratch,
    .prepare_prefill = prepare_prefill,
    .propose = propose,
    .attend = attend,
    .account = account,
    .collect = collect,
    .set_aside = set_aside,
    .collect_prefill = collect_prefill,
    .check_shadow = sl_cuda_check_shadow,
    .observe = sl_cuda_new_observation,
    .unobserve = sl_cuda_free_observation,
};
