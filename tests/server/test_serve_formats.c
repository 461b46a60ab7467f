// tests/server/test_serve_formats.c - structured output over HTTP: every format in every dialect against the library alone,
// and formats that are errors.
#include "tests/server/serve_fixture.h"
#include "tests/support/schema_documents.h"

#include <regex.h>
#include <stdlib.h>
#include <string.h>

static sl_error err;

enum { SEEDS = 3, MOST_TOKENS = 300 };

// ---- requests ----

static json_t *whole(const char *path, const char *fields, int seed) {
    server_reply r = server_sample(path, fields, seed, 0);
    return server_json(&r);
}

// The texts at a path of all events, joined.
static const char *streamed(const char *path, const char *fields, int seed, const char *at) {
    server_reply r = server_sample(path, fields, seed, 1);
    sl_text text = {0};
    json_t *e;
    size_t i;
    CHECK_OK(sl_text_append(&text, "", 0, &err), err);
    json_array_foreach(server_events(&r), i, e) {
        const json_t *part = server_member(e, at);
        if (json_is_string(part)) CHECK_OK(sl_text_append(&text, json_string_value(part), json_string_length(part), &err), err);
    }
    return server_keep(text.data);
}

// ---- formats ----

typedef struct format_row {
    const char *field; // a field of the body; %s: the schema of documents
    sl_grammar_kind kind;
    const char *text, *pattern; // a text of the grammar; NULL: the schema of documents
} format_row;

static const format_row rows[] = {
    {"\"response_format\": {\"type\": \"json_schema\", \"json_schema\": {\"name\": \"a\", \"schema\": %s}}",
     SL_GRAMMAR_JSON_SCHEMA, NULL, NULL},
    {"\"json_schema\": %s", SL_GRAMMAR_JSON_SCHEMA, NULL, NULL},
    {"\"structured_outputs\": {\"json\": %s}", SL_GRAMMAR_JSON_SCHEMA, NULL, NULL},
    {"\"structured_outputs\": {\"regex\": \"[A-F0-9]{4}(-[a-z ]{3,9})?\"}", SL_GRAMMAR_REGEX, "[A-F0-9]{4}(-[a-z ]{3,9})?",
     "^[A-F0-9]{4}(-[a-z ]{3,9})?$"},
    {"\"structured_outputs\": {\"choice\": [\"yes\", \"no\", \"not \xe2\x82\xac\"]}", SL_GRAMMAR_CHOICE,
     "[\"yes\", \"no\", \"not \xe2\x82\xac\"]", "^(yes|no|not \xe2\x82\xac)$"},
    {"\"structured_outputs\": {\"grammar\": \"root ::= [a-c]{2} \\\"=\\\" [0-9]{1,3}\"}", SL_GRAMMAR_GBNF,
     "root ::= [a-c]{2} \"=\" [0-9]{1,3}", "^[a-c]{2}=[0-9]{1,3}$"},
    {"\"grammar\": \"root ::= [a-c]{2} \\\"=\\\" [0-9]{1,3}\"", SL_GRAMMAR_GBNF, "root ::= [a-c]{2} \"=\" [0-9]{1,3}",
     "^[a-c]{2}=[0-9]{1,3}$"},
    {"\"response_format\": {\"type\": \"json_object\"}", SL_GRAMMAR_JSON_OBJECT, "", "^\\{"}, // any depth: it seldom ends
    {"\"structured_outputs\": {\"json_object\": true}", SL_GRAMMAR_JSON_OBJECT, "", "^\\{"},
};

static void check_text(const format_row *row, const char *text) {
    regex_t r;
    if (!row->pattern) {
        check_document(text);
        return;
    }
    CHECK_INT(regcomp(&r, row->pattern, REG_EXTENDED | REG_NOSUB), 0);
    if (regexec(&r, text, 0, NULL, 0)) FAIL("\"%s\" does not match %s", text, row->pattern);
    regfree(&r);
}

static const char *fields_of(const char *prompt, const char *limit, const char *field) {
    char *text = server_keep(malloc(2048)), format[1024];
    snprintf(format, sizeof format, field, document_schema);
    snprintf(text, 2048, "%s, \"%s\": %d, %s", prompt, limit, MOST_TOKENS, format);
    return text;
}

