// tokenizer/unicode/normalize.c - Unicode normalisation form C (Unicode Standard Annex 15), with Sleigh's own tables of Unicode
// 9: the version that the Python package tokenizers has. In this version, a character that is newer is a letter that nothing
// changes.
//
// A character is decomposed as far as possible, the marks after it are sorted, and then characters are joined.
#include "base/utf8.h"
#include "tokenizer/tokenizer_internal.h"
#include "tokenizer/unicode/unicode.h"

#include <stdlib.h>
#include <string.h>

enum {
    FIRST_CHANGED = 0xcc, // the first byte of U+0300: a text of characters below U+0300 is in form C
    MOST_DECOMPOSED = 4,  // characters of one canonical decomposition
    CLASS_BITS = 8,
    // Hangul: a syllable is FIRST_SYLLABLE + (l * N_VOWELS + v) * N_TAILS + t; t 0: no tail
    FIRST_SYLLABLE = 0xac00,
    FIRST_LEAD = 0x1100,
    FIRST_VOWEL = 0x1161,
    NO_TAIL = 0x11a7,
    N_LEADS = 19,
    N_VOWELS = 21,
    N_TAILS = 28,
    N_SYLLABLES = N_LEADS * N_VOWELS * N_TAILS,
};

typedef struct mark { // a combining mark that moves within its run
    uint32_t c;
    int class, place;
} mark;

static int no_memory(sl_error *err) {
    return sl_fail(err, SL_ERR_MEMORY, "normalisation of a text: out of memory");
}

// ---- tables ----

static int class_of(uint32_t c) {
    if (c < sl_class_runs[0] >> CLASS_BITS) return 0;
    size_t from = 0, to = sl_class_runs_n; // runs before `from` begin at c or before
    while (from < to) {
        size_t middle = (from + to) / 2;
        if (sl_class_runs[middle] >> CLASS_BITS <= c)
            from = middle + 1;
        else
            to = middle;
    }
    return (int)(sl_class_runs[from - 1] & ((1 << CLASS_BITS) - 1));
}

static int by_character(const void *c, const void *entry) {
    uint32_t x = *(const uint32_t *)c, y = ((const sl_decomposition *)entry)->c;
    return (x > y) - (x < y);
}

static int by_parts(const void *parts, const void *place) {
    const uint32_t *x = parts;
    const sl_decomposition *d = &sl_decompositions[*(const uint16_t *)place];
    return x[0] != d->first ? (x[0] > d->first) - (x[0] < d->first) : (x[1] > d->second) - (x[1] < d->second);
}

// Writes the whole canonical decomposition of a character. Returns its length, at most MOST_DECOMPOSED.
static size_t decompose(uint32_t c, uint32_t *out) {
    if (c >= FIRST_SYLLABLE && c < FIRST_SYLLABLE + N_SYLLABLES) {
        uint32_t i = c - FIRST_SYLLABLE, tail = i % N_TAILS;
        out[0] = FIRST_LEAD + i / (N_VOWELS * N_TAILS);
        out[1] = FIRST_VOWEL + i % (N_VOWELS * N_TAILS) / N_TAILS;
        if (tail) out[2] = NO_TAIL + tail;
        return tail ? 3 : 2;
    }
    if (c < sl_decompositions[0].c) return *out = c, 1;
    const sl_decomposition *d = bsearch(&c, sl_decompositions, sl_decompositions_n, sizeof *sl_decompositions, by_character);
    if (!d) return *out = c, 1;
    size_t n = decompose(d->first, out); // only the first character can have a decomposition
    if (d->second) out[n++] = d->second;
    return n;
}

static uint32_t compose(uint32_t a, uint32_t b) { // 0: the two do not join
    if (a >= FIRST_LEAD && a < FIRST_LEAD + N_LEADS && b >= FIRST_VOWEL && b < FIRST_VOWEL + N_VOWELS)
        return FIRST_SYLLABLE + ((a - FIRST_LEAD) * N_VOWELS + (b - FIRST_VOWEL)) * N_TAILS;
    if (a >= FIRST_SYLLABLE && a < FIRST_SYLLABLE + N_SYLLABLES && (a - FIRST_SYLLABLE) % N_TAILS == 0 && b > NO_TAIL &&
        b < NO_TAIL + N_TAILS)
        return a + (b - NO_TAIL);
    uint32_t parts[2] = {a, b};
    const uint16_t *place = bsearch(parts, sl_compositions, sl_compositions_n, sizeof *sl_compositions, by_parts);
    return place ? sl_decompositions[*place].c : 0;
}

