// tests/server/test_api_replies.c - answers in each dialect. A stream is read as a client reads it, and must say the same as
// the body that is not streamed.
#include "server/api/replies.h"
#include "tests/test.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

// ---- one answer, given piece by piece ----

typedef struct script {
    const char *body; // the request's body, without `stream`
    api_endpoint endpoint;
    const char *texts[2]; // the text of each choice; NULL: no more
    sl_stop stop;
    const char *stop_string;
    int n_bytes; // characters of a piece
    api_call_format calls;
    int reasoning;
} script;

static size_t next_piece(const char *text, size_t at, int n_chars) {
    for (size_t n = strlen(text); at < n && n_chars > 0; n_chars--) do
            at++;
        while (at < n && ((unsigned char)text[at] & 0xc0) == 0x80);
    return at;
}

static void give(api_reply *r, const script *s, sl_text *out) {
    sl_error e = {0};
    size_t at[2] = {0, 0};
    int n = s->texts[1] ? 2 : 1, n_done = 0, done[2] = {0};
    api_reply_set_prompt(r, 11, 4);
    CHECK_OK(api_reply_begin(r, out, &e), e);
    CHECK_OK(api_reply_keep_alive(r, out, &e), e);
    while (n_done < n)
        for (int i = 0; i < n; i++) { // the choices take turns
            if (done[i]) continue;
            size_t to = next_piece(s->texts[i], at[i], s->n_bytes);
            done[i] = to == strlen(s->texts[i]);
            n_done += done[i];
            const api_piece piece = {.choice = i,
                                     .text = s->texts[i] + at[i],
                                     .n = to - at[i],
                                     .n_generated = 1,
                                     .finished = done[i],
                                     .stop = s->stop,
                                     .stop_string = s->stop_string};
            CHECK_OK(api_reply_piece(r, &piece, out, &e), e);
            at[i] = to;
        }
    const api_answer_bits bits[] = {{3, 0xabcdef}, {4, 1}};
    api_reply_set_attention(r, &(api_attention){.method = "santa-prop:S=128",
                                                .seed = 9,
                                                .work = {.bytes = 5, .dense_bytes = 50, .exact_heads = 64},
                                                .rows = 7,
                                                .dense_rows = 70,
                                                .answers = bits,
                                                .n_answers = n});
    CHECK_OK(api_reply_end(r, out, &e), e);
}

static sl_text answer(const script *s, int stream) {
    api_request q;
    api_error why = {0};
    sl_error e = {0};
    sl_text out = {0};
    api_reply *r;
    json_t *body = json_loads(s->body, 0, NULL);
    json_object_set_new(body, "stream", json_boolean(stream));
    char *text = json_dumps(body, 0);
    if (api_request_read(s->endpoint, text, strlen(text), &q, &why)) FAIL("%s: %s", text, why.why.message);
    const api_reply_options o = {.request = &q,
                                 .id = "x1",
                                 .model = "m",
                                 .created = 1700000000,
                                 .calls = s->calls,
                                 .reasoning = s->reasoning,
                                 .number = 5};
    CHECK_OK(api_reply_new(&o, &r, &e), e);
    CHECK_STR(api_reply_type(r), stream ? "text/event-stream" : "application/json");
    give(r, s, &out);
    api_reply_free(r);
    api_request_free(&q);
    free(text);
    json_decref(body);
    return out;
}

static json_t *whole_of(const script *s) {
    sl_text out = answer(s, 0);
    json_t *v = json_loadb(out.data, out.n, JSON_REJECT_DUPLICATES, NULL);
    if (!v) FAIL("no JSON: %s", out.data);
    sl_text_free(&out);
    return v;
}

// ---- a stream as a list of events {event, data} ----

