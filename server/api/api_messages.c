// server/api/api_messages.c - messages and tools of /v1/chat/completions, and what all dialects need to make messages of.
#include "server/api/api_input.h"

#include <string.h>

// ---- content ----

static int is_one_of(const char *s, const char *const *names) {
    for (; *names; names++)
        if (!strcmp(*names, s)) return 1;
    return 0;
}

static int append(sl_text *out, const char *s, size_t n, api_error *err) {
    sl_error why;
    return sl_text_append(out, s, n, &why) ? api_no_memory(err) : 0;
}

static int join_part(const json_t *part, const char *const *types, const char *name, sl_text *out, api_error *err) {
    static const char *const no_text[] = {"image", "image_url", "input_image", "input_audio", "audio",    "audio_url",
                                          "video", "video_url", "input_file",  "file",        "document", NULL};
    const char *type = json_string_value(sl_json_get(part, "type"));
    if (!json_is_object(part)) return api_wrong_type(part, name, "a part with a type", err);
    if (!type) return api_fail(err, 400, name, "%s.type is %s, expected text", name, sl_json_type(sl_json_get(part, "type")));
    if (is_one_of(type, no_text))
        return api_fail(err, 400, name, "%s has the type %s: this server reads text only, no images, audio or files", name,
                        type);
    if (!is_one_of(type, types)) return api_fail(err, 400, name, "%s has the type %.40s, expected %s", name, type, types[0]);
    const json_t *text = sl_json_get(part, !strcmp(type, "refusal") ? "refusal" : "text");
    if (!json_is_string(text)) return api_wrong_type(text, name, "text", err);
    return append(out, json_string_value(text), json_string_length(text), err);
}

int api_join_text(const json_t *content, const char *const *types, const char *name, sl_text *out, api_error *err) {
    char item[API_NAME];
    int rc = append(out, "", 0, err);
    if (rc || !content) return rc;
    if (json_is_string(content)) return append(out, json_string_value(content), json_string_length(content), err);
    if (!json_is_array(content)) return api_wrong_type(content, name, "a string or a list of parts", err);
    for (size_t i = 0; !rc && i < json_array_size(content); i++) {
        if (i > 0) rc = append(out, "\n", 1, err);
        if (!rc) rc = join_part(json_array_get(content, i), types, api_item_name(item, name, i, ""), out, err);
    }
    return rc;
}

json_t *api_text_json(const sl_text *text) {
    return json_stringn(text->data ? text->data : "", text->n);
}

int api_add_message(json_t *list, const char *role, const json_t *content, const char *const *types, const char *name,
                    api_error *err) {
    sl_text text = {0};
    int rc = api_join_text(content, types, name, &text, err);
    if (!rc && json_array_append_new(list, json_pack("{s:s, s:o}", "role", role, "content", api_text_json(&text))))
        rc = api_no_memory(err);
    sl_text_free(&text);
    return rc;
}

// ---- calls of tools ----

// Templates of transformers take the arguments as an object. A text that is none stays: a model wrote it, and an error would
// end the conversation.
static json_t *arguments_json(const json_t *arguments) {
    if (!arguments) return json_object();
    if (!json_is_string(arguments)) return json_incref((json_t *)arguments);
    if (!json_string_length(arguments)) return json_object();
    json_t *object = json_loadb(json_string_value(arguments), json_string_length(arguments), JSON_ALLOW_NUL, NULL);
    if (json_is_object(object)) return object;
    json_decref(object);
    return json_incref((json_t *)arguments);
}

int api_add_call(json_t *message, const char *id, const char *function, const json_t *arguments, api_error *err) {
    json_t *calls = json_object_get(message, "tool_calls");
    if (!calls) json_object_set_new(message, "tool_calls", calls = json_array());
    json_t *call = json_pack("{s:s*, s:s, s:{s:s, s:o}}", "id", id, "type", "function", "function", "name", function,
                             "arguments", arguments_json(arguments));
    return json_array_append_new(calls, call) ? api_no_memory(err) : 0;
}

