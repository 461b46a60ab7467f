// tests/tokenizer/test_tekken.c - Mistral's tekken.json: ids, special tokens, texts and refused files, against mistral-common.
// scripts/goldens/make_tekken.py makes the small vocabulary and the goldens.
#include "tests/support/tokens.h"
#include "tests/support/venv.h"
#include "tests/test.h"
#include "tokenizer/tokenizer_internal.h"

#include <stdlib.h>
#include <string.h>

#define DIR "tests/vocabularies/tekken/"
static const char goldens[] = "tests/goldens/tekken.json";
enum { N_VOCAB = 530 };

static json_t *read_json(const char *path) {
    json_error_t e;
    json_t *root = json_load_file(path, JSON_ALLOW_NUL, &e);
    if (!root) FAIL("%s: %s", path, e.text);
    return root;
}

static void write_changed(const json_t *root) {
    char *text = json_dumps(root, 0);
    tokens_write("tekken.json", text, strlen(text));
    free(text);
}

static void small(void) {
    sl_tokenizer *tok = tokens_load(DIR);
    CHECK_STR(sl_tokenizer_kind(tok), "tekken");
    CHECK_STR(sl_tokenizer_version(tok), "v13");
    CHECK_INT(sl_tokenizer_n_vocab(tok), N_VOCAB);
    CHECK(sl_tokenizer_bos(tok) == 1 && sl_tokenizer_eos(tok) == 2 && sl_tokenizer_find(tok, "[THINK]") == 14);
    CHECK(sl_tokenizer_find(tok, "<SPECIAL_18>") == 18 && sl_tokenizer_find(tok, "<SPECIAL_29>") == 29);
    CHECK(sl_tokenizer_find(tok, "[TOOL_CONTENT]") == -1 && sl_tokenizer_find(tok, "<SPECIAL_30>") == -1);
    CHECK(sl_tokenizer_is_special(tok, 29) && !sl_tokenizer_is_special(tok, 30));
    CHECK(tokens_check_vectors(tok, DIR "vectors.jsonl", SL_TOK_PLAIN, "ids", SL_TOK_PLAIN, "text") >= 120);
    tokens_expect_ids(tok, TEXT("[INST]\xc3\xa9</s>"), SL_TOK_BOS, IDS(1, 3, 352, 2));
    tokens_check_stream(tok, TEXT("The quick brown river 12345 [INST] \xc3\xa9\xf0\x9f\x98\x80"));
    sl_tokenizer_free(tok);
}

// Up to version 7, a file need not name its special tokens. tokenizer.json has priority over tekken.json, and tekken.json over
// tokenizer.model.
static void old_and_order(void) {
    json_t *root = read_json(DIR "tekken.json"), *config = json_object_get(root, "config");
    CHECK(!json_object_set_new(config, "version", json_string("v3")) && !json_object_del(root, "special_tokens"));
    write_changed(root);
    tokens_link("tests/vocabularies/llama/tokenizer.model", "tokenizer.model");
    sl_tokenizer *tok = tokens_load(test_tmp());
    CHECK_STR(sl_tokenizer_version(tok), "v3");
    CHECK(sl_tokenizer_find(tok, "[TOOL_CONTENT]") == 19 && sl_tokenizer_find(tok, "<SPECIAL_20>") == 20);
    CHECK(tokens_check_vectors(tok, DIR "vectors.jsonl", SL_TOK_PLAIN, "ids", SL_TOK_PLAIN, "text") >= 120);
    sl_tokenizer_free(tok);
    tokens_link("tests/vocabularies/bpe/tokenizer.json", "tokenizer.json");
    tok = tokens_load(test_tmp());
    CHECK_STR(sl_tokenizer_kind(tok), "bpe");
    CHECK_STR(sl_tokenizer_version(tok), "");
    sl_tokenizer_free(tok);
    json_decref(root);
}

static void versions_of_names(void) { // the oldest version has priority
    static const char *const names[][2] = {
        {"tokenizer.model.v7m1", "v7"}, {"tokenizer.model.v3", "v3"}, {"tokenizer.model", ""}};
    for (size_t i = 0; i < 3; i++) {
        tokens_link("tests/vocabularies/llama/tokenizer.model", names[i][0]);
        sl_tokenizer *tok = tokens_load(test_tmp());
        CHECK_STR(sl_tokenizer_version(tok), names[i][1]);
        sl_tokenizer_free(tok);
    }
}