static json_t *events_of(const script *s) {
    sl_text out = answer(s, 1);
    json_t *list = json_array();
    for (char *at = out.data, *end; *at; at = end + 2) {
        end = strstr(at, "\n\n");
        if (!end) FAIL("no end of an event: %s", at);
        *end = 0;
        if (at[0] == ':') continue;
        char *name = NULL, *data = at;
        if (!strncmp(at, "event: ", 7)) {
            name = at + 7;
            data = strchr(at, '\n');
            CHECK(data != NULL);
            *data++ = 0;
        }
        CHECK(!strncmp(data, "data: ", 6) && !strchr(data, '\n'));
        data += 6;
        json_t *v = !strcmp(data, "[DONE]") ? json_string(data) : json_loads(data, JSON_REJECT_DUPLICATES, NULL);
        if (!v) FAIL("no JSON in an event: %s", data);
        json_array_append_new(list, json_pack("{s:s?, s:o}", "event", name, "data", v));
    }
    sl_text_free(&out);
    return list;
}

static json_t *data_at(const json_t *events, size_t i) {
    return json_object_get(json_array_get(events, i), "data");
}

static const char *name_at(const json_t *events, size_t i) {
    const char *s = json_string_value(json_object_get(json_array_get(events, i), "event"));
    return s ? s : "";
}

static void same_json(const char *what, const json_t *got, const json_t *want) {
    if (json_equal((json_t *)got, (json_t *)want)) return;
    FAIL("%s: got %s, expected %s", what, json_dumps(got, JSON_ENCODE_ANY), json_dumps(want, JSON_ENCODE_ANY));
}

static void append_text(json_t *object, const char *key, const json_t *more) {
    const json_t *old = json_object_get(object, key);
    char *joined = malloc(json_string_length(old) + json_string_length(more) + 1);
    strcpy(joined, json_is_string(old) ? json_string_value(old) : "");
    strcat(joined, json_string_value(more));
    json_object_set_new(object, key, json_string(joined));
    free(joined);
}

static const json_t *choice_of(const json_t *chunk) {
    return json_array_get(json_object_get(chunk, "choices"), 0);
}

// ---- chat and completions ----

// Adds a delta to a message as clients do.
static void add_delta(json_t *message, const json_t *delta) {
    static const char *const texts[] = {"content", "reasoning_content", "reasoning"};
    for (int i = 0; i < 3; i++)
        if (json_object_get(delta, texts[i])) append_text(message, texts[i], json_object_get(delta, texts[i]));
    if (json_object_get(delta, "role")) json_object_set(message, "role", json_object_get(delta, "role"));
    const json_t *calls = json_object_get(delta, "tool_calls");
    for (size_t i = 0; i < json_array_size(calls); i++) {
        const json_t *call = json_array_get(calls, i);
        json_t *list = json_object_get(message, "tool_calls");
        if (!list) json_object_set_new(message, "tool_calls", list = json_array());
        size_t index = (size_t)json_integer_value(json_object_get(call, "index"));
        CHECK(index <= json_array_size(list));
        CHECK_INT(json_object_get(call, "id") != NULL, index == json_array_size(list)); // in the first delta only
        json_t *copy = json_deep_copy(call);
        json_object_del(copy, "index");
        if (index == json_array_size(list))
            json_array_append(list, copy);
        else
            append_text(json_object_get(json_array_get(list, index), "function"), "arguments",
                        json_object_get(json_object_get(call, "function"), "arguments"));
        json_decref(copy);
    }
}

