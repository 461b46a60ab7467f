// tokenizer/pretokenize.c - splits text into pieces by a model's pre-tokenizer pattern, with PCRE2 and its JIT.
//
// PCRE2 never sees a character. pattern_syntax.c gives the sets of code points that the pattern tests. Code points that are in
// the same sets get the same symbol, a byte; a pattern has few symbols. The text becomes a string of symbols, and PCRE2 matches
// the pattern on symbols. So the pieces do not depend on PCRE2's version of Unicode, and a class is one look-up in a bitmap.
#define PCRE2_CODE_UNIT_WIDTH 8
#include "base/utf8.h"
#include "tokenizer/pattern_syntax.h"
#include "tokenizer/tokenizer_internal.h"

#include <pcre2.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

const char sl_pattern_llama3[] =
    "(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|\\p{N}{1,3}| ?[^\\s\\p{L}\\p{N}]+[\\r\\n]*|"
    "\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+";
const char sl_pattern_gpt2[] = "'s|'t|'re|'ve|'m|'ll|'d| ?\\p{L}+| ?\\p{N}+| ?[^\\s\\p{L}\\p{N}]+|\\s+(?!\\S)|\\s+";

enum {
    MOST_STACK = 512 << 20,
    SHORT = 1024,   // symbols of a short text lie on the stack, and PCRE2's default JIT stack is enough for them
    BLOCK_BITS = 8, // code points of a block of the table of symbols
    BLOCK = 1 << BLOCK_BITS,
    N_BLOCKS = SL_CODE_POINTS / BLOCK,
    MOST_SYMBOLS = 256,
};

struct sl_pattern {
    pcre2_code *code;
    int has_jit;
    uint16_t block_of[N_BLOCKS]; // code points 256 i to 256 i + 255 have the symbols of blocks[block_of[i]]
    uint8_t (*blocks)[BLOCK];
};

// ---- symbols ----

typedef struct symbols {
    uint8_t *of; // [SL_CODE_POINTS]
    uint8_t *in; // [MOST_SYMBOLS + 1][n_sets]: 1 if the symbol's code points are in the set
    int n;
} symbols;

static int by_value(const void *a, const void *b) {
    uint32_t x = *(const uint32_t *)a, y = *(const uint32_t *)b;
    return (x > y) - (x < y);
}

// The code points at which a range of some set begins, or ends one before. *n: at most 2 for each range, and 0.
static uint32_t *find_bounds(const sl_syntax *s, size_t *n) {
    size_t most = 1, k = 0;
    for (int i = 0; i < s->n_sets; i++) most += 2 * s->sets[i].n;
    uint32_t *bounds = malloc(most * sizeof *bounds);
    if (!bounds) return NULL;
    bounds[k++] = 0;
    for (int i = 0; i < s->n_sets; i++)
        for (size_t j = 0; j < s->sets[i].n; j++) {
            bounds[k++] = s->sets[i].ranges[j].first;
            bounds[k++] = s->sets[i].ranges[j].last + 1;
        }
    qsort(bounds, k, sizeof *bounds, by_value);
    *n = 0;
    for (size_t i = 0; i < k; i++)
        if ((*n == 0 || bounds[i] != bounds[*n - 1]) && bounds[i] < SL_CODE_POINTS) bounds[(*n)++] = bounds[i];
    return bounds;
}

// Gives each interval between two bounds its symbol. at[n_sets]: zeros; then the first range of each set that ends at the
// interval or later. Returns -1 if there are too many symbols.
static int number(const sl_syntax *s, const uint32_t *bounds, size_t n_bounds, size_t *at, symbols *out) {
    size_t n_sets = (size_t)s->n_sets;
    for (size_t i = 0; i < n_bounds; i++) {
        uint32_t from = bounds[i], to = i + 1 < n_bounds ? bounds[i + 1] : SL_CODE_POINTS;
        uint8_t *row = out->in + (size_t)out->n * n_sets;
        for (size_t j = 0; j < n_sets; j++) {
            const sl_points *set = &s->sets[j];
            while (at[j] < set->n && set->ranges[at[j]].last < from) at[j]++;
            row[j] = at[j] < set->n && set->ranges[at[j]].first <= from;
        }
        int symbol = 0;
        while (symbol < out->n && memcmp(out->in + (size_t)symbol * n_sets, row, n_sets) != 0) symbol++;
        if (symbol == MOST_SYMBOLS) return -1;
        out->n += symbol == out->n;
        memset(out->of + from, symbol, to - from);
    }
    return 0;
}