// ---- the steps of form C ----

static int by_class(const void *a, const void *b) {
    const mark *x = a, *y = b;
    return x->class != y->class ? x->class - y->class : x->place - y->place;
}

// Sorts the marks of one run by combining class. Marks of equal class keep their order.
static int sort_run(uint32_t *c, size_t n, sl_error *err) {
    mark *marks = malloc(n * sizeof *marks);
    if (!marks) return no_memory(err);
    for (size_t i = 0; i < n; i++) marks[i] = (mark){c[i], class_of(c[i]), (int)i};
    qsort(marks, n, sizeof *marks, by_class);
    for (size_t i = 0; i < n; i++) c[i] = marks[i].c;
    free(marks);
    return 0;
}

static int sort_marks(uint32_t *c, size_t n, sl_error *err) {
    int rc = 0;
    for (size_t i = 0, end; !rc && i < n; i = end + 1) {
        int sorted = 1, before = 0, now;
        for (end = i; end < n && (now = class_of(c[end])) != 0; end++) {
            if (before > now) sorted = 0;
            before = now;
        }
        if (!sorted) rc = sort_run(c + i, end - i, err);
    }
    return rc;
}

// Joins a character with the last character of class 0, unless a character between them has the same class or a higher one.
// Returns the new length.
static size_t join(uint32_t *c, size_t n) {
    size_t k = 0, base = 0;
    int has_base = 0, before = 0;
    for (size_t i = 0; i < n; i++) {
        int class = class_of(c[i]), next = has_base && k == base + 1;
        uint32_t joined = has_base && (next || before < class) ? compose(c[base], c[i]) : 0;
        if (joined) {
            c[base] = joined;
            continue;
        }
        if (class == 0) base = k, has_base = 1;
        before = class;
        c[k++] = c[i];
    }
    return k;
}

// ---- UTF-8 ----

static uint32_t read_char(const char *text, size_t *at) { // valid UTF-8
    const unsigned char *s = (const unsigned char *)text + *at;
    size_t len = s[0] < 0x80 ? 1 : s[0] < 0xe0 ? 2 : s[0] < 0xf0 ? 3 : 4;
    uint32_t c = len == 1 ? s[0] : s[0] & (0xff >> (len + 1));
    for (size_t i = 1; i < len; i++) c = c << 6 | (s[i] & 0x3f);
    *at += len;
    return c;
}

static int append_char(uint32_t c, sl_text *out, sl_error *err) {
    char s[4];
    size_t n = c < 0x80 ? 1 : c < 0x800 ? 2 : c < 0x10000 ? 3 : 4;
    for (size_t i = n; i-- > 1; c >>= 6) s[i] = (char)(0x80 | (c & 0x3f));
    s[0] = (char)(n == 1 ? c : (0xf00u >> n) | c); // the low byte: 0xc0, 0xe0 or 0xf0 and the first bits
    return sl_text_append(out, s, n, err);
}

static int append_run(const char *text, size_t n, sl_text *out, sl_error *err) { // valid UTF-8
    size_t n_chars = 0;
    if (n > INT32_MAX / 4)
        return sl_fail(err, SL_ERR_UNSUPPORTED, "a text of %zu bytes: expected at most %d, to normalise it", n, INT32_MAX / 4);
    // ASCII stays as it is; a character of two bytes or more becomes at most four characters.
    uint32_t *chars = malloc((2 * n + MOST_DECOMPOSED) * sizeof *chars);
    if (!chars) return no_memory(err);
    for (size_t at = 0; at < n;) n_chars += decompose(read_char(text, &at), chars + n_chars);
    int rc = sort_marks(chars, n_chars, err);
    if (!rc) n_chars = join(chars, n_chars);
    for (size_t i = 0; !rc && i < n_chars; i++) rc = append_char(chars[i], out, err);
    free(chars);
    return rc;
}

int sl_nfc_is(const char *text, size_t n) {
    for (size_t at = 0; at < n;) {
        const unsigned char *s = (const unsigned char *)text + at;
        if (*s < FIRST_CHANGED || sl_utf8_length(s, n - at) == 0)
            at++;
        else if (sl_code_set_has(sl_nfc_changed, read_char(text, &at)))
            return 0;
    }
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
