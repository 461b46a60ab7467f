// tests/tokenizer/test_sentencepiece.c - malformed tokenizer.model files. Without the checks of tokenizer/spm_check.c the
// SentencePiece library reads out of bounds, writes beyond an array or ends the process with most of these files.
#include "tests/test.h"
#include "tests/support/tokens.h"
#include "tokenizer/tokenizer_internal.h"

#include <limits.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>

static sl_error err;

// ---- a model, field by field ----

enum { NORMAL = 1, UNKNOWN, CONTROL, USER_DEFINED, UNUSED, BYTE };
enum { UNIGRAM = 1, BPE };

static void put(sl_text *to, const void *data, size_t n) {
    CHECK_OK(sl_text_append(to, data, n, &err), err);
}
static void put_varint(sl_text *to, uint64_t x) {
    for (;; x >>= 7) {
        unsigned char byte = (unsigned char)((x & 127) | (x > 127 ? 128 : 0));
        put(to, &byte, 1);
        if (x <= 127) return;
    }
}
static void put_number(sl_text *to, int field, uint64_t x) {
    put_varint(to, (uint64_t)field << 3);
    put_varint(to, x);
}
static void put_bytes(sl_text *to, int field, const void *data, size_t n) {
    put_varint(to, (uint64_t)field << 3 | 2);
    put_varint(to, n);
    put(to, data, n);
}
static void put_message(sl_text *to, int field, sl_text *message) { // frees message
    put_bytes(to, field, message->data, message->n);
    sl_text_free(message);
}

static void put_piece_n(sl_text *to, const char *text, size_t n, float score, int type) {
    sl_text piece = {0};
    put_bytes(&piece, 1, text, n);
    put_varint(&piece, 2 << 3 | 5);
    put(&piece, &score, 4);
    put_number(&piece, 3, (uint64_t)type);
    put_message(to, 1, &piece);
}
static void put_piece(sl_text *to, const char *text, float score, int type) {
    put_piece_n(to, text, strlen(text), score, type);
}

// A model with the pieces <unk>, <s>, </s>, U+2581 and the letters a to f: ids 0 to 9.
static sl_text base_model(int model_type) {
    sl_text model = {0}, trainer = {0};
    put_piece(&model, "<unk>", 0, UNKNOWN);
    put_piece(&model, "<s>", 0, CONTROL);
    put_piece(&model, "</s>", 0, CONTROL);
    put_piece(&model, "\xe2\x96\x81", -1, NORMAL);
    for (char c = 'a'; c <= 'f'; c++) put_piece_n(&model, &c, 1, -2 - (float)(c - 'a'), NORMAL);
    put_number(&trainer, 3, (uint64_t)model_type);
    put_message(&model, 2, &trainer);
    return model;
}

static void put_charsmap(sl_text *model, const void *data, size_t n) {
    sl_text spec = {0};
    put_bytes(&spec, 2, data, n);
    put_message(model, 3, &spec);
}

// ---- a trie, a block of 256 units a node: node k's children are the units 256 (k + 1) ^ byte ----

enum { MOST_NODES = 80 };
typedef struct rules {
    uint32_t units[256 * (MOST_NODES + 1)];
    int n_nodes, n_cut; // n_cut: units to leave out at the end
    char replacements[4096];
    size_t n_replacements;
} rules;

static uint32_t to_base(uint32_t i, uint32_t base) { // the offset bits of unit i for this base
    return (i ^ base) << 10;
}
static int new_node(rules *r) {
    CHECK(r->n_nodes < MOST_NODES);
    return r->n_nodes++;
}
static rules *rules_new(void) {
    rules *r = calloc(1, sizeof *r);
    CHECK(r != NULL);
    for (size_t i = 0; i < sizeof r->units / sizeof *r->units; i++) r->units[i] = 1u << 31; // no label
    r->units[0] = to_base(0, 256 * (uint32_t)(new_node(r) + 1));
    return r;
}
static uint32_t base_of(int node) {
    return 256 * (uint32_t)(node + 1);
}

