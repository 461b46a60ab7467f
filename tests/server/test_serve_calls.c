// tests/server/test_serve_calls.c - calls of tools that a request forces: every form of calls in every dialect of HTTP,
// streamed and whole, against the library alone, and what cannot be forced.
#include "server/serve/serve_internal.h"
#include "tests/server/serve_fixture.h"
#include "tests/support/run_cli.h"

#include <stdlib.h>
#include <string.h>

static sl_error err;

enum { SEEDS = 4, MOST_TOKENS = 600 };

// ---- forms ----

typedef struct form {
    const char *template, *tokens[3]; // what the template says, which tells the form; special tokens of the model
    const char *name;                 // of the second tool: some forms write any name
    int is_several;                   // an answer may have several calls
    api_call_format format;
} form;

// A server with the template and the tokens of a form.
static void start_with(const form *f) {
    char template[128];
    int n = snprintf(template, sizeof template, "{# %s #}{{ bos_token }}{{ messages[0].content }}<|eot_id|>", f->template);
    spill(in_tmp("t.jinja"), template, (size_t)n);
    server_start(&(server_settings){.chat_template = in_tmp("t.jinja"), .model = server_model_with(f->tokens)});
}

#define TOWN                                                                                                                   \
    "{\"type\": \"object\", \"properties\": {\"town\": {\"$ref\": \"#/$defs/town\"}, \"days\": {\"type\": \"integer\", "       \
    "\"minimum\": 1, \"maximum\": 9}, \"dry\": {\"type\": [\"boolean\", \"null\"]}}, \"required\": [\"town\", \"days\"], "     \
    "\"$defs\": {\"town\": {\"enum\": [\"Oslo\", \"Rome\"]}}}"

static void check_call(const char *name, const json_t *v) {
    const char *town = json_string_value(json_object_get(v, "town"));
    json_int_t days = json_integer_value(json_object_get(v, "days"));
    const json_t *dry = json_object_get(v, "dry");
    CHECK(json_is_object(v));
    if (!strcmp(name, "now"))
        CHECK_INT(json_object_size(v), 0);
    else
        CHECK(town && (!strcmp(town, "Oslo") || !strcmp(town, "Rome")) && days >= 1 && days <= 9 &&
              json_object_size(v) == (dry ? 3 : 2) && (!dry || json_is_boolean(dry) || json_is_null(dry)));
}

// ---- the calls of an answer: a list of {name, arguments} ----

static void add_call(json_t *calls, const json_t *name, const json_t *arguments) {
    json_t *v = json_is_string(arguments) ? json_loads(json_string_value(arguments), JSON_REJECT_DUPLICATES, NULL)
                                          : json_incref((json_t *)arguments);
    CHECK(json_is_string(name) && json_is_object(v));
    json_array_append_new(calls, json_pack("{s:O, s:o}", "name", name, "arguments", v));
}

static void add_items(json_t *calls, const json_t *items, const char *type, const char *arguments) {
    json_t *item;
    size_t i;
    json_array_foreach(items, i, item) {
        if (!strcmp(server_text_at(item, "type"), type))
            add_call(calls, json_object_get(item, "name"), json_object_get(item, arguments));
        else
            FAIL("an item beside calls: %s", server_keep(json_dumps(item, 0)));
    }
}

static void chat_calls(json_t *calls, const json_t *answer) {
    json_t *call;
    size_t i;
    CHECK_STR(server_text_at(answer, "choices/0/finish_reason"), "tool_calls");
    CHECK(!json_string_length(server_member(answer, "choices/0/message/content")));
    json_array_foreach(server_member(answer, "choices/0/message/tool_calls"), i, call)
        add_call(calls, server_member(call, "function/name"), server_member(call, "function/arguments"));
}

static void chat_events(json_t *calls, const json_t *events) {
    json_t *e, *call;
    size_t i, k;
    json_array_foreach(events, i, e) {
        json_array_foreach(server_member(e, "choices/0/delta/tool_calls"), k, call) {
            CHECK_INT(json_integer_value(json_object_get(call, "index")), json_array_size(calls));
            add_call(calls, server_member(call, "function/name"), server_member(call, "function/arguments"));
        }
        CHECK(!json_string_length(server_member(e, "choices/0/delta/content")));
    }
}

static void responses_calls(json_t *calls, const json_t *answer) {
    CHECK_STR(server_text_at(answer, "status"), "completed");
    add_items(calls, json_object_get(answer, "output"), "function_call", "arguments");
}

