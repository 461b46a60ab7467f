// tests/models/test_gguf_keys.c - each key of a GGUF file's metadata: its type, its bounds, whether it may be missing, and what
// else is refused.
#include "models/gguf_documents.h"
#include "tests/support/gguf_file.h"
#include "tests/support/run_cli.h"
#include "tests/support/tokens.h"
#include "tests/test.h"

#include <jansson.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

static sl_error err;

typedef struct value {
    const char *key;
    char type;        // i: i64, f: f32, b: bool, t: string; I, F, T: array
    const char *text; // of a string or an array, whose elements a | divides. A ~ becomes a NUL.
    double x;
} value;

static void put(gguf_file *f, const value *v, double x) {
    char copy[1000], *rest = copy;
    const char *texts[16];
    int ints[16], n = 0;
    float floats[16];
    if (v->type == 't') gguf_file_text(f, v->key, v->text);
    if (v->type == 'i') gguf_file_int(f, v->key, SL_GGUF_I64, (long long)x);
    if (v->type == 'b') gguf_file_int(f, v->key, SL_GGUF_BOOL, (long long)x);
    if (v->type == 'f') gguf_file_float(f, v->key, (float)x);
    if (!strchr("IFT", v->type)) return;
    snprintf(copy, sizeof copy, "%s", v->text);
    for (char *s; *v->text && n < 16 && (s = strsep(&rest, "|")); n++)
        texts[n] = s, ints[n] = atoi(s), floats[n] = strtof(s, NULL);
    if (v->type == 'T') gguf_file_texts(f, v->key, texts, n);
    if (v->type == 'I') gguf_file_ints(f, v->key, ints, n);
    if (v->type == 'F') gguf_file_floats(f, v->key, floats, n);
}

#define TOKENS "a|b|ab|<s>|<u>|[PAD5]"

// A file with every key that a model of qwen2 may have, except `without` and the keys that `more` replaces.
static void put_all(gguf_file *f, int is_spm, const char *without, const value *more, int n_more) {
    static const value all[] = {
        {"general.architecture", 't', "qwen2", 0},
        {"general.type", 't', "model", 0},
        {"general.quantization_version", 'i', NULL, 2},
        {"qwen2.block_count", 'i', NULL, 3},
        {"qwen2.context_length", 'i', NULL, 4096},
        {"qwen2.embedding_length", 'i', NULL, 96},
        {"qwen2.feed_forward_length", 'i', NULL, 112},
        {"qwen2.attention.head_count", 'i', NULL, 6},
        {"qwen2.attention.head_count_kv", 'i', NULL, 2},
        {"qwen2.attention.key_length", 'i', NULL, 16},
        {"qwen2.attention.value_length", 'i', NULL, 16},
        {"qwen2.vocab_size", 'i', NULL, 11},
        {"qwen2.attention.layer_norm_rms_epsilon", 'f', NULL, 2e-5},
        {"qwen2.attention.causal", 'b', NULL, 1},
        {"qwen2.attention.sliding_window", 'i', NULL, 4096},
        {"qwen2.rope.freq_base", 'f', NULL, 12345},
        {"qwen2.rope.scaling.type", 't', "yarn", 0},
        {"qwen2.rope.scaling.factor", 'f', NULL, 4},
        {"tokenizer.ggml.tokens", 'T', TOKENS, 0},
        {"tokenizer.ggml.token_type", 'I', "1|1|1|3|4|5", 0},
    };
    static const value of_kind[2][5] = {
        {{"tokenizer.ggml.model", 't', "gpt2", 0},
         {"tokenizer.ggml.pre", 't', "gpt-2", 0},
         {"tokenizer.ggml.merges", 'T', "a b", 0}},
        {{"tokenizer.ggml.model", 't', "llama", 0}, {"tokenizer.ggml.scores", 'F', "0|0|0|0|0|0", 0}}};
    for (int part = 0; part < 2; part++) {
        const value *v = part ? of_kind[is_spm] : all;
        for (size_t i = 0; i < (part ? 5 : sizeof all / sizeof *all) && v[i].key; i++) {
            int is_left = !without || strcmp(v[i].key, without);
            for (int j = 0; j < n_more; j++) is_left &= !more[j].key || strcmp(v[i].key, more[j].key) != 0;
            if (is_left) put(f, &v[i], v[i].x);
        }
    }
}

