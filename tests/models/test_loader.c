// tests/models/test_loader.c - good and broken model folders: safetensors files, indices, config.json. Each error names the
// fault.
#include "base/json.h"
#include "models/safetensors.h"
#include "engine/engine.h"
#include "models/config.h"
#include "tests/support/nulls.h"
#include "tests/test.h"

#include <fcntl.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static sl_error err;

static void write_file(const char *name, const void *data, size_t n) {
    char path[512];
    snprintf(path, sizeof path, "%s/%s", test_tmp(), name);
    FILE *f = fopen(path, "wb");
    CHECK(f && fwrite(data, 1, n, f) == n);
    fclose(f);
}

static void remove_file(const char *name) {
    char path[512];
    snprintf(path, sizeof path, "%s/%s", test_tmp(), name);
    unlink(path);
}

// Writes a safetensors file with this header, padded with blanks to a multiple of 8, and n_data bytes 0, 1, 2, ...
static void write_tensors(const char *name, const char *header, size_t n_data) {
    size_t n = (strlen(header) + 7) / 8 * 8;
    unsigned char *file = malloc(8 + n + n_data);
    for (int i = 0; i < 8; i++) file[i] = (unsigned char)((uint64_t)n >> (8 * i));
    memset(file + 8, ' ', n);
    memcpy(file + 8, header, strlen(header));
    for (size_t i = 0; i < n_data; i++) file[8 + n + i] = (unsigned char)i;
    write_file(name, file, 8 + n + n_data);
    free(file);
}

#define LLAMA(rest)                                                                                                            \
    "{\"architectures\":[\"LlamaForCausalLM\"],\"model_type\":\"llama\",\"hidden_act\":\"silu\",\"rms_norm_eps\":1e-05," rest  \
    "}"
#define SHAPE                                                                                                                  \
    "\"vocab_size\":128256,\"hidden_size\":4096,\"intermediate_size\":14336,\"num_hidden_layers\":32,\"num_attention_heads\":" \
    "32,\"max_position_embeddings\":131072"
#define LLAMA31                                                                                                                \
    "\"rope_theta\":500000.0,\"rope_scaling\":{\"factor\":8.0,\"low_freq_factor\":1.0,\"high_freq_factor\":4.0,\"original_"    \
    "max_position_embeddings\":8192,\"rope_type\":\"llama3\"}"

static int load_config(const char *text, sl_config *c) {
    write_file("config.json", text, strlen(text));
    return sl_config_load(&SL_FOLDER(test_tmp()), c, &err);
}

#define GOOD                                                                                                                   \
    "{\"__metadata__\":{\"format\":\"pt\"},\"a\":{\"dtype\":\"BF16\",\"shape\":[2,3],\"data_offsets\":[0,12]},\"b\":{"         \
    "\"dtype\":\"F32\",\"shape\":[4],\"data_offsets\":[12,28]}}"

static void good_file(void) {
    sl_tensors *t;
    sl_weight w;
    write_tensors("model.safetensors", GOOD, 28);
    CHECK_OK(sl_tensors_open(test_tmp(), &t, &err), err);
    CHECK_INT(sl_tensors_count(t), 2);
    CHECK_INT(sl_tensors_bytes(t), 28);
    CHECK_OK(sl_tensors_bind(t, "a", 2, 3, &w, &err), err);
    CHECK(w.format == SL_BF16 && w.n_rows == 2 && w.n_cols == 3 && ((const unsigned char *)w.data)[11] == 11);
    CHECK_OK(sl_tensors_bind(t, "b", 0, 4, &w, &err), err);
    CHECK(w.format == SL_F32 && w.n_rows == 1 && ((const unsigned char *)w.data)[0] == 12);
    CHECK_ERR(sl_tensors_bind(t, "c", 2, 3, &w, &err), err, SL_ERR_FORMAT, "tensor c is missing");
    CHECK_ERR(sl_tensors_bind(t, "a", 0, 6, &w, &err), err, SL_ERR_FORMAT, "shape [2, 3], expected [6]");
    CHECK_ERR(sl_tensors_bind(t, "a", 3, 2, &w, &err), err, SL_ERR_FORMAT, "expected [3, 2]");
    sl_tensors_close(t);
    write_tensors("model.safetensors", "{\"a\":{\"dtype\":\"I8\",\"shape\":[4],\"data_offsets\":[0,4]}}", 4);
    CHECK_OK(sl_tensors_open(test_tmp(), &t, &err), err);
    CHECK_ERR(sl_tensors_bind(t, "a", 0, 4, &w, &err), err, SL_ERR_UNSUPPORTED, "dtype I8");
    sl_tensors_close(t);
}

