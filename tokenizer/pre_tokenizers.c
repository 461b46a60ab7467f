// tokenizer/pre_tokenizers.c - the pre-tokenizer of a tokenizer.json: steps that split a text into pieces. Each step gets the
// pieces of the step before it. The model encodes the pieces of the last step.
//
// A piece goes through all steps before the next piece is made, so that no list of pieces is stored.
#include "base/utf8.h"
#include "tokenizer/byte_alphabet.h"
#include "tokenizer/unicode/chars.h"
#include "tokenizer/json_part.h"

#include <stdlib.h>
#include <string.h>

enum { MOST_STEPS = 32, MOST_MARK = 4 };

typedef enum { SPLIT, DIGITS, PUNCTUATION, WHITESPACE, WHITESPACE_SPLIT, METASPACE, BYTE_LEVEL, TO_ALPHABET } kind;
// What happens with the matches of a pattern (and with the text between two matches, which always is a piece).
typedef enum { REMOVED, ISOLATED, MERGED_WITH_PREVIOUS, MERGED_WITH_NEXT, CONTIGUOUS } behavior;

typedef struct step {
    kind kind;
    behavior behavior;
    int invert;           // the text between two matches is a match, and the matches are not
    sl_finder find;       // SPLIT, BYTE_LEVEL with use_regex
    sl_blank blank;       // METASPACE, BYTE_LEVEL: where to put a blank in front of a piece
    int splits;           // METASPACE: before each mark; BYTE_LEVEL: by GPT-2's pattern
    char mark[MOST_MARK]; // METASPACE: the character that stands for a blank
    size_t n_mark;
} step;

struct sl_pre_tokenizer {
    step steps[MOST_STEPS];
    int n;
    int by_bytes, in_alphabet; // has a ByteLevel; and steps after it, which read the alphabet of bytes
};

// ---- reading ----

static int read_behavior(const sl_part *p, const char *def, behavior *out) {
    static const char *const names[] = {"Removed", "Isolated", "MergedWithPrevious", "MergedWithNext", "Contiguous"};
    const char *name;
    int rc = sl_part_string(p, "behavior", &name);
    if (rc) return rc;
    if (!name) name = def;
    for (int i = 0; name && i < 5; i++)
        if (!strcmp(name, names[i])) return *out = (behavior)i, 0;
    return sl_part_refuse(p, "expected a behavior: Removed, Isolated, MergedWithPrevious, MergedWithNext or Contiguous");
}

static int read_split(const sl_part *p, step *s) {
    int rc = sl_part_flag(p, "invert", 0, &s->invert);
    if (!rc) rc = read_behavior(p, NULL, &s->behavior);
    return rc ? rc : sl_part_finder(p, &s->find);
}

static int read_digits(const sl_part *p, step *s) {
    int individual, rc = sl_part_flag(p, "individual_digits", 0, &individual);
    s->behavior = individual ? ISOLATED : CONTIGUOUS;
    return rc;
}

static int read_byte_level(const sl_part *p, step *s) {
    int prefix, rc = sl_part_flag(p, "add_prefix_space", 0, &prefix);
    if (!rc) rc = sl_part_flag(p, "use_regex", 1, &s->splits);
    s->blank = prefix ? SL_BLANK_ALWAYS : SL_BLANK_NEVER;
    s->behavior = ISOLATED;
    return rc || !s->splits ? rc : sl_pattern_new(p->path, sl_pattern_gpt2, &s->find.regex, p->err);
}

// Old files have add_prefix_space in place of prepend_scheme.
int sl_blank_read(const sl_part *p, sl_blank *out) {
    static const char *const names[] = {"never", "first", "always"};
    const char *scheme;
    int prefix, rc = sl_part_flag(p, "add_prefix_space", 1, &prefix);
    if (!rc) rc = sl_part_string(p, "prepend_scheme", &scheme);
    if (rc) return rc;
    if (!scheme) return *out = prefix ? SL_BLANK_ALWAYS : SL_BLANK_NEVER, 0;
    for (int i = 0; i < 3; i++)
        if (!strcmp(scheme, names[i])) return *out = (sl_blank)i, 0;
    return sl_part_refuse(p, "expected a prepend_scheme: always, first or never");
}

