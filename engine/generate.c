// engine/generate.c - see generator.h. sl_generate is a generator for one call.
#include "engine/engine_internal.h"
#include "engine/generator.h"
#include "engine/stopper.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

struct sl_generator {
    sl_session *session;
    sl_ids ids; // of the session's tokens
    sl_sampler *sampler;
    sl_stopper *stopper; // NULL: no stop strings
    int max_tokens;
    int32_t end; // ends an answer, besides the model's end tokens; -1: none
    sl_progress progress;
};

// One run.
typedef struct run {
    sl_generator *g;
    sl_detok_stream detok;
    sl_text piece; // text of the last token
    sl_text_fn on_text;
    void *ctx;
    sl_text *text; // NULL: not wanted
    sl_generated out;
    int stopped; // 1: out.stop holds the reason
} run;

sl_generation sl_generation_default(void) {
    const sl_sampling unset = {
        .temp = NAN, .top_k = SL_UNSET, .top_p = NAN, .min_p = NAN, .repeat_penalty = NAN, .repeat_last_n = SL_UNSET};
    return (sl_generation){.sampling = unset, .max_tokens = 1024};
}

// ---- what the model's generation_config.json says ----

static void complete_float(float *x, float of_model, float otherwise) {
    if (isnan(*x)) *x = isnan(of_model) ? otherwise : of_model;
}

void sl_sampling_complete(const sl_model *model, const sl_sampling *otherwise, sl_sampling *s) {
    const sl_config *c = &model->config;
    // As in transformers, a penalty of the model sees every token of the context.
    int is_models_penalty = isnan(s->repeat_penalty) && !isnan(c->gen_repeat_penalty);
    if (s->repeat_last_n == SL_UNSET) s->repeat_last_n = is_models_penalty ? -1 : otherwise->repeat_last_n;
    if (s->top_k == SL_UNSET) s->top_k = c->gen_top_k >= 0 ? c->gen_top_k : otherwise->top_k;
    complete_float(&s->temp, c->gen_do_sample == 0 ? 0 : c->gen_temp, otherwise->temp);
    complete_float(&s->top_p, c->gen_top_p, otherwise->top_p);
    complete_float(&s->min_p, c->gen_min_p, otherwise->min_p);
    complete_float(&s->repeat_penalty, c->gen_repeat_penalty, otherwise->repeat_penalty);
    complete_float(&s->presence_penalty, NAN, otherwise->presence_penalty);
    complete_float(&s->frequency_penalty, NAN, otherwise->frequency_penalty);
}

sl_sampling sl_model_sampling(const sl_model *model) {
    const sl_sampling otherwise = sl_sampling_default();
    sl_sampling s = sl_generation_default().sampling;
    sl_sampling_complete(model, &otherwise, &s);
    return s;
}

// ---- life ----

int sl_generator_set_options(sl_generator *g, const sl_generation *o, sl_error *err) {
    sl_sampler *sampler = NULL;
    sl_stopper *stopper = NULL;
    if (o->max_tokens < 0) return sl_fail(err, SL_ERR_ARG, "{max_tokens} %d: expected 0 (no limit) or more", o->max_tokens);
    if (o->n_stop < 0) return sl_fail(err, SL_ERR_ARG, "a list of %d stop strings: expected 0 or more", o->n_stop);
    const sl_sampling otherwise = sl_sampling_default();
    sl_sampling sampling = o->sampling;
    sl_sampling_complete(sl_generator_model(g), &otherwise, &sampling);
    int rc = sl_sampler_new(&sampling, sl_generator_model(g)->config.n_vocab, &sampler, err);
    if (!rc && o->n_stop) rc = sl_stopper_new(o->stop, o->n_stop, &stopper, err);
    for (size_t i = 0; !rc && i < g->ids.n; i++) rc = sl_sampler_accept(sampler, g->ids.data[i], err);
    if (rc) {
        sl_sampler_free(sampler);
        sl_stopper_free(stopper);
        return rc;
    }
    sl_sampler_free(g->sampler);
    sl_stopper_free(g->stopper);
    g->sampler = sampler, g->stopper = stopper;
    g->max_tokens = o->max_tokens;
    g->progress = o->progress;
    sl_session_set_sequence(g->session, o->sequence);
    return 0;
}

