// server/api/tool_calls.c - see tool_calls.h.
//
// The parser takes one byte after the other, so the cuts between pieces cannot change the result. Bytes that are not decided
// wait in `held`. The texts that they become are joined and leave as one event, at the end of a piece or before an event of
// another kind.
#include "server/api/tool_calls.h"
#include "server/api/call_syntax.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const char think_open[] = "<think>", think_close[] = "</think>";

typedef struct syntax {
    const char *open, *close; // marks; NULL: none
    const char *brackets;     // with which a value behind a mark begins
    int has_names;            // the name of a call may stand before its value
    char bare;                // the bracket with which a call without a mark begins; 0: it needs a mark
    api_shape (*shape)(const char *text, size_t n);
    int (*read)(const char *text, size_t n, api_calls *calls, int *is_call, sl_error *err);
} syntax;

static const syntax formats[] = {
    [API_CALLS_LLAMA3] = {"<|python_tag|>", NULL, "{", 0, '{', api_shape_of_json, api_calls_of_json},
    [API_CALLS_PYTHONIC] = {"<|python_tag|>", NULL, "[", 0, '[', api_shape_of_python, api_calls_of_python},
    [API_CALLS_HERMES] = {"<tool_call>", "</tool_call>", "{", 0, 0, NULL, api_calls_of_json},
    [API_CALLS_MISTRAL] = {"[TOOL_CALLS]", NULL, "{[", 1, '[', api_shape_of_json, api_calls_of_json},
    [API_CALLS_MISTRAL_ARGS] = {"[TOOL_CALLS]", NULL, "{[", 1, '[', api_shape_of_json, api_calls_of_json},
    [API_CALLS_NONE] = {0},
};

typedef enum phase {
    TEXT,  // held: blanks, then what may begin a mark or a call
    MARK,  // a mark is read, its value not begun
    NAME,  // in Mistral's name, between [TOOL_CALLS] and {
    VALUE, // in the value
    CLOSE  // the value is read, and a mark must follow
} phase;

struct api_parser {
    api_parser_options o;
    syntax f;
    phase phase;
    api_event_kind kind; // what text is now: API_EVENT_TEXT or API_EVENT_REASONING
    sl_text held;
    size_t n_blanks;        // at the start of held
    size_t from, name_from; // in held: where the value begins; where Mistral's name begins, 0: no name
    size_t to;              // where the value ends
    int is_bare, has_shape; // a value without a mark; it has the shape of a call
    api_nesting nesting;
    int at_start; // no text since the start, the reasoning or a call
    int drop;     // blanks are dropped
    int reasoned; // reasoning has begun or can no longer begin
    int n_calls;
    sl_text out; // text of `kind` that is decided and not sent
};

enum { LONGEST_BEGINNING = 256 }; // bytes of the longest beginning of a call, up to its bracket or key

// ---- events ----

static int send(api_parser *p, sl_error *err) {
    const api_event e = {.kind = p->kind, .text = p->out.data, .n = p->out.n};
    if (!p->out.n) return 0;
    int rc = p->o.fn(p->o.ctx, &e, err);
    p->out.n = 0;
    return rc;
}

// Sets 9 letters and digits, which depend on both numbers only (splitmix64).
static void write_id(uint64_t number, int index, char out[API_CALL_ID]) {
    static const char digits[] = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz";
    uint64_t z = number * 0x9E3779B97F4A7C15u + (uint64_t)index * 0xD1B54A32D192ED03u + 0x632BE59BD9B4E019u;
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9u;
    z = (z ^ (z >> 27)) * 0x94D049BB133111EBu;
    z ^= z >> 31;
    for (int i = 0; i < API_CALL_ID - 1; i++, z /= 62) out[i] = digits[z % 62];
    out[API_CALL_ID - 1] = 0;
}

static int send_calls(api_parser *p, const api_calls *calls, sl_error *err) {
    int rc = send(p, err);
    for (size_t i = 0; !rc && i < calls->n; i++) {
        const api_call *c = &calls->items[i];
        api_event e = {
            .kind = API_EVENT_CALL, .text = c->arguments.data, .n = c->arguments.n, .index = p->n_calls, .name = c->name};
        write_id(p->o.number, p->n_calls++, e.id);
        rc = p->o.fn(p->o.ctx, &e, err);
    }
    return rc;
}

