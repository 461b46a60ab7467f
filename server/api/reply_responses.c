// server/api/reply_responses.c - answers of /v1/responses: a list of items, and the events of their growth.
#include "server/api/reply_internal.h"

#include <string.h>

enum { ITEM_ID = 160 };

static int part_index(const api_choice *c, const api_part *p) {
    return (int)(p - c->parts);
}

static const char *item_id(const api_choice *c, const api_part *p, char buf[ITEM_ID]) {
    static const char *const prefixes[] = {"msg", "rs", "fc"};
    const char *id = strchr(c->reply->id, '_'); // without resp_
    snprintf(buf, ITEM_ID, "%s%.120s_%d", prefixes[p->kind], id, part_index(c, p));
    return buf;
}

// ---- bodies ----

static json_t *content_json(const api_part *p, json_t *text) {
    if (p->kind == API_EVENT_REASONING) return json_pack("{s:s, s:o}", "type", "reasoning_text", "text", text);
    return json_pack("{s:s, s:o, s:[], s:[]}", "type", "output_text", "text", text, "annotations", "logprobs");
}

// A part as an item. is_whole 0: as it is when it begins
static json_t *item_json(const api_choice *c, const api_part *p, int is_whole) {
    char id[ITEM_ID];
    int is_cut = c->finished && !api_has_room_left(c) && p == &c->parts[c->n_parts - 1];
    const char *status = !is_whole ? "in_progress" : is_cut ? "incomplete" : "completed";
    item_id(c, p, id);
    json_t *text = is_whole ? api_part_text(p) : json_string("");
    if (p->kind == API_EVENT_CALL)
        return json_pack("{s:s, s:s, s:s, s:s, s:s, s:o}", "type", "function_call", "id", id, "call_id", p->id, "name", p->name,
                         "status", is_whole ? "completed" : status, "arguments", text);
    json_t *content = json_array();
    if (is_whole)
        json_array_append_new(content, content_json(p, text));
    else
        json_decref(text);
    if (p->kind == API_EVENT_REASONING)
        return json_pack("{s:s, s:s, s:[], s:o}", "type", "reasoning", "id", id, "summary", "content", content);
    return json_pack("{s:s, s:s, s:s, s:s, s:o}", "type", "message", "id", id, "status", status, "role", "assistant", "content",
                     content);
}

static json_t *usage_json(const api_reply *r) {
    json_t *v =
        json_pack("{s:i, s:{s:i, s:i}, s:i, s:{s:i}, s:i}", "input_tokens", r->n_prompt, "input_tokens_details",
                  "cached_tokens", r->n_cached, "cache_write_tokens", 0, "output_tokens", r->n_generated,
                  "output_tokens_details", "reasoning_tokens", r->n_reasoning, "total_tokens", r->n_prompt + r->n_generated);
    if (!api_add_attention(r, v)) return v;
    json_decref(v);
    return NULL;
}

// Sets a field as the request has it, or to `otherwise`, which is stolen.
static void echo(json_t *v, const api_reply *r, const char *field, json_t *otherwise) {
    json_t *given = sl_json_get(r->request->body, field);
    if (given)
        json_object_set(v, field, given);
    else
        json_object_set(v, field, otherwise);
    json_decref(otherwise);
}

static json_t *response_json(const api_reply *r, const char *status) {
    const api_choice *c = r->choices;
    int is_cut = !strcmp(status, "incomplete"), is_running = !strcmp(status, "in_progress");
    json_t *output = json_array();
    for (int i = 0; !is_running && i < c->n_parts; i++) json_array_append_new(output, item_json(c, &c->parts[i], 1));
    json_t *v = json_pack("{s:s, s:s, s:I, s:s, s:n, s:o?, s:s, s:o, s:n, s:b, s:s}", "id", r->id, "object", "response",
                          "created_at", (json_int_t)r->created, "status", status, "error", "incomplete_details",
                          is_cut ? json_pack("{s:s}", "reason", "max_output_tokens") : NULL, "model", r->model, "output",
                          output, "previous_response_id", "store", 0, "truncation", "disabled");
    static const char *const echoed[] = {"instructions", "max_output_tokens", "temperature", "top_p",
                                         "user",         "prompt_cache_key"};
    for (size_t i = 0; i < sizeof echoed / sizeof *echoed; i++) echo(v, r, echoed[i], json_null());
    echo(v, r, "metadata", json_object());
    echo(v, r, "tools", json_array());
    echo(v, r, "tool_choice", json_string("auto"));
    echo(v, r, "parallel_tool_calls", json_true());
    echo(v, r, "reasoning", json_pack("{s:n, s:n}", "effort", "summary"));
    echo(v, r, "text", json_pack("{s:{s:s}}", "format", "type", "text"));
    if (!json_object_set_new(v, "usage", is_running ? json_null() : usage_json(r))) return v;
    json_decref(v);
    return NULL;
}