// The choices of a stream, as a body has them.
static json_t *choices_of_stream(const json_t *events, int is_chat, size_t n_choices) {
    json_t *choices = json_array();
    for (size_t i = 0; i < n_choices; i++)
        json_array_append_new(choices, json_pack("{s:i, s:o}", "index", (int)i, is_chat ? "message" : "text",
                                                 is_chat ? json_pack("{s:n, s:n}", "content", "refusal") : json_string("")));
    for (size_t k = 0; k < json_array_size(events); k++) {
        const json_t *chunk = choice_of(data_at(events, k));
        if (!chunk) continue;
        json_t *choice = json_array_get(choices, (size_t)json_integer_value(json_object_get(chunk, "index")));
        CHECK(json_is_null(json_object_get(choice, "finish_reason")) || !json_object_get(choice, "finish_reason"));
        if (is_chat)
            add_delta(json_object_get(choice, "message"), json_object_get(chunk, "delta"));
        else
            append_text(choice, "text", json_object_get(chunk, "text"));
        if (json_object_get(chunk, "stop_reason"))
            json_object_set(choice, "stop_reason", json_object_get(chunk, "stop_reason"));
        json_object_set(choice, "finish_reason", json_object_get(chunk, "finish_reason"));
        json_object_set_new(choice, "logprobs", json_null());
    }
    for (size_t i = 0; is_chat && i < n_choices; i++) { // no text: null if there are calls
        json_t *message = json_object_get(json_array_get(choices, i), "message");
        if (!json_object_get(message, "tool_calls") && json_is_null(json_object_get(message, "content")))
            json_object_set_new(message, "content", json_string(""));
    }
    return choices;
}

static void check_openai(const script *s) {
    json_t *events = events_of(s), *whole = whole_of(s), *want = json_object_get(whole, "choices");
    int is_chat = s->endpoint == API_CHAT;
    size_t n = json_array_size(events);
    json_t *got = choices_of_stream(events, is_chat, json_array_size(want));
    same_json("choices", got, want);
    CHECK_STR(json_string_value(data_at(events, n - 1)), "[DONE]");
    const json_t *usage = json_object_get(data_at(events, n - 2), "usage");
    int asked = strstr(s->body, "include_usage\":true") != NULL, always = strstr(s->body, "continuous") != NULL;
    if (asked) {
        same_json("usage", usage, json_object_get(whole, "usage"));
        CHECK_INT(json_array_size(json_object_get(data_at(events, n - 2), "choices")), 0);
    }
    int seen[2] = {0};
    for (size_t k = 0; k + 1 + (size_t)asked < n; k++) {
        const json_t *v = data_at(events, k), *choice = choice_of(v), *delta = json_object_get(choice, "delta");
        int i = (int)json_integer_value(json_object_get(choice, "index"));
        CHECK_INT(json_array_size(json_object_get(v, "choices")), 1);
        CHECK_INT(json_object_get(v, "usage") != NULL, asked);
        CHECK_INT(json_is_object(json_object_get(v, "usage")), always);
        CHECK_STR(json_string_value(json_object_get(v, "object")), is_chat ? "chat.completion.chunk" : "text_completion");
        if (is_chat) CHECK_INT(json_object_get(delta, "role") != NULL, !seen[i]);
        if (is_chat && json_is_null(json_object_get(choice, "finish_reason")))
            CHECK(json_object_size(delta) > (size_t)!seen[i]);
        seen[i] = 1;
    }
    json_decref(got);
    json_decref(events);
    json_decref(whole);
}

// ---- responses ----

static void check_responses(const script *s) {
    json_t *events = events_of(s), *whole = whole_of(s), *items = json_array();
    size_t n = json_array_size(events);
    CHECK_STR(name_at(events, 0), "response.created");
    CHECK_STR(name_at(events, 1), "response.in_progress");
    CHECK_STR(name_at(events, n - 1), s->stop == SL_STOP_LENGTH ? "response.incomplete" : "response.completed");
    same_json("response", json_object_get(data_at(events, n - 1), "response"), whole);
    json_t *text = NULL;
    for (size_t k = 0; k < n; k++) {
        const json_t *v = data_at(events, k);
        const char *name = name_at(events, k);
        CHECK_STR(json_string_value(json_object_get(v, "type")), name);
        CHECK_INT(json_integer_value(json_object_get(v, "sequence_number")), k);
        if (!strcmp(name, "response.output_item.added")) {
            CHECK_INT(json_integer_value(json_object_get(v, "output_index")), json_array_size(items));
            text = json_object();
        }
        if (strstr(name, ".delta")) append_text(text, "text", json_object_get(v, "delta"));
        if (strstr(name, "_text.done")) same_json(name, json_object_get(text, "text"), json_object_get(v, "text"));
        if (strstr(name, "arguments.done")) same_json(name, json_object_get(text, "text"), json_object_get(v, "arguments"));
        if (!strcmp(name, "response.output_item.done")) {
            json_array_append(items, json_object_get(v, "item"));
            json_decref(text);
        }
    }
    same_json("items", items, json_object_get(whole, "output"));
    json_decref(items);
    json_decref(events);
    json_decref(whole);
}