// Makes all documents. text: config.json and tokenizer_config.json. Returns the first error.
static int documents(gguf_file *f, char *text, size_t size) {
    sl_gguf g;
    sl_text file = {0}, model = {0};
    json_t *config = NULL, *tokenizer = NULL, *tokens = NULL;
    gguf_file_bytes(f, &file);
    for (size_t i = 0; i < file.n; i++)
        if (file.data[i] == '~') file.data[i] = 0;
    tokens_write("x.gguf", file.data, file.n);
    int rc = sl_gguf_open(in_tmp("x.gguf"), &g, &err);
    if (!rc) rc = sl_gguf_config(&g, &config, &err);
    if (!rc) rc = sl_gguf_tokenizer(&g, &tokenizer, &model, &err);
    if (!rc) rc = sl_gguf_tokenizer_config(&g, &tokens, &err);
    if (!rc) {
        char *a = json_dumps(config, JSON_COMPACT), *b = json_dumps(tokens, JSON_COMPACT);
        snprintf(text, size, "%s%s", a, b);
        free(a), free(b);
    }
    json_decref(config), json_decref(tokenizer), json_decref(tokens);
    sl_text_free(&model), sl_text_free(&file);
    sl_gguf_close(&g);
    return rc;
}

typedef struct key_bounds {
    const char *key;
    double low, high;
    char type;       // as of a value; L: an integer, or an array of integers
    int is_required; // 1: without it there is no model
    int is_spm;      // a key of SentencePiece only
} key_bounds;

static const key_bounds numbers[] = {
    {"general.quantization_version", 2, 2, 'i', 0, 0},
    {"qwen2.block_count", 1, 1024, 'L', 1, 0},
    {"qwen2.context_length", 1, 1 << 28, 'L', 1, 0},
    {"qwen2.embedding_length", 1, 1 << 20, 'L', 1, 0},
    {"qwen2.feed_forward_length", 1, 1 << 20, 'L', 1, 0},
    {"qwen2.attention.head_count", 1, 1024, 'L', 1, 0},
    {"qwen2.attention.head_count_kv", 1, 1024, 'L', 0, 0},
    {"qwen2.attention.key_length", 1, 1024, 'L', 0, 0},
    {"qwen2.attention.value_length", 1, 1024, 'L', 0, 0},
    {"qwen2.vocab_size", 1, 1 << 24, 'i', 0, 0},
    {"qwen2.attention.layer_norm_rms_epsilon", 0, 1, 'f', 1, 0},
    {"qwen2.attention.sliding_window", 0, INT32_MAX, 'i', 0, 0},
    {"qwen2.attention.causal", 1, 1, 'b', 0, 0},
    {"qwen2.rope.freq_base", 1, 1e12, 'f', 0, 0},
    {"qwen2.rope.dimension_count", 1, 1024, 'i', 0, 0},
    {"qwen2.rope.scaling.factor", 1, 1e6, 'f', 1, 0},
    {"qwen2.rope.scaling.attn_factor", 0, 1e3, 'f', 0, 0},
    {"qwen2.rope.scaling.yarn_beta_fast", 0, 1e6, 'f', 0, 0},
    {"qwen2.rope.scaling.yarn_beta_slow", 0, 1e6, 'f', 0, 0},
    {"qwen2.rope.scaling.original_context_length", 1, 1 << 28, 'i', 0, 0},
    {"qwen2.rope.scale_linear", 1, 1e6, 'f', 0, 0},
    {"tokenizer.ggml.bos_token_id", 0, 5, 'i', 0, 0},
    {"tokenizer.ggml.eos_token_id", 0, 5, 'i', 0, 0},
    {"tokenizer.ggml.eot_token_id", 0, 5, 'i', 0, 0},
    {"tokenizer.ggml.eom_token_id", 0, 5, 'i', 0, 0},
    {"tokenizer.ggml.unknown_token_id", 0, 5, 'i', 0, 0},
    {"tokenizer.ggml.padding_token_id", 0, 5, 'i', 0, 0},
    {"tokenizer.ggml.add_bos_token", 0, 0, 'b', 0, 1},
    {"tokenizer.ggml.add_eos_token", 0, 1, 'b', 0, 0},
    {"tokenizer.ggml.add_space_prefix", 0, 1, 'b', 0, 1},
    {"tokenizer.ggml.remove_extra_whitespaces", 0, 1, 'b', 0, 1},
    {"split.count", 0, 1000, 'i', 0, 0},
    {"split.no", 0, 1000, 'i', 0, 0},
    {"split.tensors.count", 0, INT32_MAX, 'i', 0, 0},
};

