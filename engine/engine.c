// engine/engine.c - sl_engine: one device's KV pages, scratch memory and attention plan.
//
// Everything that a step needs is allocated here, for the largest step: nothing is allocated within one.
#include "engine/internal.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { DEFAULT_CTX = 32768, DEFAULT_CHUNK = 512, RESERVE_BYTES = 96 << 20 };

static sl_attn_geom geometry(const sl_config *c) {
    return (sl_attn_geom){.n_layers = c->n_layers, .n_heads = c->n_heads, .n_kv_heads = c->n_kv_heads, .head_dim = c->head_dim};
}

// Bytes that this process may still take: the machine's, or its control group's where that is less.
static size_t free_memory(void) {
    size_t kib = 0, limit, used;
    char line[256];
    FILE *f = fopen("/proc/meminfo", "r");
    while (f && fgets(line, sizeof line, f) && sscanf(line, "MemAvailable: %zu", &kib) != 1) continue;
    if (f) fclose(f);
    size_t bytes = kib << 10;
    FILE *max = fopen("/sys/fs/cgroup/memory.max", "r"), *now = fopen("/sys/fs/cgroup/memory.current", "r");
    if (max && now && fscanf(max, "%zu", &limit) == 1 && fscanf(now, "%zu", &used) == 1) {
        size_t left = limit > used ? limit - used : 0;
        if (left < bytes) bytes = left;
    }
    if (max) fclose(max);
    if (now) fclose(now);
    return bytes;
}

int sl_engine_largest_ctx(const sl_model *model, int n_sequences) {
    const sl_config *c = &model->config;
    size_t weights = sl_tensors_bytes(model->tensors), all = free_memory();
    size_t room = all > weights + RESERVE_BYTES ? all - weights - RESERVE_BYTES : 0;
    size_t tokens = room / sl_kv_bytes_per_token(c->n_layers, c->n_kv_heads, c->head_dim) / n_sequences;
    tokens = tokens / SL_PAGE * SL_PAGE;
    return tokens < (size_t)c->n_ctx ? (int)tokens : c->n_ctx;
}

static int choose_ctx(sl_engine *e, const sl_engine_options *o, sl_error *err) {
    int limit = e->model->config.n_ctx, fits = sl_engine_largest_ctx(e->model, e->n_sequences);
    if (o->n_ctx < 0 || o->n_ctx > limit)
        return sl_fail(err, SL_ERR_ARG, "--ctx-size %d: expected 1 to %d, this model's max_position_embeddings", o->n_ctx,
                       limit);
    if (o->n_ctx > fits)
        return sl_fail(err, SL_ERR_MEMORY,
                       "--ctx-size %d does not fit into memory with %d sequence(s); the largest that fits is %d", o->n_ctx,
                       e->n_sequences, fits);
    e->n_ctx = o->n_ctx ? o->n_ctx : limit < DEFAULT_CTX ? limit : DEFAULT_CTX;
    if (e->n_ctx > fits) e->n_ctx = fits;
    if (e->n_ctx == 0) return sl_fail(err, SL_ERR_MEMORY, "no memory for a KV cache beside the weights");
    return 0;
}

static int init(sl_engine *e, const sl_engine_options *o, sl_error *err) {
    const sl_config *c = &e->model->config;
    int rc = sl_cpu_init(o->n_threads, &e->backend, err);
    if (!rc) rc = choose_ctx(e, o, err);
    if (!rc && o->prefill_chunk < 0) rc = sl_fail(err, SL_ERR_ARG, "--ubatch-size %d: expected at least 1", o->prefill_chunk);
    if (rc) return rc;
    e->prefill_chunk = o->prefill_chunk ? o->prefill_chunk : DEFAULT_CHUNK;
    if (e->prefill_chunk > e->n_ctx) e->prefill_chunk = e->n_ctx;
    e->max_rows = e->prefill_chunk > e->n_sequences ? e->prefill_chunk : e->n_sequences;
    int n_pages = (e->n_ctx + SL_PAGE - 1) / SL_PAGE * e->n_sequences;
    rc = sl_kv_pool_init(&e->pool, c->n_layers, c->n_kv_heads, c->head_dim, n_pages, err);
    if (!rc) rc = sl_llama_scratch_new(c, e->max_rows, &e->scratch, err);
    if (rc) return rc;
    e->rows = calloc(e->max_rows, sizeof *e->rows);
    e->queries = calloc(e->n_sequences, sizeof *e->queries);
    e->logits = malloc((size_t)e->n_sequences * c->n_vocab * sizeof *e->logits);
    if (!e->rows || !e->queries || !e->logits)
        return sl_fail(err, SL_ERR_MEMORY, "a batch of %d sequences: out of memory", e->n_sequences);
    return sl_engine_set_attention(e, o->attn, err);
}