// ---- messages ----

static void check_messages(const script *s) {
    static const char *const keys[] = {"text", "thinking", "partial_json"};
    json_t *events = events_of(s), *whole = whole_of(s);
    size_t n = json_array_size(events), k = 0;
    CHECK_STR(name_at(events, k), "message_start");
    json_t *message = json_object_get(data_at(events, k++), "message"), *content = json_object_get(message, "content"),
           *block = NULL;
    CHECK_STR(name_at(events, k++), "ping");
    for (; k + 2 < n; k++) {
        const json_t *v = data_at(events, k), *delta = json_object_get(v, "delta");
        const char *name = name_at(events, k);
        CHECK_STR(json_string_value(json_object_get(v, "type")), name);
        int is_start = !strcmp(name, "content_block_start");
        CHECK_INT(json_integer_value(json_object_get(v, "index")), (long long)json_array_size(content) - !is_start);
        if (is_start) json_array_append(content, block = json_object_get(v, "content_block"));
        for (int i = 0; delta && i < 3; i++)
            if (json_object_get(delta, keys[i])) append_text(block, keys[i], json_object_get(delta, keys[i]));
        const json_t *input = json_object_get(block, "partial_json");
        if (!strcmp(name, "content_block_stop") && input) {
            json_object_set_new(block, "input", json_loads(json_string_value(input), 0, NULL));
            json_object_del(block, "partial_json");
        }
    }
    CHECK_STR(name_at(events, k), "message_delta");
    json_object_update(message, json_object_get(data_at(events, k), "delta"));
    json_object_set(message, "usage", json_object_get(data_at(events, k), "usage"));
    CHECK_STR(name_at(events, k + 1), "message_stop");
    same_json("message", message, whole);
    json_decref(events);
    json_decref(whole);
}

// ---- all of them ----

#define TOOLS                                                                                                                  \
    "\"tools\":[{\"type\":\"function\",\"function\":{\"name\":\"f\"}},{\"type\":\"function\",\"function\":{\"name\":\"g\"}}]"
#define ASK "\"messages\":[{\"role\":\"user\",\"content\":\"p\"}]"

static const char *const answers[] = {
    "Hello",
    "",
    "é日本 🦥 x",
    "<think>\nWhy é?\n</think>\n\nBecause.",
    "<think>only",
    "<think>a</think><tool_call>{\"name\":\"f\",\"arguments\":{\"x\":1.10,\"s\":\"é\"}}</"
    "tool_call>\n<tool_call>{\"name\":\"g\"}</tool_call>",
    "First <tool_call>{\"name\":\"f\",\"arguments\":{\"x\":[1]}}</tool_call> then",
    "<tool_call>{\"name\":",
    "[1] < 2\n\n",
};

static const struct {
    api_endpoint endpoint;
    const char *body;
    void (*check)(const script *s);
} dialects[] = {
    {API_CHAT, "{" ASK "," TOOLS "}", check_openai},
    {API_CHAT, "{" ASK "}", check_openai},
    {API_CHAT, "{" ASK "," TOOLS ",\"stream_options\":{\"include_usage\":true}}", check_openai},
    {API_CHAT,
     "{" ASK "," TOOLS
     ",\"include_reasoning\":false,\"stream_options\":{\"include_usage\":true,\"continuous_usage_stats\":true}}",
     check_openai},
    {API_CHAT, "{" ASK "," TOOLS ",\"tool_choice\":\"none\",\"reasoning_format\":\"none\"}", check_openai},
    {API_COMPLETIONS, "{\"prompt\":\"p\"}", check_openai},
    {API_COMPLETIONS, "{\"prompt\":\"p\",\"stream_options\":{\"include_usage\":true}}", check_openai},
    {API_RESPONSES, "{\"input\":\"u\",\"tools\":[{\"type\":\"function\",\"name\":\"f\"}],\"temperature\":0.7}",
     check_responses},
    {API_MESSAGES, "{" ASK ",\"max_tokens\":9,\"tools\":[{\"name\":\"f\"}]}", check_messages},
};

