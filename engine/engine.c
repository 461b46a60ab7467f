// engine/engine.c - sl_engine: one device's weights, KV pages and scratch memory.
//
// An engine allocates everything that the largest step needs. A step allocates nothing.
#include "engine/engine_internal.h"
#include "kv/kv_host.h"
#include "models/pass.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

const char *sl_version(void) {
    return SLEIGH_VERSION;
}

sl_engine_options sl_engine_options_default(void) {
    return (sl_engine_options){.device = "auto"};
}

static sl_attn_geom geometry(const sl_config *c) {
    return (sl_attn_geom){.n_layers = c->n_layers, .n_heads = c->n_heads, .n_kv_heads = c->n_kv_heads, .head_dim = c->head_dim};
}

// ---- rows and segments of a pass ----

static void free_rows(sl_engine *e) {
    const sl_backend *be = e->backend;
    if (be && be->is_device) be->release(be, e->step_rows, e->row_capacity * sizeof *e->step_rows);
    if (be) be->release(be, e->step_ids, e->row_capacity * sizeof *e->step_ids);
    free(e->rows);
    e->rows = e->step_rows = NULL, e->step_ids = NULL;
}

// Makes the arrays of the rows of a pass.
static int new_rows(sl_engine *e, int n) {
    const sl_backend *be = e->backend;
    free_rows(e);
    e->row_capacity = n;
    e->rows = calloc(n, sizeof *e->rows);
    e->step_rows = be->is_device ? be->alloc(be, n * sizeof *e->step_rows) : e->rows;
    e->step_ids = be->alloc(be, n * sizeof *e->step_ids);
    return e->rows && e->step_rows && e->step_ids;
}

static void free_segment(sl_engine *e) {
    if (e->backend) e->backend->release(e->backend, e->segment, e->segment_size);
    e->segment = NULL, e->segment_size = 0, e->segment_tokens = 0;
}

// Prefills in segments of n_tokens tokens. 0: in passes of prefill_chunk tokens
static int set_segment(sl_engine *e, int n_tokens, sl_error *err) {
    const sl_config *c = &e->model->config;
    int n_rows = n_tokens < e->n_ctx ? n_tokens : e->n_ctx, rc = 0;
    if (n_tokens == e->segment_tokens) return 0;
    e->backend->forget(e->backend); // recordings hold the addresses of the rows
    free_segment(e);
    if (n_rows > e->max_rows) {
        e->segment_size = sl_segment_size(c, e->backend, n_rows);
        e->segment = e->backend->alloc(e->backend, e->segment_size);
        if (!e->segment || !new_rows(e, n_rows))
            rc = sl_fail(err, SL_ERR_MEMORY,
                         "a segment of %d tokens: %zu MiB cannot be allocated; use a smaller {prefill_segment}", n_rows,
                         e->segment_size >> 20);
    }
    if (rc) free_segment(e);
    if (rc && !new_rows(e, e->max_rows)) return sl_fail(err, SL_ERR_MEMORY, "the rows of a pass: out of memory");
    if (!rc) e->segment_tokens = n_tokens;
    return rc;
}

// ---- prefill ----

static int prefills(const sl_attn_spec *spec) {
    const sl_attn_ops *ops = spec->method->cpu;
    return spec->method == &sl_method_dense || (ops && (ops->mask || ops->skip_distance));
}

static int check_prefill(const sl_engine *e, const sl_attn_plan *plan, int segment, sl_error *err) {
    for (int i = 0; e->pool.host && i < plan->n_layers; i++)
        if (plan->layer[i].method != &sl_method_dense)
            return sl_fail(
                err, SL_ERR_UNSUPPORTED,
                "{attn_prefill} %s: not offered with {kv_cache} host, where a prefill streams a layer at a time and a "
                "segment needs all of its passes in one layer (layer %d); expected dense",
                plan->layer[i].method->name, i);
    for (int i = 0; i < plan->n_layers; i++)
        if (!prefills(&plan->layer[i]))
            return sl_fail(err, SL_ERR_ARG, "{attn_prefill} %s: a method for decoding, which does not prefill (layer %d)",
                           plan->layer[i].method->name, i);
    if (segment < SL_MASK_BLOCK)
        return sl_fail(err, SL_ERR_ARG, "{prefill_segment} %d: expected at least %d", segment, SL_MASK_BLOCK);
    if (e->max_rows < SL_MASK_BLOCK && e->max_rows < e->n_ctx)
        return sl_fail(err, SL_ERR_ARG, "{prefill_chunk} %d: expected at least %d with {attn_prefill}", e->max_rows,
                       SL_MASK_BLOCK);
    return 0;
}