// Returns the unit of the last byte of `key`.
static uint32_t rules_path(rules *r, const char *key) {
    uint32_t base = base_of(0), i = 0;
    for (const unsigned char *p = (const unsigned char *)key; *p; p++) {
        i = base ^ *p;
        if (r->units[i] >> 31) r->units[i] = to_base(i, base_of(new_node(r))) | *p;
        base = i ^ r->units[i] >> 10;
    }
    return i;
}
static uint32_t rules_add(rules *r, const char *key, const char *replacement) { // returns the unit of the rule's value
    uint32_t i = rules_path(r, key), base = i ^ r->units[i] >> 10;
    r->units[i] |= 1 << 8;
    r->units[base] = 1u << 31 | (uint32_t)r->n_replacements;
    CHECK(r->n_replacements + strlen(replacement) < sizeof r->replacements);
    strcpy(r->replacements + r->n_replacements, replacement);
    r->n_replacements += strlen(replacement) + 1;
    return base;
}

static void rules_put(sl_text *model, rules *r) { // frees r
    sl_text map = {0};
    uint32_t size = 4 * (base_of(r->n_nodes) - (uint32_t)r->n_cut);
    put(&map, &size, 4);
    put(&map, r->units, size);
    put(&map, r->replacements, r->n_replacements);
    put_charsmap(model, map.data, map.n);
    sl_text_free(&map);
    free(r);
}

// ---- loads of a model; they free the model ----

static void expect_refusal(sl_text *model, int code, const char *says) {
    sl_tokenizer *tok;
    char whole[256];
    snprintf(whole, sizeof whole, "tokenizer.model: %s", says);
    tokens_write("tokenizer.model", model->data, model->n);
    sl_text_free(model);
    CHECK_ERR(sl_tokenizer_load(&SL_FOLDER(test_tmp()), &tok, &err), err, code, whole);
}

static sl_tokenizer *expect_model(sl_text *model) {
    tokens_write("tokenizer.model", model->data, model->n);
    sl_text_free(model);
    return tokens_load(test_tmp());
}

static void expect_encoded(sl_text *model, const char *text, const int32_t *ids, size_t n) {
    sl_tokenizer *tok = expect_model(model);
    tokens_expect_ids(tok, text, strlen(text), 0, ids, n);
    sl_tokenizer_free(tok);
}

// ---- the file ----

static void good_models(void) {
    for (int type = UNIGRAM; type <= 4; type++) {
        sl_text model = base_model(type), test = {0}, sample = {0};
        put_bytes(&sample, 1, "abc", 3);
        put_bytes(&sample, 2, "\033[31mwhat is never so", 20); // a self-test that fails: the library must not run it
        put_message(&test, 1, &sample);
        put_message(&model, 4, &test);
        put_number(&model, 200, 7); // extensions are skipped
        put_bytes(&model, 201, "x", 1);
        sl_tokenizer *tok = expect_model(&model);
        CHECK(sl_tokenizer_n_vocab(tok) == 10 && sl_tokenizer_bos(tok) == 1 && sl_tokenizer_eos(tok) == 2);
        if (type == UNIGRAM || type == BPE) tokens_expect_ids(tok, TEXT("ab c"), 0, IDS(3, 4, 5, 3, 6));
        sl_tokenizer_free(tok);
    }
}

