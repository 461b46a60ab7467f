// engine/stream.c - sl_stream: one generation of text. Streams advance together, by a token, or by several with drafts.
#include "engine/stream.h"
#include "base/clock.h"
#include "engine/draft/draft.h"
#include "engine/engine_internal.h"
#include "engine/logprobs.h"
#include "engine/stopper.h"

#include <stdlib.h>
#include <string.h>

struct sl_stream {
    sl_session *session;
    sl_sampler *sampler;
    sl_stopper *stopper; // NULL: no stop strings
    sl_guide *guide;     // NULL: no grammar
    sl_plan *plan;       // attention of the decode steps; NULL: the engine's
    sl_drafter *drafter; // NULL: no drafts
    int max_tokens, n_logprobs;
    int32_t end;                    // ends a generation, besides the model's end tokens; -1: none
    int32_t named[SL_STREAM_NAMED]; // [n_named] special tokens that are written as text
    int n_named;
    sl_progress progress;
    // ---- the generation that runs, or ran last ----
    sl_generated out;
    int is_running;
    sl_ids ids; // sampled tokens, an end token included
    sl_logprobs logprobs;
    sl_attn_stats work;     // of its decode steps
    sl_attn_stats all_work; // sl_stream_attn_stats of ranks that share the model
    // The token behind its last one, if the last pass has sampled it too: until the session gets other logits
    struct {
        int32_t id; // -1: none
        int n_tokens;
        uint32_t n_logits; // of the session
    } next;
    sl_detok_stream detok;
    sl_text piece;  // text of the last token
    sl_text shown;  // text that the last step completed
    sl_error error; // the reason of SL_STOP_ERROR
};

// ---- life ----

static const sl_model *model_of(const sl_stream *s) {
    return s->session->engine->model;
}

int sl_stream_set_options(sl_stream *s, const sl_generation *o, sl_error *err) {
    sl_sampler *sampler = NULL;
    sl_stopper *stopper = NULL;
    sl_guide *guide = NULL;
    sl_plan *plan = NULL;
    sl_drafter *drafter = NULL;
    if (o->max_tokens < 0) return sl_fail(err, SL_ERR_ARG, "{max_tokens} %d: expected 0 (no limit) or more", o->max_tokens);
    if (o->n_stop < 0) return sl_fail(err, SL_ERR_ARG, "a list of %d stop strings: expected 0 or more", o->n_stop);
    if (o->n_logprobs < -1 || o->n_logprobs > SL_MAX_LOGPROBS)
        return sl_fail(err, SL_ERR_ARG, "n_logprobs %d: expected -1 (none) to %d", o->n_logprobs, SL_MAX_LOGPROBS);
    if (o->n_stop && !model_of(s)->tokenizer)
        return sl_fail(err, SL_ERR_ARG, "{stop}: expected none, because the model has no tokenizer");
    if (o->grammar_after && !o->grammar) return sl_fail(err, SL_ERR_ARG, "{grammar_after}: expected a grammar, found none");
    if (s->is_running) return sl_fail(err, SL_ERR_ARG, "options of a stream that runs: call sl_stream_end first");
    const sl_sampling otherwise = sl_sampling_default();
    sl_sampling sampling = o->sampling;
    sl_sampling_complete(model_of(s), &otherwise, &sampling);
    int rc = sl_sampler_new(&sampling, model_of(s)->config.n_vocab, &sampler, err);
    if (!rc && o->n_stop) rc = sl_stopper_new(o->stop, o->n_stop, &stopper, err);
    if (!rc && o->grammar) rc = sl_guide_new(s->session->engine, o->grammar, o->grammar_after, &guide, err);
    if (!rc && o->attn) rc = sl_plan_parse(s->session->engine, o->attn, 0, &plan, err);
    if (!rc && o->draft) rc = sl_drafter_new(s->session->engine, o->draft, &drafter, err);
    if (rc) {
        sl_plan_drop(s->session->engine, plan);
        sl_guide_free(guide);
        sl_stopper_free(stopper);
        sl_sampler_free(sampler);
        return rc;
    }
    sl_sampler_free(s->sampler);
    sl_stopper_free(s->stopper);
    sl_guide_free(s->guide);
    sl_plan_drop(s->session->engine, s->plan);
    sl_drafter_free(s->drafter);
    s->sampler = sampler, s->stopper = stopper, s->guide = guide, s->plan = plan, s->drafter = drafter;
    s->progress = o->progress;
    sl_stream_set_limits(s, o->max_tokens, o->n_logprobs);
    return 0;
}