// ---- the published file ----

static size_t read_ids(const json_t *list, int32_t *ids, size_t most) {
    size_t n = json_array_size(list);
    CHECK(n <= most);
    for (size_t i = 0; i < n; i++) ids[i] = (int32_t)json_integer_value(json_array_get(list, i));
    return n;
}

static void check_text(const sl_tokenizer *tok, const int32_t *ids, size_t n, int specials, const json_t *want) {
    sl_text text = {0};
    sl_error err = {0};
    CHECK_OK(sl_detokenize(tok, ids, n, specials, &text, &err), err);
    if (text.n != json_string_length(want) || memcmp(text.data, json_string_value(want), text.n))
        FAIL("the text is %.80s, expected %.80s", text.data, json_string_value(want));
    sl_text_free(&text);
}

static void published(void) {
    char path[4200];
    int32_t ids[512];
    snprintf(path, sizeof path, "%s/tekken_240718.json", venv_file(VENV_MISTRAL));
    tokens_link(path, "tekken.json");
    json_t *root = read_json(goldens), *list = json_object_get(root, "specials");
    double start = tokens_now();
    sl_tokenizer *tok = tokens_load(test_tmp());
    printf("      tekken_240718.json loads in %.2f s\n", tokens_now() - start);
    CHECK_STR(sl_tokenizer_version(tok), "v3");
    CHECK_INT(sl_tokenizer_n_vocab(tok), json_integer_value(json_object_get(root, "n_words")));
    CHECK_INT(sl_tokenizer_bos(tok), json_integer_value(json_object_get(root, "bos")));
    CHECK_INT(sl_tokenizer_eos(tok), json_integer_value(json_object_get(root, "eos")));
    CHECK_INT(json_array_size(list), 25); // the last one is <SPECIAL_999>
    for (int32_t i = 0; i < 25; i++)
        CHECK_INT(sl_tokenizer_find(tok, json_string_value(json_array_get(list, (size_t)i))), i < 24 ? i : 999);
    list = json_object_get(root, "vectors");
    CHECK_INT(json_array_size(list), 240);
    for (size_t i = 0; i < 240; i++) {
        const json_t *row = json_array_get(list, i), *text = json_array_get(row, 0);
        size_t n = read_ids(json_array_get(row, 1), ids, 512);
        tokens_expect_ids(tok, json_string_value(text), json_string_length(text), SL_TOK_PLAIN, ids, n);
        check_text(tok, ids, n, 0, text);
    }
    list = json_object_get(root, "decoded");
    CHECK(json_array_size(list) >= 25);
    for (size_t i = 0; i < json_array_size(list); i++) {
        const json_t *row = json_array_get(list, i);
        size_t n = read_ids(json_array_get(row, 0), ids, 512);
        for (int specials = 0; specials < 2; specials++)
            check_text(tok, ids, n, specials, json_array_get(row, 1 + (size_t)specials));
    }
    sl_tokenizer_free(tok);
    json_decref(root);
}

