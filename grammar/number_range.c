// grammar/number_range.c - the decimal numbers between two limits. A digit that differs from the limit's digit decides, and the
// digits behind it are free.
#include "grammar/grammar_internal.h"
#include "base/number.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define MOST_WHOLE 999999999999999999u
enum { MOST_DIGITS = 16 }; // behind the point, where they are free

// ---- limits ----

int sl_bound_read(const json_t *number, sl_bound *out) {
    char text[SL_NUMBER_TEXT], digits[128], *end;
    int n = 0, point = -1;
    if (json_is_integer(number))
        snprintf(text, sizeof text, "%lld", (long long)json_integer_value(number));
    else
        sl_number_text(json_real_value(number), text);
    *out = (sl_bound){.is_set = 1, .is_negative = text[0] == '-'};
    for (end = text + out->is_negative; (*end >= '0' && *end <= '9') || *end == '.'; end++) {
        if (*end == '.') point = n;
        if (*end != '.') digits[n++] = *end;
    }
    if (point < 0) point = n;
    if (*end == 'e') point += atoi(end + 1);
    if ((*end && *end != 'e') || point > 40 || point < -40) return 0;
    for (; point < 0; point++, n++) memmove(digits + 1, digits, (size_t)n), digits[0] = '0';
    while (n < point) digits[n++] = '0';
    for (int i = 0; i < point; i++) {
        if (out->whole > MOST_WHOLE / 10) return 0;
        out->whole = 10 * out->whole + (uint64_t)(digits[i] - '0');
    }
    while (n > point && digits[n - 1] == '0') n--;
    if (n - point > 40) return 0;
    memcpy(out->fraction, digits + point, (size_t)(n - point));
    if (out->whole == 0 && !out->fraction[0]) out->is_negative = 0;
    return 1;
}

// ---- digits ----

static sl_expr nothing(sl_builder *b) {
    return sl_expr_choice(b, NULL, 0);
}

static sl_expr empty(sl_builder *b) {
    return sl_expr_literal(b, NULL, 0);
}

static sl_expr digit(sl_builder *b, char lo, char hi) { // lo > hi: nothing
    const sl_char_range r = {(uint32_t)lo, (uint32_t)hi};
    return lo > hi ? nothing(b) : sl_expr_class(b, &r, 1);
}

static sl_expr digits(sl_builder *b, size_t min, size_t max) {
    return sl_expr_repeat(b, digit(b, '0', '9'), (int)min, (int)max);
}

static sl_expr zeros(sl_builder *b) {
    return sl_expr_repeat(b, digit(b, '0', '0'), 0, MOST_DIGITS);
}

// ---- whole numbers ----

// Numbers of the digits at `lo` or more, with as many digits; of the digits at `hi` or less.
static sl_expr whole_from(sl_builder *b, const char *lo) {
    if (!*lo) return empty(b);
    size_t n = strlen(lo + 1);
    return SL_CHOICE(b, SL_SEQUENCE(b, digit(b, *lo, *lo), whole_from(b, lo + 1)),
                     SL_SEQUENCE(b, digit(b, *lo + 1, '9'), digits(b, n, n)));
}

static sl_expr whole_to(sl_builder *b, const char *hi) {
    if (!*hi) return empty(b);
    size_t n = strlen(hi + 1);
    return SL_CHOICE(b, SL_SEQUENCE(b, digit(b, *hi, *hi), whole_to(b, hi + 1)),
                     SL_SEQUENCE(b, digit(b, '0', *hi - 1), digits(b, n, n)));
}

static sl_expr same_length(sl_builder *b, const char *lo, const char *hi) {
    if (!*lo) return empty(b);
    if (*lo == *hi) return SL_SEQUENCE(b, digit(b, *lo, *lo), same_length(b, lo + 1, hi + 1));
    size_t n = strlen(lo + 1);
    return SL_CHOICE(b, SL_SEQUENCE(b, digit(b, *lo, *lo), whole_from(b, lo + 1)),
                     SL_SEQUENCE(b, digit(b, *lo + 1, *hi - 1), digits(b, n, n)),
                     SL_SEQUENCE(b, digit(b, *hi, *hi), whole_to(b, hi + 1)));
}

// Whole numbers from lo to hi; lo > hi: nothing.
static sl_expr whole(sl_builder *b, uint64_t lo, uint64_t hi) {
    sl_ids lengths = {0};
    char from[24], to[24];
    for (uint64_t end = 9; lo <= hi; end = 10 * end + 9) { // end: the last number with as many digits
        if (lo > end) continue;
        snprintf(from, sizeof from, "%llu", (unsigned long long)lo);
        snprintf(to, sizeof to, "%llu", (unsigned long long)(hi < end ? hi : end));
        sl_parts_push(b, &lengths, same_length(b, from, to));
        lo = end + 1;
    }
    return sl_parts_choice(b, &lengths);
}

// ---- digits behind the point; a limit without further digits goes on with zeros ----

static sl_expr fraction_from(sl_builder *b, const char *lo, int is_exclusive) {
    sl_expr positive = SL_SEQUENCE(b, zeros(b), digit(b, '1', '9'), digits(b, 0, MOST_DIGITS));
    if (!*lo) return is_exclusive ? positive : digits(b, 0, MOST_DIGITS);
    return SL_CHOICE(b, SL_SEQUENCE(b, digit(b, *lo, *lo), fraction_from(b, lo + 1, is_exclusive)),
                     SL_SEQUENCE(b, digit(b, *lo + 1, '9'), digits(b, 0, MOST_DIGITS)));
}