static int make_blocks(const uint8_t *of, sl_pattern *p) {
    size_t n = 0;
    for (size_t i = 0; i < N_BLOCKS; i++) {
        const uint8_t *block = of + i * BLOCK;
        size_t at = i > 0 && !memcmp(p->blocks[p->block_of[i - 1]], block, BLOCK) ? p->block_of[i - 1] : 0;
        while (at < n && memcmp(p->blocks[at], block, BLOCK) != 0) at++;
        if (at == n && n % BLOCK == 0) { // full
            void *more = realloc(p->blocks, (n + BLOCK) * sizeof *p->blocks);
            if (!more) return -1;
            p->blocks = more;
        }
        if (at == n) memcpy(p->blocks[n++], block, BLOCK);
        p->block_of[i] = (uint16_t)at;
    }
    return 0;
}

// Writes a set as a class of symbols.
static int put_class(const symbols *symbols, int n_sets, int set, sl_text *out, sl_error *err) {
    char text[32];
    int n = 0, rc = 0;
    for (int i = 0; i < symbols->n; i++) n += symbols->in[i * n_sets + set];
    if (n == 0) return sl_text_append(out, "(?!)", 4, err);
    rc = n > 1 ? sl_text_append(out, "[", 1, err) : 0;
    for (int i = 0; !rc && i < symbols->n; i++) {
        if (!symbols->in[i * n_sets + set]) continue;
        snprintf(text, sizeof text, "\\x%02x", (unsigned)i);
        rc = sl_text_append(out, text, strlen(text), err);
    }
    return rc || n == 1 ? rc : sl_text_append(out, "]", 1, err);
}

static int put_classes(const sl_syntax *s, const symbols *symbols, sl_text *out, sl_error *err) {
    const unsigned char *text = (const unsigned char *)s->text.data;
    int rc = 0;
    for (size_t i = 0; !rc && i < s->text.n; i++) {
        if (text[i] < SL_SYNTAX_SET) {
            rc = sl_text_append(out, s->text.data + i, 1, err);
        } else {
            int set = (text[i] & (SL_SYNTAX_SET - 1)) << SL_SYNTAX_BITS | (text[i + 1] & (SL_SYNTAX_SET - 1));
            rc = put_class(symbols, s->n_sets, set, out, err);
            i++;
        }
    }
    return rc;
}

// ---- compiling ----

static int refuse(const char *file, const char *regex, const char *why, size_t at, sl_error *err) {
    return sl_fail(err, SL_ERR_UNSUPPORTED, "%s: pre_tokenizer pattern: %s, at \"%.12s\" (byte %zu) of %.400s", file, why,
                   regex + at, at, regex);
}

static int compile(const char *file, const char *regex, const sl_text *on_symbols, sl_pattern *p, sl_error *err) {
    int code;
    PCRE2_SIZE at;
    PCRE2_UCHAR why[160];
    // Without this flag, PCRE2 10.42 makes the first x of x?(?:y)?+x possessive, and the pattern does not match "x".
    p->code = pcre2_compile((PCRE2_SPTR)on_symbols->data, on_symbols->n, PCRE2_NO_AUTO_POSSESS, &code, &at, NULL);
    if (p->code) {
        p->has_jit = !pcre2_jit_compile(p->code, PCRE2_JIT_COMPLETE); // without JIT the results are the same, but slower
        return 0;
    }
    pcre2_get_error_message(code, why, sizeof why);
    return sl_fail(err, SL_ERR_UNSUPPORTED, "%s: pre_tokenizer pattern: %s, in %.400s", file, (char *)why, regex);
}