const char *api_called_function(const json_t *messages, const char *id) {
    for (size_t i = json_array_size(messages); i-- > 0;) {
        const json_t *calls = json_object_get(json_array_get(messages, i), "tool_calls");
        for (size_t j = 0; j < json_array_size(calls); j++) {
            const json_t *call = json_array_get(calls, j);
            const char *found = json_string_value(json_object_get(call, "id"));
            if (found && !strcmp(found, id))
                return json_string_value(json_object_get(json_object_get(call, "function"), "name"));
        }
    }
    return NULL;
}

int api_add_result(json_t *list, const char *id, const json_t *content, const char *const *types, const char *name,
                   api_error *err) {
    const char *function = id ? api_called_function(list, id) : NULL;
    int rc = api_add_message(list, "tool", content, types, name, err);
    json_t *message = rc ? NULL : json_array_get(list, json_array_size(list) - 1);
    if (!rc && id) rc = json_object_set_new(message, "tool_call_id", json_string(id)) ? api_no_memory(err) : 0;
    if (!rc && function) rc = json_object_set_new(message, "name", json_string(function)) ? api_no_memory(err) : 0;
    return rc;
}

static int read_call(void *message, const json_t *call, const char *name, api_error *err) {
    const json_t *function = sl_json_get(call, "function"), *arguments = sl_json_get(function, "arguments");
    const char *id, *function_name, *type;
    int rc = api_string(sl_json_get(call, "type"), name, &type, err);
    if (!rc && type && strcmp(type, "function"))
        rc = api_fail(err, 400, name, "%s.type is %.40s, expected function", name, type);
    if (!rc && !json_is_object(function)) rc = api_wrong_type(function, name, "a function", err);
    if (!rc) rc = api_string(sl_json_get(call, "id"), name, &id, err);
    if (!rc) rc = api_string(sl_json_get(function, "name"), name, &function_name, err);
    if (!rc && !function_name) rc = api_fail(err, 400, name, "%s: the name of the function is missing", name);
    if (!rc && arguments && !json_is_string(arguments) && !json_is_object(arguments))
        rc = api_wrong_type(arguments, name, "a string of JSON as arguments", err);
    return rc ? rc : api_add_call(message, id, function_name, arguments, err);
}

// ---- messages ----

static const char *const text_types[] = {"text", "refusal", NULL};

static int read_reasoning(json_t *out, const json_t *message, const char *name, api_error *err) {
    const json_t *v = sl_json_get(message, "reasoning_content");
    if (!v) v = sl_json_get(message, "reasoning");
    if (!v) return 0;
    if (!json_is_string(v)) return api_wrong_type(v, name, "a string as reasoning", err);
    return json_object_set(out, "reasoning_content", (json_t *)v) ? api_no_memory(err) : 0;
}

static int read_assistant(json_t *out, const json_t *message, const char *name, api_error *err) {
    const json_t *calls = sl_json_get(message, "tool_calls");
    int rc = read_reasoning(out, message, name, err);
    if (!rc && sl_json_get(message, "function_call"))
        rc = api_fail(err, 400, name, "%s.function_call: expected tool_calls", name);
    if (!rc && calls && !json_is_array(calls)) rc = api_wrong_type(calls, name, "a list as tool_calls", err);
    char list[API_NAME];
    snprintf(list, sizeof list, "%.100s.tool_calls", name);
    return rc || !calls ? rc : api_read_items(out, calls, list, read_call, err);
}

static const char *role_of(const char *role) {
    static const char *const roles[] = {"system", "user", "assistant", "tool", "ipython", NULL};
    if (!strcmp(role, "developer")) return "system";
    for (const char *const *r = roles; *r; r++)
        if (!strcmp(*r, role)) return *r;
    return NULL;
}

