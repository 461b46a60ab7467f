// tests/server/test_api_calls.c - calls of tools and reasoning in text: what each format says, and that cuts change nothing.
#include "base/utf8.h"
#include "server/api/call_syntax.h"
#include "tests/test.h"

#include <stdlib.h>
#include <string.h>

// ---- the events as one text: T(text) R(reasoning) C0:name(arguments) ----

typedef struct record {
    sl_text text;
    int last; // kind of the last event; -1: none
} record;

static void put(sl_text *t, const char *s, size_t n) {
    sl_error e;
    CHECK_OK(sl_text_append(t, s, n, &e), e);
}

static int on_event(void *ctx, const api_event *e, sl_error *err) {
    record *r = ctx;
    char head[128];
    (void)err;
    if (e->kind != API_EVENT_CALL) CHECK(e->n > 0);
    if (e->kind == API_EVENT_CALL || r->last != (int)e->kind) {
        int n = e->kind == API_EVENT_CALL ? snprintf(head, sizeof head, "%sC%d:%s(", r->last < 0 ? "" : ")", e->index, e->name)
                                          : snprintf(head, sizeof head, "%s%c(", r->last < 0 ? "" : ")", "TR"[e->kind]);
        put(&r->text, head, (size_t)n);
        if (e->kind == API_EVENT_CALL) CHECK_INT(strlen(e->id), 9);
    }
    put(&r->text, e->text, e->n);
    r->last = e->kind;
    return 0;
}

// Feeds text in pieces that end at the offsets `cuts`, and returns the record.
static sl_text parse(api_parser_options o, const char *text, size_t n, const size_t *cuts, int n_cuts) {
    record r = {{0}, -1};
    api_parser *p;
    sl_error e = {0};
    o.fn = on_event;
    o.ctx = &r;
    CHECK_OK(api_parser_new(&o, &p, &e), e);
    size_t at = 0;
    for (int i = 0; i <= n_cuts; i++) {
        size_t to = i < n_cuts ? cuts[i] : n;
        CHECK_OK(api_parser_feed(p, text + at, to - at, &e), e);
        at = to;
    }
    CHECK_OK(api_parser_end(p, &e), e);
    put(&r.text, r.last < 0 ? "" : ")", r.last < 0 ? 0 : 1);
    api_parser_free(p);
    return r.text;
}

static int is_char_start(const char *text, size_t i) {
    return ((unsigned char)text[i] & 0xc0) != 0x80;
}

static void same(api_parser_options o, const char *text, size_t n, const size_t *cuts, int n_cuts, const char *want) {
    sl_text got = parse(o, text, n, cuts, n_cuts);
    if (strcmp(got.data, want)) FAIL("%s, first cut at %zu: got %s, expected %s", text, n_cuts ? cuts[0] : n, got.data, want);
    sl_text_free(&got);
}

// Every one cut, every two cuts, and every character alone.
static void every_cut(api_parser_options o, const char *text, const char *want) {
    size_t n = strlen(text), all[2048] = {0};
    int n_all = 0;
    CHECK(n < 2048);
    same(o, text, n, NULL, 0, want);
    for (size_t i = 1; i < n; i++)
        if (is_char_start(text, i)) all[n_all++] = i;
    same(o, text, n, all, n_all, want);
    for (int i = 0; i < n_all; i++)
        for (int j = i; j < n_all; j++) same(o, text, n, (size_t[]){all[i], all[j]}, 2, want);
}

// ---- cases ----

typedef struct example {
    api_call_format format;
    int reasoning; // 1: of the template; 2: the prompt has opened it
    const char *text, *want;
} example;