int sl_stream_new(sl_session *session, const sl_generation *options, sl_stream **out, sl_error *err) {
    const sl_generation unset = sl_generation_default();
    sl_stream *s = calloc(1, sizeof *s);
    if (!s) return sl_fail(err, SL_ERR_MEMORY, "stream: out of memory");
    s->session = session;
    session->n_users++;
    s->end = -1;
    int rc = sl_stream_set_options(s, options ? options : &unset, err);
    if (rc) {
        sl_stream_free(s);
        return rc;
    }
    *out = s;
    return 0;
}

static void stop(sl_stream *s, sl_stop reason) {
    s->out.stop = reason;
    if (s->is_running) {
        s->session->stream = NULL, s->session->work = NULL;
        sl_session_use_plan(s->session, NULL);
    }
    s->is_running = 0;
}

void sl_stream_free(sl_stream *s) {
    if (!s) return;
    stop(s, SL_STOP_CALLER);
    sl_stopper_free(s->stopper);
    sl_guide_free(s->guide);
    sl_sampler_free(s->sampler);
    sl_logprobs_free(&s->logprobs);
    sl_ids_free(&s->ids);
    sl_text_free(&s->piece);
    sl_text_free(&s->shown);
    sl_plan_drop(s->session->engine, s->plan);
    sl_drafter_free(s->drafter);
    sl_session_free(s->session);
    free(s);
}

void sl_stream_set_end(sl_stream *s, int32_t id) {
    s->end = id;
}

int sl_stream_set_named(sl_stream *s, const int32_t *ids, int n, sl_error *err) {
    if (n < 0 || n > SL_STREAM_NAMED)
        return sl_fail(err, SL_ERR_ARG, "%d special tokens as text: expected at most %d", n, SL_STREAM_NAMED);
    for (int i = 0; i < n; i++) s->named[i] = ids[i];
    s->n_named = n;
    return 0;
}

const char *sl_stream_stop_string(const sl_stream *s) {
    return s->stopper ? sl_stopper_found(s->stopper) : NULL;
}

void sl_stream_set_limits(sl_stream *s, int max_tokens, int n_logprobs) {
    s->max_tokens = max_tokens;
    s->n_logprobs = n_logprobs;
}

int sl_stream_set_plan(sl_stream *s, const sl_attn_plan *methods, sl_error *err) {
    sl_engine *e = s->session->engine;
    sl_plan *plan;
    int rc = sl_engine_enter(e, err);
    if (rc) return rc;
    rc = sl_plan_take(e, methods, 0, NULL, &plan, err);
    if (!rc) {
        sl_plan_drop(e, s->plan);
        s->plan = plan;
    }
    sl_engine_leave(e);
    return rc;
}

void sl_stream_use_plan(sl_stream *s) {
    sl_session_use_plan(s->session, s->plan);
}

// ---- what a step has made ----

int sl_stream_is_running(const sl_stream *s) {
    return s->is_running;
}

const char *sl_stream_text(const sl_stream *s, size_t *n) {
    *n = s->shown.n;
    return s->shown.n ? s->shown.data : "";
}

const sl_error *sl_stream_error(const sl_stream *s) {
    return &s->error;
}

sl_generated sl_stream_result(const sl_stream *s) {
    return s->out;
}

const int32_t *sl_stream_ids(const sl_stream *s, int *n) {
    *n = (int)s->ids.n;
    return s->ids.data;
}

const sl_token_logprobs *sl_stream_logprobs(const sl_stream *s, int *n) {
    *n = s->logprobs.n;
    return s->logprobs.tokens;
}

sl_draft_counts sl_stream_draft_counts(const sl_stream *s) {
    return s->drafter ? *sl_drafter_counts(s->drafter) : (sl_draft_counts){0};
}

int sl_stream_n_more(const sl_stream *s) {
    int n = (int)s->ids.n, is_ended = n && sl_model_is_eos(model_of(s), s->ids.data[n - 1]);
    if (!s->drafter) return 0;
    return is_ended ? n - 1 - s->out.n_steps : (int)sl_drafter_counts(s->drafter)->n_accepted_tokens;
}

void sl_stream_describe_drafts(const sl_stream *s, char *buf, size_t size) {
    if (size) *buf = 0;
    if (s->drafter) sl_drafter_describe(s->drafter, buf, size);
}

