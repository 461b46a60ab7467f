// engine/session.c - sl_session: making, forking and cutting a timeline, and what attention methods keep for it.
// engine/prefill.c and engine/step.c append tokens.
#include "engine/engine_internal.h"
#include "kv/kv_offload.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

// ---- state and page extras of the plan's methods ----

static void free_state(sl_session *s) {
    const sl_backend *be = s->engine->device.backend;
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
    const sl_device *d = &e->device;
    const sl_attn_plan *plan = &sl_session_plan(s)->methods;
    int i = 0, n_layers = e->geom.n_layers;
    while (i < n_layers && sl_attn_same(&s->state[i].spec, &plan->layer[i])) i++;
    if (i == n_layers) return 0;
    free_state(s);
    size_t total = sl_device_state_at(e, plan, n_layers);
    for (i = 0; i + 1 < n_layers && !d->attention->state_size(e, &plan->layer[i]);) i++; // the error names this layer's method
    if (total && !(s->device_state = d->backend->alloc(d->backend, total))) return fail_no_state(&plan->layer[i], total, err);
    s->device_state_size = total;
    for (i = 0; i < n_layers; i++) {
        size_t size = d->attention->state_size(e, &plan->layer[i]);
        s->state[i] = (struct sl_method_state){
            .data = size ? s->device_state + sl_device_state_at(e, plan, i) : NULL, .size = size, .spec = plan->layer[i]};
    }
    return 0;
}

static int sync_host_state(sl_session *s, sl_error *err) {
    sl_engine *e = s->engine;
    for (int i = 0; i < e->geom.n_layers; i++) {
        const sl_attn_spec *spec = &sl_session_plan(s)->methods.layer[i];
        struct sl_method_state *state = &s->state[i];
        if (sl_attn_same(&state->spec, spec)) continue;
        free(state->data);
        *state = (struct sl_method_state){0};
        size_t size = e->device.attention->state_size(e, spec);
        if (size && !(state->data = calloc(1, size))) return fail_no_state(spec, size, err);
        state->size = size;
        state->spec = *spec;
    }
    return 0;
}

// After a change of observer: makes the state of the new shadows. The running methods keep their state.
static int sync_shadows(sl_session *s, sl_error *err) {
    sl_engine *e = s->engine;
    const sl_backend *be = e->device.backend;
    if (s->observe_version == e->observation.version) return 0;
    be->release(be, s->shadow_state, s->shadow_size);
    s->shadow_state = NULL;
    s->shadow_size = 0;
    size_t size = sl_shadow_state_size(e);
    if (size && !(s->shadow_state = be->alloc(be, size)))
        return sl_fail(err, SL_ERR_MEMORY, "state of the observed methods: %zu bytes: out of memory", size);
    s->shadow_size = size;
    s->observe_version = e->observation.version;
    return 0;
}

int sl_session_sync_state(sl_session *s, sl_error *err) {
    sl_engine *e = s->engine;
    uint32_t number = sl_session_plan(s)->number;
    int rc = sync_shadows(s, err);
    if (rc || s->plan_number == number) return rc;
    s->plan_number = 0; // after an error the states are of no plan
    rc = e->device.backend->is_device ? sync_device_state(s, err) : sync_host_state(s, err);
    if (rc) return rc;
    s->plan_number = number;
    return 0;
}

static void build_needs(sl_session *s, int layer, const sl_attn_spec *spec) {
    sl_kv_need need[SL_MAX_NEEDS];
    int n = s->engine->device.attention->needs(spec, need);
    for (int i = 0; i < n; i++) sl_kv_build(&s->engine->device.pool, &s->kv, layer, need[i]);
}

void sl_session_build_extras(sl_session *s) {
    sl_engine *e = s->engine;
    for (int i = 0; i < e->geom.n_layers; i++) {
        build_needs(s, i, &sl_session_plan(s)->methods.layer[i]);
        for (int j = 0; j < e->observation.observer.n_shadows; j++) build_needs(s, i, &e->observation.shadows[j]);
    }
}

const int32_t *sl_session_page_table(sl_session *s) {
    const sl_backend *be = s->engine->device.backend;
    const sl_kv_seq *kv = &s->kv;
    if (!be->is_device) return kv->pages;
    const sl_kv_pool *pool = &s->engine->device.pool;
    int first = 0;
    while (first < kv->n_pages && first < s->n_sent_pages && sl_kv_entry(pool, kv, first) == s->sent_pages[first]) first++;
    for (int i = first; i < kv->n_pages; i++) s->sent_pages[i] = sl_kv_entry(pool, kv, i);
    if (first < kv->n_pages)
        be->upload(be, s->device_pages + first, s->sent_pages + first, (kv->n_pages - first) * sizeof *s->sent_pages);
    s->n_sent_pages = kv->n_pages;
    return s->device_pages;
}

// ---- segments of sparse prefills ----

enum { CUT_SEGMENT = -1 };