int sl_generator_open(sl_engine *engine, const sl_generation *options, sl_generator **out, sl_error *err) {
    sl_generator *g = calloc(1, sizeof *g);
    if (!g) return sl_fail(err, SL_ERR_MEMORY, "generator: out of memory");
    g->end = -1;
    int rc = sl_model_need_tokenizer(engine->model, err);
    if (!rc) rc = sl_session_new(engine, options->sequence, &g->session, err);
    if (!rc) g->session->in_generator = 1;
    if (!rc) rc = sl_generator_set_options(g, options, err);
    if (rc) {
        sl_generator_close(g);
        return rc;
    }
    *out = g;
    return 0;
}

void sl_generator_close(sl_generator *g) {
    if (!g) return;
    sl_stopper_free(g->stopper);
    sl_sampler_free(g->sampler);
    sl_session_free(g->session);
    sl_ids_free(&g->ids);
    free(g);
}

sl_session *sl_generator_session(const sl_generator *g) {
    return g->session;
}

const sl_model *sl_generator_model(const sl_generator *g) {
    return g->session->engine->model;
}

void sl_generator_set_end(sl_generator *g, int32_t id) {
    g->end = id;
}

// ---- the prompt ----

static int truncate(sl_generator *g, int n_tokens, sl_error *err) {
    int rc = sl_session_truncate(g->session, n_tokens, err);
    if (rc) return rc;
    g->ids.n = (size_t)n_tokens;
    sl_sampler_truncate(g->sampler, n_tokens);
    return 0;
}

static int record(sl_generator *g, int32_t id, sl_error *err) { // a token that entered the session
    int rc = sl_sampler_accept(g->sampler, id, err);
    return rc ? rc : sl_ids_push(&g->ids, id, err);
}

// Makes the session hold ids[0..n), with logits after the last one.
static int set_prompt(sl_generator *g, const int32_t *ids, int n, int *n_reused, sl_error *err) {
    int n_ctx = g->session->engine->n_ctx, keep = 0, rc;
    if (n == 0) return sl_fail(err, SL_ERR_ARG, "the prompt is empty, and the tokenizer of this model adds no BOS token");
    if (n > n_ctx) return sl_fail(err, SL_ERR_CONTEXT, "the prompt has %d tokens: more than {n_ctx} %d", n, n_ctx);
    while (keep < n && (size_t)keep < g->ids.n && g->ids.data[keep] == ids[keep]) keep++;
    if (keep == n) keep = n - 1; // the session may hold more tokens, and its logits are those after the last one
    keep = sl_session_reusable(g->session, keep, 0);
    rc = truncate(g, keep, err);
    if (!rc) rc = sl_prefill(g->session, ids + keep, n - keep, &g->progress, err);
    for (int i = keep; !rc && i < n; i++) rc = record(g, ids[i], err);
    *n_reused = keep;
    return rc;
}

// ---- text out ----

static void stop(run *r, sl_stop reason) {
    r->out.stop = reason;
    r->stopped = 1;
}

static int show(run *r, const char *text, size_t n, sl_error *err) {
    if (n == 0) return 0;
    if (r->on_text && r->on_text(r->ctx, text, n) && !r->stopped) stop(r, SL_STOP_CALLER);
    return r->text ? sl_text_append(r->text, text, n, err) : 0;
}

// Shows the text that the last token completed.
static int emit(run *r, sl_error *err) {
    const char *text = r->piece.data;
    size_t n = r->piece.n;
    r->piece.n = 0;
    int found = n && r->g->stopper ? sl_stopper_feed(r->g->stopper, text, n, &text, &n, err) : 0;
    if (found < 0) return found;
    if (found) stop(r, SL_STOP_STRING);
    return show(r, text, n, err);
}