#define T(dtype, shape, offsets) "{\"dtype\":\"" dtype "\",\"shape\":" shape ",\"data_offsets\":" offsets "}"
static const struct {
    const char *header;
    int n_data;
    const char *part;
} broken[] = {
    {"{\"a\":" T("F32", "[2]", "[0,8]") ",\"b\":" T("F32", "[2]", "[4,12]") "}", 12, "overlaps"},
    {"{\"a\":" T("F32", "[2]", "[0,8]") "}", 4, "truncated"},
    {"{\"a\":" T("F32", "[2]", "[4,12]") "}", 12, "belong to no tensor"},
    {"{\"a\":" T("F32", "[2]", "[0,8]") "}", 12, "4 bytes after the last tensor"},
    {"{\"a\":" T("F32", "[3]", "[0,8]") "}", 8, "need 12"},
    {"{\"a\":" T("F4", "[3]", "[0,2]") "}", 2, "do not fill whole bytes"},
    {"{\"a\":" T("F6_E2M3", "[4]", "[0,4]") "}", 4, "need 3"},
    {"{\"a\":" T("C64", "[2]", "[0,8]") "}", 8, "need 16"},
    {"{\"a\":" T("F33", "[2]", "[0,12]") "}", 8, "truncated"},
    {"{\"a\":" T("F32", "[2]", "[8,0]") "}", 8, "begin at 8 and end at 0"},
    {"{\"a\":" T("F32", "[4294967296,4294967296]", "[0,8]") "}", 8, "overflows"},
    {"{\"a\":" T("F32", "[-2]", "[0,8]") "}", 8, "non-negative integer"},
    {"{\"a\":" T("F32", "[2.5]", "[0,8]") "}", 8, "',' or ']'"},
    {"{\"a\":" T("F32", "[2x]", "[0,8]") "}", 8, "',' or ']'"},
    {"{\"a\":" T("F32", "[99999999999999999999]", "[0,8]") "}", 8, "a smaller number"},
    {"{\"a\":" T("F32", "[02]", "[0,8]") "}", 8, "leading zeros"},
    {"{\"a\":" T("F32", "[2]", "[0]") "}", 8, "two data_offsets"},
    {"{\"a\":" T("F32", "[1,1,1,1,1,1,1,1,2]", "[0,8]") "}", 8, "a shorter list"},
    {"{\"a\":{\"dtype\":\"F32\",\"shape\":[2]}}", 8, "dtype, shape and data_offsets"},
    {"{\"a\":{\"dtype\":\"F32\",\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[0,8]}}", 8, "each once"},
    {"{\"a\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[0,8],\"x\":1}}", 8, "each once"},
    {"{\"a\":" T("F32", "[1]", "[0,4]") ",\"a\":" T("F32", "[1]", "[4,8]") "}", 8, "tensor a occurs twice"},
    {"{\"a\":" T("F32", "[2]", "[0,8]"), 8, "',' or '}'"},
    {"{\"a\":" T("F32", "[2]", "[0,8]") "} x", 8, "nothing after the last '}'"},
    {"[]", 0, "'{'"},
    {"", 0, "'{'"},
    {"{\"a\":1}", 0, "'{'"},
    {"{a:1}", 0, "a string"},
    {"{\"a", 0, "the end of a string"},
    {"{\"a\\q\":1}", 0, "a known escape"},
    {"{\"a\x1f\":1}", 0, "no control character"},
    {"{\"a\":" T("SIXTEEN LETTERS!", "[2]", "[0,8]") "}", 8, "a shorter string"},
    {"{\"__metadata__\":{\"x\":1}}", 0, "a string"},
    {"{\"__metadata__\":[]}", 0, "__metadata__"},
};

static void broken_files(void) {
    sl_tensors *t;
    for (size_t i = 0; i < sizeof broken / sizeof *broken; i++) {
        write_tensors("model.safetensors", broken[i].header, (size_t)broken[i].n_data);
        int rc = sl_tensors_open(test_tmp(), &t, &err);
        if (rc != SL_ERR_FORMAT || !strstr(err.message, broken[i].part) || !strstr(err.message, "model.safetensors"))
            FAIL("case %zu: returned %d, message \"%s\", expected \"%s\"", i, rc, rc ? err.message : "", broken[i].part);
    }
    static const unsigned char huge[16] = {0, 0, 0, 0, 0, 0, 0, 0x10}, beyond[16] = {200};
    write_file("model.safetensors", huge, 16);
    CHECK_ERR(sl_tensors_open(test_tmp(), &t, &err), err, SL_ERR_FORMAT, "the header says it has");
    write_file("model.safetensors", beyond, 16);
    CHECK_ERR(sl_tensors_open(test_tmp(), &t, &err), err, SL_ERR_FORMAT, "truncated");
    write_file("model.safetensors", huge, 5);
    CHECK_ERR(sl_tensors_open(test_tmp(), &t, &err), err, SL_ERR_FORMAT, "at least 8");
    remove_file("model.safetensors");
    CHECK_ERR(sl_tensors_open(test_tmp(), &t, &err), err, SL_ERR_IO, "neither model.safetensors nor");
    write_file("pytorch_model.bin", "x", 1);
    CHECK_ERR(sl_tensors_open(test_tmp(), &t, &err), err, SL_ERR_IO, "pytorch_model.bin is not read");
}

#define INDEX(map) "{\"metadata\":{},\"weight_map\":" map "}"
static void shards(void) {
    static const struct {
        const char *index, *part;
        int code;
    } bad[] = {
        {INDEX("{\"a\":\"1.safetensors\",\"b\":\"3.safetensors\"}"), "3.safetensors: No such file", SL_ERR_IO},
        {INDEX("{\"a\":\"1.safetensors\",\"c\":\"2.safetensors\"}"), "tensor c is not in this file", SL_ERR_FORMAT},
        {INDEX("{\"a\":\"2.safetensors\",\"b\":\"1.safetensors\"}"), "is not in this file", SL_ERR_FORMAT},
        {INDEX("{\"a\":\"1.safetensors\"}"), "", 0},
        {INDEX("{\"b\":\"2.safetensors\",\"a\":\"../1.safetensors\"}"), "a file in this folder", SL_ERR_FORMAT},
        {INDEX("{\"a\":7}"), "a file in this folder", SL_ERR_FORMAT},
        {"{\"metadata\":{}}", "weight_map is missing", SL_ERR_FORMAT},
        {"{\"weight_map\"", "model.safetensors.index.json: line 1", SL_ERR_FORMAT},
    };
    sl_tensors *t;
    write_tensors("1.safetensors", "{\"a\":" T("F32", "[2]", "[0,8]") "}", 8);
    write_tensors("2.safetensors", "{\"b\":" T("F16", "[2]", "[0,4]") "}", 4);
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        write_file("model.safetensors.index.json", bad[i].index, strlen(bad[i].index));
        int rc = sl_tensors_open(test_tmp(), &t, &err);
        if (rc != bad[i].code || (rc && !strstr(err.message, bad[i].part)))
            FAIL("case %zu: returned %d, \"%s\"", i, rc, rc ? err.message : "");
        if (!rc) sl_tensors_close(t);
    }
    const char *good = INDEX("{\"a\":\"1.safetensors\",\"b\":\"2.safetensors\"}");
    write_file("model.safetensors.index.json", good, strlen(good));
    CHECK_OK(sl_tensors_open(test_tmp(), &t, &err), err);
    CHECK(strstr(sl_tensors_find(t, "b")->file, "2.safetensors"));
    sl_tensors_close(t);
    write_tensors("2.safetensors", "{\"a\":" T("F16", "[2]", "[0,4]") "}", 4);
    CHECK_ERR(sl_tensors_open(test_tmp(), &t, &err), err, SL_ERR_FORMAT, "tensor a occurs twice");
    char path[3002]; // one character more than a path may have
    int n = snprintf(path, sizeof path, "%s", test_tmp());
    memset(path + n, '/', sizeof path - 1 - n), path[sizeof path - 1] = 0;
    write_tensors("2.safetensors", "{\"b\":" T("F16", "[1]", "[0,2]") ",\"x\":" T("F16", "[1]", "[2,4]") "}", 4);
    CHECK_ERR(sl_tensors_open(path, &t, &err), err, SL_ERR_ARG, "the path is too long");
    path[3000] = 0;
    CHECK_OK(sl_tensors_open(path, &t, &err), err);
    CHECK(sl_tensors_count(t) == 3 && sl_tensors_find(t, "x")); // the index does not list it
    sl_tensors_close(t);
}

