// server/api/api_anthropic_input.c - system text, messages and tools of /v1/messages, which Claude Code sends.
#include "server/api/api_input.h"

#include <string.h>

static const char *const text_types[] = {"text", NULL};

// Claude Code's first system text can be a line that changes with each request. With it, no prefix would ever be the same.
static const char billing[] = "x-anthropic-billing-header:";

static json_t *without_billing(const json_t *text) {
    const char *s = json_string_value(text), *end = s + json_string_length(text);
    if (!s || strncmp(s, billing, sizeof billing - 1)) return json_incref((json_t *)text);
    const char *line = memchr(s, '\n', (size_t)(end - s));
    return line ? json_stringn(line + 1, (size_t)(end - line - 1)) : json_string("");
}

// The system text as a string or a list of blocks, without the line; a block that becomes empty is left out.
static json_t *system_without_billing(const json_t *v) {
    if (!json_is_array(v)) return without_billing(v);
    json_t *blocks = json_array();
    for (size_t i = 0; i < json_array_size(v); i++) {
        const json_t *block = json_array_get(v, i), *text = sl_json_get(block, "text");
        json_t *kept = json_is_string(text) ? without_billing(text) : NULL, *copy = json_copy((json_t *)block);
        int is_dropped = kept && json_string_length(kept) == 0 && json_string_length(text) > 0;
        if (kept && json_is_object(copy)) json_object_set(copy, "text", kept);
        if (!is_dropped) json_array_append(blocks, copy);
        json_decref(kept);
        json_decref(copy);
    }
    return blocks;
}

int api_read_system(void *out, const json_t *v, const char *name, api_error *err) {
    api_request *r = out;
    sl_text text = {0};
    if (!json_is_string(v) && !json_is_array(v)) return api_wrong_type(v, name, "a string or a list of text blocks", err);
    if (!r->messages && !(r->messages = json_array())) return api_no_memory(err);
    json_t *kept = system_without_billing(v);
    int rc = kept ? api_join_text(kept, text_types, name, &text, err) : api_no_memory(err);
    if (!rc && text.n)
        rc = json_array_insert_new(r->messages, 0, json_pack("{s:s, s:o}", "role", "system", "content", api_text_json(&text)))
                 ? api_no_memory(err)
                 : 0;
    sl_text_free(&text);
    json_decref(kept);
    return rc;
}

// ---- messages ----

// Text blocks of one message become one message, and each result of a tool a message of its own, in the order of the blocks.
typedef struct turn {
    json_t *list;
    const char *role, *name;
    json_t *texts; // blocks that are not a message yet

    json_t *reasoning; // blocks
    json_t *calls;     // blocks
} turn;

static int end_texts(turn *t, api_error *err) {
    if (!json_array_size(t->texts)) return 0;
    int rc = api_add_message(t->list, t->role, t->texts, text_types, t->name, err);
    json_array_clear(t->texts);
    return rc;
}

static int keep(json_t *list, const json_t *block, api_error *err) {
    return json_array_append(list, (json_t *)block) ? api_no_memory(err) : 0;
}

static int read_result(turn *t, const json_t *block, const char *name, api_error *err) {
    const char *id;
    int rc = end_texts(t, err);
    if (!rc) rc = api_string(sl_json_get(block, "tool_use_id"), name, &id, err);
    if (!rc && !id) rc = api_fail(err, 400, name, "%s.tool_use_id is missing", name);
    return rc ? rc : api_add_result(t->list, id, sl_json_get(block, "content"), text_types, name, err);
}

static int read_block(void *of, const json_t *block, const char *name, api_error *err) {
    turn *t = of;
    const char *type = json_string_value(sl_json_get(block, "type"));
    int is_reply = !strcmp(t->role, "assistant");
    if (!json_is_object(block)) return api_wrong_type(block, name, "an object", err);
    if (type && is_reply && !strcmp(type, "thinking")) return keep(t->reasoning, block, err);
    if (type && is_reply && !strcmp(type, "redacted_thinking")) return 0; // only the server that wrote it can read it
    if (type && is_reply && !strcmp(type, "tool_use")) return keep(t->calls, block, err);
    if (type && !is_reply && !strcmp(type, "tool_result")) return read_result(t, block, name, err);
    return keep(t->texts, block, err); // api_join_text names another type
}

static int add_reasoning(turn *t, json_t *reply, api_error *err) {
    sl_text text = {0};
    sl_error why;
    int rc = 0;
    for (size_t i = 0; !rc && i < json_array_size(t->reasoning); i++) {
        const json_t *s = sl_json_get(json_array_get(t->reasoning, i), "thinking");
        if (!json_is_string(s))
            rc = api_wrong_type(s, t->name, "text as thinking", err);
        else if (sl_text_append(&text, json_string_value(s), json_string_length(s), &why))
            rc = api_no_memory(err);
    }
    if (!rc && text.n && json_object_set_new(reply, "reasoning_content", api_text_json(&text))) rc = api_no_memory(err);
    sl_text_free(&text);
    return rc;
}