static void streamed_is_whole(void) {
    static const sl_stop stops[] = {SL_STOP_END, SL_STOP_LENGTH, SL_STOP_STRING};
    static const int sizes[] = {1, 3, 1000};
    for (size_t d = 0; d < sizeof dialects / sizeof *dialects; d++)
        for (size_t i = 0; i < sizeof answers / sizeof *answers; i++)
            for (int k = 0; k < 9; k++) {
                const script s = {dialects[d].body,
                                  dialects[d].endpoint,
                                  {answers[i]},
                                  stops[k % 3],
                                  stops[k % 3] == SL_STOP_STRING ? "\nQ:" : NULL,
                                  sizes[k / 3],
                                  API_CALLS_HERMES,
                                  1};
                dialects[d].check(&s);
            }
}

static void two_choices(void) {
    for (size_t i = 0; i + 1 < sizeof answers / sizeof *answers; i++) {
        check_openai(&(script){
            "{" ASK "," TOOLS ",\"n\":2}", API_CHAT, {answers[i], answers[i + 1]}, SL_STOP_END, NULL, 2, API_CALLS_HERMES, 1});
        check_openai(&(script){"{\"prompt\":[\"a\",\"b\"]}",
                               API_COMPLETIONS,
                               {answers[i], answers[i + 1]},
                               SL_STOP_END,
                               NULL,
                               2,
                               API_CALLS_HERMES,
                               1});
    }
}

// ---- values ----

static void check_text(const json_t *v, const char *path, const char *want) {
    char part[64];
    while (*path) {
        size_t n = strcspn(path, ".");
        snprintf(part, sizeof part, "%.*s", (int)n, path);
        v = json_is_array(v) ? json_array_get(v, (size_t)atoi(part)) : json_object_get(v, part);
        path += n + (path[n] == '.');
    }
    char *got = v ? json_dumps(v, JSON_ENCODE_ANY | JSON_COMPACT) : strdup("missing");
    if (strcmp(got, want)) FAIL("got %s, expected %s", got, want);
    free(got);
}