static const example examples[] = {
    {API_CALLS_NONE, 0, "<tool_call>{\"name\": 1} <think> é", "T(<tool_call>{\"name\": 1} <think> é)"},
    {API_CALLS_NONE, 0, " \n a \n", "T( \n a \n)"},
    // reasoning
    {API_CALLS_NONE, 1, "<think>\nA é\n\nB\n</think>\n\nYes. ", "R(A é\n\nB)T(Yes. )"},
    {API_CALLS_NONE, 1, " \n<think>A", "R(A)"},
    {API_CALLS_NONE, 1, "No <think>A</think>", "T(No <think>A</think>)"},
    {API_CALLS_NONE, 1, "  plain", "T(  plain)"},
    {API_CALLS_NONE, 1, "<thin", "T(<thin)"},
    {API_CALLS_NONE, 1, "<think></think>x<think>y", "T(x<think>y)"},
    {API_CALLS_NONE, 2, "\nA </thin> </think>B</think>", "R(A </thin>)T(B</think>)"},
    {API_CALLS_NONE, 2, "<think>\nA</think>", "R(A)"},
    {API_CALLS_NONE, 2, "A\n", "R(A\n)"},
    // hermes
    {API_CALLS_HERMES, 0, "<tool_call>\n{\"name\": \"f\", \"arguments\": {\"a\": 1.10}}\n</tool_call>", "C0:f({\"a\": 1.10})"},
    {API_CALLS_HERMES, 0,
     "Now.\n\n<tool_call>{\"name\":\"f\",\"arguments\":{\"s\":\"</tool_call> } \\\" {\"}}</tool_call>\n"
     "<tool_call>\n{\"arguments\": {}, \"name\": \"g\"}\n</tool_call>\nDone",
     "T(Now.)C0:f({\"s\":\"</tool_call> } \\\" {\"})C1:g({})T(Done)"},
    {API_CALLS_HERMES, 0, "<tool_call>{\"name\":\"f\",\"arguments\":{}}", "C0:f({})"},
    {API_CALLS_HERMES, 0, "<tool_call>{\"name\":\"f\"}\n</tool_ca", "C0:f({})"},
    {API_CALLS_HERMES, 0, "a <tool_call>{\"name\":\"f\"", "T(a <tool_call>{\"name\":\"f\")"},
    {API_CALLS_HERMES, 0, "a\n<tool_call>{\"name\":\"f\",}</tool_call> b", "T(a\n<tool_call>{\"name\":\"f\",}</tool_call> b)"},
    {API_CALLS_HERMES, 0, "<tool_call>{\"name\":\"f\",\"arguments\":[1]}</tool_call>",
     "T(<tool_call>{\"name\":\"f\",\"arguments\":[1]}</tool_call>)"},
    {API_CALLS_HERMES, 0, "<tool_call><tool_call>{\"name\":\"f\"}</tool_call>", "T(<tool_call>)C0:f({})"},
    {API_CALLS_HERMES, 0, "<tool_call>{\"name\":\"f\"}} x", "T(<tool_call>{\"name\":\"f\"}} x)"},
    {API_CALLS_HERMES, 0, "a < b <tool <tool_call", "T(a < b <tool <tool_call)"},
    {API_CALLS_HERMES, 1,
     "<think>\nI <tool_call> f\n</think>\n\n<tool_call>\n{\"name\": \"f\", \"arguments\": {}}\n</tool_call>",
     "R(I <tool_call> f)C0:f({})"},
    {API_CALLS_HERMES, 0,
     "<tool_call>{\"name\":\"f\",\"arguments\":{\"é\":\"日本\",\"n\":123456789012345678901234}}</tool_call>",
     "C0:f({\"é\":\"日本\",\"n\":123456789012345678901234})"},
    // llama3
    {API_CALLS_LLAMA3, 0, "{\"name\": \"f\", \"parameters\": {\"a\": \"b\"}}", "C0:f({\"a\": \"b\"})"},
    {API_CALLS_LLAMA3, 0,
     "\n{\"type\": \"function\", \"name\": \"f\", \"parameters\": {}}; {\"name\": \"g\", \"parameters\": {}}\n",
     "C0:f({})C1:g({})"},
    {API_CALLS_LLAMA3, 0, "<|python_tag|>{\"name\": \"other\", \"parameters\": {\"x\": [1, {\"y\": \"}\"}]}}",
     "C0:other({\"x\": [1, {\"y\": \"}\"}]})"},
    {API_CALLS_LLAMA3, 0, "{\"name\": \"other\", \"parameters\": {}}", "T({\"name\": \"other\", \"parameters\": {}})"},
    {API_CALLS_LLAMA3, 0, "{\"answer\": 1}", "T({\"answer\": 1})"},
    {API_CALLS_LLAMA3, 0, " {x} {\"name\": \"f\"}", "T( {x} {\"name\": \"f\"})"},
    {API_CALLS_LLAMA3, 0, "<|python_tag|>print(1)", "T(<|python_tag|>print(1))"},
    {API_CALLS_LLAMA3, 0, "Text; {\"name\": \"f\"} ;", "T(Text; {\"name\": \"f\"} ;)"},
    {API_CALLS_LLAMA3, 0, "{\"name\": \"f\", \"parameters\": null} and", "C0:f({})T(and)"},
    // pythonic
    {API_CALLS_PYTHONIC, 0, "[f(a=1, b='x\"y', c=[True, None, -1.5e3], d={'k': (1, 2)}), g()]",
     "C0:f({\"a\": 1, \"b\": \"x\\\"y\", \"c\": [true, null, -1.5e3], \"d\": {\"k\": [1, 2]}})C1:g({})"},
    {API_CALLS_PYTHONIC, 0, "[f(s=\"a]\\n\\x41\\u00e9\\q é\")]", "C0:f({\"s\": \"a]\\n\\u0041\\u00e9\\\\q é\"})"},
    {API_CALLS_PYTHONIC, 0, "[1, 2]", "T([1, 2])"},
    {API_CALLS_PYTHONIC, 0, "[f(1)] x", "T([f(1)] x)"},
    {API_CALLS_PYTHONIC, 0, "[other(a=1)]", "T([other(a=1)])"},
    {API_CALLS_PYTHONIC, 0, "[f(a=1, a=2)]", "T([f(a=1, a=2)])"},
    {API_CALLS_PYTHONIC, 0, "[f(a=01)]", "T([f(a=01)])"},
    {API_CALLS_PYTHONIC, 0, "[f(a=1", "T([f(a=1)"},
    {API_CALLS_PYTHONIC, 0, "See [f(a=1)]", "T(See [f(a=1)])"},
    {API_CALLS_PYTHONIC, 0, "<|python_tag|>[f(a=True), other()]", "C0:f({\"a\": true})C1:other({})"},
    {API_CALLS_PYTHONIC, 0, "Hm.<|python_tag|> [f(a=\"]\")]\n", "T(Hm.)C0:f({\"a\": \"]\"})"},
    {API_CALLS_PYTHONIC, 0, "<|python_tag|>print([1])", "T(<|python_tag|>print([1]))"},
    {API_CALLS_PYTHONIC, 0, "<|python_tag|>[f(1)]", "T(<|python_tag|>[f(1)])"},
    // mistral
    {API_CALLS_MISTRAL, 0,
     "[TOOL_CALLS] [{\"name\": \"f\", \"arguments\": {\"a\": 1}}, {\"name\": \"other\", \"arguments\": {}}]",
     "C0:f({\"a\": 1})C1:other({})"},
    {API_CALLS_MISTRAL, 0, "Hm.[TOOL_CALLS]f[ARGS]{\"a\": \"[TOOL_CALLS]\"}[TOOL_CALLS]g.h[CALL_ID]x1[ARGS]{}",
     "T(Hm.)C0:f({\"a\": \"[TOOL_CALLS]\"})C1:g.h({})"},
    {API_CALLS_MISTRAL, 0, "[TOOL_CALLS]f{\"a\":2}", "C0:f({\"a\":2})"},
    {API_CALLS_MISTRAL, 0, "[{\"name\": \"f\", \"arguments\": {}}]", "C0:f({})"},
    {API_CALLS_MISTRAL, 0, "[{\"name\": \"other\", \"arguments\": {}}]", "T([{\"name\": \"other\", \"arguments\": {}}])"},
    {API_CALLS_MISTRAL, 0, "[TOOL_CALLS]f[BAD]{}", "T([TOOL_CALLS]f[BAD]{})"},
    {API_CALLS_MISTRAL, 0, "[TOOL_CALLS]f g[ARGS]{}", "T([TOOL_CALLS]f g[ARGS]{})"},
    {API_CALLS_MISTRAL, 0, "[TOOL_CALLS]\x01{}", "T([TOOL_CALLS]\x01{})"},
    {API_CALLS_MISTRAL, 0, "[TOOL_CALLS]f\n{}", "T([TOOL_CALLS]f\n{})"},
    {API_CALLS_MISTRAL, 0, "[TOOL [1] [T", "T([TOOL [1] [T)"},
    {API_CALLS_MISTRAL, 0, "[TOOL_CALLS][]", "T([TOOL_CALLS][])"},
    {API_CALLS_MISTRAL_ARGS, 0, "[TOOL_CALLS]f[ARGS]{\"a\": \"{[\"}[TOOL_CALLS]2.x[ARGS]{}", "C0:f({\"a\": \"{[\"})C1:2.x({})"},
    {API_CALLS_MISTRAL_ARGS, 0, "[TOOL_CALLS][{\"name\": \"f\", \"arguments\": {}, \"id\": \"a1B2c3D4e\"}]", "C0:f({})"},
};