static int compile_syntax(const char *file, const char *regex, const sl_syntax *s, sl_pattern *p, sl_error *err) {
    size_t n_bounds = 0;
    uint32_t *bounds = find_bounds(s, &n_bounds);
    size_t *at = calloc((size_t)s->n_sets + 1, sizeof *at);
    symbols symbols = {malloc(SL_CODE_POINTS), malloc((MOST_SYMBOLS + 1) * (size_t)(s->n_sets + 1)), 0};
    sl_text on_symbols = {0};
    int rc = 0;
    if (!bounds || !at || !symbols.of || !symbols.in)
        rc = sl_fail(err, SL_ERR_MEMORY, "%s: out of memory", file);
    else if (number(s, bounds, n_bounds, at, &symbols))
        rc = refuse(file, regex, "too many kinds of characters", 0, err);
    else if (make_blocks(symbols.of, p))
        rc = sl_fail(err, SL_ERR_MEMORY, "%s: out of memory", file);
    if (!rc) rc = put_classes(s, &symbols, &on_symbols, err);
    if (!rc) rc = compile(file, regex, &on_symbols, p, err);
    free(bounds), free(at), free(symbols.of), free(symbols.in);
    sl_text_free(&on_symbols);
    return rc;
}

int sl_pattern_new(const char *file, const char *regex, sl_pattern **out, sl_error *err) {
    sl_syntax syntax = {0};
    const char *why = NULL;
    size_t at = 0;
    sl_pattern *p = calloc(1, sizeof *p);
    int rc = p ? sl_syntax_read(regex, &syntax, &why, &at, err) : sl_fail(err, SL_ERR_MEMORY, "%s: out of memory", file);
    if (why) rc = refuse(file, regex, why, at, err);
    if (!rc) rc = compile_syntax(file, regex, &syntax, p, err);
    sl_syntax_free(&syntax);
    if (rc) {
        sl_pattern_free(p);
        return rc;
    }
    *out = p;
    return 0;
}

void sl_pattern_free(sl_pattern *p) {
    if (!p) return;
    pcre2_code_free(p->code);
    free(p->blocks);
    free(p);
}

// ---- splitting ----

typedef struct matcher { // the buffers of one call
    pcre2_match_data *data;
    pcre2_match_context *limits; // NULL: PCRE2's own
    pcre2_jit_stack *stack;
    uint8_t *symbols; // [n]: short_text, or allocated
    uint8_t short_text[SHORT];
} matcher;

static void end_matcher(matcher *m) {
    pcre2_match_data_free(m->data);
    pcre2_match_context_free(m->limits);
    pcre2_jit_stack_free(m->stack);
    if (m->symbols != m->short_text) free(m->symbols);
}

// PCRE2's default JIT stack of 32 KiB fails on a long run if the pattern keeps a place for each character. This stack grows
// with the text; the memory is reserved, and committed only when it is used. The match limit stops patterns that take
// exponential time; it grows with the text too.
static int begin_matcher(matcher *m, size_t n, sl_error *err) {
    size_t stack = n < MOST_STACK / 64 - 4096 ? 64 * (n + 4096) : MOST_STACK;
    size_t steps = n < UINT32_MAX / 32 ? 10000000 + 16 * n : UINT32_MAX;
    int is_short = n <= SHORT;
    m->data = pcre2_match_data_create(1, NULL);
    m->limits = is_short ? NULL : pcre2_match_context_create(NULL);
    m->stack = NULL;
    m->symbols = is_short ? m->short_text : malloc(n);
    if (!m->data || !m->symbols || (!is_short && !m->limits)) {
        end_matcher(m);
        return sl_fail(err, SL_ERR_MEMORY, "pre-tokenizer: out of memory");
    }
    if (is_short) return 0;
    m->stack = pcre2_jit_stack_create(32 << 10, stack, NULL); // NULL (no JIT, or no address space): PCRE2 uses its default
    pcre2_jit_stack_assign(m->limits, NULL, m->stack);
    pcre2_set_match_limit(m->limits, (uint32_t)steps);
    return 0;
}

static int match_failed(int code, size_t at, sl_error *err) { // `at`: bytes after the last added token
    PCRE2_UCHAR why[160];
    pcre2_get_error_message(code, why, sizeof why);
    int memory = code == PCRE2_ERROR_NOMEMORY || code == PCRE2_ERROR_JIT_STACKLIMIT || code == PCRE2_ERROR_HEAPLIMIT;
    return sl_fail(err, memory ? SL_ERR_MEMORY : SL_ERR_UNSUPPORTED,
                   "pre-tokenizer: the pattern cannot be matched at byte %zu of the text: %s", at, (char *)why);
}

