// engine/engine.c - sl_engine: making and freeing it, and what callers read of it. Its parts have files of their own:
// engine_device.h, plans.h, sparse_prefill.h, observation.h.
//
// An engine allocates everything that the largest step needs. A step allocates nothing.
#include "engine/draft/draft_weights.h"
#include "engine/engine_internal.h"
#include "kv/kv_offload.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

const char *sl_version(void) {
    return SLEIGH_VERSION;
}

sl_engine_options sl_engine_options_default(void) {
    return (sl_engine_options){.device = "auto", .exact_below = SL_EXACT_AUTO};
}

static sl_attn_geom geometry(const sl_config *c) {
    return (sl_attn_geom){.n_layers = c->n_layers,
                          .n_heads = c->n_heads,
                          .n_kv_heads = c->n_kv_heads,
                          .head_dim = c->head_dim,
                          .first_head = c->shard.rank * c->n_heads};
}

// ---- life ----

static int new_pool(sl_engine *e, sl_error *err) {
    const sl_config *c = &e->model->part;
    int own = sl_kv_pages_of(e->n_ctx), rc;
    if (e->device.kv.place == SL_KV_OFFLOADED) // the page extra of a span is built from staged pages
        rc = sl_kv_pool_init_offloaded(&e->device.pool, e->device.backend, c->n_layers, c->n_kv_heads, c->head_dim,
                                       e->device.n_pages, e->device.kv.n_frames,
                                       own > SL_KV_SPAN_MOST ? own : (int)SL_KV_SPAN_MOST, (int)e->device.kv.hot_rows, err);
    else
        rc = sl_kv_pool_init_formats(&e->device.pool, e->device.backend, c->n_layers, c->n_kv_heads, c->head_dim,
                                     e->device.n_pages, e->device.formats, err);
    const sl_kv_scales *scales = &e->model->kv_scales;
    if (!rc && scales->k)
        rc = sl_kv_pool_set_scales(&e->device.pool, e->device.formats.k == SL_FP8 ? scales->k : NULL,
                                   e->device.formats.v == SL_FP8 ? scales->v : NULL, err);
    e->device.pool.seed = e->seed;
    e->device.pool.buckets = e->geom.buckets;
    return rc;
}

static int init(sl_engine *e, const sl_engine_options *o, const sl_attn_plan *plan, sl_error *err) {
    const sl_config *c = &e->model->part;
    const sl_shape shape = {c->hidden, c->n_ffn, c->n_heads, c->n_kv_heads, c->head_dim};
    int rc = 0;
    if (o->n_sequences < 0) rc = sl_fail(err, SL_ERR_ARG, "{n_sequences} %d: expected at least 1", o->n_sequences);
    if (!rc && o->exact_below < SL_EXACT_AUTO)
        rc = sl_fail(err, SL_ERR_ARG, "{exact_below} %d: expected a number of rows, 0 or -1", o->exact_below);
    if (!rc && o->prefill_chunk < 0) rc = sl_fail(err, SL_ERR_ARG, "{prefill_chunk} %d: expected at least 1", o->prefill_chunk);
    if (!rc && !sl_model_device_makes(e->model, e->device.backend) && !sl_model_weights_have_data(&e->model->weights))
        rc = sl_fail(err, SL_ERR_ARG, "the weights of a dummy or packed model are not made yet: sl_model_materialise");
    if (!rc && e->device.backend->prepare) rc = e->device.backend->prepare(e->device.backend, &shape, err);
    if (rc) return rc;
    if (o->draft_weights) rc = sl_draft_weights_list(e, o->draft_weights, err);
    if (!rc) rc = sl_engine_place(e, o, plan, err);
    if (!rc)
        rc = sl_model_weights_place(&e->model->weights, e->device.backend, &o->progress, &o->cancel, &o->log,
                                    &e->device.weights, err);
    if (!rc && o->draft_weights) rc = sl_draft_weights_make(e, o, err);
    if (!rc) rc = sl_device_new_buffers(&e->device, e->n_sequences, e->n_step_rows, err);
    if (!rc) rc = sl_device_new_wide(&e->device, e->n_ctx, err);
    if (!rc) rc = new_pool(e, err);
    if (!rc) rc = sl_sparse_prefill_new(e, err);
    return rc ? rc : sl_plan_set(e, plan, err);
}