static int same_prefill(const sl_engine *e, const sl_attn_plan *plan, int segment) {
    int same = e->segment_tokens == segment;
    for (int i = 0; same && i < plan->n_layers; i++) same = sl_attn_same(&e->prefill.layer[i], &plan->layer[i]);
    return same;
}

static int set_prefill(sl_engine *e, const sl_attn_plan *plan, int segment, sl_error *err) {
    sl_attn_plan copy;
    int is_sparse = 0, has_masks = 0;
    SL_CHECK(plan->n_layers == e->geom.n_layers);
    for (int i = 0; i < plan->n_layers; i++) {
        const sl_attn_method *m = plan->layer[i].method;
        is_sparse |= m != &sl_method_dense;
        has_masks |= m->cpu && m->cpu->mask;
    }
    if (same_prefill(e, plan, is_sparse ? segment : 0)) return 0;
    int rc = is_sparse ? check_prefill(e, plan, segment, err) : 0;
    if (!rc) rc = sl_attn_plan_copy(&copy, plan, err);
    if (rc) return rc;
    if (is_sparse) rc = e->attention->prepare_prefill(e, &copy, segment < e->n_ctx ? segment : e->n_ctx, err);
    int before = e->segment_tokens;
    if (!rc && (rc = set_segment(e, is_sparse ? segment : 0, err)) != 0) set_segment(e, before, NULL);
    if (rc) {
        sl_attn_plan_free(&copy);
        return rc;
    }
    sl_attn_plan_free(&e->prefill);
    e->prefill = copy;
    e->has_masks = has_masks;
    e->prefill_version++;
    return 0;
}

int sl_engine_set_prefill(sl_engine *e, const sl_attn_plan *plan, int segment, sl_error *err) {
    int rc = sl_engine_enter(e, err);
    if (rc) return rc;
    rc = set_prefill(e, plan, segment, err);
    sl_engine_leave(e);
    return rc;
}

// The reports, and dense attention in every layer.
static int new_prefill(sl_engine *e, sl_error *err) {
    int rc = sl_prefill_new_reports(e, err);
    return rc ? rc : sl_attn_plan_init(&e->prefill, e->geom.n_layers, &(sl_attn_spec){.method = &sl_method_dense}, err);
}

static void free_prefill(sl_engine *e) {
    sl_attn_plan_free(&e->prefill);
    free(e->mask.bits);
    sl_prefill_free_reports(e);
}

// ---- life ----

static int no_memory(const sl_engine *e, sl_error *err) {
    return sl_fail(err, SL_ERR_MEMORY, "a batch of %d sequences: out of memory", e->n_sequences);
}

static int new_scratch(sl_engine *e, sl_error *err) {
    const sl_config *c = &e->model->config;
    e->scratch_size = c->arch->scratch_size(c, e->backend, e->max_rows);
    e->scratch = e->backend->alloc(e->backend, e->scratch_size);
    if (e->scratch) return 0;
    return sl_fail(err, SL_ERR_MEMORY, "activations of %d rows: %zu MiB cannot be allocated; use a smaller {prefill_chunk}",
                   e->max_rows, e->scratch_size >> 20);
}