// The first n bytes of held are text.
static int release(api_parser *p, size_t n, sl_error *err) {
    size_t from = p->drop ? (p->n_blanks < n ? p->n_blanks : n) : 0;
    if (p->n_blanks < n) p->drop = p->at_start = 0;
    if (p->n_blanks < n && p->kind == API_EVENT_TEXT) p->reasoned = 1;
    int rc = n > from ? sl_text_append(&p->out, p->held.data + from, n - from, err) : 0;
    memmove(p->held.data, p->held.data + n, p->held.n - n);
    p->held.n -= n;
    p->n_blanks = p->n_blanks > n ? p->n_blanks - n : 0;
    return rc;
}

// What is held is done: text, reasoning or a call ended here.
static void restart(api_parser *p) {
    p->held.n = p->n_blanks = p->from = p->name_from = 0;
    p->phase = TEXT;
    p->at_start = p->drop = 1;
}

// ---- calls ----

static int is_tool(const json_t *tools, const char *name) {
    for (size_t i = 0; i < json_array_size(tools); i++) {
        const json_t *function = json_object_get(json_array_get(tools, i), "function");
        const char *s = json_string_value(json_object_get(function, "name"));
        if (s && !strcmp(s, name)) return 1;
    }
    return !tools;
}

static int read_named(const api_parser *p, api_calls *calls, int *is_call, sl_error *err) {
    const char *s = p->held.data;
    size_t n = api_mistral_name(s + p->name_from, p->from - p->name_from);
    json_t *v = n ? json_loadb(s + p->from, p->to - p->from, JSON_REJECT_DUPLICATES | JSON_DECODE_INT_AS_REAL, NULL) : NULL;
    *is_call = json_is_object(v);
    json_decref(v);
    return *is_call ? api_calls_add(calls, s + p->name_from, n, s + p->from, p->to - p->from, err) : 0;
}

// The value is whole: sends its calls, or releases the text.
static int end_value(api_parser *p, sl_error *err) {
    api_calls calls = {0};
    int is_call = 0;
    int rc = p->name_from ? read_named(p, &calls, &is_call, err)
                          : p->f.read(p->held.data + p->from, p->to - p->from, &calls, &is_call, err);
    for (size_t i = 0; p->is_bare && i < calls.n; i++) is_call &= is_tool(p->o.tools, calls.items[i].name);
    if (!rc && is_call) rc = send_calls(p, &calls, err);
    if (!rc && !is_call) rc = release(p, p->held.n, err);
    if (!rc && is_call) restart(p);
    p->phase = TEXT;
    p->name_from = 0;
    api_calls_free(&calls);
    return rc;
}

// ---- one byte ----

static int feed_byte(api_parser *p, char c, sl_error *err);

// What is held, without its last byte, is text after all.
static int give_up(api_parser *p, sl_error *err) {
    char last = p->held.data[p->held.n - 1];
    p->held.n--;
    int rc = release(p, p->held.n, err);
    p->phase = TEXT;
    return rc ? rc : feed_byte(p, last, err);
}

static void begin_value(api_parser *p) {
    p->phase = VALUE;
    p->nesting = (api_nesting){0};
}

static int step_value(api_parser *p, char c, sl_error *err) {
    int ends = api_nesting_next(&p->nesting, c);
    if (p->is_bare && !p->has_shape) {
        size_t n = p->held.n - p->from;
        api_shape shape = p->f.shape(p->held.data + p->from, n);
        if (shape == API_SHAPE_OTHER || n > LONGEST_BEGINNING) return give_up(p, err);
        p->has_shape = shape == API_SHAPE_CALL;
    }
    if (!ends) return 0;
    p->to = p->held.n;
    if (!p->f.close) return end_value(p, err);
    p->phase = CLOSE;
    return 0;
}