const sl_attn_stats *sl_stream_attn_stats(const sl_stream *s) {
    const sl_engine *e = s->session->engine;
    return e->device.backend->is_device ? NULL : sl_engine_sum_stats(e, &s->work, &((sl_stream *)s)->all_work);
}

int sl_stream_attention_work(const sl_stream *s, sl_attention_work *out, sl_error *err) {
    const sl_attn_stats *stats = sl_stream_attn_stats(s);
    if (!stats)
        return sl_fail(err, SL_ERR_UNSUPPORTED, "a GPU counts the attention of a whole batch; use sl_engine_attention_work");
    *out = sl_attention_work_of(stats);
    return 0;
}

// ---- a generation ----

int sl_stream_begin(sl_stream *s, int at_start, sl_error *err) {
    sl_session *session = s->session;
    int rc = session->stream ? sl_fail(err, SL_ERR_ARG, "sequence %u: a stream runs already", session->sequence) : 0;
    if (rc) return rc;
    sl_sampler_truncate(s->sampler, 0);
    for (int i = 0; !rc && i < session->kv.n_tokens; i++) // a random row has no token
        if (session->ids[i] >= 0) rc = sl_sampler_accept(s->sampler, session->ids[i], err);
    if (!rc && s->guide) {
        sl_guide_begin(s->guide);
        rc = sl_guide_limit(s->guide, s->sampler, s->end, err);
    }
    if (rc) return rc;
    s->out = (sl_generated){.n_prompt = session->kv.n_tokens};
    s->detok = sl_detok_begin(model_of(s)->tokenizer, 0, at_start);
    s->ids.n = s->piece.n = s->shown.n = 0;
    s->next.id = -1;
    sl_logprobs_begin(&s->logprobs, s->n_logprobs, model_of(s)->config.n_vocab);
    if (s->stopper) sl_stopper_reset(s->stopper);
    sl_session_use_plan(session, s->plan);
    if (s->drafter && (rc = sl_drafter_begin(s->drafter, session, err))) {
        sl_session_use_plan(session, NULL);
        return rc;
    }
    s->work = (sl_attn_stats){0};
    s->is_running = 1;
    session->stream = s, session->work = &s->work;
    return 0;
}

// Adds the text that the last token completed to s->shown. Stops at a stop string.
static int show(sl_stream *s, sl_error *err) {
    const char *text = s->piece.data;
    size_t n = s->piece.n;
    s->piece.n = 0;
    int found = n && s->stopper ? sl_stopper_feed(s->stopper, text, n, &text, &n, err) : 0;
    if (found < 0) return found;
    if (found) stop(s, SL_STOP_STRING);
    return n ? sl_text_append(&s->shown, text, n, err) : 0;
}

// The rest of the text at the end: an unfinished character, and text that looked like the beginning of a stop string.
static int show_rest(sl_stream *s, sl_error *err) {
    const char *text;
    size_t n;
    if (s->out.stop == SL_STOP_STRING) return 0;
    int rc = s->detok.tok ? sl_detok_end(&s->detok, &s->piece, err) : 0;
    if (!rc) rc = show(s, err);
    if (rc || !s->stopper || s->out.stop == SL_STOP_STRING) return rc;
    sl_stopper_flush(s->stopper, &text, &n);
    return n ? sl_text_append(&s->shown, text, n, err) : 0;
}

int sl_stream_stop(sl_stream *s, sl_stop reason, sl_error *err) {
    if (!s->is_running) return 0;
    s->shown.n = 0;
    stop(s, reason);
    return show_rest(s, err);
}

int sl_stream_end(sl_stream *s, sl_error *err) {
    return sl_stream_stop(s, SL_STOP_CALLER, err);
}

// 1: the next token is the last one, so that the step of this token is not needed. *reason: why
static int ends_with_next(const sl_stream *s, sl_stop *reason) {
    *reason = s->out.n_generated + 1 == s->max_tokens ? SL_STOP_LENGTH : SL_STOP_CONTEXT;
    return *reason == SL_STOP_LENGTH || s->session->kv.n_tokens >= s->session->engine->n_ctx;
}

static int is_named(const sl_stream *s, int32_t id) {
    for (int i = 0; i < s->n_named; i++)
        if (s->named[i] == id) return 1;
    return 0;
}

