// tests/server/test_serve.c - the whole server over loopback: every endpoint, streams against whole answers, log-probabilities,
// errors, seeds, and what other servers got wrong (in the comments: their issue).
#include "tests/server/serve_fixture.h"
#include "tests/support/run_cli.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static const char riddle[] = "The hidden number of the bay is 48213. What is the hidden number of the bay? Answer:";

static const char *text_of(const json_t *v, const char *key) {
    const char *s = json_string_value(json_object_get(v, key));
    if (!s) FAIL("no text %s in %s", key, json_dumps(v, JSON_ENCODE_ANY));
    return s;
}

static const json_t *choice_of(const json_t *answer, size_t i) {
    return json_array_get(json_object_get(answer, "choices"), i);
}

static long long integer(const json_t *v, const char *key) {
    const json_t *n = json_object_get(v, key);
    if (!json_is_integer(n)) FAIL("no integer %s in %s", key, json_dumps(v, JSON_ENCODE_ANY));
    return json_integer_value(n);
}

static const json_t *attention_of(const json_t *answer) {
    return json_object_get(json_object_get(answer, "usage"), "attention");
}

static const char *hash_of(const json_t *answer, size_t i) {
    return text_of(json_array_get(json_object_get(attention_of(answer), "answers"), i), "logits_hash");
}

// ---- endpoints ----

static void endpoints(void) {
    static const char *const paths[] = {"/health",         "/v1/health", "/ping",  "/version", "/v1/models",
                                        "/v1/models/tiny", "/props",     "/slots", "/metrics", "/tokenizer_info"};
    server_start(NULL);
    for (size_t i = 0; i < sizeof paths / sizeof *paths; i++) {
        server_reply r = server_ask("GET", paths[i], NULL);
        if (r.status != 200) FAIL("%s: %d", paths[i], r.status);
        CHECK_INT(server_ask("POST", paths[i], "{}").status, i == 5 ? 404 : 405);
    }
    CHECK_INT(server_ask("GET", "/v1/models/other", NULL).status, 404);
    CHECK_INT(server_ask("GET", "/v1/chat/completions", NULL).status, 405);
    json_t *none = server_post("/v1/nothing", 404, "{}");
    CHECK_STR(text_of(json_object_get(none, "error"), "type"), "not_found_error");
    json_t *models = server_json(&(server_reply[]){server_ask("GET", "/v1/models", NULL)}[0]);
    const json_t *first = json_array_get(json_object_get(models, "data"), 0);
    CHECK_STR(text_of(first, "id"), "tiny");
    CHECK_STR(text_of(first, "root"), "models/tiny");
    server_stop();
}

static void props(void) {
    server_start(NULL);
    server_reply r = server_ask("GET", "/props", NULL);
    json_t *v = server_json(&r);
    const json_t *methods = json_object_get(json_object_get(v, "attention"), "methods"), *m;
    size_t i, n_params = 0;
    CHECK_INT(integer(v, "n_ctx"), 2048);
    CHECK_INT(integer(v, "parallel"), 4);
    CHECK(json_is_true(json_object_get(json_object_get(v, "features"), "structured_output")));
    json_array_foreach((json_t *)methods, i, m) {
        const json_t *p;
        size_t j;
        text_of(m, "name"), text_of(m, "label"), text_of(m, "summary");
        json_array_foreach(json_object_get(m, "parameters"), j, p) {
            text_of(p, "name"), text_of(p, "type"), text_of(p, "about");
            CHECK(json_is_array(json_object_get(p, "choices")) || json_is_number(json_object_get(p, "min")));
            n_params++;
        }
    }
    CHECK(json_array_size(methods) > 10 && n_params > 20);
    CHECK_STR(text_of(json_array_get(methods, 0), "name"), "dense");
    CHECK(json_array_size(json_object_get(json_object_get(v, "attention_prefill"), "methods")) > 1);
    server_stop();
}

