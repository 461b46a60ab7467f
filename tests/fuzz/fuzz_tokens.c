// tests/fuzz/fuzz_tokens.c - tokenizer files, and texts and ids with the vocabularies of tests/vocabularies.
#include "tests/fuzz/fuzz.h"
#include "tokenizer/tokenizer.h"
#include "tokenizer/tokenizer_internal.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define DIR "tests/vocabularies/"

// ---- checks of every tokenizer ----

static void check_stream(const sl_tokenizer *tok, const int32_t *ids, size_t n, int specials) {
    sl_detok_stream s = sl_detok_begin(tok, specials, 1);
    sl_text text = {0}, whole = {0};
    sl_error err = {0};
    for (size_t i = 0; i < n; i++) FUZZ_CHECK(!sl_detok_next(&s, ids[i], &text, &err), err.message);
    FUZZ_CHECK(!sl_detok_end(&s, &text, &err), err.message);
    FUZZ_CHECK(!sl_detokenize(tok, ids, n, specials, &whole, &err), err.message);
    // the stream writes U+FFFD for bytes that are not UTF-8; without U+FFFD both outputs are equal
    if (!memmem(text.data, text.n, "\xef\xbf\xbd", 3))
        FUZZ_CHECK(text.n == whole.n && !memcmp(text.data, whole.data, text.n), text.data);
    sl_text_free(&text);
    sl_text_free(&whole);
}

// exact: the ids decode to the text. A normaliser or a pre-tokenizer may change or remove a part of a text.
static void check_text(const sl_tokenizer *tok, const char *text, size_t n, unsigned flags, int specials, int exact) {
    sl_ids ids = {0};
    sl_text back = {0};
    sl_error err = {0};
    if (fuzz_ok(sl_tokenize(tok, text, n, flags, &ids, &err), &err)) {
        for (size_t i = 0; i < ids.n; i++) FUZZ_CHECK(ids.data[i] >= 0 && ids.data[i] < sl_tokenizer_n_vocab(tok), "an id");
        FUZZ_CHECK(!sl_detokenize(tok, ids.data, ids.n, 1, &back, &err), err.message);
        if (exact && !(flags & SL_TOK_BOS)) FUZZ_CHECK(back.n == n && !memcmp(back.data, text, n), back.data);
        check_stream(tok, ids.data, ids.n, specials);
    }
    sl_ids_free(&ids);
    sl_text_free(&back);
}

static void check_loaded(const sl_tokenizer *tok) {
    static const char *const texts[] = {"", " Hello  world 123\n\n\t'll <s> <|eot_id|>",
                                        "\xc3\xa9\xe2\x96\x81\xf0\x9f\xa6\xa5\xff\xc3"};
    int n_vocab = sl_tokenizer_n_vocab(tok);
    int32_t bos = sl_tokenizer_bos(tok), eos = sl_tokenizer_eos(tok), ends[] = {0, n_vocab - 1};
    sl_text text = {0};
    sl_error err = {0};
    FUZZ_CHECK(n_vocab > 0 && bos >= -1 && bos < n_vocab && eos >= -1 && eos < n_vocab, "n_vocab, BOS or EOS");
    for (unsigned i = 0; i < 3; i++) check_text(tok, texts[i], strlen(texts[i]), i == 1 ? 0 : SL_TOK_PLAIN, 0, 0);
    check_text(tok, texts[1], strlen(texts[1]), SL_TOK_BOS, 1, 0);
    for (int id = 0; id < n_vocab && id < 512; id++) FUZZ_CHECK(!sl_detokenize(tok, &id, 1, 1, &text, &err), err.message);
    check_stream(tok, ends, 2, 1);
    for (int i = 0; i < 2; i++) {
        int32_t outside = i ? n_vocab : -1;
        FUZZ_CHECK(sl_detokenize(tok, &outside, 1, 1, &text, &err) == SL_ERR_ARG, "an id out of range");
    }
    sl_text_free(&text);
}

