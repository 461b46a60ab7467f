// tests/server/test_serve_drafts.c - the field `draft` and --draft of the server: answers with drafts are those without, in
// whole bodies and streams; counts in usage and metrics; what is refused.
#include "tests/server/serve_fixture.h"

#include <string.h>

#define DRAFT ", \"draft\": \"ngram:min=1:least=4\""

static const char repeats[] = "\"prompt\": [\"The bay is red. The bay is red. The bay is\", \"a b c a b c a b c a\"]";

static json_t *whole(const char *path, const char *fields, const char *more) {
    char body[2048];
    snprintf(body, sizeof body, "{%s, \"seed\": 5%s}", fields, more);
    return server_post(path, 200, body);
}

static json_t *stream(const char *path, const char *fields, const char *more) {
    char body[2048];
    snprintf(body, sizeof body, "{%s, \"seed\": 5, \"stream\": true%s}", fields, more);
    const server_reply r = server_ask("POST", path, body);
    return server_events(&r);
}

static json_int_t integer_at(const json_t *v, const char *path) {
    const json_t *at = server_member(v, path);
    if (!json_is_integer(at)) FAIL("%s: expected an integer", path);
    return json_integer_value(at);
}

static void check_equal(const json_t *a, const json_t *b, const char *path) {
    const json_t *x = server_member(a, path), *y = server_member(b, path);
    if (!x || !json_equal((json_t *)x, (json_t *)y))
        FAIL("%s: %s with drafts, %s without", path, server_keep(json_dumps(x, JSON_ENCODE_ANY)),
             server_keep(json_dumps(y, JSON_ENCODE_ANY)));
}

// The texts of the events of a choice.
static void join(const json_t *events, const char *path, int index, char *out, size_t size) {
    size_t i;
    json_t *event;
    *out = 0;
    json_array_foreach((json_t *)events, i, event) {
        const json_t *choice = server_member(event, "choices/0"), *text = server_member(choice, path);
        if (choice && integer_at(choice, "index") == index && json_is_string(text))
            snprintf(out + strlen(out), size - strlen(out), "%s", json_string_value(text));
    }
}

// Several prompts and answers, log-probabilities, stop strings, grammars, penalties, an echo.
static void same_answers(void) {
    static const char *const fields[] = {
        "\"max_tokens\": 40, \"temperature\": 0.6, \"n\": 2, \"ignore_eos\": true",
        "\"max_tokens\": 30, \"temperature\": 0, \"logprobs\": 2",
        "\"max_tokens\": 40, \"temperature\": 0.4, \"stop\": [\"red\", \"b c\"], \"logprobs\": 0",
        "\"max_tokens\": 40, \"temperature\": 1, \"structured_outputs\": {\"regex\": \"( ab| c)*\\\\.\"}",
        "\"max_tokens\": 30, \"temperature\": 0, \"repeat_penalty\": 1.1, \"attn\": \"santa-prop:S=8\", \"ignore_eos\": true",
        "\"max_tokens\": 20, \"temperature\": 0, \"echo\": true, \"logprobs\": 1",
    };
    static const server_settings settings = {.n_draft = 8};
    json_int_t accepted = 0;
    server_start(&settings);
    for (size_t i = 0; i < sizeof fields / sizeof *fields; i++) {
        char all[1024], text[4096];
        snprintf(all, sizeof all, "%s, %s", repeats, fields[i]);
        json_t *plain = whole("/v1/completions", all, ""), *own = whole("/v1/completions", all, DRAFT),
               *events = stream("/v1/completions", all, DRAFT);
        check_equal(own, plain, "choices");
        check_equal(own, plain, "usage/attention/answers");
        check_equal(own, plain, "usage/completion_tokens");
        CHECK(!server_member(plain, "usage/attention/drafts"));
        const json_t *d = server_member(own, "usage/attention/drafts");
        CHECK_STR(server_text_at(d, "draft"), "ngram:min=1:least=4");
        CHECK(integer_at(d, "accepted") <= integer_at(d, "drafted"));
        CHECK_INT(json_array_size(server_member(d, "accepted_at")), 8);
        accepted += integer_at(d, "accepted");
        for (size_t j = 0; j < json_array_size(server_member(own, "choices")); j++) {
            join(events, "text", (int)j, text, sizeof text);
            CHECK_STR(text, server_text_at(json_array_get(server_member(own, "choices"), j), "text"));
        }
    }
    CHECK(accepted > 60);
    server_stop();
}

