// engine/session.c - sl_session: making, forking and cutting a timeline, and what attention methods keep for it. engine/step.c
// appends tokens.
#include "engine/engine_internal.h"

#include <stdlib.h>
#include <string.h>

// ---- state and page extras of the plan's methods ----

static void free_state(sl_session *s) {
    const sl_backend *be = s->engine->backend;
    for (int i = 0; i < s->engine->geom.n_layers; i++) {
        if (!be->is_device) free(s->state[i].data);
        s->state[i] = (struct sl_method_state){0};
    }
    be->release(be, s->device_state, s->device_state_size);
    s->device_state = NULL;
}

static int fail_no_state(const sl_attn_spec *spec, size_t size, sl_error *err) {
    return sl_fail(err, SL_ERR_MEMORY, "{attn} %s: state of %zu bytes: out of memory", spec->method->name, size);
}

// On a device one block holds the states of all layers. It is made anew when the method of any layer changes.
static int sync_device_state(sl_session *s, sl_error *err) {
    const sl_engine *e = s->engine;
    const sl_attn_plan *plan = s->plan;
    int i = 0, n_layers = e->geom.n_layers;
    while (i < n_layers && sl_attn_same(&s->state[i].spec, &plan->layer[i])) i++;
    if (i == n_layers) return 0;
    free_state(s);
    size_t total = sl_device_state_at(e, plan, n_layers);
    for (i = 0; i + 1 < n_layers && !e->attention->state_size(e, &plan->layer[i]);) i++; // the error names this layer's method
    if (total && !(s->device_state = e->backend->alloc(e->backend, total))) return fail_no_state(&plan->layer[i], total, err);
    s->device_state_size = total;
    for (i = 0; i < n_layers; i++) {
        size_t size = e->attention->state_size(e, &plan->layer[i]);
        s->state[i] = (struct sl_method_state){
            .data = size ? s->device_state + sl_device_state_at(e, plan, i) : NULL, .size = size, .spec = plan->layer[i]};
    }
    return 0;
}

static int sync_host_state(sl_session *s, sl_error *err) {
    sl_engine *e = s->engine;
    for (int i = 0; i < e->geom.n_layers; i++) {
        const sl_attn_spec *spec = &s->plan->layer[i];
        struct sl_method_state *state = &s->state[i];
        if (sl_attn_same(&state->spec, spec)) continue;
        free(state->data);
        *state = (struct sl_method_state){0};
        size_t size = e->attention->state_size(e, spec);
        if (size && !(state->data = calloc(1, size))) return fail_no_state(spec, size, err);
        state->size = size;
        state->spec = *spec;
    }
    return 0;
}

// After a change of observer: makes the state of the new shadows. The running methods keep their state.
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

int sl_session_sync_state(sl_session *s, sl_error *err) {
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
    int n = s->engine->attention->needs(spec, need);
    for (int i = 0; i < n; i++) sl_kv_build(&s->engine->pool, &s->kv, layer, need[i]);
}

void sl_session_build_extras(sl_session *s) {
    sl_engine *e = s->engine;
    for (int i = 0; i < e->geom.n_layers; i++) {
        build_needs(s, i, &s->plan->layer[i]);
        for (int j = 0; j < e->observation.observer.n_shadows; j++) build_needs(s, i, &e->observation.shadows[j]);
    }
}

const int32_t *sl_session_page_table(sl_session *s) {
    const sl_backend *be = s->engine->backend;
    const sl_kv_seq *kv = &s->kv;
    if (!be->is_device) return kv->pages;
    int first = 0;
    while (first < kv->n_pages && first < s->n_sent_pages && kv->pages[first] == s->sent_pages[first]) first++;
    if (first < kv->n_pages) {
        size_t size = (kv->n_pages - first) * sizeof *kv->pages;
        memcpy(s->sent_pages + first, kv->pages + first, size);
        be->upload(be, s->device_pages + first, kv->pages + first, size);
    }
    s->n_sent_pages = kv->n_pages;
    return s->device_pages;
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
    *s = (sl_session){.engine = engine, .plan = &engine->plan, .sequence = sequence, .logits_row = -1, .has_host_logits = 1};
    s->logits = calloc(c->n_vocab, sizeof *s->logits);
    s->state = calloc(c->n_layers, sizeof *s->state);
    if (be->is_device) {
        s->sent_pages = calloc(max_pages(engine), sizeof *s->sent_pages);
        s->device_pages = be->alloc(be, max_pages(engine) * sizeof *s->device_pages);
    }
    atomic_fetch_add(&engine->n_users, 1);
    if (!s->logits || !s->state || (be->is_device && (!s->sent_pages || !s->device_pages))) {
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
    sl_logits_forget_row(s);
    s->engine->backend->release(s->engine->backend, s->device_pages, max_pages(s->engine) * sizeof *s->device_pages);
    sl_engine_free(s->engine);
    free(s->sent_pages);
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

int sl_session_truncate(sl_session *s, int n_tokens, sl_error *err) {
    if (n_tokens < 0 || n_tokens > s->kv.n_tokens)
        return sl_fail(err, SL_ERR_ARG, "truncate to %d tokens: the session has %d", n_tokens, s->kv.n_tokens);
    if (n_tokens < s->kv.n_tokens) s->has_logits = 0;
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
    sl_session *made;
    int rc = sl_session_new(s->engine, sequence, &made, err);
    if (rc) return rc;
    rc = fn(&s->engine->pool, &s->kv, &made->kv, n_tokens, err);
    if (rc) {
        sl_session_free(made);
        return rc;
    }
    if (s->has_logits && n_tokens == s->kv.n_tokens) {
        memcpy(made->logits, sl_session_logits(s, NULL), s->engine->model->config.n_vocab * sizeof *made->logits);
        made->has_logits = 1;
    }
    *out = made; // its first step makes the methods' state
    return 0;
}

int sl_session_fork(const sl_session *s, int n_tokens, uint32_t sequence, sl_session **out, sl_error *err) {
    return branch(s, n_tokens, sequence, sl_kv_fork, out, err);
}

int sl_session_copy(const sl_session *s, int n_tokens, uint32_t sequence, sl_session **out, sl_error *err) {
    return branch(s, n_tokens, sequence, sl_kv_copy, out, err);
}
