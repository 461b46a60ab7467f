// tests/tokenizer/test_added_tokens.c - which added tokens a text holds: spans of users' text, flags of tokens, overlaps.
#include "tests/support/run_cli.h"
#include "tests/support/tokens.h"
#include "tests/test.h"

#include <stdlib.h>
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

// Changes the folder's tokenizer.json: post_processor null if there is no template.
static void write_folder(int has_template, const char *config) {
    json_t *root = json_load_file("tests/vocabularies/bpe/tokenizer.json", 0, NULL);
    CHECK(root && (has_template || !json_object_set_new(root, "post_processor", json_null())));
    char *text = json_dumps(root, 0);
    tokens_write("tokenizer.json", text, strlen(text));
    tokens_write("tokenizer_config.json", config, strlen(config));
    free(text);
    json_decref(root);
}

// add_bos_token wins over the post-processor. Where nothing adds BOS, `tokenize --bos` says so.
static void added_bos(void) {
#define BOS_TOKEN "\"bos_token\": \"<|begin_of_text|>\""
    static const struct {
        int has_template;
        const char *config, *out, *says;
    } rows[] = {
        {1, "{}", "615,97\n", NULL},
        {1, "{\"add_bos_token\": true}", "615,97\n", NULL},
        {1, "{\"add_bos_token\": false}", "97\n", "does not put its BOS <|begin_of_text|> before a text"},
        {0, "{" BOS_TOKEN ", \"add_bos_token\": true}", "615,97\n", NULL},
        {0, "{" BOS_TOKEN "}", "97\n", "does not put its BOS <|begin_of_text|> before a text"},
        {0, "{\"add_bos_token\": true}", "97\n", "this tokenizer has no BOS"},
        {0, "{}", "97\n", "this tokenizer has no BOS"},
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        write_folder(rows[i].has_template, rows[i].config);
        result r = RUN("tokenize", "--bos", "-m", test_tmp(), "-p", "a");
        CHECK_GOOD(r);
        if (strcmp(r.out, rows[i].out)) FAIL("row %zu: %s, expected %s", i, r.out, rows[i].out);
        if (rows[i].says) CHECK_HAS(r.err, rows[i].says);
        if (!rows[i].says) CHECK_STR(r.err, "");
        r = RUN("tokenize", "-m", test_tmp(), "-p", "a");
        CHECK_STR(r.out, "97\n");
        CHECK_STR(r.err, "");
    }
    sl_tokenizer *tok = NULL;
    write_folder(1, "{\"add_eos_token\": true}");
    CHECK_ERR(sl_tokenizer_load(&SL_FOLDER(test_tmp()), &tok, &err), err, SL_ERR_UNSUPPORTED, "field add_eos_token is true");
}

// ---- the four files ----

enum { N_BPE = 626 }; // ids of tests/vocabularies/bpe

// The union of the tokens of all files. The flags of tokenizer_config.json win over those of tokenizer.json.
static void four_files(void) {
    static const char config[] =
        "{\"added_tokens_decoder\": {\"626\": {\"content\": \"<a>\", \"lstrip\": true, \"special\": true},"
        "  \"624\": {\"content\": \"<|eot_id|>\", \"rstrip\": true, \"special\": true}},"
        " \"pad_token\": \"zyzzyva\", \"eos_token\": \"<|eot_id|>\", \"mask_token\": null}";
    static const char added[] = "{\"<a>\": 626, \"<b>\": 627, \"<far>\": 4000000}";
    static const char map[] = "{\"unk_token\": {\"content\": \"<b>\"}, \"additional_special_tokens\": [\"quixotic\", "
                              "{\"content\": \"\\u0120quixotic\"}]}";
    write_folder(1, config);
    tokens_write("added_tokens.json", TEXT(added));
    tokens_write("special_tokens_map.json", TEXT(map));
    sl_tokenizer *tok = tokens_load(test_tmp());
    int32_t word = sl_tokenizer_find(tok, "zyzzyva");
    CHECK(word >= 256 && word < 615); // a token of the model that a file names special
    CHECK(sl_tokenizer_is_special(tok, N_BPE) && sl_tokenizer_is_special(tok, N_BPE + 1) && sl_tokenizer_is_special(tok, word));
    CHECK(!sl_tokenizer_is_special(tok, 4000000) && sl_tokenizer_n_vocab(tok) == 4000001);
    CHECK_INT(sl_tokenizer_eos(tok), 624);
    CHECK_INT(sl_tokenizer_find(tok, "quixotic"), -1); // no token has this text
    tokens_expect_ids(tok, TEXT("a  <a>b<|eot_id|>  c<b><far>xzyzzyva"), 0,
                      (const int32_t[]){'a', N_BPE, 'b', 624, 'c', N_BPE + 1, 4000000, 'x', word}, 9);
    tokens_expect_text(tok, IDS(N_BPE, 4000000), TEXT("<a><far>"));
    sl_tokenizer_free(tok);
}

// A rank file names no tokens. Without other files its special tokens are those of Llama 3.
static void rank_file(void) {
    static const char config[] =
        "{\"added_tokens_decoder\": {\"615\": {\"content\": \"<s>\", \"special\": true}}, \"bos_token\": \"<s>\", "
        "\"add_bos_token\": true}";
    tokens_link("tests/vocabularies/bpe/ranks.model", "tokenizer.model");
    tokens_write("tokenizer_config.json", TEXT(config));
    sl_tokenizer *tok = tokens_load(test_tmp());
    CHECK_STR(sl_tokenizer_kind(tok), "tiktoken");
    CHECK_INT(sl_tokenizer_n_vocab(tok), 616);
    CHECK_INT(sl_tokenizer_find(tok, "<|begin_of_text|>"), -1);
    tokens_expect_ids(tok, TEXT("a<s>"), SL_TOK_BOS, IDS(615, 'a', 615));
    sl_tokenizer_free(tok);
}

