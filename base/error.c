// base/error.c - see error.h.
#include "base/error.h"
#include "base/number.h"
#include "base/utf8.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

// ---- messages: they quote files and flags, which may contain any bytes ----

// The length in bytes of the UTF-8 character at s. 0: s is not valid UTF-8, or a control character (U+0000 to U+001F, U+007F to
// U+009F). s ends with a NUL.
static size_t printable(const unsigned char *s) {
    size_t n = sl_utf8_length(s, strnlen((const char *)s, 4));
    int is_control = (n == 1 && (s[0] < 0x20 || s[0] == 0x7f)) || (n == 2 && s[0] == 0xc2 && s[1] < 0xa0);
    return is_control ? 0 : n;
}

// ---- names of options ----

enum { MARK_BEGIN = 2, MARK_END = 3 }; // bytes around the name of an option, until copy_message removes them

static const char name_letters[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz_-";

// Copies a format, and replaces "{name}" and "{%s}" by marks.
static void mark_names(char *to, size_t size, const char *fmt) {
    size_t n = 0;
    for (const char *s = fmt; *s && n + 1 < size; s++) {
        size_t name = *s == '{' ? (strncmp(s + 1, "%s", 2) ? strspn(s + 1, name_letters) : 2) : 0;
        to[n++] = *s;
        if (!name || s[name + 1] != '}' || n + name + 1 >= size) continue;
        to[n - 1] = MARK_BEGIN;
        memcpy(to + n, s + 1, name);
        n += name;
        to[n++] = MARK_END;
        s += name + 1;
    }
    to[n] = 0;
}

// The length of the marked name at s. 0: there is none
static size_t marked_name(const unsigned char *s) {
    size_t n = *s == MARK_BEGIN ? strspn((const char *)s + 1, name_letters) : 0;
    return n && s[n + 1] == MARK_END ? n : 0;
}

// Copies a text as one line that a terminal can print. Other bytes become an escape: the byte 27 becomes \x1b. Cuts the text
// when it does not fit. Removes the marks of option names, and writes their places.
static void copy_message(sl_error *e, const char *text) {
    const unsigned char *s = (const unsigned char *)text;
    char escape[8], *to = e->message;
    size_t size = sizeof e->message;
    e->n_options = 0;
    for (size_t n; *s; s += n) {
        size_t option = marked_name(s);
        if (option && option < size) {
            if (e->n_options < SL_ERROR_OPTIONS) {
                e->options[e->n_options].at = (uint16_t)(to - e->message);
                e->options[e->n_options++].n = (uint16_t)option;
            }
            memcpy(to, s + 1, option);
            to += option, size -= option, n = option + 2;
            continue;
        }
        n = printable(s);
        size_t m = n ? n : (size_t)snprintf(escape, sizeof escape, "\\x%02x", *s);
        if (m >= size) break;
        memcpy(to, n ? (const char *)s : escape, m);
        to += m, size -= m;
        if (!n) n = 1;
    }
    *to = 0;
}

int sl_fail(sl_error *e, sl_err code, const char *fmt, ...) {
    if (e) {
        char text[sizeof e->message]; // the arguments may point into *e, so write to another buffer first
        char format[sizeof text];
        va_list ap;
        e->code = code;
        mark_names(format, sizeof format, fmt);
        va_start(ap, fmt);
        int n = sl_vprint(text, sizeof text, format, ap);
        va_end(ap);
        if (n >= (int)sizeof text) { // too long: cut it, but not within a character
            n = sizeof text - 1;
            while (n > (int)sizeof text - 5 && (text[n - 1] & 0xc0) == 0x80) n--;
            if (text[n - 1] & 0x80) text[n - 1] = 0;
        }
        copy_message(e, text);
    }
    return code;
}

void sl_check_failed(const char *file, int line, const char *what) {
    fprintf(stderr, "sleigh: internal error: %s:%d: %s does not hold; please report this\n", file, line, what);
    abort();
}