// 1: the grammar allows the sampled token, as it always does if the logit biases leave a token that the grammar allows.
static int is_allowed(sl_stream *s, int32_t id) {
    const uint32_t *allowed = sl_sampler_allowed(s->sampler);
    if (!allowed || allowed[id / 32] >> id % 32 & 1) return 1;
    sl_fail(&s->error, SL_ERR_ARG, "{grammar}: the logit biases leave no token that it allows");
    return 0;
}

// Moves the grammar on. On a GPU the step still runs, so the next tokens are found meanwhile.
static void follow_grammar(sl_stream *s, int32_t id, int is_last) {
    int rc = sl_guide_accept(s->guide, id, &s->error);
    if (rc > 0)
        stop(s, SL_STOP_END);
    else if (rc < 0 || (!is_last && sl_guide_limit(s->guide, s->sampler, s->end, &s->error)))
        stop(s, SL_STOP_ERROR);
}

// Handles a sampled token. is_last: it is the last one, and not in the session; else the step appended it, unless it is an end
// token of the model. The token that completes a stop string leaves the session, and so does a token that is not allowed.
static int take_token(sl_stream *s, int32_t id, int is_last, sl_stop reason, sl_error *err) {
    const sl_model *model = model_of(s);
    int is_eos = sl_model_is_eos(model, id), is_appended = !is_last && !is_eos, n_before = s->session->kv.n_tokens - 1;
    if (!is_allowed(s, id)) {
        stop(s, SL_STOP_ERROR);
        int rc = show_rest(s, err);
        return rc || !is_appended ? rc : sl_session_truncate(s->session, n_before, err);
    }
    int rc = sl_ids_push(&s->ids, id, err);
    if (!rc) rc = sl_logprobs_add(&s->logprobs, id, err);
    if (!rc && is_appended) rc = sl_sampler_accept(s->sampler, id, err);
    if (rc) return rc;
    if (is_eos || id == s->end) {
        stop(s, SL_STOP_END);
        return show_rest(s, err);
    }
    s->out.n_generated++;
    s->detok.specials = is_named(s, id);
    if (model->tokenizer && id < sl_tokenizer_n_vocab(model->tokenizer)) // the ids above are padding and have no text
        rc = sl_detok_next(&s->detok, id, &s->piece, err);
    if (!rc) rc = show(s, err);
    if (!rc && s->guide && s->is_running) follow_grammar(s, id, is_last);
    if (!rc && is_last && s->is_running) stop(s, reason);
    if (!rc && !s->is_running) rc = show_rest(s, err);
    if (!rc && is_appended && s->out.stop == SL_STOP_STRING && !s->is_running)
        rc = sl_session_truncate(s->session, n_before, err);
    return rc;
}

// The running streams of a batch, with the arguments of sl_step and sl_sample. Those that step come first, then those that only
// sample their last token.
typedef struct step_batch {
    sl_stream **streams;
    sl_session **sessions;
    sl_sampler **samplers;
    int32_t *ids;
    int n_step, n;
} step_batch;

static void fill(step_batch *b, sl_stream *const *streams, int n) {
    sl_stop reason;
    for (int is_last = 0; is_last < 2; is_last++) {
        for (int i = 0; i < n; i++) {
            sl_stream *s = streams[i];
            if (!s->is_running || ends_with_next(s, &reason) != is_last) continue;
            b->streams[b->n] = s;
            b->sessions[b->n] = s->session;
            b->samplers[b->n++] = s->sampler;
        }
        if (!is_last) b->n_step = b->n;
    }
}

static int has_drafts(const step_batch *b) {
    for (int i = 0; i < b->n_step; i++)
        if (b->streams[i]->drafter) return 1;
    return 0;
}

static int keep_logprobs(sl_stream *s, sl_error *err) {
    if (s->logprobs.n_top < 0) return 0;
    const float *logits = sl_session_logits(s->session, err); // on a GPU this downloads the logits
    return logits ? sl_logprobs_before(&s->logprobs, logits, err) : SL_ERR_ARG;
}

// Samples a token for each stream, and runs the steps.
static int sample_and_step(const step_batch *b, sl_error *err) {
    int n_step = b->n_step, n_last = b->n - n_step, rc = 0;
    for (int i = 0; !rc && i < b->n; i++) rc = keep_logprobs(b->streams[i], err);
    if (!rc && !n_step) rc = sl_cancel_poll(&b->sessions[0]->engine->cancel, err); // a step asks otherwise
    if (!rc && n_last) rc = sl_sample_claimed(b->sessions + n_step, n_last, b->samplers + n_step, b->ids + n_step, err);
    if (!rc && n_step) rc = sl_step_claimed(b->sessions, n_step, b->samplers, b->ids, err);
    return rc;
}