// Writes a file of `size` bytes whose header length says n. `{}` and blanks fill the header. All other bytes are zero.
static void write_header_length(uint64_t n, size_t size) {
    static const char text[] = "{}";
    char path[512];
    unsigned char start[16] = {0};
    for (int i = 0; i < 8; i++) start[i] = (unsigned char)(n >> (8 * i));
    memcpy(start + 8, text, 2);
    write_file("model.safetensors", start, sizeof start);
    snprintf(path, sizeof path, "%s/model.safetensors", test_tmp());
    CHECK(!truncate(path, (off_t)size)); // zeros without disk blocks
    if (size > 1 << 16) return;
    FILE *f = fopen(path, "r+b");
    CHECK(f && !fseek(f, 10, SEEK_SET));
    for (size_t i = 10; i < size; i++) CHECK(fputc(' ', f) == ' ');
    CHECK(!fclose(f));
}

static void header_lengths(void) { // the file ends at the end of a page, so that a read after the end faults
    enum { SIZE = 4096, MIB = 1 << 20, LARGE = 102 * MIB };
    static const uint64_t beyond[] = {SIZE - 7,       SIZE - 6,          SIZE - 5,       SIZE - 4,   SIZE - 3,
                                      SIZE - 2,       SIZE - 1,          SIZE,           SIZE + 1,   INT32_MAX,
                                      UINT32_MAX,     UINT32_MAX + 1ull, INT64_MAX,      1ull << 63, UINT64_MAX - SIZE,
                                      UINT64_MAX - 8, UINT64_MAX - 7,    UINT64_MAX - 1, UINT64_MAX};
    sl_tensors *t;
    char says[128];
    write_header_length(SIZE - 8, SIZE);
    CHECK_OK(sl_tensors_open(test_tmp(), &t, &err), err);
    CHECK_INT(sl_tensors_count(t), 0);
    sl_tensors_close(t);
    write_header_length(SIZE - 9, SIZE);
    CHECK_ERR(sl_tensors_open(test_tmp(), &t, &err), err, SL_ERR_FORMAT, "1 bytes after the last tensor");
    for (size_t i = 0; i < sizeof beyond / sizeof *beyond; i++) {
        write_header_length(beyond[i], SIZE);
        snprintf(says, sizeof says, "model.safetensors: the header says it has %llu bytes, expected at most %d",
                 (unsigned long long)beyond[i], SIZE - 8);
        CHECK_ERR(sl_tensors_open(test_tmp(), &t, &err), err, SL_ERR_FORMAT, says);
    }
    write_header_length(1, 9); // the smallest file: a header of one byte, which is not an object
    CHECK_ERR(sl_tensors_open(test_tmp(), &t, &err), err, SL_ERR_FORMAT, "header, byte 1: expected a string");
    write_header_length(0, 8);
    CHECK_ERR(sl_tensors_open(test_tmp(), &t, &err), err, SL_ERR_FORMAT, "header, byte 0: expected '{'");
    write_header_length(100 * MIB, LARGE); // the limit of the format
    CHECK_ERR(sl_tensors_open(test_tmp(), &t, &err), err, SL_ERR_FORMAT, "nothing after the last '}'");
    write_header_length(100 * MIB + 1, LARGE);
    CHECK_ERR(sl_tensors_open(test_tmp(), &t, &err), err, SL_ERR_FORMAT, "104857601 bytes, expected at most 104857600");
}

