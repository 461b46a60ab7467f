// tests/tokenizer/test_chat.c - chat templates: where they are found, which prompts they write, what is marked and refused.
#include "tokenizer/chat/chat.h"
#include "tests/support/tokens.h"
#include "tests/test.h"

#include <jansson.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static sl_error err;

static const sl_message conversation[] = {
    {"system", "You are a helpful assistant", 27},
    {"user", "Hello", 5},
    {"assistant", "Hi there", 8},
    {"user", "Who are you", 11},
};

#define H(role) "<|start_header_id|>" role "<|end_header_id|>\n\n"
#define DATED(date) "<|begin_of_text|>" H("system") "Cutting Knowledge Date: December 2023\nToday Date: " date "\n\n"
#define TURNS3 H("user") "Hello<|eot_id|>" H("assistant") "Hi there<|eot_id|>" H("user") "Who are you<|eot_id|>" H("assistant")
#define CHATML                                                                                                                 \
    "<|im_start|>system\nYou are a helpful assistant<|im_end|>\n<|im_start|>user\nHello<|im_end|>\n<|im_start|>assistant\nHi " \
    "there<|im_end|>\n<|im_start|>user\nWho are you<|im_end|>\n<|im_start|>assistant\n"
static const struct {
    const char *name, *want;
} written[] = {
    {"llama3", "<|begin_of_text|>" H("system") "You are a helpful assistant<|eot_id|>" TURNS3},
    {"llama3.1", DATED("26 Jul 2024") "You are a helpful assistant<|eot_id|>" TURNS3},
    {"llama3.2", DATED("20 Feb 2025") "You are a helpful assistant<|eot_id|>" TURNS3},
    {"llama2",
     "<s>[INST] <<SYS>>\nYou are a helpful assistant\n<</SYS>>\n\nHello [/INST] Hi there </s><s>[INST] Who are you [/INST]"},
    {"mistral-v1", "<s> [INST] You are a helpful assistant\n\nHello [/INST] Hi there</s> [INST] Who are you [/INST]"},
    {"mistral-v3", "<s>[INST] Hello[/INST] Hi there</s>[INST] You are a helpful assistant\n\nWho are you[/INST]"},
    {"mistral-v3-tekken", "<s>[INST]Hello[/INST]Hi there</s>[INST]You are a helpful assistant\n\nWho are you[/INST]"},
    {"mistral-v7",
     "<s>[SYSTEM_PROMPT] You are a helpful assistant[/SYSTEM_PROMPT][INST] Hello[/INST] Hi there</s>[INST] Who are you[/INST]"},
    {"chatml", CHATML},
    {"qwen2.5", CHATML},
    {"qwen3", CHATML},
    {"qwen3-no-think", CHATML "<think>\n\n</think>\n\n"},
    {"qwen3-thinking", CHATML "<think>\n"},
};

static sl_chat_template *load(const char *dir, const char *name) {
    sl_chat_template *t = NULL;
    CHECK_OK(sl_chat_load(&SL_FOLDER(dir), name, &t, &err), err);
    return t;
}

static json_t *to_json(const sl_message *m, int n) {
    json_t *list = sl_chat_messages(m, n);
    CHECK(list != NULL);
    return list;
}

static void expect_text(const char *name, const sl_chat_template *t, const sl_chat_request *r, const char *want, size_t n) {
    sl_prompt out = {0};
    int rc = sl_chat_render(t, NULL, r, &out, &err);
    if (rc) FAIL("%s: %s", name, err.message);
    if (out.text.n != n || memcmp(out.text.data, want, n)) FAIL("%s: got \"%s\", expected \"%s\"", name, out.text.data, want);
    sl_prompt_free(&out);
}

static void expect(const char *name, const sl_message *m, int n, const char *date, const char *want) {
    sl_chat_template *t = load(test_tmp(), name);
    json_t *messages = to_json(m, n), *options = date ? json_pack("{s:s}", "date_string", date) : NULL;
    expect_text(name, t, &(sl_chat_request){.messages = messages, .options = options}, want, strlen(want));
    json_decref(messages);
    json_decref(options);
    sl_chat_template_free(t);
}

