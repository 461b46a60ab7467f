// engine/session.c - sl_session: one timeline, and the two ways to extend it: prefill and decode.
#include "engine/base/hash.h"
#include "engine/engine_internal.h"

#include <stdlib.h>
#include <string.h>

// ---- what the plan's methods keep: state from step to step, and page extras ----

static void free_state(sl_session *s) {
    const sl_backend *be = s->engine->backend;
    for (int i = 0; i < s->engine->geom.n_layers; i++) {
        if (!be->is_device) free(s->state[i].data);
        s->state[i] = (struct sl_method_state){0};
    }
    be->release(be, s->device_state, s->device_state_size);
    s->device_state = NULL;
}

// Same method and parameters: the state of one is the state of the other. A zeroed spec is nobody's.
static int same_spec(const sl_attn_spec *a, const sl_attn_spec *b) {
    if (a->method != b->method || a->plus != b->plus) return 0;
    return !memcmp(a->value, b->value, sizeof a->value) && !memcmp(a->plus_value, b->plus_value, sizeof a->plus_value);
}

static int no_state(const sl_attn_spec *spec, size_t size, sl_error *err) {
    return sl_fail(err, SL_ERR_MEMORY, "--attn %s: state of %zu bytes: out of memory", spec->method->name, size);
}

// On a device: one block of all layers' parts, each 256-byte aligned; anew when any layer's method is another.
static int sync_device_state(sl_session *s, sl_error *err) {
    sl_engine *e = s->engine;
    const sl_backend *be = e->backend;
    size_t total = 0;
    int i = 0;
    while (i < e->geom.n_layers && same_spec(&s->state[i].spec, &e->plan.layer[i])) i++;
    if (i == e->geom.n_layers) return 0;
    free_state(s);
    for (i = 0; i < e->geom.n_layers; i++) {
        s->state[i].size = e->attend->state(e, &e->plan.layer[i]);
        total += (s->state[i].size + 255) / 256 * 256;
    }
    if (total > 0 && !(s->device_state = be->alloc(be, total))) return no_state(&e->plan.layer[0], total, err);
    s->device_state_size = total;
    for (size_t at = i = 0; i < e->geom.n_layers; at += (s->state[i++].size + 255) / 256 * 256) {
        s->state[i].data = total ? (char *)s->device_state + at : NULL;
        s->state[i].spec = e->plan.layer[i];
    }
    return 0;
}

static int sync_host_state(sl_session *s, sl_error *err) {
    sl_engine *e = s->engine;
    for (int i = 0; i < e->geom.n_layers; i++) {
        const sl_attn_spec *spec = &e->plan.layer[i];
        struct sl_method_state *state = &s->state[i];
        if (same_spec(&state->spec, spec)) continue;
        free(state->data);
        *state = (struct sl_method_state){0};
        size_t size = e->attend->state(e, spec);
        if (size && !(state->data = calloc(1, size))) return no_state(spec, size, err);
        state->size = size;
        state->spec = *spec;
    }
    return 0;
}

// After a change of observer: the new shadows' state, empty. The running methods' stays: observing changes nothing.
static int sync_shadows(sl_session *s, sl_error *err) {
    sl_engine *e = s->engine;
    const sl_backend *be = e->backend;
    if (s->observe_version == e->observe_version) return 0;
    be->release(be, s->shadow_state, s->shadow_size);
    s->shadow_state = NULL;
    s->shadow_size = 0;
    size_t size = sl_shadow_state_size(e);
    if (size && !(s->shadow_state = be->alloc(be, size)))
        return sl_fail(err, SL_ERR_MEMORY, "state of the observed methods: %zu bytes: out of memory", size);
    s->shadow_size = size;
    s->observe_version = e->observe_version;
    return 0;
}

// After a change of plan: the new methods' state, empty. A layer whose method is that of this session's last step keeps its
// state, so that sessions which decode with different methods can take turns on one engine.
static int sync_state(sl_session *s, sl_error *err) {
    sl_engine *e = s->engine;
    int rc = sync_shadows(s, err);
    if (rc || s->plan_version == e->plan_version) return rc;
    rc = e->backend->is_device ? sync_device_state(s, err) : sync_host_state(s, err);
    if (rc) return rc;
    s->plan_version = e->plan_version;
    return 0;
}

