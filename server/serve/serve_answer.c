// server/serve/serve_answer.c - from the jobs of the scheduler to the bytes of an answer. All of it runs on the inference
// thread.
#include "server/serve/serve_internal.h"
#include "base/clock.h"
#include "engine/draft/draft_counts.h"
#include "engine/stream.h"

#include <math.h>
#include <string.h>

// ---- sending ----

// The client is gone, or too slow: the loop cancels the jobs.
static void lose(serve_request *r) {
    r->is_done = 1;
}

// Sends what was written to s->out.
static void flush(serve_server *s, serve_request *r) {
    if (!s->out.n) return;
    if (http_stream_send(r->x, s->out.data, s->out.n)) lose(r);
    r->sent = sl_now_ms();
    s->out.n = 0;
}

void serve_answer_begin(serve_server *s, serve_request *r) {
    static const http_field fields[] = {{"Cache-Control", "no-cache"}, {"X-Accel-Buffering", "no"}};
    sl_error why;
    if (r->is_begun || r->is_done) return;
    r->is_begun = 1;
    r->sent = sl_now_ms();
    if (r->api.stream && http_stream_begin(r->x, 200, api_reply_type(r->reply), fields, 2)) {
        lose(r);
        return;
    }
    if (api_reply_begin(r->reply, &s->out, &why)) lose(r);
    flush(s, r);
}

void serve_answer_fail(serve_server *s, serve_request *r, const sl_error *of) {
    api_error e;
    sl_error why;
    if (r->is_done) return;
    r->is_done = 1;
    s->out.n = 0;
    api_fail_of(&e, of);
    if (!r->is_begun || !r->api.stream) {
        serve_refuse(r, &e);
        return;
    }
    if (!api_reply_error(r->reply, &e, &s->out, &why) && !http_stream_send(r->x, s->out.data, s->out.n)) http_stream_end(r->x);
    s->out.n = 0;
}

void serve_keep_alive(serve_server *s, serve_request *r) {
    sl_error why;
    if (r->is_done || !r->is_begun || !r->api.stream) return;
    if (sl_now_ms() - r->sent < 1e3 * s->options.http.sse_interval / 2) return;
    if (api_reply_keep_alive(r->reply, &s->out, &why)) lose(r);
    flush(s, r);
}

// ---- pieces ----

static void write_piece(serve_server *s, serve_request *r, const api_piece *piece) {
    sl_error why;
    if (api_reply_piece(r->reply, piece, &s->out, &why))
        serve_answer_fail(s, r, &why);
    else if (r->api.stream)
        flush(s, r);
}

// The prompt, where the answer begins with it.
static void write_echo(serve_server *s, serve_choice *c) {
    serve_request *r = c->request;
    const serve_prompt *p = &r->prompts[c->index / r->api.n];
    serve_tokens tokens = {0};
    sl_error why;
    int n, rc = 0;
    const sl_token_logprobs *l = sl_job_prompt_logprobs(c->job, &n);
    c->is_echoed = 1;
    if (r->api.n_logprobs >= 0)
        rc = serve_tokens_prompt(sl_model_tokenizer(s->model->model), p->ids.data, (int)p->ids.n, l, &p->text, &tokens, &why);
    if (rc) {
        serve_answer_fail(s, r, &why);
    } else {
        const api_piece piece = {.choice = c->index,
                                 .text = p->text.data ? p->text.data : "",
                                 .n = p->text.n,
                                 .tokens = tokens.tokens,
                                 .n_tokens = tokens.n};
        write_piece(s, r, &piece);
    }
    serve_tokens_free(&tokens);
}

// ---- attention ----

// Adds what the attention of a job has read, and what its drafts came to.
static void add_work(api_attention *a, const sl_job *job) {
    sl_attention_work w, *to = &a->work;
    const sl_attn_stats *stats = sl_job_work(job, &w);
    const sl_draft_counts drafts = sl_stream_draft_counts(sl_job_stream(job));
    sl_draft_counts_add(&a->drafts, &drafts);
    a->no_work |= !stats;
    if (!stats) return;
    double sum = (to->layer_steps ? to->stated_error * (double)to->layer_steps : 0) +
                 (w.layer_steps ? w.stated_error * (double)w.layer_steps : 0);
    a->rows += stats->v_rows, a->dense_rows += stats->dense_v_rows;
    to->bytes += w.bytes, to->dense_bytes += w.dense_bytes;
    to->heads += w.heads, to->exact_heads += w.exact_heads;
    to->layer_steps += w.layer_steps, to->certified += w.certified;
    if (to->layer_steps) to->stated_error = sum / (double)to->layer_steps;
    if (w.layer_steps && w.stated_error_max > to->stated_error_max) to->stated_error_max = w.stated_error_max;
}