// Escaped characters in JSON strings. Half a surrogate pair is not a character.
static void surrogates(void) {
    static const struct {
        const char *escaped, *name; // NULL: the header is refused; "": config.json is refused too
    } names[] = {
        {"\\ud7ff", "\xed\x9f\xbf"},
        {"\\ue000", "\xee\x80\x80"},
        {"\\uFfFf", "\xef\xbf\xbf"},
        {"\\u007f\\u0080\\u07ff\\u0800", "\x7f\xc2\x80\xdf\xbf\xe0\xa0\x80"},
        {"\\ud800\\udc00", "\xf0\x90\x80\x80"},
        {"\\uD83D\\ude00x", "\xf0\x9f\x98\x80x"},
        {"\\udbff\\udfff", "\xf4\x8f\xbf\xbf"},
        {"\\udc00", NULL},
        {"\\udfff", NULL},
        {"x\\udead", NULL},
        {"\\ud800", NULL},
        {"\\udbff", NULL},
        {"\\ud800x", NULL},
        {"\\ud800\\n", NULL},
        {"\\ud800u0000", NULL},
        {"\\ud800\\u0041", NULL},
        {"\\ud800\\udbff", NULL},
        {"\\ud800\\ue000", NULL},
        {"\\udc00\\ud800", NULL}, // the pair in the wrong order
        {"\\udc00\\udc00", NULL},
        {"\\ud800\\udc0", ""},
        {"\\ud800\\udcg0", ""},
        {"\\u0000", NULL},
        {"\\u12", ""},
        {"\\u", ""},
    };
    sl_tensors *t;
    sl_config c;
    char text[512];
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        snprintf(text, sizeof text, "{\"__metadata__\":{\"a\":\"%s\"},\"%s\":" T("F32", "[1]", "[0,4]") "}", names[i].escaped,
                 names[i].escaped);
        write_tensors("model.safetensors", text, 4);
        int rc = sl_tensors_open(test_tmp(), &t, &err);
        if (rc != (names[i].name && *names[i].name ? 0 : SL_ERR_FORMAT) || (rc && !strstr(err.message, "a known escape")))
            FAIL("%s: returned %d, \"%s\"", names[i].escaped, rc, rc ? err.message : "");
        if (!rc) {
            CHECK_STR(sl_tensors_at(t, 0)->name, names[i].name);
            sl_tensors_close(t);
        }
        snprintf(text, sizeof text, LLAMA(SHAPE ",\"_name_or_path\":\"%s\""), names[i].escaped); // the parser of config.json
        rc = load_config(text, &c);
        if (rc != (names[i].name && !*names[i].name ? SL_ERR_FORMAT : 0) || (rc && !strstr(err.message, "config.json: line 1")))
            FAIL("config.json with %s: returned %d, \"%s\"", names[i].escaped, rc, rc ? err.message : "");
    }
}

// What safetensors allows and Sleigh must read: data that is not aligned, dtypes that no weight has, tensors without elements.
static void unusual_files(void) {
    static const char header[] =
        "{\"a\":" T("U8", "[1]", "[0,1]") ",\"b\":" T("F32", "[2]", "[1,9]") ",\"c\":" T("BF16", "[1]", "[9,11]")           //
        ",\"d\":" T("F4", "[2,3]", "[11,14]") ",\"e\":" T("F6_E3M2", "[4]", "[14,17]") ",\"f\":" T("C64", "[1]", "[17,25]") //
        ",\"g\":" T("FIFTEEN LETTERS", "[7]", "[25,27]") ",\"h\":" T("F32", "[0]", "[27,27]")                               //
        ",\"i\":" T("F64", "[]", "[27,35]") ",\"j\":" T("F8_E4M3FNUZ", "[2,0,3]", "[1,1]") "}";
    sl_tensors *t;
    sl_weight w;
    for (int blanks = 0; blanks < 4; blanks++) { // every alignment
        char text[1024];
        snprintf(text, sizeof text, "%s%*s", header, blanks, "");
        if (blanks % 2) memcpy(strstr(text, "\"BF16\""), "\"F16\" ", 6);
        write_tensors("model.safetensors", text, 35);
        CHECK_OK(sl_tensors_open(test_tmp(), &t, &err), err);
        CHECK_INT(sl_tensors_count(t), 10);
        CHECK_STR(sl_tensors_find(t, "g")->dtype_name, "FIFTEEN LETTERS");
        CHECK_OK(sl_tensors_bind(t, "b", 0, 2, &w, &err), err);
        CHECK((uintptr_t)w.data % 4 == 0);
        const unsigned char *bytes = w.data, *of_c = sl_tensors_find(t, "c")->data;
        for (int i = 0; i < 8; i++) CHECK_INT(bytes[i], 1 + i);
        CHECK((uintptr_t)of_c % 2 == 0 && of_c[0] == 9 && of_c[1] == 10);
        CHECK_ERR(sl_tensors_bind(t, "g", 0, 7, &w, &err), err, SL_ERR_UNSUPPORTED,
                  "tensor g has dtype FIFTEEN LETTERS, expected BF16");
        CHECK_ERR(sl_tensors_bind(t, "f", 0, 1, &w, &err), err, SL_ERR_UNSUPPORTED, "tensor f has dtype C64, expected BF16");
        sl_tensors_close(t);
    }
    static const char pointer[] = "version https://git-lfs.github.com/spec/v1\noid sha256:4d7a214614ab\nsize 4976698672\n";
    write_file("model.safetensors", pointer, sizeof pointer - 1);
    CHECK_ERR(sl_tensors_open(test_tmp(), &t, &err), err, SL_ERR_FORMAT, "model.safetensors: the file holds a Git LFS pointer");
}

// ---- config.json ----

#define QWEN2(rest) "{\"architectures\":[\"Qwen2ForCausalLM\"],\"model_type\":\"qwen2\",\"num_key_value_heads\":4," rest "}"
#define QWEN3(rest) "{\"architectures\":[\"Qwen3ForCausalLM\"],\"model_type\":\"qwen3\",\"num_key_value_heads\":4," rest "}"