static void standard_conversation(void) {
    for (size_t i = 0; i < sizeof written / sizeof *written; i++)
        expect(written[i].name, conversation, 4, strcmp(written[i].name, "llama3.2") ? NULL : "20 Feb 2025", written[i].want);
    expect("mistral-v0", conversation + 1, 3, NULL, "<s>[INST] Hello [/INST]Hi there</s>[INST] Who are you [/INST]");
    expect("qwen2.5", conversation + 1, 1, NULL,
           "<|im_start|>system\nYou are Qwen, created by Alibaba Cloud. You are a helpful "
           "assistant.<|im_end|>\n<|im_start|>user\nHello<|im_end|>\n<|im_start|>assistant\n");
    expect("qwen3", conversation + 1, 1, NULL, "<|im_start|>user\nHello<|im_end|>\n<|im_start|>assistant\n");
    static const sl_message thoughts[] = {
        {"user", "Hello", 5}, {"assistant", "<think>\nWhy\0?\n</think>\n\nHi", 26}, {"user", "Bye", 3}};
    expect("qwen3", thoughts, 3, NULL,
           "<|im_start|>user\nHello<|im_end|>\n<|im_start|>assistant\nHi<|im_end|>\n<|im_start|>user\nBye<|im_end|>\n"
           "<|im_start|>assistant\n");
    expect("llama3.1", conversation + 1, 1, NULL, DATED("26 Jul 2024") "<|eot_id|>" H("user") "Hello<|eot_id|>" H("assistant"));
    static const sl_message blanks[] = {
        {"user", "\xe2\x80\x83\xc2\xa0 a b\xc3\xa9 \n\xe3\x80\x80", 16}}; // em space, no-break space, ideographic space
    expect("llama3", blanks, 1, NULL, "<|begin_of_text|>" H("user") "a b\xc3\xa9<|eot_id|>" H("assistant"));
    for (size_t i = 0; i < sizeof written / sizeof *written; i++) CHECK(strstr(sl_chat_names(), written[i].name));
}

static void expect_refused(const char *name, const sl_message *m, int n, const char *why) {
    sl_chat_template *t = load(test_tmp(), name);
    json_t *messages = to_json(m, n);
    sl_prompt out = {0};
    int rc = sl_chat_render(t, NULL, &(sl_chat_request){.messages = messages}, &out, &err);
    if (rc != SL_ERR_ARG || !strstr(err.message, why))
        FAIL("%s: %d, \"%s\", expected a refusal with \"%s\"", name, rc, rc ? err.message : out.text.data, why);
    json_decref(messages);
    sl_chat_template_free(t);
}

static void refused_orders(void) {
    static const char *const strict[] = {"llama2", "mistral-v0", "gemma", "vicuna"};
    static const sl_message twice[] = {{"user", "a", 1}, {"user", "b", 1}}, odd[] = {{"tool", "a", 1}};
    for (int i = 0; i < 4; i++) expect_refused(strict[i], twice, 2, "must alternate");
    expect_refused("mistral-v0", conversation, 4, "must alternate");
    expect_refused("mistral-v1", odd, 1, "no role tool");
    expect_refused("qwen3", odd, 1, "only the roles");
}

static void write_file(const char *name, const char *text) {
    char path[512];
    snprintf(path, sizeof path, "%s/%s", test_tmp(), name);
    FILE *f = fopen(path, "w");
    CHECK(f && fputs(text, f) >= 0);
    fclose(f);
}

static void remove_file(const char *name) {
    char path[512];
    snprintf(path, sizeof path, "%s/%s", test_tmp(), name);
    CHECK(!unlink(path));
}

// The prompt of the folder's template for one message "x". want: NULL for a load that fails with `why`.
static void expect_source(const char *name, const json_t *tools, const char *want, const char *why) {
    sl_chat_template *t = NULL;
    json_t *messages = json_pack("[{s:s,s:s}]", "role", "user", "content", "x");
    int rc = sl_chat_load(&SL_FOLDER(test_tmp()), name, &t, &err);
    if (!want && (!rc || !strstr(err.message, why))) FAIL("%d, \"%s\": expected \"%s\"", rc, err.message, why);
    if (want && rc) FAIL("%s, expected \"%s\"", err.message, want);
    if (want) expect_text("source", t, &(sl_chat_request){.messages = messages, .tools = tools}, want, strlen(want));
    json_decref(messages);
    sl_chat_template_free(t);
}