static int step_mark(api_parser *p, char c, sl_error *err) {
    if (api_is_blank(c)) return 0;
    if (c && strchr(p->f.brackets, c)) {
        p->from = p->held.n - 1;
        begin_value(p);
        return step_value(p, c, err);
    }
    if (!p->f.has_names) return give_up(p, err);
    p->name_from = p->held.n - 1;
    p->phase = NAME;
    return 0;
}

static int step_name(api_parser *p, char c, sl_error *err) {
    if (c == '\n' || p->held.n - p->name_from > LONGEST_BEGINNING) {
        p->name_from = 0;
        return give_up(p, err);
    }
    if (c != '{') return 0;
    p->from = p->held.n - 1;
    begin_value(p);
    return step_value(p, c, err);
}

static int step_close(api_parser *p, char c, sl_error *err) {
    size_t at = p->to;
    if (api_is_blank(c) && at == p->held.n - 1) {
        p->to++; // JSON may end with blanks
        return 0;
    }
    size_t n = p->held.n - at, whole = strlen(p->f.close);
    if (memcmp(p->held.data + at, p->f.close, n)) return give_up(p, err);
    return n == whole ? end_value(p, err) : 0;
}

// 1: s[0..n) is the mark; 0: it begins the mark; -1: neither
static int match(const char *mark, const char *s, size_t n) {
    size_t whole = mark ? strlen(mark) : 0;
    if (n > whole || memcmp(mark, s, n)) return -1;
    return n == whole;
}

static int begin_bare(api_parser *p, sl_error *err) {
    size_t n = p->held.n;
    p->from = p->n_blanks;
    p->is_bare = 1;
    p->has_shape = 0;
    begin_value(p);
    // The bytes since the bracket: a mark could have begun with it, so they have waited as text.
    for (size_t i = p->from; i + 1 < n; i++) api_nesting_next(&p->nesting, p->held.data[i]);
    return step_value(p, p->held.data[n - 1], err);
}

static int may_be_bare(const api_parser *p, const char *s, size_t n) {
    return p->f.bare && p->at_start && p->kind == API_EVENT_TEXT && s[0] == p->f.bare && p->f.shape(s, n) != API_SHAPE_OTHER;
}

// Blanks, and what stands between two calls.
static int is_gap(const api_parser *p, char c) {
    return api_is_blank(c) || (c == ';' && p->drop && p->n_calls && p->o.format == API_CALLS_LLAMA3);
}

static int turn_to(api_parser *p, api_event_kind kind, sl_error *err) {
    int rc = send(p, err);
    p->kind = kind;
    p->reasoned = 1;
    restart(p);
    return rc;
}

// 1: held waits, or has become something else. 0: its first byte is text
static int waits(api_parser *p, int *rc, sl_error *err) {
    const char *s = p->held.data + p->n_blanks;
    size_t n = p->held.n - p->n_blanks;
    int is_reasoning = p->kind == API_EVENT_REASONING;
    int open = p->o.reasoning && p->at_start && (is_reasoning || !p->reasoned) ? match(think_open, s, n) : -1;
    int close = is_reasoning ? match(think_close, s, n) : -1;
    int call = is_reasoning ? -1 : match(p->f.open, s, n);
    if (open == 1 || close == 1) {
        *rc = turn_to(p, open == 1 ? API_EVENT_REASONING : API_EVENT_TEXT, err);
        return 1;
    }
    if (call == 1) {
        p->phase = MARK;
        p->is_bare = 0;
        return 1;
    }
    if (open == 0 || close == 0 || call == 0) return 1;
    if (!may_be_bare(p, s, n)) return 0;
    *rc = begin_bare(p, err);
    return 1;
}

static int step_text(api_parser *p, char c, sl_error *err) {
    int rc = 0;
    if (p->n_blanks + 1 == p->held.n && is_gap(p, c)) {
        p->n_blanks++;
        return 0;
    }
    while (!rc && p->held.n > p->n_blanks && !waits(p, &rc, err)) {
        rc = release(p, p->n_blanks + 1, err);
        while (p->n_blanks < p->held.n && is_gap(p, p->held.data[p->n_blanks])) p->n_blanks++;
    }
    return rc;
}

