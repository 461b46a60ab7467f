// grammar/json_texts.c - the parts of JSON texts that every schema needs.
//
// White space is bounded, because a model can repeat it without end: nothing, one blank, or a line end with up to 40 blanks or
// tabs, behind a bracket or comma and before a closing bracket; nothing or one blank behind a colon. Digits are bounded too. A
// text never holds \u0000, half a surrogate pair, or a number that a double cannot hold.
//
// Literals of Python are these texts with other words (True, False, None) and without two escapes: Python keeps the backslash
// of \/, and does not join a pair of surrogates. Strings stand in double quotes.
#include "grammar/grammar_internal.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define INDENT "(?: |\n[ \t]{0,40})?"
#define CODE_POINT                                                                                                             \
    "u(?:[1-9a-cA-CefEF][0-9a-fA-F]{3}|0[1-9a-fA-F][0-9a-fA-F]{2}|00[1-9a-fA-F][0-9a-fA-F]|000[1-9a-fA-F]|[dD][0-7]"           \
    "[0-9a-fA-F]{2})"
#define ESCAPE "\\\\(?:[\"\\\\/bfnrt]|" CODE_POINT "|u[dD][89abAB][0-9a-fA-F]{2}\\\\u[dD][c-fC-F][0-9a-fA-F]{2})"
#define PYTHON_ESCAPE "\\\\(?:[\"\\\\bfnrt]|" CODE_POINT ")"
#define PLAIN "[^\"\\\\\\x00-\\x1f]"
#define INTEGER "-?(?:0|[1-9][0-9]{0,17})"
#define NUMBER "-?(?:0|[1-9][0-9]{0,15})(?:\\.[0-9]{1,16})?(?:[eE][-+]?[0-9]{1,2})?"

// The rule *rule, which a regular expression defines when it is first needed.
static sl_expr shared(sl_builder *b, int *rule, const char *name, const char *regex) {
    if (*rule < 0) {
        *rule = sl_builder_rule(b, name, strlen(name));
        sl_builder_define(b, *rule, sl_regex_read(b, name, regex, strlen(regex), sl_expr_class, 0));
    }
    return sl_expr_rule(b, *rule);
}

sl_expr sl_expr_json_space(sl_builder *b, sl_json_rules *r) {
    return shared(b, &r->space, "space", INDENT);
}

sl_expr sl_expr_json_comma(sl_builder *b, sl_json_rules *r) {
    return SL_SEQUENCE(b, SL_LITERAL(b, ","), sl_expr_json_space(b, r));
}

sl_expr sl_expr_json_colon(sl_builder *b) {
    return SL_SEQUENCE(b, SL_LITERAL(b, ":"), sl_expr_repeat(b, SL_LITERAL(b, " "), 0, 1));
}

sl_expr sl_expr_json_character(sl_builder *b, sl_json_rules *r) {
    sl_expr plain = sl_regex_read(b, "character", PLAIN, sizeof PLAIN - 1, sl_expr_class, 0);
    return SL_CHOICE(b, plain, shared(b, &r->escape, "escape", r->is_python ? PYTHON_ESCAPE : ESCAPE));
}

sl_expr sl_expr_json_string(sl_builder *b, sl_json_rules *r) {
    if (r->string < 0) {
        sl_expr quote = SL_LITERAL(b, "\""), characters = sl_expr_repeat(b, sl_expr_json_character(b, r), 0, -1);
        r->string = sl_builder_rule(b, "string", 6);
        sl_builder_define(b, r->string, SL_SEQUENCE(b, quote, characters, quote));
    }
    return sl_expr_rule(b, r->string);
}

sl_expr sl_expr_json_integer(sl_builder *b, sl_json_rules *r) {
    return shared(b, &r->integer, "integer", INTEGER);
}

sl_expr sl_expr_json_number(sl_builder *b, sl_json_rules *r) {
    return shared(b, &r->number, "number", NUMBER);
}

// How a text writes true, false or null.
static const char *word_of(json_type type, int is_python) {
    if (type == JSON_NULL) return is_python ? "None" : "null";
    return type == JSON_TRUE ? (is_python ? "True" : "true") : is_python ? "False" : "false";
}

static sl_expr word(sl_builder *b, const sl_json_rules *r, json_type type) {
    const char *text = word_of(type, r->is_python);
    return sl_expr_literal(b, text, strlen(text));
}

sl_expr sl_expr_json_boolean(sl_builder *b, const sl_json_rules *r) {
    return SL_CHOICE(b, word(b, r, JSON_TRUE), word(b, r, JSON_FALSE));
}

sl_expr sl_expr_json_null(sl_builder *b, const sl_json_rules *r) {
    return word(b, r, JSON_NULL);
}

