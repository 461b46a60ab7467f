// tests/tokenizer/test_added_tokens.c - which added tokens a text holds: spans of users' text, flags of tokens, overlaps.
#include "tests/test.h"
#include "tests/support/tokens.h"

#include <string.h>
#include <unistd.h>

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

// ---- folders of ../shared/cases; the ids are those of tokenizers 0.23 ----

static void shared_cases(void) {
    static const struct {
        const char *folder, *text;
        unsigned flags;
        int32_t ids[12];
        size_t n;
    } rows[] = {
        {"spm-nolegacy", "[INST] Hello the river[/INST]", SL_TOK_BOS, {1, 3, 475, 77, 333, 359, 339, 4}, 8},
        {"tok-overlap", "<tool_x>", 0, {60, 116, 551, 1025}, 4}, // _x> is not normalized, so it is searched first
        {"tok-lstrip", "a  <mask> b", 0, {97, 1024, 273}, 3},
        {"tok-digits", "ab 123", 0, {406, 32, 49, 50, 51}, 5},
        {"tok-nfc-added", "ab<tool>123", 0, {406, 1024, 49, 50, 51}, 5},
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        char path[512];
        snprintf(path, sizeof path, "%s/cases/%s", test_shared(), rows[i].folder);
        if (access(path, R_OK)) TEST_SKIP("needs %s", path);
        sl_tokenizer *tok = tokens_load(path);
        tokens_expect_ids(tok, rows[i].text, strlen(rows[i].text), rows[i].flags, rows[i].ids, rows[i].n);
        sl_tokenizer_free(tok);
    }
}

// ---- BOS ----

static void one_bos(void) { // a text that begins with BOS gets no other one; SL_TOK_PLAIN reads it as text
    enum { BOS = 615 };
    sl_tokenizer *tok = tokens_load("tests/vocabularies/bpe");
    tokens_expect_ids(tok, TEXT("<|begin_of_text|>a"), SL_TOK_BOS, IDS(BOS, 'a'));
    tokens_expect_ids(tok, TEXT("<|begin_of_text|><|begin_of_text|>a"), SL_TOK_BOS, IDS(BOS, BOS, 'a'));
    tokens_expect_ids(tok, TEXT("a<|begin_of_text|>"), SL_TOK_BOS, IDS(BOS, 'a', BOS));
    tokens_expect_ids(tok, TEXT("<|begin_of_text|>"), SL_TOK_BOS, IDS(BOS));
    tokens_expect_ids(tok, TEXT(""), SL_TOK_BOS, IDS(BOS));
    sl_ids ids = {0};
    CHECK_OK(sl_tokenize(tok, TEXT("<|begin_of_text|>a"), SL_TOK_BOS | SL_TOK_PLAIN, &ids, &err), err);
    CHECK(ids.n > 3 && ids.data[0] == BOS && ids.data[1] == '<');
    sl_ids_free(&ids);
    sl_tokenizer_free(tok);
}

static const test_case cases[] = {
    {"one_bos", NEEDS_NOTHING, one_bos},
    {"shared_cases", NEEDS_SHARED, shared_cases},
    {"marked", NEEDS_NOTHING, marked},
    {0},
};
extern const test_suite suite_added_tokens;
const test_suite suite_added_tokens = {"added_tokens", cases};
