// server/serve/serve_loop.c - the inference thread: it hands requests to the scheduler in their order, runs its steps, and ends
// the requests whose client left.
//
// Requests wait here, not in the scheduler, because a waiting job has a session's memory.
#include "server/serve/serve_internal.h"
#include "base/clock.h"
#include "engine/stream.h"

#include <stdlib.h>
#include <string.h>

// ---- requests in their order ----

int serve_make_room(serve_server *s) {
    if (s->n_active < s->cap_active) return 0;
    int cap = 2 * s->cap_active + 64;
    serve_request **grown = realloc(s->active, (size_t)cap * sizeof *grown);
    if (!grown) return SL_ERR_MEMORY;
    s->active = grown, s->cap_active = cap;
    return 0;
}

// 1: none of the request's answers has begun.
static int is_waiting(const serve_request *r) {
    for (int i = 0; i < r->n_added; i++)
        if (!r->choices[i].job || sl_job_state_of(r->choices[i].job) != SL_JOB_WAITS) return 0;
    return !r->is_done;
}

static int n_waiting(const serve_server *s) {
    int n = 0;
    for (int i = 0; i < s->n_active; i++) n += is_waiting(s->active[i]);
    return n;
}

// Sequences that no job has.
static int n_free(const serve_server *s) {
    const sl_scheduler_stats now = sl_scheduler_stats_of(s->scheduler);
    return s->n_sequences - now.n_prefilling - now.n_decoding;
}

void serve_place(serve_server *s, serve_request *r) {
    int at = s->n_active++;
    for (; at > 0 && s->active[at - 1]->api.priority > r->api.priority; at--) s->active[at] = s->active[at - 1];
    s->active[at] = r;
    r->server = s;
}

// Takes a new request, or refuses it.
static void insert(serve_server *s, serve_request *r) {
    api_error e;
    if (r->endpoint == SERVE_SLOTS) {
        serve_slots_run(s, r);
        serve_request_free(s, r);
        return;
    }
    int rc = 0;
    if (n_waiting(s) >= s->options.max_waiting + n_free(s))
        rc = api_fail(&e, 429, NULL, "%d requests wait already: expected fewer than max_waiting %d", s->options.max_waiting,
                      s->options.max_waiting);
    else if (serve_make_room(s))
        rc = api_no_memory(&e);
    if (rc) {
        atomic_fetch_add(&s->n_refused, 1);
        serve_refuse(r, &e);
        serve_request_free(s, r);
        return;
    }
    serve_place(s, r);
    serve_ranks_open(s, r);
}

static void take_new(serve_server *s) {
    int is_idle = s->n_active == 0 && atomic_load(&s->state) == SERVE_RUNNING;
    int drains = s->n_active == 0 && !is_idle;
    for (serve_request *r = serve_take_all(&s->to_infer, is_idle ? -1 : drains ? 10 : 0), *next; r; r = next) {
        next = r->next;
        insert(s, r);
    }
}

// ---- jobs ----

int serve_add_job(serve_server *s, serve_request *r, sl_error *err) {
    const api_request *q = &r->api;
    serve_choice *c = &r->choices[r->n_added];
    serve_prompt *p = &r->prompts[c->index / q->n];
    sl_generation g = sl_generation_default();
    sl_job_options o = sl_job_options_default();
    g.sampling = r->sampling;
    g.max_tokens = q->max_tokens > 0 ? q->max_tokens : 0;
    g.stop = q->stop, g.n_stop = q->n_stop;
    g.sequence = (uint32_t)(c->index % q->n);
    g.n_logprobs = q->n_logprobs;
    g.grammar = r->grammar, g.grammar_after = r->grammar_after;
    g.draft = r->draft;
    o.ids = p->ids.data, o.n = (int)p->ids.n;
    o.generation = &g;
    o.attn = &p->plan.attn;
    o.prefill = serve_sparse_prefill(p), o.segment = p->plan.segment;
    o.salt = q->cache_salt;
    o.priority = q->priority;
    o.at_start = r->at_start;
    o.named = r->named, o.n_named = r->n_named;
    o.has_seed = 1, o.seed = r->sampling.seed;
    o.n_prompt_logprobs = q->echo ? q->n_logprobs : -1;
    o.wants_work = q->continuous_usage;
    o.on_change = serve_on_change, o.ctx = c;
    int rc = q->conversation_id ? serve_conversation_begin(s, c, &o, err) : 0;
    if (!rc) rc = sl_scheduler_add(s->scheduler, &o, &c->job, err);
    if (rc)
        serve_conversation_end(s, c);
    else
        r->n_added++;
    return rc;
}

static void add_job(serve_server *s, serve_request *r) {
    sl_error why;
    int rc = serve_add_job(s, r, &why);
    serve_ranks_note(s, SERVE_RANKS_ADD, r, rc);
    if (rc) serve_answer_fail(s, r, &why);
}

// Hands answers to the scheduler: as many as it can run, and so many that wait there for their pages.
static void add_jobs(serve_server *s) {
    int n_running = 0;
    for (int i = 0; i < s->n_active; i++) n_running += s->active[i]->n_added - s->active[i]->n_ended;
    for (int i = 0; i < s->n_active && n_running < 2 * s->n_sequences; i++) {
        serve_request *r = s->active[i];
        for (; !r->is_done && r->n_added < r->n_choices && n_running < 2 * s->n_sequences; n_running++) add_job(s, r);
    }
}

