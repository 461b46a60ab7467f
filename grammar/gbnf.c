// grammar/gbnf.c - reads GBNF, the notation of llama.cpp's grammars. A rule ends where the next "NAME ::=" begins, so line ends
// are only white space.
#include "grammar/grammar_internal.h"

#include <string.h>

typedef struct gbnf {
    sl_text_reader r;   // first: a reader of this file is a gbnf
    json_t *rules;      // the number of each rule of the text, by name
    sl_ids used, known; // [rules] where the text first names a rule; 1: it defines the rule
} gbnf;

// The byte at `ahead` bytes from here; -1: the text ends before.
static int peek(const sl_text_reader *r, size_t ahead) {
    return r->at + ahead < r->n ? (unsigned char)r->text[r->at + ahead] : -1;
}

// The next place that is no white space and no comment.
static size_t skip_space(const sl_text_reader *r, size_t at) {
    for (int is_comment = 0; at < r->n; at++) {
        char c = r->text[at];
        is_comment = c != '\n' && (is_comment || c == '#');
        if (!is_comment && c != ' ' && c != '\t' && c != '\r' && c != '\n') break;
    }
    return at;
}

// ---- names ----

static int is_word(int c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '-' || c == '_';
}

static size_t name_length(const sl_text_reader *r) {
    size_t n = 0;
    while (is_word(peek(r, n))) n++;
    return n;
}

static int begins_rule(const sl_text_reader *r) {
    size_t n = name_length(r), at = skip_space(r, r->at + n);
    return n > 0 && r->n - at >= 3 && !memcmp(r->text + at, "::=", 3);
}

// Takes a name. Returns the number of its rule.
static int take_name(sl_text_reader *r) {
    gbnf *g = (gbnf *)r;
    char name[128];
    size_t n = name_length(r), at = r->at;
    if (n >= sizeof name) return SL_REFUSE(r, "a name of more than %zu characters", sizeof name - 1);
    memcpy(name, r->text + at, n);
    name[n] = 0;
    r->at += n;
    json_t *known = json_object_get(g->rules, name);
    if (known) return (int)json_integer_value(known);
    int rule = sl_builder_rule(r->b, name, n);
    sl_error *err = sl_builder_error(r->b);
    int rc = sl_ids_push(&g->used, (int32_t)at, err);
    if (!rc) rc = sl_ids_push(&g->known, 0, err);
    if (!rc && json_object_set_new(g->rules, name, json_integer(rule)))
        rc = sl_fail(err, SL_ERR_MEMORY, "a grammar: out of memory");
    if (rc) sl_builder_fail(r->b, rc);
    return rule;
}

// ---- characters ----

static uint32_t take_char(sl_text_reader *r) {
    static const char names[] = "tnr\\\"[]-^", meant[] = "\t\n\r\\\"[]-^";
    size_t at = r->at;
    uint32_t c = 0;
    if (!sl_take(r, "\\")) return sl_take_char(r);
    int x = peek(r, 0);
    const char *name = x > 0 ? strchr(names, x) : NULL;
    r->at += x >= 0;
    if (x == 'x' || x == 'u' || x == 'U')
        c = sl_take_hex(r, x == 'x' ? 2 : x == 'u' ? 4 : 8);
    else if (name)
        c = (unsigned char)meant[name - names];
    else
        sl_refuse_at(r, at,
                     "an unknown escape, expected one of \\t \\n \\r \\\\ \\\" \\[ \\] \\- \\^ \\xHH \\uHHHH \\UHHHHHHHH");
    sl_check_char(r, at, c);
    return c;
}

static sl_expr read_literal(sl_text_reader *r) { // behind the quote
    sl_text bytes = {0};
    while (!sl_is_done(r) && peek(r, 0) != '"') {
        char utf8[4];
        if (peek(r, 0) == '\n') SL_REFUSE(r, "the line ends, expected '\"'");
        int n = sl_utf8_write(take_char(r), utf8);
        if (sl_text_append(&bytes, utf8, (size_t)n, sl_builder_error(r->b))) sl_builder_fail(r->b, SL_ERR_MEMORY);
    }
    if (!sl_take(r, "\"")) SL_REFUSE(r, "the text ends, expected '\"'");
    sl_expr e = sl_expr_literal(r->b, bytes.data, bytes.n);
    sl_text_free(&bytes);
    return e;
}

