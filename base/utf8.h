// base/utf8.h - UTF-8 (RFC 3629).
#ifndef SLEIGH_UTF8_H
#define SLEIGH_UTF8_H

#include <stddef.h>

// The length in bytes of the UTF-8 character that begins at s; n > 0 bytes are readable. 0: not valid UTF-8. Overlong forms,
// surrogates and characters above U+10FFFF are not valid.
static inline size_t sl_utf8_length(const unsigned char *s, size_t n) {
    if (s[0] < 0x80) return 1;
    size_t len = s[0] >= 0xf0 ? 4 : s[0] >= 0xe0 ? 3 : 2;
    if (s[0] < 0xc2 || s[0] > 0xf4 || n < len) return 0;
    for (size_t i = 1; i < len; i++)
        if ((s[i] & 0xc0) != 0x80) return 0;
    if ((s[0] == 0xe0 && s[1] < 0xa0) || (s[0] == 0xed && s[1] > 0x9f) || (s[0] == 0xf0 && s[1] < 0x90) ||
        (s[0] == 0xf4 && s[1] > 0x8f))
        return 0;
    return len;
}

// Bytes of the valid characters at the start of a text of n bytes. The text after them is its end or an invalid byte.
static inline size_t sl_utf8_valid_run(const char *text, size_t n) {
    size_t at = 0, len;
    while (at < n && (len = sl_utf8_length((const unsigned char *)text + at, n - at)) > 0) at += len;
    return at;
}

// Bytes at the start of the text with which no valid character begins.
static inline size_t sl_utf8_invalid_run(const char *text, size_t n) {
    size_t at = 0;
    while (at < n && sl_utf8_length((const unsigned char *)text + at, n - at) == 0) at++;
    return at;
}

#endif