static int check_drafts(const sl_engine *e, const sl_engine_options *o, sl_error *err) {
    const int most_sequences = 1 << 20; // so that the rows of a step are an int
    if (o->n_draft < 0 || o->n_draft > SL_MAX_DRAFT)
        return sl_fail(err, SL_ERR_ARG, "n_draft %d: expected 0 to %d", o->n_draft, SL_MAX_DRAFT);
    if (o->draft_weights && !o->n_draft)
        return sl_fail(err, SL_ERR_ARG, "draft_weights %.40s: expected n_draft 1 to %d with it, found 0", o->draft_weights,
                       SL_MAX_DRAFT);
    if (o->draft_model && !o->n_draft)
        return sl_fail(err, SL_ERR_ARG, "{draft_model}: expected n_draft 1 to %d with it, found 0", SL_MAX_DRAFT);
    if (o->n_draft && e->n_sequences > most_sequences)
        return sl_fail(err, SL_ERR_ARG, "{n_sequences} %d: expected at most %d with {draft}", e->n_sequences, most_sequences);
    return 0;
}

// SL_ERR_ARG: a token of the draft model is not the token of the model that has the same id.
static int check_vocabulary(const sl_model *model, const sl_model *draft, sl_error *err) {
    int n = model->config.n_vocab, rc = 0;
    if (draft->config.n_vocab != n)
        return sl_fail(err, SL_ERR_ARG, "{draft_model} %s: a vocabulary of %d tokens; expected %d, those of %s",
                       sl_model_name(draft), draft->config.n_vocab, n, sl_model_name(model));
    if (!model->tokenizer || !draft->tokenizer) return 0;
    sl_text own = {0}, other = {0};
    for (int id = 0; !rc && id < n; id++) {
        own.n = other.n = 0;
        rc = sl_token_bytes(model->tokenizer, id, &own, err);
        if (!rc) rc = sl_token_bytes(draft->tokenizer, id, &other, err);
        if (!rc && (own.n != other.n || (own.n && memcmp(own.data, other.data, own.n))))
            rc = sl_fail(err, SL_ERR_ARG, "{draft_model} %s: token %d is another than in %s; expected the same vocabulary",
                         sl_model_name(draft), id, sl_model_name(model));
    }
    sl_text_free(&own), sl_text_free(&other);
    return rc;
}

static int open_draft(sl_engine *e, const sl_engine_options *o, sl_error *err) {
    int rc = check_vocabulary(e->model, o->draft_model, err), limit = o->draft_model->config.n_ctx;
    const sl_engine_options draft = {.n_ctx = e->n_ctx < limit ? e->n_ctx : limit,
                                     .n_sequences = e->n_sequences,
                                     .exact_below = o->exact_below,
                                     .device = o->device,
                                     .seed = o->seed,
                                     .n_threads = o->n_threads,
                                     .cancel = o->cancel,
                                     .log = o->log};
    if (rc) return rc;
    sl_error why;
    rc = sl_engine_new(o->draft_model, &draft, &e->draft, &why);
    return rc ? sl_fail(err, rc, "{draft_model} %s: %.900s", sl_model_name(o->draft_model), why.message) : 0;
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
    e->geom = geometry(&model->part);
    e->n_sequences = options->n_sequences > 0 ? options->n_sequences : 1;
    e->seed = options->seed;
    e->plans.exact_below = options->exact_below;
    e->cancel = options->cancel;
    e->log = options->log;
    e->n_threads = sl_model_threads(model, options->n_threads);
    sl_engine_options device = *options;
    if (!device.n_threads && model->comm) device.n_threads = e->n_threads;
    int rc = sl_device_open(&e->device, &device, err);
    if (!rc) rc = sl_engine_join(e, options, err);
    if (!rc) rc = check_drafts(e, options, err);
    e->n_draft = options->n_draft;
    if (!rc && e->device.backend->is_device && sl_model_asks_integers(model))
        rc =
            sl_fail(err, SL_ERR_ARG, "{activations} %s: expected auto, float or fp8 on a GPU, which does not multiply integers",
                    model->quant.activations == SL_ACT_INT8 ? "int8" : "int16");
    if (!rc && !e->device.backend->is_device && model->quant.activations == SL_ACT_FP8)
        rc = sl_fail(err, SL_ERR_ARG,
                     "{activations} fp8: only a GPU rounds activations to fp8; a CPU takes auto, float, int16 and int8");
    if (!rc) rc = sl_engine_enter(e, err);
    if (!rc) {
        sl_attn_plan own = {0};
        if (!plan) rc = sl_plan_methods_of(e, options->attn ? options->attn : "dense", &own, err);
        if (!rc) rc = init(e, options, plan ? plan : &own, err);
        sl_attn_plan_free(&own);
        sl_engine_leave(e);
    }
    if (!rc && options->draft_model) rc = open_draft(e, options, err);
    if (!rc) sl_engine_meet(e); // a rank that still loads weights would keep the others waiting in their first pass
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
    sl_engine_free(e->draft);
    sl_engine_close_buckets(e);
    sl_matchers_free(&e->matchers);
    sl_plan_drop(e, e->plans.of_engine);
    sl_sparse_prefill_free(e);
    sl_observation_free(e, &e->observation);
    free(e->part_logits);
    sl_device_close(&e->device);
    sl_model_weights_free(&e->rounded);
    sl_threads_close(e->threads);
    sl_model_free((sl_model *)e->model);
    free(e);
}

