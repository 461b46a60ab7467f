// tests/fuzz/fuzz_api.c - bodies of clients, and generated text with calls of tools.
#include "server/api/replies.h"
#include "tests/fuzz/fuzz.h"

#include <stdlib.h>
#include <string.h>

// ---- bodies: the path, a newline, the body ----

static void check_request(const api_request *r) {
    FUZZ_CHECK(r->n >= 1 && r->n_prompts >= 0 && r->n_logprobs >= -1 && r->n_logprobs <= SL_MAX_LOGPROBS, "a count");
    FUZZ_CHECK(!r->messages || json_array_size(r->messages) > 0, "messages");
    for (size_t i = 0; i < json_array_size(r->messages); i++) {
        const json_t *m = json_array_get(r->messages, i);
        FUZZ_CHECK(json_is_string(json_object_get(m, "role")) && json_is_string(json_object_get(m, "content")), "a message");
    }
    for (size_t i = 0; i < json_array_size(r->tools); i++) {
        const json_t *function = json_object_get(json_array_get(r->tools, i), "function");
        FUZZ_CHECK(json_is_string(json_object_get(function, "name")), "a tool");
    }
    for (int i = 0; i < r->n_stop; i++) FUZZ_CHECK(r->stop[i][0], "a stop string");
    FUZZ_CHECK(!r->attn || r->attn[0], "attn");
    for (int i = 0; i < r->n_prompts; i++) FUZZ_CHECK(!r->prompts[i].text || !r->prompts[i].ids, "a prompt");
}

// An answer to the request is JSON.
static void answer(const api_request *q) {
    static const char text[] = "<think>a</think>b [f(a=1)] <tool_call>{\"name\":\"f\"}</tool_call>";
    sl_text out = {0};
    sl_error e = {0};
    api_reply *r;
    const api_reply_options o = {.request = q, .id = "1", .model = "m", .calls = API_CALLS_HERMES, .reasoning = 1};
    FUZZ_CHECK(!api_reply_new(&o, &r, &e), e.message);
    FUZZ_CHECK(!api_reply_begin(r, &out, &e), e.message);
    for (int i = 0; i < api_reply_n_choices(r); i++)
        FUZZ_CHECK(!api_reply_piece(r, &(api_piece){.choice = i, .text = text, .n = sizeof text - 1, .finished = 1}, &out, &e),
                   e.message);
    FUZZ_CHECK(!api_reply_end(r, &out, &e), e.message);
    json_t *v = q->stream ? NULL : json_loadb(out.data, out.n, JSON_ALLOW_NUL, NULL);
    FUZZ_CHECK(q->stream || v, out.data);
    json_decref(v);
    sl_text_free(&out);
    api_reply_free(r);
}

static void read_body(api_endpoint e, const char *body, size_t n) {
    api_request r;
    api_error err = {0};
    int rc = api_request_read(e, body, n, &r, &err);
    if (fuzz_ok(rc, &err.why)) {
        check_request(&r);
        int n_choices = (r.n_prompts > 0 ? r.n_prompts : 1) * r.n;
        if (e <= API_MESSAGES && n_choices <= 8) answer(&r);
        api_request_free(&r);
        return;
    }
    json_t *v = api_error_json(&err, api_is_messages(e));
    FUZZ_CHECK(err.status == 400 && v, err.why.message);
    json_decref(v);
}

void fuzz_api(const char *data, size_t n) {
    char path[64];
    const char *line = memchr(data, '\n', n);
    size_t length = line ? (size_t)(line - data) : 0;
    int e = -1;
    if (line && length < sizeof path) {
        memcpy(path, data, length);
        path[length] = 0;
        e = api_endpoint_find(path);
    }
    if (e >= 0) {
        read_body((api_endpoint)e, line + 1, n - length - 1);
        return;
    }
    for (int k = 0; k < API_N_ENDPOINTS; k++) read_body((api_endpoint)k, data, n);
}

// ---- generated text: one letter for the format and the reasoning, then the text ----

typedef struct events {
    sl_text text;
    int last; // kind of the last event; -1: none
} events;

static int record(void *ctx, const api_event *e, sl_error *err) {
    events *out = ctx;
    json_t *arguments = e->kind == API_EVENT_CALL ? json_loadb(e->text, e->n, JSON_DECODE_INT_AS_REAL, NULL) : NULL;
    FUZZ_CHECK(e->kind != API_EVENT_CALL || (json_is_object(arguments) && e->name[0] && strlen(e->id) == 9), e->text);
    json_decref(arguments);
    int joins = e->kind != API_EVENT_CALL && out->last == (int)e->kind; // wherever the pieces end
    int rc = joins ? 0 : sl_text_append(&out->text, (const char[]){1, "TRC"[e->kind]}, 2, err);
    if (!rc && e->name) rc = sl_text_append(&out->text, e->name, strlen(e->name), err);
    out->last = e->kind;
    return rc ? rc : sl_text_append(&out->text, e->text, e->n, err);
}

static sl_text parse(api_parser_options o, const char *text, size_t n, size_t step) {
    events out = {.last = -1};
    sl_error e = {0};
    api_parser *p;
    o.fn = record;
    o.ctx = &out;
    FUZZ_CHECK(!api_parser_new(&o, &p, &e), e.message);
    for (size_t at = 0; at < n; at += step)
        FUZZ_CHECK(!api_parser_feed(p, text + at, n - at < step ? n - at : step, &e), e.message);
    FUZZ_CHECK(!api_parser_end(p, &e), e.message);
    api_parser_free(p);
    return out.text;
}

void fuzz_calls(const char *data, size_t n) {
    if (!n) return;
    int way = (unsigned char)data[0];
    json_t *tools = way & 64 ? NULL : json_pack("[{s:{s:s}}]", "function", "name", "f");
    const api_parser_options o = {
        .format = (api_call_format)(way % 5), .reasoning = way / 8 & 1, .in_reasoning = way / 16 & 1, .tools = tools};
    sl_text whole = parse(o, data + 1, n - 1, n);
    for (size_t step = 1; step < 6; step += 2) {
        sl_text cut = parse(o, data + 1, n - 1, step);
        FUZZ_CHECK(cut.n == whole.n && (!cut.n || !memcmp(cut.data, whole.data, cut.n)), "cuts change the events");
        sl_text_free(&cut);
    }
    sl_text_free(&whole);
    json_decref(tools);
}