// The arrays of a step.
static int new_step(sl_engine *e, sl_error *err) {
    const sl_backend *be = e->backend;
    size_t logits = (size_t)e->n_sequences * e->model->config.n_vocab * sizeof(float);
    e->ranges = calloc(e->n_sequences, sizeof *e->ranges);
    e->queries = calloc(e->n_sequences, sizeof *e->queries);
    e->logits_owner = calloc(e->n_sequences, sizeof *e->logits_owner);
    if (!e->ranges || !e->queries || !e->logits_owner || !new_rows(e, e->max_rows)) return no_memory(e, err);
    e->step_logits = be->alloc(be, logits);
    if (be->is_device) e->last_logits = be->alloc(be, logits);
    int ok = e->step_logits && (e->last_logits || !be->is_device);
    return ok ? 0 : no_memory(e, err);
}

static void free_step(sl_engine *e) {
    const sl_backend *be = e->backend;
    size_t logits = (size_t)e->n_sequences * e->model->config.n_vocab * sizeof(float);
    free_rows(e);
    free_segment(e);
    if (be) {
        be->release(be, e->step_logits, logits);
        be->release(be, e->last_logits, logits);
        be->release(be, e->step_stats, e->step_stats_size);
        be->release(be, e->prefill_memory, e->prefill_memory_size);
    }
    free(e->ranges);
    free(e->queries);
    free(e->logits_owner);
}

static int new_pool(sl_engine *e, sl_error *err) {
    const sl_config *c = &e->model->config;
    int own = sl_kv_pages_of(e->n_ctx), rc;
    if (e->kv.place == SL_KV_HOST) // the page extra of a span is built from staged pages
        rc = sl_kv_pool_init_on_host(&e->pool, e->backend, c->n_layers, c->n_kv_heads, c->head_dim, e->n_pages, e->kv.n_frames,
                                     own > SL_KV_SPAN_MOST ? own : (int)SL_KV_SPAN_MOST, (int)e->kv.hot_rows, err);
    else
        rc = sl_kv_pool_init(&e->pool, e->backend, c->n_layers, c->n_kv_heads, c->head_dim, e->n_pages, err);
    e->pool.seed = e->seed;
    e->pool.buckets = e->geom.buckets;
    return rc;
}

static int init(sl_engine *e, const sl_engine_options *o, const sl_attn_plan *plan, sl_error *err) {
    const sl_config *c = &e->model->config;
    const sl_shape shape = {c->hidden, c->n_ffn, c->n_heads, c->n_kv_heads, c->head_dim};
    int rc = 0;
    if (o->n_sequences < 0) rc = sl_fail(err, SL_ERR_ARG, "{n_sequences} %d: expected at least 1", o->n_sequences);
    if (!rc && o->prefill_chunk < 0) rc = sl_fail(err, SL_ERR_ARG, "{prefill_chunk} %d: expected at least 1", o->prefill_chunk);
    if (!rc && !(e->backend->is_device && e->model->is_dummy) && !sl_model_weights_have_data(&e->model->weights))
        rc = sl_fail(err, SL_ERR_ARG, "the weights of a dummy or packed model are not made yet: sl_model_materialise");
    if (!rc && e->backend->prepare) rc = e->backend->prepare(e->backend, &shape, err);
    if (rc) return rc;
    rc = sl_engine_place(e, o, plan, err);
    if (!rc) rc = sl_model_weights_place(&e->model->weights, e->backend, &o->progress, &o->cancel, &e->weights, err);
    if (!rc) rc = new_scratch(e, err);
    if (!rc) rc = new_pool(e, err);
    if (!rc) rc = new_step(e, err);
    if (!rc) rc = new_prefill(e, err);
    return rc ? rc : sl_plan_set(e, plan, err);
}