static void loading(void) {
    static const char *const paths[] = {"/health", "/v1/models", "/metrics", "/"};
    server_start(&(server_settings){.is_loading = 1});
    for (size_t i = 0; i < sizeof paths / sizeof *paths; i++) {
        server_reply r = server_ask("GET", paths[i], NULL);
        CHECK_INT(r.status, 503);
        CHECK_STR(text_of(json_object_get(server_json(&r), "error"), "type"), "unavailable_error");
    }
    server_post("/v1/completions", 503, "{\"prompt\": \"a\"}");
    server_loaded();
    server_post("/v1/completions", 200, "{\"prompt\": \"a\", \"max_tokens\": 1}");
    server_stop();
}

static void texts_and_tokens(void) {
    server_start(NULL);
    json_t *a = server_post("/tokenize", 200, "{\"prompt\": \"Hello bay\"}");
    json_t *b = server_post("/tokenize", 200, "{\"content\": \"Hello bay\", \"with_pieces\": true}");
    CHECK_INT(integer(a, "count"), integer(b, "count") + 1); // BOS
    char body[256];
    snprintf(body, sizeof body, "{\"tokens\": %s}", server_keep(json_dumps(json_object_get(a, "tokens"), 0)));
    CHECK(strstr(text_of(server_post("/detokenize", 200, body), "prompt"), "Hello bay"));
    // A template with BOS: exactly one BOS (vllm#16976).
    static const char chat[] = "{\"messages\": [{\"role\": \"user\", \"content\": \"Hi <|eot_id|>\"}]}";
    json_t *c = server_post("/tokenize", 200, chat);
    const json_t *ids = json_object_get(c, "tokens");
    CHECK(json_equal(json_array_get(ids, 0), json_array_get(json_object_get(a, "tokens"), 0)));
    CHECK(!json_equal(json_array_get(ids, 0), json_array_get(ids, 1)));
    CHECK(strstr(text_of(server_post("/apply-template", 200, chat), "prompt"), "Hi <|eot_id|>"));
    json_t *d = server_post("/v1/messages/count_tokens", 200, chat);
    CHECK_INT(integer(d, "input_tokens"), integer(c, "count"));
    server_stop();
}

// ---- streams ----

// The text of the events of one choice, and checks of their form.
static char *joined(const json_t *events, const char *list, const char *key, int choice) {
    sl_text text = {0};
    const json_t *e;
    size_t i;
    CHECK_OK(sl_text_append(&text, "", 0, NULL), (sl_error){0});
    json_array_foreach((json_t *)events, i, e) {
        const json_t *c;
        size_t j;
        json_array_foreach(json_object_get(e, "choices"), j, c) {
            const json_t *holder = *list ? json_object_get(c, list) : c;
            const char *part = json_string_value(json_object_get(holder, key));
            if (integer(c, "index") == choice && part) CHECK(!sl_text_append(&text, part, strlen(part), NULL));
        }
    }
    return server_keep(text.data);
}

static json_t *stream(const char *path, const char *fields) {
    char body[2048];
    snprintf(body, sizeof body, "{\"stream\": true, %s}", fields);
    server_reply r = server_ask("POST", path, body);
    if (r.status != 200) FAIL("%s: %d %s", path, r.status, r.body);
    return server_events(&r);
}

static json_t *whole(const char *path, const char *fields) {
    char body[2048];
    snprintf(body, sizeof body, "{%s}", fields);
    return server_post(path, 200, body);
}

