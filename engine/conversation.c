// engine/conversation.c - sl_chat: messages, the chat template, and a stream that answers.
//
// Each answer renders and tokenizes all messages. The session keeps the common prefix of the new and the old prompt.
#include "engine/engine_internal.h"
#include "engine/messages.h"
#include "engine/stream.h"
#include "tokenizer/chat/chat.h"

#include <stdlib.h>
#include <string.h>

struct sl_chat {
    const sl_chat_template *template; // the model's, or owned
    sl_chat_template *owned;          // NULL: none
    sl_session *session;
    sl_stream *stream;
    char *system_prompt; // NULL: none
    int parse_special;   // of sl_chat_options
    sl_messages messages;
};

sl_chat_options sl_chat_options_default(void) {
    return (sl_chat_options){.generation = sl_generation_default()};
}

// ---- messages ----

int sl_chat_n_messages(const sl_chat *c) {
    return c->messages.n;
}

const sl_message *sl_chat_message(const sl_chat *c, int i) {
    return i >= 0 && i < c->messages.n ? &c->messages.items[i] : NULL;
}

int sl_chat_set_messages(sl_chat *c, const sl_message *messages, int n, sl_error *err) {
    sl_messages made = {0};
    int rc = n < 0 ? sl_fail(err, SL_ERR_ARG, "a list of %d messages: expected 0 or more", n) : 0;
    for (int i = 0; !rc && i < n; i++) rc = sl_messages_push(&made, messages[i].role, messages[i].content, messages[i].n, err);
    if (rc) {
        sl_messages_clear(&made);
        return rc;
    }
    sl_messages_clear(&c->messages);
    c->messages = made;
    return 0;
}

int sl_chat_reset(sl_chat *c, sl_error *err) {
    if (!c->system_prompt) return sl_chat_set_messages(c, NULL, 0, err);
    const sl_message system = {.role = "system", .content = c->system_prompt, .n = strlen(c->system_prompt)};
    return sl_chat_set_messages(c, &system, 1, err);
}

// ---- life ----

static int find_template(sl_chat *c, const sl_model *model, const char *name, sl_error *err) {
    c->template = name ? NULL : model->chat;
    if (c->template) return 0;
    int rc = sl_chat_load(sl_source_documents(model->source), name, &c->owned, err);
    c->template = c->owned;
    return rc;
}

static int open_chat(sl_chat *c, sl_engine *engine, const sl_chat_options *o, sl_error *err) {
    int rc = sl_model_need_tokenizer(engine->model, err);
    if (!rc) rc = find_template(c, engine->model, o->template_name, err);
    c->parse_special = o->parse_special;
    if (!rc && o->system_prompt && !(c->system_prompt = strdup(o->system_prompt)))
        rc = sl_fail(err, SL_ERR_MEMORY, "chat: out of memory");
    if (!rc) rc = sl_chat_reset(c, err);
    if (!rc) rc = sl_session_new(engine, o->generation.sequence, &c->session, err);
    if (!rc) rc = sl_stream_new(c->session, &o->generation, &c->stream, err);
    if (rc) return rc;
    sl_stream_set_end(c->stream, sl_chat_end_of_turn(c->template, engine->model->tokenizer));
    return 0;
}

int sl_chat_open(sl_engine *engine, const sl_chat_options *options, sl_chat **out, sl_error *err) {
    const sl_chat_options unset = sl_chat_options_default();
    sl_chat *c = calloc(1, sizeof *c);
    if (!c) return sl_fail(err, SL_ERR_MEMORY, "chat: out of memory");
    int rc = open_chat(c, engine, options ? options : &unset, err);
    if (rc) {
        sl_chat_free(c);
        return rc;
    }
    *out = c;
    return 0;
}

void sl_chat_free(sl_chat *c) {
    if (!c) return;
    sl_stream_free(c->stream);
    sl_session_free(c->session);
    sl_chat_template_free(c->owned);
    sl_messages_clear(&c->messages);
    free(c->system_prompt);
    free(c);
}

int sl_chat_set_generation(sl_chat *c, const sl_generation *options, sl_error *err) {
    int rc = sl_stream_set_options(c->stream, options, err);
    if (!rc) sl_session_set_sequence(c->session, options->sequence);
    return rc;
}

sl_session *sl_chat_session(const sl_chat *c) {
    return c->session;
}

// ---- answers ----

typedef struct asked { // arguments of sl_chat_say
    sl_chat *chat;
    sl_text_fn on_text;
    void *ctx;
    sl_generated *result;
} asked;

static int answer(void *ctx, sl_text *reply, int *is_answer, sl_error *err) {
    const asked *a = ctx;
    sl_chat *c = a->chat;
    const sl_tokenizer *tok = c->session->engine->model->tokenizer;
    json_t *messages = sl_chat_messages(c->messages.items, c->messages.n);
    sl_prompt prompt = {0};
    sl_ids ids = {0};
    int rc = messages ? 0 : sl_fail(err, SL_ERR_MEMORY, "chat: out of memory");
    if (!rc)
        rc = sl_chat_render(c->template, tok, &(sl_chat_request){.messages = messages, .parse_special = c->parse_special},
                            &prompt, err);
    if (!rc) rc = sl_chat_tokenize(c->template, tok, &prompt, &ids, err);
    if (!rc) rc = sl_stream_run(c->stream, ids.data, (int)ids.n, 1, a->on_text, a->ctx, reply, a->result, err);
    *is_answer = !rc;
    sl_ids_free(&ids);
    sl_prompt_free(&prompt);
    json_decref(messages);
    return rc;
}

int sl_chat_say(sl_chat *c, const char *text, sl_text_fn on_text, void *ctx, sl_generated *result, sl_error *err) {
    sl_engine *engine = c->session->engine;
    int rc = sl_engine_claim(engine, err);
    if (rc) return rc;
    rc = sl_messages_say(&c->messages, text, strlen(text), answer, &(asked){c, on_text, ctx, result}, err);
    sl_engine_release(engine);
    return rc;
}

int sl_chat_again(sl_chat *c, sl_text_fn on_text, void *ctx, sl_generated *result, sl_error *err) {
    sl_engine *engine = c->session->engine;
    int rc = sl_engine_claim(engine, err);
    if (rc) return rc;
    if (!sl_messages_has_question(&c->messages))
        rc = sl_fail(err, SL_ERR_ARG, "the chat has no message of the user to answer again; call sl_chat_say first");
    else
        rc = sl_messages_again(&c->messages, c->session, answer, &(asked){c, on_text, ctx, result}, err);
    sl_engine_release(engine);
    return rc;
}
