// engine/session.c - sl_session: one timeline, and the two ways to extend it: prefill and decode.
#include "engine/internal.h"

#include <stdlib.h>
#include <string.h>

// ---- what the plan's methods keep: state from step to step, and page extras ----

static void free_state(sl_session *s) {
    for (int i = 0; i < s->engine->geom.n_layers; i++) {
        free(s->state[i].data);
        s->state[i] = (struct sl_method_state){0};
    }
}

// After a change of observer: the new shadows' state, empty. The running methods' stays: observing changes nothing.
static int sync_shadows(sl_session *s, sl_error *err) {
    sl_engine *e = s->engine;
    if (s->observe_version == e->observe_version) return 0;
    free(s->shadow_state);
    s->shadow_state = NULL;
    s->shadow_size = 0;
    size_t size = sl_shadow_state_size(e);
    if (size && !(s->shadow_state = calloc(1, size)))
        return sl_fail(err, SL_ERR_MEMORY, "state of the observed methods: %zu bytes: out of memory", size);
    s->shadow_size = size;
    s->observe_version = e->observe_version;
    return 0;
}

// After a change of plan: the new methods' state, empty.
static int sync_state(sl_session *s, sl_error *err) {
    sl_engine *e = s->engine;
    int rc = sync_shadows(s, err);
    if (rc || s->plan_version == e->plan_version) return rc;
    free_state(s);
    for (int i = 0; i < e->geom.n_layers; i++) {
        const sl_attn_spec *spec = &e->plan.layer[i];
        size_t size = spec->method->cpu->state ? spec->method->cpu->state(&e->geom, spec) : 0;
        if (size && !(s->state[i].data = calloc(1, size)))
            return sl_fail(err, SL_ERR_MEMORY, "--attn %s: state of %zu bytes: out of memory", spec->method->name, size);
        s->state[i].size = size;
    }
    s->plan_version = e->plan_version;
    return 0;
}

static void build_needs(sl_session *s, int layer, const sl_attn_spec *spec) {
    sl_kv_need need[SL_MAX_NEEDS];
    int n = spec->method->cpu->needs ? spec->method->cpu->needs(spec, need) : 0;
    for (int i = 0; i < n; i++) sl_kv_build(&s->engine->pool, &s->kv, layer, need[i]);
}

// Page extras of the full pages that lack them.
static void build_extras(sl_session *s) {
    sl_engine *e = s->engine;
    for (int i = 0; i < e->geom.n_layers; i++) {
        build_needs(s, i, &e->plan.layer[i]);
        for (int j = 0; j < e->observation.observer.n_shadows; j++) build_needs(s, i, &e->observation.shadows[j]);
    }
}

// ---- life ----

int sl_session_new(sl_engine *engine, uint32_t sequence, sl_session **out, sl_error *err) {
    const sl_config *c = &engine->model->config;
    sl_session *s = calloc(1, sizeof *s);
    if (!s) return sl_fail(err, SL_ERR_MEMORY, "session: out of memory");
    *s = (sl_session){.engine = engine, .sequence = sequence};
    s->logits = calloc(c->n_vocab, sizeof *s->logits);
    s->state = calloc(c->n_layers, sizeof *s->state);
    engine->n_sessions++;
    if (!s->logits || !s->state) {
        sl_session_free(s);
        return sl_fail(err, SL_ERR_MEMORY, "session: out of memory");
    }
    *out = s;
    return 0;
}

void sl_session_free(sl_session *s) {
    if (!s) return;
    if (s->state) free_state(s);
    free(s->shadow_state);
    sl_kv_seq_free(&s->engine->pool, &s->kv);
    s->engine->n_sessions--;
    free(s->state);
    free(s->logits);
    free(s);
}

int sl_session_n_tokens(const sl_session *s) {
    return s->kv.n_tokens;
}
uint32_t sl_session_sequence(const sl_session *s) {
    return s->sequence;
}
void sl_session_set_sequence(sl_session *s, uint32_t sequence) {
    s->sequence = sequence;
}
const float *sl_session_logits(const sl_session *s) {
    return s->logits;
}

int sl_session_truncate(sl_session *s, int n_tokens, sl_error *err) {
    if (n_tokens < 0 || n_tokens > s->kv.n_tokens)
        return sl_fail(err, SL_ERR_ARG, "truncate to %d tokens: the session has %d", n_tokens, s->kv.n_tokens);
    sl_kv_truncate(&s->engine->pool, &s->kv, n_tokens);
    for (int i = 0; i < s->engine->geom.n_layers; i++)
        if (s->state[i].data) memset(s->state[i].data, 0, s->state[i].size);
    if (s->shadow_state) memset(s->shadow_state, 0, s->shadow_size);
    return 0;
}