// Streamed and whole answers say the same. Usage comes only when asked for, with `choices: []` (llama.cpp#16048, sglang#954).
static void streams(void) {
    static const char fields[] = "\"prompt\": [\"The bay\", \"A house\"], \"max_tokens\": 24, \"temperature\": 1, \"seed\": 5, "
                                 "\"n\": 2, \"ignore_eos\": true, \"stream_options\": {\"include_usage\": true}";
    server_start(NULL);
    json_t *w = whole("/v1/completions", fields), *s = stream("/v1/completions", fields);
    CHECK_INT(json_array_size(json_object_get(w, "choices")), 4);
    for (int i = 0; i < 4; i++) CHECK_STR(joined(s, "", "text", i), text_of(choice_of(w, (size_t)i), "text"));
    const json_t *last = json_array_get(s, json_array_size(s) - 1);
    CHECK_INT(json_array_size(json_object_get(last, "choices")), 0);
    CHECK_INT(integer(json_object_get(last, "usage"), "completion_tokens"), 96);
    for (size_t i = 0; i < 4; i++) CHECK_STR(hash_of(last, i), hash_of(w, i));
    static const char chat[] = "\"messages\": [{\"role\": \"user\", \"content\": \"Hi\"}], \"max_completion_tokens\": 9, "
                               "\"temperature\": 1, \"seed\": 7, \"ignore_eos\": true";
    w = whole("/v1/chat/completions", chat), s = stream("/v1/chat/completions", chat);
    CHECK_STR(joined(s, "delta", "content", 0), text_of(json_object_get(choice_of(w, 0), "message"), "content"));
    CHECK_INT(json_array_size(s), 9); // each token is an event: the first has the role, the last the reason
    CHECK_STR(text_of(json_object_get(choice_of(json_array_get(s, 0), 0), "delta"), "role"), "assistant");
    CHECK_STR(text_of(choice_of(json_array_get(s, 8), 0), "finish_reason"), "length");
    CHECK(!json_object_get(json_array_get(s, 8), "usage"));
    server_stop();
}

static void other_dialects(void) {
    server_start(NULL);
    static const char responses[] = "\"input\": \"Hi\", \"max_output_tokens\": 12, \"temperature\": 1, \"seed\": 3";
    json_t *w = whole("/v1/responses", responses), *s = stream("/v1/responses", responses);
    const json_t *last = json_object_get(json_array_get(s, json_array_size(s) - 1), "response");
    CHECK(json_equal(json_object_get(json_object_get(w, "usage"), "attention"),
                     json_object_get(json_object_get(last, "usage"), "attention")));
    CHECK_STR(text_of(json_array_get(s, 0), "type"), "response.created");
    static const char messages[] = "\"messages\": [{\"role\": \"user\", \"content\": \"Hi\"}], \"max_tokens\": 12, "
                                   "\"temperature\": 1, \"seed\": 3";
    w = whole("/v1/messages", messages), s = stream("/v1/messages", messages);
    CHECK_STR(text_of(json_array_get(s, 0), "type"), "message_start");
    CHECK_STR(text_of(json_array_get(s, json_array_size(s) - 1), "type"), "message_stop");
    char text[1024] = "";
    const json_t *e;
    size_t i;
    json_array_foreach(s, i, e) {
        const char *part = json_string_value(json_object_get(json_object_get(e, "delta"), "text"));
        if (part) strcat(text, part);
    }
    CHECK_STR(text, text_of(json_array_get(json_object_get(w, "content"), 0), "text"));
    server_stop();
}

// ---- log-probabilities ----

static char *spelled(const json_t *logprobs) { // reads what /v1/chat/completions answers
    sl_text text = {0};
    const json_t *t, *b;
    size_t i, j;
    json_array_foreach(json_object_get(logprobs, "content"), i, t) json_array_foreach(json_object_get(t, "bytes"), j, b) {
        const char byte = (char)json_integer_value(b);
        CHECK(!sl_text_append(&text, &byte, 1, NULL));
    }
    return server_keep(text.data);
}

