// grammar/text_reader.c - what the readers of GBNF and of regular expressions share.
#include "grammar/grammar_internal.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

enum { MOST_COUNT = 100000 };

int sl_refuse_at(sl_text_reader *r, size_t at, const char *fmt, ...) {
    char text[256], place[64] = "";
    va_list ap;
    size_t line = 1, column = 1;
    if (sl_builder_failed(r->b)) return 0;
    for (size_t i = 0; i < at && i < r->n; i++) {
        column = r->text[i] == '\n' && r->has_lines ? 1 : column + 1;
        line += r->text[i] == '\n';
    }
    if (r->has_lines) snprintf(place, sizeof place, "line %zu, ", line);
    va_start(ap, fmt);
    vsnprintf(text, sizeof text, fmt, ap);
    va_end(ap);
    return sl_builder_fail(
        r->b, sl_fail(sl_builder_error(r->b), SL_ERR_FORMAT, "%s: %scolumn %zu: %s", r->what, place, column, text));
}

int sl_is_done(const sl_text_reader *r) {
    return sl_builder_failed(r->b) || r->at >= r->n;
}

int sl_has(const sl_text_reader *r, const char *token) {
    size_t n = strlen(token);
    return r->at <= r->n && r->n - r->at >= n && !memcmp(r->text + r->at, token, n);
}

int sl_take(sl_text_reader *r, const char *token) {
    int is_there = sl_has(r, token);
    if (is_there) r->at += strlen(token);
    return is_there;
}

uint32_t sl_take_char(sl_text_reader *r) {
    uint32_t c = 0;
    int n = r->at < r->n ? sl_utf8_read(r->text + r->at, r->n - r->at, &c) : 0;
    if (n == 0) SL_REFUSE(r, r->at < r->n ? "a byte that is not UTF-8" : "the text ends, expected a character");
    r->at += (size_t)n;
    return c;
}

uint32_t sl_take_hex(sl_text_reader *r, int n_digits) {
    uint32_t c = 0;
    for (int i = 0; i < n_digits; i++, r->at++) {
        int x = r->at < r->n ? (unsigned char)r->text[r->at] : 0, low = x | 32;
        int digit = x >= '0' && x <= '9' ? x - '0' : low >= 'a' && low <= 'f' ? low - 'a' + 10 : -1;
        if (digit < 0) return (uint32_t)SL_REFUSE(r, "expected %d hexadecimal digits", n_digits);
        c = c << 4 | (uint32_t)digit;
    }
    return c;
}

void sl_check_char(sl_text_reader *r, size_t at, uint32_t c) {
    if (c > SL_MOST_CHAR || (c >= 0xd800 && c <= 0xdfff))
        sl_refuse_at(r, at, "expected a character, found a surrogate or a number too large");
}

static int take_number(sl_text_reader *r) {
    int n = 0;
    if (r->at >= r->n || r->text[r->at] < '0' || r->text[r->at] > '9') SL_REFUSE(r, "expected a number");
    for (; r->at < r->n && r->text[r->at] >= '0' && r->text[r->at] <= '9'; r->at++)
        if ((n = 10 * n + (r->text[r->at] - '0')) > MOST_COUNT) return SL_REFUSE(r, "a number above %d", MOST_COUNT);
    return n;
}

static void skip_blanks(sl_text_reader *r) {
    while (r->has_lines && (sl_take(r, " ") || sl_take(r, "\t"))) {
    }
}

static void take_count(sl_text_reader *r, int *min, int *max) { // behind {
    skip_blanks(r);
    *min = *max = take_number(r);
    skip_blanks(r);
    if (sl_take(r, ",")) {
        skip_blanks(r);
        *max = sl_has(r, "}") ? -1 : take_number(r);
        skip_blanks(r);
    }
    if (!sl_take(r, "}")) SL_REFUSE(r, "expected '}'");
    if (*max >= 0 && *max < *min) SL_REFUSE(r, "{%d,%d}: expected a second number that is not below the first", *min, *max);
}

int sl_take_repetition(sl_text_reader *r, int *min, int *max) {
    int digit = r->at + 1 < r->n ? r->text[r->at + 1] : 0;
    *min = sl_has(r, "+");
    *max = sl_has(r, "?") ? 1 : -1;
    if (sl_take(r, "*") || sl_take(r, "+") || sl_take(r, "?")) return 1;
    if (!sl_has(r, "{") || !(r->has_lines || (digit >= '0' && digit <= '9'))) return 0;
    r->at++;
    take_count(r, min, max);
    return 1;
}

sl_expr sl_read_choice(sl_text_reader *r, sl_read_fn sequence) {
    sl_ids parts = {0};
    do sl_parts_push(r->b, &parts, sequence(r));
    while (!sl_builder_failed(r->b) && sl_take(r, "|"));
    return sl_parts_choice(r->b, &parts);
}

sl_expr sl_read_brackets(sl_text_reader *r, sl_read_fn sequence) {
    if (++r->depth > SL_GRAMMAR_MOST_NESTING) return SL_REFUSE(r, "more than %d nested brackets", SL_GRAMMAR_MOST_NESTING);
    sl_expr e = sl_read_choice(r, sequence);
    if (!sl_take(r, ")")) SL_REFUSE(r, "expected ')'");
    r->depth--;
    return e;
}