static void responses_events(json_t *calls, const json_t *events) {
    json_t *e;
    size_t i;
    json_array_foreach(events, i, e) {
        const json_t *item = json_object_get(e, "item");
        if (strcmp(server_text_at(e, "type"), "response.output_item.done")) continue;
        CHECK_STR(server_text_at(item, "type"), "function_call");
        add_call(calls, json_object_get(item, "name"), json_object_get(item, "arguments"));
    }
}

static void messages_calls(json_t *calls, const json_t *answer) {
    CHECK_STR(server_text_at(answer, "stop_reason"), "tool_use");
    add_items(calls, json_object_get(answer, "content"), "tool_use", "input");
}

static void messages_events(json_t *calls, const json_t *events) {
    const json_t *name = NULL;
    json_t *e;
    size_t i;
    json_array_foreach(events, i, e) {
        const json_t *block = json_object_get(e, "content_block"), *part = server_member(e, "delta/partial_json");
        if (block) name = json_object_get(block, "name");
        if (part) add_call(calls, name, part); // the arguments come as a whole
    }
}

// ---- dialects ----

typedef struct dialect {
    const char *path, *prompt, *tool; // tool: "%s" a name, "%s" a schema
    const char *any, *one, *named;    // fields: at least one call; one call of any tool; "%s": one call of a tool
    void (*read)(json_t *calls, const json_t *answer);
    void (*read_events)(json_t *calls, const json_t *events);
} dialect;

#define QUESTION "\"messages\": [{\"role\": \"user\", \"content\": \"Hi\"}]"

static const dialect dialects[] = {
    {"/v1/chat/completions", QUESTION ", \"max_tokens\": 600",
     "{\"type\": \"function\", \"function\": {\"name\": \"%s\", \"parameters\": %s}}", "\"tool_choice\": \"required\"",
     "\"tool_choice\": \"required\", \"parallel_tool_calls\": false",
     "\"tool_choice\": {\"type\": \"function\", \"function\": {\"name\": \"%s\"}}", chat_calls, chat_events},
    {"/v1/responses", "\"input\": \"Hi\", \"max_output_tokens\": 600",
     "{\"type\": \"function\", \"name\": \"%s\", \"parameters\": %s}", "\"tool_choice\": \"required\"",
     "\"tool_choice\": \"required\", \"parallel_tool_calls\": false",
     "\"tool_choice\": {\"type\": \"function\", \"name\": \"%s\"}", responses_calls, responses_events},
    {"/v1/messages", QUESTION ", \"max_tokens\": 600", "{\"name\": \"%s\", \"input_schema\": %s}",
     "\"tool_choice\": {\"type\": \"any\"}", "\"tool_choice\": {\"type\": \"any\", \"disable_parallel_tool_use\": true}",
     "\"tool_choice\": {\"type\": \"tool\", \"name\": \"%s\"}", messages_calls, messages_events},
};

// The fields of a request for these calls, with two tools.
static const char *fields_of(const dialect *d, const form *f, const char *choice, const char *name) {
    char tools[2][1024], format[1024], *text = server_keep(malloc(4096));
    snprintf(tools[0], sizeof tools[0], d->tool, "now", "{}");
    snprintf(tools[1], sizeof tools[1], d->tool, f->name, TOWN);
    snprintf(format, sizeof format, "%s, \"tools\": [%%s, %%s], %s", d->prompt, choice);
    snprintf(text, 4096, format, tools[0], tools[1], name);
    return text;
}

// The calls of the answer, which the stream has too. Adds to *n_more the calls behind the first one.
static void check_answers(const dialect *d, const char *fields, const char *want_name, int most, int *n_more) {
    for (int seed = 0; seed < SEEDS; seed++) {
        server_reply whole = server_sample(d->path, fields, seed, 0), stream = server_sample(d->path, fields, seed, 1);
        json_t *calls = server_keep_json(json_array()), *streamed = server_keep_json(json_array()), *call;
        size_t i, n = 0;
        d->read(calls, server_json(&whole));
        d->read_events(streamed, server_events(&stream));
        n = json_array_size(calls);
        if (!json_equal(calls, streamed)) FAIL("%s: %s, but the stream has other calls", d->path, whole.body);
        if (n < 1 || (most && n > (size_t)most)) FAIL("%s: %zu calls: %s", fields, n, whole.body);
        json_array_foreach(calls, i, call) {
            const char *name = server_text_at(call, "name");
            if (want_name) CHECK_STR(name, want_name);
            check_call(name, json_object_get(call, "arguments"));
        }
        *n_more += (int)n - 1;
    }
}