static int read_message(void *list, const json_t *message, const char *name, api_error *err) {
    const char *role, *id, *author;
    if (!json_is_object(message)) return api_wrong_type(message, name, "an object", err);
    int rc = api_string(sl_json_get(message, "role"), name, &role, err);
    if (rc) return rc;
    if (!role || !role_of(role))
        return api_fail(err, 400, name, "%s.role is %.40s, expected system, developer, user, assistant or tool", name,
                        role ? role : "missing");
    rc = api_string(sl_json_get(message, "tool_call_id"), name, &id, err);
    if (!rc) rc = api_string(sl_json_get(message, "name"), name, &author, err);
    if (rc) return rc;
    const json_t *content = sl_json_get(message, "content");
    char field[API_NAME];
    snprintf(field, sizeof field, "%.100s.content", name);
    if (!content && strcmp(role, "assistant") != 0) return api_fail(err, 400, field, "%s is missing", field);
    if (!strcmp(role, "tool"))
        rc = api_add_result(list, id, content, text_types, field, err);
    else
        rc = api_add_message(list, role_of(role), content, text_types, field, err);
    json_t *out = rc ? NULL : json_array_get(list, json_array_size(list) - 1);
    if (!rc && author) rc = json_object_set_new(out, "name", json_string(author)) ? api_no_memory(err) : 0;
    return rc || strcmp(role, "assistant") != 0 ? rc : read_assistant(out, message, name, err);
}

json_t *api_messages(api_request *r) {
    if (!r->messages) r->messages = json_array();
    return r->messages;
}

int api_read_messages(void *out, const json_t *v, const char *name, api_error *err) {
    json_t *messages = api_messages(out);
    return messages ? api_read_items(messages, v, name, read_message, err) : api_no_memory(err);
}

// ---- tools ----

int api_add_tool(api_request *r, const json_t *function, const json_t *description, const json_t *parameters,
                 const json_t *strict, const char *name, api_error *err) {
    if (!json_is_string(function) || !json_string_length(function))
        return api_wrong_type(function, name, "the name of a function", err);
    if (description && !json_is_string(description)) return api_wrong_type(description, name, "a string as description", err);
    if (parameters && !json_is_object(parameters)) return api_wrong_type(parameters, name, "an object as parameters", err);
    if (!r->tools && !(r->tools = json_array())) return api_no_memory(err);
    json_t *tool =
        json_pack("{s:s, s:{s:O, s:O*, s:O*, s:O*}}", "type", "function", "function", "name", function, "description",
                  description, "parameters", parameters, "strict", json_is_boolean(strict) ? strict : NULL);
    return json_array_append_new(r->tools, tool) ? api_no_memory(err) : 0;
}

static int read_tool(void *out, const json_t *tool, const char *name, api_error *err) {
    const json_t *function = sl_json_get(tool, "function");
    const char *type = json_string_value(sl_json_get(tool, "type"));
    if (!json_is_object(tool)) return api_wrong_type(tool, name, "an object", err);
    if (type && strcmp(type, "function")) return api_fail(err, 400, name, "%s.type is %.40s, expected function", name, type);
    if (!json_is_object(function)) return api_wrong_type(function, name, "a function", err);
    return api_add_tool(out, sl_json_get(function, "name"), sl_json_get(function, "description"),
                        sl_json_get(function, "parameters"), sl_json_get(function, "strict"), name, err);
}

int api_read_tools(void *out, const json_t *v, const char *name, api_error *err) {
    return api_read_items(out, v, name, read_tool, err);
}

// "none", "auto", "required", {type: "function", function: {name}}, or {type: "function", name} in /v1/responses.
int api_read_tool_choice(void *out, const json_t *v, const char *name, api_error *err) {
    static const char *const words[] = {"auto", "none", "required"};
    api_request *r = out;
    if (json_is_object(v)) {
        const json_t *function = sl_json_get(v, "function");
        const char *type = json_string_value(sl_json_get(v, "type"));
        if (!type || strcmp(type, "function"))
            return api_fail(err, 400, name, "%s.type is %.40s, expected function", name, type ? type : "missing");
        r->tool_choice = API_TOOLS_NAMED;
        int rc = api_string(sl_json_get(json_is_object(function) ? function : v, "name"), name, &r->tool_name, err);
        if (!rc && !r->tool_name) rc = api_fail(err, 400, name, "%s: the name of the function is missing", name);
        return rc;
    }
    if (!json_is_string(v)) return api_wrong_type(v, name, "auto, none, required or an object", err);
    for (int i = 0; i < 3; i++)
        if (!strcmp(words[i], json_string_value(v))) {
            r->tool_choice = (api_tool_choice)i;
            return 0;
        }
    return api_fail(err, 400, name, "%s is %.40s, expected auto, none, required or an object", name, json_string_value(v));
}