// The other endpoints, with a stream whose events hold several tokens.
static void dialects(void) {
    static const struct {
        const char *path, *fields, *at;
    } cases[] = {
        {"/v1/chat/completions",
         "\"messages\": [{\"role\": \"user\", \"content\": \"a b a b a b\"}], \"max_tokens\": 30, \"temperature\": 0, "
         "\"ignore_eos\": true, \"logprobs\": true, \"top_logprobs\": 1",
         "choices"},
        {"/v1/responses", "\"input\": \"a b a b a b\", \"max_output_tokens\": 30, \"temperature\": 0, \"ignore_eos\": true",
         "output/0/content/0/text"},
        {"/v1/messages",
         "\"messages\": [{\"role\": \"user\", \"content\": \"a b a b a b\"}], \"max_tokens\": 30, \"temperature\": 0, "
         "\"ignore_eos\": true",
         "content"},
    };
    static const server_settings settings = {.n_draft = 8};
    server_start(&settings);
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        json_t *plain = whole(cases[i].path, cases[i].fields, ""), *own = whole(cases[i].path, cases[i].fields, DRAFT);
        check_equal(own, plain, cases[i].at);
        CHECK(integer_at(own, "usage/attention/drafts/accepted") > 0);
    }
    json_t *own = whole(cases[0].path, cases[0].fields, DRAFT), *events = stream(cases[0].path, cases[0].fields, DRAFT);
    char text[4096];
    size_t i, n_logprobs = 0;
    json_t *event;
    join(events, "delta/content", 0, text, sizeof text);
    CHECK_STR(text, server_text_at(own, "choices/0/message/content"));
    CHECK(json_array_size(events) < 30);
    json_array_foreach(events, i, event) n_logprobs += json_array_size(server_member(event, "choices/0/logprobs/content"));
    CHECK_INT(n_logprobs, 30);
    server_stop();
}

// The server's drafts are for requests that name none. Attention that keeps a state gets none of them.
static void defaults(void) {
    static const char fields[] =
        "\"prompt\": \"a b c a b c a b\", \"max_tokens\": 12, \"temperature\": 0, \"ignore_eos\": true";
    static const server_settings settings = {.n_draft = 9, .draft = "ngram:min=1:least=2:most=9"};
    server_start(&settings);
    json_t *own = whole("/v1/completions", fields, ""), *plain = whole("/v1/completions", fields, ", \"draft\": \"none\""),
           *other = whole("/v1/completions", fields, ", \"draft\": \"self:most=2:attn=topk:k=4\""),
           *null = whole("/v1/completions", fields, ", \"draft\": null"),
           *state = whole("/v1/completions", fields, ", \"attn\": \"santa-pps:epsilon=0.2\"");
    CHECK_STR(server_text_at(own, "usage/attention/drafts/draft"), settings.draft);
    CHECK_STR(server_text_at(null, "usage/attention/drafts/draft"), settings.draft);
    CHECK_STR(server_text_at(other, "usage/attention/drafts/draft"), "self:most=2:attn=topk:k=4");
    CHECK(!server_member(plain, "usage/attention/drafts") && !server_member(state, "usage/attention/drafts"));
    check_equal(own, plain, "choices");
    check_equal(other, plain, "choices");
    const server_reply r = server_ask("GET", "/props", NULL);
    CHECK_STR(server_text_at(server_json(&r), "drafts/default"), settings.draft);
    CHECK_INT(integer_at(server_json(&r), "drafts/most"), 9);
    server_stop();
}