// Shows the rest: an unfinished character, and text that looked like the beginning of a stop string.
static int emit_rest(run *r, sl_error *err) {
    const char *text;
    size_t n;
    if (r->out.stop == SL_STOP_STRING) return 0;
    int rc = sl_detok_end(&r->detok, &r->piece, err);
    if (!rc) rc = emit(r, err);
    if (rc || !r->g->stopper || r->out.stop == SL_STOP_STRING) return rc;
    sl_stopper_flush(r->g->stopper, &text, &n);
    return show(r, text, n, err);
}

// ---- the loop ----

// Samples a token, appends it to the session and shows its text. Sets r->stopped when it was the last one.
static int next_token(run *r, sl_error *err) {
    sl_generator *g = r->g;
    const sl_engine *e = g->session->engine;
    int32_t id;
    int is_full = g->session->kv.n_tokens >= e->n_ctx, is_limit = r->out.n_generated + 1 == g->max_tokens;
    int is_last = is_full || is_limit; // the step of the last token is not needed
    int rc = is_last ? sl_cancel_poll(&e->cancel, err) : sl_step(&g->session, 1, &g->sampler, &id, err);
    if (!rc && is_last) rc = sl_sample(&g->session, 1, &g->sampler, &id, err);
    if (rc == SL_ERR_CANCELLED && r->out.n_generated > 0) {
        stop(r, SL_STOP_CALLER);
        return 0;
    }
    if (rc) return rc;
    if (sl_model_is_eos(e->model, id) || id == g->end) {
        stop(r, SL_STOP_END);
        return is_last || sl_model_is_eos(e->model, id) ? 0 : record(g, id, err); // the step appended another token
    }
    r->out.n_generated++;
    if (!is_last) rc = record(g, id, err);
    if (!rc && id < sl_tokenizer_n_vocab(e->model->tokenizer)) // the ids above are padding and have no text
        rc = sl_detok_next(&r->detok, id, &r->piece, err);
    if (!rc) rc = emit(r, err);
    if (!rc && is_last && !r->stopped) stop(r, is_limit ? SL_STOP_LENGTH : SL_STOP_CONTEXT);
    return rc;
}

int sl_generator_run(sl_generator *g, const int32_t *ids, int n, int at_start, sl_text_fn on_text, void *ctx, sl_text *text,
                     sl_generated *result, sl_error *err) {
    run r = {.g = g, .on_text = on_text, .ctx = ctx, .text = text};
    r.detok = sl_detok_begin(sl_generator_model(g)->tokenizer, 0, at_start);
    r.out.n_prompt = n;
    if (g->stopper) sl_stopper_reset(g->stopper);
    int rc = set_prompt(g, ids, n, &r.out.n_reused, err);
    while (!rc && !r.stopped) rc = next_token(&r, err);
    if (!rc) rc = emit_rest(&r, err);
    sl_text_free(&r.piece);
    if (rc && (size_t)g->session->kv.n_tokens > g->ids.n) truncate(g, (int)g->ids.n, NULL);
    if (!rc && result) *result = r.out;
    return rc;
}

int sl_generate(sl_engine *engine, const char *prompt, const sl_generation *options, sl_text_fn on_text, void *ctx,
                sl_generated *result, sl_error *err) {
    const sl_generation unset = sl_generation_default();
    sl_generator *g = NULL;
    sl_ids ids = {0};
    int rc = sl_engine_claim(engine, err);
    if (rc) return rc;
    rc = sl_generator_open(engine, options ? options : &unset, &g, err);
    if (!rc) rc = sl_tokenize(engine->model->tokenizer, prompt, strlen(prompt), SL_TOK_BOS, &ids, err);
    if (!rc) rc = sl_generator_run(g, ids.data, (int)ids.n, *prompt == 0, on_text, ctx, NULL, result, err);
    sl_ids_free(&ids);
    sl_generator_close(g);
    sl_engine_release(engine);
    return rc;
}
