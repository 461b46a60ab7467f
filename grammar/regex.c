// grammar/regex.c - reads regular expressions: what Python and JavaScript mean alike, with ASCII classes. It refuses what is no
// regular language or depends on neighbours: back references, lookaround, \b, flags.
#include "grammar/grammar_internal.h"

#include <string.h>

typedef struct regex {
    sl_text_reader r; // first: a reader of this file is a regex
    sl_chars_fn chars;
    int is_search;
} regex;

static const regex *of(const sl_text_reader *r) {
    return (const regex *)r;
}

// ---- characters and classes ----

static uint32_t take_unicode(sl_text_reader *r) { // behind \u
    uint32_t c = 0;
    if (sl_take(r, "{")) {
        do c = c << 4 | sl_take_hex(r, 1);
        while (!sl_builder_failed(r->b) && c <= SL_MOST_CHAR && !sl_has(r, "}"));
        if (!sl_take(r, "}")) SL_REFUSE(r, "expected a character up to U+10FFFF and '}'");
    } else {
        c = sl_take_hex(r, 4);
        uint32_t low = c >= 0xd800 && c < 0xdc00 && sl_take(r, "\\u") ? sl_take_hex(r, 4) : 0;
        if (low >= 0xdc00 && low <= 0xdfff) c = 0x10000 + ((c - 0xd800) << 10) + (low - 0xdc00);
    }
    sl_check_char(r, r->at, c);
    return c;
}