static void values(void) {
    const char *call = "<tool_call>{\"name\":\"f\",\"arguments\":{\"a\": 1}}</tool_call>";
    script s = {"{" ASK "," TOOLS "}", API_CHAT, {call}, SL_STOP_END, NULL, 5, API_CALLS_HERMES, 1};
    json_t *v = whole_of(&s);
    check_text(v, "id", "\"chatcmpl-x1\"");
    check_text(v, "created", "1700000000");
    check_text(v, "choices.0.finish_reason", "\"tool_calls\"");
    check_text(v, "choices.0.message.content", "null");
    check_text(v, "choices.0.message.tool_calls.0.function.arguments", "\"{\\\"a\\\": 1}\"");
    check_text(v, "usage.prompt_tokens", "11");
    check_text(v, "usage.prompt_tokens_details.cached_tokens", "4");
    check_text(v, "usage.attention.method", "\"santa-prop:S=128\"");
    check_text(v, "usage.attention.seed", "9");
    check_text(v, "usage.attention.bytes_read", "5");
    check_text(v, "usage.attention.exact_heads", "64");
    check_text(v, "usage.attention.stated_error", "null");
    check_text(v, "usage.attention.answers.0.sequence", "3");
    check_text(v, "usage.attention.answers.0.logits_hash", "\"0000000000abcdef\"");
    json_decref(v);
    s.stop = SL_STOP_LENGTH;
    v = whole_of(&s);
    check_text(v, "choices.0.finish_reason", "\"length\"");
    json_decref(v);
    s = (script){
        "{" ASK "," TOOLS ",\"parallel_tool_calls\":false}", API_CHAT, {answers[5]}, SL_STOP_END, NULL, 5, API_CALLS_HERMES, 1};
    v = whole_of(&s);
    check_text(v, "choices.0.message.tool_calls.0.function.name", "\"f\"");
    check_text(v, "choices.0.message.tool_calls.1", "missing");
    json_decref(v);
    s = (script){"{" ASK ",\"max_tokens\":9,\"tools\":[{\"name\":\"f\"}]}",
                 API_MESSAGES,
                 {call},
                 SL_STOP_END,
                 NULL,
                 5,
                 API_CALLS_HERMES,
                 0};
    v = whole_of(&s);
    check_text(v, "stop_reason", "\"tool_use\"");
    check_text(v, "content.0.input", "{\"a\":1}");
    check_text(v, "usage.input_tokens", "7");
    check_text(v, "usage.cache_read_input_tokens", "4");
    json_decref(v);
    s.texts[0] = "x", s.stop = SL_STOP_STRING, s.stop_string = "Q";
    v = whole_of(&s);
    check_text(v, "stop_reason", "\"stop_sequence\"");
    check_text(v, "stop_sequence", "\"Q\"");
    json_decref(v);
    s = (script){"{\"input\":\"u\",\"instructions\":\"i\"}",
                 API_RESPONSES,
                 {"<think>a</think>b"},
                 SL_STOP_LENGTH,
                 NULL,
                 5,
                 API_CALLS_NONE,
                 1};
    v = whole_of(&s);
    check_text(v, "status", "\"incomplete\"");
    check_text(v, "incomplete_details.reason", "\"max_output_tokens\"");
    check_text(v, "output.0.content.0.text", "\"a\"");
    check_text(v, "output.1.content.0.text", "\"b\"");
    check_text(v, "output.1.status", "\"incomplete\"");
    check_text(v, "instructions", "\"i\"");
    check_text(v, "usage.input_tokens_details.cached_tokens", "4");
    check_text(v, "usage.output_tokens_details.reasoning_tokens", "2");
    json_decref(v);
}

// ---- log-probabilities ----

static const api_logprob tops[] = {{"b", 1, -0.25}, {"\xc3", 1, -1.5}, {"\xa9", 1, -INFINITY}};
static const api_token prompt_tokens[] = {
    {{"a", 1, NAN}, NULL, 0}, {{"\xe6\x97", 2, -0.1}, tops, 3}, {{"\xa5", 1, -0.2}, tops, 3}};
static const api_token new_tokens[] = {{{"b", 1, -0.25}, tops, 3}, {{"\xc3", 1, -1.5}, tops, 3}, {{"\xa9", 1, -2}, tops, 3}};

static void give_tokens(api_endpoint endpoint, const char *body, sl_text *out) {
    api_request q;
    api_error why;
    sl_error e = {0};
    api_reply *r;
    if (api_request_read(endpoint, body, strlen(body), &q, &why)) FAIL("%s", why.why.message);
    CHECK_OK(api_reply_new(&(api_reply_options){.request = &q, .id = "1", .model = "m"}, &r, &e), e);
    CHECK_OK(api_reply_begin(r, out, &e), e);
    api_piece echo = {.text = "a日", .n = 4, .tokens = prompt_tokens, .n_tokens = 3};
    if (q.echo) CHECK_OK(api_reply_piece(r, &echo, out, &e), e);
    for (int i = 0; i < 3; i++) { // the character waits for its second token
        static const char *const texts[] = {"b", "", "é"};
        const api_piece piece = {.text = texts[i],
                                 .n = strlen(texts[i]),
                                 .n_generated = 1,
                                 .tokens = &new_tokens[i],
                                 .n_tokens = 1,
                                 .finished = i == 2,
                                 .stop = SL_STOP_LENGTH};
        CHECK_OK(api_reply_piece(r, &piece, out, &e), e);
    }
    CHECK_OK(api_reply_end(r, out, &e), e);
    api_reply_free(r);
    api_request_free(&q);
}

