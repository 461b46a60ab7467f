// server/api/reply_openai.c - answers of /v1/chat/completions and /v1/completions.
//
// An event waits until the end of its piece: the last one of an answer carries the finish_reason, because clients count an
// event for each token.
#include "server/api/reply_internal.h"

#include <string.h>

static int no_memory(sl_error *err) {
    return sl_fail(err, SL_ERR_MEMORY, "reply: out of memory");
}

static int is_chat(const api_reply *r) {
    return r->request->endpoint == API_CHAT;
}

static json_t *envelope(const api_reply *r, json_t *choices) {
    const char *object = !is_chat(r) ? "text_completion" : r->request->stream ? "chat.completion.chunk" : "chat.completion";
    return json_pack("{s:s, s:s, s:I, s:s, s:o}", "id", r->id, "object", object, "created", (json_int_t)r->created, "model",
                     r->model, "choices", choices);
}

static json_t *take_logprobs(api_choice *c) {
    json_t *tokens = c->logprobs;
    c->logprobs = NULL;
    return is_chat(c->reply) ? api_chat_logprobs(tokens) : api_completion_logprobs(tokens);
}

static json_t *choice_json(api_choice *c, const char *key, json_t *value) {
    json_t *v = json_pack("{s:i, s:o, s:o, s:s?}", "index", c->index, key, value, "logprobs", take_logprobs(c), "finish_reason",
                          c->finished ? api_finish_reason(c) : NULL);
    if (c->finished && c->stop_string)
        json_object_set_new(v, "stop_reason", json_string(c->stop_string)); // a field that vLLM has
    return v;
}

// ---- streams ----

// Writes the event that waits. is_last: with the finish_reason
static int write_chunk(api_choice *c, int is_last, sl_error *err) {
    const api_request *q = c->reply->request;
    int finished = c->finished;
    json_t *delta = c->delta;
    c->delta = NULL;
    c->finished = finished && is_last;
    if (is_chat(c->reply) && !c->started && json_object_set_new(delta, "role", json_string("assistant"))) {
        json_decref(delta);
        return no_memory(err);
    }
    json_t *v = envelope(c->reply, json_pack("[o]", choice_json(c, is_chat(c->reply) ? "delta" : "text", delta)));
    c->finished = finished;
    c->started = 1;
    if (q->include_usage && json_object_set_new(v, "usage", q->continuous_usage ? api_chat_usage(c->reply) : json_null())) {
        json_decref(v);
        return no_memory(err);
    }
    return api_send(c->out, NULL, v, err);
}

static json_t *chat_delta(const api_part *p, const char *text, size_t n) {
    if (p->kind == API_EVENT_TEXT) return json_pack("{s:o}", "content", api_utf8_json(text, n));
    if (p->kind == API_EVENT_REASONING) // llama.cpp's name and vLLM's
        return json_pack("{s:o, s:o}", "reasoning_content", api_utf8_json(text, n), "reasoning", api_utf8_json(text, n));
    return json_pack("{s:[{s:i, s:s, s:s, s:{s:s, s:o}}]}", "tool_calls", "index", p->index, "id", p->id, "type", "function",
                     "function", "name", p->name, "arguments", api_utf8_json(text, n));
}

static int delta(api_choice *c, const api_part *p, const char *text, size_t n, sl_error *err) {
    int rc = c->delta ? write_chunk(c, 0, err) : 0;
    if (rc) return rc;
    c->delta = is_chat(c->reply) ? chat_delta(p, text, n) : api_utf8_json(text, n);
    return c->delta ? 0 : no_memory(err);
}

static int flush(api_choice *c, sl_error *err) {
    if (!c->delta && !c->finished) return 0;
    if (!c->delta) c->delta = is_chat(c->reply) ? json_object() : json_string("");
    return c->delta ? write_chunk(c, 1, err) : no_memory(err);
}

static int end(api_reply *r, sl_text *out, sl_error *err) {
    int rc = 0;
    if (r->request->include_usage) {
        json_t *v = envelope(r, json_array()), *usage = api_chat_usage(r);
        if (json_object_set_new(v, "usage", usage)) {
            json_decref(v);
            v = NULL;
        }
        rc = api_send(out, NULL, v, err);
    }
    return rc ? rc : api_send_text(out, "data: [DONE]\n\n", err);
}

static int fail(api_reply *r, const api_error *e, sl_text *out, sl_error *err) {
    (void)r;
    int rc = api_send(out, NULL, api_error_json(e, 0), err);
    return rc ? rc : api_send_text(out, "data: [DONE]\n\n", err);
}

// ---- whole bodies ----

// All text of one kind.
static json_t *joined(const api_choice *c, api_event_kind kind) {
    sl_text text = {0};
    sl_error why;
    int rc = 0;
    for (int i = 0; !rc && i < c->n_parts; i++)
        if (c->parts[i].kind == kind) rc = sl_text_append(&text, c->parts[i].text.data, c->parts[i].text.n, &why);
    json_t *out = rc ? NULL : api_utf8_json(text.data ? text.data : "", text.n);
    sl_text_free(&text);
    return out;
}

static json_t *calls_json(const api_choice *c) {
    json_t *list = json_array();
    for (int i = 0; i < c->n_parts; i++) {
        const api_part *p = &c->parts[i];
        if (p->kind == API_EVENT_CALL)
            json_array_append_new(list, json_pack("{s:s, s:s, s:{s:s, s:o}}", "id", p->id, "type", "function", "function",
                                                  "name", p->name, "arguments", api_part_text(p)));
    }
    return list;
}

static json_t *message_json(const api_choice *c) {
    json_t *text = joined(c, API_EVENT_TEXT), *reasoning = joined(c, API_EVENT_REASONING);
    int is_call = api_n_calls(c) > 0;
    json_t *v = json_pack("{s:s, s:O?, s:n}", "role", "assistant", "content",
                          is_call && !json_string_length(text) ? NULL : text, "refusal");
    if (json_string_length(reasoning)) {
        json_object_set(v, "reasoning_content", reasoning);
        json_object_set(v, "reasoning", reasoning);
    }
    if (is_call) json_object_set_new(v, "tool_calls", calls_json(c));
    json_decref(text);
    json_decref(reasoning);
    return v;
}

static json_t *whole(api_reply *r) {
    json_t *choices = json_array();
    for (int i = 0; i < r->n_choices; i++) {
        api_choice *c = &r->choices[i];
        json_t *value = is_chat(r) ? message_json(c) : joined(c, API_EVENT_TEXT);
        json_array_append_new(choices, choice_json(c, is_chat(r) ? "message" : "text", value));
    }
    json_t *v = envelope(r, choices);
    if (!json_object_set_new(v, "usage", api_chat_usage(r))) return v;
    json_decref(v);
    return NULL;
}

const api_writer api_chat_writer = {
    .prefix = "chatcmpl-", .delta = delta, .flush = flush, .end = end, .fail = fail, .whole = whole};
const api_writer api_completion_writer = {
    .prefix = "cmpl-", .delta = delta, .flush = flush, .end = end, .fail = fail, .whole = whole};