int sl_session_reserve_segments(sl_session *s, int n, sl_error *err) {
    const sl_engine *e = s->engine;
    int segment = e->prefill.segment_tokens, need = segment ? s->n_segments + n / segment + 2 : 0;
    if (need <= s->cap_segments) return 0;
    void *grown = realloc(s->segments, (size_t)need * sizeof *s->segments);
    if (!grown) return sl_fail(err, SL_ERR_MEMORY, "%d segments: out of memory", need);
    s->segments = grown, s->cap_segments = need;
    return 0;
}

void sl_session_add_segment(sl_session *s, int first, int n) {
    SL_CHECK(s->n_segments < s->cap_segments);
    s->segments[s->n_segments++] = (struct sl_segment){first, first + n, s->engine->prefill.version};
}

void sl_session_cut_rows(sl_session *s, int n_tokens) {
    sl_kv_truncate(&s->engine->device.pool, &s->kv, n_tokens);
    s->n_cuts++;
    if (s->n_prefilled > n_tokens) s->n_prefilled = n_tokens;
    while (s->n_segments && s->segments[s->n_segments - 1].first >= n_tokens) s->n_segments--;
    if (!s->n_segments) return;
    struct sl_segment *last = s->segments + s->n_segments - 1;
    if (last->end > n_tokens) last->end = n_tokens, last->version = CUT_SEGMENT;
}

// The segment that holds tokens n - 1 and n, or whose end was cut off at n; NULL: none
static const struct sl_segment *segment_across(const sl_session *s, int n) {
    for (int i = 0; i < s->n_segments; i++) {
        const struct sl_segment *g = &s->segments[i];
        if (g->first < n && (n < g->end || (n == g->end && g->version == CUT_SEGMENT))) return g;
    }
    return NULL;
}

// The end of the last segment that a prefill of n_prefill tokens from token 0 has too, at most n.
static int same_segments(const sl_session *s, int n, int n_prefill) {
    const sl_engine *e = s->engine;
    int at = 0;
    for (int i = 0; i < s->n_segments; i++) {
        const struct sl_segment *g = &s->segments[i];
        int end = n_prefill - at < e->prefill.segment_tokens ? n_prefill : at + e->prefill.segment_tokens;
        if (g->first != at || g->end != end || g->end > n || g->version != e->prefill.version) break;
        at = end;
    }
    return at;
}

// The largest m <= n where no segment holds both tokens m - 1 and m, and none was cut off at m. The segment before a divided
// one can be cut off too, so this repeats.
static int undivided(const sl_session *s, int n) {
    for (const struct sl_segment *across; (across = segment_across(s, n));) n = across->first;
    return n;
}

int sl_session_reusable(const sl_session *s, int n, int n_prefill) {
    SL_CHECK(n >= 0 && n <= s->kv.n_tokens);
    if (n_prefill == SL_CONTINUES) return undivided(s, n);
    if (s->engine->prefill.segment_tokens) return same_segments(s, n, n_prefill);
    return s->n_segments && s->segments[0].first < n ? s->segments[0].first : n;
}

// ---- life ----

static size_t max_pages(const sl_engine *e) { // of a sequence
    return sl_kv_pages_of(e->n_ctx);
}

int sl_session_new(sl_engine *engine, uint32_t sequence, sl_session **out, sl_error *err) {
    const sl_config *c = &engine->model->config;
    int rc = sl_engine_check_process(engine, err);
    if (rc) return rc;
    sl_session *s = calloc(1, sizeof *s);
    if (!s) return sl_fail(err, SL_ERR_MEMORY, "session: out of memory");
    const sl_backend *be = engine->device.backend;
    *s = (sl_session){
        .n_users = 1, .engine = engine, .sequence = sequence, .seed = engine->seed, .logits_row = -1, .has_host_logits = 1};
    s->ids = malloc((size_t)engine->n_ctx * sizeof *s->ids);
    s->logits = calloc(c->n_vocab, sizeof *s->logits);
    s->state = calloc(c->n_layers, sizeof *s->state);
    if (be->is_device) {
        s->sent_pages = calloc(max_pages(engine), sizeof *s->sent_pages);
        s->device_pages = be->alloc(be, max_pages(engine) * sizeof *s->device_pages);
    }
    atomic_fetch_add(&engine->n_users, 1);
    if (!s->ids || !s->logits || !s->state || (be->is_device && (!s->sent_pages || !s->device_pages))) {
        sl_session_free(s);
        return sl_fail(err, SL_ERR_MEMORY, "session: out of memory");
    }
    *out = s;
    return 0;
}

void sl_session_free(sl_session *s) {
    if (!s || sl_engine_is_foreign(s->engine) || --s->n_users > 0) return;
    const sl_backend *be = s->engine->device.backend;
    if (s->state) free_state(s);
    be->release(be, s->shadow_state, s->shadow_size);
    sl_kv_seq_free(&s->engine->device.pool, &s->kv);
    sl_logits_forget_row(s);
    sl_plan_drop(s->engine, s->own_plan);
    be->release(be, s->device_pages, max_pages(s->engine) * sizeof *s->device_pages);
    sl_engine_free(s->engine);
    free(s->sent_pages);
    free(s->segments);
    free(s->state);
    free(s->logits);
    free(s->ids);
    free(s);
}