static sl_expr fraction_to(sl_builder *b, const char *hi, int is_exclusive, int can_end) {
    if (!*hi) return is_exclusive ? nothing(b) : zeros(b);
    return SL_CHOICE(b, can_end ? empty(b) : nothing(b),
                     SL_SEQUENCE(b, digit(b, *hi, *hi), fraction_to(b, hi + 1, is_exclusive, 1)),
                     SL_SEQUENCE(b, digit(b, '0', *hi - 1), digits(b, 0, MOST_DIGITS)));
}

static sl_expr fraction_between(sl_builder *b, const char *lo, const char *hi, int lo_exclusive, int hi_exclusive,
                                int can_end) {
    char x = *lo ? *lo : '0', y = *hi ? *hi : '0';
    const char *lo_next = *lo ? lo + 1 : lo, *hi_next = *hi ? hi + 1 : hi;
    if (!*lo && !*hi) return lo_exclusive || hi_exclusive ? nothing(b) : zeros(b);
    sl_expr end = can_end && !*lo && !lo_exclusive ? empty(b) : nothing(b); // hi has a digit that is not 0
    if (x > y) return nothing(b);
    if (x == y)
        return SL_CHOICE(b, end,
                         SL_SEQUENCE(b, digit(b, x, x), fraction_between(b, lo_next, hi_next, lo_exclusive, hi_exclusive, 1)));
    return SL_CHOICE(b, end, SL_SEQUENCE(b, digit(b, x, x), fraction_from(b, lo_next, lo_exclusive)),
                     SL_SEQUENCE(b, digit(b, x + 1, y - 1), digits(b, 0, MOST_DIGITS)),
                     SL_SEQUENCE(b, digit(b, y, y), fraction_to(b, hi_next, hi_exclusive, 1)));
}

// The digits need at least one behind the point.
static sl_expr behind_point(sl_builder *b, sl_expr some) {
    return SL_SEQUENCE(b, SL_LITERAL(b, "."), some);
}

// ---- magnitudes ----

static sl_expr number_from(sl_builder *b, const sl_bound *lo) {
    sl_expr some =
        lo->fraction[0] || lo->is_exclusive ? fraction_from(b, lo->fraction, lo->is_exclusive) : digits(b, 1, MOST_DIGITS);
    sl_expr none = lo->fraction[0] || lo->is_exclusive ? nothing(b) : empty(b);
    return SL_SEQUENCE(b, whole(b, lo->whole, lo->whole), SL_CHOICE(b, none, behind_point(b, some)));
}

static sl_expr number_to(sl_builder *b, const sl_bound *hi) {
    sl_expr zero = sl_expr_repeat(b, digit(b, '0', '0'), 1, MOST_DIGITS);
    sl_expr some = hi->fraction[0] ? fraction_to(b, hi->fraction, hi->is_exclusive, 0) : zero;
    sl_expr tail = SL_CHOICE(b, empty(b), behind_point(b, some));
    return hi->is_exclusive && !hi->fraction[0] ? nothing(b) : SL_SEQUENCE(b, whole(b, hi->whole, hi->whole), tail);
}

static sl_expr number_between(sl_builder *b, const sl_bound *lo, const sl_bound *hi) { // with the same whole part
    int is_zero = !lo->fraction[0] && !lo->is_exclusive && (hi->fraction[0] || !hi->is_exclusive);
    sl_expr some = !lo->fraction[0] && !hi->fraction[0]
                       ? (is_zero ? sl_expr_repeat(b, digit(b, '0', '0'), 1, MOST_DIGITS) : nothing(b))
                       : fraction_between(b, lo->fraction, hi->fraction, lo->is_exclusive, hi->is_exclusive, 0);
    return SL_SEQUENCE(b, whole(b, lo->whole, lo->whole), SL_CHOICE(b, is_zero ? empty(b) : nothing(b), behind_point(b, some)));
}

static sl_expr magnitude(sl_builder *b, const sl_bound *lo, const sl_bound *hi, int is_integer) {
    uint64_t top = hi->is_set ? hi->whole : MOST_WHOLE;
    if (is_integer) {
        if (hi->is_set && hi->is_exclusive && !hi->fraction[0] && top-- == 0) return nothing(b);
        return whole(b, lo->whole + (lo->fraction[0] || lo->is_exclusive), top);
    }
    if (lo->whole > top) return nothing(b);
    if (hi->is_set && lo->whole == top) return number_between(b, lo, hi);
    sl_expr between = whole(b, lo->whole + 1, hi->is_set ? top - 1 : top);
    sl_expr tail = sl_expr_repeat(b, behind_point(b, digits(b, 1, MOST_DIGITS)), 0, 1);
    return SL_CHOICE(b, number_from(b, lo), SL_SEQUENCE(b, between, tail), hi->is_set ? number_to(b, hi) : nothing(b));
}

sl_expr sl_expr_json_range(sl_builder *b, const sl_bound *lo, const sl_bound *hi, int is_integer) {
    const sl_bound zero = {.is_set = 1}, above_zero = {.is_set = 1, .is_exclusive = 1}, none = {0};
    sl_expr positive = nothing(b), negative = nothing(b);
    if (!hi->is_set || !hi->is_negative) positive = magnitude(b, lo->is_set && !lo->is_negative ? lo : &zero, hi, is_integer);
    if (!lo->is_set || lo->is_negative)
        negative =
            SL_SEQUENCE(b, SL_LITERAL(b, "-"),
                        magnitude(b, hi->is_set && hi->is_negative ? hi : &above_zero, lo->is_set ? lo : &none, is_integer));
    return SL_CHOICE(b, positive, negative);
}
