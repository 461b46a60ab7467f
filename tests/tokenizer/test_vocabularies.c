// tests/tokenizer/test_vocabularies.c - compares Sleigh's ids with other encoders' ids, on the small vocabularies of
// tests/vocabularies, one of each kind. The vectors of real vocabularies need files outside the checkout
// (tests/tokenizer/test_tokenizer.c).
#include "tests/test.h"
#include "tests/support/tokens.h"
#include "tokenizer/chat/chat.h"
#include "tokenizer/tokenizer_internal.h"

#include <stdlib.h>
#include <string.h>

#define DIR "tests/vocabularies/"
static const char bpe_vectors[] = DIR "bpe/vectors.jsonl", llama_vectors[] = DIR "llama/vectors.jsonl",
                  unigram_vectors[] = DIR "unigram/vectors.jsonl", qwen_vectors[] = DIR "qwen/vectors.jsonl";
enum { N_RANKS = 615, BOS = N_RANKS, EOS = N_RANKS + 1, EOT = N_RANKS + 9 }; // of bpe/

static sl_error err;

static json_t *read_json(const char *path) {
    json_error_t e;
    json_t *root = json_load_file(path, 0, &e);
    if (!root) FAIL("%s: %s", path, e.text);
    return root;
}

static sl_tokenizer *load_changed(const json_t *root) { // as test_tmp()/tokenizer.json
    char *text = json_dumps(root, 0);
    tokens_write("tokenizer.json", text, strlen(text));
    free(text);
    return tokens_load(test_tmp());
}

// ---- byte-level BPE ----

static void bpe_json(void) {
    sl_tokenizer *tok = tokens_load(DIR "bpe");
    CHECK_STR(sl_tokenizer_kind(tok), "bpe");
    CHECK(sl_tokenizer_n_vocab(tok) == N_RANKS + 11 && sl_tokenizer_bos(tok) == BOS);
    CHECK(tokens_check_vectors(tok, bpe_vectors, 0, "ids_plain", SL_TOK_PLAIN, "text") >= 150);
    sl_tokenizer_free(tok);
}

static void bpe_ranks(void) {
    tokens_link(DIR "bpe/ranks.model", "tokenizer.model");
    sl_tokenizer *tok = tokens_load(test_tmp());
    CHECK_STR(sl_tokenizer_kind(tok), "tiktoken");
    CHECK(sl_tokenizer_n_vocab(tok) == N_RANKS + 256 && sl_tokenizer_bos(tok) == BOS && sl_tokenizer_eos(tok) == EOS);
    CHECK(tokens_check_vectors(tok, bpe_vectors, 0, "ids_plain", SL_TOK_PLAIN, "text") >= 150);
    sl_tokenizer_free(tok);
}