static void logprobs(void) {
    char body[512];
    server_start(NULL);
    json_t *v = whole("/v1/chat/completions", "\"messages\": [{\"role\": \"user\", \"content\": \"Hi\"}], \"max_tokens\": 30, "
                                              "\"seed\": 1, \"temperature\": 1, \"logprobs\": true, \"top_logprobs\": 3");
    const json_t *c = choice_of(v, 0), *t;
    CHECK_STR(spelled(json_object_get(c, "logprobs")), text_of(json_object_get(c, "message"), "content"));
    size_t i;
    json_array_foreach(json_object_get(json_object_get(c, "logprobs"), "content"), i, t)
        CHECK_INT(json_array_size(json_object_get(t, "top_logprobs")), 3);
    // echo: the tokens spell the prompt and the answer, and text_offset goes on (vllm#5334, vllm#47815).
    snprintf(body, sizeof body, "\"prompt\": \"%s\", \"echo\": true, \"logprobs\": 1, \"max_tokens\": 6, \"temperature\": 0",
             riddle);
    v = whole("/v1/completions", body);
    const char *text = text_of(choice_of(v, 0), "text");
    const json_t *l = json_object_get(choice_of(v, 0), "logprobs"), *tokens = json_object_get(l, "tokens");
    CHECK(!strncmp(text, riddle, strlen(riddle)));
    json_array_foreach((json_t *)tokens, i, t) {
        long long at = json_integer_value(json_array_get(json_object_get(l, "text_offset"), i));
        int is_end = !text[at]; // the end token: it has a name and no text
        CHECK(is_end ? i + 1 == json_array_size(tokens) : !strncmp(text + at, json_string_value(t), json_string_length(t)));
        const json_t *p = json_array_get(json_object_get(l, "token_logprobs"), i);
        CHECK(i ? json_is_real(p) && json_real_value(p) <= 0 : json_is_null(p));
    }
    json_t *s = stream("/v1/completions", body);
    CHECK_STR(joined(s, "", "text", 0), text);
    // lm-eval: ids, one token, and the same float in both places for the greedy token.
    v = whole("/v1/completions", "\"prompt\": [[1, 2, 3, 4, 5], [7, 8, 9]], \"temperature\": 0, \"max_tokens\": 1, "
                                 "\"logprobs\": 1, \"seed\": 1234, \"echo\": true");
    l = json_object_get(choice_of(v, 1), "logprobs");
    CHECK_INT(json_array_size(json_object_get(l, "token_logprobs")), 4);
    const json_t *top = json_array_get(json_object_get(l, "top_logprobs"), 3);
    CHECK(json_equal(json_object_iter_value(json_object_iter((json_t *)top)),
                     json_array_get(json_object_get(l, "token_logprobs"), 3)));
    // The answer is the end token alone: it has an entry, behind the tokens of the prompt.
    static const char ends[] = "\"prompt\": [7, 8, 9], \"temperature\": 0, \"max_tokens\": 1, \"logprobs\": 1, "
                               "\"echo\": true, \"logit_bias\": {\"%d\": 100}";
    snprintf(body, sizeof body, ends, sl_tokenizer_eos(sl_model_tokenizer(server_model())));
    v = whole("/v1/completions", body);
    CHECK_STR(text_of(choice_of(v, 0), "finish_reason"), "stop");
    l = json_object_get(choice_of(v, 0), "logprobs");
    CHECK_INT(json_array_size(json_object_get(l, "token_logprobs")), 4);
    CHECK_STR(json_string_value(json_array_get(json_object_get(l, "tokens"), 3)), "<|end_of_text|>");
    s = stream("/v1/completions", body);
    size_t n_streamed = 0;
    json_array_foreach(s, i, t) n_streamed +=
        json_array_size(json_object_get(json_object_get(choice_of(t, 0), "logprobs"), "tokens"));
    CHECK_INT(n_streamed, 4);
    v = whole("/v1/completions", "\"prompt\": \"The bay\", \"max_tokens\": 0, \"echo\": true, \"logprobs\": 0");
    CHECK_STR(text_of(choice_of(v, 0), "text"), "The bay");
    CHECK_INT(integer(json_object_get(v, "usage"), "completion_tokens"), 0);
    CHECK(server_metric("sleigh_cancelled_total") == 0); // such an answer is complete
    server_stop();
}