static int feed_byte(api_parser *p, char c, sl_error *err) {
    int rc = sl_text_append(&p->held, &c, 1, err);
    if (rc) return rc;
    switch (p->phase) {
    case TEXT:
        return step_text(p, c, err);
    case MARK:
        return step_mark(p, c, err);
    case NAME:
        return step_name(p, c, err);
    case VALUE:
        return step_value(p, c, err);
    case CLOSE:
        return step_close(p, c, err);
    }
    return 0;
}

// ---- public ----

int api_parser_new(const api_parser_options *options, api_parser **out, sl_error *err) {
    api_parser *p = calloc(1, sizeof *p);
    if (!p) return sl_fail(err, SL_ERR_MEMORY, "tool calls: out of memory");
    p->o = *options;
    p->f = formats[options->format];
    p->kind = options->reasoning && options->in_reasoning ? API_EVENT_REASONING : API_EVENT_TEXT;
    p->at_start = 1;
    p->drop = p->kind == API_EVENT_REASONING;
    *out = p;
    return 0;
}

void api_parser_free(api_parser *p) {
    if (!p) return;
    sl_text_free(&p->held);
    sl_text_free(&p->out);
    free(p);
}

int api_parser_feed(api_parser *p, const char *text, size_t n, sl_error *err) {
    int rc = 0, is_plain = p->o.format == API_CALLS_NONE && !p->o.reasoning;
    if (is_plain)
        rc = sl_text_append(&p->out, text, n, err);
    else
        for (size_t i = 0; !rc && i < n; i++) rc = feed_byte(p, text[i], err);
    return rc ? rc : send(p, err);
}

int api_parser_end(api_parser *p, sl_error *err) {
    int rc = p->phase == CLOSE ? end_value(p, err) : 0; // without the last mark
    if (!rc && p->held.n) rc = release(p, p->held.n, err);
    return rc ? rc : send(p, err);
}

int api_parser_n_calls(const api_parser *p) {
    return p->n_calls;
}

int api_parser_is_reasoning(const api_parser *p) {
    return p->kind == API_EVENT_REASONING;
}

// ---- templates ----

static int has(const char *text, size_t n, const char *word) {
    return memmem(text, n, word, strlen(word)) != NULL;
}

api_call_format api_call_format_of(const char *chat_template, size_t n) {
    static const struct {
        const char *word;
        api_call_format format;
    } words[] = {
        {"<function=", API_CALLS_NONE}, // formats that this parser does not know, with the marks of those that it does
        {"<arg_key>", API_CALLS_NONE},
        {"[ARGS]", API_CALLS_MISTRAL_ARGS},
        {"[TOOL_CALLS]", API_CALLS_MISTRAL},
        {"<tool_call>", API_CALLS_HERMES},
        {"func_name1(", API_CALLS_PYTHONIC},
        {"<|python_tag|>", API_CALLS_LLAMA3},
        {"\"parameters\": dictionary", API_CALLS_LLAMA3},
    };
    for (size_t i = 0; i < sizeof words / sizeof *words; i++)
        if (has(chat_template, n, words[i].word)) return words[i].format;
    return API_CALLS_NONE;
}

const char *const *api_call_marks(api_call_format f) {
    static const char *const marks[][5] = {
        [API_CALLS_NONE] = {NULL},
        [API_CALLS_LLAMA3] = {"<|python_tag|>", NULL},
        [API_CALLS_PYTHONIC] = {"<|python_tag|>", NULL},
        [API_CALLS_HERMES] = {"<tool_call>", "</tool_call>", NULL},
        [API_CALLS_MISTRAL] = {"[TOOL_CALLS]", "[CALL_ID]", "[ARGS]", NULL},
        [API_CALLS_MISTRAL_ARGS] = {"[TOOL_CALLS]", "[CALL_ID]", "[ARGS]", NULL},
    };
    return marks[f];
}

int api_template_reasons(const char *chat_template, size_t n) {
    return has(chat_template, n, think_close);
}

int api_prompt_opens_reasoning(const char *prompt, size_t n) {
    while (n && api_is_blank(prompt[n - 1])) n--;
    return n >= sizeof think_open - 1 && !memcmp(prompt + n - (sizeof think_open - 1), think_open, sizeof think_open - 1);
}