static json_t *tokens_whole(api_endpoint endpoint, const char *body) {
    sl_text out = {0};
    give_tokens(endpoint, body, &out);
    json_t *v = json_loadb(out.data, out.n, 0, NULL);
    CHECK(v != NULL);
    sl_text_free(&out);
    return v;
}

static void echoed_logprobs(void) {
    json_t *v = tokens_whole(API_COMPLETIONS, "{\"prompt\":\"p\",\"echo\":true,\"logprobs\":3}");
    check_text(v, "choices.0.text", "\"a日bé\"");
    check_text(v, "choices.0.logprobs.tokens",
               "[\"a\",\"\xef\xbf\xbd\",\"\xef\xbf\xbd\",\"b\",\"\xef\xbf\xbd\",\"\xef\xbf\xbd\"]");
    check_text(v, "choices.0.logprobs.text_offset", "[0,1,1,2,3,3]");
    check_text(v, "choices.0.logprobs.token_logprobs.0", "null");
    check_text(v, "choices.0.logprobs.token_logprobs.3", "-0.25");
    check_text(v, "choices.0.logprobs.top_logprobs.0", "null");
    check_text(v, "choices.0.logprobs.top_logprobs.3", "{\"b\":-0.25,\"\xef\xbf\xbd\":-1.5}");
    check_text(v, "usage.completion_tokens", "3");
    // The same, streamed.
    sl_text out = {0};
    json_t *lists = json_object();
    give_tokens(API_COMPLETIONS, "{\"prompt\":\"p\",\"echo\":true,\"logprobs\":3,\"stream\":true}", &out);
    for (char *at = strtok(out.data, "\n"); at; at = strtok(NULL, "\n")) {
        json_t *chunk = json_loads(at + 6, 0, NULL), *found = json_object_get(choice_of(chunk), "logprobs");
        const char *key;
        json_t *list;
        json_object_foreach(found, key, list) {
            if (!json_object_get(lists, key)) json_object_set_new(lists, key, json_array());
            json_array_extend(json_object_get(lists, key), list);
        }
        json_decref(chunk);
    }
    same_json("logprobs", lists, json_object_get(choice_of(v), "logprobs"));
    json_decref(lists);
    json_decref(v);
    sl_text_free(&out);
}

static void chat_logprobs(void) {
    json_t *v = tokens_whole(API_CHAT, "{" ASK ",\"logprobs\":true,\"top_logprobs\":3}");
    check_text(v, "choices.0.message.content", "\"bé\"");
    const json_t *content = json_object_get(json_object_get(choice_of(v), "logprobs"), "content");
    CHECK_INT(json_array_size(content), 3);
    check_text(content, "1.token", "\"\xef\xbf\xbd\"");
    check_text(content, "1.bytes", "[195]");
    check_text(content, "2.bytes", "[169]");
    check_text(content, "0.top_logprobs.1.bytes", "[195]");
    check_text(content, "0.top_logprobs.2.logprob", "-9999.0");
    check_text(content, "0.text_offset", "missing");
    // The bytes spell the text.
    char bytes[16] = {0};
    int n = 0;
    for (size_t i = 0; i < 3; i++) {
        const json_t *list = json_object_get(json_array_get(content, i), "bytes");
        for (size_t k = 0; k < json_array_size(list); k++) bytes[n++] = (char)json_integer_value(json_array_get(list, k));
    }
    CHECK_STR(bytes, "bé");
    json_decref(v);
}

// Text with a byte that is no UTF-8 does not break an event.
static void invalid_bytes(void) {
    json_t *v = api_utf8_json("a\xff\xfe"
                              "b\xc3",
                              5);
    check_text(v, "",
               "\"a\xef\xbf\xbd"
               "b\xef\xbf\xbd\"");
    json_decref(v);
}

// ---- errors and small bodies ----