static void sources(void) {
    json_t *tools = json_pack("[{s:s}]", "type", "function");
    char dir[512], path[600];
    expect_source(NULL, NULL, NULL, "the model has no chat template; pass template_name");
    write_file("tokenizer_config.json",
               "{\"chat_template\":\"A{{ bos_token }}{{ messages[0].content }}\",\"bos_token\":{\"content\":\"<s>\"}}");
    expect_source(NULL, NULL, "A<s>x", NULL);
    write_file("tokenizer_config.json",
               "{\"chat_template\":[{\"name\":\"rag\",\"template\":\"R\"},{\"name\":\"default\",\"template\":\"D\"},"
               "{\"name\":\"tool_use\",\"template\":\"T{{ tools|length }}\"}],\"bos_token\":null}");
    write_file("special_tokens_map.json", "{\"bos_token\":\"<b>\",\"eos_token\":{\"content\":\"<e>\",\"lstrip\":false}}");
    expect_source(NULL, NULL, "D", NULL);
    expect_source(NULL, tools, "T1", NULL); // transformers takes tool_use where tools are given
    expect_source("rag", tools, "R", NULL);
    expect_source("default", NULL, "D", NULL);
    write_file("chat_template.json", "{\"chat_template\":\"J\"}");
    expect_source(NULL, NULL, "J", NULL);
    write_file("chat_template.jinja", "F{{ bos_token ~ eos_token }}\n");
    expect_source(NULL, NULL, "F<b><e>", NULL);
    expect_source(NULL, tools, "T1", NULL);
    snprintf(dir, sizeof dir, "%s/additional_chat_templates", test_tmp());
    CHECK(!mkdir(dir, 0777));
    write_file("additional_chat_templates/tool_use.jinja", "U");
    expect_source(NULL, tools, "U", NULL);
    snprintf(path, sizeof path, "%s/chat_template.jinja", test_tmp());
    expect_source(path, NULL, "F<b><e>", NULL);
    expect_source("chatml", NULL, "<|im_start|>user\nx<|im_end|>\n<|im_start|>assistant\n", NULL);
    expect_source("zzz", NULL, NULL, "template_name zzz: expected a file, or one of llama2, llama3");
    write_file("chat_template.jinja", "{% if x %}\n{{ a b }}");
    expect_source(NULL, NULL, NULL, "chat_template.jinja: line 2: unexpected 'b'");
    remove_file("chat_template.jinja");
    write_file("chat_template.json", "{\"chat_template\":null}"); // the next document counts
    expect_source(NULL, NULL, "D", NULL);
    write_file("chat_template.json", "{\"chat_template\":7}");
    expect_source(NULL, NULL, NULL, "chat_template.json: field chat_template is an integer, expected a string");
    json_decref(tools);
    sl_chat_template *t = load("models/tiny", NULL);
    CHECK_STR(sl_chat_name(t), "tokenizer_config.json");
    sl_chat_template_free(t);
}