// ---- text ----

static int id_of_byte(unsigned char byte) { // the token of one byte; -1: none
    const sl_tokenizer *tok = sl_model_tokenizer(server_model());
    for (int32_t id = 0; id < sl_tokenizer_n_vocab(tok); id++) {
        sl_text text = {0};
        int is_it = !sl_token_bytes(tok, id, &text, NULL) && text.n == 1 && (unsigned char)*text.data == byte;
        sl_text_free(&text);
        if (is_it) return id;
    }
    return -1;
}

// The model emits bytes that are no UTF-8: U+FFFD, no 500, and streams say the same (llama.cpp#11738, #28926).
static void broken_bytes(void) {
    server_start(NULL);
    static const unsigned char bytes[] = {0xc3, 0xa9, 0xe2, 0xf0};
    for (size_t i = 0; i < sizeof bytes; i++) {
        char fields[256];
        int id = id_of_byte(bytes[i]);
        if (id < 0) continue;
        snprintf(fields, sizeof fields,
                 "\"prompt\": \"a\", \"max_tokens\": 5, \"temperature\": 0, \"logprobs\": 1, \"logit_bias\": {\"%d\": 100}",
                 id);
        json_t *w = whole("/v1/completions", fields), *s = stream("/v1/completions", fields);
        const char *text = text_of(choice_of(w, 0), "text");
        CHECK(strstr(text, "\xef\xbf\xbd"));
        CHECK_STR(joined(s, "", "text", 0), text);
    }
    // Bytes of characters in a random order: some characters have two tokens, which one event holds.
    const int first = id_of_byte(0xc3), second = id_of_byte(0xa9);
    if (first >= 0 && second >= 0) {
        char fields[512];
        snprintf(fields, sizeof fields,
                 "\"prompt\": \"a\", \"max_tokens\": 60, \"temperature\": 2, \"seed\": 4, \"top_k\": 0, \"top_p\": 1, "
                 "\"min_p\": 0, \"repetition_penalty\": 1.5, \"logit_bias\": {\"%d\": 100, \"%d\": 100}",
                 first, second);
        json_t *w = whole("/v1/completions", fields), *s = stream("/v1/completions", fields);
        const char *text = text_of(choice_of(w, 0), "text");
        CHECK(strstr(text, "\xc3\xa9"));
        CHECK_STR(joined(s, "", "text", 0), text);
    }
    server_stop();
}

// A stop string never leaks its beginning, whatever tokens it has (text-generation-inference#1254).
static void stop_strings(void) {
    server_start(NULL);
    char fields[512];
    snprintf(fields, sizeof fields, "\"prompt\": \"%s\", \"max_tokens\": 20, \"temperature\": 0, \"stop\": [\"213\", \"xyz\"]",
             riddle);
    json_t *w = whole("/v1/completions", fields), *s = stream("/v1/completions", fields);
    CHECK_STR(text_of(choice_of(w, 0), "text"), " 48");
    CHECK_STR(text_of(choice_of(w, 0), "finish_reason"), "stop");
    CHECK_STR(text_of(choice_of(w, 0), "stop_reason"), "213");
    CHECK_STR(joined(s, "", "text", 0), " 48");
    snprintf(fields, sizeof fields, "\"prompt\": \"%s\", \"max_tokens\": 3, \"temperature\": 0, \"stop\": \"8213\"", riddle);
    CHECK_STR(joined(stream("/v1/completions", fields), "", "text", 0), " 48"); // held text comes at the end
    server_stop();
}

// ---- seeds and answers ----

