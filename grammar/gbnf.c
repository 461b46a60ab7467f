// grammar/gbnf.c - reads GBNF, the notation of llama.cpp's grammars. A rule ends where the next "NAME ::=" begins, so line ends
// are only white space.
#include "grammar/grammar_internal.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

enum { MOST_COUNT = 100000 };

typedef struct gbnf {
    sl_builder *b;
    const char *text;
    size_t n, at;
    int depth;
    json_t *rules;      // the number of each rule of the text, by name
    sl_ids used, known; // [rules] where the text first names a rule; 1: it defines the rule
} gbnf;

__attribute__((format(printf, 3, 4))) static int refuse_at(gbnf *g, size_t at, const char *fmt, ...) {
    char text[256];
    va_list ap;
    size_t line = 1, column = 1;
    if (sl_builder_failed(g->b)) return 0;
    for (size_t i = 0; i < at; i++) {
        column = g->text[i] == '\n' ? 1 : column + 1;
        line += g->text[i] == '\n';
    }
    va_start(ap, fmt);
    vsnprintf(text, sizeof text, fmt, ap);
    va_end(ap);
    return sl_builder_fail(
        g->b, sl_fail(sl_builder_error(g->b), SL_ERR_FORMAT, "grammar: line %zu, column %zu: %s", line, column, text));
}
#define refuse(g, ...) refuse_at(g, (g)->at, __VA_ARGS__)

static int is_done(const gbnf *g) {
    return sl_builder_failed(g->b) || g->at >= g->n;
}

// The byte at `ahead` bytes from here; -1: the text ends before.
static int peek(const gbnf *g, size_t ahead) {
    return g->at + ahead < g->n ? (unsigned char)g->text[g->at + ahead] : -1;
}

static int take(gbnf *g, char c) {
    int is_there = peek(g, 0) == (unsigned char)c;
    g->at += (size_t)is_there;
    return is_there;
}

// The next place that is no white space and no comment.
static size_t skip_space(const gbnf *g, size_t at) {
    for (int is_comment = 0; at < g->n; at++) {
        char c = g->text[at];
        is_comment = c != '\n' && (is_comment || c == '#');
        if (!is_comment && c != ' ' && c != '\t' && c != '\r' && c != '\n') break;
    }
    return at;
}

// ---- names ----

static int is_word(int c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '-' || c == '_';
}

static size_t name_length(const gbnf *g) {
    size_t n = 0;
    while (is_word(peek(g, n))) n++;
    return n;
}

static int begins_rule(const gbnf *g) {
    size_t n = name_length(g), at = skip_space(g, g->at + n);
    return n > 0 && g->n - at >= 3 && !memcmp(g->text + at, "::=", 3);
}

// Takes a name. Returns the number of its rule.
static int take_name(gbnf *g) {
    char name[128];
    size_t n = name_length(g), at = g->at;
    if (n >= sizeof name) return refuse(g, "a name of more than %zu characters", sizeof name - 1);
    memcpy(name, g->text + at, n);
    name[n] = 0;
    g->at += n;
    json_t *known = json_object_get(g->rules, name);
    if (known) return (int)json_integer_value(known);
    int rule = sl_builder_rule(g->b, name, n);
    sl_error *err = sl_builder_error(g->b);
    int rc = sl_ids_push(&g->used, (int32_t)at, err);
    if (!rc) rc = sl_ids_push(&g->known, 0, err);
    if (!rc && json_object_set_new(g->rules, name, json_integer(rule)))
        rc = sl_fail(err, SL_ERR_MEMORY, "a grammar: out of memory");
    if (rc) sl_builder_fail(g->b, rc);
    return rule;
}

// ---- characters ----

static uint32_t take_hex(gbnf *g, int n) {
    uint32_t c = 0;
    for (int i = 0; i < n; i++, g->at++) {
        int x = peek(g, 0), digit = x >= '0' && x <= '9'                 ? x - '0'
                                    : (x | 32) >= 'a' && (x | 32) <= 'f' ? (x | 32) - 'a' + 10
                                                                         : -1;
        if (digit < 0) return (uint32_t)refuse(g, "expected %d hexadecimal digits", n);
        c = c << 4 | (uint32_t)digit;
    }
    return c;
}