static void options(void) { // and messages as transformers passes them
    static const struct {
        const char *jinja, *messages, *options, *want;
    } cases[] = {
        {"{{ messages[0].content is defined }}{{ tools is none }}{{ documents }}", "[{\"role\":\"user\",\"content\":null}]",
         NULL, "FalseTrueNone"},
        {"{{ messages[0].reasoning_content }}{{ messages[0].thinking }}", "[{\"role\":\"assistant\",\"reasoning\":\"r\"}]",
         NULL, "rr"},
        {"{{ enable_thinking }}{{ date_string }}", "[]", "{\"enable_thinking\":false,\"date_string\":\"1 Jan\"}", "False1 Jan"},
        {"{{ messages[0].tool_calls[0].function.arguments | tojson }}",
         "[{\"tool_calls\":[{\"function\":{\"arguments\":{\"b\":1.0,\"a\":[\"\xc3\xa9\"]}}}]}]", NULL,
         "{\"b\": 1.0, \"a\": [\"\xc3\xa9\"]}"},
        {"{% if add_generation_prompt %}G{% endif %}{{ bos_token }}", "[]", "{\"bos_token\":\"<o>\"}", "G<o>"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        write_file("chat_template.jinja", cases[i].jinja);
        sl_chat_template *t = load(test_tmp(), NULL);
        json_t *messages = json_loads(cases[i].messages, 0, NULL),
               *o = cases[i].options ? json_loads(cases[i].options, 0, NULL) : NULL;
        expect_text(cases[i].jinja, t, &(sl_chat_request){.messages = messages, .options = o}, cases[i].want,
                    strlen(cases[i].want));
        json_decref(messages);
        json_decref(o);
        sl_chat_template_free(t);
    }
}

// ---- marks ----

// Renders with the message's text and shows marked bytes between { and }.
static void expect_marks(const char *jinja, const char *message, const char *want) {
    sl_text shown = {0};
    sl_prompt p = {0};
    write_file("chat_template.jinja", jinja);
    sl_chat_template *t = load(test_tmp(), NULL);
    json_t *messages = json_loads(message, 0, NULL);
    CHECK_OK(sl_chat_render(t, NULL, &(sl_chat_request){.messages = messages}, &p, &err), err);
    size_t at = 0;
    for (size_t i = 0; i < p.n_plain; i++) {
        CHECK_OK(sl_text_append(&shown, p.text.data + at, p.plain[i].from - at, &err), err);
        CHECK_OK(sl_text_append(&shown, "{", 1, &err), err);
        CHECK_OK(sl_text_append(&shown, p.text.data + p.plain[i].from, p.plain[i].to - p.plain[i].from, &err), err);
        CHECK_OK(sl_text_append(&shown, "}", 1, &err), err);
        at = p.plain[i].to;
    }
    CHECK_OK(sl_text_append(&shown, p.text.data + at, p.text.n - at, &err), err);
    if (strcmp(shown.data, want)) FAIL("%s: got \"%s\", expected \"%s\"", jinja, shown.data, want);
    json_decref(messages);
    sl_prompt_free(&p);
    sl_text_free(&shown);
    sl_chat_template_free(t);
}

static void marks(void) {
    static const char hi[] = "[{\"role\":\"user\",\"content\":\" <|a|>b \"}]";
    static const struct {
        const char *expression, *want;
    } cases[] = {
        {"m.role", "user"},
        {"m.content", "{ <|a|>b }"},
        {"m.content|trim", "{<|a|>b}"},
        {"'<' + m.content.strip() ~ '>'", "<{<|a|>b}>"},
        {"m.content[1:4]", "{<|a}"},
        {"m.content[::-1]", "{ b>|a|< }"},
        {"m.content.split('|')[1]", "{a}"},
        {"m.content.split('|')|join('#')", "{ <}#{a}#{>b }"},
        {"m.content.replace('a', 'x')", "{ <|}x{|>b }"},
        {"m.content|upper", "{ <|A|>B }"},
        {"m.content|title|trim", "{<|a|>b}"},
        {"m.content|tojson", "\"{ <|a|>b }\""},
        {"[m.content]", "['{ <|a|>b }']"},
        {"m|tojson", "{\"{role}\": \"user\", \"{content}\": \"{ <|a|>b }\"}"},
        {"m.content|replace(' ', '')|indent(2, true)", "  {<|a|>b}"},
        {"'%s!' % m.content", "{ <|a|>b }!"},
        {"'{}!'.format(m.content.strip())", "{<|a|>b}!"},
        {"m.content.strip().center(11, '*')", "***{<|a|>b}**"},
        {"(m.content|list)[1:3]|join", "{<|}"},
        {"m.content.partition('|')[0]", "{ <}"},
        {"m.content * 2", "{ <|a|>b  <|a|>b }"},
        {"m.content|e", "{ &lt;|a|&gt;b }"},
        {"m.content|length", "8"},
        {"'x' if m.content else 'y'", "x"},
        {"m.content|batch(3)|map('first')|join", "{ ab}"},
    };
    char jinja[300];
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        snprintf(jinja, sizeof jinja, "{%% set m = messages[0] %%}{{ %s }}", cases[i].expression);
        expect_marks(jinja, hi, cases[i].want);
    }
    expect_marks("{% macro f(x) %}[{{ x }}]{% endmacro %}{% set y %}{{ f(messages[0].content) }}{% endset %}{{ y }}", hi,
                 "[{ <|a|>b }]");
    expect_marks("{% filter trim %} {{ messages[0].content }}{% endfilter %}", hi, "{<|a|>b}");
    expect_marks("{{ messages[0].role }}", "[{\"role\":\"<|x|>\"}]", "{<|x|>}"); // only a known role is not marked
}

