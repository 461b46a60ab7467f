// grammar/utf8_ranges.c - ranges of characters, as ranges of bytes too.
#include "grammar/grammar_internal.h"
#include "base/utf8.h"

#include <stdlib.h>

static int by_lo(const void *a, const void *b) {
    const sl_char_range *x = a, *y = b;
    return (x->lo > y->lo) - (x->lo < y->lo);
}

// Appends a range behind out[n]; joins it with the last one if no character lies between them.
static int append(sl_char_range *out, int n, uint32_t lo, uint32_t hi) {
    if (lo > hi) return n;
    if (n > 0 && lo <= out[n - 1].hi + 1) {
        if (hi > out[n - 1].hi) out[n - 1].hi = hi;
        return n;
    }
    out[n] = (sl_char_range){lo, hi};
    return n + 1;
}

int sl_ranges_normalise(sl_char_range *ranges, int n) {
    int n_out = 0;
    qsort(ranges, (size_t)n, sizeof *ranges, by_lo);
    for (int i = 0; i < n; i++) n_out = append(ranges, n_out, ranges[i].lo, ranges[i].hi);
    n = n_out;
    for (int i = 0; i < n; i++) { // at most one joined range has characters on both sides of the surrogates
        sl_char_range *r = &ranges[i];
        if (r->hi > SL_MOST_CHAR) r->hi = SL_MOST_CHAR;
        if (r->lo < 0xd800 && r->hi > 0xdfff) {
            for (int k = n; k > i + 1; k--) ranges[k] = ranges[k - 1];
            ranges[i + 1] = (sl_char_range){0xe000, r->hi};
            r->hi = 0xd7ff;
            n++;
        }
        if (r->lo < 0xd800 && r->hi >= 0xd800) r->hi = 0xd7ff;
        if (r->lo >= 0xd800 && r->lo <= 0xdfff) r->lo = 0xe000;
    }
    n_out = 0;
    for (int i = 0; i < n; i++)
        if (ranges[i].lo <= ranges[i].hi && ranges[i].hi <= SL_MOST_CHAR) ranges[n_out++] = ranges[i];
    return n_out;
}

int sl_ranges_invert(const sl_char_range *ranges, int n, sl_char_range *out) {
    uint32_t lo = 0;
    int n_out = 0;
    for (int i = 0; i < n; i++) {
        if (ranges[i].lo > lo) out[n_out++] = (sl_char_range){lo, ranges[i].lo - 1};
        lo = ranges[i].hi + 1;
    }
    if (lo <= SL_MOST_CHAR) out[n_out++] = (sl_char_range){lo, SL_MOST_CHAR};
    return n_out;
}

int sl_utf8_write(uint32_t c, char out[4]) {
    int n = c < 0x80 ? 1 : c < 0x800 ? 2 : c < 0x10000 ? 3 : 4;
    static const unsigned char lead[] = {0, 0, 0xc0, 0xe0, 0xf0};
    for (int i = n - 1; i > 0; i--, c >>= 6) out[i] = (char)(0x80 | (c & 0x3f));
    out[0] = (char)(lead[n] | c);
    return n;
}

int sl_utf8_read(const char *s, size_t n, uint32_t *c) {
    int len = (int)sl_utf8_length((const unsigned char *)s, n);
    if (len == 0) return 0;
    *c = (unsigned char)s[0] & (len == 1 ? 0x7fu : 0xffu >> (len + 1));
    for (int i = 1; i < len; i++) *c = *c << 6 | ((unsigned char)s[i] & 0x3fu);
    return len;
}

// All characters of the range have the same number of bytes.
static void split(uint32_t lo, uint32_t hi, int n, sl_byte_ranges_fn fn, void *ctx) {
    for (int i = 1; i < n; i++) {
        uint32_t low = (1u << 6 * i) - 1; // the bits of the last i bytes
        if ((lo & ~low) == (hi & ~low)) continue;
        if (lo & low) {
            split(lo, lo | low, n, fn, ctx);
            split((lo | low) + 1, hi, n, fn, ctx);
            return;
        }
        if ((hi & low) != low) {
            split(lo, (hi & ~low) - 1, n, fn, ctx);
            split(hi & ~low, hi, n, fn, ctx);
            return;
        }
    }
    sl_byte_ranges r = {.n = n};
    sl_utf8_write(lo, (char *)r.lo);
    sl_utf8_write(hi, (char *)r.hi);
    fn(ctx, &r);
}

void sl_utf8_ranges(sl_char_range range, sl_byte_ranges_fn fn, void *ctx) {
    static const uint32_t ends[] = {0x7f, 0x7ff, 0xffff, SL_MOST_CHAR};
    for (int n = 1; n <= 4; n++) {
        uint32_t lo = n > 1 && range.lo <= ends[n - 2] ? ends[n - 2] + 1 : range.lo;
        uint32_t hi = range.hi < ends[n - 1] ? range.hi : ends[n - 1];
        if (lo <= hi) split(lo, hi, n, fn, ctx);
    }
}