static void broken_protobuf(void) {
    static const struct {
        const char *bytes;
        size_t n;
        const char *says;
    } tails[] = {
        {TEXT("\x0a"), "neither tiktoken ranks nor a SentencePiece model: byte 136: expected a number of at most 10 bytes"},
        {TEXT("\x0a\x05\x0a"), "neither tiktoken ranks nor a SentencePiece model: byte 135: expected a field that ends"},
        {TEXT("\x0a\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01"), "neither tiktoken ranks nor a SentencePiece model: byte 135"},
        {TEXT("\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff"), "neither tiktoken ranks nor a SentencePiece model: byte 135"},
        {TEXT("\x8a\x80\x80\x80\x80\x80\x80\x01\x00"),
         "neither tiktoken ranks nor a SentencePiece model: byte 135: expected a field number"},
        {TEXT("\x02\x00"), "neither tiktoken ranks nor a SentencePiece model: byte 135: expected a field number"},
        {TEXT("\x0b\x0c"), "neither tiktoken ranks nor a SentencePiece model: byte 135: expected a field of type"},
        {TEXT("\x0c"), "neither tiktoken ranks nor a SentencePiece model: byte 135: expected a field of type"},
        {TEXT("\x0f"), "neither tiktoken ranks nor a SentencePiece model: byte 135: expected a field of type"},
        {TEXT("\x3d\x01\x02\x03"), "neither tiktoken ranks nor a SentencePiece model: byte 136: expected 4 bytes"},
        {TEXT("\x39\x01\x02\x03\x04\x05\x06\x07"),
         "neither tiktoken ranks nor a SentencePiece model: byte 136: expected 8 bytes"},
        {TEXT("\x08\x01"), "neither tiktoken ranks nor a SentencePiece model: byte 135: field pieces has type 0, expected 2"},
        {TEXT("\x1d\x01\x02\x03\x04"),
         "neither tiktoken ranks nor a SentencePiece model: byte 135: field normalizer_spec has type 5"},
        {TEXT("\x0a\x02\x08\x01"), "neither tiktoken ranks nor a SentencePiece model: byte 137: field piece has type 0"},
        {TEXT("\x0a\x05\x0a\x01x\x10\x01"),
         "neither tiktoken ranks nor a SentencePiece model: byte 140: field score has type 0"},
        {TEXT("\x0a\x06\x0a\x01x\x1a\x01x"),
         "neither tiktoken ranks nor a SentencePiece model: byte 140: field type has type 2"},
        {TEXT("\x0a\x03\x0a\x02x"), "neither tiktoken ranks nor a SentencePiece model: byte 137: expected a field that ends"},
        {TEXT("\x12\x02\x18"), "neither tiktoken ranks nor a SentencePiece model: byte 135: expected a field that ends"},
        {TEXT("\x12\x03\x1a\x01x"), "neither tiktoken ranks nor a SentencePiece model: byte 137: field model_type has type 2"},
        {TEXT("\x1a\x02\x10\x01"),
         "neither tiktoken ranks nor a SentencePiece model: byte 137: field precompiled_charsmap has type"},
        {TEXT("\x1a\x03\x1a\x01x"),
         "neither tiktoken ranks nor a SentencePiece model: byte 137: field add_dummy_prefix has type 2"},
        {TEXT("\x1a\x03\x22\x01x"),
         "neither tiktoken ranks nor a SentencePiece model: byte 137: field remove_extra_whitespaces has"},
        {TEXT("\x12\x01\x18"), "neither tiktoken ranks nor a SentencePiece model: byte 138: expected a number"},
        {TEXT("\x1a\x01\x18"), "neither tiktoken ranks nor a SentencePiece model: byte 138: expected a number"},
        {TEXT("\x2a\x01\x10"), "neither tiktoken ranks nor a SentencePiece model: byte 138: expected a number"},
        {TEXT("\x0a\x04\x0a\x01x\x0a"), "neither tiktoken ranks nor a SentencePiece model: byte 141: expected a number"},
        {TEXT("\x12\x02\x18\x00"), "field model_type is 0, expected 1 to 4"},
        {TEXT("\x12\x02\x18\x05"), "field model_type is 5, expected 1 to 4"},
        {TEXT("\x12\x06\x18\x82\x80\x80\x80\x10"), "field model_type is 4294967298, expected 1 to 4"},
        {TEXT("\x2a\x03\x12\x01x"), "field denormalizer_spec has rules"},
    };
    sl_text model = base_model(BPE);
    CHECK_INT(model.n, 135);
    sl_text_free(&model);
    for (size_t i = 0; i < sizeof tails / sizeof *tails; i++) {
        model = base_model(BPE);
        put(&model, tails[i].bytes, tails[i].n);
        expect_refusal(&model, strstr(tails[i].says, "denorm") ? SL_ERR_UNSUPPORTED : SL_ERR_FORMAT, tails[i].says);
    }
    expect_refusal(&(sl_text){0}, SL_ERR_FORMAT, "neither tiktoken ranks nor a SentencePiece model: it holds no pieces");
    model = base_model(BPE);
    put(&model, "\x2a\x02\x12\x00", 4); // a denormaliser without rules
    sl_tokenizer_free(expect_model(&model));
    for (size_t n = 1; n < 135; n++) { // every prefix of the file, in a memory block of the prefix's length
        sl_spm_model checked;
        sl_spm *spm;
        model = base_model(BPE);
        char *start = malloc(n);
        CHECK(start != NULL);
        memcpy(start, model.data, n);
        int rc = sl_spm_check("x", start, n, &checked, &err);
        if (!rc) rc = sl_spm_load("x", &checked, &spm, &err);
        if (!rc) sl_spm_free(spm);
        CHECK(rc == 0 || rc == SL_ERR_FORMAT);
        sl_text_free(&checked.proto);
        sl_text_free(&model);
        free(start);
    }
}