static int read_metaspace(const sl_part *p, step *s) {
    const char *mark;
    int rc = sl_part_string(p, "replacement", &mark);
    if (!rc) rc = sl_part_flag(p, "split", 1, &s->splits);
    if (!rc) rc = sl_blank_read(p, &s->blank);
    if (rc) return rc;
    s->n_mark = mark ? strlen(mark) : 0;
    if (s->n_mark == 0 || s->n_mark > MOST_MARK || sl_utf8_length((const unsigned char *)mark, s->n_mark) != s->n_mark)
        return sl_part_refuse(p, "expected a replacement of one character");
    memcpy(s->mark, mark, s->n_mark);
    return 0;
}

static int no_fields(const sl_part *p, step *s) {
    (void)p, s->behavior = REMOVED;
    return 0;
}

static int read_punctuation(const sl_part *p, step *s) {
    return read_behavior(p, "Isolated", &s->behavior);
}

// A ByteLevel writes its pieces in the alphabet of bytes. Steps after it read this alphabet; the model reads bytes.
static int read_step(void *ctx, const sl_part *p) {
    static const struct {
        const char *type;
        kind kind;
        int (*read)(const sl_part *p, step *s);
    } types[] = {
        {"Split", SPLIT, read_split},
        {"Digits", DIGITS, read_digits},
        {"Punctuation", PUNCTUATION, read_punctuation},
        {"Whitespace", WHITESPACE, no_fields},
        {"WhitespaceSplit", WHITESPACE_SPLIT, no_fields},
        {"Metaspace", METASPACE, read_metaspace},
        {"ByteLevel", BYTE_LEVEL, read_byte_level},
    };
    sl_pre_tokenizer *pre = ctx;
    if (pre->n + 1 >= MOST_STEPS) return sl_part_refuse(p, "too many steps");
    if (pre->by_bytes && !pre->in_alphabet) {
        pre->in_alphabet = 1;
        pre->steps[pre->n++].kind = TO_ALPHABET;
    }
    step *s = &pre->steps[pre->n++];
    for (size_t i = 0; i < sizeof types / sizeof *types; i++) {
        if (!sl_part_is(p, types[i].type)) continue;
        s->kind = types[i].kind;
        if (s->kind == BYTE_LEVEL && pre->by_bytes) return sl_part_refuse(p, "there are two of them");
        if (s->kind == BYTE_LEVEL) pre->by_bytes = 1;
        int rc = types[i].read(p, s);
        if (s->kind == BYTE_LEVEL && !s->splits && s->blank == SL_BLANK_NEVER) pre->n--; // it changes no piece
        return rc;
    }
    return sl_part_refuse(p, "supported are Split, Digits, Punctuation, Whitespace, WhitespaceSplit, Metaspace and ByteLevel");
}

int sl_pre_tokenizer_read(const sl_part *p, sl_pre_tokenizer **out) {
    sl_pre_tokenizer *pre = calloc(1, sizeof *pre);
    if (!pre) return sl_fail(p->err, SL_ERR_MEMORY, "%s: out of memory", p->path);
    *out = pre;
    return sl_part_each(p, "pretokenizers", read_step, pre);
}

int sl_pre_tokenizer_new(const char *file, const char *regex, sl_pre_tokenizer **out, sl_error *err) {
    sl_pre_tokenizer *pre = calloc(1, sizeof *pre);
    if (!pre) return sl_fail(err, SL_ERR_MEMORY, "%s: out of memory", file);
    *out = pre;
    pre->by_bytes = 1;
    pre->steps[pre->n++] = (step){.kind = SPLIT, .behavior = ISOLATED};
    return sl_pattern_new(file, regex, &pre->steps[0].find.regex, err);
}

void sl_pre_tokenizer_free(sl_pre_tokenizer *pre) {
    if (!pre) return;
    for (int i = 0; i < pre->n; i++) sl_finder_free(&pre->steps[i].find);
    free(pre);
}

int sl_pre_tokenizer_by_bytes(const sl_pre_tokenizer *pre) {
    return pre->by_bytes;
}

// ---- splitting ----

typedef struct run {
    const sl_pre_tokenizer *pre;
    sl_piece_fn fn;
    void *ctx;
} run;