static uint32_t take_char(gbnf *g) {
    static const char names[] = "tnr\\\"[]-^", meant[] = "\t\n\r\\\"[]-^";
    size_t at = g->at;
    uint32_t c = 0;
    if (!take(g, '\\')) {
        int n = g->at < g->n ? sl_utf8_read(g->text + g->at, g->n - g->at, &c) : 0;
        if (n == 0) refuse(g, g->at < g->n ? "a byte that is not UTF-8" : "the text ends, expected a character");
        g->at += (size_t)n;
        return c;
    }
    int x = peek(g, 0);
    const char *name = x > 0 ? strchr(names, x) : NULL;
    g->at++;
    if (x == 'x' || x == 'u' || x == 'U')
        c = take_hex(g, x == 'x' ? 2 : x == 'u' ? 4 : 8);
    else if (name)
        c = (unsigned char)meant[name - names];
    else
        refuse_at(g, at, "an unknown escape, expected one of \\t \\n \\r \\\\ \\\" \\[ \\] \\- \\^ \\xHH \\uHHHH \\UHHHHHHHH");
    if (c > SL_MOST_CHAR || (c >= 0xd800 && c <= 0xdfff))
        refuse_at(g, at, "expected a character, found a surrogate or a number too large");
    return c;
}

static sl_expr read_literal(gbnf *g) { // behind the quote
    sl_text bytes = {0};
    while (!is_done(g) && peek(g, 0) != '"') {
        char utf8[4];
        if (peek(g, 0) == '\n') refuse(g, "the line ends, expected '\"'");
        int n = sl_utf8_write(take_char(g), utf8);
        if (sl_text_append(&bytes, utf8, (size_t)n, sl_builder_error(g->b))) sl_builder_fail(g->b, SL_ERR_MEMORY);
    }
    if (!take(g, '"')) refuse(g, "the text ends, expected '\"'");
    sl_expr e = sl_expr_literal(g->b, bytes.data, bytes.n);
    sl_text_free(&bytes);
    return e;
}

static sl_expr read_class(gbnf *g) { // behind [
    sl_char_set set = {0};
    int is_inverted = take(g, '^');
    while (!is_done(g) && peek(g, 0) != ']') {
        uint32_t lo = take_char(g), hi = lo;
        if (peek(g, 0) == '-' && peek(g, 1) != ']' && take(g, '-')) hi = take_char(g);
        if (hi < lo) refuse(g, "a range of characters that ends before it begins");
        sl_char_set_add(g->b, &set, lo, hi);
    }
    if (!take(g, ']')) refuse(g, "the text ends, expected ']'");
    return sl_expr_set(g->b, &set, is_inverted, sl_expr_class);
}

// ---- structure ----

static sl_expr read_choice(gbnf *g);

static sl_expr read_atom(gbnf *g) {
    static const sl_char_range all = {0, SL_MOST_CHAR};
    if (take(g, '"')) return read_literal(g);
    if (take(g, '[')) return read_class(g);
    if (take(g, '.')) return sl_expr_class(g->b, &all, 1);
    if (is_word(peek(g, 0))) return sl_expr_rule(g->b, take_name(g));
    if (!take(g, '(')) return refuse(g, "expected a name, \"text\", [characters], '.' or '('");
    if (++g->depth > SL_GRAMMAR_MOST_NESTING) return refuse(g, "more than %d nested brackets", SL_GRAMMAR_MOST_NESTING);
    sl_expr e = read_choice(g);
    if (!take(g, ')')) refuse(g, "expected ')'");
    g->depth--;
    return e;
}

static int take_count(gbnf *g) {
    int n = 0;
    if (peek(g, 0) < '0' || peek(g, 0) > '9') refuse(g, "expected a number");
    for (; peek(g, 0) >= '0' && peek(g, 0) <= '9'; g->at++)
        if ((n = 10 * n + (peek(g, 0) - '0')) > MOST_COUNT) return refuse(g, "a number above %d", MOST_COUNT);
    return n;
}

