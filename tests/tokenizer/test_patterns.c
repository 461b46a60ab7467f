// tests/tokenizer/test_patterns.c - patterns of pre-tokenizers: the syntax, the patterns of current models, and what they do
// with every code point, against the Python package tokenizers. scripts/goldens/make_patterns.py makes the file of goldens and
// describes it.
#include "tests/support/code_points.h"
#include "tests/test.h"
#include "tokenizer/pattern_syntax.h"
#include "tokenizer/tokenizer_internal.h"

#include <jansson.h>
#include <stdlib.h>
#include <string.h>

static const char goldens[] = "tests/goldens/patterns.json";
enum { BLOCK = 4096 };

static sl_error err;

static json_t *read_goldens(void) {
    json_error_t e;
    json_t *root = json_load_file(goldens, JSON_ALLOW_NUL, &e);
    if (!root) FAIL("%s: %s", goldens, e.text);
    return root;
}

static sl_pattern *compile(const char *regex) {
    sl_pattern *p = NULL;
    CHECK_OK(sl_pattern_new("pattern", regex, &p, &err), err);
    return p;
}

static size_t count_chars(const char *text, size_t n) {
    size_t chars = 0;
    for (size_t i = 0; i < n; i++) chars += (text[i] & 0xc0) != 0x80;
    return chars;
}

// ---- syntax ----

typedef struct lengths {
    const char *regex;
    const json_t *want; // characters of each piece, negative for the text between two matches
    size_t n;
} lengths;

static int check_length(void *ctx, const char *piece, size_t n, int is_match, sl_error *e) {
    lengths *l = ctx;
    (void)e;
    if (n == 0) return 0;
    if (l->n == json_array_size(l->want)) FAIL("%s: more than %zu pieces", l->regex, l->n);
    long long want = json_integer_value(json_array_get(l->want, l->n++)),
              got = (long long)count_chars(piece, n) * (is_match ? 1 : -1);
    if (got != want) FAIL("%s: piece %zu has %lld characters, expected %lld", l->regex, l->n, got, want);
    return 0;
}

static int fail_at(void *ctx, const char *piece, size_t n, int is_match, sl_error *e) {
    int *left = ctx;
    (void)piece, (void)n, (void)is_match;
    CHECK(*left >= 0); // no piece follows an error
    return (*left)-- ? 0 : sl_fail(e, SL_ERR_IO, "no more");
}

// An error of any piece ends the split.
static void stopped(void) {
    sl_pattern *p = compile("b+");
    for (int i = 0; i < 6; i++) {
        int left = i;
        CHECK_INT(sl_pattern_split(p, "abbcbd", 6, fail_at, &left, &err), i < 5 ? SL_ERR_IO : 0);
    }
    sl_pattern_free(p);
}

static void syntax(void) {
    json_t *root = read_goldens(), *rows = json_object_get(root, "syntax");
    CHECK(json_array_size(rows) > 80);
    for (size_t i = 0; i < json_array_size(rows); i++) {
        const json_t *row = json_array_get(rows, i), *text = json_array_get(row, 1);
        lengths l = {json_string_value(json_array_get(row, 0)), json_array_get(row, 2), 0};
        sl_pattern *p = compile(l.regex);
        CHECK_OK(sl_pattern_split(p, json_string_value(text), json_string_length(text), check_length, &l, &err), err);
        if (l.n != json_array_size(l.want)) FAIL("%s: %zu pieces, expected %zu", l.regex, l.n, json_array_size(l.want));
        sl_pattern_free(p);
    }
    json_decref(root);
}