static void contradictions(void) {
    static const struct {
        const char *config, *added, *says;
    } rows[] = {
        {"{\"added_tokens_decoder\": {\"5\": {\"content\": \"<a>\"}}}", "{}",
         "\"<a>\" has the id 5 of another token of the vocabulary"},
        {"{\"added_tokens_decoder\": {\"700\": {\"content\": \"<|eot_id|>\"}}}", "{}",
         "text <|eot_id|>: the ids are 624 and 700"},
        {"{\"added_tokens_decoder\": {\"626\": {\"content\": \"<a>\"}}}", "{\"<b>\": 626}", "have the id 626: <a> and <b>"},
        {"{\"added_tokens_decoder\": {\"626\": {\"content\": \"<a>\"}}}", "{\"<a>\": 627}",
         "text <a>: the ids are 626 and 627"},
        {"{\"added_tokens_decoder\": {\"626\": {\"content\": \"a\"}}}", "{}",
         "\"a\" has the id 626, but the vocabulary gives it 97"},
        {"{\"added_tokens_decoder\": {\"626\": {}}}", "{}", "\"626\": expected an id from 0 to"},
        {"{\"added_tokens_decoder\": {\"\": {\"content\": \"<a>\"}}}", "{}", "\"\": expected an id from 0 to"},
        {"{\"added_tokens_decoder\": {\"7x\": {\"content\": \"<a>\"}}}", "{}", "\"7x\": expected an id from 0 to"},
        {"{\"added_tokens_decoder\": {\"-1\": {\"content\": \"<a>\"}}}", "{}", "\"-1\": expected an id from 0 to"},
        {"{\"added_tokens_decoder\": {\"16777216\": {\"content\": \"<a>\"}}}", "{}", "expected an id from 0 to 16777215"},
        {"{\"added_tokens_decoder\": []}", "{}", "field added_tokens_decoder is a list, expected an object"},
        {"{}", "{\"<a>\": -1}", "\"<a>\" has no id from 0 to"},
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        sl_tokenizer *tok = NULL;
        write_folder(1, rows[i].config);
        tokens_write("added_tokens.json", rows[i].added, strlen(rows[i].added));
        CHECK_ERR(sl_tokenizer_load(&SL_FOLDER(test_tmp()), &tok, &err), err, SL_ERR_FORMAT, rows[i].says);
    }
}

// Special tokens that are searched in the normalised text: a span of the text is a span of the normalised text.
static void marked_normalised(void) {
    enum { MARK = 700 };
    static const char text[] = "<m> b <m> e\u0301 <m>"; // <m> stands at the bytes 0, 6 and 14
    static const struct {
        sl_span plain;
        int found[3];
    } rows[] = {{{0, 0}, {1, 1, 1}},  {{0, 1}, {0, 1, 1}},  {{0, 5}, {0, 1, 1}},   {{2, 3}, {0, 1, 1}},
                {{6, 13}, {1, 0, 1}}, {{8, 15}, {1, 0, 0}}, {{14, 17}, {1, 1, 0}}, {{9, 14}, {1, 1, 1}}};
    json_t *root = json_load_file("tests/vocabularies/llama/tokenizer.json", 0, NULL);
    json_t *token = json_pack("{s:i,s:s,s:b,s:b}", "id", MARK, "content", "<m>", "special", 1, "normalized", 1);
    json_t *steps = json_object_get(json_object_get(root, "normalizer"), "normalizers");
    CHECK(root && !json_array_append_new(json_object_get(root, "added_tokens"), token) &&
          !json_array_insert_new(steps, 1, json_pack("{s:s}", "type", "NFC")));
    char *json = json_dumps(root, 0);
    tokens_write("tokenizer.json", json, strlen(json));
    sl_tokenizer *tok = tokens_load(test_tmp());
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        sl_ids ids = {0};
        sl_text shown = {0};
        int n = 0, want = 0;
        CHECK_OK(sl_tokenize_marked(tok, TEXT(text), &rows[i].plain, 1, 0, &ids, &err), err);
        for (size_t k = 0; k < ids.n; k++) n += ids.data[k] == MARK;
        for (int k = 0; k < 3; k++) want += rows[i].found[k];
        if (n != want) FAIL("row %zu: %d special tokens, expected %d", i, n, want);
        CHECK_OK(sl_detokenize(tok, ids.data, ids.n, 0, &shown, &err), err); // the plain ones are shown
        for (int k = 0, at = 0; k < 3; k++) {
            const char *mark = strstr(shown.data + at, "<m>");
            if (!rows[i].found[k]) CHECK(mark != NULL);
            if (!rows[i].found[k]) at = (int)(mark - shown.data) + 3;
        }
        sl_ids_free(&ids);
        sl_text_free(&shown);
    }
    sl_tokenizer_free(tok);
    free(json);
    json_decref(root);
}

static const test_case cases[] = {
    {"one_bos", NEEDS_NOTHING, one_bos},
    {"added_bos", NEEDS_NOTHING, added_bos},
    {"four_files", NEEDS_NOTHING, four_files},
    {"rank_file", NEEDS_NOTHING, rank_file},
    {"contradictions", NEEDS_NOTHING, contradictions},
    {"marked_normalised", NEEDS_NOTHING, marked_normalised},
    {"shared_cases", NEEDS_SHARED, shared_cases},
    {"marked", NEEDS_NOTHING, marked},
    {0},
};
extern const test_suite suite_added_tokens;
const test_suite suite_added_tokens = {"added_tokens", cases};