int sl_engine_new(const sl_model *model, const sl_engine_options *options, sl_engine **out, sl_error *err) {
    sl_engine *e = calloc(1, sizeof *e);
    if (!e) return sl_fail(err, SL_ERR_MEMORY, "engine: out of memory");
    e->model = model;
    e->geom = geometry(&model->config);
    e->n_sequences = options->n_sequences > 0 ? options->n_sequences : 1;
    e->seed = options->seed;
    int rc = init(e, options, err);
    if (rc) {
        sl_engine_free(e);
        return rc;
    }
    *out = e;
    return 0;
}

void sl_engine_free(sl_engine *e) {
    if (!e) return;
    SL_CHECK(e->n_sessions == 0);
    sl_kv_pool_free(&e->pool);
    sl_attn_plan_free(&e->plan);
    sl_llama_scratch_free(&e->scratch);
    sl_workspace_free(&e->workspace);
    sl_observation_free(&e->observation);
    free(e->rows);
    free(e->queries);
    free(e->logits);
    free(e);
}

// Checks a layer's method, has the cache keep what it needs and returns the scratch memory of its largest step in *size.
static int check_layer(sl_engine *e, int layer, const sl_attn_spec *spec, size_t *size, sl_error *err) {
    const sl_attn_method *m = spec->method;
    if (!m->cpu || !m->cpu->decode)
        return sl_fail(err, SL_ERR_UNSUPPORTED, "--attn %s: not offered for decoding on this device (layer %d)", m->name,
                       layer);
    if (m->supports) {
        int rc = m->supports(&e->geom, spec, err);
        if (rc) return rc;
    }
    *size = m->cpu->workspace(&e->geom, spec, e->n_sequences, 1, e->n_ctx);
    sl_kv_need need[SL_MAX_NEEDS];
    int rc = 0, n = m->cpu->needs ? m->cpu->needs(spec, need) : 0;
    for (int i = 0; !rc && i < n; i++) rc = sl_kv_keep(&e->pool, need[i], err);
    return rc;
}

int sl_engine_set_attention(sl_engine *e, const sl_attn_plan *plan, sl_error *err) {
    sl_attn_spec dense;
    sl_attn_plan copy;
    int rc = sl_attn_parse("dense", &dense, err);
    if (!rc) rc = sl_attn_plan_init(&copy, e->geom.n_layers, &dense, err);
    if (rc) return rc;
    if (plan) {
        SL_CHECK(plan->n_layers == copy.n_layers);
        memcpy(copy.layer, plan->layer, plan->n_layers * sizeof *copy.layer);
    }
    size_t most = dense.method->cpu->workspace(&e->geom, &dense, 1, e->prefill_chunk, e->n_ctx);
    for (int i = 0; !rc && i < copy.n_layers; i++) {
        size_t size = 0;
        rc = check_layer(e, i, &copy.layer[i], &size, err);
        if (size > most) most = size;
    }
    if (!rc) rc = sl_workspace_reserve(&e->workspace, most, err);
    if (rc) {
        sl_attn_plan_free(&copy);
        return rc;
    }
    sl_attn_plan_free(&e->plan);
    e->plan = copy;
    e->plan_version++;
    return 0;
}

int sl_engine_n_ctx(const sl_engine *e) {
    return e->n_ctx;
}
const sl_attn_stats *sl_engine_attn_stats(const sl_engine *e) {
    return &e->stats;
}
void sl_engine_reset_stats(sl_engine *e) {
    e->stats = (sl_attn_stats){0};
}

void sl_engine_describe(const sl_engine *e, char *buf, size_t size) {
    int n = snprintf(buf, size, "%s: ", e->backend->name);
    e->backend->describe(buf + n, size - n);
}