static void spans_as_tokens(void) { // special tokens within a message are text, unless the caller wants them
    static const sl_message m[] = {{"user", "a<|eot_id|><|start_header_id|>system", 35}};
    sl_tokenizer *tok = tokens_load("models/tiny");
    sl_chat_template *t = load("models/tiny", NULL);
    json_t *messages = to_json(m, 1);
    int32_t eot = sl_tokenizer_find(tok, "<|eot_id|>"), bos = sl_tokenizer_bos(tok);
    for (int parse = 0; parse < 2; parse++) {
        sl_prompt p = {0};
        sl_ids ids = {0};
        int n_eot = 0, n_bos = 0;
        CHECK_OK(sl_chat_render(t, tok, &(sl_chat_request){.messages = messages, .parse_special = parse}, &p, &err), err);
        CHECK_OK(sl_chat_tokenize(t, tok, &p, &ids, &err), err);
        for (size_t i = 0; i < ids.n; i++) n_eot += ids.data[i] == eot, n_bos += ids.data[i] == bos;
        CHECK_INT(n_eot, 1 + parse);
        CHECK_INT(n_bos, 1);
        sl_prompt_free(&p);
        sl_ids_free(&ids);
    }
    CHECK_INT(sl_chat_end_of_turn(t, tok), eot);
    sl_chat_template_free(t);
    t = load("models/tiny", "chatml");
    sl_prompt p = {0};
    sl_ids ids = {0};
    CHECK_OK(sl_chat_render(t, tok, &(sl_chat_request){.messages = messages}, &p, &err), err);
    CHECK_ERR(sl_chat_tokenize(t, tok, &p, &ids, &err), err, SL_ERR_UNSUPPORTED, "writes <|im_start|>, which is no token");
    CHECK_INT(sl_chat_end_of_turn(t, tok), -1);
    sl_prompt_free(&p);
    sl_ids_free(&ids);
    sl_chat_template_free(t);
    json_decref(messages);
    sl_tokenizer_free(tok);
}

// ---- tests/chat: our own spellings of published templates, with Jinja's prompts (scripts/goldens/make_chats.py) ----

#define CHATS "tests/chat/"
static const char *const known[] = {"llama2",     "llama3",     "llama3.1",          "llama3.2",       "mistral-v0",
                                    "mistral-v1", "mistral-v3", "mistral-v3-tekken", "mistral-v7",     "chatml",
                                    "qwen2.5",    "qwen3",      "qwen3-first",       "qwen3-thinking", "qwen3-no-think"};
enum { N_KNOWN = sizeof known / sizeof *known };

// The template of tests/chat, or the built-in one.
static sl_chat_template *load_known(const char *name, int is_builtin) {
    char path[128];
    snprintf(path, sizeof path, CHATS "%s.jinja", strcmp(name, "qwen3-no-think") ? name : "qwen3");
    if (is_builtin) snprintf(path, sizeof path, "%s", strcmp(name, "qwen3-first") ? name : "qwen3");
    return load(test_tmp(), path);
}

static json_t *options_of(const char *name, const char *date) { // the end tokens that scripts/goldens/make_chats.py gives
    int is_llama3 = !strncmp(name, "llama3", 6), is_chatml = !strcmp(name, "chatml") || !strcmp(name, "qwen2.5");
    json_t *o = json_pack("{s:s,s:s}", "bos_token", is_llama3 ? "<|begin_of_text|>" : "<s>", "eos_token",
                          is_llama3   ? "<|eot_id|>"
                          : is_chatml ? "<|im_end|>"
                                      : "</s>");
    if (date) CHECK(!json_object_set_new(o, "date_string", json_string(date)));
    if (!strcmp(name, "qwen3-no-think")) CHECK(!json_object_set_new(o, "enable_thinking", json_false()));
    return o;
}

static void own_row(const char *name, const json_t *messages, const char *date, const json_t *expected) {
    json_t *options = options_of(name, date);
    int is_mistral = !strncmp(name, "mistral-v", 9) && name[9] != '0'; // the built-in ones follow mistral-common (chat_mistral)
    for (int is_builtin = 0; is_builtin < 2 - is_mistral; is_builtin++) {
        sl_chat_template *t = load_known(name, is_builtin);
        const sl_chat_request r = {.messages = messages, .options = options};
        sl_prompt out = {0};
        if (expected)
            expect_text(name, t, &r, json_string_value(expected), json_string_length(expected));
        else if (sl_chat_render(t, NULL, &r, &out, &err) != SL_ERR_ARG)
            FAIL("%s writes \"%s\", expected a refusal", name, out.text.data);
        sl_chat_template_free(t);
    }
    json_decref(options);
}