static void seeds(void) {
    static const char with[] = "\"prompt\": \"The\", \"max_tokens\": 12, \"temperature\": 1, \"attn\": \"santa:S=4\", "
                               "\"seed\": 9, \"ignore_eos\": true";
    static const char without[] = "\"prompt\": \"The\", \"max_tokens\": 12, \"temperature\": 1, \"attn\": \"santa:S=4\", "
                                  "\"ignore_eos\": true";
    server_start(NULL);
    json_t *a = whole("/v1/completions", with), *b = whole("/v1/completions", with);
    CHECK_STR(hash_of(a, 0), hash_of(b, 0));
    CHECK_INT(integer(attention_of(a), "seed"), 9);
    a = whole("/v1/completions", without), b = whole("/v1/completions", without);
    CHECK(integer(attention_of(a), "seed") != integer(attention_of(b), "seed"));
    CHECK(strcmp(hash_of(a, 0), hash_of(b, 0)));
    char again[512];
    snprintf(again, sizeof again, "%s, \"seed\": %lld", without, integer(attention_of(a), "seed"));
    CHECK_STR(hash_of(whole("/v1/completions", again), 0), hash_of(a, 0)); // the seed that was returned
    server_stop();
}

// Answer i of n is that of the sequence i alone.
static void choices(void) {
    server_start(NULL);
    const sl_tokenizer *tok = sl_model_tokenizer(server_model());
    sl_ids ids = {0};
    CHECK(!sl_tokenize(tok, "The bay is", 10, SL_TOK_BOS, &ids, NULL));
    json_t *v = whole("/v1/completions", "\"prompt\": \"The bay is\", \"n\": 6, \"max_tokens\": 10, \"temperature\": 1.2, "
                                         "\"seed\": 77, \"attn\": {\"name\": \"santa-prop\", \"S\": 8}");
    CHECK_INT(json_array_size(json_object_get(v, "choices")), 6);
    for (uint32_t i = 0; i < 6; i++) {
        server_question q = {.ids = ids.data, .n = (int)ids.n, .max_tokens = 10, .attn = "santa-prop:S=8", .seed = 77};
        q.sequence = i, q.sampling = sl_model_sampling(server_model()), q.sampling.temp = 1.2f;
        const server_alone alone = server_answer_alone(&q);
        char hash[17];
        snprintf(hash, sizeof hash, "%016llx", (unsigned long long)alone.hash);
        CHECK_STR(text_of(choice_of(v, i), "text"), alone.text);
        CHECK_STR(hash_of(v, i), hash);
    }
    sl_ids_free(&ids);
    server_stop();
}

// ---- errors ----

typedef struct bad {
    const char *path, *body, *part;
    int status;
} bad;

static void errors(void) {
    static const bad cases[] = {
        {"/v1/completions", "{\"prompt\": \"a\", \"attn\": \"santa-prp\"}", "did you mean santa-prop", 400},
        {"/v1/completions", "{\"prompt\": \"a\", \"attn_prefill\": \"santa\"}", "attn_prefill", 400},
        {"/v1/completions", "{\"prompt\": \"\xff\"}", "byte 0xff", 400}, // llama.cpp#6396
        {"/v1/completions", "{\"prompt\": [99999999]}", "99999999", 400},
        {"/v1/completions", "", "JSON", 400},
        {"/v1/completions", "{\"prompt\": \"a\", \"logit_bias\": {\"99999999\": 1}}", "99999999", 400},
        {"/v1/chat/completions",
         "{\"messages\": [{\"role\": \"user\", \"content\": [{\"type\": \"image_url\", \"image_url\": {}}]}]}", "image", 400},
        {"/v1/messages", "{\"messages\": [{\"role\": \"user\", \"content\": \"a\"}]}", "max_tokens", 400},
    };
    server_start(NULL);
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        json_t *v = server_post(cases[i].path, cases[i].status, cases[i].body);
        const char *message = text_of(json_object_get(v, "error"), "message");
        if (!strstr(message, cases[i].part)) FAIL("%s: %s lacks %s", cases[i].body, message, cases[i].part);
    }
    // Every optional field may be null (vllm#19862).
    server_post("/v1/completions", 200,
                "{\"prompt\": \"a\", \"max_tokens\": null, \"stop\": null, \"seed\": null, \"logprobs\": null, \"n\": null, "
                "\"attn\": null, \"temperature\": null, \"stream\": null, \"logit_bias\": null}");
    server_stop();
}

