// grammar/regex.c - reads regular expressions: what Python and JavaScript mean alike, with ASCII classes. It refuses what is no
// regular language or depends on neighbours: back references, lookaround, \b, flags.
#include "grammar/grammar_internal.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

enum { MOST_COUNT = 100000 };

typedef struct regex {
    sl_builder *b;
    const char *what, *text;
    size_t n, at;
    sl_chars_fn chars;
    int is_search, depth;
} regex;

__attribute__((format(printf, 2, 3))) static sl_expr refuse(regex *r, const char *fmt, ...) {
    char text[256];
    va_list ap;
    if (sl_builder_failed(r->b)) return 0;
    va_start(ap, fmt);
    vsnprintf(text, sizeof text, fmt, ap);
    va_end(ap);
    sl_error *err = sl_builder_error(r->b);
    return sl_builder_fail(r->b, sl_fail(err, SL_ERR_FORMAT, "%s: column %zu: %s", r->what, r->at + 1, text));
}

static int has(const regex *r, const char *token) {
    size_t n = strlen(token);
    return r->n - r->at >= n && !memcmp(r->text + r->at, token, n);
}

static int take(regex *r, const char *token) {
    int is_there = has(r, token);
    if (is_there) r->at += strlen(token);
    return is_there;
}

static int is_done(const regex *r) {
    return sl_builder_failed(r->b) || r->at >= r->n;
}

static uint32_t take_char(regex *r) {
    uint32_t c = 0;
    int n = r->at < r->n ? sl_utf8_read(r->text + r->at, r->n - r->at, &c) : 0;
    if (n == 0) refuse(r, r->at < r->n ? "a byte that is not UTF-8" : "the text ends, expected a character");
    r->at += (size_t)n;
    return c;
}

// ---- characters and classes ----

static int hex_digit(char c) {
    return c >= '0' && c <= '9' ? c - '0' : c >= 'a' && c <= 'f' ? c - 'a' + 10 : c >= 'A' && c <= 'F' ? c - 'A' + 10 : -1;
}

static uint32_t take_hex(regex *r, int n) {
    uint32_t c = 0;
    for (int i = 0; i < n; i++, r->at++) {
        int digit = r->at < r->n ? hex_digit(r->text[r->at]) : -1;
        if (digit < 0) return (uint32_t)refuse(r, "expected %d hexadecimal digits", n);
        c = c << 4 | (uint32_t)digit;
    }
    return c;
}

static uint32_t take_unicode(regex *r) { // behind \u
    uint32_t c = 0;
    if (take(r, "{")) {
        do c = c << 4 | take_hex(r, 1);
        while (!sl_builder_failed(r->b) && c <= SL_MOST_CHAR && !has(r, "}"));
        if (!take(r, "}")) refuse(r, "expected a character up to U+10FFFF and '}'");
    } else {
        c = take_hex(r, 4);
        uint32_t low = c >= 0xd800 && c < 0xdc00 && take(r, "\\u") ? take_hex(r, 4) : 0;
        if (low >= 0xdc00 && low <= 0xdfff) c = 0x10000 + ((c - 0xd800) << 10) + (low - 0xdc00);
    }
    if (c > SL_MOST_CHAR || (c >= 0xd800 && c <= 0xdfff))
        refuse(r, "expected a character, found a surrogate or a number too large");
    return c;
}

// Adds a class like \d. Returns 0: no such class.
static int add_named(regex *r, sl_char_set *set, char name) {
    static const struct {
        char name;
        int n;
        sl_char_range ranges[7];
    } classes[] = {
        {'d', 1, {{'0', '9'}}},
        {'D', 2, {{0, '0' - 1}, {'9' + 1, SL_MOST_CHAR}}},
        {'w', 4, {{'0', '9'}, {'A', 'Z'}, {'_', '_'}, {'a', 'z'}}},
        {'W', 5, {{0, '0' - 1}, {'9' + 1, 'A' - 1}, {'Z' + 1, '_' - 1}, {'_' + 1, 'a' - 1}, {'z' + 1, SL_MOST_CHAR}}},
        {'s', 2, {{'\t', '\r'}, {' ', ' '}}},
        {'S', 3, {{0, '\t' - 1}, {'\r' + 1, ' ' - 1}, {' ' + 1, SL_MOST_CHAR}}},
    };
    for (size_t i = 0; i < sizeof classes / sizeof *classes; i++)
        for (int k = 0; classes[i].name == name && k < classes[i].n; k++) {
            sl_char_set_add(r->b, set, classes[i].ranges[k].lo, classes[i].ranges[k].hi);
            if (k == classes[i].n - 1) return 1;
        }
    return 0;
}