static void configs(void) {
    sl_config c;
    CHECK_OK(load_config(LLAMA("\"vocab_size\":32000,\"hidden_size\":4096,\"intermediate_size\":11008,\"num_hidden_layers\":32,"
                               "\"num_attention_heads\":32,\"max_position_embeddings\":4096,\"pretraining_tp\":1,\"bos_token_"
                               "id\":1,\"eos_token_id\":2,\"rope_scaling\":null"),
                         &c),
             err);
    CHECK(c.n_kv_heads == 32 && c.head_dim == 128 && c.rope_theta == 10000 && !c.tied && c.n_eos == 1 && c.eos[0] == 2 &&
          c.bos == 1);
    CHECK_OK(load_config(LLAMA(SHAPE ",\"num_key_value_heads\":8,\"attention_bias\":false,\"mlp_bias\":false,\"eos_token_id\":["
                                     "128001,128008,128009]," LLAMA31),
                         &c),
             err);
    CHECK(c.n_kv_heads == 8 && c.rope_type == SL_ROPE_LLAMA3 && c.rope_factor == 8 && c.rope_original_ctx == 8192 &&
          c.n_eos == 3);
    CHECK_OK(load_config(LLAMA(SHAPE ",\"vocab_size\":7,\"unread\":[NaN,1000000000000000019884624838656]"), &c), err);
    CHECK_INT(c.n_vocab, 7); // the last of two
    CHECK_OK(load_config("{\"architectures\":[\"MistralForCausalLM\"],\"model_type\":\"mistral\",\"hidden_act\":\"silu\","
                         "\"sliding_window\":null,\"rope_theta\":1000000.0,\"num_key_value_heads\":8," SHAPE "}",
                         &c),
             err);
    CHECK(c.rope_theta == 1e6f && c.rope_type == SL_ROPE_PLAIN && !c.has_qkv_bias && !c.has_qk_norm);
    CHECK_OK(load_config(QWEN2(SHAPE ",\"use_sliding_window\":false,\"sliding_window\":131072,\"max_window_layers\":28"), &c),
             err);
    CHECK(c.has_qkv_bias && !c.has_qk_norm && c.n_kv_heads == 4);
    CHECK_OK(load_config(QWEN3(SHAPE ",\"head_dim\":64,\"attention_bias\":false,\"rope_scaling\":null,\"sliding_window\":null,"
                                     "\"max_window_layers\":36"),
                         &c),
             err);
    CHECK(!c.has_qkv_bias && c.has_qk_norm && c.head_dim == 64 && !c.window);
    const char *gen = "{\"eos_token_id\":[7,9],\"temperature\":0.6,\"top_p\":0.9,\"do_sample\":true}";
    write_file("generation_config.json", gen, strlen(gen));
    CHECK_OK(load_config(LLAMA(SHAPE ",\"eos_token_id\":9"), &c), err);
    CHECK(c.n_eos == 2 && c.eos[0] == 9 && c.eos[1] == 7 && c.gen_temp == 0.6f && c.gen_top_p == 0.9f && c.gen_do_sample == 1 &&
          c.gen_top_k == -1 && isnan(c.gen_min_p));
    gen = "{\"top_k\":7,\"min_p\":0.25,\"repetition_penalty\":1.5}";
    write_file("generation_config.json", gen, strlen(gen));
    CHECK_OK(load_config(LLAMA(SHAPE), &c), err);
    CHECK(c.gen_top_k == 7 && c.gen_min_p == 0.25f && c.gen_repeat_penalty == 1.5f && isnan(c.gen_temp) &&
          c.gen_do_sample == -1);
}