static void refusals(void) {
    static const server_refusal cases[] = {
        {"/v1/completions", "\"prompt\": \"a\", \"draft\": \"ngrams\"", "draft", "unknown source; expected ngram"},
        {"/v1/completions", "\"prompt\": \"a\", \"draft\": \"ngram:most=9\"", "draft", "at most 8"},
        {"/v1/completions", "\"prompt\": \"a\", \"draft\": \"self:attn=foo\"", "draft", "unknown method"},
        {"/v1/completions", "\"prompt\": \"a\", \"draft\": \"self:weights=int4\"", "draft", "found none"},
        {"/v1/completions", "\"prompt\": \"a\", \"draft\": 3", "draft", "an integer, expected a string"},
        {"/v1/completions", "\"prompt\": \"a\", \"draft\": \"\"", "draft", "unknown source"},
        {"/v1/completions", "\"prompt\": \"a\", \"draft\": \"ngram\", \"attn\": \"santa-pps:epsilon=0.2\"", "draft",
         "santa-pps keeps a state"},
        {"/v1/chat/completions", "\"messages\": [{\"role\": \"user\", \"content\": \"a\"}], \"draft\": \"auto:x\"", "draft",
         "expected ngram"},
        {"/v1/messages", "\"messages\": [{\"role\": \"user\", \"content\": \"a\"}], \"max_tokens\": 3, \"draft\": \"x\"",
         "draft", "unknown source"},
    };
    static const server_settings settings = {.n_draft = 8};
    server_start(&settings);
    server_check_refusals(cases, sizeof cases / sizeof *cases);
    server_stop();
}

// vLLM's counters are those of usage, and the gaps between tokens count tokens, not steps.
static void metrics(void) {
    static const char fields[] =
        "\"prompt\": \"a b c a b c a b\", \"max_tokens\": 30, \"temperature\": 0, \"ignore_eos\": true";
    static const server_settings settings = {.n_draft = 8};
    server_start(&settings);
    CHECK(server_metric("vllm:spec_decode_num_drafts_total") == 0);
    json_t *v = whole("/v1/completions", fields, DRAFT);
    const json_t *d = server_member(v, "usage/attention/drafts");
    server_wait("vllm:spec_decode_num_drafts_total", (double)integer_at(d, "draft_steps"));
    CHECK(server_metric("vllm:spec_decode_num_draft_tokens_total") == (double)integer_at(d, "drafted"));
    CHECK(server_metric("vllm:spec_decode_num_accepted_tokens_total") == (double)integer_at(d, "accepted"));
    CHECK(integer_at(d, "accepted") > 0);
    server_wait("vllm:generation_tokens_total", 30);
    CHECK_INT(server_metric("vllm:inter_token_latency_seconds_count"), 29);
    CHECK_INT(server_metric("vllm:time_to_first_token_seconds_count"), 1);
    CHECK(server_metric("sleigh_decode_steps_total") < 30);
    const server_reply r = server_ask("GET", "/metrics", NULL);
    for (int i = 0; i < 8; i++) {
        char line[160];
        snprintf(line, sizeof line,
                 "\nvllm:spec_decode_num_accepted_tokens_per_pos_total{model_name=\"tiny\",position=\"%d\"} %d\n", i,
                 (int)json_integer_value(json_array_get(server_member(d, "accepted_at"), (size_t)i)));
        if (!strstr(r.body, line)) FAIL("no line %s", line);
    }
    server_stop();
    server_start(NULL); // an engine without drafts has no such metrics
    const server_reply none = server_ask("GET", "/metrics", NULL);
    CHECK(!strstr(none.body, "spec_decode"));
    server_stop();
}

const test_suite suite_serve_drafts = {"serve_drafts", (const test_case[]){{"same-answers", 0, same_answers},
                                                                           {"dialects", 0, dialects},
                                                                           {"defaults", 0, defaults},
                                                                           {"refusals", 0, refusals},
                                                                           {"metrics", 0, metrics},
                                                                           {0}}};