static void long_file(void) { // a sparse file: it takes no disk space
    char path[512];
    sl_tokenizer *tok;
    tokens_write("tokenizer.model", "\n", 1);
    snprintf(path, sizeof path, "%s/tokenizer.model", test_tmp());
    FILE *f = fopen(path, "r+b");
    CHECK(f && !fseek(f, 64 << 20, SEEK_SET) && fputc('x', f) == 'x' && !fclose(f));
    CHECK_ERR(sl_tokenizer_load(&SL_FOLDER(test_tmp()), &tok, &err), err, SL_ERR_UNSUPPORTED,
              "expected at most 67108864 bytes");
}

// ---- pieces ----

static void bad_pieces(void) {
    static const struct {
        const char *text;
        size_t n;
        float score;
        int type;
        const char *says;
    } pieces[] = {
        {TEXT(""), 0, NORMAL, "piece 10 has 0 bytes, expected 1 to 1024"},
        {TEXT("\0"), 0, NORMAL, "piece 10 holds a NUL byte"}, // the library's tries throw an exception
        {TEXT("x\0y"), 0, NORMAL, "piece 10 holds a NUL byte"},
        {TEXT("\0"), 0, USER_DEFINED, "piece 10 holds a NUL byte"}, // another trie throws
        {TEXT("\0"), 0, CONTROL, "piece 10 holds a NUL byte"},
        {TEXT("x"), NAN, NORMAL, "piece 10 has the score nan"},
        {TEXT("x"), INFINITY, NORMAL, "piece 10 has the score inf"},
        {TEXT("x"), -INFINITY, NORMAL, "piece 10 has the score -inf"},
        {TEXT("x"), 0, 0, "piece 10 has type 0, expected 1 to 6"},
        {TEXT("x"), 0, 7, "piece 10 has type 7, expected 1 to 6"},
        {TEXT("x"), 0, -1, "piece 10 has type 18446744073709551615, expected 1 to 6"},
        {TEXT("a"), 0, NORMAL, "not a SentencePiece model: Internal: a is already defined"},
        {TEXT("<s>"), 0, CONTROL, "not a SentencePiece model: Internal: <s> is already defined"},
        {TEXT("x"), 0, UNKNOWN, "not a SentencePiece model: Internal: unk is already defined"},
        {TEXT("<0x41>"), 0, BYTE, "not a SentencePiece model: Internal: byte piece"},
    };
    char longest[1026];
    sl_text model;
    for (size_t i = 0; i < sizeof pieces / sizeof *pieces; i++)
        for (int type = UNIGRAM; type <= BPE; type++) {
            model = base_model(type);
            put_piece_n(&model, pieces[i].text, pieces[i].n, pieces[i].score, pieces[i].type);
            expect_refusal(&model, SL_ERR_FORMAT, pieces[i].says);
        }
    memset(longest, 'a', sizeof longest);
    for (int n = 1024; n <= 1025; n++) {
        model = base_model(BPE);
        put_piece_n(&model, longest, (size_t)n, 0, NORMAL);
        if (n > 1024)
            expect_refusal(&model, SL_ERR_FORMAT, "piece 10 has 1025 bytes, expected 1 to 1024");
        else
            sl_tokenizer_free(expect_model(&model));
    }
    sl_text lone = {0}; // pieces that each model type needs
    put_piece(&lone, "<s>", 0, CONTROL);
    put_piece(&lone, "a", 0, NORMAL);
    expect_refusal(&lone, SL_ERR_FORMAT, "not a SentencePiece model: Internal: unk is not defined");
    put_piece(&lone, "<unk>", 0, UNKNOWN); // the default model type is unigram
    expect_refusal(&lone, SL_ERR_FORMAT, "not a SentencePiece model: Internal: no pieces are loaded");
}