sl_expr sl_expr_json_object(sl_builder *b, sl_json_rules *r) {
    if (r->object < 0) {
        r->object = sl_builder_rule(b, "object", 6);
        sl_expr member = SL_SEQUENCE(b, sl_expr_json_string(b, r), sl_expr_json_colon(b), sl_expr_json_value(b, r));
        sl_expr more = sl_expr_repeat(b, SL_SEQUENCE(b, sl_expr_json_comma(b, r), member), 0, -1),
                space = sl_expr_json_space(b, r);
        sl_expr members = sl_expr_repeat(b, SL_SEQUENCE(b, space, member, more), 0, 1);
        sl_builder_define(b, r->object, SL_SEQUENCE(b, SL_LITERAL(b, "{"), members, space, SL_LITERAL(b, "}")));
    }
    return sl_expr_rule(b, r->object);
}

sl_expr sl_expr_json_array(sl_builder *b, sl_json_rules *r, sl_expr item, int min, int max) {
    sl_expr open = SL_LITERAL(b, "["), close = SL_LITERAL(b, "]"), space = sl_expr_json_space(b, r);
    sl_expr more =
        sl_expr_repeat(b, SL_SEQUENCE(b, sl_expr_json_comma(b, r), item), min > 0 ? min - 1 : 0, max < 0 ? -1 : max - 1);
    if (max == 0) return SL_SEQUENCE(b, open, space, close);
    sl_expr items = sl_expr_repeat(b, SL_SEQUENCE(b, space, item, more), min > 0, 1);
    return SL_SEQUENCE(b, open, items, space, close);
}

sl_expr sl_expr_json_value(sl_builder *b, sl_json_rules *r) {
    if (r->value < 0) {
        r->value = sl_builder_rule(b, "value", 5);
        sl_expr array = sl_expr_json_array(b, r, sl_expr_rule(b, r->value), 0, -1);
        sl_builder_define(b, r->value,
                          SL_CHOICE(b, sl_expr_json_object(b, r), array, sl_expr_json_string(b, r), sl_expr_json_number(b, r),
                                    sl_expr_json_boolean(b, r), sl_expr_json_null(b, r)));
    }
    return sl_expr_rule(b, r->value);
}

// ---- strings ----

sl_expr sl_expr_json_class(sl_builder *b, const sl_char_range *ranges, int n) {
    static const char short_of[32] = {['\b'] = 'b', ['\t'] = 't', ['\n'] = 'n', ['\f'] = 'f', ['\r'] = 'r'};
    static const sl_char_range plain[] = {{' ', '!'}, {'#', '['}, {']', SL_MOST_CHAR}};
    sl_expr parts[36];
    size_t n_parts = 0;
    sl_char_set set = {0};
    for (int i = 0; i < n; i++)
        for (size_t k = 0; k < sizeof plain / sizeof *plain; k++) {
            uint32_t lo = ranges[i].lo > plain[k].lo ? ranges[i].lo : plain[k].lo;
            uint32_t hi = ranges[i].hi < plain[k].hi ? ranges[i].hi : plain[k].hi;
            if (lo <= hi) sl_char_set_add(b, &set, lo, hi);
        }
    parts[n_parts++] = sl_expr_set(b, &set, 0, sl_expr_class);
    for (int i = 0; i < n; i++)
        for (uint32_t c = ranges[i].lo ? ranges[i].lo : 1; c <= ranges[i].hi && c <= '\\'; c++) {
            char text[8];
            if (c >= 0x20 && c != '"' && c != '\\') continue;
            int size = c < 0x20 && !short_of[c] ? snprintf(text, sizeof text, "\\u%04x", c)
                                                : snprintf(text, sizeof text, "\\%c", c < 0x20 ? short_of[c] : (char)c);
            parts[n_parts++] = sl_expr_literal(b, text, (size_t)size);
        }
    return sl_expr_choice(b, parts, n_parts);
}

static void push_text(sl_builder *b, sl_ids *parts, const json_t *value) {
    char *text = json_dumps(value, JSON_ENCODE_ANY | JSON_COMPACT);
    if (!text) sl_builder_fail(b, sl_fail(sl_builder_error(b), SL_ERR_MEMORY, "a value of a schema: out of memory"));
    if (text) sl_parts_push(b, parts, sl_expr_literal(b, text, strlen(text)));
    free(text);
}

// The reader of JSON has bounded the depth of the value.
static void push_constant(sl_builder *b, const sl_json_rules *r, sl_ids *parts, const json_t *value) {
    const char *name;
    json_t *v;
    size_t i = 0, n = 0;
    int is_list = json_is_array(value);
    if (json_is_boolean(value) || json_is_null(value)) {
        sl_parts_push(b, parts, word(b, r, json_typeof(value)));
    } else if (!is_list && !json_is_object(value)) {
        push_text(b, parts, value);
    } else {
        sl_parts_push(b, parts, is_list ? SL_LITERAL(b, "[") : SL_LITERAL(b, "{"));
        json_array_foreach(value, i, v) {
            if (i) sl_parts_push(b, parts, SL_LITERAL(b, ","));
            push_constant(b, r, parts, v);
        }
        json_object_foreach((json_t *)value, name, v) {
            json_t *key = json_string(name);
            if (n++) sl_parts_push(b, parts, SL_LITERAL(b, ","));
            push_text(b, parts, key);
            sl_parts_push(b, parts, SL_LITERAL(b, ":"));
            push_constant(b, r, parts, v);
            json_decref(key);
        }
        sl_parts_push(b, parts, is_list ? SL_LITERAL(b, "]") : SL_LITERAL(b, "}"));
    }
}