// ---- access ----

int sl_engine_skip_parts(sl_engine *e, unsigned parts, sl_error *err) {
    if (!e->device.backend->skip_parts)
        return sl_fail(err, SL_ERR_UNSUPPORTED, "%s: steps are not timed in parts", e->device.backend->name);
    e->device.backend->forget(e->device.backend);
    e->device.backend->skip_parts(e->device.backend, parts);
    return 0;
}

void sl_engine_linear_bytes(const sl_engine *e, size_t *layers, size_t *head) {
    sl_model_weights_matrix_bytes(&e->model->weights, e->device.backend, layers, head);
}

int sl_engine_impose_hits(sl_engine *e, double share, sl_error *err) {
    if (!e->device.pool.offload || !e->device.pool.offload->hot.n_sets)
        return sl_fail(err, SL_ERR_ARG, "{hot_hits}: expected {kv_cache} host with a cache of hot rows, found none");
    e->device.backend->forget(e->device.backend); // recordings hold the share
    e->device.pool.offload->hot.imposed = share < 0 ? -1 : (int)(share * 65536 + 0.5);
    return 0;
}

int sl_engine_n_ctx(const sl_engine *e) {
    return e->n_ctx;
}
int sl_engine_n_draft(const sl_engine *e) {
    return e->n_draft;
}
const sl_attn_stats *sl_engine_attn_stats(const sl_engine *e) {
    if (e->device.attention->collect)
        e->device.attention->collect((sl_engine *)e); // fills a cache; the engine does not change for the caller
    return sl_engine_sum_stats(e, &e->stats, &((sl_engine *)e)->all_stats);
}
void sl_engine_reset_stats(sl_engine *e) {
    if (e->device.attention->collect) e->device.attention->collect(e);
    e->stats = (sl_attn_stats){0};
    sl_prefill_reset(e);
}

sl_attention_work sl_attention_work_of(const sl_attn_stats *stats) {
    return (sl_attention_work){.bytes = stats->bytes,
                               .dense_bytes = stats->dense_bytes,
                               .heads = stats->steps,
                               .fallbacks = stats->fallbacks,
                               .exact_heads = stats->exact_heads,
                               .layer_steps = stats->stated,
                               .certified = stats->certified,
                               .unbounded = stats->unbounded,
                               .stated_error = sl_attn_stats_stated_mean(stats),
                               .stated_error_max = sl_attn_stats_stated_most(stats)};
}

sl_attention_work sl_engine_attention_work(const sl_engine *e) {
    return sl_attention_work_of(sl_engine_attn_stats(e));
}

void sl_engine_describe(const sl_engine *e, char *buf, size_t size) {
    int n = snprintf(buf, size, "%s: ", e->device.backend->name);
    if ((size_t)n >= size) return;
    e->device.backend->describe(e->device.backend, buf + n, size - n);
    sl_engine_append_inputs(e, buf, size);
}

void sl_engine_append_inputs(const sl_engine *e, char *buf, size_t size) {
    int n_rounded = e->device.backend->is_device ? sl_model_weights_n_rounded_inputs(&e->device.weights) : 0;
    size_t n = strlen(buf);
    if (n_rounded) snprintf(buf + n, size - n, ", inputs of %d weights in fp8", n_rounded);
}
