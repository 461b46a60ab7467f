// engine/generate.c - sl_generate, and the sampling parameters of a model.
#include "engine/engine_internal.h"
#include "engine/stream.h"

#include <math.h>
#include <string.h>

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

// ---- a generation of one call ----

int sl_generate(sl_engine *engine, const char *prompt, const sl_generation *options, sl_text_fn on_text, void *ctx,
                sl_generated *result, sl_error *err) {
    const sl_generation unset = sl_generation_default();
    const sl_generation *how = options ? options : &unset;
    sl_session *session = NULL;
    sl_stream *stream = NULL;
    sl_ids ids = {0};
    int rc = sl_engine_claim(engine, err);
    if (rc) return rc;
    rc = sl_model_need_tokenizer(engine->model, err);
    if (!rc) rc = sl_session_new(engine, how->sequence, &session, err);
    if (!rc) rc = sl_stream_new(session, how, &stream, err);
    if (!rc) rc = sl_tokenize(engine->model->tokenizer, prompt, strlen(prompt), SL_TOK_BOS, &ids, err);
    if (!rc) rc = sl_stream_run(stream, ids.data, (int)ids.n, *prompt == 0, on_text, ctx, NULL, result, err);
    sl_ids_free(&ids);
    sl_stream_free(stream);
    sl_session_free(session);
    sl_engine_release(engine);
    return rc;
}