int sl_session_fork(const sl_session *s, int n_tokens, uint32_t sequence, sl_session **out, sl_error *err) {
    if (n_tokens < 0 || n_tokens > s->kv.n_tokens)
        return sl_fail(err, SL_ERR_ARG, "fork at %d tokens: the session has %d", n_tokens, s->kv.n_tokens);
    int rc = sl_session_new(s->engine, sequence, out, err);
    if (rc) return rc;
    rc = sl_kv_fork(&s->engine->pool, &s->kv, &(*out)->kv, n_tokens, err);
    if (rc) sl_session_free(*out);
    return rc; // its methods' state follows at its first step
}

// ---- what a step lends to the model ----

typedef struct step_ctx {
    sl_engine *engine;
    sl_session *const *batch; // [n]; prefill: one session
    int n;
} step_ctx;

static bf16 *k_layer(void *ctx, int layer) {
    return sl_kv_layer(&((step_ctx *)ctx)->engine->pool, layer).k;
}
static bf16 *v_layer(void *ctx, int layer) {
    return sl_kv_layer(&((step_ctx *)ctx)->engine->pool, layer).v;
}

static void attend_prefill(void *ctx, int layer, int first, int n, const float *q, float *out) {
    step_ctx *t = ctx;
    sl_engine *e = t->engine;
    sl_session *s = t->batch[0];
    const sl_attn_spec dense = {.method = sl_attn_methods[0]}; // prefill is dense whatever the plan decodes with
    sl_attn_prefill_args args = {
        .geom = &e->geom,
        .spec = &dense,
        .layer = layer,
        .n_tokens = n,
        .q = q,
        .out = out,
        .ws = &e->workspace,
        .kv = sl_kv_view_of(&e->pool, &s->kv, layer, e->rows[first].position + n),
    };
    dense.method->cpu->prefill(&args);
}

static void attend_decode(void *ctx, int layer, int first, int n, const float *q, float *out) {
    step_ctx *t = ctx;
    sl_engine *e = t->engine;
    size_t row = (size_t)e->geom.n_heads * e->geom.head_dim;
    SL_CHECK(first == 0 && n == t->n);
    for (int i = 0; i < n; i++) {
        sl_session *s = t->batch[i];
        e->queries[i] = (sl_attn_query){
            .q = q + i * row,
            .out = out + i * row,
            .sequence = s->sequence,
            .position = e->rows[i].position,
            .kv = sl_kv_view_of(&e->pool, &s->kv, layer, e->rows[i].position + 1),
            .state = s->state[layer].data,
        };
    }
    const sl_attn_spec *spec = &e->plan.layer[layer];
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
    if (e->observation.observer.fn) sl_observe(e, &args, t->batch);
}

// ---- prefill ----

static int check_ids(const sl_engine *e, const int32_t *ids, int n, sl_error *err) {
    for (int i = 0; i < n; i++)
        if (ids[i] < 0 || ids[i] >= e->model->config.n_vocab)
            return sl_fail(err, SL_ERR_ARG, "token %d of %d: id %d, expected 0 to %d", i, n, ids[i],
                           e->model->config.n_vocab - 1);
    return 0;
}

// Appends one chunk and leaves the final states of its last n_out rows in the scratch memory.
static void prefill_chunk(sl_session *s, const int32_t *ids, int n, int n_out) {
    sl_engine *e = s->engine;
    for (int i = 0; i < n; i++) e->rows[i] = (sl_row){.position = s->kv.n_tokens + i, .pages = s->kv.pages};
    step_ctx ctx = {.engine = e, .batch = &s, .n = 1};
    sl_llama_step step = {
        .backend = e->backend,
        .mode = SL_LINEAR_PREFILL,
        .n_rows = n,
        .n_out = n_out,
        .ids = ids,
        .rows = e->rows,
        .k_layer = k_layer,
        .v_layer = v_layer,
        .attend = attend_prefill,
        .ctx = &ctx,
    };
    sl_llama_forward(&e->model->llama, &e->model->config, &step, &e->scratch);
    s->kv.n_tokens += n;
}

static int begin_prefill(sl_session *s, const int32_t *ids, int n, sl_error *err) {
    sl_engine *e = s->engine;
    if (n <= 0) return sl_fail(err, SL_ERR_ARG, "prefill of %d tokens: expected at least 1", n);
    if (n > e->n_ctx - s->kv.n_tokens)
        return sl_fail(err, SL_ERR_CONTEXT, "the prompt has %d tokens, %d are in the context already, and --ctx-size is %d", n,
                       s->kv.n_tokens, e->n_ctx);
    int rc = check_ids(e, ids, n, err);
    if (!rc) rc = sync_state(s, err);
    if (!rc) rc = sl_kv_reserve(&e->pool, &s->kv, s->kv.n_tokens + n, err);
    return rc;
}

static void report(const sl_progress *progress, int done, int total) {
    if (progress && progress->fn) progress->fn(progress->ctx, done, total);
}