// Writes the symbols of the valid UTF-8 at the start of a text. Returns its bytes; *n_chars: its characters.
static size_t read_symbols(const sl_pattern *p, const char *text, size_t n, uint8_t *symbols, size_t *n_chars) {
    const unsigned char *s = (const unsigned char *)text;
    const uint8_t *ascii = p->blocks[p->block_of[0]];
    size_t at = 0, k = 0;
    while (at < n) {
        if (s[at] < 0x80) {
            symbols[k++] = ascii[s[at++]];
            continue;
        }
        size_t len = sl_utf8_length(s + at, n - at);
        if (len == 0) break;
        uint32_t c = s[at] & (0xff >> (len + 1));
        for (size_t i = 1; i < len; i++) c = c << 6 | (s[at + i] & 0x3f);
        symbols[k++] = p->blocks[p->block_of[c >> BLOCK_BITS]][c & (BLOCK - 1)];
        at += len;
    }
    *n_chars = k;
    return at;
}

// Bytes of the first n characters of valid UTF-8.
static size_t bytes_of(const char *text, size_t n) {
    const unsigned char *s = (const unsigned char *)text;
    size_t at = 0;
    for (; n > 0; n--) at += s[at] < 0x80 ? 1 : s[at] < 0xe0 ? 2 : s[at] < 0xf0 ? 3 : 4;
    return at;
}

typedef struct splitter {
    const char *text; // at character `at`
    size_t at;
    int is_ascii;
    sl_piece_fn fn;
    void *ctx;
} splitter;

static int give(splitter *s, size_t to, int is_match, sl_error *err) { // the piece from `at` to character `to`
    const char *piece = s->text;
    size_t n = s->is_ascii ? to - s->at : bytes_of(piece, to - s->at);
    s->text += n;
    s->at = to;
    return s->fn(s->ctx, piece, n, is_match, err);
}

// Finds the matches as the crate onig does: an empty match counts, unless it is at the end of the match before it.
// offset: the place of this run in the text, for messages.
static int split_run(const sl_pattern *p, const matcher *m, size_t n, size_t offset, splitter *s, sl_error *err) {
    int (*match)(const pcre2_code *, PCRE2_SPTR, PCRE2_SIZE, PCRE2_SIZE, uint32_t, pcre2_match_data *, pcre2_match_context *) =
        p->has_jit ? pcre2_jit_match : pcre2_match; // both take the same arguments; pcre2_match checks them again
    const PCRE2_SIZE *span = pcre2_get_ovector_pointer(m->data);
    const char *start = s->text;
    int rc = 0, after_match = 0;
    for (size_t search = 0; !rc && search <= n;) {
        int found = match(p->code, m->symbols, n, search, 0, m->data, m->limits);
        if (found == PCRE2_ERROR_NOMATCH) break;
        if (found < 0) return match_failed(found, offset + bytes_of(start, search), err);
        size_t from = span[0], to = span[1];
        if (to == from && after_match && to == s->at) {
            search++;
            continue;
        }
        if (from > s->at) rc = give(s, from, 0, err);
        if (!rc) rc = give(s, to, 1, err);
        search = to;
        after_match = 1;
    }
    return rc || s->at == n ? rc : give(s, n, 0, err);
}

int sl_pattern_split(const sl_pattern *p, const char *text, size_t n, sl_piece_fn fn, void *ctx, sl_error *err) {
    matcher m;
    int rc = begin_matcher(&m, n, err);
    if (rc) return rc;
    for (size_t at = 0; !rc && at < n;) {
        size_t n_chars, run = read_symbols(p, text + at, n - at, m.symbols, &n_chars);
        splitter s = {text + at, 0, n_chars == run, fn, ctx};
        if (run > 0) rc = split_run(p, &m, n_chars, at, &s, err);
        at += run;
        size_t bad = sl_utf8_invalid_run(text + at, n - at);
        if (!rc && bad > 0) rc = fn(ctx, text + at, bad, 0, err);
        at += bad;
    }
    end_matcher(&m);
    return rc;
}