// Writes a rank file of the 256 bytes and "he" with this end of line. last: the last line ends with it too.
static size_t small_ranks(char *out, size_t cap, const char *end, int last) {
    static const char digit[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    size_t n = 0;
    for (int b = 0; b < 256; b++)
        n += (size_t)snprintf(out + n, cap - n, "%c%c== %d%s", digit[b >> 2], digit[(b & 3) << 4], b, end);
    n += (size_t)snprintf(out + n, cap - n, "aGU= 256%s", last ? end : "");
    CHECK(n < cap);
    return n;
}

static void ends_of_line(void) {
    static const char *const ends[] = {"\n", "\r\n"};
    static char ranks[8192];
    for (int i = 0; i < 4; i++) {
        tokens_write("tokenizer.model", ranks, small_ranks(ranks, sizeof ranks, ends[i % 2], i / 2));
        sl_tokenizer *tok = tokens_load(test_tmp());
        CHECK_STR(sl_tokenizer_kind(tok), "tiktoken");
        CHECK_INT(sl_tokenizer_n_vocab(tok), 257 + 256);
        tokens_expect_ids(tok, TEXT("he\r\n"), 0, IDS(256, '\r', '\n'));
        sl_tokenizer_free(tok);
    }
    sl_tokenizer *tok = NULL;
    static const char *const wrong[] = {"QQ== 0\r\r\nQg== 1\r\n", "QQ== 0\rQg== 1\r"};
    tokens_write("tokenizer.model", wrong[0], strlen(wrong[0]));
    CHECK_ERR(sl_tokenizer_load(&SL_FOLDER(test_tmp()), &tok, &err), err, SL_ERR_FORMAT, "tokenizer.model");
    tokens_write("tokenizer.model", wrong[1], strlen(wrong[1]));
    CHECK_ERR(sl_tokenizer_load(&SL_FOLDER(test_tmp()), &tok, &err), err, SL_ERR_FORMAT, "tokenizer.model");
    tokens_write("tokenizer.model", "QQ== 0\r\n\r\n", 10);
    CHECK_ERR(sl_tokenizer_load(&SL_FOLDER(test_tmp()), &tok, &err), err, SL_ERR_FORMAT, "line 2");
}

static void bpe_merges(void) { // without ignore_merges, a word is one token only if merges lead to it
    json_t *root = read_json(DIR "bpe/tokenizer.json"), *model = json_object_get(root, "model");
    for (int i = 0; i < 3; i++) { // false, null, not given
        if (i < 2) CHECK(!json_object_set_new(model, "ignore_merges", i ? json_null() : json_false()));
        if (i == 2) CHECK(!json_object_del(model, "ignore_merges"));
        sl_tokenizer *tok = load_changed(root);
        FILE *f = fopen(bpe_vectors, "r");
        int n = 0;
        CHECK(f != NULL);
        for (json_t *row; (row = json_loadf(f, JSON_DISABLE_EOF_CHECK | JSON_ALLOW_NUL, NULL)); json_decref(row)) {
            const json_t *text = json_object_get(row, "text"), *ids = json_object_get(row, "merged");
            int32_t want[256];
            n += ids != NULL;
            if (!ids) ids = json_object_get(row, "ids");
            CHECK(json_array_size(ids) <= 256);
            for (size_t j = 0; j < json_array_size(ids); j++) want[j] = (int32_t)json_integer_value(json_array_get(ids, j));
            tokens_expect_ids(tok, json_string_value(text), json_string_length(text), 0, want, json_array_size(ids));
        }
        CHECK_INT(n, 3);
        fclose(f);
        sl_tokenizer_free(tok);
    }
    json_decref(root);
}

static void bpe_added(void) { // the longest token at a place counts; of two tokens that overlap, the first counts
    json_t *root = read_json(DIR "bpe/tokenizer.json"), *added = json_object_get(root, "added_tokens");
    FILE *f = fopen(DIR "bpe/added/tokens.jsonl", "r");
    CHECK(f != NULL);
    for (json_t *row; (row = json_loadf(f, JSON_DISABLE_EOF_CHECK, NULL));) {
        CHECK(!json_object_set(row, "content", json_object_get(row, "text")));
        CHECK(!json_array_append_new(added, row));
    }
    fclose(f);
    sl_tokenizer *tok = load_changed(root);
    CHECK_INT(sl_tokenizer_n_vocab(tok), N_RANKS + 11 + 6);
    CHECK(tokens_check_vectors(tok, DIR "bpe/added/vectors.jsonl", 0, "ids", SL_TOK_PLAIN, "text") >= 9);
    sl_tokenizer_free(tok);
    json_decref(root);
}

// ---- Qwen: byte-level BPE with NFC ----

static void qwen_json(void) {
    enum { N_TOKENS = 560, ENDOFTEXT = N_TOKENS, IM_START, IM_END, THINK = N_TOKENS + 24 };
    static const char text[] = "<|im_end|><think>e\u0301", plain_start[] = "<think>\u00e9";
    sl_tokenizer *tok = tokens_load(DIR "qwen");
    sl_text shown = {0};
    CHECK_STR(sl_tokenizer_kind(tok), "bpe");
    CHECK(sl_tokenizer_n_vocab(tok) == N_TOKENS + 26 && sl_tokenizer_bos(tok) == -1 && sl_tokenizer_eos(tok) == IM_END);
    CHECK(sl_tokenizer_find(tok, "<|endoftext|>") == ENDOFTEXT && sl_tokenizer_find(tok, "<think>") == THINK);
    CHECK(sl_tokenizer_is_special(tok, IM_START) && !sl_tokenizer_is_special(tok, THINK));
    CHECK(tokens_check_vectors(tok, qwen_vectors, 0, "ids_plain", SL_TOK_PLAIN, "decoded") >= 180);
    sl_ids ids = {0};
    CHECK_OK(sl_tokenize(tok, TEXT(text), SL_TOK_BOS, &ids, &err), err); // there is no BOS
    CHECK(ids.n > 2 && ids.data[0] == IM_END && ids.data[1] == THINK);
    CHECK_OK(sl_detokenize(tok, ids.data, ids.n, 0, &shown, &err), err); // <think> is no special token
    CHECK_STR(shown.data, plain_start);
    sl_text_free(&shown);
    sl_ids_free(&ids);
    sl_tokenizer_free(tok);
}

static void expect_nfc(const char *text, size_t n, const char *want, size_t n_want) {
    sl_text out = {0};
    CHECK_OK(sl_nfc_append(text, n, &out, &err), err);
    if (out.n != n_want || memcmp(out.data, want, n_want)) FAIL("%.60s became %.60s, expected %.60s", text, out.data, want);
    sl_text_free(&out);
}

static void nfc(void) { // the vectors test the tables; here: other bytes, long runs, files
    enum { SIZE = 1 << 20 };
    expect_nfc(TEXT("e\xff\xcc\x81 e\xcc\x81\xcc"), TEXT("e\xff\xcc\x81 \u00e9\xcc")); // the byte 0xff parts them
    expect_nfc(TEXT("e\0\u0301e\u0301\0"), TEXT("e\0\u0301\u00e9\0"));
    expect_nfc(TEXT("\xed\xa0\x80\xf4\x90\x80\x80"), TEXT("\xed\xa0\x80\xf4\x90\x80\x80"));
    CHECK(sl_nfc_is(TEXT("na\u00efve \u02ff")) && !sl_nfc_is(TEXT("e\u0301")));

    // A run of n marks in the wrong order takes n log n steps. Sorting by insertion would take minutes.
    static const char *const units[] = {"\u0301\u0323", "\u0f73", "\uac00\u11a8", "\u01d5"};
    sl_tokenizer *tok = tokens_load(DIR "qwen");
    char *text = malloc(SIZE);
    CHECK(text != NULL);
    for (size_t u = 0; u < sizeof units / sizeof *units; u++) {
        size_t len = strlen(units[u]), n = SIZE / len * len;
        sl_ids ids = {0};
        for (size_t i = 0; i < n; i++) text[i] = units[u][i % len];
        double start = tokens_now();
        CHECK_OK(sl_tokenize(tok, text, n, 0, &ids, &err), err);
        if (tokens_now() - start > 2 * TOKENS_SLOWER)
            FAIL("1 MB of unit %zu took %.2f s, expected less than 2", u, tokens_now() - start);
        sl_ids_free(&ids);
    }
    free(text);
    sl_tokenizer_free(tok);
}

// ---- SentencePiece ----

static void llama_json(void) { // a tokenizer.json wins over a tokenizer.model
    sl_tokenizer *tok = tokens_load(DIR "llama");
    CHECK_STR(sl_tokenizer_kind(tok), "bpe");
    CHECK(sl_tokenizer_n_vocab(tok) == 700 && sl_tokenizer_bos(tok) == 1 && sl_tokenizer_eos(tok) == 2);
    CHECK(tokens_check_vectors(tok, llama_vectors, SL_TOK_PLAIN, "ids_hf", 0, NULL) >= 150);
    sl_tokenizer_free(tok);
}

static void llama_model(void) {
    tokens_link(DIR "llama/tokenizer.model", "tokenizer.model");
    sl_tokenizer *tok = tokens_load(test_tmp());
    CHECK_STR(sl_tokenizer_kind(tok), "sentencepiece");
    CHECK(sl_tokenizer_n_vocab(tok) == 700 && sl_tokenizer_bos(tok) == 1 && sl_tokenizer_eos(tok) == 2);
    CHECK(tokens_check_vectors(tok, llama_vectors, SL_TOK_PLAIN, "ids_hf", 0, "decoded") >= 150);
    sl_tokenizer_free(tok);
}

static void unigram_model(void) {
    tokens_link(DIR "unigram/tokenizer.model", "tokenizer.model");
    sl_tokenizer *tok = tokens_load(test_tmp());
    CHECK_STR(sl_tokenizer_kind(tok), "sentencepiece");
    CHECK(sl_tokenizer_n_vocab(tok) == 400 && sl_tokenizer_bos(tok) == -1 && sl_tokenizer_eos(tok) == 2);
    CHECK(tokens_check_vectors(tok, unigram_vectors, SL_TOK_PLAIN, "ids", SL_TOK_PLAIN, "decoded") >= 150);
    sl_tokenizer_free(tok);
}

// Adds a second normalizer_spec at the end of the file. Its add_dummy_prefix and remove_extra_whitespaces replace the first
// ones.
static void blanks_at_start(void) {
    static const struct {
        const char *folder, *vectors;
    } models[] = {{DIR "llama/tokenizer.model", llama_vectors}, {DIR "unigram/tokenizer.model", unigram_vectors}};
    static const struct {
        char prefix, squeeze;
        const char *field;
    } blanks[] = {{0, 0, "strip_none"}, {1, 0, "strip_one"}, {0, 1, "strip_all"}, {1, 1, "strip_all"}};
    for (int i = 0; i < 8; i++) {
        char data[1 << 16];
        FILE *f = fopen(models[i / 4].folder, "rb");
        CHECK(f != NULL);
        size_t n = fread(data, 1, sizeof data - 6, f);
        CHECK(n > 1000 && n < sizeof data - 6);
        fclose(f);
        const char spec[] = {3 << 3 | 2, 4, 3 << 3, blanks[i % 4].prefix, 4 << 3, blanks[i % 4].squeeze};
        memcpy(data + n, spec, sizeof spec);
        tokens_write("tokenizer.model", data, n + sizeof spec);
        sl_tokenizer *tok = tokens_load(test_tmp());
        f = fopen(models[i / 4].vectors, "r");
        CHECK(f != NULL);
        for (json_t *row; (row = json_loadf(f, JSON_DISABLE_EOF_CHECK | JSON_ALLOW_NUL, NULL)); json_decref(row)) {
            const json_t *list = json_object_get(row, "ids"), *want = json_object_get(row, blanks[i % 4].field);
            int32_t ids[256];
            if (!want) want = json_object_get(row, "decoded");
            if (!want) want = json_object_get(row, "text");
            CHECK(json_array_size(list) <= 256);
            for (size_t j = 0; j < json_array_size(list); j++) ids[j] = (int32_t)json_integer_value(json_array_get(list, j));
            tokens_expect_text(tok, ids, json_array_size(list), json_string_value(want), json_string_length(want));
        }
        fclose(f);
        sl_tokenizer_free(tok);
    }
}

// ---- streaming and speed ----

static void streaming(void) { // covers bytes without a piece, and blanks that decoding drops at the start
    static const char *const folders[] = {DIR "bpe", DIR "llama", DIR "unigram", DIR "qwen"};
    static const char text[] = " Hello \U0001f9a5\u0f40 world\n\u4f60\u1234 <s> caf\u00e9 caf\u00e9";
    for (size_t i = 0; i < sizeof folders / sizeof *folders; i++) {
        sl_tokenizer *tok = tokens_load(folders[i]);
        tokens_check_stream(tok, TEXT(text));
        tokens_check_stream(tok, TEXT("   a  b and the rest of the words of this line"));
        sl_tokenizer_free(tok);
    }
}

static void speed(void) {
    sl_tokenizer *tok = tokens_load(DIR "bpe");
    double rate = tokens_prose_rate(tok, N_RANKS, 1000000);
    printf("      tests/vocabularies/bpe on prose: %.1f MB/s\n", rate);
    if (rate < TOKENS_MIN_RATE) FAIL("%.1f MB/s, expected at least %d", rate, TOKENS_MIN_RATE);
    sl_tokenizer_free(tok);
}

// ---- BOS ----

// Loads the folder's tokenizer with this tokenizer_config.json, and checks its BOS and EOS, and whether it adds BOS to a text.
static void expect_bos(const char *config, int bos, int eos, int added) {
    tokens_write("tokenizer_config.json", config, strlen(config));
    sl_tokenizer *tok = tokens_load(test_tmp());
    sl_ids ids = {0};
    if (sl_tokenizer_bos(tok) != bos || sl_tokenizer_eos(tok) != eos)
        FAIL("%s: BOS %d, EOS %d, expected %d, %d", config, sl_tokenizer_bos(tok), sl_tokenizer_eos(tok), bos, eos);
    CHECK_OK(sl_tokenize(tok, "hi", 2, SL_TOK_BOS, &ids, &err), err);
    int has = ids.n > 0 && ids.data[0] == bos, twice = ids.n > 1 && ids.data[1] == bos;
    if (has != added || twice) FAIL("%s: BOS %d times or more before a text, expected %d", config, has + twice, added);
    ids.n = 0;
    CHECK_OK(sl_tokenize(tok, "hi", 2, 0, &ids, &err), err);
    for (size_t i = 0; i < ids.n; i++) CHECK(ids.data[i] != bos);
    sl_ids_free(&ids);
    sl_tokenizer_free(tok);
}

static void bos_of_template(void) { // tokenizer.json wins over tokenizer_config.json
    json_t *root = read_json(DIR "bpe/tokenizer.json");
    sl_tokenizer_free(load_changed(root));
    expect_bos("{}", BOS, -1, 1);
    expect_bos("{\"add_bos_token\":true,\"bos_token\":\"<|begin_of_text|>\"}", BOS, -1, 1);
    expect_bos("{\"add_bos_token\":null,\"bos_token\":null,\"eos_token\":null}", BOS, -1, 1);
    expect_bos("{\"add_bos_token\":false,\"bos_token\":\"<|begin_of_text|>\"}", BOS, -1, 0);
    expect_bos("{\"bos_token\":\"<|end_of_text|>\",\"eos_token\":\"<|eot_id|>\"}", BOS, EOT, 1);
    expect_bos("{\"bos_token\":{\"content\":\"<|eot_id|>\"},\"eos_token\":{\"content\":\"<|end_of_text|>\"}}", BOS, EOS, 1);
    expect_bos("{\"eos_token\":\"no such token\"}", BOS, -1, 1);
    static const char wrong[] = "{\"add_bos_token\":\"no\"}";
    sl_tokenizer *tok;
    tokens_write("tokenizer_config.json", wrong, sizeof wrong - 1);
    CHECK_ERR(sl_tokenizer_load(&SL_FOLDER(test_tmp()), &tok, &err), err, SL_ERR_FORMAT,
              "tokenizer_config.json: field add_bos_token is a string, expected true or false");

    CHECK(!json_object_set_new(root, "post_processor", json_null())); // no template: BOS is known and not added
    tokens_write("tokenizer_config.json", "{}", 2);
    sl_tokenizer_free(load_changed(root));
    expect_bos("{}", -1, -1, 0);
    expect_bos("{\"bos_token\":\"<|begin_of_text|>\",\"eos_token\":\"<|eot_id|>\"}", BOS, EOT, 0);
    json_decref(root);
}

static void bos_of_model(void) {
    tokens_link(DIR "llama/tokenizer.model", "tokenizer.model");
    expect_bos("{}", 1, 2, 1);
    expect_bos("{\"add_bos_token\":false}", 1, 2, 0);
    expect_bos("{\"add_bos_token\":null}", 1, 2, 1);
    expect_bos("{\"bos_token\":\"</s>\",\"eos_token\":\"<s>\"}", 1, 1, 1); // the EOS of tokenizer_config.json wins
}

static void bos_of_chat(void) { // a prompt holds the BOS that its template writes, and no second one
    static const sl_message m[] = {{"user", "Hello", 5}, {"assistant", "Hi", 2}, {"user", "Who are you", 11}};
    static const struct {
        const char *name, *folder;
        int bos, n;
    } chats[] = {
        {"llama3", DIR "bpe", BOS, 1}, {"llama3.1", DIR "bpe", BOS, 1},   {"llama3.2", DIR "bpe", BOS, 1},
        {"llama2", DIR "llama", 1, 2}, {"mistral-v0", DIR "llama", 1, 1}, {"mistral-v1", DIR "llama", 1, 1},
        {"vicuna", DIR "llama", 1, 1}, {"zephyr", DIR "llama", 1, 1}, // it writes none, and the tokenizer adds one
    };
    for (size_t i = 0; i < sizeof chats / sizeof *chats; i++) {
        sl_tokenizer *tok = tokens_load(chats[i].folder);
        sl_chat_template *t = NULL;
        json_t *messages = sl_chat_messages(m, 3);
        sl_prompt prompt = {0};
        sl_ids ids = {0};
        int n = 0;
        CHECK_OK(sl_chat_load(&SL_FOLDER(test_tmp()), chats[i].name, &t, &err), err);
        CHECK_OK(sl_chat_render(t, tok, &(sl_chat_request){.messages = messages}, &prompt, &err), err);
        CHECK_OK(sl_chat_tokenize(t, tok, &prompt, &ids, &err), err);
        for (size_t j = 0; j < ids.n; j++) n += ids.data[j] == chats[i].bos;
        if (n != chats[i].n || (n && ids.data[0] != chats[i].bos))
            FAIL("%s: BOS %d times, expected %d", chats[i].name, n, chats[i].n);
        json_decref(messages);
        sl_chat_template_free(t);
        sl_prompt_free(&prompt);
        sl_ids_free(&ids);
        sl_tokenizer_free(tok);
    }
}

static const test_case cases[] = {
    {"bpe-json", 0, bpe_json},
    {"bpe-ranks", 0, bpe_ranks},
    {"ends-of-line", 0, ends_of_line},
    {"bpe-merges", 0, bpe_merges},
    {"bpe-added", 0, bpe_added},
    {"qwen-json", 0, qwen_json},
    {"nfc", 0, nfc},
    {"llama-json", 0, llama_json},
    {"llama-model", 0, llama_model},
    {"unigram-model", 0, unigram_model},
    {"blanks-at-start", 0, blanks_at_start},
    {"streaming", 0, streaming},
    {"speed", 0, speed},
    {"bos-of-template", 0, bos_of_template},
    {"bos-of-model", 0, bos_of_model},
    {"bos-of-chat", 0, bos_of_chat},
    {0},
};
extern const test_suite suite_vocabularies;
const test_suite suite_vocabularies = {"vocabularies", cases};
