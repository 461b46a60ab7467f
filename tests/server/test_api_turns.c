// tests/server/test_api_turns.c - conversations of coding agents over many turns: what the server answers comes back in the
// next request, and the prompt of a turn begins with the prompt and the answer of the turn before. So a prefix cache hits.
#include "server/api/replies.h"
#include "tests/test.h"
#include "tokenizer/chat/chat.h"

#include <stdlib.h>
#include <string.h>

enum { TURNS = 12 };

typedef struct dialect {
    api_endpoint endpoint;
    const char *list, *content; // fields: the list of the body, the list of the answer
} dialect;

static char *render(const sl_chat_template *t, const api_request *q) {
    sl_prompt p = {0};
    sl_error e = {0};
    const sl_chat_request r = {.messages = q->messages, .tools = q->tools, .options = q->options};
    CHECK_OK(sl_chat_render(t, NULL, &r, &p, &e), e);
    char *text = strndup(p.text.data, p.text.n);
    sl_prompt_free(&p);
    return text;
}

// What the model writes in a turn. The last turn calls no tool.
static void generated(int turn, char *out, size_t size) {
    int n = snprintf(out, size, "Step %d é.", turn);
    for (int i = 0; i <= turn % 2 && turn + 1 < TURNS; i++)
        n += snprintf(out + n, size - (size_t)n,
                      "\n<tool_call>\n{\"name\": \"read\", \"arguments\": {\"path\": \"f%d\", \"n\": %d}}\n</tool_call>", turn,
                      i);
}

static json_t *answer(const api_request *q, int turn, const char *text) {
    api_reply *r;
    sl_text out = {0};
    sl_error e = {0};
    const api_reply_options o = {.request = q, .id = "a", .model = "m", .calls = API_CALLS_HERMES, .number = (uint64_t)turn};
    CHECK_OK(api_reply_new(&o, &r, &e), e);
    CHECK_OK(api_reply_piece(r, &(api_piece){.text = text, .n = strlen(text), .n_generated = 9, .finished = 1}, &out, &e), e);
    CHECK_OK(api_reply_end(r, &out, &e), e);
    json_t *v = json_loadb(out.data, out.n, 0, NULL);
    CHECK(v != NULL);
    api_reply_free(r);
    sl_text_free(&out);
    return v;
}

// ---- the client's side ----

static json_t *first_body(const dialect *d) {
    if (d->endpoint == API_MESSAGES)
        return json_pack("{s:i, s:s, s:[{s:s, s:s, s:{s:s}}], s:[{s:s, s:s}]}", "max_tokens", 100, "system", "", "tools",
                         "name", "read", "description", "d", "input_schema", "type", "object", "messages", "role", "user",
                         "content", "Go");
    if (d->endpoint == API_RESPONSES)
        return json_pack("{s:s, s:[{s:s, s:s, s:s, s:{s:s}}], s:[{s:s, s:s}]}", "instructions", "Rules.", "tools", "type",
                         "function", "name", "read", "description", "d", "parameters", "type", "object", "input", "role",
                         "user", "content", "Go");
    return json_pack("{s:[{s:s, s:{s:s, s:s, s:{s:s}}}], s:[{s:s, s:s}, {s:s, s:s}]}", "tools", "type", "function", "function",
                     "name", "read", "description", "d", "parameters", "type", "object", "messages", "role", "system",
                     "content", "Rules.", "role", "user", "content", "Go");
}

static void add_results(const dialect *d, json_t *list, const json_t *reply) {
    const json_t *parts = json_object_get(reply, d->content);
    json_t *blocks = json_array();
    if (d->endpoint == API_CHAT) {
        const json_t *message = json_object_get(json_array_get(parts, 0), "message");
        json_array_append(list, (json_t *)message);
        parts = json_object_get(message, "tool_calls");
    }
    if (d->endpoint == API_MESSAGES)
        json_array_append_new(list, json_pack("{s:s, s:O}", "role", "assistant", "content", parts));
    if (d->endpoint == API_RESPONSES) json_array_extend(list, (json_t *)parts);
    for (size_t i = 0; i < json_array_size(parts); i++) {
        const json_t *part = json_array_get(parts, i), *id = json_object_get(part, "id"),
                     *call = json_object_get(part, "call_id");
        const char *type = json_string_value(json_object_get(part, "type"));
        if (d->endpoint == API_CHAT)
            json_array_append_new(list, json_pack("{s:s, s:O, s:s}", "role", "tool", "tool_call_id", id, "content", "found"));
        else if (!strcmp(type, "tool_use"))
            json_array_append_new(blocks,
                                  json_pack("{s:s, s:O, s:s}", "type", "tool_result", "tool_use_id", id, "content", "found"));
        else if (!strcmp(type, "function_call"))
            json_array_append_new(
                list, json_pack("{s:s, s:O, s:s}", "type", "function_call_output", "call_id", call, "output", "found"));
    }
    if (json_array_size(blocks)) json_array_append_new(list, json_pack("{s:s, s:O}", "role", "user", "content", blocks));
    json_decref(blocks);
}

static void conversation(const dialect *d, const sl_chat_template *t) {
    json_t *body = first_body(d), *list = json_object_get(body, d->list);
    char *before = strdup("");
    CHECK(list != NULL);
    for (int turn = 0; turn < TURNS; turn++) {
        char text[512], system[128];
        api_request q;
        api_error why;
        snprintf(system, sizeof system, "x-anthropic-billing-header: v=1; cch=%x;\nRules.", turn * 7919);
        if (d->endpoint == API_MESSAGES) json_object_set_new(body, "system", json_string(system));
        char *sent = json_dumps(body, 0);
        if (api_request_read(d->endpoint, sent, strlen(sent), &q, &why)) FAIL("turn %d: %s", turn, why.why.message);
        char *prompt = render(t, &q);
        if (strncmp(prompt, before, strlen(before))) FAIL("turn %d: %s does not begin with %s", turn, prompt, before);
        CHECK(strstr(prompt, "Rules.") && !strstr(prompt, "billing"));
        generated(turn, text, sizeof text);
        json_t *reply = answer(&q, turn, text);
        add_results(d, list, reply);
        free(before);
        before = malloc(strlen(prompt) + strlen(text) + 1);
        sprintf(before, "%s%s", prompt, text);
        json_decref(reply);
        api_request_free(&q);
        free(prompt);
        free(sent);
    }
    CHECK(json_array_size(list) > 2 * TURNS - 2);
    free(before);
    json_decref(body);
}

static void prefixes(void) {
    static const dialect dialects[] = {
        {API_CHAT, "messages", "choices"}, {API_RESPONSES, "input", "output"}, {API_MESSAGES, "messages", "content"}};
    sl_chat_template *t;
    sl_error e = {0};
    CHECK_OK(sl_chat_load(&SL_FOLDER("."), "tests/chat/families/qwen2.5-tools.jinja", &t, &e), e);
    for (int i = 0; i < 3; i++) conversation(&dialects[i], t);
    sl_chat_template_free(t);
}

static const test_case cases[] = {{"prefixes", 0, prefixes}, {0}};
extern const test_suite suite_api_turns;
const test_suite suite_api_turns = {"api_turns", cases};