// A quantifier without a part before it. Oniguruma reads some of these patterns in a way of its own.
static void quantifiers(void) {
    static const char
        *const before[] = {"",       "(",   "a|",   "(?:",    "(?i:",  "(?m:",   "(?>",  "(?=",    "(?=a)", "(?!a)", "(?<=a)",
                           "(?<!a)", "^",   "$",    "\\b",    "\\B",   "\\A",    "\\z",  "\\Z",    "a*",    "a+",    "a?",
                           "a*?",    "a++", "a{2}", "a{1,2}", "a{2}?", "a{2,}+", "(a)*", "[a]{2}", "(?i)",  "(a|",   "x(?=a)"},
               *const quantifier[] = {"*", "+", "?", "{2}", "{1,2}", "{,2}", "{2,}"}, *const after[] = {"", "b", "?", ")"};
    for (size_t i = 0; i < sizeof before / sizeof *before; i++)
        for (size_t j = 0; j < sizeof quantifier / sizeof *quantifier; j++)
            for (size_t k = 0; k < sizeof after / sizeof *after; k++) {
                char regex[40];
                size_t n = strlen(before[i]);
                sl_pattern *p = NULL;
                snprintf(regex, sizeof regex, "%s%s%s", before[i], quantifier[j], after[k]);
                // a*? and a{1,2}? are one quantifier, a{2}? is a count and a quantifier
                if (n > 1 && before[i][0] == 'a' && strchr("*+?}", before[i][n - 1]) && strchr("?+", quantifier[j][0]) &&
                    !strchr("*+?}", before[i][n - 2]))
                    continue;
                if (before[i][0] == '[' && strchr("?+", quantifier[j][0])) continue;
                if (!strcmp(before[i], "(a)*") && strchr("?+", quantifier[j][0])) continue;
                if (before[i][n - (n > 0)] == '(' && strchr("?*", quantifier[j][0]))
                    continue; // (? and (* begin a kind of group
                CHECK_ERR(sl_pattern_new("pattern", regex, &p, &err), err, SL_ERR_UNSUPPORTED,
                          "without a part of the pattern before it");
                snprintf(regex, sizeof regex, "x%s", quantifier[j]);
                sl_pattern_free(compile(regex));
            }
}

// ---- families ----

static int hash_piece(void *ctx, const char *piece, size_t n, int is_match, sl_error *e) {
    uint32_t *hash = ctx;
    (void)is_match, (void)e;
    for (size_t i = 0; i < n; i++)
        if ((piece[i] & 0xc0) != 0x80) *hash = fnv_byte(*hash, i == 0);
    return 0;
}

static uint32_t hash_pieces(uint32_t hash, const sl_pattern *p, const char *text, size_t n) {
    CHECK_OK(sl_pattern_split(p, text, n, hash_piece, &hash, &err), err);
    return hash;
}

static uint32_t want_hash(const json_t *list, size_t i) {
    CHECK(json_is_integer(json_array_get(list, i)));
    return (uint32_t)json_integer_value(json_array_get(list, i));
}

static void families(void) {
    json_t *root = read_goldens(), *texts = json_object_get(root, "texts"), *row;
    const char *name;
    CHECK_INT(json_array_size(texts), 300);
    CHECK(json_object_size(json_object_get(root, "families")) > 25);
    json_object_foreach(json_object_get(root, "families"), name, row) {
        sl_pattern *p = compile(json_string_value(json_array_get(row, 0)));
        uint32_t hash = FNV_BASIS;
        for (size_t i = 0; i < 300; i++) {
            const json_t *text = json_array_get(texts, i);
            hash = hash_pieces(i % 10 ? hash : FNV_BASIS, p, json_string_value(text), json_string_length(text));
            if (i % 10 == 9 && hash != want_hash(json_array_get(row, 1), i / 10))
                FAIL("%s splits a text of %zu to %zu in another way", name, i - 9, i);
        }
        sl_pattern_free(p);
    }
    json_decref(root);
}

// ---- all code points ----

// Each character after a letter, after a digit and after a blank.
static size_t put_contexts(uint32_t from, char *text) {
    size_t n = 0;
    for (uint32_t c = from; c < from + BLOCK; c++) {
        if (is_surrogate(c)) continue;
        for (const char *before = "a1 "; *before; before++) {
            text[n++] = *before;
            n += utf8_put(c, text + n);
        }
    }
    return n;
}