static const char *status_of(const api_reply *r) {
    return api_has_room_left(r->choices) ? "completed" : "incomplete";
}

static json_t *whole(api_reply *r) {
    return response_json(r, status_of(r));
}

// ---- events ----

// Takes the reference.
static int send(api_reply *r, sl_text *out, const char *type, json_t *v, sl_error *err) {
    if (v && (json_object_set_new(v, "type", json_string(type)) ||
              json_object_set_new(v, "sequence_number", json_integer(r->sequence_number++)))) {
        json_decref(v);
        v = NULL;
    }
    return api_send(out, type, v, err);
}

static int begin(api_reply *r, sl_text *out, sl_error *err) {
    int rc = send(r, out, "response.created", json_pack("{s:o}", "response", response_json(r, "in_progress")), err);
    return rc ? rc : send(r, out, "response.in_progress", json_pack("{s:o}", "response", response_json(r, "in_progress")), err);
}

// An event of a part: the item's id and place, the content's place, and more.
static int send_part(api_choice *c, const api_part *p, const char *type, const char *key, json_t *value, sl_error *err) {
    char id[ITEM_ID];
    json_t *v = json_pack("{s:s, s:i, s:o}", "item_id", item_id(c, p, id), "output_index", part_index(c, p), key, value);
    if (p->kind != API_EVENT_CALL) json_object_set_new(v, "content_index", json_integer(0));
    if (!strncmp(type, "response.output_text", 20)) json_object_set_new(v, "logprobs", json_array());
    if (!strcmp(type, "response.function_call_arguments.done")) json_object_set_new(v, "name", json_string(p->name));
    return send(c->reply, c->out, type, v, err);
}

static int send_item(api_choice *c, const api_part *p, const char *type, int is_whole, sl_error *err) {
    json_t *v = json_pack("{s:i, s:o}", "output_index", part_index(c, p), "item", item_json(c, p, is_whole));
    return send(c->reply, c->out, type, v, err);
}

static int open(api_choice *c, const api_part *p, sl_error *err) {
    int rc = send_item(c, p, "response.output_item.added", 0, err);
    if (rc || p->kind == API_EVENT_CALL) return rc;
    return send_part(c, p, "response.content_part.added", "part", content_json(p, json_string("")), err);
}

static const char *event_of(const api_part *p, int is_done) {
    static const char *const types[][2] = {
        {"response.output_text.delta", "response.output_text.done"},
        {"response.reasoning_text.delta", "response.reasoning_text.done"},
        {"response.function_call_arguments.delta", "response.function_call_arguments.done"},
    };
    return types[p->kind][is_done];
}

static int delta(api_choice *c, const api_part *p, const char *text, size_t n, sl_error *err) {
    return send_part(c, p, event_of(p, 0), "delta", api_utf8_json(text, n), err);
}

static int close(api_choice *c, const api_part *p, sl_error *err) {
    int rc = send_part(c, p, event_of(p, 1), p->kind == API_EVENT_CALL ? "arguments" : "text", api_part_text(p), err);
    if (!rc && p->kind != API_EVENT_CALL)
        rc = send_part(c, p, "response.content_part.done", "part", content_json(p, api_part_text(p)), err);
    return rc ? rc : send_item(c, p, "response.output_item.done", 1, err);
}

static int end(api_reply *r, sl_text *out, sl_error *err) {
    const char *status = status_of(r);
    const char *type = !strcmp(status, "completed") ? "response.completed" : "response.incomplete";
    return send(r, out, type, json_pack("{s:o}", "response", response_json(r, status)), err);
}

static int fail(api_reply *r, const api_error *e, sl_text *out, sl_error *err) {
    json_t *response = response_json(r, "failed");
    json_t *why = json_pack("{s:s, s:s}", "code",
                            e->code           ? e->code
                            : e->status < 500 ? "invalid_prompt"
                                              : "server_error",
                            "message", e->why.message);
    if (json_object_set_new(response, "error", why)) {
        json_decref(response);
        response = NULL;
    }
    return send(r, out, "response.failed", json_pack("{s:o}", "response", response), err);
}

const api_writer api_responses_writer = {
    .prefix = "resp_", .begin = begin, .open = open, .delta = delta, .close = close, .end = end, .fail = fail, .whole = whole};