// Adds a class like \d. Returns 0: no such class.
static int add_named(sl_text_reader *r, sl_char_set *set, char name) {
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
static int64_t take_escape(sl_text_reader *r, sl_char_set *set) {
    static const char names[] = "nrtfv", meant[] = "\n\r\t\f\v";
    uint32_t c = sl_take_char(r);
    const char *name = c && c < 0x80 ? strchr(names, (char)c) : NULL;
    if (c < 0x80 && add_named(r, set, (char)c)) return -1;
    if (name)
        c = (unsigned char)meant[name - names];
    else if (c == 'x')
        c = sl_take_hex(r, 2);
    else if (c == 'u')
        c = take_unicode(r);
    else if (c == '0' && (sl_is_done(r) || r->text[r->at] < '0' || r->text[r->at] > '9'))
        c = 0;
    else if ((c >= '0' && c <= '9') || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z'))
        SL_REFUSE(r, "\\%c is not supported", (char)c);
    return c;
}

static int64_t take_class_item(sl_text_reader *r, sl_char_set *set) {
    return sl_take(r, "\\") ? take_escape(r, set) : (int64_t)sl_take_char(r);
}

static sl_expr read_class(sl_text_reader *r) { // behind [
    sl_char_set set = {0};
    int is_inverted = sl_take(r, "^");
    if (sl_has(r, "]")) SL_REFUSE(r, "an empty class; write \\] for the character");
    while (!sl_is_done(r) && !sl_has(r, "]")) {
        if (sl_has(r, "[:")) SL_REFUSE(r, "classes like [:alpha:] are not supported");
        int64_t lo = take_class_item(r, &set), hi = lo;
        if (lo >= 0 && sl_has(r, "-") && !sl_has(r, "-]")) {
            r->at++;
            hi = take_class_item(r, &set);
            if (hi < lo) SL_REFUSE(r, "a range of characters that ends before it begins");
        }
        if (lo >= 0) sl_char_set_add(r->b, &set, (uint32_t)lo, (uint32_t)hi);
    }
    if (!sl_take(r, "]")) SL_REFUSE(r, "the text ends, expected ']'");
    return sl_expr_set(r->b, &set, is_inverted, of(r)->chars);
}

static sl_expr read_dot(sl_text_reader *r) {
    sl_char_set set = {0};
    sl_char_set_add(r->b, &set, '\n', '\n'), sl_char_set_add(r->b, &set, '\r', '\r');
    sl_char_set_add(r->b, &set, 0x2028, 0x2029); // line ends of JavaScript
    return sl_expr_set(r->b, &set, 1, of(r)->chars);
}

// ---- structure ----

static sl_expr read_sequence(sl_text_reader *r);

static sl_expr read_group(sl_text_reader *r) { // behind (
    if (sl_has(r, "?=") || sl_has(r, "?!") || sl_has(r, "?<=") || sl_has(r, "?<!"))
        return SL_REFUSE(r, "lookaround is not supported");
    if (sl_take(r, "?P<") || sl_take(r, "?<")) {
        while (!sl_is_done(r) && !sl_has(r, ">")) r->at++;
        if (!sl_take(r, ">")) return SL_REFUSE(r, "the name of a group does not end");
    } else if (!sl_take(r, "?:") && sl_has(r, "?")) {
        return SL_REFUSE(r, "(?%c is not supported", r->at + 1 < r->n ? r->text[r->at + 1] : ' ');
    }
    return sl_read_brackets(r, read_sequence);
}

static sl_expr read_atom(sl_text_reader *r) {
    sl_char_set set = {0};
    if (sl_take(r, "(")) return read_group(r);
    if (sl_take(r, "[")) return read_class(r);
    if (sl_take(r, ".")) return read_dot(r);
    if (sl_has(r, "^") || sl_has(r, "$"))
        return SL_REFUSE(r, "%c: expected only at the %s of a pattern or of one of its alternatives", r->text[r->at],
                         sl_has(r, "^") ? "start" : "end");
    if (sl_has(r, "*") || sl_has(r, "+") || sl_has(r, "?")) return SL_REFUSE(r, "%c: nothing to repeat", r->text[r->at]);
    int64_t c = take_class_item(r, &set);
    if (c >= 0) sl_char_set_add(r->b, &set, (uint32_t)c, (uint32_t)c);
    return sl_expr_set(r->b, &set, 0, of(r)->chars);
}

static sl_expr read_repeat(sl_text_reader *r) {
    int min, max;
    sl_expr e = read_atom(r);
    if (!sl_take_repetition(r, &min, &max)) return e;
    sl_take(r, "?"); // the order in which a matcher tries does not change which texts match
    if (sl_has(r, "*") || sl_has(r, "+") || sl_has(r, "?")) SL_REFUSE(r, "%c: a repetition of a repetition", r->text[r->at]);
    return sl_expr_repeat(r->b, e, min, max);
}

static sl_expr any_text(sl_text_reader *r) {
    const sl_char_range all = {0, SL_MOST_CHAR};
    return sl_expr_repeat(r->b, of(r)->chars(r->b, &all, 1), 0, -1);
}

// One alternative.
static sl_expr read_sequence(sl_text_reader *r) {
    sl_ids parts = {0};
    int is_outer = r->depth == 0, is_search = is_outer && of(r)->is_search;
    if (is_search && !sl_has(r, "^")) sl_parts_push(r->b, &parts, any_text(r));
    if (is_outer) sl_take(r, "^");
    while (!sl_is_done(r) && !sl_has(r, "|") && !(sl_has(r, ")") && !is_outer) && !(is_outer && sl_has(r, "$"))) {
        if (sl_has(r, ")")) SL_REFUSE(r, "')' without '('");
        sl_parts_push(r->b, &parts, read_repeat(r));
    }
    int is_closed = is_outer && sl_take(r, "$");
    if (is_closed && !sl_is_done(r) && !sl_has(r, "|"))
        SL_REFUSE(r, "$: expected only at the end of a pattern or of one of its alternatives");
    if (is_search && !is_closed) sl_parts_push(r->b, &parts, any_text(r));
    return sl_parts_sequence(r->b, &parts);
}

sl_expr sl_regex_read(sl_builder *b, const char *what, const char *text, size_t n, sl_chars_fn chars, int is_search) {
    regex r = {{.b = b, .what = what, .text = text, .n = n}, chars, is_search};
    return sl_read_choice(&r.r, read_sequence);
}

int sl_grammar_new_regex(const char *text, size_t n, sl_grammar **out, sl_error *err) {
    sl_builder *b;
    *out = NULL;
    int rc = sl_builder_new(&b, err);
    return rc ? rc : sl_builder_finish_with(b, "regex", sl_regex_read(b, "regex", text, n, sl_expr_class, 0), out);
}