static json_t *tools(void) {
    json_t *v = json_pack("[{s:{s:s}}, {s:{s:s}}]", "function", "name", "f", "function", "name", "g");
    CHECK(v != NULL);
    return v;
}

static void formats(void) {
    json_t *known = tools();
    for (size_t i = 0; i < sizeof examples / sizeof *examples; i++) {
        const example *x = &examples[i];
        every_cut(
            (api_parser_options){
                .format = x->format, .reasoning = x->reasoning > 0, .in_reasoning = x->reasoning == 2, .tools = known},
            x->text, x->want);
    }
    json_decref(known);
}

// Texts of marks, brackets and quotes at random: random cuts change nothing.
static void random_texts(void) {
    static const char *const words[] = {"<tool_call>",
                                        "</tool_call>",
                                        "<think>",
                                        "</think>",
                                        "[TOOL_CALLS]",
                                        "[ARGS]",
                                        "[CALL_ID]",
                                        "<|python_tag|>",
                                        "{\"name\":\"f\",\"arguments\":{}}",
                                        "{\"name\":\"f\"",
                                        "{",
                                        "}",
                                        "[",
                                        "]",
                                        "[f(a=1)]",
                                        "f(",
                                        ")",
                                        "\"",
                                        "'",
                                        "\\",
                                        "\n",
                                        " ",
                                        ";",
                                        "é",
                                        "日",
                                        "x",
                                        "<",
                                        ":",
                                        ",",
                                        "f",
                                        "{\"name\":",
                                        "\"g\",\"parameters\":{\"a\":[1,2]}}",
                                        "=",
                                        "1"};
    json_t *known = tools();
    test_draw_from(test_seed);
    for (int round = 0; round < 4000; round++) {
        sl_text text = {0};
        size_t cuts[64];
        int n_words = 1 + test_below(14), n_cuts = 0;
        for (int i = 0; i < n_words; i++) {
            const char *w = words[test_below((int)(sizeof words / sizeof *words))];
            put(&text, w, strlen(w));
        }
        api_parser_options o = {.format = (api_call_format)test_below(5),
                                .reasoning = test_below(2),
                                .in_reasoning = test_below(2),
                                .tools = test_below(2) ? known : NULL};
        for (size_t i = 1; i < text.n && n_cuts < 64; i++)
            if (is_char_start(text.data, i) && test_below(3) == 0) cuts[n_cuts++] = i;
        sl_text want = parse(o, text.data, text.n, NULL, 0);
        put(&want, "", 0);
        sl_text got = parse(o, text.data, text.n, cuts, n_cuts);
        put(&got, "", 0);
        if (strcmp(got.data, want.data)) FAIL("round %d, %s: got %s, expected %s", round, text.data, got.data, want.data);
        sl_text_free(&got);
        sl_text_free(&want);
        sl_text_free(&text);
    }
    json_decref(known);
}