// One step at work on one text. `from` and `to` are the span that waits for the next one, if has_span.
typedef struct splitter {
    const run *run;
    const step *step;
    int next; // step of the pieces
    const char *text;
    int at_start, has_span, span_matches;
    size_t from, to;
} splitter;

static int run_step(const run *r, int k, const char *text, size_t n, int at_start, sl_error *err);

static int emit(const splitter *s, size_t from, size_t to, sl_error *err) {
    return to == from ? 0 : run_step(s->run, s->next, s->text + from, to - from, s->at_start && from == 0, err);
}

static int flush(splitter *s, sl_error *err) {
    int has = s->has_span;
    s->has_span = 0;
    return has ? emit(s, s->from, s->to, err) : 0;
}

static int hold(splitter *s, size_t from, size_t to, int is_match, sl_error *err) {
    int rc = flush(s, err);
    s->has_span = 1, s->span_matches = is_match;
    s->from = from, s->to = to;
    return rc;
}

// Takes the next span of the text: a match, or the text between two matches.
static int take(splitter *s, size_t from, size_t to, int is_match, sl_error *err) {
    int rc;
    is_match ^= s->step->invert;
    switch (s->step->behavior) {
    case ISOLATED:
        return emit(s, from, to, err);
    case REMOVED:
        return is_match ? 0 : emit(s, from, to, err);
    case CONTIGUOUS:
        if (!s->has_span || s->span_matches != is_match) return hold(s, from, to, is_match, err);
        s->to = to;
        return 0;
    case MERGED_WITH_PREVIOUS: // of several matches in a row, the first one merges
        if (!is_match || !s->has_span || s->span_matches) return hold(s, from, to, is_match, err);
        s->to = to, s->span_matches = 1;
        return 0;
    case MERGED_WITH_NEXT: // of several matches in a row, the last one merges
        if (is_match || !s->has_span) {
            rc = flush(s, err);
            if (rc || !is_match) return rc ? rc : emit(s, from, to, err);
            return hold(s, from, to, 1, err);
        }
        s->has_span = 0;
        return emit(s, s->from, to, err);
    }
    return 0;
}

static int take_piece(void *ctx, const char *piece, size_t n, int is_match, sl_error *err) {
    splitter *s = ctx;
    size_t from = (size_t)(piece - s->text);
    return take(s, from, from + n, is_match, err);
}

// Splits by classes of characters: each character of a class is a match. A byte that is not UTF-8 belongs to no class.
static int split_classes(splitter *s, size_t n, sl_unicode_property class, sl_error *err) {
    int rc = 0;
    size_t from = 0;
    for (size_t at = 0, len; !rc && at < n; at += len) {
        int32_t c = sl_char_at(s->text + at, n - at, &len);
        if (!sl_char_is(class, c)) continue;
        if (at > from) rc = take(s, from, at, 0, err);
        if (!rc) rc = take(s, at, at + len, 1, err);
        from = at + len;
    }
    return rc || from == n ? rc : take(s, from, n, 0, err);
}

// The pieces are runs of letters of words, and runs of other characters that are not white.
static int split_words(splitter *s, size_t n, sl_error *err) {
    enum { WHITE, WORD, OTHER } last = WHITE;
    int rc = 0;
    size_t from = 0;
    for (size_t at = 0, len; !rc && at < n; at += len) {
        int32_t c = sl_char_at(s->text + at, n - at, &len);
        int now = sl_char_is(SL_UNICODE_WORD, c) ? WORD : sl_char_is(SL_UNICODE_WHITE, c) ? WHITE : OTHER;
        if (now == (int)last) continue;
        if (last != WHITE) rc = emit(s, from, at, err);
        from = at, last = now;
    }
    return rc || last == WHITE ? rc : emit(s, from, n, err);
}

// Appends text[0..n) with each blank replaced by the mark, after a mark if the step puts one in front.
static int mark_blanks(const step *s, const char *text, size_t n, int at_start, sl_text *out, sl_error *err) {
    int wants = s->blank == SL_BLANK_ALWAYS || (s->blank == SL_BLANK_FIRST && at_start);
    int has = n > 0 && (text[0] == ' ' || (n >= s->n_mark && !memcmp(text, s->mark, s->n_mark)));
    int rc = wants && !has ? sl_text_append(out, s->mark, s->n_mark, err) : sl_text_append(out, "", 0, err);
    for (size_t at = 0; !rc && at < n;) {
        const char *blank = memchr(text + at, ' ', n - at);
        size_t to = blank ? (size_t)(blank - text) : n;
        rc = sl_text_append(out, text + at, to - at, err);
        if (!rc && blank) rc = sl_text_append(out, s->mark, s->n_mark, err);
        at = to + (blank != NULL);
    }
    return rc;
}