// Of an answer that is not complete: of the choices that have ended, and of the running ones so far.
static void set_attention_so_far(serve_request *r) {
    api_attention a = r->attention;
    for (int i = 0; i < r->n_added; i++)
        if (r->choices[i].job && !r->choices[i].is_ended) add_work(&a, r->choices[i].job);
    a.n_answers = 0; // their logits are not the last ones
    api_reply_set_attention(r->reply, &a);
}

// ---- the text of a step ----

// What the last step has added.
static void write_step(serve_server *s, serve_choice *c) {
    serve_request *r = c->request;
    const sl_stream *stream = sl_job_stream(c->job);
    const sl_generated now = sl_stream_result(stream);
    int n, has_ended = sl_job_state_of(c->job) == SL_JOB_ENDED, rc = 0;
    const sl_token_logprobs *l = sl_stream_logprobs(stream, &n);
    serve_tokens tokens = {0};
    sl_error why;
    // An end token has no text. /v1/completions lists it, because lm-eval counts on an entry for each sampled token.
    if (has_ended && r->api.endpoint != API_COMPLETIONS && n > now.n_generated) n = now.n_generated;
    if (n > c->n_logprobs)
        rc = serve_tokens_generated(sl_model_tokenizer(s->model->model), l, c->n_logprobs, n, r->at_start, &tokens, &why);
    api_piece piece = {.choice = c->index,
                       .n_generated = now.n_generated - c->n_tokens,
                       .tokens = tokens.tokens,
                       .n_tokens = tokens.n,
                       .finished = has_ended,
                       .stop = r->api.max_tokens == 0 ? SL_STOP_LENGTH : now.stop,
                       .stop_string = sl_stream_stop_string(stream)};
    piece.text = sl_stream_text(stream, &piece.n);
    if (r->api.continuous_usage) set_attention_so_far(r);
    c->n_tokens = now.n_generated;
    c->n_logprobs = n > c->n_logprobs ? n : c->n_logprobs;
    if (rc)
        serve_answer_fail(s, r, &why);
    else
        write_piece(s, r, &piece);
    serve_tokens_free(&tokens);
}

// ---- the end ----

static void measure_work(serve_server *s, const serve_choice *c) {
    api_attention a = {0};
    serve_metrics *m = &s->metrics;
    add_work(&a, c->job);
    pthread_mutex_lock(&s->lock);
    sl_draft_counts_add(&m->drafts, &a.drafts);
    m->rows += a.rows, m->dense_rows += a.dense_rows;
    m->bytes += a.work.bytes, m->dense_bytes += a.work.dense_bytes;
    m->heads += a.work.heads, m->exact_heads += a.work.exact_heads;
    m->layer_steps += a.work.layer_steps, m->certified += a.work.certified;
    m->stated_error += a.work.stated_error * (double)a.work.layer_steps;
    if (a.work.stated_error_max > m->stated_error_max) m->stated_error_max = a.work.stated_error_max;
    pthread_mutex_unlock(&s->lock);
}

static void measure_end(serve_server *s, const serve_choice *c) {
    const serve_request *r = c->request;
    const sl_job_times t = sl_job_times_of(c->job);
    const sl_generated made = sl_stream_result(sl_job_stream(c->job));
    int is_long = r->api.max_tokens == 0 || made.stop == SL_STOP_LENGTH || made.stop == SL_STOP_CONTEXT;
    serve_reason reason = sl_job_error(c->job)->code ? SERVE_ERROR
                          : r->is_done               ? SERVE_ABORT
                          : is_long                  ? SERVE_LENGTH
                                                     : SERVE_STOP;
    pthread_mutex_lock(&s->lock);
    serve_metrics *m = &s->metrics;
    m->reasons[reason]++;
    serve_observe(m, SERVE_E2E, (sl_now_ms() - r->arrived) / 1e3);
    serve_observe(m, SERVE_PROMPT_TOKENS, sl_job_n_prompt(c->job));
    serve_observe(m, SERVE_ANSWER_TOKENS, made.n_generated);
    if (t.admitted) serve_observe(m, SERVE_QUEUE, (t.admitted - r->arrived) / 1e3);
    if (t.first) {
        serve_observe(m, SERVE_PREFILL, (t.first - t.admitted) / 1e3);
        serve_observe(m, SERVE_DECODE, (t.last - t.first) / 1e3);
    }
    if (made.n_generated > 1) serve_observe(m, SERVE_TOKEN_MEAN, (t.last - t.first) / 1e3 / (made.n_generated - 1));
    pthread_mutex_unlock(&s->lock);
}