static sl_expr read_class(sl_text_reader *r) { // behind [
    sl_char_set set = {0};
    int is_inverted = sl_take(r, "^");
    while (!sl_is_done(r) && peek(r, 0) != ']') {
        uint32_t lo = take_char(r), hi = lo;
        if (peek(r, 0) == '-' && peek(r, 1) != ']' && sl_take(r, "-")) hi = take_char(r);
        if (hi < lo) SL_REFUSE(r, "a range of characters that ends before it begins");
        sl_char_set_add(r->b, &set, lo, hi);
    }
    if (!sl_take(r, "]")) SL_REFUSE(r, "the text ends, expected ']'");
    return sl_expr_set(r->b, &set, is_inverted, sl_expr_class);
}

// ---- structure ----

static sl_expr read_sequence(sl_text_reader *r);

static sl_expr read_atom(sl_text_reader *r) {
    static const sl_char_range all = {0, SL_MOST_CHAR};
    if (sl_take(r, "\"")) return read_literal(r);
    if (sl_take(r, "[")) return read_class(r);
    if (sl_take(r, ".")) return sl_expr_class(r->b, &all, 1);
    if (is_word(peek(r, 0))) return sl_expr_rule(r->b, take_name(r));
    if (!sl_take(r, "(")) return SL_REFUSE(r, "expected a name, \"text\", [characters], '.' or '('");
    return sl_read_brackets(r, read_sequence);
}

static sl_expr read_repeat(sl_text_reader *r) {
    int min, max;
    sl_expr e = read_atom(r);
    while (r->at = skip_space(r, r->at), !sl_is_done(r) && sl_take_repetition(r, &min, &max))
        e = sl_expr_repeat(r->b, e, min, max);
    return e;
}

static sl_expr read_sequence(sl_text_reader *r) {
    sl_ids parts = {0};
    r->at = skip_space(r, r->at);
    while (!sl_is_done(r) && !sl_has(r, "|") && !sl_has(r, ")") && !begins_rule(r)) sl_parts_push(r->b, &parts, read_repeat(r));
    return sl_parts_sequence(r->b, &parts);
}

static void read_rules(gbnf *g) {
    sl_text_reader *r = &g->r;
    while (r->at = skip_space(r, r->at), !sl_is_done(r)) {
        size_t at = r->at;
        if (!begins_rule(r)) SL_REFUSE(r, "expected NAME ::=");
        int rule = take_name(r);
        if (sl_builder_failed(r->b)) return;
        r->at = skip_space(r, r->at) + 3;
        if (g->known.data[rule]++) sl_refuse_at(r, at, "the rule is defined twice");
        sl_builder_define(r->b, rule, sl_read_choice(r, read_sequence));
        if (sl_has(r, ")")) SL_REFUSE(r, "')' without '('");
    }
}

static sl_expr read_part(sl_builder *b, const char *name, const json_t *part) {
    const json_t *token = json_object_get(part, "token"), *arguments = json_object_get(part, "arguments");
    if (token) return sl_expr_token(b, (int32_t)json_integer_value(token));
    return sl_schema_read(b, name, arguments ? arguments : json_object_get(part, "schema"), arguments != NULL);
}

static void read_parts(gbnf *g, const json_t *parts) {
    const char *name;
    json_t *number;
    json_object_foreach(g->rules, name, number) {
        int rule = (int)json_integer_value(number);
        const json_t *part = json_object_get(parts, name);
        if (sl_builder_failed(g->r.b)) return;
        if (g->known.data[rule]) continue;
        if (!part) sl_refuse_at(&g->r, (size_t)g->used.data[rule], "rule %s is not defined", name);
        if (part) sl_builder_define(g->r.b, rule, read_part(g->r.b, name, part));
    }
}

int sl_grammar_new_gbnf(const char *text, size_t n, const json_t *parts, sl_grammar **out, sl_error *err) {
    sl_builder *b;
    *out = NULL;
    int rc = sl_builder_new(&b, err);
    if (rc) return rc;
    gbnf g = {.r = {.b = b, .what = "grammar", .text = text, .n = n, .has_lines = 1}, .rules = json_object()};
    if (!g.rules) sl_builder_fail(b, sl_fail(err, SL_ERR_MEMORY, "a grammar: out of memory"));
    if (n > INT32_MAX) sl_builder_fail(b, sl_fail(err, SL_ERR_FORMAT, "grammar: %zu bytes: expected at most %d", n, INT32_MAX));
    read_rules(&g);
    read_parts(&g, parts);
    const json_t *root = json_object_get(g.rules, "root");
    if (!root && !sl_builder_failed(b))
        sl_builder_fail(b, sl_fail(err, SL_ERR_FORMAT, "grammar: no rule root, expected root ::= ..."));
    rc = sl_builder_finish(b, (int)json_integer_value(root), out);
    json_decref(g.rules);
    sl_ids_free(&g.used), sl_ids_free(&g.known);
    return rc;
}