int sl_engine_new_planned(const sl_model *model, const sl_engine_options *options, const sl_attn_plan *plan, sl_engine **out,
                          sl_error *err) {
    sl_engine *e = calloc(1, sizeof *e);
    if (!e) return sl_fail(err, SL_ERR_MEMORY, "engine: out of memory");
    atomic_init(&e->n_users, 1);
    atomic_flag_clear(&e->is_busy);
    sl_model_use(model);
    e->model = model;
    e->process = getpid();
    e->geom = geometry(&model->config);
    e->n_sequences = options->n_sequences > 0 ? options->n_sequences : 1;
    e->seed = options->seed;
    e->cancel = options->cancel;
    e->log = options->log;
    int rc = sl_engine_open_backend(e, options, err);
    if (!rc) rc = sl_engine_enter(e, err);
    if (!rc) {
        sl_attn_plan own = {0};
        if (!plan) rc = sl_plan_methods_of(e, options->attn ? options->attn : "dense", &own, err);
        if (!rc) rc = init(e, options, plan ? plan : &own, err);
        sl_attn_plan_free(&own);
        sl_engine_leave(e);
    }
    if (rc) {
        sl_engine_free(e);
        return rc;
    }
    *out = e;
    return 0;
}

int sl_engine_new(const sl_model *model, const sl_engine_options *options, sl_engine **out, sl_error *err) {
    const sl_engine_options unset = sl_engine_options_default();
    return sl_engine_new_planned(model, options ? options : &unset, NULL, out, err);
}

void sl_engine_free(sl_engine *e) {
    if (!e || sl_engine_is_foreign(e) || atomic_fetch_sub(&e->n_users, 1) > 1) return;
    sl_kv_pool_free(&e->pool);
    sl_engine_close_buckets(e);
    sl_plan_drop(e, e->plan);
    free_prefill(e);
    if (e->backend) e->backend->release(e->backend, e->scratch, e->scratch_size);
    sl_workspace_free(&e->workspace);
    sl_observation_free(e, &e->observation);
    free_step(e);
    sl_model_weights_free(&e->weights);
    if (e->backend && e->backend->free) e->backend->free(e->backend);
    sl_threads_close(e->threads);
    sl_model_free((sl_model *)e->model);
    free(e);
}

// ---- access ----

int sl_engine_skip_parts(sl_engine *e, unsigned parts, sl_error *err) {
    if (!e->backend->skip_parts) return sl_fail(err, SL_ERR_UNSUPPORTED, "%s: steps are not timed in parts", e->backend->name);
    e->backend->forget(e->backend);
    e->backend->skip_parts(e->backend, parts);
    return 0;
}

int sl_engine_impose_hits(sl_engine *e, double share, sl_error *err) {
    if (!e->pool.host || !e->pool.host->hot.n_sets)
        return sl_fail(err, SL_ERR_ARG, "{hot_hits}: expected {kv_cache} host with a cache of hot rows, found none");
    e->backend->forget(e->backend); // recordings hold the share
    e->pool.host->hot.imposed = share < 0 ? -1 : (int)(share * 65536 + 0.5);
    return 0;
}

int sl_engine_n_ctx(const sl_engine *e) {
    return e->n_ctx;
}
const sl_attn_stats *sl_engine_attn_stats(const sl_engine *e) {
    if (e->attention->collect)
        e->attention->collect((sl_engine *)e); // fills a cache; the engine does not change for the caller
    return &e->stats;
}
void sl_engine_reset_stats(sl_engine *e) {
    if (e->attention->collect) e->attention->collect(e);
    e->stats = (sl_attn_stats){0};
    sl_prefill_reset(e);
}

sl_attention_work sl_engine_attention_work(const sl_engine *e) {
    const sl_attn_stats *stats = sl_engine_attn_stats(e);
    return (sl_attention_work){.bytes = stats->bytes,
                               .dense_bytes = stats->dense_bytes,
                               .heads = stats->steps,
                               .fallbacks = stats->fallbacks,
                               .layer_steps = stats->stated,
                               .certified = stats->certified,
                               .unbounded = stats->unbounded,
                               .stated_error = sl_attn_stats_stated_mean(stats),
                               .stated_error_max = sl_attn_stats_stated_most(stats)};
}

void sl_engine_describe(const sl_engine *e, char *buf, size_t size) {
    int n = snprintf(buf, size, "%s: ", e->backend->name);
    if ((size_t)n < size) e->backend->describe(e->backend, buf + n, size - n);
}