void serve_cancel(serve_request *r) {
    for (int i = 0; i < r->n_added; i++)
        if (r->choices[i].job) sl_job_cancel(r->choices[i].job);
}

static void cancel_gone(serve_server *s) {
    for (int i = 0; i < s->n_active; i++) {
        serve_request *r = s->active[i];
        r->is_done |= http_gone(r->x);
        if (!r->is_done || r->is_cancelled) continue;
        r->is_cancelled = 1; // a request that is done gets no further job
        serve_cancel(r);
        if (r->n_ended < r->n_added) serve_ranks_note(s, SERVE_RANKS_CANCEL, r, 0);
    }
}

static int is_over(const serve_request *r) {
    return r->is_done && r->n_ended == r->n_added;
}

static void free_job(serve_server *s, serve_choice *c) {
    sl_job_free(c->job);
    c->job = NULL;
    serve_conversation_end(s, c);
}

static void free_request(serve_server *s, serve_request *r) {
    if (r->x) serve_ranks_note(s, SERVE_RANKS_FREE, r, 0);
    for (int i = 0; i < r->n_added; i++) free_job(s, &r->choices[i]);
    serve_request_free(s, r);
}

void serve_forget(serve_server *s, serve_request *r) {
    int at = 0;
    while (s->active[at] != r) at++;
    memmove(s->active + at, s->active + at + 1, (size_t)(--s->n_active - at) * sizeof *s->active);
    free_request(s, r);
}

static void free_ended(serve_server *s, serve_request *r) {
    for (int i = 0; i < r->n_added; i++)
        if (r->choices[i].job && r->choices[i].is_ended) free_job(s, &r->choices[i]);
}

void serve_sweep(serve_server *s) {
    int n = 0;
    for (int i = 0; i < s->n_active; i++) {
        serve_request *r = s->active[i];
        free_ended(s, r);
        if (is_over(r))
            free_request(s, r);
        else
            s->active[n++] = r;
    }
    s->n_active = n;
}

// ---- what /metrics and /slots show ----

static void show_slot(serve_slot *slot, const serve_choice *c) {
    *slot = (serve_slot){.choice = c->index,
                         .state = sl_job_state_of(c->job),
                         .n_prompt = sl_job_n_prompt(c->job),
                         .n_done = sl_job_n_done(c->job),
                         .n_cached = sl_job_n_cached(c->job),
                         .n_generated = sl_stream_result(sl_job_stream(c->job)).n_generated};
    memcpy(slot->id, c->request->id, sizeof slot->id);
}

static int n_held(serve_server *s) { // pages of the running answers
    int n = 0;
    for (int i = 0; i < s->n_sequences; i++)
        if (s->running[i]) s->held[n++] = sl_job_session(s->running[i]->job);
    return sl_sessions_n_pages(s->held, n);
}

static void show(serve_server *s) {
    sl_scheduler_stats now = sl_scheduler_stats_of(s->scheduler);
    int held = n_held(s);
    pthread_mutex_lock(&s->lock);
    const sl_scheduler_stats *before = &s->metrics.scheduler;
    double n_tokens = (double)(now.prompt_tokens - before->prompt_tokens + now.generated_tokens - before->generated_tokens);
    if (n_tokens > 0) serve_observe(&s->metrics, SERVE_STEP_TOKENS, n_tokens);
    s->metrics.scheduler = now;
    s->metrics.n_held = held;
    s->n_waiting = n_waiting(s);
    for (int i = 0; i < s->n_sequences; i++) {
        s->slots[i] = (serve_slot){0};
        if (s->running[i]) show_slot(&s->slots[i], s->running[i]);
    }
    pthread_mutex_unlock(&s->lock);
}

// ---- the loop ----

enum { BEGIN_AFTER = 5000 }; // ms, after which a waiting stream gets its headers, so that comments can keep it alive

static void keep_alive(serve_server *s) {
    double now = sl_now_ms();
    for (int i = 0; i < s->n_active; i++) {
        serve_request *r = s->active[i];
        if (r->api.stream && !r->is_begun && now - r->arrived > BEGIN_AFTER) serve_answer_begin(s, r);
        serve_keep_alive(s, r);
    }
}

// 1: the drain is over, or its time is.
static int has_drained(const serve_server *s) {
    if (atomic_load(&s->state) != SERVE_DRAINING) return 0;
    return !atomic_load(&s->n_requests) || sl_now_ms() > atomic_load(&s->deadline);
}

void serve_free_all(serve_server *s) {
    for (int i = 0; i < s->n_active; i++) free_request(s, s->active[i]);
    s->n_active = 0;
}

int serve_infer(serve_server *s, sl_error *err) {
    int rc = 0;
    while (!has_drained(s)) {
        take_new(s);
        cancel_gone(s);
        add_jobs(s);
        if ((rc = serve_ranks_step(s, err))) break;
        cancel_gone(s); // ends the jobs of complete answers without another step
        serve_sweep(s);
        show(s);
        keep_alive(s);
    }
    serve_free_all(s); // the connections of these answers are cut
    return rc ? rc : serve_ranks_end(s, err);
}