static void extreme_pieces(void) { // unusual pieces that are allowed
    static const float scores[] = {3.4e38f, -3.4e38f, 1e-45f};
    for (int i = 0; i < 6; i++) {
        sl_text model = base_model(1 + i / 3);
        sl_ids ids = {0};
        put_piece(&model, "ab", scores[i % 3], NORMAL);
        put_piece(&model, "bc", scores[i % 3], NORMAL);
        put_piece(&model, "abc", scores[i % 3], UNUSED);
        put_piece(&model, "\xf0\x9f", 0, NORMAL); // a part of a character
        sl_tokenizer *tok = expect_model(&model);
        CHECK_OK(sl_tokenize(tok, TEXT("abcabc \xf0\x9f\xa6\xa5 abcd\0e\xf0\xff"), 0, &ids, &err), err);
        CHECK(ids.n > 8);
        for (size_t j = 0; j < ids.n; j++) CHECK(ids.data[j] >= 0 && ids.data[j] < 14);
        sl_ids_free(&ids);
        sl_tokenizer_free(tok);
    }
    sl_text model = base_model(BPE); // with a control piece of one character SentencePiece fails on texts that hold it
    sl_ids ids = {0};
    put_piece(&model, "x", 0, CONTROL);
    sl_tokenizer *tok = expect_model(&model);
    CHECK_OK(sl_tokenize(tok, TEXT("axa"), 0, &ids, &err), err);
    CHECK_ERR(sl_tokenize(tok, TEXT("axa"), SL_TOK_PLAIN, &ids, &err), err, SL_ERR_UNSUPPORTED,
              "SentencePiece cannot encode it");
    sl_ids_free(&ids);
    sl_tokenizer_free(tok);
}

static void user_defined_chain(void) { // the library stores 64 matches at one place, but reads all of them
    char text[70];
    for (int most = 64; most <= 65; most++) {
        sl_text model = base_model(BPE);
        for (int n = 1; n <= most; n++) {
            memset(text, 'x', sizeof text);
            text[n] = 0;
            put_piece(&model, text, 0, USER_DEFINED);
            text[n - 1] = 'y'; // these texts begin with the shorter texts of x only
            put_piece(&model, text, 0, USER_DEFINED);
        }
        if (most == 65) {
            expect_refusal(&model, SL_ERR_FORMAT, "more than 64 user-defined pieces match at one place, the last is \"xxxx");
        } else {
            memset(text, 'x', 64), text[64] = 0;
            expect_encoded(&model, text, IDS(3, 10 + 2 * 63));
        }
    }
}

// ---- rules of normalisation ----

static void good_rules(void) {
    static const struct {
        const char *text;
        int32_t ids[8];
        int n;
    } texts[] = {
        {"A", {3, 4}, 2},      {"AB", {3, 6, 6, 6}, 4},  {"ABA", {3, 6, 6, 6, 4}, 5}, {"a\xc3\xa9", {3, 4, 8}, 3},
        {"aZb", {3, 4, 5}, 3}, {"aSb", {3, 4, 3, 5}, 4}, {"\xc3", {3, 0}, 2},         {"AC", {3, 4, 0}, 3},
    };
    for (size_t i = 0; i < sizeof texts / sizeof *texts; i++) {
        sl_text model = base_model(BPE);
        rules *r = rules_new();
        rules_add(r, "A", "a");
        rules_add(r, "AB", "ccc");
        rules_add(r, "\xc3\xa9", "e");
        rules_add(r, "Z", "");
        rules_add(r, "S", " ");
        rules_put(&model, r);
        expect_encoded(&model, texts[i].text, texts[i].ids, (size_t)texts[i].n);
    }
    sl_text model = base_model(BPE); // units may lie anywhere, and two units may share their children
    rules *r = rules_new();
    rules_add(r, "AB", "e");
    uint32_t a = rules_path(r, "A"), x = base_of(0) ^ 'X';
    r->units[x] = to_base(x, a ^ r->units[a] >> 10) | 'X';
    rules_put(&model, r);
    expect_encoded(&model, "ABXB", IDS(3, 8, 8));
}