static void all_points(void) {
    static char text[BLOCK * 3 * 5];
    sl_pattern *patterns[16];
    const char *name;
    json_t *root = read_goldens(), *points = json_object_get(root, "points"), *want;
    size_t n_patterns = 0, block = 0;
    json_object_foreach(points, name, want) {
        CHECK(n_patterns < 16);
        const json_t *family = json_object_get(json_object_get(root, "families"), name);
        patterns[n_patterns++] = compile(json_string_value(json_array_get(family, 0)));
    }
    CHECK_INT(n_patterns, 7);
    for (uint32_t from = 0; from < SL_CODE_POINTS; from += BLOCK) {
        size_t n = put_contexts(from, text), i = 0;
        if (n == 0) continue; // surrogates
        json_object_foreach(points, name, want) {
            if (hash_pieces(FNV_BASIS, patterns[i++], text, n) != want_hash(want, block))
                FAIL("%s: a character of U+%04X to U+%04X is split in another way", name, from, from + BLOCK - 1);
        }
        block++;
    }
    for (size_t i = 0; i < n_patterns; i++) sl_pattern_free(patterns[i]);
    json_decref(root);
}

// The hash of the hashes of 16 blocks.
static uint32_t hash_plane(uint32_t plane, sl_code_set set) {
    uint32_t whole = FNV_BASIS;
    for (uint32_t from = plane << 16; from < (plane + 1) << 16; from += BLOCK) {
        uint32_t hash = FNV_BASIS, n = 0;
        for (uint32_t c = from; c < from + BLOCK; c++) {
            if (is_surrogate(c)) continue;
            hash = fnv_byte(hash, sl_code_set_has(set, c));
            n++;
        }
        for (int i = 0; i < 4 && n > 0; i++) whole = fnv_byte(whole, hash >> 8 * i & 255);
    }
    return whole;
}

// A pattern of one character is one set.
// Letters that one letter stands for without regard to case, such as U+FB01 for "fi".
static void joined_letters(void) {
    static const char *const joined[] = {"ss", "st", "ff", "fi", "fl", "S.?s|xFi", "aSt"}, *const apart[] = {"fa", "if",
                                                                                                             "is", "sf",
                                                                                                             "ts", "s[s]"};
    char regex[40];
    for (size_t i = 0; i < sizeof joined / sizeof *joined; i++) {
        sl_pattern *p = NULL;
        snprintf(regex, sizeof regex, "(?i)%s", joined[i]);
        CHECK_ERR(sl_pattern_new("pattern", regex, &p, &err), err, SL_ERR_UNSUPPORTED,
                  "letters that another letter stands for");
        CHECK_OK(sl_pattern_new("pattern", joined[i], &p, &err), err);
        sl_pattern_free(p);
    }
    for (size_t i = 0; i < sizeof apart / sizeof *apart; i++) {
        sl_pattern *p = NULL;
        snprintf(regex, sizeof regex, "(?i)%s", apart[i]);
        CHECK_OK(sl_pattern_new("pattern", regex, &p, &err), err);
        sl_pattern_free(p);
    }
}

static void classes(void) {
    json_t *root = read_goldens(), *rows = json_object_get(root, "classes");
    CHECK(json_array_size(rows) > 70);
    for (size_t i = 0; i < json_array_size(rows); i++) {
        const json_t *row = json_array_get(rows, i);
        const char *regex = json_string_value(json_array_get(row, 0)), *why;
        sl_syntax s;
        size_t at;
        CHECK_OK(sl_syntax_read(regex, &s, &why, &at, &err), err);
        CHECK_INT(s.n_sets, 1);
        for (uint32_t plane = 0; plane < 17; plane++)
            if (hash_plane(plane, (sl_code_set){s.sets[0].ranges, s.sets[0].n}) != want_hash(json_array_get(row, 1), plane))
                FAIL("%s: some code point of plane %u differs", regex, plane);
        sl_syntax_free(&s);
    }
    json_decref(root);
}

static const test_case cases[] = {
    {"stopped", NEEDS_NOTHING, stopped},
    {"syntax", NEEDS_NOTHING, syntax},
    {"quantifiers", NEEDS_NOTHING, quantifiers},
    {"families", NEEDS_NOTHING, families},
    {"all_points", NEEDS_NOTHING, all_points},
    {"classes", NEEDS_NOTHING, classes},
    {"joined-letters", NEEDS_NOTHING, joined_letters},
    {0},
};
const test_suite suite_patterns = {"patterns", cases};
