// engine/attend/attn_launch_cuda.c - see attn_launch_cuda.h.
#include "engine/attend/attn_launch_cuda.h"
#include "attention/stages/stages.h"
#include "kv/kv_offload.h"

#include <string.h>

const sl_attn_cuda_ops *sl_cuda_ops_of(const sl_engine *e, const sl_attn_spec *spec) {
    if (e->device.formats.k != SL_BF16) return spec->method->cuda->bytes;
    return e->device.pool.offload ? spec->method->cuda->offloaded : spec->method->cuda;
}

int sl_cuda_needs(const sl_attn_spec *spec, sl_kv_need *out) {
    return spec->method->cuda->needs ? spec->method->cuda->needs(spec, out) : 0;
}

int sl_cuda_check_method(sl_engine *e, const sl_attn_spec *spec, const char *where, sl_error *err) {
    sl_kv_need need[SL_MAX_NEEDS];
    if (!strcmp(sl_attn_phases(spec->method), "prefill")) return sl_attn_check_decode(spec, err);
    if (sl_budget_is_by_variance(spec))
        return sl_fail(
            err, SL_ERR_UNSUPPORTED,
            "{budget} variance: not offered on a GPU, where no head waits for the others (%s, {attn} %s); use {budget} "
            "even, or {device} cpu",
            where, spec->method->name);
    if (sl_tile_of(spec) != SL_TILE)
        return sl_fail(err, SL_ERR_UNSUPPORTED,
                       "{tile} %d: not offered on a GPU (%s, {attn} %s); use {tile} %d, or {device} cpu", sl_tile_of(spec),
                       where, spec->method->name, SL_TILE);
    if (sl_adds_values(spec))
        return sl_fail(err, SL_ERR_UNSUPPORTED,
                       "{value} adds: not offered on a GPU (%s, {attn} %s); use {value} counts, or {device} cpu", where,
                       spec->method->name);
    const sl_attn_cuda_ops *ops = spec->method->cuda;
    if (ops && ops->supports && ops->supports(spec, err)) return SL_ERR_UNSUPPORTED;
    if (!sl_attn_on_gpu(spec))
        return sl_fail(err, SL_ERR_UNSUPPORTED, "{attn} %s%s%s: not offered on a GPU (%s); use {device} cpu",
                       spec->method->name, spec->plus ? "+" : "", spec->plus ? spec->plus->name : "", where);
    if (e->device.pool.offload && !sl_attn_on_offloaded_rows(spec)) return sl_attn_refuse_offloaded(spec, where, err);
    const sl_format format = e->device.formats.k;
    if (format != SL_BF16 && !sl_attn_on_byte_rows(spec))
        return sl_attn_refuse_byte_rows(spec, sl_formats[format].name, where, err);
    int most = spec->plus ? spec->plus->cuda->max_rows : spec->method->cuda->max_rows;
    if (most && e->n_ctx > most)
        return sl_fail(err, SL_ERR_UNSUPPORTED, "{attn} %s: a context of %d tokens, at most %d on a GPU (%s)",
                       spec->method->name, e->n_ctx, most, where);
    int most_seqs = sl_cuda_most_seqs(&e->geom, spec->method == &sl_method_dense);
    if (e->n_step_rows > most_seqs)
        return sl_fail(err, SL_ERR_UNSUPPORTED, "{attn} %s: %d %s, at most %d on a GPU for this model (%s)", spec->method->name,
                       e->n_step_rows, e->n_draft ? "rows of sequences and their drafts in a step" : "sequences", most_seqs,
                       where);
    int rc = spec->method->supports ? spec->method->supports(&e->geom, spec, err) : 0, n = rc ? 0 : sl_cuda_needs(spec, need);
    for (int i = 0; !rc && i < n; i++) rc = sl_kv_keep(&e->device.pool, need[i], err);
    return rc;
}

sl_attn_cuda_decode_args sl_cuda_decode_args_of(sl_engine *e, const sl_attn_spec *spec, int layer, const bf16 *q) {
    sl_kv_rows kv = sl_kv_layer(&e->device.pool, layer);
    sl_kv_need need[SL_MAX_NEEDS];
    sl_attn_cuda_decode_args args = {
        .geom = &e->geom,
        .spec = spec,
        .layer = layer,
        .max_kv = e->n_ctx,
        .q = q,
        .k = kv.k,
        .v = kv.v,
        .format = kv.formats.k,
        .offloaded_rows = e->device.pool.offload ? sl_kv_offloaded_row(&e->device.pool, layer, 0, 0, 0) : NULL,
        .hot = sl_kv_hot_layer(&e->device.pool, layer),
        .stream = e->device.backend->stream(e->device.backend),
    };
    for (int i = 0, n_needs = sl_cuda_needs(spec, need); i < n_needs; i++) {
        args.extra[i] = sl_kv_extra_layer(&e->device.pool, need[i], layer, &args.extra_size[i]);
        args.extra_slots[i] = sl_kv_extra_slots(&e->device.pool, need[i]);
    }
    return args;
}

int sl_cuda_exact_rows(const sl_batch *b, int layer) {
    const sl_session *s = b->ranges[0].session;
    return sl_plan_exact_rows(b->ranges, b->n_ranges, sl_plan_exact_below(s->engine, sl_session_plan(s), layer));
}

sl_attn_cuda_decode_args sl_cuda_exact_args_of(sl_engine *e, const sl_plan *plan, const sl_attn_cuda_decode_args *args) {
    static const sl_attn_spec dense = {.method = &sl_method_dense};
    sl_attn_cuda_decode_args exact = sl_cuda_decode_args_of(e, &dense, args->layer, args->q);
    exact.n_seqs = args->n_seqs, exact.has_runs = args->has_runs, exact.rows = args->rows, exact.out = args->out,
    exact.stats = args->stats;
    exact.ws = (char *)plan->ws + plan->exact_ws_at;
    return exact;
}