// The tokens of a step with drafts share its time. Those of the first step come together.
static void measure_tokens(serve_server *s, serve_choice *c) {
    const sl_job_times t = sl_job_times_of(c->job);
    int n_new = sl_stream_result(sl_job_stream(c->job)).n_generated - c->n_tokens;
    if (n_new < 1) n_new = 1; // n_generated does not count an end token
    if (!t.last || t.last == c->last_token) return;
    pthread_mutex_lock(&s->lock);
    double gap = c->last_token ? (t.last - c->last_token) / 1e3 / n_new : 0;
    if (!c->last_token) serve_observe(&s->metrics, SERVE_TTFT, (t.first - c->request->arrived) / 1e3);
    for (int i = !c->last_token; i < n_new; i++) serve_observe(&s->metrics, SERVE_TOKEN_GAP, gap);
    pthread_mutex_unlock(&s->lock);
    c->last_token = t.last;
}

// All choices have ended.
static void end_answer(serve_server *s, serve_request *r) {
    api_attention *a = &r->attention;
    sl_error why;
    a->answers = r->bits, a->n_answers = r->n_choices;
    api_reply_set_attention(r->reply, a);
    if (api_reply_end(r->reply, &s->out, &why)) {
        serve_answer_fail(s, r, &why);
        return;
    }
    if (r->api.stream) {
        flush(s, r);
        if (!r->is_done) http_stream_end(r->x);
    } else {
        http_reply(r->x, 200, api_reply_type(r->reply), NULL, 0, s->out.data, s->out.n);
    }
    s->out.n = 0;
    r->is_done = 1;
}

// Counts the prompt tokens that the first answer of each prompt took from the cache.
static void count_cached(serve_request *r) {
    int n = 0;
    for (int i = 0; i < r->n_added; i += r->api.n) n += r->choices[i].n_cached;
    api_reply_set_prompt(r->reply, r->n_prompt_tokens, n);
}

static void end_choice(serve_server *s, serve_choice *c) {
    serve_request *r = c->request;
    c->is_ended = 1;
    r->n_ended++;
    serve_slots_end(s, c);
    measure_end(s, c);
    measure_work(s, c);
    r->bits[c->index].logits_hash = sl_job_logits_hash(c->job);
    add_work(&r->attention, c->job);
    if (!r->is_done && r->n_ended == r->n_choices) end_answer(s, r);
}

void serve_on_change(void *choice, sl_job *job) {
    serve_choice *c = choice;
    serve_request *r = c->request;
    serve_server *s = r->server;
    sl_job_state state = sl_job_state_of(job);
    const sl_error *why = sl_job_error(job);
    c->job = job;
    if (r->api.max_tokens == 0 && state == SL_JOB_DECODES) sl_job_cancel(job);
    if (!r->x) { // rank 0 answers
        if (state == SL_JOB_ENDED) c->is_ended = 1, r->n_ended++;
        return;
    }
    if (state != SL_JOB_WAITS && state != SL_JOB_ENDED) serve_slots_begin(s, c);
    measure_tokens(s, c);
    if (!r->is_done && why->code) serve_answer_fail(s, r, why);
    if (!r->is_done) {
        c->n_cached = sl_job_n_cached(job);
        count_cached(r);
        serve_answer_begin(s, r);
    }
    int is_read = state == SL_JOB_DECODES || state == SL_JOB_ENDED; // the whole prompt
    if (state == SL_JOB_DECODES) serve_slots_remember(s, c);
    if (!r->is_done && r->api.echo && !c->is_echoed && is_read) write_echo(s, c);
    if (!r->is_done && is_read) write_step(s, c);
    if (state == SL_JOB_ENDED) end_choice(s, c);
}