// Base64, as Python's base64 writes it. No other character stands for a digit, and = stands only at the end.
static void base64(void) {
    static const char digits[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    char bytes[4], text[9] = "AAAAAAAA";
    for (int c = 1; c < 256; c++)
        for (int at = 0; at < 4; at++) {
            const char *digit = strchr(digits, c);
            memset(text, 'A', 8), text[at] = (char)c;
            int bits = digit ? (int)(digit - digits) << 6 * (3 - at) : 0, n = digit ? 3 : c == '=' && at == 3 ? 2 : -1;
            CHECK_INT(sl_decode64(text, 4, bytes), n);
            for (int i = 0; i < n; i++) CHECK_INT((unsigned char)bytes[i], bits >> 8 * (2 - i) & 255);
            char out[8];
            CHECK_INT(sl_decode64(text, 8, out), digit ? 6 : -1);
        }
    CHECK_INT(sl_decode64("/w==", 4, bytes), 1);
    CHECK_INT((unsigned char)bytes[0], 255);
    for (size_t n = 0; n < 8; n++) CHECK_INT(sl_decode64("AAAAAAAA", n, text), n == 4 ? 3 : -1);
}

// ---- refused files ----

static void refused(void) {
    static const struct {
        const char *object, *field, *json; // json NULL: the field is deleted
        int code;
        const char *says;
    } changes[] = {
        {"config", "version", "\"v99\"", SL_ERR_UNSUPPORTED, "config.version is v99"},
        {"config", "version", NULL, SL_ERR_UNSUPPORTED, "config.version is missing"},
        {"config", "pattern", NULL, SL_ERR_FORMAT, "config.pattern is missing"},
        {"config", "pattern", "\"a$\"", SL_ERR_UNSUPPORTED, "config.pattern: ^, $"},
        {"config", "pattern", "\"a\\\\b\"", SL_ERR_UNSUPPORTED, "config.pattern: ^, $"},
        {"config", "pattern", "\"(a\"", SL_ERR_UNSUPPORTED, "pre_tokenizer pattern"},
        {"config", "default_vocab_size", "0", SL_ERR_FORMAT, "default_vocab_size"},
        {"config", "default_vocab_size", "100000", SL_ERR_FORMAT, "vocab is too short"},
        {"config", "default_vocab_size", "280", SL_ERR_FORMAT, "no token for byte"},
        {"config", "default_num_special_tokens", "4", SL_ERR_FORMAT, "18 special tokens"},
        {"config", "default_num_special_tokens", "531", SL_ERR_FORMAT, "default_num_special_tokens"},
        {NULL, "config", "[]", SL_ERR_FORMAT, "config is a list"},
        {NULL, "vocab", "{}", SL_ERR_FORMAT, "vocab is an object"},
        {NULL, "special_tokens", NULL, SL_ERR_FORMAT, "special_tokens is missing"},
        {NULL, "special_tokens", "[{\"rank\": 1, \"token_str\": \"<s>\"}]", SL_ERR_FORMAT, "entry 0 has rank 1"},
        {NULL, "special_tokens", "[{\"rank\": 0, \"token_str\": \"\"}]", SL_ERR_FORMAT, "no text"},
        {NULL, "special_tokens", "[{\"rank\": 0, \"token_str\": \"<s>\"}, {\"rank\": 1, \"token_str\": \"<s>\"}]",
         SL_ERR_FORMAT, "<s>"},
        {"0", "rank", "7", SL_ERR_FORMAT, "vocab: entry 0 has rank 7"},
        {"0", "token_bytes", "\"AQ==\"", SL_ERR_FORMAT, "token"},
        {"300", "token_bytes", "\"*\"", SL_ERR_FORMAT, "entry 300 has rank 300 and no token_bytes"},
        {"300", "token_bytes", "5", SL_ERR_FORMAT, "token_bytes"},
    };
    for (size_t i = 0; i < sizeof changes / sizeof *changes; i++) {
        json_t *root = read_json(DIR "tekken.json"), *object = root;
        const char *name = changes[i].object;
        sl_tokenizer *tok;
        sl_error err = {0};
        if (name) object = json_object_get(root, name);
        if (name && !object) object = json_array_get(json_object_get(root, "vocab"), strtoul(name, NULL, 10));
        CHECK(object != NULL);
        if (changes[i].json)
            CHECK(!json_object_set_new(object, changes[i].field, json_loads(changes[i].json, JSON_DECODE_ANY, NULL)));
        else
            CHECK(!json_object_del(object, changes[i].field));
        write_changed(root);
        CHECK_ERR(sl_tokenizer_load(&SL_FOLDER(test_tmp()), &tok, &err), err, changes[i].code, changes[i].says);
        CHECK(strstr(err.message, "tekken.json") != NULL);
        json_decref(root);
    }
}

static const test_case cases[] = {
    {"small", NEEDS_NOTHING, small},
    {"old_and_order", NEEDS_NOTHING, old_and_order},
    {"versions_of_names", NEEDS_NOTHING, versions_of_names},
    {"published", NEEDS_NOTHING, published},
    {"base64", NEEDS_NOTHING, base64},
    {"refused", NEEDS_NOTHING, refused},
    {0},
};
const test_suite suite_tekken = {"tekken", cases};
