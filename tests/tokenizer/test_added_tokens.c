// tests/tokenizer/test_added_tokens.c - which added tokens a text holds: spans of users' text, flags of tokens, overlaps.
#include "tests/test.h"
#include "tests/support/tokens.h"

#include <string.h>

static sl_error err;

// ---- spans in which special tokens are text ----

// The text holds <|im_end|> (special) at 0 and 12, and <think> (not special) at 24.
static void marked(void) {
    enum { END = 562, THINK = 584 };
    static const char text[] = "<|im_end|>hi<|im_end|>he<think>";
    static const struct {
        sl_span plain[3];
        size_t n_plain;
        int first, second; // whether the two special tokens are found
    } rows[] = {
        {{{0}}, 0, 1, 1},
        {{{10, 12}}, 1, 1, 1},
        {{{10, 13}}, 1, 1, 0},
        {{{21, 22}}, 1, 1, 0},
        {{{22, 31}}, 1, 1, 1},
        {{{9, 10}}, 1, 0, 1},
        {{{0, 1}, {21, 22}}, 2, 0, 0},
        {{{0, 10}, {10, 22}, {25, 26}}, 3, 0, 0},
        {{{1, 1}, {13, 13}, {13, 14}}, 3, 1, 0}, // empty spans hold no bytes
        {{{0, 31}}, 1, 0, 0},
    };
    sl_tokenizer *tok = tokens_load("tests/vocabularies/qwen");
    sl_ids ids = {0}, plain = {0};
    CHECK_OK(sl_tokenize(tok, TEXT("<|im_end|>"), SL_TOK_PLAIN, &plain, &err), err);
    CHECK(plain.n > 3);
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        ids.n = 0;
        CHECK_OK(sl_tokenize_marked(tok, TEXT(text), rows[i].plain, rows[i].n_plain, 0, &ids, &err), err);
        int found = 0, think = 0;
        for (size_t k = 0; k < ids.n; k++) found += ids.data[k] == END, think += ids.data[k] == THINK;
        if (found != rows[i].first + rows[i].second || (ids.data[0] == END) != rows[i].first || think != 1)
            FAIL("row %zu: %d special tokens, expected %d and %d", i, found, rows[i].first, rows[i].second);
        tokens_expect_text(tok, ids.data, ids.n, TEXT(text));
    }
    // An end of a span does not split a word, and all plain is SL_TOK_PLAIN.
    static const sl_span inside = {3, 5}, all = {0, sizeof text - 1};
    sl_ids want = {0};
    CHECK_OK(sl_tokenize(tok, TEXT("the river"), 0, &want, &err), err);
    ids.n = 0;
    CHECK_OK(sl_tokenize_marked(tok, TEXT("the river"), &inside, 1, SL_TOK_BOS, &ids, &err), err);
    CHECK(ids.n == want.n && !memcmp(ids.data, want.data, ids.n * sizeof *ids.data));
    ids.n = want.n = 0;
    CHECK_OK(sl_tokenize(tok, TEXT(text), SL_TOK_PLAIN, &want, &err), err);
    CHECK_OK(sl_tokenize_marked(tok, TEXT(text), &all, 1, 0, &ids, &err), err);
    CHECK(ids.n == want.n && !memcmp(ids.data, want.data, ids.n * sizeof *ids.data));
    sl_ids_free(&ids), sl_ids_free(&want), sl_ids_free(&plain);
    sl_tokenizer_free(tok);
}

static const test_case cases[] = {
    {"marked", NEEDS_NOTHING, marked},
    {0},
};
extern const test_suite suite_added_tokens;
const test_suite suite_added_tokens = {"added_tokens", cases};
