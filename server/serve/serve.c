// server/serve/serve.c - the life of the server; see serve.h.
#include "server/serve/serve_internal.h"
#include "base/clock.h"
#include "engine/guide.h"

#include <stdlib.h>
#include <string.h>
#include <time.h>

static int new_server(const serve_options *o, serve_server **out, sl_error *err) {
    serve_server *s = calloc(1, sizeof *s);
    char *name = strdup(o->model);
    if (!s || !name) {
        free(s);
        free(name);
        return sl_fail(err, SL_ERR_MEMORY, "server: out of memory");
    }
    *s = (serve_server){.options = *o, .name = name};
    serve_queue_init(&s->to_prepare);
    serve_queue_init(&s->to_infer);
    pthread_mutex_init(&s->lock, NULL);
    *out = s;
    return 0;
}

int serve_open(const serve_options *o, serve_server **out, sl_error *err) {
    static const char *const open_paths[] = {"/", "/health", "/v1/health", "/ping", "/v1/models"};
    serve_server *s;
    int rc = new_server(o, &s, err);
    if (rc) return rc;
    const http_handler handler = {.ctx = s, .request = serve_on_request, .error = serve_error_body};
    http_options http = o->http;
    http.open_paths = open_paths;
    http.n_open_paths = sizeof open_paths / sizeof *open_paths;
    rc = http_server_new(&http, &handler, &s->http, err);
    if (rc) {
        serve_free(s);
        return rc;
    }
    *out = s;
    return 0;
}

int serve_port(const serve_server *s) {
    return http_server_port(s->http);
}

// Requests that came while a drain ended.
static void free_all(serve_server *s, serve_queue *q) {
    for (serve_request *r = serve_take_all(q, 0), *next; r; r = next) {
        next = r->next;
        serve_request_free(s, r);
    }
}

void serve_free(serve_server *s) {
    if (!s) return;
    http_server_free(s->http);
    free_all(s, &s->to_prepare);
    free_all(s, &s->to_infer);
    serve_queue_destroy(&s->to_prepare);
    serve_queue_destroy(&s->to_infer);
    pthread_mutex_destroy(&s->lock);
    sl_text_free(&s->out);
    sl_text_free(&s->ranks.notes);
    free(s->active);
    free(s->slots);
    free(s->running);
    free(s->held);
    for (int i = 0; s->prompts && i < s->n_sequences; i++) sl_cached_prompt_free(&s->prompts[i]);
    free(s->prompts);
    free(s->props);
    free(s->models);
    free(s->tokenizer_info);
    free(s->version);
    free(s->name);
    free(s);
}

int serve_drain(serve_server *s) {
    int running = SERVE_RUNNING;
    atomic_store(&s->deadline, sl_now_ms() + 1e3 * s->options.drain_timeout);
    if (!atomic_compare_exchange_strong(&s->state, &running, SERVE_DRAINING)) return running == SERVE_DRAINING;
    pthread_mutex_lock(&s->to_infer.lock);
    s->to_infer.is_woken = 1;
    pthread_cond_broadcast(&s->to_infer.filled);
    pthread_mutex_unlock(&s->to_infer.lock);
    return 1;
}

// Makes what the first answer with a grammar would wait for: the tree of the tokens' bytes.
static int warm_grammars(sl_engine *e, sl_error *err) {
    sl_grammar *any = NULL;
    sl_guide *guide = NULL;
    int rc = sl_grammar_new_json_object(&any, err);
    if (!rc) rc = sl_guide_new(e, any, NULL, &guide, err);
    sl_guide_free(guide);
    sl_grammar_free(any);
    return rc;
}

static int start(serve_server *s, const serve_model *m, sl_error *err) {
    const sl_scheduler_options o = {.step_tokens = s->options.step_tokens,
                                    .no_prefixes = s->options.no_prefixes,
                                    .give_up = serve_conversation_give_up,
                                    .ctx = s};
    s->model = m;
    s->n_ctx = sl_engine_n_ctx(m->engine);
    s->created = (long long)time(NULL);
    size_t n = 0;
    const char *text = m->chat ? sl_chat_text(m->chat, &n) : NULL;
    s->calls = text ? api_call_format_of(text, n) : API_CALLS_NONE;
    s->reasons = text && api_template_reasons(text, n);
    int rc = sl_scheduler_new(m->engine, &o, &s->scheduler, err);
    if (!rc) rc = sl_scheduler_warm_up(s->scheduler, m->draft != NULL, err);
    if (!rc) s->metrics.scheduler = sl_scheduler_stats_of(s->scheduler);
    s->n_sequences = m->n_sequences;
    s->metrics.n_draft = sl_engine_n_draft(m->engine);
    s->slots = calloc((size_t)s->n_sequences, sizeof *s->slots);
    s->running = calloc((size_t)s->n_sequences, sizeof *s->running);
    s->held = calloc((size_t)s->n_sequences, sizeof *s->held);
    s->prompts = calloc((size_t)s->n_sequences, sizeof *s->prompts);
    s->conversations = serve_conversations_new(s->options.keep_conversations);
    if (!rc && !(s->slots && s->running && s->held && s->prompts && s->conversations))
        rc = sl_fail(err, SL_ERR_MEMORY, "server: out of memory");
    if (!rc && sl_model_tokenizer(m->model)) rc = warm_grammars(m->engine, err);
    return rc ? rc : serve_info_make(s, err);
}

static void stop(serve_server *s) {
    serve_conversations_free(s);
    sl_scheduler_free(s->scheduler);
    s->scheduler = NULL;
}

int serve_run(serve_server *s, const serve_model *m, sl_error *err) {
    int rc = start(s, m, err);
    if (!rc && pthread_create(&s->preparing, NULL, serve_prepare_all, s))
        rc = sl_fail(err, SL_ERR_MEMORY, "server: cannot start a thread");
    if (!rc) {
        atomic_store(&s->state, SERVE_RUNNING);
        if (m->ready) m->ready(m->ctx);
        rc = serve_infer(s, err);
        serve_queue_close(&s->to_prepare);
        pthread_join(s->preparing, NULL);
        free_all(s, &s->to_infer);
        double left = (atomic_load(&s->deadline) - sl_now_ms()) / 1e3;
        if (!rc) http_server_drain(s->http);
        if (!rc) http_server_wait(s->http, left > 1 ? left : 1);
    }
    stop(s);
    return rc;
}

int serve_follow(const serve_options *o, const serve_model *m, sl_error *err) {
    serve_server *s;
    int rc = new_server(o, &s, err);
    if (rc) return rc;
    rc = start(s, m, err);
    if (!rc) rc = serve_ranks_follow(s, err);
    stop(s);
    serve_free(s);
    return rc;
}
