// engine/generate.c - sl_generate: a stream for one call.
#include "engine/engine_internal.h"
#include "engine/stream.h"

#include <string.h>

int sl_generate(sl_engine *engine, const char *prompt, const sl_generation *options, sl_text_fn on_text, void *ctx,
                sl_generated *result, sl_error *err) {
    const sl_generation unset = sl_generation_default();
    const sl_generation *how = options ? options : &unset;
    sl_session *session = NULL;
    sl_stream *stream = NULL;
    sl_ids ids = {0};
    int rc = sl_model_need_tokenizer(engine->model, err);
    if (!rc) rc = sl_session_new(engine, how->sequence, &session, err);
    if (!rc) rc = sl_stream_new(session, how, &stream, err);
    if (!rc) rc = sl_tokenize(engine->model->tokenizer, prompt, strlen(prompt), SL_TOK_BOS, &ids, err);
    if (!rc) rc = sl_engine_claim(engine, err);
    if (!rc) {
        rc = sl_stream_run(stream, ids.data, (int)ids.n, *prompt == 0, on_text, ctx, NULL, result, err);
        sl_engine_release(engine);
    }
    sl_ids_free(&ids);
    sl_stream_free(stream);
    sl_session_free(session);
    return rc;
}