// Loads a model with the changed rules `r`, and expects a refusal.
static void refuse_rules(rules *r, const char *says) {
    sl_text model = base_model(BPE);
    char whole[160];
    snprintf(whole, sizeof whole, "precompiled_charsmap: %s", says);
    rules_put(&model, r);
    expect_refusal(&model, SL_ERR_FORMAT, whole);
}

static rules *two_rules(uint32_t *value) { // ab and ac
    rules *r = rules_new();
    rules_add(r, "ab", "x");
    *value = rules_add(r, "ac", "y");
    return r;
}

static void bad_tries(void) {
    uint32_t value, i;
    rules *r = two_rules(&value);
    r->units[0] = to_base(0, base_of(r->n_nodes));
    refuse_rules(r, "unit 0 leads to units up to 1535, the trie has 1280");
    r = two_rules(&value);
    r->n_cut = 1; // in a text any byte may follow "ac", also 0xff
    refuse_rules(r, "unit 611 leads to units up to 1279, the trie has 1279");
    r = two_rules(&value);
    i = rules_path(r, "ac");
    r->units[i] = (r->units[i] & 0x1ff) | to_base(i, base_of(r->n_nodes));
    refuse_rules(r, "unit 611 leads to units up to 1535, the trie has 1280");
    r = two_rules(&value);
    i = rules_path(r, "ab");
    r->units[i] |= 1 << 9; // multiplies the offset by 256
    refuse_rules(r, "unit 610 leads to units up to");
    r = two_rules(&value);
    r->units[value] = 1u << 31 | 4;
    refuse_rules(r, "value 4 at unit 1024, the replacements have 4 bytes");
    r = two_rules(&value);
    r->units[value] = ~0u;
    refuse_rules(r, "value 2147483647 at unit 1024, the replacements have 4 bytes");
    r = two_rules(&value);
    r->n_replacements--; // the last replacement has no end
    refuse_rules(r, "the replacement at byte 2 has no end within 255 bytes");
    r = two_rules(&value);
    i = rules_path(r, "ac");
    r->units[i] = (r->units[i] & 0x1ff) | to_base(i, base_of(1)); // back to the unit's own base
    refuse_rules(r, "unit 611 is part of a loop");
    r = two_rules(&value);
    i = rules_path(r, "ac");
    r->units[i] = (r->units[i] & 0x1ff) | to_base(i, base_of(0)); // to the root
    refuse_rules(r, "unit 611 is part of a loop");
    r = two_rules(&value);
    i = base_of(1); // NUL is a label too: the value's unit becomes a child of its node, which makes a loop
    r->units[i] = to_base(i, i) | 0;
    refuse_rules(r, "unit 512 is part of a loop");
    r = rules_new(); // a node with two parents, and a loop below it
    rules_add(r, "xyz", "x");
    i = base_of(0) ^ 'v';
    r->units[i] = to_base(i, base_of(1)) | 'v';
    i = rules_path(r, "xyz");
    r->units[i] = (r->units[i] & 0x1ff) | to_base(i, base_of(2));
    refuse_rules(r, "unit 890 is part of a loop");
}

static void rules_depth(void) { // the library stores 32 matches at one place, but reads all of them
    for (int most = 32; most <= 33; most++) {
        char key[2 * 33 + 2] = "";
        rules *r = rules_new();
        for (int n = 0; n < most; n++) {
            strcat(key, n % 2 ? "y" : "zz"); // some nodes have no rule
            rules_add(r, key, n + 1 == most ? "e" : "a");
        }
        rules_add(r, "A", "a"); // a shorter way, visited before or after the longest one
        rules_add(r, "~", "a");
        if (most == 33) {
            refuse_rules(r, "33 rules or more match at one place, expected at most 32");
        } else {
            sl_text model = base_model(BPE);
            rules_put(&model, r);
            expect_encoded(&model, key, IDS(3, 8));
        }
    }
}