static char *repeated(const char *word, int n) { // a body with n words
    static const char begin[] = "{\"max_tokens\": 2, \"prompt\": \"";
    sl_text t = {0};
    CHECK(!sl_text_append(&t, begin, strlen(begin), NULL));
    for (int i = 0; i < n; i++) CHECK(!sl_text_append(&t, word, strlen(word), NULL));
    CHECK(!sl_text_append(&t, "\"}", 2, NULL));
    return server_keep(t.data);
}

static void overflow(void) {
    server_start(&(server_settings){.n_ctx = 512});
    json_t *v = server_post("/v1/completions", 400, repeated("bay ", 700));
    const json_t *e = json_object_get(v, "error");
    CHECK_STR(text_of(e, "code"), "context_length_exceeded");
    CHECK(strstr(text_of(e, "message"), "512"));
    CHECK_INT(server_metric("vllm:prompt_tokens_total"), 0); // nothing ran
    // A longer answer than fits ends at the end of the context.
    v = server_post("/v1/completions", 200, "{\"prompt\": \"a\", \"max_tokens\": 5000, \"ignore_eos\": true}");
    CHECK_STR(text_of(choice_of(v, 0), "finish_reason"), "length");
    server_stop();
}

// Every event has the usage so far.
static void continuous_usage(void) {
    server_start(NULL);
    json_t *s = stream("/v1/chat/completions", "\"messages\": [{\"role\": \"user\", \"content\": \"Hi\"}], \"max_tokens\": 6, "
                                               "\"attn\": \"topk:k=2\", \"ignore_eos\": true, \"stream_options\": "
                                               "{\"include_usage\": true, \"continuous_usage_stats\": true}"),
           *e;
    size_t i;
    long long n = 0, rows = -1;
    CHECK_INT(json_array_size(s), 7);
    json_array_foreach(s, i, e) {
        const json_t *usage = json_object_get(e, "usage");
        if (i < 6) CHECK_INT(integer(usage, "completion_tokens"), ++n);
        CHECK(integer(attention_of(e), "rows_read") > rows || i == 6 || i == 5); // the last token needs no step
        rows = integer(attention_of(e), "rows_read");
        CHECK(rows <= integer(attention_of(e), "dense_rows"));
    }
    server_stop();
}

// Special tokens that begin a call are text for the parser of calls, and are left out of other answers.
static void marks(void) {
    static const char template[] = "{# <|python_tag|> #}{{ bos_token }}{{ messages[0].content }}<|eot_id|>";
    char fields[512];
    spill(in_tmp("t.jinja"), template, strlen(template));
    server_start(&(server_settings){.chat_template = in_tmp("t.jinja"),
                                    .model = server_model_with((const char *const[]){"<|python_tag|>", NULL})});
    int id = sl_tokenizer_find(sl_model_tokenizer(server_model()), "<|python_tag|>");
    CHECK(id >= 0);
    for (int has_tools = 0; has_tools < 2; has_tools++) {
        snprintf(fields, sizeof fields,
                 "\"messages\": [{\"role\": \"user\", \"content\": \"Hi\"}], \"max_tokens\": 3, \"temperature\": 0, "
                 "\"logit_bias\": {\"%d\": 100}%s",
                 id, has_tools ? ", \"tools\": [{\"type\": \"function\", \"function\": {\"name\": \"f\"}}]" : "");
        json_t *v = whole("/v1/chat/completions", fields), *s = stream("/v1/chat/completions", fields);
        const char *content = text_of(json_object_get(choice_of(v, 0), "message"), "content");
        CHECK(has_tools ? strstr(content, "<|python_tag|>") != NULL : !*content);
        CHECK_STR(joined(s, "delta", "content", 0), content);
    }
    server_stop();
}

