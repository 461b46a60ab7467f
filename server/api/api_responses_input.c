// server/api/api_responses_input.c - input and tools of /v1/responses, which Codex CLI sends. Every request holds the whole
// conversation.
#include "server/api/api_input.h"

#include <string.h>

static const char *const text_types[] = {"input_text",   "output_text",    "text", "refusal",
                                         "summary_text", "reasoning_text", NULL};

// The message of the assistant that is not finished: reasoning, text and calls of one turn are items of their own. A new one if
// the last message is another one.
static json_t *open_reply(json_t *list) {
    json_t *last = json_array_get(list, json_array_size(list) - 1);
    const char *role = json_string_value(json_object_get(last, "role"));
    if (json_array_size(list) && role && !strcmp(role, "assistant")) return last;
    json_array_append_new(list, json_pack("{s:s, s:s}", "role", "assistant", "content", ""));
    return json_array_get(list, json_array_size(list) - 1);
}

// Appends a text to a member of the open reply.
static int extend_reply(json_t *list, const char *member, const json_t *content, const char *name, api_error *err) {
    sl_text text = {0};
    sl_error why;
    json_t *reply = open_reply(list), *old = json_object_get(reply, member);
    if (!reply) return api_no_memory(err);
    int rc = sl_text_append(&text, old ? json_string_value(old) : "", json_string_length(old), &why) ? api_no_memory(err) : 0;
    if (!rc) rc = api_join_text(content, text_types, name, &text, err);
    if (!rc && (text.n || old)) rc = json_object_set_new(reply, member, api_text_json(&text)) ? api_no_memory(err) : 0;
    sl_text_free(&text);
    return rc;
}

static int read_message(json_t *list, const json_t *item, const char *name, api_error *err) {
    const char *role = json_string_value(sl_json_get(item, "role"));
    const json_t *content = sl_json_get(item, "content");
    if (!content) return api_fail(err, 400, name, "%s.content is missing", name);
    if (role && !strcmp(role, "assistant")) return extend_reply(list, "content", content, name, err);
    if (role && (!strcmp(role, "system") || !strcmp(role, "developer")))
        return api_add_message(list, "system", content, text_types, name, err);
    if (role && !strcmp(role, "user")) return api_add_message(list, "user", content, text_types, name, err);
    return api_fail(err, 400, name, "%s.role is %.40s, expected user, system, developer or assistant", name,
                    role ? role : "missing");
}

static int read_call(json_t *list, const json_t *item, const char *name, api_error *err) {
    const char *id, *function;
    const json_t *arguments = sl_json_get(item, "arguments");
    json_t *reply = open_reply(list);
    if (!reply) return api_no_memory(err);
    int rc = api_string(sl_json_get(item, "call_id"), name, &id, err);
    if (!rc) rc = api_string(sl_json_get(item, "name"), name, &function, err);
    if (!rc && !function) rc = api_fail(err, 400, name, "%s.name is missing", name);
    if (!rc && arguments && !json_is_string(arguments)) rc = api_wrong_type(arguments, name, "a string as arguments", err);
    return rc ? rc : api_add_call(reply, id, function, arguments, err);
}

static int read_result(json_t *list, const json_t *item, const char *name, api_error *err) {
    const char *id;
    int rc = api_string(sl_json_get(item, "call_id"), name, &id, err);
    return rc ? rc : api_add_result(list, id, sl_json_get(item, "output"), text_types, name, err);
}

static int read_item(void *list, const json_t *item, const char *name, api_error *err) {
    const char *type = json_string_value(sl_json_get(item, "type"));
    if (!json_is_object(item)) return api_wrong_type(item, name, "an object", err);
    if (!type || !strcmp(type, "message")) return read_message(list, item, name, err);
    if (!strcmp(type, "function_call")) return read_call(list, item, name, err);
    if (!strcmp(type, "function_call_output")) return read_result(list, item, name, err);
    if (!strcmp(type, "reasoning")) { // encrypted_content is of another server
        const json_t *content = sl_json_get(item, "content");
        return extend_reply(list, "reasoning_content", content ? content : sl_json_get(item, "summary"), name, err);
    }
    return api_fail(err, 400, name, "%s.type is %.40s, expected message, reasoning, function_call or function_call_output",
                    name, type);
}

int api_read_input(void *out, const json_t *v, const char *name, api_error *err) {
    if (!json_is_string(v) && !json_is_array(v)) return api_wrong_type(v, name, "a string or a list of items", err);
    json_t *messages = api_messages(out); // instructions that are read already are the first message
    if (!messages) return api_no_memory(err);
    if (json_is_string(v)) return api_add_message(messages, "user", v, text_types, name, err);
    return api_read_items(messages, v, name, read_item, err);
}

int api_read_instructions(void *out, const json_t *v, const char *name, api_error *err) {
    if (!json_is_string(v)) return api_wrong_type(v, name, "a string", err);
    if (!json_string_length(v)) return 0;
    json_t *messages = api_messages(out); // NULL: json_array_insert_new frees the message and fails
    json_t *message = json_pack("{s:s, s:O}", "role", "system", "content", v);
    return json_array_insert_new(messages, 0, message) ? api_no_memory(err) : 0;
}

// Tools that only OpenAI's servers can run are left out, as the model could not use them.
static int read_tool(void *out, const json_t *tool, const char *name, api_error *err) {
    const char *type = json_string_value(sl_json_get(tool, "type"));
    if (!type) return api_fail(err, 400, name, "%s.type is missing, expected function", name);
    if (strcmp(type, "function")) return 0;
    return api_add_tool(out, sl_json_get(tool, "name"), sl_json_get(tool, "description"), sl_json_get(tool, "parameters"),
                        sl_json_get(tool, "strict"), name, err);
}

int api_read_responses_tools(void *out, const json_t *v, const char *name, api_error *err) {
    return api_read_items(out, v, name, read_tool, err);
}