static void build_needs(sl_session *s, int layer, const sl_attn_spec *spec) {
    sl_kv_need need[SL_MAX_NEEDS];
    int n = s->engine->attend->needs(spec, need);
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

static size_t max_pages(const sl_engine *e) { // of a sequence
    return (e->n_ctx + SL_PAGE - 1) / SL_PAGE;
}

int sl_session_new(sl_engine *engine, uint32_t sequence, sl_session **out, sl_error *err) {
    const sl_config *c = &engine->model->config;
    sl_session *s = calloc(1, sizeof *s);
    if (!s) return sl_fail(err, SL_ERR_MEMORY, "session: out of memory");
    const sl_backend *be = engine->backend;
    *s = (sl_session){.engine = engine, .sequence = sequence, .logits_row = -1, .logits_here = 1};
    s->logits = calloc(c->n_vocab, sizeof *s->logits);
    s->state = calloc(c->n_layers, sizeof *s->state);
    if (be->is_device) {
        s->sent = calloc(max_pages(engine), sizeof *s->sent);
        s->pages = be->alloc(be, max_pages(engine) * sizeof *s->pages);
    }
    engine->n_sessions++;
    if (!s->logits || !s->state || (be->is_device && (!s->sent || !s->pages))) {
        sl_session_free(s);
        return sl_fail(err, SL_ERR_MEMORY, "session: out of memory");
    }
    *out = s;
    return 0;
}

void sl_session_free(sl_session *s) {
    if (!s) return;
    if (s->state) free_state(s);
    s->engine->backend->release(s->engine->backend, s->shadow_state, s->shadow_size);
    sl_kv_seq_free(&s->engine->pool, &s->kv);
    if (s->logits_row >= 0) s->engine->logits_of[s->logits_row] = NULL;
    s->engine->backend->release(s->engine->backend, s->pages, max_pages(s->engine) * sizeof *s->pages);
    s->engine->n_sessions--;
    free(s->sent);
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

// The logits as host memory: on a device they are fetched when somebody asks.
static void fetch_logits(sl_session *s) {
    const sl_engine *e = s->engine;
    size_t n = e->model->config.n_vocab;
    if (s->logits_here) return;
    e->backend->download(e->backend, s->logits, e->step_logits + s->logits_row * n, n * sizeof(float));
    s->logits_here = 1;
}

const float *sl_session_logits(const sl_session *s) {
    fetch_logits((sl_session *)s); // a copy made late: nothing that a caller sees changes
    return s->logits;
}

int sl_session_truncate(sl_session *s, int n_tokens, sl_error *err) {
    if (n_tokens < 0 || n_tokens > s->kv.n_tokens)
        return sl_fail(err, SL_ERR_ARG, "truncate to %d tokens: the session has %d", n_tokens, s->kv.n_tokens);
    sl_kv_truncate(&s->engine->pool, &s->kv, n_tokens);
    for (int i = 0; i < s->engine->geom.n_layers; i++)
        if (s->state[i].data) s->engine->backend->clear(s->engine->backend, s->state[i].data, s->state[i].size);
    if (s->shadow_state) s->engine->backend->clear(s->engine->backend, s->shadow_state, s->shadow_size);
    return 0;
}

typedef int (*branch_fn)(sl_kv_pool *pool, const sl_kv_seq *src, sl_kv_seq *dst, int n_tokens, sl_error *err);

static int branch(const sl_session *s, int n_tokens, uint32_t sequence, branch_fn fn, sl_session **out, sl_error *err) {
    if (n_tokens < 0 || n_tokens > s->kv.n_tokens)
        return sl_fail(err, SL_ERR_ARG, "fork at %d tokens: the session has %d", n_tokens, s->kv.n_tokens);
    int rc = sl_session_new(s->engine, sequence, out, err);
    if (rc) return rc;
    rc = fn(&s->engine->pool, &s->kv, &(*out)->kv, n_tokens, err);
    if (rc) sl_session_free(*out);
    return rc; // its methods' state follows at its first step
}

int sl_session_fork(const sl_session *s, int n_tokens, uint32_t sequence, sl_session **out, sl_error *err) {
    return branch(s, n_tokens, sequence, sl_kv_fork, out, err);
}

int sl_session_copy(const sl_session *s, int n_tokens, uint32_t sequence, sl_session **out, sl_error *err) {
    return branch(s, n_tokens, sequence, sl_kv_copy, out, err);
}

// ---- what a step lends to the model ----

typedef struct step_ctx {
    sl_engine *engine;
    sl_session *const *batch; // [n]; prefill: one session
    int n;
    int position; // prefill: of row 0
} step_ctx;

static sl_kv_rows kv_of(void *ctx, int layer) {
    return sl_kv_layer(&((step_ctx *)ctx)->engine->pool, layer);
}

// The page table as the backend's operations read it. A device is sent what changed since the last time.
static const int32_t *page_table(sl_session *s) {
    const sl_backend *be = s->engine->backend;
    const sl_kv_seq *kv = &s->kv;
    if (!be->is_device) return kv->pages;
    int first = 0;
    while (first < kv->n_pages && first < s->n_sent && kv->pages[first] == s->sent[first]) first++;
    if (first < kv->n_pages) {
        size_t size = (kv->n_pages - first) * sizeof *kv->pages;
        memcpy(s->sent + first, kv->pages + first, size);
        be->upload(be, s->pages + first, kv->pages + first, size);
    }
    s->n_sent = kv->n_pages;
    return s->pages;
}

// Hands e->rows[0..n) and, unless NULL, the ids to the backend.
static void send_rows(sl_engine *e, int n, const int32_t *ids) {
    const sl_backend *be = e->backend;
    if (be->is_device) be->upload(be, e->step_rows, e->rows, n * sizeof *e->rows);
    if (ids) be->upload(be, e->step_ids, ids, n * sizeof *ids);
}

static void attend_prefill(void *ctx, int layer, int first, int n, sl_queries q, void *out) {
    step_ctx *t = ctx;
    t->engine->attend->prefill(t->engine, t->batch[0], layer, t->position + first, n, q, out);
}

static void attend_decode(void *ctx, int layer, int first, int n, sl_queries q, void *out) {
    step_ctx *t = ctx;
    SL_CHECK(first == 0 && n == t->n);
    t->engine->attend->decode(t->engine, t->batch, n, layer, q, out);
}

// ---- logits on a device ----

// s->logits has been filled: no row of step_logits counts.
static void disown_logits(sl_session *s) {
    if (s->logits_row >= 0) s->engine->logits_of[s->logits_row] = NULL;
    s->logits_row = -1;
    s->logits_here = 1;
}

static int is_in(const sl_session *s, sl_session *const *batch, int n) {
    for (int i = 0; i < n; i++)
        if (batch[i] == s) return 1;
    return 0;
}

// Rows [0, n_rows) of step_logits are about to be overwritten by a step of the batch: the logits of sessions outside it are
// fetched first.
static void keep_logits(sl_engine *e, sl_session *const *batch, int n, int n_rows) {
    for (int i = 0; i < n_rows; i++) {
        sl_session *owner = e->logits_of[i];
        if (!owner) continue;
        if (!is_in(owner, batch, n)) fetch_logits(owner);
        owner->logits_row = -1;
        e->logits_of[i] = NULL;
    }
}

// Row i of step_logits now holds batch[i]'s.
static void own_logits(sl_engine *e, sl_session *const *batch, int n) {
    size_t n_vocab = e->model->config.n_vocab;
    for (int i = 0; i < n; i++) {
        sl_session *s = batch[i];
        if (!e->backend->is_device) {
            memcpy(s->logits, e->step_logits + i * n_vocab, n_vocab * sizeof(float));
            continue;
        }
        disown_logits(s); // a row beyond this batch's may have been its
        e->logits_of[i] = s;
        s->logits_row = i;
        s->logits_here = 0;
    }
}

// Brings each session's logits to its row of step_logits. In a batch that stays the same nothing moves.
static void place_logits(sl_engine *e, sl_session *const *batch, int n) {
    size_t n_vocab = e->model->config.n_vocab;
    for (int i = 0; i < n; i++) {
        sl_session *s = batch[i], *owner = e->logits_of[i];
        if (owner == s) continue;
        if (owner) {
            fetch_logits(owner);
            disown_logits(owner);
        }
        fetch_logits(s);
        disown_logits(s);
        e->backend->upload(e->backend, e->step_logits + i * n_vocab, s->logits, n_vocab * sizeof(float));
        e->logits_of[i] = s;
        s->logits_row = i;
    }
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
    const int32_t *pages = page_table(s);
    for (int i = 0; i < n; i++) e->rows[i] = (sl_row){.position = s->kv.n_tokens + i, .sequence = s->sequence, .pages = pages};
    send_rows(e, n, ids);
    step_ctx ctx = {.engine = e, .batch = &s, .n = 1, .position = s->kv.n_tokens};
    sl_llama_step step = {
        .backend = e->backend,
        .mode = SL_LINEAR_PREFILL,
        .n_rows = n,
        .n_out = n_out,
        .position = s->kv.n_tokens,
        .ids = e->step_ids,
        .rows = e->step_rows,
        .kv = kv_of,
        .attend = attend_prefill,
        .ctx = &ctx,
    };
    sl_llama_forward(&e->weights, &e->model->config, &step, &e->scratch);
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

// The head over n final states from x on, to host memory: [n][n_vocab]. Waits.
static int head(sl_engine *e, const char *x, int n, sl_linear_mode mode, int position, float *logits, sl_error *err) {
    const sl_backend *be = e->backend;
    size_t n_vocab = e->model->config.n_vocab;
    float *to = be->is_device ? e->step_logits : logits;
    for (int i = 0, most = be->is_device ? e->n_sequences : n; i < n; i += most) {
        int rows = n - i < most ? n - i : most;
        const char *from = x + (size_t)i * e->model->config.hidden * be->act_size;
        be->linear(be, &e->weights.head, from, rows, mode, position + i, 0, to);
        if (be->is_device) be->download(be, logits + i * n_vocab, to, rows * n_vocab * sizeof(float));
    }
    return be->finish(be, err);
}

int sl_prefill(sl_session *s, const int32_t *ids, int n, const sl_progress *progress, sl_error *err) {
    sl_engine *e = s->engine;
    int rc = begin_prefill(s, ids, n, err);
    for (int i = 0; !rc && i < n; i += e->prefill_chunk) {
        int m = n - i < e->prefill_chunk ? n - i : e->prefill_chunk;
        prefill_chunk(s, ids + i, m, i + m == n);
        sl_progress_report(progress, i + m, n);
    }
    if (rc) return rc;
    keep_logits(e, &s, 1, 1);
    rc = head(e, e->scratch.h, 1, SL_LINEAR_DECODE, 0, s->logits, err);
    disown_logits(s);
    build_extras(s);
    return rc;
}

int sl_prefill_logits(sl_session *s, const int32_t *ids, int n, sl_logits_fn fn, void *ctx, const sl_progress *progress,
                      sl_error *err) {
    enum { GROUP = 64 }; // rows of logits made at a time: 32 MB with a vocabulary of 128k
    sl_engine *e = s->engine;
    const sl_config *c = &e->model->config;
    float *logits = malloc((size_t)GROUP * c->n_vocab * sizeof *logits);
    if (!logits) return sl_fail(err, SL_ERR_MEMORY, "logits of %d rows: out of memory", GROUP);
    int n_from = s->kv.n_tokens, rc = begin_prefill(s, ids, n, err);
    if (rc) {
        free(logits);
        return rc;
    }
    keep_logits(e, &s, 1, e->n_sequences);
    for (int i = 0; !rc && i < n; i += e->prefill_chunk) {
        int m = n - i < e->prefill_chunk ? n - i : e->prefill_chunk;
        prefill_chunk(s, ids + i, m, m);
        for (int j = 0; !rc && j < m; j += GROUP) {
            int rows = m - j < GROUP ? m - j : GROUP;
            const char *x = (const char *)e->scratch.h + (size_t)j * c->hidden * e->backend->act_size;
            rc = head(e, x, rows, SL_LINEAR_PREFILL, n_from + i + j, logits, err);
            if (rc) break;
            memcpy(s->logits, logits + (size_t)(rows - 1) * c->n_vocab, c->n_vocab * sizeof *logits);
            rc = fn(ctx, i + j, rows, logits, err);
        }
        sl_progress_report(progress, i + m, n);
    }
    disown_logits(s);
    free(logits);
    if (!rc) build_extras(s);
    return rc;
}

// ---- decode ----

static int check_batch(const sl_engine *e, int n, sl_error *err) {
    if (n >= 1 && n <= e->n_sequences) return 0;
    return sl_fail(err, SL_ERR_ARG, "a batch of %d sequences: this engine takes 1 to %d", n, e->n_sequences);
}

static int check_room(const sl_session *s, sl_error *err) {
    if (s->kv.n_tokens < s->engine->n_ctx) return 0;
    return sl_fail(err, SL_ERR_CONTEXT, "sequence %u: the context is full: %d tokens, --ctx-size %d", s->sequence,
                   s->kv.n_tokens, s->engine->n_ctx);
}

// ids: NULL when they are yet to be drawn
static int begin_decode(sl_session *const *batch, int n, const int32_t *ids, sl_error *err) {
    sl_engine *e = batch[0]->engine;
    int rc = ids ? check_ids(e, ids, n, err) : 0;
    for (int i = 0; !rc && i < n; i++) {
        sl_session *s = batch[i];
        SL_CHECK(s->engine == e);
        rc = check_room(s, err);
        if (!rc) rc = sync_state(s, err);
        if (!rc) rc = sl_kv_reserve(&e->pool, &s->kv, s->kv.n_tokens + 1, err);
        if (!rc) build_extras(s);
    }
    return rc;
}

// One step over the rows and ids that were sent, up to the logits. What it queues depends on the batch's size alone.
static void decode_rows(void *context) {
    step_ctx *ctx = context;
    sl_engine *e = ctx->engine;
    const sl_backend *be = e->backend;
    sl_llama_step step = {
        .backend = be,
        .mode = SL_LINEAR_DECODE,
        .n_rows = ctx->n,
        .n_out = ctx->n,
        .ids = e->step_ids,
        .rows = e->step_rows,
        .kv = kv_of,
        .attend = attend_decode,
        .ctx = ctx,
    };
    sl_llama_forward(&e->weights, &e->model->config, &step, &e->scratch);
    be->linear(be, &e->weights.head, e->scratch.h, ctx->n, SL_LINEAR_DECODE, 0, 0, e->step_logits);
}

// A step that is observed is not recorded: the host looks at every layer.
static void queue_step(step_ctx *ctx) {
    const sl_engine *e = ctx->engine;
    if (e->observation.observer.fn)
        decode_rows(ctx);
    else
        e->backend->replay(e->backend, ctx->n, decode_rows, ctx);
}

// Each session's next row. ids: NULL when they lie there already
static void send_batch(sl_engine *e, sl_session *const *batch, int n, const int32_t *ids) {
    for (int i = 0; i < n; i++)
        e->rows[i] = (sl_row){.position = batch[i]->kv.n_tokens,
                              .sequence = batch[i]->sequence,
                              .pages = page_table(batch[i]),
                              .state = batch[i]->device_state,
                              .seed = e->seed};
    send_rows(e, n, ids);
}

int sl_decode(sl_session *const *batch, int n, const int32_t *ids, sl_error *err) {
    sl_engine *e = batch[0]->engine;
    int rc = check_batch(e, n, err);
    if (!rc) rc = begin_decode(batch, n, ids, err);
    if (rc) return rc;
    keep_logits(e, batch, n, n);
    send_batch(e, batch, n, ids);
    step_ctx ctx = {.engine = e, .batch = batch, .n = n};
    queue_step(&ctx);
    rc = e->backend->finish(e->backend, err);
    if (rc) return rc;
    if (e->attend->account) e->attend->account(e, batch, n);
    for (int i = 0; i < n; i++) batch[i]->kv.n_tokens++;
    own_logits(e, batch, n);
    return 0;
}

uint64_t sl_logits_hash(const float *logits, int n_vocab) {
    return sl_fnv1a(SL_FNV1A_START, logits, (size_t)n_vocab * sizeof *logits);
}

// ---- the next token, and a step that begins with it ----

// The backend draws from the logits where they lie, into step_ids: it can, for all of these.
static int draws_there(const sl_engine *e, sl_sampler *const *samplers, int n) {
    int can = e->backend->draw != NULL;
    for (int i = 0; can && i < n; i++) can = e->backend->draws(sl_sampler_params(samplers[i]), e->model->config.n_vocab);
    return can;
}

static void queue_draw(sl_engine *e, sl_session *const *batch, int n, sl_sampler *const *samplers) {
    const sl_sampling *params[n]; // n is at most n_sequences: check_batch
    for (int i = 0; i < n; i++) params[i] = sl_sampler_params(samplers[i]);
    place_logits(e, batch, n);
    send_batch(e, batch, n, NULL);
    e->backend->draw(e->backend, e->step_logits, e->step_rows, params, n, e->model->config.n_vocab, e->step_ids);
}

// On a device a row whose logits are not finite draws -1.
static int check_drawn(sl_session *const *batch, int n, const int32_t *ids, sl_error *err) {
    for (int i = 0; i < n; i++)
        if (ids[i] < 0) return sl_session_check_logits(batch[i], err);
    return 0;
}

int sl_sample(sl_session *const *batch, int n, sl_sampler *const *samplers, int32_t *ids, sl_error *err) {
    sl_engine *e = batch[0]->engine;
    int rc = check_batch(e, n, err);
    if (!rc && draws_there(e, samplers, n)) {
        queue_draw(e, batch, n, samplers);
        rc = e->backend->drawn(e->backend, ids, n, err);
        return rc ? rc : check_drawn(batch, n, ids, err);
    }
    for (int i = 0; !rc && i < n; i++) rc = sl_session_check_logits(batch[i], err);
    for (int i = 0; !rc && i < n; i++)
        ids[i] = sl_sampler_draw(samplers[i], sl_session_logits(batch[i]), batch[i]->sequence, (uint32_t)batch[i]->kv.n_tokens);
    return rc;
}

// Gives a session the logits that it drew from: those of before the step that has just been queued. i: its row
static void restore_logits(sl_session *s, int i) {
    const sl_engine *e = s->engine;
    size_t n_vocab = e->model->config.n_vocab;
    e->backend->download(e->backend, s->logits, e->last_logits + i * n_vocab, n_vocab * sizeof(float));
    disown_logits(s);
}

// Draw and step queued together: the device never waits for the host. A sequence that draws an end token has taken part in the
// step, but its row is not counted and its logits are those that it drew from. So it is with all sequences when the logits of
// one are not finite.
static int step_there(sl_session *const *batch, int n, sl_sampler *const *samplers, int32_t *ids, sl_error *err) {
    sl_engine *e = batch[0]->engine;
    const sl_backend *be = e->backend;
    size_t n_vocab = e->model->config.n_vocab, size = n_vocab * sizeof(float);
    int rc = begin_decode(batch, n, NULL, err);
    if (rc) return rc;
    queue_draw(e, batch, n, samplers);
    be->copy(be, e->last_logits, e->step_logits, n * size, n * size, 1);
    step_ctx ctx = {.engine = e, .batch = batch, .n = n};
    be->replay(be, n, decode_rows, &ctx);
    rc = be->drawn(be, ids, n, err);
    if (rc) return rc;
    own_logits(e, batch, n);
    int is_finite = 1;
    for (int i = 0; i < n; i++) is_finite &= ids[i] >= 0;
    for (int i = 0; !is_finite && i < n; i++) restore_logits(batch[i], i);
    if (!is_finite) return check_drawn(batch, n, ids, err);
    for (int i = 0; i < n; i++) {
        sl_session *s = batch[i];
        if (sl_model_is_eos(e->model, ids[i])) {
            restore_logits(s, i);
            continue;
        }
        if (e->attend->account) e->attend->account(e, &s, 1);
        s->kv.n_tokens++;
    }
    return 0;
}

int sl_step(sl_session *const *batch, int n, sl_sampler *const *samplers, int32_t *ids, sl_error *err) {
    const sl_engine *e = batch[0]->engine;
    int n_live = 0, rc = check_batch(e, n, err);
    for (int i = 0; !rc && i < n; i++) rc = check_room(batch[i], err);
    // An observer is told of no token that ends its sequence, which step_there appends before it knows.
    if (!rc && !e->observation.observer.fn && draws_there(e, samplers, n)) return step_there(batch, n, samplers, ids, err);
    if (!rc) rc = sl_sample(batch, n, samplers, ids, err);
    if (rc) return rc;
    sl_session *live[n];
    int32_t live_ids[n];
    for (int i = 0; i < n; i++) {
        if (sl_model_is_eos(e->model, ids[i])) continue;
        live[n_live] = batch[i];
        live_ids[n_live++] = ids[i];
    }
    return n_live ? sl_decode(live, n_live, live_ids, err) : 0;
}
