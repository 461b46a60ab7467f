// tests/server/test_serve_calls.c - calls of tools that a request forces: every form of calls in every dialect of HTTP,
// streamed and whole, against the library alone, and what cannot be forced.
#include "grammar/grammar.h"
#include "server/serve/serve_internal.h"
#include "tests/server/serve_fixture.h"
#include "tests/support/run_cli.h"

#include <stdlib.h>
#include <string.h>

static sl_error err;

enum { MOST_SEEDS = 20, BATCH = SANITIZED ? 2 : 4, MOST_TOKENS = 600 };

// ---- forms ----

typedef struct form {
    const char *template, *tokens[3]; // what the template says, which tells the form; special tokens of the model
    const char *name;                 // of the second tool: some forms write any name
    api_call_format format;
    const char *biased; // tokens with a bias, with which many answers have several calls; NULL: an answer has one call
    float bias;
} form;

// A server with the template and the tokens of a form.
static void start_with(const form *f) {
    char template[128];
    int n = snprintf(template, sizeof template, "{# %s #}{{ bos_token }}{{ messages[0].content }}<|eot_id|>", f->template);
    spill(in_tmp("t.jinja"), template, (size_t)n);
    server_start(&(server_settings){
        .chat_template = in_tmp("t.jinja"), .model = server_model_with(f->tokens), .biased = f->biased, .bias = f->bias});
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

static int chat_calls(json_t *calls, const json_t *answer) {
    const char *reason = server_text_at(answer, "choices/0/finish_reason");
    json_t *call;
    size_t i;
    if (!strcmp(reason, "length")) return 0;
    CHECK_STR(reason, "tool_calls");
    CHECK(!json_string_length(server_member(answer, "choices/0/message/content")));
    json_array_foreach(server_member(answer, "choices/0/message/tool_calls"), i, call)
        add_call(calls, server_member(call, "function/name"), server_member(call, "function/arguments"));
    return 1;
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

static int responses_calls(json_t *calls, const json_t *answer) {
    const char *status = server_text_at(answer, "status");
    if (!strcmp(status, "incomplete")) return 0;
    CHECK_STR(status, "completed");
    add_items(calls, json_object_get(answer, "output"), "function_call", "arguments");
    return 1;
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

static int messages_calls(json_t *calls, const json_t *answer) {
    const char *reason = server_text_at(answer, "stop_reason");
    if (!strcmp(reason, "max_tokens")) return 0;
    CHECK_STR(reason, "tool_use");
    add_items(calls, json_object_get(answer, "content"), "tool_use", "input");
    return 1;
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
    int (*read)(json_t *calls, const json_t *answer); // 0: max_tokens has cut the answer
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

// The calls of an answer, which its stream has too. NULL: max_tokens has cut the answer.
static const json_t *ask(const dialect *d, const char *fields, int seed) {
    server_reply whole = server_sample(d->path, fields, seed, 0), stream = server_sample(d->path, fields, seed, 1);
    json_t *calls = server_keep_json(json_array()), *streamed = server_keep_json(json_array()), *call;
    size_t i;
    if (!d->read(calls, server_json(&whole))) return NULL;
    d->read_events(streamed, server_events(&stream));
    if (!json_equal(calls, streamed)) FAIL("%s: %s, but the stream has other calls", d->path, whole.body);
    json_array_foreach(calls, i, call) check_call(server_text_at(call, "name"), json_object_get(call, "arguments"));
    return calls;
}

static void check_one(const dialect *d, const char *fields, const char *name) { // name: the tool of the call; NULL: any
    const json_t *calls = ask(d, fields, 1);
    CHECK_INT(json_array_size(calls), 1);
    if (name) CHECK_STR(server_text_at(calls, "0/name"), name);
}

// One call or more. Some answer has several calls.
static void check_any(const dialect *d, const char *fields) {
    size_t most = 0;
    for (int seed = 1; seed < MOST_SEEDS && most < 2; seed++) {
        const json_t *calls = ask(d, fields, seed);
        size_t n = json_array_size(calls);
        CHECK(!calls || n > 0);
        if (n > most) most = n;
    }
    CHECK(most > 1);
}

enum { CHAT = 1, ALL = sizeof dialects / sizeof *dialects }; // how many dialects

static void check_form(const form *f, size_t n_dialects) {
    start_with(f);
    for (size_t i = 0; i < n_dialects; i++) {
        const dialect *d = &dialects[i];
        if (f->biased)
            check_any(d, fields_of(d, f, d->any, NULL));
        else
            check_one(d, fields_of(d, f, d->any, NULL), NULL);
        check_one(d, fields_of(d, f, d->one, NULL), NULL);
        check_one(d, fields_of(d, f, d->named, "now"), "now");
        check_one(d, fields_of(d, f, d->named, f->name), f->name);
    }
    server_stop();
}

#define MARKS "[TOOL_CALLS]", "[ARGS]"
static const form hermes = {"<tool_call>", {NULL}, "\xc3\xa9t\xc3\xa9", API_CALLS_HERMES, "<|e", -11}, // the end tokens
    hermes_tokens = {"<tool_call>", {"<tool_call>", "</tool_call>", NULL}, "f", API_CALLS_HERMES, "<|e", -11},
                  llama3 = {"<|python_tag|>", {NULL}, "\xc3\xa9t\xc3\xa9", API_CALLS_LLAMA3, NULL, 0},
                  llama3_tag = {"<|python_tag|>", {"<|python_tag|>", NULL}, "f", API_CALLS_LLAMA3, NULL, 0},
                  pythonic = {"func_name1(", {NULL}, "town.look-up_2", API_CALLS_PYTHONIC, "]", 4},
                  pythonic_tag = {"func_name1(", {"<|python_tag|>", NULL}, "f", API_CALLS_PYTHONIC, "]", 4},
                  mistral = {"[TOOL_CALLS]", {"[TOOL_CALLS]", NULL}, "f", API_CALLS_MISTRAL, "]", 10},
                  mistral_args = {"[TOOL_CALLS] [ARGS]", {MARKS, NULL}, "2.f-g", API_CALLS_MISTRAL_ARGS, "<|e", -12};

static void forced_hermes(void) {
    check_form(&hermes, CHAT);
    check_form(&hermes_tokens, ALL);
}

static void forced_llama3(void) {
    check_form(&llama3, CHAT);
    check_form(&llama3_tag, ALL);
}

static void forced_pythonic(void) {
    check_form(&pythonic, CHAT);
    check_form(&pythonic_tag, ALL);
}

static void forced_mistral(void) {
    check_form(&mistral, ALL);
    check_form(&mistral_args, ALL);
}

// ---- bits ----

// The grammar of a request for calls.
static sl_grammar *grammar_of(const form *f, const sl_model *model, const char *fields) {
    api_request q;
    api_error why;
    sl_grammar *g;
    const char *field;
    char body[4096];
    int n = snprintf(body, sizeof body, "{%s}", fields);
    if (api_request_read(API_CHAT, body, (size_t)n, &q, &why)) FAIL("%s", why.why.message);
    CHECK_OK(serve_force_calls(f->format, model, &q, &g, &field, &err), err);
    api_request_free(&q);
    return g;
}

static const char *hash_of(const server_reply *r) {
    return server_text_at(server_json(r), "usage/attention/answers/0/logits_hash");
}

// The library gives the same logits for the prompt and the grammar.
static void check_alone(const form *f, const char *fields, int seed, const char *want) {
    static const char prompt[] = "<|begin_of_text|>Hi<|eot_id|>";
    sl_ids ids = {0};
    sl_grammar *g = grammar_of(f, server_model(), fields);
    char hash[17];
    CHECK_OK(sl_tokenize(sl_model_tokenizer(server_model()), prompt, sizeof prompt - 1, 0, &ids, &err), err);
    server_question a = {.ids = ids.data,
                         .n = (int)ids.n,
                         .max_tokens = MOST_TOKENS,
                         .at_start = 1,
                         .seed = (uint32_t)seed,
                         .sampling = server_sampling(),
                         .grammar = g};
    a.sampling.temp = 1.5f;
    snprintf(hash, sizeof hash, "%016llx", (unsigned long long)server_answer_alone(&a).hash);
    CHECK_STR(hash, want);
    sl_ids_free(&ids), sl_grammar_free(g);
}

// Requests of one batch get the bits of the same requests alone.
static void check_bits(const form *f) {
    const dialect *d = &dialects[0];
    int connections[BATCH];
    start_with(f);
    const char *fields = fields_of(d, f, d->any, NULL);
    for (int seed = 0; seed < BATCH; seed++) connections[seed] = server_sample_open(d->path, fields, seed, 0);
    for (int seed = 0; seed < BATCH; seed++) {
        server_reply r = server_read(connections[seed]), alone = server_sample(d->path, fields, seed, 0);
        json_t *calls = server_keep_json(json_array()), *want = server_keep_json(json_array());
        CHECK_INT(chat_calls(calls, server_json(&r)), chat_calls(want, server_json(&alone)));
        CHECK(json_equal(calls, want));
        CHECK_STR(hash_of(&r), hash_of(&alone));
        check_alone(f, fields, seed, hash_of(&r));
    }
    server_stop();
}

static void bits(void) {
    check_bits(&pythonic_tag);
    check_bits(&mistral);
    check_bits(&mistral_args);
}

// ---- texts ----

// Accepts a text; the marks in it as their tokens. Returns 1: the text is whole. 0: it is a beginning. -1: it is not allowed.
static int follow(const form *f, const sl_tokenizer *tok, sl_grammar_run *run, const char *text) {
    sl_grammar_run_reset(run);
    for (size_t n; *text; text += n) {
        const char *const *mark = f->tokens;
        while (*mark && strncmp(text, *mark, strlen(*mark))) mark++;
        n = *mark ? strlen(*mark) : 1;
        int rc =
            *mark ? sl_grammar_accept(run, sl_tokenizer_find(tok, *mark), &err) : sl_grammar_accept_bytes(run, text, 1, &err);
        if (rc) return -1;
    }
    return sl_grammar_can_end(run);
}

// No text of bytes stands for a mark, and it is the only token that is allowed in its place.
static void check_marks(const form *f, const sl_model *model, sl_grammar_run *run, const char *text) {
    const sl_tokenizer *tok = sl_model_tokenizer(model);
    uint32_t bits[64];
    char before[256] = "";
    for (const char *const *mark = f->tokens; *mark; mark++) {
        const char *at = strstr(text, *mark);
        int32_t id = sl_tokenizer_find(tok, *mark);
        CHECK(at && id >= 0 && sl_tokenizer_is_special(tok, id));
        snprintf(before, sizeof before, "%.*s", (int)(at - text), text);
        CHECK_INT(follow(f, tok, run, before), 0);
        CHECK_OK(sl_grammar_allowed(run, bits, &err), err);
        CHECK(bits[id / 32] >> id % 32 & 1);
        bits[id / 32] &= ~(1u << id % 32);
        for (int32_t w = 0; w < sl_model_n_vocab(model) / 32 && f->format != API_CALLS_PYTHONIC; w++) CHECK(!bits[w]);
        CHECK_ERR(sl_grammar_accept_bytes(run, *mark, 1, &err) || sl_grammar_accept_bytes(run, *mark + 1, 1, &err) ? SL_ERR_ARG
                                                                                                                   : 0,
                  err, SL_ERR_ARG, "expected a text that the grammar allows");
    }
}

static void check_texts(const form *f, const char *one, const char *other, const char *two) {
    const dialect *d = &dialects[0];
    const char *const choices[] = {fields_of(d, f, d->any, NULL), fields_of(d, f, d->one, NULL),
                                   fields_of(d, f, d->named, f->name)};
    sl_model *model;
    CHECK_OK(sl_model_load(server_model_with(f->tokens), NULL, &model, &err), err);
    const sl_tokenizer *tok = sl_model_tokenizer(model);
    sl_token_trie *trie;
    int32_t end = sl_tokenizer_eos(tok);
    CHECK_OK(sl_token_trie_new(tok, sl_model_n_vocab(model), &end, 1, &trie, &err), err);
    for (int i = 0; i < 3; i++) {
        sl_grammar *g = grammar_of(f, model, choices[i]);
        sl_matcher *m;
        sl_grammar_run *run;
        CHECK_OK(sl_matcher_new(g, trie, 0, &m, &err), err);
        CHECK_OK(sl_grammar_run_new(m, &run, &err), err);
        if (follow(f, tok, run, one) != 1) FAIL("choice %d refuses %s", i, one);
        CHECK(i == 0 && f->biased ? !sl_grammar_must_end(run) || strchr(one, ']') : sl_grammar_must_end(run));
        if (follow(f, tok, run, other) != (i < 2 ? 1 : -1)) FAIL("choice %d and %s", i, other);
        if (follow(f, tok, run, two) != (i == 0 && f->biased ? 1 : -1)) FAIL("choice %d and %s", i, two);
        check_marks(f, model, run, one);
        sl_grammar_run_free(run), sl_matcher_free(m), sl_grammar_free(g);
    }
    sl_token_trie_free(trie), sl_model_free(model);
}

#define OSLO "{\"town\": \"Oslo\", \"days\": 3}"
#define PYTHON_OSLO "(town=\"Oslo\", days=3, dry=None)"
#define HERMES(NAME, ARGUMENTS) "<tool_call>\n{\"name\": \"" NAME "\", \"arguments\": " ARGUMENTS "}\n</tool_call>"
#define LLAMA3(NAME, ARGUMENTS) "{\"name\": \"" NAME "\", \"parameters\": " ARGUMENTS "}"
#define MISTRAL(NAME, ARGUMENTS, ID) "{\"name\": \"" NAME "\", \"arguments\": " ARGUMENTS ID "}"
#define ARGS(NAME, ARGUMENTS) "[TOOL_CALLS]" NAME "[ARGS]" ARGUMENTS

// Which texts of one call, of another tool and of two calls a request allows.
static void texts(void) {
    check_texts(&hermes, HERMES("\xc3\xa9t\xc3\xa9", OSLO), HERMES("now", "{}"),
                HERMES("now", "{}") "\n" HERMES("\xc3\xa9t\xc3\xa9", OSLO));
    check_texts(&hermes_tokens, HERMES("f", OSLO), HERMES("now", "{}"), HERMES("now", "{}") "\n" HERMES("f", OSLO));
    check_texts(&llama3, LLAMA3("\xc3\xa9t\xc3\xa9", OSLO), LLAMA3("now", "{}"), LLAMA3("now", "{}") "; " LLAMA3("now", "{}"));
    check_texts(&pythonic, "[town.look-up_2" PYTHON_OSLO "]", "[now()]", "[now(), town.look-up_2" PYTHON_OSLO "]");
    check_texts(&pythonic_tag, "<|python_tag|>[f" PYTHON_OSLO "]", "[now()]", "<|python_tag|>[now(), f" PYTHON_OSLO "]");
    check_texts(&mistral, "[TOOL_CALLS][" MISTRAL("f", OSLO, "") "]",
                "[TOOL_CALLS] [" MISTRAL("now", "{}", ", \"id\": \"a1B2c3D4e\"") "]",
                "[TOOL_CALLS][" MISTRAL("now", "{}", "") ", " MISTRAL("f", OSLO, "") "]");
    check_texts(&mistral_args, ARGS("2.f-g", OSLO), ARGS("now", "{}"), ARGS("now", "{}") ARGS("2.f-g", OSLO));
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
    check_refused(&(form){"[TOOL_CALLS]", {NULL}, "f", API_CALLS_MISTRAL, NULL, 0}, no_mark, 2);
    check_refused(&(form){"[TOOL_CALLS] [ARGS]", {"[TOOL_CALLS]", NULL}, "f", API_CALLS_MISTRAL_ARGS, NULL, 0}, &no_args, 1);
    check_refused(&(form){"nothing", {NULL}, "f", API_CALLS_NONE, NULL, 0}, &no_form, 1);
}

const test_suite suite_serve_calls = {"serve_calls", (const test_case[]){{"hermes", NEEDS_SPEED, forced_hermes},
                                                                         {"llama3", 0, forced_llama3},
                                                                         {"pythonic", 0, forced_pythonic},
                                                                         {"mistral", NEEDS_SPEED, forced_mistral},
                                                                         {"bits", 0, bits},
                                                                         {"texts", 0, texts},
                                                                         {"errors", 0, errors},
                                                                         {0}}};