static void load(const char *data, size_t n, const char *first) {
    static const char *const names[] = {"tokenizer.json",
                                        "tokenizer.model",
                                        "tokenizer_config.json",
                                        "added_tokens.json",
                                        "special_tokens_map.json",
                                        "tekken.json",
                                        NULL};
    sl_tokenizer *tok;
    sl_error err = {0};
    fuzz_files(data, n, first, names);
    if (fuzz_ok(sl_tokenizer_load(&SL_FOLDER(fuzz_dir()), &tok, &err), &err)) {
        check_loaded(tok);
        sl_tokenizer_free(tok);
    }
    fuzz_remove_files(names);
}

void fuzz_bpe(const char *data, size_t n) {
    load(data, n, "tokenizer.json");
}

void fuzz_tokenizer_model(const char *data, size_t n) {
    load(data, n, "tokenizer.model");
}

void fuzz_tekken(const char *data, size_t n) {
    load(data, n, "tekken.json");
}

// ---- patterns ----

typedef struct pieces {
    const char *at, *end; // the rest of the text
} pieces;

static int take_piece(void *ctx, const char *piece, size_t n, int is_match, sl_error *err) {
    pieces *p = ctx;
    (void)err;
    FUZZ_CHECK(piece == p->at && n <= (size_t)(p->end - p->at) && (n > 0 || is_match), "a piece");
    p->at += n;
    return 0;
}

// The first line is a pattern, and the rest a text. The pieces must be the text.
void fuzz_pattern(const char *data, size_t n) {
    const char *end = memchr(data, '\n', n);
    size_t length = end ? (size_t)(end - data) : n, rest = end ? length + 1 : n;
    char *regex = strndup(data, length);
    sl_pattern *p;
    sl_error err = {0};
    FUZZ_CHECK(regex != NULL, "memory");
    if (fuzz_ok(sl_pattern_new("file", regex, &p, &err), &err)) {
        pieces pieces = {data + rest, data + n};
        if (fuzz_ok(sl_pattern_split(p, data + rest, n - rest, take_piece, &pieces, &err), &err))
            FUZZ_CHECK(pieces.at == pieces.end, "the rest of the text");
        sl_pattern_free(p);
    }
    free(regex);
}

// ---- texts ----

enum { N_VOCABULARIES = 4 };

static const sl_tokenizer *vocabulary(int which) { // loaded once
    static const char *const dirs[N_VOCABULARIES] = {DIR "bpe", DIR "llama", DIR "unigram", NULL};
    static sl_tokenizer *loaded[N_VOCABULARIES];
    sl_error err = {0};
    if (!loaded[which] && dirs[which])
        FUZZ_CHECK(!sl_tokenizer_load(&SL_FOLDER(dirs[which]), &loaded[which], &err), err.message);
    if (!loaded[which]) { // the rank file needs another name
        static char data[16384];
        FILE *f = fopen(DIR "bpe/ranks.model", "rb");
        FUZZ_CHECK(f != NULL, DIR "bpe/ranks.model");
        fuzz_write("tokenizer.model", data, fread(data, 1, sizeof data, f));
        fclose(f);
        FUZZ_CHECK(!sl_tokenizer_load(&SL_FOLDER(fuzz_dir()), &loaded[which], &err), err.message);
        fuzz_remove("tokenizer.model");
    }
    return loaded[which];
}

// Bits of the first byte: 0 and 1 select the vocabulary, 2 and 3 are flags, 4 adds special tokens, 5 means ids instead of a
// text.
void fuzz_text(const char *data, size_t n) {
    if (n == 0) return;
    int which = data[0] & 3;
    const sl_tokenizer *tok = vocabulary(which);
    int specials = data[0] >> 4 & 1;
    unsigned flags = data[0] >> 2 & 3;
    data++, n--;
    if (!(data[-1] & 32)) {
        int exact = !strcmp(sl_tokenizer_kind(tok), "tiktoken") || which == 0;
        check_text(tok, data, n, flags, specials, exact);
        return;
    }
    int32_t ids[1024];
    size_t n_ids = n / 2 < 1024 ? n / 2 : 1024;
    for (size_t i = 0; i < n_ids; i++)
        ids[i] = ((unsigned char)data[2 * i] | (unsigned char)data[2 * i + 1] << 8) % sl_tokenizer_n_vocab(tok);
    check_stream(tok, ids, n_ids, specials);
}