int sl_session_n_tokens(const sl_session *s) {
    return s->kv.n_tokens;
}

// Sessions share only pages of equal beginnings, so a shared page has the same place in each of them.
static int is_first_holder(const sl_session *const *sessions, int i, int place) {
    const int32_t page = sessions[i]->kv.pages[place];
    int is_first = 1;
    if (sessions[i]->engine->device.pool.refs[page] == 1) return 1;
    for (int k = 0; k < i; k++)
        if (place < sessions[k]->kv.n_pages) is_first &= sessions[k]->kv.pages[place] != page;
    return is_first;
}

int sl_sessions_n_pages(const sl_session *const *sessions, int n) {
    int n_pages = 0;
    for (int i = 0; i < n; i++)
        for (int place = 0; place < sessions[i]->kv.n_pages; place++) n_pages += is_first_holder(sessions, i, place);
    return n_pages;
}

const int32_t *sl_session_ids(const sl_session *s) {
    return s->ids;
}
int sl_session_n_prefilled(const sl_session *s) {
    return s->n_prefilled;
}
uint32_t sl_session_sequence(const sl_session *s) {
    return s->sequence;
}
void sl_session_set_sequence(sl_session *s, uint32_t sequence) {
    s->sequence = sequence;
}
void sl_session_set_seed(sl_session *s, uint32_t seed) {
    s->seed = seed;
}

int sl_session_truncate(sl_session *s, int n_tokens, sl_error *err) {
    const sl_backend *be = s->engine->device.backend;
    if (n_tokens < 0 || n_tokens > s->kv.n_tokens)
        return sl_fail(err, SL_ERR_ARG, "truncate to %d tokens: the session has %d", n_tokens, s->kv.n_tokens);
    if (n_tokens < s->kv.n_tokens) s->has_logits = 0;
    sl_session_cut_rows(s, n_tokens);
    for (int i = 0; i < s->engine->geom.n_layers; i++)
        if (s->state[i].data) be->clear(be, s->state[i].data, s->state[i].size);
    if (s->shadow_state) be->clear(be, s->shadow_state, s->shadow_size);
    return 0;
}

int sl_session_share(sl_session *s, const int32_t *ids, const int32_t *pages, int n_pages, sl_error *err) {
    int segment = s->engine->prefill.segment_tokens, n = n_pages * SL_PAGE;
    SL_CHECK(s->kv.n_pages == 0 && (!segment || n % segment == 0));
    int rc = sl_session_reserve_segments(s, n, err);
    if (!rc) rc = sl_kv_share(&s->engine->device.pool, &s->kv, pages, n_pages, err);
    if (rc) return rc;
    memcpy(s->ids, ids, (size_t)n * sizeof *ids);
    for (int at = 0; segment && at < n; at += segment) sl_session_add_segment(s, at, segment);
    s->n_prefilled = n;
    return 0;
}

int sl_session_shareable(const sl_session *s) {
    int segment = s->engine->prefill.segment_tokens, n = s->n_prefilled / SL_PAGE * SL_PAGE;
    return (segment ? n / segment * segment : n) / SL_PAGE;
}

typedef int (*branch_fn)(sl_kv_pool *pool, const sl_kv_seq *src, sl_kv_seq *dst, int n_tokens, sl_error *err);

static int branch(const sl_session *s, int n_tokens, uint32_t sequence, branch_fn fn, sl_session **out, sl_error *err) {
    if (n_tokens < 0 || n_tokens > s->kv.n_tokens)
        return sl_fail(err, SL_ERR_ARG, "fork at %d tokens: the session has %d", n_tokens, s->kv.n_tokens);
    const struct sl_segment *across = segment_across(s, n_tokens);
    if (across) {
        char or_end[20] = "";
        if (!segment_across(s, across->end)) snprintf(or_end, sizeof or_end, " or %d", across->end);
        return sl_fail(err, SL_ERR_ARG,
                       "fork at %d tokens: {attn_prefill} read the tokens %d to %d together, so another sequence cannot share "
                       "a part of their rows; fork at %d%s",
                       n_tokens, across->first, across->end - 1, undivided(s, n_tokens), or_end);
    }
    sl_session *made = NULL;
    int rc = sl_session_new(s->engine, sequence, &made, err);
    if (!rc && s->n_segments && !(made->segments = malloc((size_t)s->n_segments * sizeof *made->segments)))
        rc = sl_fail(err, SL_ERR_MEMORY, "%d segments: out of memory", s->n_segments);
    if (!rc) rc = fn(&s->engine->device.pool, &s->kv, &made->kv, n_tokens, err);
    if (rc) {
        sl_session_free(made);
        return rc;
    }
    for (int i = 0; i < s->n_segments && s->segments[i].first < n_tokens; i++)
        made->segments[made->n_segments++] = s->segments[i];
    made->cap_segments = made->n_segments;
    memcpy(made->ids, s->ids, (size_t)n_tokens * sizeof *s->ids);
    made->own_plan = sl_plan_share(s->own_plan);
    made->seed = s->seed;
    made->n_prefilled = s->n_prefilled < n_tokens ? s->n_prefilled : n_tokens;
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