enum { F = SL_ERR_FORMAT, U = SL_ERR_UNSUPPORTED };
static const struct {
    int code;
    const char *text, *part; // part: of the error
} bad_configs[] = {
    {U, LLAMA(SHAPE ",\"attention_bias\":true"), "attention_bias"},
    {U, LLAMA(SHAPE ",\"mlp_bias\":true"), "mlp_bias"},
    {U, "{\"model_type\":\"llama\",\"hidden_act\":\"gelu\"," SHAPE "}", "hidden_act is \"gelu\""},

    {U, LLAMA(SHAPE ",\"partial_rotary_factor\":0.5"), "partial_rotary_factor is 0.5"},
    {U, LLAMA(SHAPE ",\"rope_scaling\":{\"rope_type\":\"longrope\",\"factor\":4.0}"), "\"longrope\""},
    {F, LLAMA(SHAPE ",\"rope_scaling\":{\"rope_type\":\"yarn\"}"), "factor is missing"},
    {F, LLAMA(SHAPE ",\"rope_scaling\":{\"rope_type\":\"yarn\",\"factor\":2,\"beta_fast\":1}"), "beta_fast above beta_slow"},
    {F, LLAMA(SHAPE ",\"rope_theta\":1,\"rope_scaling\":{\"rope_type\":\"yarn\",\"factor\":2}"), "rope_theta above 1"},
    {U, LLAMA(SHAPE ",\"rope_scaling\":{\"type\":\"dynamic\",\"factor\":4.0}"), "\"dynamic\""},
    {F, LLAMA(SHAPE ",\"rope_scaling\":{\"rope_type\":\"llama3\",\"factor\":8.0}"), "low_freq_factor is missing"},
    {U, LLAMA(SHAPE ",\"rope_scaling\":{\"factor\":4.0}"),
     "field rope_scaling.factor has no effect, because rope_type is missing"},
    {U, LLAMA(SHAPE ",\"rope_parameters\":{\"rope_type\":\"default\",\"factor\":4.0}"),
     "field rope_parameters.factor has no effect, because rope_type is \"default\""},
    {U, LLAMA(SHAPE ",\"rope_scaling\":{\"type\":\"linear\",\"factor\":2,\"beta_fast\":32}"),
     "rope_scaling.beta_fast has no effect"},
    {U, LLAMA(SHAPE ",\"rope_scaling\":{\"type\":\"linear\",\"factor\":2,\"partial_rotary_factor\":0.5}"),
     "field rope_scaling.partial_rotary_factor is not supported"},
    {U, LLAMA(SHAPE ",\"rope_parameters\":{\"rope_type\":\"default\",\"mrope_section\":[16,24,24]}"),
     "rope_parameters.mrope_section"},
    {U, QWEN3(SHAPE ",\"rope_parameters\":{\"full_attention\":{\"rope_type\":\"default\"},\"sliding_attention\":null}"),
     "field rope_parameters.full_attention is not supported"},
    {F, LLAMA(SHAPE ",\"rope_scaling\":{\"type\":\"linear\",\"rope_type\":\"yarn\",\"factor\":2}"),
     "has rope_type \"yarn\" and type \"linear\""},
    {F, LLAMA(SHAPE ",\"rope_scaling\":{\"type\":\"linear\",\"factor\":2},\"rope_parameters\":{\"rope_theta\":5e5}"),
     "rope_theta is 10000, and 500000 in rope_parameters"},
    {F, LLAMA(SHAPE ",\"rope_scaling\":\"linear\""), "rope_scaling is a string, expected an object"},
    {F, LLAMA(SHAPE ",\"rope_scaling\":{\"type\":\"yarn\",\"factor\":2,\"attention_factor\":0}"), "attention_factor is 0"},
    {U, LLAMA(SHAPE ",\"rope_scaling\":{\"type\":\"ntk\",\"factor\":2}"), "rope_type \"ntk\""},
    {U, "{\"model_type\":\"mistral3\",\"text_config\":{\"model_type\":\"mistral\"}," SHAPE "}", "text_config is not supported"},
    {U, LLAMA(SHAPE ",\"text_config\":{\"model_type\":\"llama\"}"), "field text_config is {"},
    {U, LLAMA(SHAPE ",\"vision_config\":{\"model_type\":\"clip\"}"), "field vision_config is {"},
    {U, LLAMA(SHAPE ",\"per_layer_config\":{\"0\":{\"head_dim\":64}}"), "field per_layer_config is {"},
    {U, LLAMA(SHAPE ",\"is_encoder_decoder\":true"), "is_encoder_decoder is true"},

    {F, LLAMA(SHAPE ",\"sliding_window\":0"), "sliding_window is 0, expected 1"},
    {F, LLAMA(SHAPE ",\"sliding_window\":1024.5"), "sliding_window is a number"},
    {U, "{\"model_type\":\"qwen2_moe\"," SHAPE "}",
     "model_type is \"qwen2_moe\", supported are \"llama\", \"mistral\", \"qwen2\", \"qwen3\""},
    {F, QWEN2(SHAPE ",\"rope_scaling\":{\"type\":\"yarn\",\"factor\":0.5}"), "factor is 0.5"},
    {F, QWEN2(SHAPE ",\"layer_types\":[\"full_attention\",\"sliding_attention\"]"), "layer_types has 2 entries, expected 32"},
    {U, QWEN2(SHAPE ",\"mlp_bias\":true"), "mlp_bias"},
    {U, QWEN3(SHAPE ",\"head_dim\":128,\"attention_bias\":true"), "attention_bias is true"},
    {U, QWEN3(SHAPE ",\"head_dim\":128,\"architectures\":[\"Qwen3MoeForCausalLM\"]"), "\"Qwen3MoeForCausalLM\""},
    {U, "{\"model_type\":\"qwen3\",\"architectures\":[\"Qwen2ForCausalLM\"],\"head_dim\":128," SHAPE "}",
     "architectures begins with"},
    {U, "{" SHAPE "}", "model_type"},
    {U, "{\"model_type\":\"llama\",\"architectures\":[\"LlamaForSequenceClassification\"]," SHAPE "}", "architectures"},
    {U, LLAMA(SHAPE ",\"head_dim\":72"), "head_dim is 72"},
    {F, LLAMA(SHAPE ",\"num_key_value_heads\":5"), "not a multiple"},
    {F, LLAMA(SHAPE ",\"num_key_value_heads\":64"), "num_key_value_heads is 64"},
    {F, LLAMA("\"vocab_size\":10"), "hidden_size is missing"},
    {F, LLAMA("\"vocab_size\":\"10\""), "vocab_size is a string"},
    {F, LLAMA("\"vocab_size\":0"), "vocab_size is 0"},
    {F, LLAMA(SHAPE ",\"eos_token_id\":128256"), "eos_token_id: expected ids from 0 to 128255"},
    {F, LLAMA(SHAPE ",\"layer_types\":[\"sliding_attention\"]"), "layer_types"},
    {F, "{\"model_type\":\"llama\",", "config.json: line 1"},
    {F, LLAMA(SHAPE ",\"tie_word_embeddings\":1"), "tie_word_embeddings is an integer, expected true or false"},
    {F, LLAMA(SHAPE ",\"head_dim\":0"), "head_dim is 0, expected 1 to 1024"},
    {F, LLAMA(SHAPE ",\"rope_scaling\":{\"rope_type\":7}"), "rope_type is an integer, expected a string"},
    {F, LLAMA(SHAPE ",\"rope_parameters\":[]"), "rope_parameters is a list, expected an object"},
    {U, "{\"model_type\":\"llama\",\"architectures\":\"LlamaForCausalLM\"," SHAPE "}", "architectures begins with"},
    {F, "{\"model_type\":\"llama\\u0000x\"," SHAPE "}", "model_type holds a NUL"},
    {F, "[]", "expected a JSON object"},
    {U,
     LLAMA("\"vocab_size\":10,\"hidden_size\":1040,\"intermediate_size\":64,\"num_hidden_layers\":1,\"num_attention_"
           "heads\":65,\"num_key_value_heads\":1"),
     ": 65 query heads"},
};

static void config_refusals(void) {
    sl_config c;
    for (size_t i = 0; i < sizeof bad_configs / sizeof *bad_configs; i++) {
        int rc = load_config(bad_configs[i].text, &c);
        if (rc != bad_configs[i].code || !strstr(err.message, bad_configs[i].part))
            FAIL("case %zu: returned %d, \"%s\", expected \"%s\"", i, rc, rc ? err.message : "", bad_configs[i].part);
    }
    remove_file("config.json");
    CHECK_ERR(sl_config_load(&SL_FOLDER(test_tmp()), &c, &err), err, SL_ERR_IO, "config.json");
}