// The error of a file with this value; "": none. A scale_linear counts without rope.scaling.type only.
static const char *error_of(const key_bounds *k, const value *v, double x) {
    char text[4000];
    gguf_file f = {0};
    put_all(&f, k->is_spm, strstr(k->key, "scale_linear") ? "qwen2.rope.scaling.type" : NULL, v, 1);
    put(&f, v, x);
    int rc = documents(&f, text, sizeof text);
    return rc ? err.message : "";
}

// Each number one step outside and on both of its bounds. A value on a bound may be refused for another reason.
static void bounds(void) {
    for (size_t i = 0; i < sizeof numbers / sizeof *numbers; i++) {
        const key_bounds *k = &numbers[i];
        if (k->type == 'b') continue;
        double step_low = k->type != 'f' ? 1 : k->low ? k->low * 1e-6 : 1e-9, step_high = k->type != 'f' ? 1 : k->high * 1e-6;
        const double outside[] = {k->low - step_low, k->high + step_high}, inside[] = {k->low, k->high};
        char says[100], list[40];
        snprintf(says, sizeof says, "key %s is ", k->key);
        for (int j = 0; j < 4; j++) {
            value v = {k->key, k->type == 'f' ? 'f' : j < 2 ? 'i' : 'I', list, 0};
            if (j >= 2 && k->type != 'L') continue;
            snprintf(list, sizeof list, "%.0f|%.0f", outside[j % 2], outside[j % 2]);
            const char *found = error_of(k, &v, outside[j % 2]);
            if (!strstr(found, says) || !strstr(found, ", expected ") || err.code != SL_ERR_FORMAT)
                FAIL("%s of %.9g: \"%s\"", k->key, outside[j % 2], found);
            snprintf(list, sizeof list, "%.0f|%.0f", inside[j % 2], inside[j % 2]);
            found = error_of(k, &v, inside[j % 2]);
            if (strstr(found, says) && strstr(found, ", expected ")) FAIL("%s of %.9g: \"%s\"", k->key, inside[j % 2], found);
        }
    }
}

// Each number of another type, and missing.
static void types(void) {
    for (size_t i = 0; i < sizeof numbers / sizeof *numbers; i++) {
        const key_bounds *k = &numbers[i];
        char says[100], text[4000];
        const value wrong[] = {{k->key, 't', "1", 0},
                               {k->key, k->type == 'L' ? 'F' : 'I', "1|1", 0},
                               {k->key, k->type == 'f' || k->type == 'b' ? 'i' : 'f', NULL, 1}};
        for (int j = 0; j < 3; j++) {
            const char *found = error_of(k, &wrong[j], wrong[j].x);
            snprintf(says, sizeof says, "key %s has type ", k->key);
            if (!strstr(found, says) || !strstr(found, ", expected ") || err.code != SL_ERR_FORMAT)
                FAIL("%s: %d, \"%s\"", k->key, err.code, found);
        }
        gguf_file f = {0};
        put_all(&f, k->is_spm, k->key, NULL, 0);
        int rc = documents(&f, text, sizeof text);
        snprintf(says, sizeof says, "key %s is missing", k->key);
        if (k->is_required ? rc != SL_ERR_FORMAT || !strstr(err.message, says) : rc != 0)
            FAIL("without %s: %d, \"%s\"", k->key, rc, rc ? err.message : "");
    }
}

#define NAME_10 "abcdefghij"
#define NAME_60 NAME_10 NAME_10 NAME_10 NAME_10 NAME_10 NAME_10
#define NAME_100 NAME_60 NAME_10 NAME_10 NAME_10 NAME_10

#define GG "tokenizer.ggml."
#define TT "tokenizer.chat_template"

