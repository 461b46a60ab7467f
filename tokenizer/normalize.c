// tokenizer/normalize.c - Unicode normalisation form C (Unicode Standard Annex 15), with the tables of the utf8proc library.
//
// The tables have thousands of entries and grow with each version of Unicode, so Sleigh uses a library. utf8proc is small, and
// the portable build links it statically.
//
// utf8proc decomposes and composes. Between the two steps, this file sorts the marks into canonical order: utf8proc sorts by
// insertion, so a long run of combining marks would take quadratic time.
#include "engine/base/utf8.h"
#include "tokenizer/tokenizer_internal.h"

#include <stdlib.h>
#include <string.h>
#include <utf8proc.h>

enum {
    FIRST_CHANGED = 0xcc, // the first byte of U+0300: a text of characters below U+0300 is in form C
    MOST_DECOMPOSED = 4,  // characters of one canonical decomposition
};
static const utf8proc_option_t form_c = UTF8PROC_STABLE | UTF8PROC_COMPOSE;

typedef struct mark { // a combining mark that moves within its run
    int32_t c;
    int class, place;
} mark;

static int no_memory(sl_error *err) {
    return sl_fail(err, SL_ERR_MEMORY, "normalisation of a text: out of memory");
}

static int class_of(int32_t c) {
    return utf8proc_get_property(c)->combining_class;
}

static int by_class(const void *a, const void *b) {
    const mark *x = a, *y = b;
    return x->class != y->class ? x->class - y->class : x->place - y->place;
}

// Sorts the marks of one run by combining class. Marks of equal class keep their order.
static int sort_run(int32_t *c, size_t n, sl_error *err) {
    mark *marks = malloc(n * sizeof *marks);
    if (!marks) return no_memory(err);
    for (size_t i = 0; i < n; i++) marks[i] = (mark){c[i], class_of(c[i]), (int)i};
    qsort(marks, n, sizeof *marks, by_class);
    for (size_t i = 0; i < n; i++) c[i] = marks[i].c;
    free(marks);
    return 0;
}

static int sort_marks(int32_t *c, size_t n, sl_error *err) {
    int rc = 0;
    for (size_t i = 0, end; !rc && i < n; i = end + 1) {
        int sorted = 1;
        for (end = i; end < n && class_of(c[end]) != 0; end++)
            if (end > i && class_of(c[end - 1]) > class_of(c[end])) sorted = 0;
        if (!sorted) rc = sort_run(c + i, end - i, err);
    }
    return rc;
}

static int append_run(const char *text, size_t n, sl_text *out, sl_error *err) { // valid UTF-8
    size_t n_chars = 0;
    if (n > INT32_MAX / 4)
        return sl_fail(err, SL_ERR_UNSUPPORTED, "a text of %zu bytes: expected at most %d, to normalise it", n, INT32_MAX / 4);
    // ASCII stays as it is; a character of two bytes or more becomes at most four characters.
    int32_t *chars = malloc((2 * n + MOST_DECOMPOSED) * sizeof *chars), c;
    if (!chars) return no_memory(err);
    for (size_t at = 0; at < n;) {
        at += (size_t)utf8proc_iterate((const uint8_t *)text + at, (ssize_t)(n - at), &c);
        ssize_t more = utf8proc_decompose_char(c, chars + n_chars, MOST_DECOMPOSED, form_c | UTF8PROC_DECOMPOSE, NULL);
        SL_CHECK(more >= 0 && more <= MOST_DECOMPOSED);
        n_chars += (size_t)more;
    }
    int rc = sort_marks(chars, n_chars, err);
    if (!rc) {
        ssize_t bytes = utf8proc_reencode(chars, (ssize_t)n_chars, form_c);
        SL_CHECK(bytes >= 0);
        rc = sl_text_append(out, (const char *)chars, (size_t)bytes, err);
    }
    free(chars);
    return rc;
}

int sl_nfc_is(const char *text, size_t n) {
    for (size_t i = 0; i < n; i++)
        if ((unsigned char)text[i] >= FIRST_CHANGED) return 0;
    return 1;
}

int sl_nfc_append(const char *text, size_t n, sl_text *out, sl_error *err) {
    int rc = 0;
    for (size_t at = 0; !rc && at < n;) {
        size_t run = sl_utf8_valid_run(text + at, n - at);
        if (run > 0) rc = append_run(text + at, run, out, err);
        at += run;
        size_t bad = sl_utf8_invalid_run(text + at, n - at);
        if (!rc && bad > 0) rc = sl_text_append(out, text + at, bad, err);
        at += bad;
    }
    return rc;
}