int sl_prefill(sl_session *s, const int32_t *ids, int n, const sl_progress *progress, sl_error *err) {
    sl_engine *e = s->engine;
    int rc = begin_prefill(s, ids, n, err);
    for (int i = 0; !rc && i < n; i += e->prefill_chunk) {
        int m = n - i < e->prefill_chunk ? n - i : e->prefill_chunk;
        prefill_chunk(s, ids + i, m, i + m == n);
        report(progress, i + m, n);
    }
    if (rc) return rc;
    e->backend->linear(&e->model->llama.head, e->scratch.normed, 1, SL_LINEAR_DECODE, 0, 0, s->logits);
    build_extras(s);
    return 0;
}

int sl_prefill_logits(sl_session *s, const int32_t *ids, int n, sl_logits_fn fn, void *ctx, const sl_progress *progress,
                      sl_error *err) {
    enum { GROUP = 64 }; // rows of logits made at a time: 32 MB with a vocabulary of 128k
    sl_engine *e = s->engine;
    const sl_config *c = &e->model->config;
    float *logits = malloc((size_t)GROUP * c->n_vocab * sizeof *logits);
    if (!logits) return sl_fail(err, SL_ERR_MEMORY, "logits of %d rows: out of memory", GROUP);
    int n_from = s->kv.n_tokens, rc = begin_prefill(s, ids, n, err);
    for (int i = 0; !rc && i < n; i += e->prefill_chunk) {
        int m = n - i < e->prefill_chunk ? n - i : e->prefill_chunk;
        prefill_chunk(s, ids + i, m, m);
        for (int j = 0; !rc && j < m; j += GROUP) {
            int rows = m - j < GROUP ? m - j : GROUP;
            const float *x = e->scratch.normed + (size_t)j * c->hidden;
            e->backend->linear(&e->model->llama.head, x, rows, SL_LINEAR_PREFILL, n_from + i + j, 0, logits);
            memcpy(s->logits, logits + (size_t)(rows - 1) * c->n_vocab, c->n_vocab * sizeof *logits);
            rc = fn(ctx, i + j, rows, logits, err);
        }
        report(progress, i + m, n);
    }
    free(logits);
    if (!rc) build_extras(s);
    return rc;
}

// ---- decode ----

static int begin_decode(sl_session *const *batch, int n, const int32_t *ids, sl_error *err) {
    sl_engine *e = batch[0]->engine;
    int rc = check_ids(e, ids, n, err);
    for (int i = 0; !rc && i < n; i++) {
        sl_session *s = batch[i];
        SL_CHECK(s->engine == e);
        if (s->kv.n_tokens >= e->n_ctx)
            return sl_fail(err, SL_ERR_CONTEXT, "sequence %u: the context is full: %d tokens, --ctx-size %d", s->sequence,
                           s->kv.n_tokens, e->n_ctx);
        rc = sync_state(s, err);
        if (!rc) rc = sl_kv_reserve(&e->pool, &s->kv, s->kv.n_tokens + 1, err);
        if (!rc) build_extras(s);
    }
    return rc;
}

int sl_decode(sl_session *const *batch, int n, const int32_t *ids, sl_error *err) {
    sl_engine *e = batch[0]->engine;
    const sl_config *c = &e->model->config;
    if (n < 1 || n > e->n_sequences)
        return sl_fail(err, SL_ERR_ARG, "a batch of %d sequences: this engine takes 1 to %d", n, e->n_sequences);
    int rc = begin_decode(batch, n, ids, err);
    if (rc) return rc;
    for (int i = 0; i < n; i++) e->rows[i] = (sl_row){.position = batch[i]->kv.n_tokens, .pages = batch[i]->kv.pages};
    step_ctx ctx = {.engine = e, .batch = batch, .n = n};
    sl_llama_step step = {
        .backend = e->backend,
        .mode = SL_LINEAR_DECODE,
        .n_rows = n,
        .n_out = n,
        .ids = ids,
        .rows = e->rows,
        .k_layer = k_layer,
        .v_layer = v_layer,
        .attend = attend_decode,
        .ctx = &ctx,
    };
    sl_llama_forward(&e->model->llama, c, &step, &e->scratch);
    e->backend->linear(&e->model->llama.head, e->scratch.normed, n, SL_LINEAR_DECODE, 0, 0, e->logits);
    for (int i = 0; i < n; i++) {
        memcpy(batch[i]->logits, e->logits + (size_t)i * c->n_vocab, c->n_vocab * sizeof(float));
        batch[i]->kv.n_tokens++;
    }
    return 0;
}

uint64_t sl_logits_hash(const float *logits, int n_vocab) {
    const unsigned char *p = (const unsigned char *)logits;
    uint64_t h = 0xcbf29ce484222325u;
    for (size_t i = 0; i < (size_t)n_vocab * sizeof *logits; i++) h = (h ^ p[i]) * 0x100000001b3u;
    return h;
}