static void rules_size(void) {
    static const struct {
        uint32_t size;
        size_t n;
        const char *says;
    } sizes[] = {
        {0, 2, "2 bytes, expected 4 or more"},
        {0, 4, "the trie says it has 0 bytes, expected a multiple of 4 from 1024 to 0"},
        {1020, 4096, "the trie says it has 1020 bytes"},
        {1025, 4096, "the trie says it has 1025 bytes"},
        {4096, 4096, "the trie says it has 4096 bytes, expected a multiple of 4 from 1024 to 4092"},
        {4096, 4097, "the trie says it has 4096 bytes, expected a multiple of 4 from 1024 to 4093"},
        {4095, 4096,
         "the trie says it has 4095 bytes"}, // the library accepts it, and its replacements begin after the file's end
        {UINT32_MAX, 4096, "the trie says it has 4294967295 bytes"},
        {UINT32_MAX - 3, 4096, "the trie says it has 4294967292 bytes"},
    };
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
        sl_text model = base_model(BPE);
        char map[4097] = {0}, whole[160];
        memcpy(map, &sizes[i].size, 4);
        put_charsmap(&model, map, sizes[i].n);
        snprintf(whole, sizeof whole, "precompiled_charsmap: %s", sizes[i].says);
        expect_refusal(&model, SL_ERR_FORMAT, whole);
    }
}

// The library counts the bytes of a normalised text in an int. So the longest text depends on the longest replacement.
static void long_replacements(void) {
    static const struct {
        char letter;
        int n, most;
    } replacements[] = {{' ', 255, INT_MAX / (3 * 255)}, {'a', 255, INT_MAX / 255}, {'a', 3, INT_MAX / 3}, {'a', 256, 0}};
    for (size_t i = 0; i < sizeof replacements / sizeof *replacements; i++) {
        size_t n = (size_t)replacements[i].n, most = (size_t)replacements[i].most;
        char replacement[257] = "", says[128];
        rules *r = rules_new();
        memset(replacement, replacements[i].letter, n);
        rules_add(r, "A", replacement);
        if (!most) {
            refuse_rules(r, "the replacement at byte 0 has no end within 255 bytes");
            continue;
        }
        sl_text model = base_model(BPE);
        rules_put(&model, r);
        sl_tokenizer *tok = expect_model(&model);
        sl_ids ids = {0};
        char *text = calloc(most + 1, 1); // the library does not read it
        CHECK(text != NULL);
        CHECK_OK(sl_tokenize(tok, "bA", 2, SL_TOK_PLAIN, &ids, &err), err);
        CHECK_INT(ids.n, replacements[i].letter == 'a' ? 2 + n : 2); // SentencePiece drops blanks at the end
        snprintf(says, sizeof says, "a text of %zu bytes: SentencePiece takes at most %zu ", most + 1, most);
        CHECK_ERR(sl_spm_encode(tok->spm, text, most + 1, &ids, &err), err, SL_ERR_UNSUPPORTED, says);
        free(text);
        sl_ids_free(&ids);
        sl_tokenizer_free(tok);
    }
}

// ---- random changes ----