// The prompt opens the reasoning, so the format begins behind it.
static void format_after_reasoning(void) {
    static const char template[] = "{{ bos_token }}{{ messages[0].content }}{# </think> #}<think>\n";
    char fields[512];
    spill(in_tmp("t.jinja"), template, strlen(template));
    server_start(&(server_settings){.chat_template = in_tmp("t.jinja"),
                                    .model = server_model_with((const char *const[]){"</think>", NULL})});
    int id = sl_tokenizer_find(sl_model_tokenizer(server_model()), "</think>");
    CHECK(id >= 0);
    int n_thoughts = 0;
    for (int bias = 8; bias < 32; bias++) { // the mark comes at once, later, or never
        snprintf(fields, sizeof fields,
                 "\"messages\": [{\"role\": \"user\", \"content\": \"Hi\"}], \"temperature\": 1.5, \"seed\": 1, "
                 "\"logit_bias\": {\"%d\": %d}, \"ignore_eos\": true, \"max_tokens\": 50, "
                 "\"structured_outputs\": {\"choice\": [\"yes\", \"no\"]}",
                 id, bias);
        json_t *v = whole("/v1/chat/completions", fields), *s = stream("/v1/chat/completions", fields);
        const json_t *message = json_object_get(choice_of(v, 0), "message");
        const char *content = text_of(message, "content"), *thought = json_string_value(json_object_get(message, "reasoning"));
        const char *reason = text_of(choice_of(v, 0), "finish_reason");
        if (strcmp(content, "yes") && strcmp(content, "no")) CHECK(!*content && !strcmp(reason, "length"));
        CHECK_STR(joined(s, "delta", "content", 0), content);
        CHECK_STR(joined(s, "delta", "reasoning", 0), thought ? thought : "");
        n_thoughts += *content && thought && *thought;
    }
    CHECK(n_thoughts > 0);
    server_stop();
}

static void metrics(void) {
    server_start(&(server_settings){.exact_below = 7}); // the prompt has 4 tokens: step i has 4 + i rows
    const json_t *v =
        whole("/v1/completions", "\"prompt\": \"The bay\", \"max_tokens\": 7, \"ignore_eos\": true, \"attn\": \"topk:k=4\"");
    server_wait("vllm:generation_tokens_total", 7);
    CHECK_INT(server_metric("sleigh_heads_total"), 6 * 4 * 8);
    CHECK_INT(server_metric("sleigh_exact_heads_total"), 2 * 4 * 8);
    CHECK_INT(json_integer_value(json_object_get(attention_of(v), "exact_heads")), 2 * 4 * 8);
    CHECK(server_metric("sleigh_rows_read_total") > 0);
    CHECK(server_metric("sleigh_rows_read_total") < server_metric("sleigh_dense_rows_total"));
    CHECK_INT(server_metric("vllm:e2e_request_latency_seconds_count"), 1);
    CHECK_INT(server_metric("vllm:inter_token_latency_seconds_count"), 6);
    CHECK_INT(server_metric("vllm:time_to_first_token_seconds_count"), 1);
    server_stop();
}

const test_suite suite_serve = {"serve", (const test_case[]){{"endpoints", 0, endpoints},
                                                             {"props", 0, props},
                                                             {"loading", 0, loading},
                                                             {"texts-and-tokens", 0, texts_and_tokens},
                                                             {"streams", 0, streams},
                                                             {"other-dialects", 0, other_dialects},
                                                             {"logprobs", 0, logprobs},
                                                             {"broken-bytes", 0, broken_bytes},
                                                             {"stop-strings", 0, stop_strings},
                                                             {"seeds", 0, seeds},
                                                             {"choices", 0, choices},
                                                             {"errors", 0, errors},
                                                             {"overflow", 0, overflow},
                                                             {"continuous-usage", 0, continuous_usage},
                                                             {"marks", 0, marks},
                                                             {"format-after-reasoning", 0, format_after_reasoning},
                                                             {"metrics", 0, metrics},
                                                             {0}}};
