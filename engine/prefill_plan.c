// engine/prefill_plan.c - sl_engine_set_prefill: the method that each layer prefills with, and the segments of a prefill.
#include "engine/engine_internal.h"

#include <stdlib.h>

static int prefills(const sl_attn_spec *spec) {
    const sl_attn_ops *ops = spec->method->cpu;
    return spec->method == &sl_method_dense || (ops && (ops->mask || ops->skip_distance));
}

static int check_prefill(const sl_engine *e, const sl_attn_plan *plan, int segment, sl_error *err) {
    for (int i = 0; e->device.pool.offload && i < plan->n_layers; i++)
        if (plan->layer[i].method != &sl_method_dense)
            return sl_fail(
                err, SL_ERR_UNSUPPORTED,
                "{attn_prefill} %s: not offered with {kv_cache} host, where a prefill streams a layer at a time and a "
                "segment needs all of its passes in one layer (layer %d); expected dense",
                plan->layer[i].method->name, i);
    for (int i = 0; i < plan->n_layers; i++) {
        if (!prefills(&plan->layer[i]))
            return sl_fail(err, SL_ERR_ARG, "{attn_prefill} %s: a method for decoding, which does not prefill (layer %d)",
                           plan->layer[i].method->name, i);
        if (plan->layer[i].plus)
            return sl_fail(err, SL_ERR_ARG, "{attn_prefill} %s+%s: a prefill draws no rows; expected one method (layer %d)",
                           plan->layer[i].method->name, plan->layer[i].plus->name, i);
    }
    if (segment < SL_MASK_BLOCK)
        return sl_fail(err, SL_ERR_ARG, "{prefill_segment} %d: expected at least %d", segment, SL_MASK_BLOCK);
    if (e->device.pass.max_rows < SL_MASK_BLOCK && e->device.pass.max_rows < e->n_ctx)
        return sl_fail(err, SL_ERR_ARG, "{prefill_chunk} %d: expected at least %d with {attn_prefill}", e->device.pass.max_rows,
                       SL_MASK_BLOCK);
    return 0;
}

// Prefills in segments of n_tokens tokens. 0: in passes of prefill_chunk tokens
static int set_segment(sl_engine *e, int n_tokens, sl_error *err) {
    if (n_tokens == e->prefill.segment_tokens) return 0;
    int rc = sl_device_set_segment(&e->device, n_tokens < e->n_ctx ? n_tokens : e->n_ctx, err);
    e->prefill.segment_tokens = rc ? 0 : n_tokens;
    return rc;
}

static int set_prefill(sl_engine *e, const sl_attn_plan *plan, int segment, sl_error *err) {
    sl_attn_plan copy;
    int is_sparse = !sl_attn_plan_is_dense(plan), has_masks = 0;
    SL_CHECK(plan->n_layers == e->geom.n_layers);
    for (int i = 0; i < plan->n_layers; i++) has_masks |= sl_attn_makes_mask(&plan->layer[i]);
    if (e->prefill.segment_tokens == (is_sparse ? segment : 0) && sl_attn_plan_same(&e->prefill.plan, plan)) return 0;
    int rc = is_sparse ? check_prefill(e, plan, segment, err) : 0;
    if (!rc) rc = sl_attn_plan_copy(&copy, plan, err);
    if (rc) return rc;
    if (is_sparse) rc = e->device.attention->prepare_prefill(e, &copy, segment < e->n_ctx ? segment : e->n_ctx, err);
    int before = e->prefill.segment_tokens;
    if (!rc && (rc = set_segment(e, is_sparse ? segment : 0, err)) != 0) set_segment(e, before, NULL);
    if (rc) {
        sl_attn_plan_free(&copy);
        return rc;
    }
    sl_attn_plan_free(&e->prefill.plan);
    e->prefill.plan = copy;
    e->prefill.has_masks = has_masks;
    e->prefill.version++;
    return 0;
}

int sl_engine_set_prefill(sl_engine *e, const sl_attn_plan *plan, int segment, sl_error *err) {
    int rc = sl_engine_enter(e, err);
    if (rc) return rc;
    rc = sl_attn_plan_is_dense(plan) ? 0 : sl_engine_check_whole(e, "a sparse prefill", err);
    if (!rc) rc = set_prefill(e, plan, segment, err);
    sl_engine_leave(e);
    return rc;
}

// ---- life ----

int sl_sparse_prefill_new(sl_engine *e, sl_error *err) {
    int rc = sl_prefill_new_reports(e, err);
    return rc ? rc : sl_attn_plan_init(&e->prefill.plan, e->geom.n_layers, &(sl_attn_spec){.method = &sl_method_dense}, err);
}

void sl_sparse_prefill_free(sl_engine *e) {
    const sl_backend *be = e->device.backend;
    const sl_mask_memory *masks = &e->prefill.masks;
    sl_attn_plan_free(&e->prefill.plan);
    free(masks->host.bits);
    if (be) be->release(be, masks->device, masks->device_size);
    sl_prefill_free_reports(e);
}