// ---- null ----

static void describe_config(char *out, size_t size) {
    sl_config c;
    if (sl_config_load(&SL_FOLDER(test_tmp()), &c, &err)) {
        snprintf(out, size, "%s", err.message);
        return;
    }
    int n = snprintf(out, size, "%s %d %d %d %d %d %d %d %d %a %d %a %d %a %a %a %d %d %a %a %a %a %d %d eos", c.model_type,
                     c.n_vocab, c.hidden, c.n_ffn, c.n_layers, c.n_heads, c.n_kv_heads, c.head_dim, c.n_ctx, c.norm_eps, c.tied,
                     c.rope_theta, (int)c.rope_type, c.rope_factor, c.rope_low_freq, c.rope_high_freq, c.rope_original_ctx,
                     c.bos, c.gen_temp, c.gen_top_p, c.gen_min_p, c.gen_repeat_penalty, c.gen_top_k, c.gen_do_sample);
    for (int i = 0; i < c.n_eos; i++) n += snprintf(out + n, size - n, " %d", c.eos[i]);
}

static void describe_tensors(char *out, size_t size) {
    sl_tensors *t;
    if (sl_tensors_open(test_tmp(), &t, &err)) {
        snprintf(out, size, "%s", err.message);
        return;
    }
    int n = 0;
    for (int i = 0; i < sl_tensors_count(t); i++) n += snprintf(out + n, size - n, "%s ", sl_tensors_at(t, i)->name);
    sl_tensors_close(t);
}

static void nulls(void) {
    static const char *const none[] = {NULL}, *const index_maps[] = {"weight_map", NULL};
    static const struct {
        const char *text, *file;
        int n;
    } configs[] = {
        {LLAMA(SHAPE ",\"num_key_value_heads\":8,\"head_dim\":64,\"tie_word_embeddings\":true,\"attention_bias\":false,"
                     "\"mlp_bias\":false,\"bos_token_id\":1,\"eos_token_id\":[2,3],\"partial_rotary_factor\":1,"
                     "\"max_window_layers\":7," LLAMA31),
         "config.json", 26},
        {LLAMA(SHAPE ",\"rope_parameters\":{\"type\":\"linear\",\"rope_theta\":20000.0,\"factor\":4.0},\"rope_theta\":3e4,"
                     "\"rope_scaling\":{\"rope_type\":\"linear\",\"factor\":2.0}"),
         "config.json", 18},
        {"{\"eos_token_id\":[7,9],\"temperature\":0.6,\"top_p\":0.9,\"min_p\":0.1,\"top_k\":5,\"repetition_penalty\":1.5,"
         "\"do_sample\":true}",
         "generation_config.json", 7},
    };
    for (size_t i = 0; i < sizeof configs / sizeof *configs; i++) {
        json_t *root = json_loads(configs[i].text, 0, NULL);
        CHECK(root != NULL);
        CHECK_INT(test_nulls(root, configs[i].file, none, describe_config), configs[i].n);
        json_decref(root);
        // Fields of this file must not remain for the next file.
        CHECK_OK(load_config(configs[0].text, &(sl_config){0}), err);
    }
    write_tensors("1.safetensors", "{\"__metadata__\":null,\"a\":" T("F32", "[2]", "[0,8]") "}", 8);
    static const char text[] = INDEX("{\"a\":\"1.safetensors\"}");
    char made[256];
    write_file("model.safetensors.index.json", text, sizeof text - 1);
    describe_tensors(made, sizeof made);
    CHECK_STR(made, "a "); // null as __metadata__ is accepted
    json_t *index = json_loads(text, 0, NULL);
    CHECK_INT(test_nulls(index, "model.safetensors.index.json", index_maps, describe_tensors), 2);
    json_decref(index);
}

// Derived values must be right both when a field is missing and when it is null.
static void derived(void) {
    static const char *const head_dims[] = {"", ",\"head_dim\":null"};
    sl_config c;
    for (int i = 0; i < 2; i++) {
        char text[1024];
        static const char dims[] =
            LLAMA("\"vocab_size\":10,\"hidden_size\":%d,\"intermediate_size\":64,\"num_hidden_layers\":1,"
                  "\"num_attention_heads\":%d%s");
        snprintf(text, sizeof text, dims, 8, 16, head_dims[i]);
        CHECK_ERR(load_config(text, &c), err, SL_ERR_FORMAT, "hidden_size 8 is not a multiple of num_attention_heads 16");
        snprintf(text, sizeof text, dims, 8, 1, head_dims[i]);
        CHECK_ERR(load_config(text, &c), err, SL_ERR_UNSUPPORTED, "head_dim is 8, supported are multiples of 16 up to 256");
        snprintf(text, sizeof text, dims, 512, 1, head_dims[i]);
        CHECK_ERR(load_config(text, &c), err, SL_ERR_UNSUPPORTED, "head_dim is 512");
        snprintf(text, sizeof text, dims, 96, 6, head_dims[i]);
        CHECK_OK(load_config(text, &c), err);
        CHECK(c.head_dim == 16 && c.n_kv_heads == 6 && c.n_ctx == 2048 && !c.tied);
    }
}