static sl_expr read_repeat(gbnf *g) {
    sl_expr e = read_atom(g);
    for (; g->at = skip_space(g, g->at), !is_done(g);) {
        int min = 0, max = -1;
        if (take(g, '?')) {
            max = 1;
        } else if (take(g, '+')) {
            min = 1;
        } else if (take(g, '{')) {
            g->at = skip_space(g, g->at);
            min = max = take_count(g);
            g->at = skip_space(g, g->at);
            if (take(g, ',')) {
                g->at = skip_space(g, g->at);
                max = peek(g, 0) == '}' ? -1 : take_count(g);
                g->at = skip_space(g, g->at);
            }
            if (!take(g, '}')) refuse(g, "expected '}'");
            if (max >= 0 && max < min) refuse(g, "{%d,%d}: expected a second number that is not below the first", min, max);
        } else if (!take(g, '*')) {
            break;
        }
        e = sl_expr_repeat(g->b, e, min, max);
    }
    return e;
}

static sl_expr read_sequence(gbnf *g) {
    sl_ids parts = {0};
    int rc = 0;
    g->at = skip_space(g, g->at);
    while (!rc && !is_done(g) && peek(g, 0) != '|' && peek(g, 0) != ')' && !begins_rule(g))
        rc = sl_ids_push(&parts, read_repeat(g), sl_builder_error(g->b));
    if (rc) sl_builder_fail(g->b, rc);
    sl_expr e = sl_expr_sequence(g->b, parts.data, parts.n);
    sl_ids_free(&parts);
    return e;
}

static sl_expr read_choice(gbnf *g) {
    sl_ids parts = {0};
    int rc;
    do rc = sl_ids_push(&parts, read_sequence(g), sl_builder_error(g->b));
    while (!rc && !sl_builder_failed(g->b) && take(g, '|'));
    if (rc) sl_builder_fail(g->b, rc);
    sl_expr e = sl_expr_choice(g->b, parts.data, parts.n);
    sl_ids_free(&parts);
    return e;
}

static void read_rules(gbnf *g) {
    while (g->at = skip_space(g, g->at), !is_done(g)) {
        size_t at = g->at;
        if (!begins_rule(g)) refuse(g, "expected NAME ::=");
        int rule = take_name(g);
        g->at = skip_space(g, g->at) + 3;
        if (!sl_builder_failed(g->b) && g->known.data[rule]++) refuse_at(g, at, "the rule is defined twice");
        sl_builder_define(g->b, rule, read_choice(g));
        if (peek(g, 0) == ')') refuse(g, "')' without '('");
    }
}

// A name that the text does not define is a schema.
static void read_schemas(gbnf *g, const json_t *schemas) {
    const char *name;
    json_t *number;
    json_object_foreach(g->rules, name, number) {
        int rule = (int)json_integer_value(number);
        const json_t *schema = json_object_get(schemas, name);
        if (sl_builder_failed(g->b)) return;
        if (g->known.data[rule]) continue;
        if (!schema) refuse_at(g, (size_t)g->used.data[rule], "rule %s is not defined", name);
        if (schema) sl_builder_define(g->b, rule, sl_schema_read(g->b, name, schema));
    }
}

int sl_grammar_new_gbnf(const char *text, size_t n, const json_t *schemas, sl_grammar **out, sl_error *err) {
    sl_builder *b;
    *out = NULL;
    int rc = sl_builder_new(&b, err);
    if (rc) return rc;
    gbnf g = {.b = b, .text = text, .n = n, .rules = json_object()};
    if (!g.rules) sl_builder_fail(b, sl_fail(err, SL_ERR_MEMORY, "a grammar: out of memory"));
    if (n > INT32_MAX) sl_builder_fail(b, sl_fail(err, SL_ERR_FORMAT, "grammar: %zu bytes: expected at most %d", n, INT32_MAX));
    read_rules(&g);
    read_schemas(&g, schemas);
    const json_t *root = json_object_get(g.rules, "root");
    if (!root && !sl_builder_failed(b))
        sl_builder_fail(b, sl_fail(err, SL_ERR_FORMAT, "grammar: no rule root, expected root ::= ..."));
    rc = sl_builder_finish(b, (int)json_integer_value(root), out);
    json_decref(g.rules);
    sl_ids_free(&g.used), sl_ids_free(&g.known);
    sl_builder_free(b);
    return rc;
}
