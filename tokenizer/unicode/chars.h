// tokenizer/unicode/chars.h - reads the characters of a text and asks for their properties.
#ifndef SLEIGH_CHARS_H
#define SLEIGH_CHARS_H

#include "base/utf8.h"
#include "tokenizer/unicode/unicode.h"

#include <stdint.h>

// The character at s; n > 0 bytes are readable. *len: its bytes. -1: not UTF-8, one byte
static inline int32_t sl_char_at(const char *s, size_t n, size_t *len) {
    const unsigned char *u = (const unsigned char *)s;
    if (u[0] < 0x80) return *len = 1, u[0];
    *len = sl_utf8_length(u, n);
    if (*len == 0) return *len = 1, -1;
    int32_t c = u[0] & (0xff >> (*len + 1));
    for (size_t i = 1; i < *len; i++) c = c << 6 | (u[i] & 63);
    return c;
}

static inline int32_t sl_char_before(const char *s, size_t at, size_t *len) { // the character that ends at s + at; at > 0
    size_t from = at - 1, found;
    while (from > 0 && at - from < 4 && ((unsigned char)s[from] & 0xc0) == 0x80) from--;
    int32_t c = sl_char_at(s + from, at - from, &found);
    if (found == at - from) return *len = found, c;
    return *len = 1, -1;
}

static inline int sl_char_is(sl_unicode_property property, int32_t c) {
    return c >= 0 && sl_unicode_is(property, (uint32_t)c);
}

#endif