static int end_reply(turn *t, api_error *err) {
    int rc = api_add_message(t->list, "assistant", t->texts, text_types, t->name, err);
    json_t *reply = rc ? NULL : json_array_get(t->list, json_array_size(t->list) - 1);
    if (!rc) rc = add_reasoning(t, reply, err);
    for (size_t i = 0; !rc && i < json_array_size(t->calls); i++) {
        const json_t *block = json_array_get(t->calls, i), *input = sl_json_get(block, "input");
        const char *id, *function;
        rc = api_string(sl_json_get(block, "id"), t->name, &id, err);
        if (!rc) rc = api_string(sl_json_get(block, "name"), t->name, &function, err);
        if (!rc && !function) rc = api_fail(err, 400, t->name, "%s: a tool_use block has no name", t->name);
        if (!rc && input && !json_is_object(input)) rc = api_wrong_type(input, t->name, "an object as input", err);
        if (!rc) rc = api_add_call(reply, id, function, input, err);
    }
    return rc;
}

static int read_blocks(turn *t, const json_t *content, api_error *err) {
    int rc = api_read_items(t, content, t->name, read_block, err);
    if (rc) return rc;
    return !strcmp(t->role, "assistant") ? end_reply(t, err) : end_texts(t, err);
}

static int read_message(void *list, const json_t *message, const char *name, api_error *err) {
    static const char *const roles[] = {"user", "assistant", "system"};
    const char *role = json_string_value(sl_json_get(message, "role")), *found = NULL;
    const json_t *content = sl_json_get(message, "content");
    char field[API_NAME];
    for (int i = 0; role && i < 3; i++)
        if (!strcmp(role, roles[i])) found = roles[i];
    if (!json_is_object(message)) return api_wrong_type(message, name, "an object", err);
    if (!found)
        return api_fail(err, 400, name, "%s.role is %.40s, expected user, assistant or system", name, role ? role : "missing");
    snprintf(field, sizeof field, "%.100s.content", name);
    if (!json_is_array(content) && !json_is_string(content))
        return api_wrong_type(content, field, "a string or a list of blocks", err);
    if (json_is_string(content)) return api_add_message(list, found, content, text_types, field, err);
    turn t = {list, found, field, json_array(), json_array(), json_array()};
    int rc = t.texts && t.reasoning && t.calls ? read_blocks(&t, content, err) : api_no_memory(err);
    json_decref(t.texts);
    json_decref(t.reasoning);
    json_decref(t.calls);
    return rc;
}

int api_read_anthropic_messages(void *out, const json_t *v, const char *name, api_error *err) {
    api_request *r = out;
    json_t *messages = api_messages(r);
    int rc = messages ? api_read_items(messages, v, name, read_message, err) : api_no_memory(err);
    if (rc || !json_array_size(v)) return rc;
    // An assistant's message at the end is the beginning of the reply.
    const json_t *last = json_array_get(messages, json_array_size(messages) - 1);
    const char *role = json_string_value(json_object_get(last, "role"));
    r->continue_final = role && !strcmp(role, "assistant") && !json_object_get(last, "tool_calls");
    return 0;
}

// ---- tools ----

// Tools that Anthropic's servers run have a type of their own and no schema. They are left out.
static int read_tool(void *out, const json_t *tool, const char *name, api_error *err) {
    const char *type = json_string_value(sl_json_get(tool, "type"));
    if (!json_is_object(tool)) return api_wrong_type(tool, name, "an object", err);
    if (type && strcmp(type, "custom") && !sl_json_get(tool, "input_schema")) return 0;
    return api_add_tool(out, sl_json_get(tool, "name"), sl_json_get(tool, "description"), sl_json_get(tool, "input_schema"),
                        sl_json_get(tool, "strict"), name, err);
}

int api_read_anthropic_tools(void *out, const json_t *v, const char *name, api_error *err) {
    return api_read_items(out, v, name, read_tool, err);
}

int api_read_anthropic_choice(void *out, const json_t *v, const char *name, api_error *err) {
    static const struct {
        const char *type;
        api_tool_choice choice;
    } types[] = {{"auto", API_TOOLS_AUTO}, {"any", API_TOOLS_REQUIRED}, {"tool", API_TOOLS_NAMED}, {"none", API_TOOLS_NONE}};
    api_request *r = out;
    const char *type = json_string_value(sl_json_get(v, "type"));
    if (!json_is_object(v)) return api_wrong_type(v, name, "an object", err);
    if (json_is_true(sl_json_get(v, "disable_parallel_tool_use"))) r->parallel_tool_calls = 0;
    for (size_t i = 0; type && i < sizeof types / sizeof *types; i++)
        if (!strcmp(types[i].type, type)) {
            r->tool_choice = types[i].choice;
            if (r->tool_choice != API_TOOLS_NAMED) return 0;
            int rc = api_string(sl_json_get(v, "name"), name, &r->tool_name, err);
            return rc || r->tool_name ? rc : api_fail(err, 400, name, "%s.name is missing", name);
        }
    return api_fail(err, 400, name, "%s.type is %.40s, expected auto, any, tool or none", name, type ? type : "missing");
}