sl_expr sl_expr_json_constant(sl_builder *b, const sl_json_rules *r, const json_t *value) {
    sl_ids parts = {0};
    push_constant(b, r, &parts, value);
    return sl_parts_sequence(b, &parts);
}

static int by_text(const void *a, const void *b) {
    return strcmp(*(const char *const *)a, *(const char *const *)b);
}

// The rest of a string whose first `at` bytes are those of names[n], which are sorted and different.
static sl_expr other_rest(sl_builder *b, const char *const *names, size_t n, size_t at, sl_expr any_rest, int depth) {
    sl_ids parts = {0};
    sl_char_set known = {0};
    int is_name = n > 0 && !names[0][at];
    sl_char_set_add(b, &known, 0, 0x1f), sl_char_set_add(b, &known, '"', '"'), sl_char_set_add(b, &known, '\\', '\\');
    if (!is_name) sl_parts_push(b, &parts, SL_LITERAL(b, "\""));
    for (size_t from = is_name, to; from < n && depth < SL_GRAMMAR_MOST_NESTING && !sl_builder_failed(b); from = to) {
        uint32_t c = 0;
        size_t size = (size_t)sl_utf8_read(names[from] + at, strlen(names[from] + at), &c);
        for (to = from + 1; to < n && !strncmp(names[to] + at, names[from] + at, size);) to++;
        sl_char_set_add(b, &known, c, c);
        if (c < 0x20 || c == '"' || c == '\\') continue; // such a name has escapes
        sl_expr rest = other_rest(b, names + from, to - from, at + size, any_rest, depth + 1);
        sl_parts_push(b, &parts, SL_SEQUENCE(b, sl_expr_literal(b, names[from] + at, size), rest));
    }
    sl_expr other = sl_expr_set(b, &known, 1, sl_expr_class);
    if (depth < SL_GRAMMAR_MOST_NESTING) sl_parts_push(b, &parts, SL_SEQUENCE(b, other, any_rest));
    return sl_parts_choice(b, &parts);
}

sl_expr sl_expr_json_other_string(sl_builder *b, const char *const *names, size_t n) {
    static const char rest[] = PLAIN "*\"";
    const char **sorted = malloc((n + 1) * sizeof *sorted);
    if (!sorted) return sl_builder_fail(b, sl_fail(sl_builder_error(b), SL_ERR_MEMORY, "names of a schema: out of memory"));
    memcpy(sorted, names, n * sizeof *sorted);
    qsort(sorted, n, sizeof *sorted, by_text);
    int rule = sl_builder_rule(b, "other name", 10);
    sl_builder_define(b, rule, sl_regex_read(b, "other name", rest, sizeof rest - 1, sl_expr_class, 0));
    sl_expr e = SL_SEQUENCE(b, SL_LITERAL(b, "\""), other_rest(b, sorted, n, 0, sl_expr_rule(b, rule), 0));
    free(sorted);
    return e;
}

int sl_grammar_new_json_object(sl_grammar **out, sl_error *err) {
    sl_builder *b;
    sl_json_rules rules = SL_JSON_RULES_NONE;
    *out = NULL;
    int rc = sl_builder_new(&b, err);
    return rc ? rc : sl_builder_finish_with(b, "JSON object", sl_expr_json_object(b, &rules), out);
}

int sl_grammar_new_choice(const json_t *texts, sl_grammar **out, sl_error *err) {
    sl_builder *b;
    sl_ids parts = {0};
    json_t *text;
    size_t i;
    *out = NULL;
    if (!json_is_array(texts) || json_array_size(texts) == 0)
        return sl_fail(err, SL_ERR_FORMAT, "choice: found %s, expected a list of strings",
                       json_is_array(texts) ? "an empty list" : sl_json_type(texts));
    json_array_foreach((json_t *)texts, i, text) {
        if (!json_is_string(text))
            return sl_fail(err, SL_ERR_FORMAT, "choice[%zu]: found %s, expected a string", i, sl_json_type(text));
    }
    int rc = sl_builder_new(&b, err);
    if (rc) return rc;
    json_array_foreach((json_t *)texts, i, text)
        sl_parts_push(b, &parts, sl_expr_literal(b, json_string_value(text), json_string_length(text)));
    return sl_builder_finish_with(b, "choice", sl_parts_choice(b, &parts), out);
}