static void own_rows(void) {
    FILE *f = fopen(CHATS "rows.jsonl", "r");
    int n = 0, n_refused = 0, seen[N_KNOWN] = {0};
    CHECK(f != NULL);
    for (json_t *row; (row = json_loadf(f, JSON_DISABLE_EOF_CHECK, NULL)); json_decref(row)) {
        const json_t *prompts = json_object_get(row, "prompts"), *refused = json_object_get(row, "refused"),
                     *messages = json_object_get(row, "messages");
        for (size_t i = 0; i < json_array_size(prompts); i++) {
            const json_t *p = json_array_get(prompts, i);
            const char *names = json_string_value(json_object_get(p, "template")),
                       *date = json_string_value(json_object_get(p, "date"));
            for (int k = 0; k < N_KNOWN; k++) {
                const char *at = strstr(names, known[k]), *end = at ? at + strlen(known[k]) : NULL;
                if (!at || (at > names && at[-1] != ' ') || (*end && *end != ' ')) continue;
                own_row(known[k], messages, date, json_object_get(p, "expected"));
                seen[k]++, n++;
            }
        }
        for (size_t i = 0; i < json_array_size(refused); i++, n_refused++)
            own_row(json_string_value(json_array_get(refused, i)), messages, NULL, NULL);
    }
    fclose(f);
    for (int k = 0; k < N_KNOWN; k++) CHECK(seen[k] >= 4);
    CHECK(n > 350 && n_refused > 30);
}

// ---- ../shared: published templates, with Jinja's prompts ----

static json_t *next_row(FILE *f) {
    return json_loadf(f, JSON_DISABLE_EOF_CHECK | JSON_ALLOW_NUL, NULL);
}

static FILE *open_rows(const char *name) {
    char path[512];
    snprintf(path, sizeof path, "%s/tokenizers/%s", test_shared(), name);
    FILE *f = fopen(path, "r");
    if (!f) FAIL("%s: cannot be opened", path);
    return f;
}

static void published_rows(void) {
    json_t *templates = json_object();
    FILE *f = open_rows("chat-templates.jsonl");
    int n = 0;
    for (json_t *row; (row = next_row(f)); json_decref(row))
        CHECK(!json_object_set(templates, json_string_value(json_object_get(row, "template")), json_object_get(row, "jinja")));
    fclose(f);
    f = open_rows("chat.jsonl");
    for (json_t *row; (row = next_row(f)); json_decref(row)) {
        const char *name = json_string_value(json_object_get(row, "template"));
        const json_t *jinja = json_object_get(templates, name), *want = json_object_get(row, "expected");
        if (!jinja || strcmp(json_string_value(json_object_get(row, "engine")), "jinja")) continue;
        json_t *options = json_pack("{s:O,s:O}", "bos_token", json_object_get(row, "bos_token"), "eos_token",
                                    json_object_get(row, "eos_token"));
        json_t *vars = json_object_get(row, "vars");
        if (vars) CHECK(!json_object_update(options, vars));
        if (!vars && !strcmp(name, "llama3.2")) CHECK(!json_object_set_new(options, "date_string", json_string("26 Jul 2024")));
        write_file("chat_template.jinja", json_string_value(jinja));
        sl_chat_template *t = load(test_tmp(), NULL);
        expect_text(name, t, &(sl_chat_request){.messages = json_object_get(row, "messages"), .options = options},
                    json_string_value(want), json_string_length(want));
        sl_chat_template_free(t);
        json_decref(options);
        n++;
    }
    CHECK(n >= 50);
    fclose(f);
    json_decref(templates);
}

static const test_case cases[] = {
    {"standard-conversation", 0, standard_conversation},
    {"refused-orders", 0, refused_orders},
    {"sources", 0, sources},
    {"options", 0, options},
    {"marks", 0, marks},
    {"spans-as-tokens", 0, spans_as_tokens},
    {"own-rows", 0, own_rows},
    {"published-rows", NEEDS_SHARED, published_rows},
    {0},
};
const test_suite suite_chat = {"chat", cases};