static int is_sampled(const sl_stream *s) { // s->next is the next token
    const sl_session *session = s->session;
    return s->next.id >= 0 && session->has_logits && s->next.n_logits == session->n_logits &&
           s->next.n_tokens == session->kv.n_tokens && !sl_sampler_allowed(s->sampler);
}

// Samples a token for each stream for which the last pass has not.
static int sample_missing(const step_batch *b, sl_error *err) {
    sl_session *sessions[b->n];
    sl_sampler *samplers[b->n];
    int32_t ids[b->n];
    int at[b->n], n = 0;
    for (int i = 0; i < b->n; i++) {
        b->ids[i] = b->streams[i]->next.id;
        if (!is_sampled(b->streams[i])) sessions[n] = b->sessions[i], samplers[n] = b->samplers[i], at[n++] = i;
    }
    int rc = n ? sl_sample_claimed(sessions, n, samplers, ids, err) : 0;
    for (int i = 0; !rc && i < n; i++) b->ids[at[i]] = ids[i];
    return rc;
}

// The drafts that the stream can use: its step appends at most the token before the last.
static int most_drafts(const sl_stream *s) {
    const sl_session *session = s->session;
    int most = session->engine->n_ctx - session->kv.n_tokens - 1, left = s->max_tokens - s->out.n_generated - 2;
    if (s->max_tokens && left < most) most = left;
    return most < SL_MAX_DRAFT ? most : SL_MAX_DRAFT;
}

// The same as sample_and_step, with drafts behind the sampled tokens. jobs: one for each stream that appends its token, in the
// order of the streams.
static int sample_and_verify(const step_batch *b, sl_draft_job *jobs, sl_error *err) {
    sl_run runs[b->n_step];
    int n = 0, rc = sl_cancel_poll(&b->sessions[0]->engine->cancel, err);
    for (int i = 0; !rc && i < b->n; i++) rc = keep_logprobs(b->streams[i], err);
    if (!rc) rc = sample_missing(b, err);
    for (int i = 0; !rc && i < b->n_step; i++) {
        if (sl_model_is_eos(model_of(b->streams[i]), b->ids[i])) continue;
        jobs[n++] = (sl_draft_job){.drafter = b->streams[i]->drafter,
                                   .session = b->sessions[i],
                                   .sampler = b->samplers[i],
                                   .most = most_drafts(b->streams[i]),
                                   .ids = {b->ids[i]}};
    }
    if (rc || !n) return rc;
    rc = sl_drafts_make(jobs, n, err);
    for (int i = 0; i < n; i++)
        runs[i] = (sl_run){
            .session = jobs[i].session, .ids = jobs[i].ids, .n = jobs[i].n, .sampler = jobs[i].sampler, .next = jobs[i].next};
    double start = sl_now_ms();
    if (!rc) rc = sl_decode_runs_claimed(runs, n, err);
    if (!rc) sl_drafts_passed(jobs, n, sl_now_ms() - start);
    for (int i = 0; i < n; i++) jobs[i].row = runs[i].row;
    return rc;
}

// After the pass over a stream's first token and its drafts: takes the drafts that the stream samples itself.
static int take_drafts(sl_stream *s, const sl_draft_job *job, sl_error *err) {
    const sl_run run = {.session = s->session, .ids = job->ids, .n = job->n, .row = job->row};
    int rc = 0, n_compared = 0, n_accepted = 0;
    while (!rc && s->is_running && n_accepted + 1 < job->n) {
        // A grammar that begins here limits the token, which the pass did not know.
        int32_t id = sl_sampler_allowed(s->sampler) ? -1 : job->next[n_accepted];
        // After an error the stream keeps what it has. Its next step reports the error, before any stream changes.
        int failed = keep_logprobs(s, err);
        if (!failed && id < 0) failed = sl_sample_claimed(&s->session, 1, &s->sampler, &id, err);
        if (sl_engine_is_own_error(s->session->engine, failed)) rc = failed;
        if (failed) break;
        n_compared++;
        if (id != job->ids[n_accepted + 1]) break;
        n_accepted++;
        if (!sl_model_is_eos(model_of(s), id)) sl_run_take(&run, n_accepted);
        rc = take_token(s, id, 0, SL_STOP_LENGTH, err);
    }
    sl_draft_settle(job, n_compared, n_accepted);
    s->next.id = job->next[n_accepted], s->next.n_tokens = s->session->kv.n_tokens, s->next.n_logits = s->session->n_logits;
    return rc;
}