// ---- ids, templates ----

typedef struct ids {
    char id[4][API_CALL_ID];
    int n;
} ids;

static int keep_id(void *ctx, const api_event *e, sl_error *err) {
    ids *k = ctx;
    (void)err;
    if (e->kind == API_EVENT_CALL) memcpy(k->id[k->n++], e->id, API_CALL_ID);
    return 0;
}

static ids ids_of(uint64_t number) {
    static const char text[] = "[f(), g()]";
    ids k = {0};
    api_parser *p;
    sl_error e = {0};
    CHECK_OK(
        api_parser_new(&(api_parser_options){.format = API_CALLS_PYTHONIC, .number = number, .fn = keep_id, .ctx = &k}, &p, &e),
        e);
    CHECK_OK(api_parser_feed(p, text, strlen(text), &e), e);
    CHECK_OK(api_parser_end(p, &e), e);
    CHECK_INT(api_parser_n_calls(p), 2);
    api_parser_free(p);
    return k;
}

static void call_ids(void) {
    ids a = ids_of(7), again = ids_of(7), b = ids_of(8);
    CHECK_INT(a.n, 2);
    CHECK(!memcmp(&a, &again, sizeof a));
    CHECK(strcmp(a.id[0], a.id[1]) && strcmp(a.id[0], b.id[0]) && strcmp(a.id[1], b.id[1]) && strcmp(a.id[1], b.id[0]));
    for (int i = 0; i < 2; i++) CHECK(strspn(a.id[i], "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz") == 9);
}