static void check_form(const form *f) {
    int n_more = 0, none = 0;
    start_with(f);
    for (size_t i = 0; i < sizeof dialects / sizeof *dialects; i++) {
        const dialect *d = &dialects[i];
        check_answers(d, fields_of(d, f, d->any, NULL), NULL, f->is_several ? 0 : 1, &n_more);
        check_answers(d, fields_of(d, f, d->one, NULL), NULL, 1, &none);
        check_answers(d, fields_of(d, f, d->named, "now"), "now", 1, &none);
        check_answers(d, fields_of(d, f, d->named, f->name), f->name, 1, &none);
    }
    CHECK_INT(n_more > 0, f->is_several);
    server_stop();
}

static const form hermes = {"<tool_call>", {NULL}, "\xc3\xa9t\xc3\xa9", 1, API_CALLS_HERMES},
                  hermes_tokens = {"<tool_call>", {"<tool_call>", "</tool_call>", NULL}, "f", 1, API_CALLS_HERMES},
                  llama3 = {"<|python_tag|>", {NULL}, "\xc3\xa9t\xc3\xa9", 0, API_CALLS_LLAMA3},
                  llama3_tag = {"<|python_tag|>", {"<|python_tag|>", NULL}, "f", 0, API_CALLS_LLAMA3},
                  pythonic = {"func_name1(", {NULL}, "town.look-up_2", 1, API_CALLS_PYTHONIC},
                  pythonic_tag = {"func_name1(", {"<|python_tag|>", NULL}, "f", 1, API_CALLS_PYTHONIC},
                  mistral = {"[TOOL_CALLS]", {"[TOOL_CALLS]", NULL}, "\xc3\xa9t\xc3\xa9", 1, API_CALLS_MISTRAL},
                  mistral_args = {"[TOOL_CALLS] [ARGS]", {"[TOOL_CALLS]", "[ARGS]", NULL}, "2.f-g", 1, API_CALLS_MISTRAL_ARGS};

static void forced_hermes(void) {
    check_form(&hermes);
    check_form(&hermes_tokens);
}

static void forced_llama3(void) {
    check_form(&llama3);
    check_form(&llama3_tag);
}

static void forced_pythonic(void) {
    check_form(&pythonic);
    check_form(&pythonic_tag);
}

static void forced_mistral(void) {
    check_form(&mistral);
    check_form(&mistral_args);
}

// ---- bits ----

static const char *hash_of(const server_reply *r) {
    return server_text_at(server_json(r), "usage/attention/answers/0/logits_hash");
}

// The library gives the same logits for the prompt and the grammar.
static void check_alone(const form *f, const char *fields, int seed, const char *want) {
    static const char prompt[] = "<|begin_of_text|>Hi<|eot_id|>";
    sl_ids ids = {0};
    sl_grammar *g;
    api_request q;
    api_error why;
    char body[4096], hash[17];
    int n = snprintf(body, sizeof body, "{%s}", fields);
    if (api_request_read(API_CHAT, body, (size_t)n, &q, &why)) FAIL("%s", why.why.message);
    if (serve_force_calls(f->format, server_model(), &q, &g, &why)) FAIL("%s", why.why.message);
    CHECK_OK(sl_tokenize(sl_model_tokenizer(server_model()), prompt, sizeof prompt - 1, 0, &ids, &err), err);
    server_question a = {.ids = ids.data,
                         .n = (int)ids.n,
                         .max_tokens = MOST_TOKENS,
                         .at_start = 1,
                         .seed = (uint32_t)seed,
                         .sampling = sl_model_sampling(server_model()),
                         .grammar = g};
    a.sampling.temp = 1.5f;
    snprintf(hash, sizeof hash, "%016llx", (unsigned long long)server_answer_alone(&a).hash);
    CHECK_STR(hash, want);
    sl_ids_free(&ids), sl_grammar_free(g), api_request_free(&q);
}

// Requests of one batch get the bits of the same requests alone.
static void check_bits(const form *f) {
    const dialect *d = &dialects[0];
    int connections[SEEDS];
    start_with(f);
    const char *fields = fields_of(d, f, d->any, NULL);
    for (int seed = 0; seed < SEEDS; seed++) connections[seed] = server_sample_open(d->path, fields, seed, 0);
    for (int seed = 0; seed < SEEDS; seed++) {
        server_reply r = server_read(connections[seed]), alone = server_sample(d->path, fields, seed, 0);
        json_t *calls = server_keep_json(json_array()), *want = server_keep_json(json_array());
        chat_calls(calls, server_json(&r)), chat_calls(want, server_json(&alone));
        CHECK(json_equal(calls, want));
        CHECK_STR(hash_of(&r), hash_of(&alone));
        check_alone(f, fields, seed, hash_of(&r));
    }
    server_stop();
}

static void bits(void) {
    check_bits(&hermes);
    check_bits(&pythonic_tag);
    check_bits(&mistral);
    check_bits(&mistral_args);
}

