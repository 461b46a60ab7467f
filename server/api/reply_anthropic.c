// server/api/reply_anthropic.c - answers of /v1/messages: a list of content blocks, and the events of their growth.
#include "server/api/reply_internal.h"

#include <string.h>

// Of the prompt's tokens, Anthropic counts those of the cache apart.
static json_t *usage_json(const api_reply *r) {
    json_t *v = json_pack("{s:i, s:i, s:i, s:i}", "input_tokens", r->n_prompt - r->n_cached, "cache_creation_input_tokens", 0,
                          "cache_read_input_tokens", r->n_cached, "output_tokens", r->n_generated);
    if (!api_add_attention(r, v)) return v;
    json_decref(v);
    return NULL;
}

static const char *stop_reason(const api_choice *c) {
    if (!api_has_room_left(c)) return "max_tokens";
    if (api_n_calls(c)) return "tool_use";
    return c->stop == SL_STOP_STRING ? "stop_sequence" : "end_turn";
}

// A part as a block. is_whole 0: as it is when it begins
static json_t *block_json(const api_part *p, int is_whole) {
    json_t *text = is_whole ? api_part_text(p) : json_string("");
    if (p->kind == API_EVENT_TEXT) return json_pack("{s:s, s:o}", "type", "text", "text", text);
    if (p->kind == API_EVENT_REASONING)
        return json_pack("{s:s, s:o, s:s}", "type", "thinking", "thinking", text, "signature", "");
    json_decref(text);
    json_t *input = is_whole ? json_loadb(p->text.data, p->text.n, 0, NULL) : json_object();
    if (!input) input = json_loadb(p->text.data, p->text.n, JSON_DECODE_INT_AS_REAL, NULL); // an integer of any size
    return json_pack("{s:s, s:s, s:s, s:o}", "type", "tool_use", "id", p->id, "name", p->name, "input", input);
}

static json_t *message_json(const api_reply *r, int is_whole) {
    const api_choice *c = r->choices;
    json_t *content = json_array();
    for (int i = 0; is_whole && i < c->n_parts; i++) json_array_append_new(content, block_json(&c->parts[i], 1));
    return json_pack("{s:s, s:s, s:s, s:s, s:o, s:s?, s:s?, s:o}", "id", r->id, "type", "message", "role", "assistant", "model",
                     r->model, "content", content, "stop_reason", is_whole ? stop_reason(c) : NULL, "stop_sequence",
                     is_whole ? c->stop_string : NULL, "usage", usage_json(r));
}

static json_t *whole(api_reply *r) {
    return message_json(r, 1);
}

// ---- events ----

static int begin(api_reply *r, sl_text *out, sl_error *err) {
    return api_send(out, "message_start", json_pack("{s:s, s:o}", "type", "message_start", "message", message_json(r, 0)), err);
}

static int open(api_choice *c, const api_part *p, sl_error *err) {
    static const char type[] = "content_block_start";
    return api_send(c->out, type,
                    json_pack("{s:s, s:i, s:o}", "type", type, "index", (int)(p - c->parts), "content_block", block_json(p, 0)),
                    err);
}

static int delta(api_choice *c, const api_part *p, const char *text, size_t n, sl_error *err) {
    static const char type[] = "content_block_delta";
    static const char *const kinds[][2] = {
        {"text_delta", "text"}, {"thinking_delta", "thinking"}, {"input_json_delta", "partial_json"}};
    return api_send(c->out, type,
                    json_pack("{s:s, s:i, s:{s:s, s:o}}", "type", type, "index", (int)(p - c->parts), "delta", "type",
                              kinds[p->kind][0], kinds[p->kind][1], api_utf8_json(text, n)),
                    err);
}

static int close(api_choice *c, const api_part *p, sl_error *err) {
    static const char type[] = "content_block_stop";
    return api_send(c->out, type, json_pack("{s:s, s:i}", "type", type, "index", (int)(p - c->parts)), err);
}

static int end(api_reply *r, sl_text *out, sl_error *err) {
    const api_choice *c = r->choices;
    json_t *v = json_pack("{s:s, s:{s:s, s:s?}, s:o}", "type", "message_delta", "delta", "stop_reason", stop_reason(c),
                          "stop_sequence", c->stop_string, "usage", usage_json(r));
    int rc = api_send(out, "message_delta", v, err);
    return rc ? rc : api_send(out, "message_stop", json_pack("{s:s}", "type", "message_stop"), err);
}

static int fail(api_reply *r, const api_error *e, sl_text *out, sl_error *err) {
    (void)r;
    return api_send(out, "error", api_error_json(e, 1), err);
}

static int keep_alive(api_reply *r, sl_text *out, sl_error *err) {
    (void)r;
    return api_send(out, "ping", json_pack("{s:s}", "type", "ping"), err);
}

const api_writer api_messages_writer = {.prefix = "msg_",
                                        .begin = begin,
                                        .open = open,
                                        .delta = delta,
                                        .close = close,
                                        .end = end,
                                        .fail = fail,
                                        .keep_alive = keep_alive,
                                        .whole = whole};