// A grammar can nest as deep as 1,024 rules, and the reader of its calls as deep as 1,024 brackets.
static void deep_python(void) {
    for (int n = 1000; n < 1100; n += 60) {
        sl_text text = {0};
        api_calls calls = {0};
        sl_error e;
        int is_call;
        CHECK_OK(sl_text_append(&text, "[f(a=", 5, &e), e);
        for (int i = 0; i < 2 * n; i++) CHECK_OK(sl_text_append(&text, i < n ? "[" : "]", 1, &e), e);
        CHECK_OK(sl_text_append(&text, ")]", 2, &e), e);
        CHECK_OK(api_calls_of_python(text.data, text.n, &calls, &is_call, &e), e);
        CHECK_INT(is_call, n <= 1024);
        api_calls_free(&calls), sl_text_free(&text);
    }
}

static void names(void) {
    static const char *const no[] = {"", "2a", "-a", "a b", "a(", "\xc3\xa9", "a\n"};
    CHECK(api_is_python_name("f") && api_is_python_name("_a.b-c2"));
    for (size_t i = 0; i < sizeof no / sizeof *no; i++) CHECK(!api_is_python_name(no[i]));
}

static void of_templates(void) {
    static const struct {
        const char *text;
        api_call_format format;
        int reasons;
    } rows[] = {
        {"{{ '<tool_call>\\n' }}{{ '</think>' }}", API_CALLS_HERMES, 1},
        {"'<tool_call>\\n<function=' + name", API_CALLS_NONE, 0},
        {"'<tool_call>' + name + '\\n<arg_key>'", API_CALLS_NONE, 0},
        {"{{- '[TOOL_CALLS] [' }}", API_CALLS_MISTRAL, 0},
        {"{{- '[TOOL_CALLS]' + name + '[ARGS]' }}", API_CALLS_MISTRAL_ARGS, 0},
        {"'{\"name\": function name, \"parameters\": dictionary of argument name and its value}.'", API_CALLS_LLAMA3, 0},
        {"\"<|python_tag|>\"", API_CALLS_LLAMA3, 0},
        {"[func_name1(params_name1=params_value1, ...)]", API_CALLS_PYTHONIC, 0},
        {"{{ bos_token }}", API_CALLS_NONE, 0},
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        CHECK_INT(api_call_format_of(rows[i].text, strlen(rows[i].text)), rows[i].format);
        CHECK_INT(api_template_reasons(rows[i].text, strlen(rows[i].text)), rows[i].reasons);
    }
    CHECK(api_prompt_opens_reasoning("a<think>\n", 9) && api_prompt_opens_reasoning("<think>", 7));
    CHECK(!api_prompt_opens_reasoning("<think>\n\n</think>\n\n", 19) && !api_prompt_opens_reasoning("think>", 6));
    CHECK(!api_prompt_opens_reasoning("", 0));
    for (int f = API_CALLS_NONE; f <= API_CALLS_MISTRAL_ARGS; f++)
        for (const char *const *m = api_call_marks((api_call_format)f); *m; m++) CHECK(**m == '<' || **m == '[');
}

static const test_case cases[] = {
    {"formats", 0, formats},
    {"random-texts", 0, random_texts},
    {"ids", 0, call_ids},
    {"templates", 0, of_templates},
    {"deep-python", 0, deep_python},
    {"names", 0, names},
    {0},
};
extern const test_suite suite_api_calls;
const test_suite suite_api_calls = {"api_calls", cases};