// ---- marks ----

// A mark is one token: a bias against the token leaves no other way to begin the call.
static void marks(void) {
    char fields[2048];
    start_with(&mistral);
    int32_t id = sl_tokenizer_find(sl_model_tokenizer(server_model()), "[TOOL_CALLS]");
    const char *plain = fields_of(&dialects[0], &mistral, dialects[0].one, NULL);
    CHECK(id >= 0);
    server_reply r = server_sample(dialects[0].path, server_keep(strdup(plain)), 1, 0);
    CHECK(server_member(server_json(&r), "choices/0/message/tool_calls/0"));
    snprintf(fields, sizeof fields, "%s, \"logit_bias\": {\"%d\": -1e9}", plain, id);
    r = server_read(server_sample_open(dialects[0].path, fields, 1, 0));
    if (r.status == 200) CHECK(!strstr(r.body, "[TOOL_CALLS]"));
    server_stop();
}

// ---- errors ----

#define CHAT_TOOL(NAME, SCHEMA)                                                                                                \
    QUESTION ", \"tools\": [{\"type\": \"function\", \"function\": {\"name\": \"" NAME "\", \"parameters\": " SCHEMA "}}]"
#define REQUIRED CHAT_TOOL("f", "{}") ", \"tool_choice\": \"required\""

static void check_refused(const form *f, const server_refusal *cases, size_t n) {
    start_with(f);
    server_check_refusals(cases, n);
    server_stop();
}

// Schemas, names and tokens that do not make a call.
static void errors(void) {
    static const char chat[] = "/v1/chat/completions";
    static const server_refusal
        schema = {chat, CHAT_TOOL("f", "{\"properties\": {\"x\": {\"not\": {}}}}") ", \"tool_choice\": \"required\"", "tools",
                  "tool-0#/x: keyword \"not\" is not supported"},
        python[] = {{chat, CHAT_TOOL("a b", "{}") ", \"tool_choice\": \"required\"", "tools", "the name a b of a function"},
                    {chat, CHAT_TOOL("2a", "{}") ", \"tool_choice\": \"required\"", "tools", "the name 2a of a function"},
                    {chat, CHAT_TOOL("f", "{\"properties\": {\"a b\": {}}}") ", \"tool_choice\": \"required\"", "tools",
                     "tool-0#/a b: the name cannot be that of an argument in Python"}},
        args[] = {{chat, CHAT_TOOL("a{b", "{}") ", \"tool_choice\": \"required\"", "tools", "the name a{b of a function"},
                  {chat, CHAT_TOOL("a[b", "{}") ", \"tool_choice\": \"required\"", "tools", "the name a[b of a function"},
                  {chat, CHAT_TOOL("\xc3\xa9", "{}") ", \"tool_choice\": \"required\"", "tools", "of a function"}},
        no_mark[] = {{chat, REQUIRED, "tool_choice", "the tokenizer has no token [TOOL_CALLS]"},
                     {"/v1/messages",
                      QUESTION ", \"max_tokens\": 9, \"tools\": [{\"name\": \"f\", \"input_schema\": {}}], "
                               "\"tool_choice\": {\"type\": \"any\"}",
                      "tool_choice", "the tokenizer has no token [TOOL_CALLS]"}},
        no_args = {chat, REQUIRED, "tool_choice", "the tokenizer has no token [ARGS]"},
        no_form = {chat, REQUIRED, "tool_choice", "hermes, llama3_json, pythonic or mistral"};
    check_refused(&hermes, &schema, 1);
    check_refused(&pythonic, python, sizeof python / sizeof *python);
    check_refused(&mistral_args, args, sizeof args / sizeof *args);
    check_refused(&(form){"[TOOL_CALLS]", {NULL}, "f", 1, API_CALLS_MISTRAL}, no_mark, 2);
    check_refused(&(form){"[TOOL_CALLS] [ARGS]", {"[TOOL_CALLS]", NULL}, "f", 1, API_CALLS_MISTRAL_ARGS}, &no_args, 1);
    check_refused(&(form){"nothing", {NULL}, "f", 1, API_CALLS_NONE}, &no_form, 1);
}

const test_suite suite_serve_calls = {"serve_calls", (const test_case[]){{"hermes", 0, forced_hermes},
                                                                         {"llama3", 0, forced_llama3},
                                                                         {"pythonic", 0, forced_pythonic},
                                                                         {"mistral", 0, forced_mistral},
                                                                         {"bits", 0, bits},
                                                                         {"marks", 0, marks},
                                                                         {"errors", 0, errors},
                                                                         {0}}};