// One step of the n streams, of which n_running run. The caller has claimed the engine.
static int step(sl_stream *const *streams, int n, int n_running, sl_error *err) {
    sl_stream *running[n_running]; // at most n_sequences
    sl_session *sessions[n_running];
    sl_sampler *samplers[n_running];
    int32_t ids[n_running];
    sl_draft_job jobs[n_running], *job = jobs;
    step_batch b = {running, sessions, samplers, ids, 0, 0};
    sl_stop reason;
    fill(&b, streams, n);
    int drafts = has_drafts(&b), rc = drafts ? sample_and_verify(&b, jobs, err) : sample_and_step(&b, err);
    if (rc) return rc;
    for (int i = 0; i < n; i++) streams[i]->shown.n = 0;
    for (int i = 0; !rc && i < b.n; i++) {
        int is_last = i >= b.n_step, is_appended = !is_last && !sl_model_is_eos(model_of(running[i]), ids[i]);
        running[i]->out.n_steps += is_appended;
        ends_with_next(running[i], &reason);
        rc = take_token(running[i], ids[i], is_last, reason, err);
        if (!rc && drafts && is_appended) rc = take_drafts(running[i], job++, err);
    }
    for (int i = 0; rc && i < b.n; i++) stop(running[i], SL_STOP_CALLER); // out of memory: some lack their token
    return rc;
}

static int streams_step(sl_stream *const *streams, int n, sl_error *err) {
    const sl_engine *e = streams[0]->session->engine;
    int n_running = 0;
    for (int i = 0; i < n; i++) {
        if (streams[i]->session->engine != e)
            return sl_fail(err, SL_ERR_ARG, "stream %d of the batch belongs to another engine", i);
        n_running += streams[i]->is_running;
    }
    if (n_running > e->n_sequences)
        return sl_fail(err, SL_ERR_ARG, "%d streams run: this engine takes 1 to %d ({n_sequences})", n_running, e->n_sequences);
    if (n_running) return step(streams, n, n_running, err);
    for (int i = 0; i < n; i++) streams[i]->shown.n = 0;
    return 0;
}

int sl_streams_step(sl_stream *const *streams, int n, sl_error *err) {
    if (n < 1) return sl_fail(err, SL_ERR_ARG, "a batch of %d streams: expected at least 1", n);
    sl_engine *e = streams[0]->session->engine;
    int rc = sl_engine_claim(e, err);
    if (rc) return rc;
    rc = streams_step(streams, n, err);
    sl_engine_release(e);
    return rc;
}

// ---- the whole generation ----

// Gives the shown text to the caller. *asked: the caller asks to stop.
static int deliver(const sl_stream *s, sl_text_fn on_text, void *ctx, sl_text *text, int *asked, sl_error *err) {
    *asked = s->shown.n && on_text && on_text(ctx, s->shown.data, s->shown.n);
    return s->shown.n && text ? sl_text_append(text, s->shown.data, s->shown.n, err) : 0;
}

int sl_stream_run(sl_stream *s, const int32_t *ids, int n, int at_start, sl_text_fn on_text, void *ctx, sl_text *text,
                  sl_generated *result, sl_error *err) {
    int n_kept = 0, asked;
    if (n == 0) return sl_fail(err, SL_ERR_ARG, "the prompt is empty, and the tokenizer of this model adds no BOS token");
    int rc = sl_session_sync_claimed(s->session, ids, n, &s->progress, &n_kept, err);
    s->n_logprobs = -1; // nobody could read them
    if (!rc) rc = sl_stream_begin(s, at_start, err);
    while (!rc && s->is_running) {
        rc = streams_step(&s, 1, err);
        if (rc == SL_ERR_CANCELLED && s->out.n_generated > 0) rc = sl_stream_end(s, err);
        if (!rc) rc = deliver(s, on_text, ctx, text, &asked, err);
        if (rc || !asked || !s->is_running) continue;
        rc = sl_stream_end(s, err);
        if (!rc) rc = deliver(s, on_text, ctx, text, &asked, err);
    }
    if (!rc && s->out.stop == SL_STOP_ERROR) {
        rc = s->error.code;
        if (err) *err = s->error;
    }
    if (rc) stop(s, SL_STOP_CALLER);
    s->out.n_reused = n_kept;
    if (!rc && result) *result = s->out;
    return rc;
}