// Adds what is behind a backslash. Returns the character, or -1 for a class.
static int64_t take_escape(regex *r, sl_char_set *set) {
    static const char names[] = "nrtfv", meant[] = "\n\r\t\f\v";
    uint32_t c = take_char(r);
    const char *name = c && c < 0x80 ? strchr(names, (char)c) : NULL;
    if (c < 0x80 && add_named(r, set, (char)c)) return -1;
    if (name)
        c = (unsigned char)meant[name - names];
    else if (c == 'x')
        c = take_hex(r, 2);
    else if (c == 'u')
        c = take_unicode(r);
    else if (c == '0' && (is_done(r) || r->text[r->at] < '0' || r->text[r->at] > '9'))
        c = 0;
    else if ((c >= '0' && c <= '9') || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z'))
        refuse(r, "\\%c is not supported", (char)c);
    return c;
}

static int64_t take_class_item(regex *r, sl_char_set *set) {
    return take(r, "\\") ? take_escape(r, set) : (int64_t)take_char(r);
}

static sl_expr read_class(regex *r) { // behind [
    sl_char_set set = {0};
    int is_inverted = take(r, "^");
    if (has(r, "]")) refuse(r, "an empty class; write \\] for the character");
    while (!is_done(r) && !has(r, "]")) {
        if (has(r, "[:")) refuse(r, "classes like [:alpha:] are not supported");
        int64_t lo = take_class_item(r, &set), hi = lo;
        if (lo >= 0 && has(r, "-") && !has(r, "-]")) {
            r->at++;
            hi = take_class_item(r, &set);
            if (hi < lo) refuse(r, "a range of characters that ends before it begins");
        }
        if (lo >= 0) sl_char_set_add(r->b, &set, (uint32_t)lo, (uint32_t)hi);
    }
    if (!take(r, "]")) refuse(r, "the text ends, expected ']'");
    return sl_expr_set(r->b, &set, is_inverted, r->chars);
}

static sl_expr read_dot(regex *r) {
    sl_char_set set = {0};
    sl_char_set_add(r->b, &set, '\n', '\n'), sl_char_set_add(r->b, &set, '\r', '\r');
    sl_char_set_add(r->b, &set, 0x2028, 0x2029); // line ends of JavaScript
    return sl_expr_set(r->b, &set, 1, r->chars);
}

// ---- structure ----

static sl_expr read_choice(regex *r);

static sl_expr read_group(regex *r) { // behind (
    if (++r->depth > SL_GRAMMAR_MOST_NESTING) return refuse(r, "more than %d nested groups", SL_GRAMMAR_MOST_NESTING);
    if (has(r, "?=") || has(r, "?!") || has(r, "?<=") || has(r, "?<!")) return refuse(r, "lookaround is not supported");
    if (take(r, "?P<") || take(r, "?<")) {
        while (!is_done(r) && !has(r, ">")) r->at++;
        if (!take(r, ">")) return refuse(r, "the name of a group does not end");
    } else if (!take(r, "?:") && has(r, "?")) {
        return refuse(r, "(?%.1s is not supported", r->at + 1 < r->n && r->text[r->at + 1] > 0 ? r->text + r->at + 1 : "");
    }
    sl_expr e = read_choice(r);
    if (!take(r, ")")) refuse(r, "the text ends, expected ')'");
    r->depth--;
    return e;
}

static sl_expr read_atom(regex *r) {
    sl_char_set set = {0};
    if (take(r, "(")) return read_group(r);
    if (take(r, "[")) return read_class(r);
    if (take(r, ".")) return read_dot(r);
    if (has(r, "^") || has(r, "$"))
        return refuse(r, "%c: expected only at the %s of a pattern or of one of its alternatives", r->text[r->at],
                      has(r, "^") ? "start" : "end");
    if (has(r, "*") || has(r, "+") || has(r, "?")) return refuse(r, "%c: nothing to repeat", r->text[r->at]);
    int64_t c = take_class_item(r, &set);
    if (c >= 0) sl_char_set_add(r->b, &set, (uint32_t)c, (uint32_t)c);
    return sl_expr_set(r->b, &set, 0, r->chars);
}

static int take_count(regex *r) {
    int n = 0;
    if (r->at >= r->n || r->text[r->at] < '0' || r->text[r->at] > '9') refuse(r, "expected a number");
    for (; r->at < r->n && r->text[r->at] >= '0' && r->text[r->at] <= '9'; r->at++)
        if ((n = 10 * n + (r->text[r->at] - '0')) > MOST_COUNT) return refuse(r, "a number above %d", MOST_COUNT);
    return n;
}

static sl_expr read_repeat(regex *r) {
    sl_expr e = read_atom(r);
    int min, max,
        is_count = r->at + 1 < r->n && r->text[r->at] == '{' && r->text[r->at + 1] >= '0' && r->text[r->at + 1] <= '9';
    if (take(r, "*"))
        min = 0, max = -1;
    else if (take(r, "+"))
        min = 1, max = -1;
    else if (take(r, "?"))
        min = 0, max = 1;
    else if (is_count) {
        r->at++;
        min = max = take_count(r);
        if (take(r, ",")) max = has(r, "}") ? -1 : take_count(r);
        if (!take(r, "}")) refuse(r, "expected '}'");
        if (max >= 0 && max < min) refuse(r, "{%d,%d}: expected a second number that is not below the first", min, max);
    } else {
        return e;
    }
    take(r, "?"); // the order in which a matcher tries does not change which texts match
    if (has(r, "*") || has(r, "+") || has(r, "?")) refuse(r, "%c: a repetition of a repetition", r->text[r->at]);
    return sl_expr_repeat(r->b, e, min, max);
}

static sl_expr any_text(regex *r) {
    const sl_char_range all = {0, SL_MOST_CHAR};
    return sl_expr_repeat(r->b, r->chars(r->b, &all, 1), 0, -1);
}

// One alternative.
static sl_expr read_sequence(regex *r) {
    sl_ids parts = {0};
    sl_builder *b = r->b;
    int is_outer = r->depth == 0, is_open = r->is_search && is_outer && !has(r, "^"), rc = 0;
    if (is_open) rc = sl_ids_push(&parts, any_text(r), sl_builder_error(b));
    if (is_outer) take(r, "^");
    while (!rc && !is_done(r) && !has(r, "|") && !(has(r, ")") && !is_outer) && !(is_outer && has(r, "$"))) {
        if (has(r, ")")) refuse(r, "')' without '('");
        rc = sl_ids_push(&parts, read_repeat(r), sl_builder_error(b));
    }
    int is_closed = is_outer && take(r, "$");
    if (is_closed && !is_done(r) && !has(r, "|"))
        refuse(r, "$: expected only at the end of a pattern or of one of its alternatives");
    if (!rc && r->is_search && is_outer && !is_closed) rc = sl_ids_push(&parts, any_text(r), sl_builder_error(b));
    if (rc) sl_builder_fail(b, rc);
    sl_expr e = sl_expr_sequence(b, parts.data, parts.n);
    sl_ids_free(&parts);
    return e;
}

static sl_expr read_choice(regex *r) {
    sl_ids parts = {0};
    int rc;
    do rc = sl_ids_push(&parts, read_sequence(r), sl_builder_error(r->b));
    while (!rc && !sl_builder_failed(r->b) && take(r, "|"));
    if (rc) sl_builder_fail(r->b, rc);
    sl_expr e = sl_expr_choice(r->b, parts.data, parts.n);
    sl_ids_free(&parts);
    return e;
}

sl_expr sl_regex_read(sl_builder *b, const char *what, const char *text, size_t n, sl_chars_fn chars, int is_search) {
    regex r = {.b = b, .what = what, .text = text, .n = n, .chars = chars, .is_search = is_search};
    return read_choice(&r);
}

int sl_grammar_new_regex(const char *text, size_t n, sl_grammar **out, sl_error *err) {
    sl_builder *b;
    *out = NULL;
    int rc = sl_builder_new(&b, err);
    if (rc) return rc;
    int root = sl_builder_rule(b, "regex", 5);
    sl_builder_define(b, root, sl_regex_read(b, "regex", text, n, sl_expr_class, 0));
    rc = sl_builder_finish(b, root, out);
    sl_builder_free(b);
    return rc;
}