enum { F = SL_ERR_FORMAT, U = SL_ERR_UNSUPPORTED };
static const struct {
    int code, is_spm;
    const char *says, *without; // says: a part of the error, or of the documents
    value more[2];
} other_values[] = {
    {0, 0, "", NULL, {{0}}},
    {U, 0, "key qwen2.attention.causal is false", NULL, {{"qwen2.attention.causal", 'b', NULL, 0}}},
    {0,
     0,
     "\"sliding_window\":7,\"use_sliding_window\":true,\"max_window_layers\":0",
     NULL,
     {{"qwen2.attention.sliding_window", 'i', NULL, 7}}},
    {0, 0, "\"sliding_window\":null,\"rope_theta\"", NULL, {{"qwen2.attention.sliding_window", 'i', NULL, 0}}},
    {F, 0, "key qwen2.block_count is an array without elements", NULL, {{"qwen2.block_count", 'I', "", 0}}},
    {0, 0, "\"num_key_value_heads\":6", "qwen2.attention.head_count_kv", {{0}}},
    {0, 0, "\"vocab_size\":6", "qwen2.vocab_size", {{0}}},
    {0, 0, "", NULL, {{"qwen2.expert_count", 'i', NULL, 0}, {"qwen2.use_parallel_residual", 'b', NULL, 0}}},
    {U, 0, "key qwen2.expert_count is not 0", NULL, {{"qwen2.expert_count", 'i', NULL, 1}}},
    {U, 0, "key qwen2.expert_count is not 0", NULL, {{"qwen2.expert_count", 'i', NULL, -1}}},
    {U, 0, "key qwen2.pooling_type is not 0", NULL, {{"qwen2.pooling_type", 't', "0", 0}}},
    {U, 0, "key qwen2.pooling_type is not 0", NULL, {{"qwen2.pooling_type", 'I', "0", 0}}},
    {U, 0, "is not 0", NULL, {{"qwen2.use_parallel_residual", 'b', NULL, 1}}},
    {U, 0, "key qwen2.rope is not supported", NULL, {{"qwen2.rope", 'i', NULL, 0}}},
    {0, 0, "", NULL, {{"qwen20.rope", 'i', NULL, 0}, {"qwen2", 'i', NULL, 0}}}, // of no architecture, or of another one
    {F, 0, "key general.type has type i64, expected string", NULL, {{"general.type", 'i', NULL, 0}}},
    {U, 0, "general.type is \"models\"", NULL, {{"general.type", 't', "models", 0}}},
    {U, 0, "general.architecture is \"\"", "general.architecture", {{0}}},
    {U, 0, "is \"" NAME_60 "\", supported", NULL, {{"general.architecture", 't', NAME_100, 0}}}, // cut
    {F, 0, "key qwen2.rope.scaling.type has type i64", NULL, {{"qwen2.rope.scaling.type", 'i', NULL, 0}}},
    // tokens
    {0, 0, "", GG "model", {{0}}},
    {F, 0, "key " GG "model has type i64", NULL, {{GG "model", 'i', NULL, 0}}},
    {F, 0, "key " GG "pre has type i64", NULL, {{GG "pre", 'i', NULL, 0}}},
    {F, 0, "key " GG "tokens has type array of i32", NULL, {{GG "tokens", 'I', "1|2|3|4|5|6", 0}}},
    {F, 0, "key " GG "token_type has type array of f32", NULL, {{GG "token_type", 'F', "1|1|1|3|4|5", 0}}},
    {F, 0, "key " GG "merges has type array of i32", NULL, {{GG "merges", 'I', "1", 0}}},
    {F, 1, "key " GG "scores has type array of i32", NULL, {{GG "scores", 'I', "1|2|3|4|5|6", 0}}},
    {F, 0, "neither key qwen2.vocab_size nor key " GG "tokens exists", "qwen2.vocab_size", {{GG "tokens", 'n', NULL, 0}}},
    {F, 0, "key " GG "tokens has 0 elements, expected 1 to 16777215", GG "tokens", {{0}}},
    {F, 1, "key " GG "tokens has 0 elements", NULL, {{GG "tokens", 'T', "", 0}}},
    {F, 0, "token_type has 5 elements, tokenizer.ggml.tokens has 6", NULL, {{GG "token_type", 'I', "1|1|1|3|4", 0}}},
    {F, 0, "token_type: element 1 is 0, expected 1 to 6", NULL, {{GG "token_type", 'I', "1|0|1|3|4|5", 0}}},
    {F, 1, "token_type: element 1 is 7, expected 1 to 6", NULL, {{GG "token_type", 'I', "1|7|1|3|4|5", 0}}},
    {U, 0, "token 1 of a gpt2 vocabulary is a byte", NULL, {{GG "token_type", 'I', "1|6|1|3|4|5", 0}}},
    {0, 1, "", NULL, {{GG "token_type", 'I', "1|6|1|3|4|5", 0}}},
    {0, 0, "", GG "token_type", {{0}}},
    {F, 0, "token 1 holds a NUL", NULL, {{GG "tokens", 'T', "a|b~|ab|<s>|<u>|[PAD5]", 0}}},
    {F, 0, "token 2 occurs twice", NULL, {{GG "tokens", 'T', "a|b|b|<s>|<u>|[PAD5]", 0}}},
    {F, 0, "key " GG "tokens: text 1 is not UTF-8", NULL, {{GG "tokens", 'T', "a|\xff|ab|<s>|<u>|[PAD5]", 0}}},
    {F, 0, "key " GG "merges is missing", GG "merges", {{0}}},
    {F, 0, "key " GG "merges: text 1 is not UTF-8", NULL, {{GG "merges", 'T', "a b|\xff b", 0}}},
    {F, 0, "texts begin with BOS, but key tokenizer.ggml.bos_token_id is missing", NULL, {{GG "add_bos_token", 'b', NULL, 1}}},
    {F, 1, "scores has 0 elements, tokenizer.ggml.tokens has 6", GG "scores", {{0}}},
    {F, 1, "scores has 5 elements, tokenizer.ggml.tokens has 6", NULL, {{GG "scores", 'F', "0|0|0|0|0", 0}}},
    {U, 1, "key " GG "precompiled_charsmap is not supported", NULL, {{GG "precompiled_charsmap", 'I', "1", 0}}},
    {0, 1, "\"bos_token_id\":1,\"eos_token_id\":[2]", NULL, {{0}}},
    {0, 1, "\"add_bos_token\":true,\"add_prefix_space\":true,\"legacy\":true", NULL, {{0}}},
    {0, 1, "\"unk_token\":\"a\"", NULL, {{0}}},
    {0, 0, "\"pad_token\":\"ab\"", NULL, {{GG "padding_token_id", 'i', NULL, 2}}},
    {0, 1, "\"add_prefix_space\":false", NULL, {{GG "add_space_prefix", 'b', NULL, 0}}},
    {0, 1, "\"legacy\":false", NULL, {{GG "tokens", 'T', "a|b|ab|[INST]|<u>|[PAD5]", 0}}},
    {0, 1, "\"legacy\":true", NULL, {{GG "tokens", 'T', "a|b|ab|<s>|[INST]|[PAD5]", 0}}}, // no control token
    // templates
    {0, 0, "\"chat_template\":\"x\"", NULL, {{TT, 't', "x", 0}, {TT "s", 'T', "", 0}}},
    {0, 0, "\"chat_template\":\"x\"", GG "model", {{TT, 't', "x", 0}}},
    {0, 0, "\"chat_template\":[{\"name\":\"y\",\"template\":\"x\"}]", NULL, {{TT ".y", 't', "x", 0}, {TT "s", 'T', "y", 0}}},
    {0, 0, "\"name\":\"" NAME_100 "\"", NULL, {{TT "." NAME_100, 't', "x", 0}, {TT "s", 'T', NAME_100, 0}}},
    {F, 0, "name 0 has 101 bytes, expected at most 100", NULL, {{TT ".y", 't', "x", 0}, {TT "s", 'T', NAME_100 "k", 0}}},
    {F, 0, TT "s: name 1 has 3", NULL, {{TT ".y", 't', "x", 0}, {TT "s", 'T', "y|y~z", 0}}},
    {F, 0, "name 0 is not UTF-8", NULL, {{TT ".\xff", 't', "x", 0}, {TT "s", 'T', "\xff", 0}}},
    {F, 0, "key " TT ".z is missing", NULL, {{TT ".y", 't', "x", 0}, {TT "s", 'T', "y|z", 0}}},
    {F, 0, "key " TT ".y has type i64", NULL, {{TT ".y", 'i', NULL, 0}, {TT "s", 'T', "y", 0}}},
    {F, 0, "key " TT " has type i64", NULL, {{TT, 'i', NULL, 0}}},
    {F, 0, "key " TT "s has type array of i32", NULL, {{TT "s", 'I', "1", 0}}},
    {F, 0, "key " TT ": text 0 is not UTF-8", NULL, {{TT, 't', "\xff", 0}}},
    {0, 0, "\"chat_template\":\"x\\u0000y\"", NULL, {{TT, 't', "x~y", 0}}},
};

static void others(void) {
    for (size_t i = 0; i < sizeof other_values / sizeof *other_values; i++) {
        gguf_file f = {0};
        char text[4000];
        put_all(&f, other_values[i].is_spm, other_values[i].without, other_values[i].more, 2);
        for (int j = 0; j < 2 && other_values[i].more[j].key; j++) put(&f, &other_values[i].more[j], other_values[i].more[j].x);
        int rc = documents(&f, text, sizeof text);
        if (rc != other_values[i].code || !strstr(rc ? err.message : text, other_values[i].says))
            FAIL("case %zu: %d, \"%s\", expected %d, \"%s\"", i, rc, rc ? err.message : text, other_values[i].code,
                 other_values[i].says);
    }
}

static const test_case cases[] = {{"bounds", 0, bounds}, {"types", 0, types}, {"others", 0, others}, {0}};
const test_suite suite_gguf_keys = {"gguf_keys", cases};