// The check must find a change of a mapped file. A new file with the same name is not a change.
static void changed_files(void) {
    static const char *const parts[] = {NULL, NULL, "bytes, expected ", "modified at 0.000000001, expected "};
    const struct timespec early[2] = {{.tv_nsec = 1}, {.tv_nsec = 1}};
    char path[256], other[256];
    snprintf(path, sizeof path, "%s/model.safetensors", test_tmp());
    snprintf(other, sizeof other, "%s/other", test_tmp());
    for (int how = 0; how < 4; how++) {
        sl_tensors *t;
        write_tensors("model.safetensors", GOOD, 28);
        write_tensors("other", GOOD, 28);
        CHECK_OK(sl_tensors_open(test_tmp(), &t, &err), err);
        CHECK_INT(sl_tensors_n_files(t), 1);
        const sl_tensor_file *f = sl_tensors_file(t, 0);
        if (how == 1) CHECK_INT(rename(other, path), 0);
        if (how == 2) CHECK_INT(truncate(path, (off_t)f->size - 1), 0);
        if (how == 3) CHECK_INT(utimensat(AT_FDCWD, path, early, 0), 0);
        if (parts[how]) {
            CHECK_ERR(sl_tensor_file_check(f, &err), err, SL_ERR_IO, parts[how]);
            CHECK(strstr(err.message, path) == err.message);
        } else
            CHECK_OK(sl_tensor_file_check(f, &err), err);
        sl_tensors_close(t);
    }
    for (int part = 0; part < 2; part++) { // the seconds, or the nanoseconds
        const struct timespec before[2] = {{1000, 5}, {1000, 5}}, after[2] = {{1001 - part, 5 + part}, {1001 - part, 5 + part}};
        sl_tensors *t;
        write_tensors("model.safetensors", GOOD, 28);
        CHECK_INT(utimensat(AT_FDCWD, path, before, 0), 0);
        remove_file("other");
        CHECK_OK(sl_tensors_open(test_tmp(), &t, &err), err);
        CHECK_OK(sl_tensor_file_check(sl_tensors_file(t, 0), &err), err);
        CHECK_INT(utimensat(AT_FDCWD, path, after, 0), 0);
        CHECK_ERR(sl_tensor_file_check(sl_tensors_file(t, 0), &err), err, SL_ERR_IO, "modified at 100");
        sl_tensors_close(t);
    }
    char cmd[320];
    sl_model *model;
    snprintf(cmd, sizeof cmd, "cp tests/goldens/mha/*.json tests/goldens/mha/model.safetensors '%s'", test_tmp());
    CHECK_INT(system(cmd), 0);
    CHECK_OK(sl_model_load(test_tmp(), &(sl_model_options){.flags = SL_MODEL_NO_TOKENIZER}, &model, &err), err);
    CHECK_OK(sl_model_check(model, &err), err);
    CHECK_INT(utimensat(AT_FDCWD, path, early, 0), 0);
    CHECK_ERR(sl_model_check(model, &err), err, SL_ERR_IO, path);
    sl_model_free(model);
}

// ---- the hash of tensors ----

static uint64_t hash_bytes(uint64_t hash, const void *data, size_t n) {
    for (const unsigned char *p = data; n > 0; n--) hash ^= *p++, hash *= 0x100000001b3u;
    return hash;
}

// The hash as safetensors.h describes it. A change of a byte changes it if the description samples the byte; a change of a
// name, a dtype or a dimension always does.
static void hash_of_tensors(void) {
    static const size_t sizes[] = {1, 4096, 32767, 32768, 32769, 40003, 100000}; // bytes of a tensor
    enum { N = sizeof sizes / sizeof *sizes };
    uint64_t want = 5, found[3 * N + 1];
    char text[2048];
    size_t total = 0;
    int n_found = 0;
    sl_tensors *t;
    for (int change = -1; change < 3 * N; change++) {
        int n = snprintf(text, sizeof text, "{"), what = change < 0 ? -1 : change % 3;
        total = 0;
        for (int i = 0; i < N; i++) {
            int is_changed = change / 3 == i && change >= 0, is_flat = what == 1 && is_changed;
            n += snprintf(text + n, sizeof text - n,
                          "%s\"t%d%s\":{\"dtype\":\"%s\",\"shape\":[%s%zu],\"data_offsets\":[%zu,%zu]}", i ? "," : "", i,
                          what == 0 && is_changed ? "x" : "", what == 2 && is_changed ? "I8" : "U8", is_flat ? "1," : "",
                          sizes[i], total, total + sizes[i]);
            total += sizes[i];
        }
        snprintf(text + n, sizeof text - n, "}");
        write_tensors("model.safetensors", text, total);
        CHECK_OK(sl_tensors_open(test_tmp(), &t, &err), err);
        uint64_t hash = found[n_found++] = sl_tensors_hash(t, 5);
        for (int i = 0; i + 1 < n_found; i++) CHECK(found[i] != hash);
        if (change < 0) {
            for (int i = 0; i < N; i++) {
                const uint64_t dims[2] = {1, sizes[i]}; // the number of dimensions, then each of them
                const char name[] = {'t', (char)('0' + i), 0}, *data = sl_tensors_at(t, i)->data;
                want = hash_bytes(hash_bytes(hash_bytes(want, name, 3), "U8", 3), dims, sizeof dims);
                for (size_t k = 0; sizes[i] > 32768 && k < 8; k++)
                    want = hash_bytes(want, data + (k < 7 ? k * ((sizes[i] - 4096) / 7) : sizes[i] - 4096), 4096);
                if (sizes[i] <= 32768) want = hash_bytes(want, data, sizes[i]);
            }
            CHECK(hash == want);
        }
        sl_tensors_close(t);
    }
}

static const test_case cases[] = {
    {"hash-of-tensors", 0, hash_of_tensors},
    {"good-file", 0, good_file},
    {"broken-files", 0, broken_files},
    {"header-lengths", 0, header_lengths},
    {"surrogates", 0, surrogates},
    {"unusual-files", 0, unusual_files},
    {"shards", 0, shards},
    {"configs", 0, configs},
    {"config-refusals", 0, config_refusals},
    {"nulls", 0, nulls},
    {"derived", 0, derived},
    {"changed-files", 0, changed_files},
    {0},
};
const test_suite suite_loader = {"loader", cases};
