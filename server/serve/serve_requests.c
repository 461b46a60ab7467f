// server/serve/serve_requests.c - requests, their queues between the threads, and small answers.
#include "server/serve/serve_internal.h"
#include "base/clock.h"

#include <math.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>

// ---- queues ----

void serve_queue_init(serve_queue *q) {
    pthread_condattr_t attr;
    pthread_mutex_init(&q->lock, NULL);
    pthread_condattr_init(&attr);
    pthread_condattr_setclock(&attr, CLOCK_MONOTONIC);
    pthread_cond_init(&q->filled, &attr);
    pthread_condattr_destroy(&attr);
}

void serve_queue_destroy(serve_queue *q) {
    pthread_mutex_destroy(&q->lock);
    pthread_cond_destroy(&q->filled);
}

void serve_push(serve_queue *q, serve_request *r) {
    r->next = NULL;
    pthread_mutex_lock(&q->lock);
    if (q->last)
        q->last->next = r;
    else
        q->first = r;
    q->last = r;
    pthread_cond_signal(&q->filled);
    pthread_mutex_unlock(&q->lock);
}

serve_request *serve_take_all(serve_queue *q, double wait_ms) {
    double until = sl_now_ms() + wait_ms;
    const struct timespec at = {(time_t)(until / 1e3), (long)(fmod(until, 1e3) * 1e6)};
    pthread_mutex_lock(&q->lock);
    for (int late = 0; !q->first && !q->is_woken && !q->is_closed && !late && wait_ms != 0;)
        late = wait_ms < 0 ? pthread_cond_wait(&q->filled, &q->lock) : pthread_cond_timedwait(&q->filled, &q->lock, &at);
    serve_request *first = q->first;
    q->first = q->last = NULL;
    q->is_woken = 0;
    pthread_mutex_unlock(&q->lock);
    return first;
}

void serve_queue_close(serve_queue *q) {
    pthread_mutex_lock(&q->lock);
    q->is_closed = 1;
    pthread_cond_broadcast(&q->filled);
    pthread_mutex_unlock(&q->lock);
}

// ---- requests ----

int serve_request_name(serve_request *r, const char *given) {
    char id[SERVE_ID];
    size_t n = 0;
    for (; *given && n + 1 < sizeof id; given++)
        if (*given > ' ' && *given < 0x7f) id[n++] = *given;
    id[n] = 0;
    if (n) memcpy(r->id, id, n + 1);
    return n > 0;
}

static void set_id(serve_request *r, const char *given) {
    static const char digits[] = "0123456789abcdef";
    unsigned char bytes[12];
    if (given && serve_request_name(r, given)) return;
    if (getrandom(bytes, sizeof bytes, 0) != (ssize_t)sizeof bytes) memcpy(bytes, &r->number, sizeof r->number);
    for (size_t i = 0; i < sizeof bytes; i++) r->id[2 * i] = digits[bytes[i] >> 4], r->id[2 * i + 1] = digits[bytes[i] & 15];
}

serve_request *serve_request_new(serve_server *s, http_exchange *x, int endpoint) {
    serve_request *r = calloc(1, sizeof *r);
    if (!r) return NULL;
    *r = (serve_request){.x = x, .endpoint = endpoint, .arrived = sl_now_ms()};
    atomic_fetch_add(&s->n_requests, 1);
    if (!x) return r;
    if (getrandom(&r->number, sizeof r->number, 0) != (ssize_t)sizeof r->number) r->number = (uint64_t)(r->arrived * 1e6);
    set_id(r, http_request_of(x)->id);
    r->body = http_take_body(x, &r->n_body);
    atomic_fetch_add(&s->n_bytes, r->n_body);
    return r;
}

static void refuse(serve_server *s, http_exchange *x, int status, const char *why) {
    atomic_fetch_add(&s->n_refused, 1);
    http_fail(x, status, why);
}

serve_request *serve_hand_over(serve_server *s, http_exchange *x, int endpoint) {
    enum { PREPARED = 256 }; // requests beside those that may wait and run: they are read, or their client is gone
    if (atomic_load(&s->n_requests) >= s->options.max_waiting + s->n_sequences + PREPARED) {
        refuse(s, x, 429, "too many requests wait");
        return NULL;
    }
    if (atomic_load(&s->n_bytes) + http_request_of(x)->n_body > s->options.http.max_bodies) {
        refuse(s, x, 503, "the bodies of the requests are too large together");
        return NULL;
    }
    http_hold(x);
    serve_request *r = serve_request_new(s, x, endpoint);
    if (r) return r;
    http_fail(x, 503, "out of memory");
    http_release(x);
    return NULL;
}

const sl_attn_plan *serve_sparse_prefill(const serve_prompt *p) {
    return sl_attn_plan_is_dense(&p->plan.prefill) ? NULL : &p->plan.prefill;
}

void serve_plan_free(serve_plan *p) {
    sl_attn_plan_free(&p->attn);
    sl_attn_plan_free(&p->prefill);
    free(p->attn_text);
    free(p->prefill_text);
    *p = (serve_plan){0};
}

void serve_drop_body(serve_request *r) {
    free(r->body);
    r->body = NULL;
}

void serve_request_free(serve_server *s, serve_request *r) {
    serve_drop_body(r);
    for (int i = 0; i < r->n_prompts; i++) {
        sl_ids_free(&r->prompts[i].ids);
        sl_text_free(&r->prompts[i].text);
        serve_plan_free(&r->prompts[i].plan);
    }
    free(r->prompts);
    api_reply_free(r->reply);
    sl_grammar_free(r->grammar);
    api_request_free(&r->api);
    free((void *)r->sampling.bias);
    free(r->choices);
    free(r->slot.path);
    free(r->slot.salt);
    free(r->bits);
    if (r->x) http_release(r->x);
    if (r->x) atomic_fetch_sub(&s->n_bytes, r->n_body); // what was read from the body lived until now
    atomic_fetch_sub(&s->n_requests, 1);
    free(r);
}

// ---- small answers ----

void serve_reply_json(http_exchange *x, int status, json_t *v) {
    char *text = v ? json_dumps(v, JSON_COMPACT) : NULL;
    if (text)
        http_reply(x, status, "application/json", NULL, 0, text, strlen(text));
    else
        http_fail(x, 503, "out of memory");
    free(text);
    json_decref(v);
}

void serve_fail_status(http_exchange *x, int status, const char *fmt, ...) {
    char text[512];
    va_list args;
    va_start(args, fmt);
    vsnprintf(text, sizeof text, fmt, args);
    va_end(args);
    http_fail(x, status, text);
}

void serve_refuse(serve_request *r, const api_error *e) {
    static const http_field retry = {"Retry-After", "1"};
    char *text = NULL;
    json_t *v = api_error_json(e, api_is_messages(r->endpoint));
    if (v) text = json_dumps(v, JSON_COMPACT);
    json_decref(v);
    if (text) http_reply(r->x, e->status, "application/json", &retry, e->status == 429 || e->status == 503, text, strlen(text));
    free(text); // without memory, the release of the exchange answers with 500
}