// Changes random bytes of a model with rules. The loader refuses the model, or every text gets ids of the vocabulary.
static void random_changes(void) {
    enum { ROUNDS = 3000 / TOKENS_SLOWER };
    sl_text good = base_model(UNIGRAM);
    rules *r = rules_new();
    uint64_t rng = test_seed;
    int loaded = 0;
    for (int i = 0; i < 12; i++) {
        char key[8] = "";
        for (int n = 1 + (int)(3 * test_uniform(&rng)), j = 0; j < n; j++)
            key[j] = "abcdAB\xc3\xa9"[(int)(8 * test_uniform(&rng))];
        rules_add(r, key, i % 3 ? "e" : " f");
    }
    put_piece(&good, "ab", 0, USER_DEFINED);
    rules_put(&good, r);
    for (int round = 0; round < ROUNDS; round++) {
        sl_text copy = {0};
        sl_spm_model checked;
        sl_spm *spm;
        put(&copy, good.data, good.n);
        for (int n = 1 + (int)(4 * test_uniform(&rng)); n > 0;
             n--) { // half of the changes are in the used part of the trie or before it
            size_t at = (size_t)(test_uniform(&rng) * (double)copy.n);
            if (test_uniform(&rng) < 0.5)
                while (at > 0 && !copy.data[at]) at--;
            copy.data[at] = (char)(test_uniform(&rng) < 0.5 ? copy.data[at] ^ 1 << (int)(8 * test_uniform(&rng))
                                                            : (int)(256 * test_uniform(&rng)));
        }
        int rc = sl_spm_check("x", copy.data, copy.n, &checked, &err);
        if (!rc) rc = sl_spm_load("x", &checked, &spm, &err);
        CHECK(rc ? rc < 0 && err.message[0] : 1);
        sl_text_free(&checked.proto);
        sl_text_free(&copy);
        if (rc) continue;
        for (int i = 0; i < 4; i++) {
            char text[300];
            sl_ids ids = {0};
            size_t n = (size_t)(test_uniform(&rng) * sizeof text);
            for (size_t j = 0; j < n; j++)
                text[j] = i % 2 ? "abcdAB\xc3\xa9"[(int)(8 * test_uniform(&rng))] : (char)(256 * test_uniform(&rng));
            if (!sl_spm_encode(spm, text, n, &ids, &err))
                for (size_t j = 0; j < ids.n; j++) CHECK(ids.data[j] >= 0 && ids.data[j] < sl_spm_n(spm));
            sl_ids_free(&ids);
        }
        sl_spm_free(spm);
        loaded++;
    }
    CHECK(loaded > ROUNDS / 20 && loaded < ROUNDS);
    sl_text_free(&good);
}

// ---- what the library throws ----

static void exceptions(void) { // models that skip the checks
    sl_text model = base_model(UNIGRAM);
    sl_spm *spm = NULL;
    put_piece_n(&model, "\0", 1, 0, NORMAL);
    CHECK_ERR(sl_spm_load("a/file", &(sl_spm_model){.proto = model, .growth = 3}, &spm, &err), err, SL_ERR_FORMAT,
              "a/file: SentencePiece: ");
    CHECK(strstr(err.message, "failed to insert key"));
    sl_text_free(&model);
#ifndef __SANITIZE_ADDRESS__ // AddressSanitizer needs more address space than this limit leaves
    enum { SIZE = 64 << 20 };
    struct rlimit before, low;
    sl_ids ids = {0};
    char *text = calloc(SIZE, 1);
    model = base_model(BPE);
    CHECK_OK(sl_spm_load("a/file", &(sl_spm_model){.proto = model, .growth = 3}, &spm, &err), err);
    CHECK(text && !getrlimit(RLIMIT_AS, &before));
    low = before;
    low.rlim_cur = 1; // memory that is mapped already stays
    CHECK(!setrlimit(RLIMIT_AS, &low));
    int rc = sl_spm_encode(spm, text, SIZE, &ids, &err); // it needs 1.7 GB
    CHECK(!setrlimit(RLIMIT_AS, &before));
    if (rc != SL_ERR_MEMORY || !strstr(err.message, "a text of 67108864 bytes: out of memory"))
        FAIL("returned %d: %s", rc, err.message);
    free(text);
    sl_ids_free(&ids);
    sl_text_free(&model);
    sl_spm_free(spm);
#endif
}

static const test_case cases[] = {
    {"good-models", 0, good_models},
    {"broken-protobuf", 0, broken_protobuf},
    {"long-file", 0, long_file},
    {"bad-pieces", 0, bad_pieces},
    {"extreme-pieces", 0, extreme_pieces},
    {"user-defined-chain", 0, user_defined_chain},
    {"good-rules", 0, good_rules},
    {"bad-tries", 0, bad_tries},
    {"rules-depth", 0, rules_depth},
    {"rules-size", 0, rules_size},
    {"long-replacements", 0, long_replacements},
    {"random-changes", 0, random_changes},
    {"exceptions", 0, exceptions},
    {0},
};
extern const test_suite suite_sentencepiece;
const test_suite suite_sentencepiece = {"sentencepiece", cases};