// The answer of the server has the text and the logits of the library.
static void check_alone(const format_row *row, const json_t *answer, int seed) {
    const sl_tokenizer *tok = sl_model_tokenizer(server_model());
    const char *grammar = row->text ? row->text : document_schema;
    sl_ids ids = {0};
    sl_grammar *g;
    char hash[17];
    CHECK_OK(sl_grammar_new(row->kind, grammar, strlen(grammar), &g, &err), err);
    CHECK_OK(sl_tokenize(tok, "The bay is", 10, SL_TOK_BOS, &ids, &err), err);
    server_question q = {.ids = ids.data, .n = (int)ids.n, .max_tokens = MOST_TOKENS, .seed = (uint32_t)seed, .grammar = g};
    q.sampling = sl_model_sampling(server_model()), q.sampling.temp = 1.5f;
    const server_alone alone = server_answer_alone(&q);
    snprintf(hash, sizeof hash, "%016llx", (unsigned long long)alone.hash);
    CHECK_STR(server_text_at(answer, "choices/0/text"), alone.text);
    CHECK_STR(server_text_at(answer, "usage/attention/answers/0/logits_hash"), hash);
    sl_ids_free(&ids), sl_grammar_free(g);
}

static void formats(void) {
    server_start(NULL);
    for (size_t k = 0; k < sizeof rows / sizeof *rows; k++) {
        const char *fields = fields_of("\"prompt\": \"The bay is\"", "max_tokens", rows[k].field);
        for (int seed = 0; seed < SEEDS; seed++) {
            json_t *v = whole("/v1/completions", fields, seed);
            const char *text = server_text_at(v, "choices/0/text");
            check_text(&rows[k], text);
            check_alone(&rows[k], v, seed);
            if (rows[k].kind != SL_GRAMMAR_JSON_OBJECT) CHECK_STR(server_text_at(v, "choices/0/finish_reason"), "stop");
            CHECK_STR(streamed("/v1/completions", fields, seed, "choices/0/text"), text);
        }
    }
    server_stop();
}

static void dialects(void) {
    static const char question[] = "\"messages\": [{\"role\": \"user\", \"content\": \"Hi\"}]";
    static const struct {
        const char *path, *prompt, *limit, *field, *at, *delta;
    } cases[] = {
        {"/v1/chat/completions", question, "max_tokens",
         "\"response_format\": {\"type\": \"json_schema\", \"json_schema\": {\"schema\": %s}}", "choices/0/message/content",
         "choices/0/delta/content"},
        {"/v1/responses", "\"input\": \"Hi\"", "max_output_tokens",
         "\"text\": {\"format\": {\"type\": \"json_schema\", \"name\": \"a\", \"schema\": %s}}", "output/0/content/0/text",
         "delta"},
        {"/v1/messages", question, "max_tokens", "\"output_format\": {\"type\": \"json_schema\", \"schema\": %s}",
         "content/0/text", "delta/text"},
        {"/v1/messages", question, "max_tokens", "\"output_config\": {\"format\": {\"type\": \"json_schema\", \"schema\": %s}}",
         "content/0/text", "delta/text"},
    };
    server_start(NULL);
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        const char *fields = fields_of(cases[i].prompt, cases[i].limit, cases[i].field);
        for (int seed = 0; seed < SEEDS; seed++) {
            const char *text = server_text_at(whole(cases[i].path, fields, seed), cases[i].at);
            check_document(text);
            CHECK_STR(streamed(cases[i].path, fields, seed, cases[i].delta), text);
        }
    }
    server_stop();
}

// ---- errors ----

static void errors(void) {
    static const char path[] = "/v1/completions";
    static const server_refusal cases[] = {
        {path, "\"prompt\": \"a\", \"json_schema\": {\"type\": \"objct\"}", "json_schema", "objct"},
        {path, "\"prompt\": \"a\", \"structured_outputs\": {\"json\": {\"properties\": {\"x\": {\"not\": {}}}}}",
         "structured_outputs", "schema#/x: keyword \"not\" is not supported"},
        {path,
         "\"prompt\": \"a\", \"json_schema\": {\"properties\": {\"x\": {\"type\": \"string\", \"pattern\": "
         "\"(a{1,700}){1,700}\"}}}",
         "json_schema", "schema#/x: pattern: with it the grammar has more than 524288 nodes"},
        {path,
         "\"prompt\": \"a\", \"response_format\": {\"type\": \"json_schema\", \"json_schema\": {\"schema\": {\"allOf\": "
         "[{\"type\": "
         "\"string\"}, {\"type\": \"null\"}]}}}",
         "response_format", "no text follows"},
        {path, "\"prompt\": \"a\", \"grammar\": \"root ::= \\\"a\\\"\\nb ::= [a\"", "grammar", "line 2, column 9"},
        {path, "\"prompt\": \"a\", \"grammar\": \"root ::= root \\\"a\\\" | \\\"b\\\"\"", "grammar", "left-recursive"},
        {path, "\"prompt\": \"a\", \"structured_outputs\": {\"regex\": \"a(?=b)\"}", "structured_outputs", "column 3"},
    };
    server_start(NULL);
    server_check_refusals(cases, sizeof cases / sizeof *cases);
    server_stop();
}

const test_suite suite_serve_formats = {
    "serve_formats", (const test_case[]){{"formats", 0, formats}, {"dialects", 0, dialects}, {"errors", 0, errors}, {0}}};
