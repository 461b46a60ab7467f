// tokenizer/finder.c - finds a string or a regular expression in a text: the pattern of a step of tokenizer.json.
#define _GNU_SOURCE
#include "tokenizer/tokenizer_internal.h"

#include <stdlib.h>
#include <string.h>

int sl_finder_split(const sl_finder *f, const char *text, size_t n, sl_piece_fn fn, void *ctx, sl_error *err) {
    if (f->regex) return sl_pattern_split(f->regex, text, n, fn, ctx, err);
    int rc = 0;
    size_t at = 0;
    while (!rc && at < n) {
        const char *found = memmem(text + at, n - at, f->text, f->n);
        size_t to = found ? (size_t)(found - text) : n;
        if (to > at) rc = fn(ctx, text + at, to - at, 0, err);
        if (!rc && found) rc = fn(ctx, found, f->n, 1, err);
        at = found ? to + f->n : n;
    }
    return rc;
}

void sl_finder_free(sl_finder *f) {
    free(f->text);
    sl_pattern_free(f->regex);
    *f = (sl_finder){0};
}