static int run_metaspace(splitter *s, size_t n, sl_error *err) {
    const step *step = s->step;
    sl_text marked = {0};
    int rc = mark_blanks(step, s->text, n, s->at_start, &marked, err);
    s->text = marked.data;
    size_t from = 0;
    for (size_t at = 1; !rc && step->splits && at + step->n_mark <= marked.n; at++) { // a mark begins a piece
        if (memcmp(marked.data + at, step->mark, step->n_mark)) continue;
        rc = emit(s, from, at, err);
        from = at;
    }
    if (!rc) rc = emit(s, from, marked.n, err);
    sl_text_free(&marked);
    return rc;
}

static int run_byte_level(splitter *s, size_t n, sl_error *err) {
    sl_text longer = {0};
    int rc = 0;
    if (s->step->blank == SL_BLANK_ALWAYS && s->text[0] != ' ') {
        rc = sl_text_append(&longer, " ", 1, err);
        if (!rc) rc = sl_text_append(&longer, s->text, n, err);
        s->text = longer.data;
        n++;
    }
    if (!rc) rc = s->step->splits ? sl_finder_split(&s->step->find, s->text, n, take_piece, s, err) : emit(s, 0, n, err);
    sl_text_free(&longer);
    return rc;
}

// Calls the next step, or the caller, with the text in the alphabet (or, back, with the bytes of a text in the alphabet).
static int run_alphabet(const run *r, int next, const char *text, size_t n, int back, int at_start, sl_error *err) {
    char *out = malloc(2 * n + 1);
    if (!out) return sl_fail(err, SL_ERR_MEMORY, "pre-tokenizer: out of memory");
    ptrdiff_t n_out = back ? sl_alphabet_decode(text, n, out) : (ptrdiff_t)sl_alphabet_encode(text, n, out);
    int rc = 0;
    if (n_out < 0) // a step put a character in front that the alphabet lacks
        rc = sl_fail(err, SL_ERR_UNSUPPORTED, "pre_tokenizer: a step after ByteLevel writes other characters than bytes");
    else
        rc = back ? r->fn(r->ctx, out, (size_t)n_out, 1, err) : run_step(r, next, out, (size_t)n_out, at_start, err);
    free(out);
    return rc;
}

static int run_step(const run *r, int k, const char *text, size_t n, int at_start, sl_error *err) {
    if (k == r->pre->n) return r->pre->in_alphabet ? run_alphabet(r, k, text, n, 1, 0, err) : r->fn(r->ctx, text, n, 1, err);
    splitter s = {.run = r, .step = &r->pre->steps[k], .next = k + 1, .text = text, .at_start = at_start};
    int rc = 0;
    switch (s.step->kind) {
    case SPLIT:
        rc = sl_finder_split(&s.step->find, text, n, take_piece, &s, err);
        break;
    case DIGITS:
        rc = split_classes(&s, n, SL_UNICODE_NUMERIC, err);
        break;
    case PUNCTUATION:
        rc = split_classes(&s, n, SL_UNICODE_PUNCTUATION, err);
        break;
    case WHITESPACE_SPLIT:
        rc = split_classes(&s, n, SL_UNICODE_WHITE, err);
        break;
    case WHITESPACE:
        rc = split_words(&s, n, err);
        break;
    case METASPACE:
        rc = run_metaspace(&s, n, err);
        break;
    case BYTE_LEVEL:
        rc = run_byte_level(&s, n, err);
        break;
    case TO_ALPHABET:
        return run_alphabet(r, k + 1, text, n, 0, at_start, err);
    }
    return rc ? rc : flush(&s, err);
}

int sl_pre_tokenizer_split(const sl_pre_tokenizer *pre, const char *text, size_t n, int at_start, sl_piece_fn fn, void *ctx,
                           sl_error *err) {
    const run r = {pre, fn, ctx};
    return n == 0 ? 0 : run_step(&r, 0, text, n, at_start, err);
}