static void fail_midway(void) {
    static const struct {
        api_endpoint endpoint;
        const char *body, *want, *end;
    } rows[] = {
        {API_CHAT, "{" ASK ",\"stream\":true}", "data: {\"error\":{", "}}\n\ndata: [DONE]\n\n"},
        {API_COMPLETIONS, "{\"prompt\":\"p\",\"stream\":true}", "data: {\"error\":{", "}}\n\ndata: [DONE]\n\n"},
        {API_RESPONSES, "{\"input\":\"u\",\"stream\":true}", "event: response.failed\ndata: {\"response\":{", "}\n\n"},
        {API_MESSAGES, "{" ASK ",\"max_tokens\":1,\"stream\":true}", "event: error\ndata: {\"type\":\"error\"", "}}\n\n"},
        {API_CHAT, "{" ASK "}", "{\"error\":{\"message\":\"gone\",\"type\":\"server_error\",\"param\":null,\"code\":500}}",
         "}}"},
        {API_MESSAGES, "{" ASK ",\"max_tokens\":1}",
         "{\"type\":\"error\",\"error\":{\"type\":\"api_error\",\"message\":\"gone\"}}", "}}"},
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        api_request q;
        api_error why;
        sl_error e = {0};
        sl_text out = {0};
        api_reply *r;
        CHECK(!api_request_read(rows[i].endpoint, rows[i].body, strlen(rows[i].body), &q, &why));
        CHECK_OK(api_reply_new(&(api_reply_options){.request = &q, .id = "1", .model = "m"}, &r, &e), e);
        api_fail(&why, 500, NULL, "gone");
        CHECK_OK(api_reply_error(r, &why, &out, &e), e);
        size_t n = strlen(rows[i].end);
        if (strncmp(out.data, rows[i].want, strlen(rows[i].want)) || strcmp(out.data + out.n - n, rows[i].end))
            FAIL("%s", out.data);
        sl_text_free(&out);
        api_reply_free(r);
        api_request_free(&q);
    }
}

static void small_bodies(void) {
    static const int32_t ids[] = {5, 6};
    static const api_logprob pieces[] = {{"a", 1, 0}, {"\xff", 1, 0}};
    api_request q = {.with_pieces = 1};
    json_t *v = api_tokenize_json(&q, ids, 2, pieces, 99);
    check_text(
        v, "",
        "{\"count\":2,\"max_model_len\":99,\"tokens\":[{\"id\":5,\"piece\":\"a\"},{\"id\":6,\"piece\":\"\xef\xbf\xbd\"}]}");
    json_decref(v);
    q = (api_request){.with_strings = 1};
    v = api_tokenize_json(&q, ids, 2, pieces, 99);
    check_text(v, "", "{\"count\":2,\"max_model_len\":99,\"tokens\":[5,6],\"token_strs\":[\"a\",\"\xef\xbf\xbd\"]}");
    json_decref(v);
    v = api_detokenize_json("ab", 2);
    check_text(v, "", "{\"prompt\":\"ab\",\"content\":\"ab\"}");
    json_decref(v);
    v = api_template_json("ab", 2);
    check_text(v, "", "{\"prompt\":\"ab\"}");
    json_decref(v);
    v = api_count_json(3);
    check_text(v, "", "{\"input_tokens\":3}");
    json_decref(v);
    v = api_models_json("m", "/models/m", 1, 4096);
    check_text(v, "data.0.id", "\"m\"");
    check_text(v, "data.0.root", "\"/models/m\"");
    check_text(v, "data.0.max_model_len", "4096");
    json_decref(v);
}

static const test_case cases[] = {
    {"streamed-is-whole", 0, streamed_is_whole},
    {"two-choices", 0, two_choices},
    {"values", 0, values},
    {"echoed-logprobs", 0, echoed_logprobs},
    {"chat-logprobs", 0, chat_logprobs},
    {"invalid-bytes", 0, invalid_bytes},
    {"fail-midway", 0, fail_midway},
    {"small-bodies", 0, small_bodies},
    {0},
};
extern const test_suite suite_api_replies;
const test_suite suite_api_replies = {"api_replies", cases};
