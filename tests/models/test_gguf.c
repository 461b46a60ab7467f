// tests/models/test_gguf.c - the container of GGUF files (models/gguf.h): what is refused, damaged files, parts, values.
#include "engine/engine.h"
#include "models/gguf.h"
#include "models/source.h"
#include "tests/support/gguf_file.h"
#include "tests/support/run_cli.h"
#include "tests/support/tokens.h"
#include "tests/test.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static sl_error err;

// ---- errors of the container ----

static const float numbers[16] = {1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16};

// Two tensors of 64 bytes; values of several types.
static void make_small(gguf_file *f) {
    static const int64_t four[2] = {4, 4}, sixteen[1] = {16};
    static const char *const texts[2] = {"one", "two"};
    gguf_file_text(f, "general.name", "small");
    gguf_file_int(f, "a.bool", SL_GGUF_BOOL, 1);
    gguf_file_int(f, "general.alignment", SL_GGUF_U32, 32);
    gguf_file_texts(f, "a.texts", texts, 2);
    gguf_file_tensor(f, "tensor_one", 0, 2, four, numbers, sizeof numbers);
    gguf_file_tensor(f, "tensor_two", 0, 1, sixteen, numbers, sizeof numbers);
}

static int open_bytes(const sl_text *file) {
    sl_gguf g;
    tokens_write("x.gguf", file->data, file->n);
    int rc = sl_gguf_open(in_tmp("x.gguf"), &g, &err);
    sl_gguf_close(&g);
    return rc;
}

typedef struct edit {
    const char *find; // in the file; "": the start
    int skip;         // bytes from the start of `find`
    const char *bytes;
    size_t n;
    int code;
    const char *says;
} edit;

#define B(s) s, sizeof s - 1

static void refused(void) {
    // A tensor's name is followed by n_dims (4 bytes), dims (8 each), the type (4), the offset (8).
    static const edit edits[] = {
        {"", 0, B("GGUX"), SL_ERR_FORMAT, "byte 0: expected \"GGUF\""},
        {"", 4, B("\1"), SL_ERR_UNSUPPORTED, "GGUF version 1, expected 2 or 3; convert the model again"},
        {"", 4, B("\4"), SL_ERR_UNSUPPORTED, "GGUF version 4, expected 2 or 3"},
        {"", 4, B("\0\0\0\3"), SL_ERR_UNSUPPORTED, "big-endian"},
        {"", 8, B("\xff\xff\xff"), SL_ERR_FORMAT, "the number of tensors is 16777215, the file has"},
        {"", 15, B("\x80"), SL_ERR_FORMAT, "the number of tensors is 9223372036854775810"},
        {"", 16, B("\xff\xff"), SL_ERR_FORMAT, "the number of values is 65535"},
        {"general.name", -8, B("\xff\xff\xff"), SL_ERR_FORMAT, "the key of a value of 16777215 bytes"},
        {"general.name", -8, B("\0"), SL_ERR_FORMAT, "the key of a value has 0 bytes, expected 1 to 65535"},
        {"general.name", 3, B("\0"), SL_ERR_FORMAT, "with a NUL"},
        {"general.name", 12, B("\15"), SL_ERR_FORMAT, "key general.name has type 13, expected 0 to 12"},
        {"small", -8, B("\xff\xff\xff\xff\xff\xff\xff\xff"), SL_ERR_FORMAT, "a string of 18446744073709551615 bytes"},
        {"a.bool", 10, B("\2"), SL_ERR_FORMAT, "key a.bool is the bool 2, expected 0 or 1"},
        {"a.texts", 10, B("\0\x20"), SL_ERR_FORMAT, "key a.texts has type 32, expected 0 to 12"},
        {"a.texts", 15, B("\xff\xff\xff\xff\xff\xff\xff\x7f"), SL_ERR_FORMAT,
         "has 9223372036854775807 elements of type string"},
        {"a.texts", 15, B("\x40\0\0\0\0\0\0\0"), SL_ERR_FORMAT, "has 64 elements of type string, the file has "},
        {"a.bool", 0, B("a.boot"), 0, NULL},
        {"general.alignment", 21, B("\1"), SL_ERR_FORMAT, "key general.alignment is 1 of type u32, expected a power of two"},
        {"general.alignment", 21, B("\x30"), SL_ERR_FORMAT, "key general.alignment is 48"},
        {"general.alignment", 17, B("\5"), SL_ERR_FORMAT, "of type i32"},
        {"tensor_two", 0, B("tensor_one"), SL_ERR_FORMAT, "tensor tensor_one occurs twice"},
        {"tensor_one", 10, B("\0"), SL_ERR_FORMAT, "tensor tensor_one has 0 dimensions, expected 1 to 4"},
        {"tensor_one", 10, B("\5"), SL_ERR_FORMAT, "tensor tensor_one has 5 dimensions"},
        {"tensor_one", 14, B("\0"), SL_ERR_FORMAT, "tensor tensor_one: dimension 0 is 0"},
        {"tensor_one", 21, B("\x80"), SL_ERR_FORMAT, "dimension 0 is -9223372036854775804"},
        {"tensor_one", 20, B("\xff\0\xff\xff\xff\xff\xff\xff\xff\x0f"), SL_ERR_FORMAT, "the shape overflows"},
        {"tensor_one", 30, B("\x0a"), SL_ERR_UNSUPPORTED,
         "tensor tensor_one has type Q2_K (10), supported are F32, F16, BF16, Q8_0"},
        {"tensor_one", 30, B("\x63"), SL_ERR_UNSUPPORTED, "tensor tensor_one has type unknown (99)"},
        {"tensor_one", 30, B("\x2"), SL_ERR_FORMAT, "rows of 4 values are no whole blocks of 32, as type Q4_0 has them"},
        {"tensor_two", 26, B("\x20"), SL_ERR_FORMAT, "tensor tensor_two overlaps tensor tensor_one"},
        {"tensor_two", 26, B("\x60"), SL_ERR_FORMAT, "32 bytes before tensor tensor_two belong to no tensor"},
        {"tensor_two", 26, B("\x41"), SL_ERR_FORMAT, "tensor_two: offset 65 is not a multiple of the alignment 32"},
        {"tensor_two", 33, B("\xff"), SL_ERR_FORMAT, "belong to no tensor"},
    };
    gguf_file f = {0};
    sl_text file = {0};
    make_small(&f);
    gguf_file_bytes(&f, &file);
    CHECK_OK(open_bytes(&file), err);
    for (size_t i = 0; i < sizeof edits / sizeof *edits; i++) {
        const edit *e = &edits[i];
        char *at = memmem(file.data, file.n, e->find, strlen(e->find)), old[16];
        CHECK(at != NULL);
        at += e->skip; // from the first byte of `find`
        memcpy(old, at, e->n);
        memcpy(at, e->bytes, e->n);
        int rc = open_bytes(&file);
        if (rc != e->code || (rc && !strstr(err.message, e->says)))
            FAIL("edit %zu: returned %d, \"%s\", expected \"%s\"", i, rc, rc ? err.message : "", e->says);
        memcpy(at, old, e->n);
    }
    sl_text_free(&file);
}

// Every length of a file up to the data of the last tensor is refused: no length reads beyond the file.
static void truncated(void) {
    gguf_file f = {0};
    sl_text file = {0};
    make_small(&f);
    gguf_file_bytes(&f, &file);
    size_t n = file.n;
    for (file.n = 0; file.n < n; file.n++) {
        int rc = open_bytes(&file);
        if (rc != SL_ERR_FORMAT) FAIL("%zu of %zu bytes: returned %d", file.n, n, rc);
    }
    CHECK_OK(open_bytes(&file), err);
    sl_text_free(&file);
}

static void duplicate_key(void) {
    gguf_file f = {0};
    make_small(&f);
    gguf_file_int(&f, "a.bool", SL_GGUF_U8, 1);
    gguf_file_write(&f, "x.gguf");
    sl_gguf g;
    CHECK_ERR(sl_gguf_open(in_tmp("x.gguf"), &g, &err), err, SL_ERR_FORMAT, "key a.bool occurs twice");
    sl_gguf_close(&g);
}

// ---- values ----

static void values(void) {
    static const int ints[3] = {1, -2, 3};
    static const float floats[2] = {0.5f, -8};
    gguf_file f = {0};
    sl_gguf g;
    sl_gguf_string s;
    const sl_gguf_value *v;
    long long x, seven = 7;
    double d;
    int set;
    gguf_file_int(&f, "u8", SL_GGUF_U8, 255), gguf_file_int(&f, "i8", SL_GGUF_I8, -1);
    gguf_file_int(&f, "u16", SL_GGUF_U16, 65535), gguf_file_int(&f, "i16", SL_GGUF_I16, -2);
    gguf_file_int(&f, "u32", SL_GGUF_U32, 4294967295), gguf_file_int(&f, "i32", SL_GGUF_I32, -3);
    gguf_file_int(&f, "u64", SL_GGUF_U64, -1), gguf_file_int(&f, "i64", SL_GGUF_I64, -4);
    gguf_file_float(&f, "f32", 0.25f), gguf_file_text(&f, "text", "abc"), gguf_file_int(&f, "bool", SL_GGUF_BOOL, 1);
    gguf_file_int(&f, "f64", SL_GGUF_F64, 0x3ff4cccccccccccd); // 1.3
    gguf_file_ints(&f, "ints", ints, 3), gguf_file_floats(&f, "floats", floats, 2);
    gguf_file_write(&f, "x.gguf");
    CHECK_OK(sl_gguf_open(in_tmp("x.gguf"), &g, &err), err);
    static const struct {
        const char *key;
        long long want;
    } wants[] = {{"u8", 255},         {"i8", -1},  {"u16", 65535}, {"i16", -2},
                 {"u32", 4294967295}, {"i32", -3}, {"i64", -4},    {"none", 7}};
    for (size_t i = 0; i < sizeof wants / sizeof *wants; i++) {
        CHECK_OK(sl_gguf_int(&g, wants[i].key, INT64_MIN, INT64_MAX, &seven, &x, &err), err);
        CHECK_INT(x, wants[i].want);
    }
    CHECK_ERR(sl_gguf_int(&g, "u64", 0, 9, NULL, &x, &err), err, SL_ERR_FORMAT,
              "key u64 is 9223372036854775807, expected 0 to 9");
    CHECK_ERR(sl_gguf_int(&g, "none", 0, 9, NULL, &x, &err), err, SL_ERR_FORMAT, "key none is missing");
    CHECK_ERR(sl_gguf_int(&g, "text", 0, 9, NULL, &x, &err), err, SL_ERR_FORMAT,
              "key text has type string, expected an integer");
    CHECK_ERR(sl_gguf_int(&g, "ints", 0, 9, NULL, &x, &err), err, SL_ERR_FORMAT, "key ints has type array of i32");
    CHECK_OK(sl_gguf_float(&g, "f32", 0, 1, NULL, &d, &err), err);
    CHECK_NEAR(d, 0.25, 0);
    CHECK_OK(sl_gguf_float(&g, "f64", 1, 2, NULL, &d, &err), err);
    CHECK(d == 1.3);
    CHECK_ERR(sl_gguf_float(&g, "f32", 1, 2, NULL, &d, &err), err, SL_ERR_FORMAT, "key f32 is 0.25, expected 1 to 2");
    CHECK_ERR(sl_gguf_float(&g, "u8", 1, 2, NULL, &d, &err), err, SL_ERR_FORMAT, "key u8 has type u8, expected f32 or f64");
    CHECK_OK(sl_gguf_bool(&g, "bool", 0, &set, &err), err);
    CHECK_INT(set, 1);
    CHECK_OK(sl_gguf_text(&g, "text", &s, &err), err);
    CHECK(sl_gguf_equals(s, "abc") && !sl_gguf_equals(s, "ab"));
    CHECK_OK(sl_gguf_array(&g, "ints", SL_GGUF_I32, &v, &err), err);
    CHECK(v->n == 3 && sl_gguf_int_at(v, 1) == -2);
    CHECK_OK(sl_gguf_array(&g, "floats", SL_GGUF_F32, &v, &err), err);
    CHECK(v->n == 2 && sl_gguf_float_at(v, 1) == -8);
    CHECK_ERR(sl_gguf_array(&g, "floats", SL_GGUF_I32, &v, &err), err, SL_ERR_FORMAT, "of f32, expected array of integers");
    sl_gguf_close(&g);
}

// ---- models that are refused ----

static void refused_models(void) {
    static const struct {
        const char *key, *text; // text: a string; NULL: the integer
        long long x;
        const char *says;
    } cases[] = {
        {"general.type", "adapter", 0, "key general.type is \"adapter\", only \"model\" is supported"},
        {"general.quantization_version", NULL, 1, "key general.quantization_version is 1, expected 2 to 2"},
        {"llama.expert_count", NULL, 8, "key llama.expert_count is not 0, which is the only supported value"},
        {"llama.logit_scale", NULL, 2, "key llama.logit_scale is not supported"},
        {"llama.rope.dimension_count", NULL, 8, "key llama.rope.dimension_count is 8, only the whole head of 16 is supported"},
        {"llama.rope.scaling.type", "longrope", 0, "\"longrope\", supported are \"none\", \"linear\" and \"yarn\""},
        {"llama.rope.scaling.type", "linear", 0, "key llama.rope.scaling.factor is missing"},
        {"tokenizer.ggml.model", "bert", 0, "key tokenizer.ggml.model is \"bert\", supported are \"gpt2\" and \"llama\""},
    };
    sl_source *source;
    sl_config config;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        gguf_file f = {0};
        gguf_file_config(&f, "tests/goldens/f16");
        if (cases[i].text)
            gguf_file_text(&f, cases[i].key, cases[i].text);
        else
            gguf_file_int(&f, cases[i].key, SL_GGUF_U32, cases[i].x);
        gguf_file_write(&f, "x.gguf");
        int rc = sl_source_open(in_tmp("x.gguf"), &source, &err);
        if (!rc) {
            rc = sl_config_load(sl_source_documents(source), &config, &err);
            sl_source_close(source);
        }
        if (rc != (strstr(cases[i].says, "supported") ? SL_ERR_UNSUPPORTED : SL_ERR_FORMAT) ||
            !strstr(err.message, cases[i].says))
            FAIL("%s: \"%s\" lacks \"%s\"", cases[i].key, err.message, cases[i].says);
    }
    gguf_file f = {0};
    sl_text file = {0};
    gguf_file_config(&f, "tests/goldens/f16");
    gguf_file_bytes(&f, &file);
    char *value = memmem(file.data, file.n, "value_length", 12);
    CHECK(value != NULL);
    value[16] = 32;
    tokens_write("x.gguf", file.data, file.n);
    CHECK_ERR(sl_source_open(in_tmp("x.gguf"), &source, &err), err, SL_ERR_UNSUPPORTED,
              "key_length is 16 and value_length is 32, only equal values are supported");
    sl_text_free(&file);
    gguf_file_text(&f, "general.architecture", "gemma3");
    gguf_file_write(&f, "x.gguf");
    CHECK_ERR(sl_source_open(in_tmp("x.gguf"), &source, &err), err, SL_ERR_UNSUPPORTED,
              "key general.architecture is \"gemma3\", supported are \"llama\", \"qwen2\" and \"qwen3\"");
}

// Sliding windows and scalings of RoPE.
static void settings(void) {
    static const struct {
        const char *key, *text;
        float x; // of the key; with text: of llama.rope.scaling.factor
        sl_rope_type type;
        float factor, attention;
        int window;
    } cases[] = {
        {"llama.rope.scaling.type", "linear", 4, SL_ROPE_LINEAR, 4, 1, 0},
        {"llama.rope.scaling.type", "none", 4, SL_ROPE_PLAIN, 1, 1, 0},
        {"llama.rope.scaling.type", "yarn", 4, SL_ROPE_YARN, 4, 1.1386294f, 0}, // 0.1 ln(4) + 1
        {"llama.rope.scale_linear", NULL, 2, SL_ROPE_LINEAR, 2, 1, 0},
        {"llama.attention.sliding_window", NULL, 0, SL_ROPE_PLAIN, 1, 1, 64},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        gguf_file f = {0};
        sl_source *source;
        sl_config config;
        gguf_file_config(&f, "tests/goldens/f16");
        if (cases[i].window)
            gguf_file_int(&f, cases[i].key, SL_GGUF_U32, cases[i].window);
        else if (cases[i].text)
            gguf_file_text(&f, cases[i].key, cases[i].text);
        else
            gguf_file_float(&f, cases[i].key, cases[i].x);
        if (cases[i].text) gguf_file_float(&f, "llama.rope.scaling.factor", cases[i].x);
        gguf_file_write(&f, "x.gguf");
        CHECK_OK(sl_source_open(in_tmp("x.gguf"), &source, &err), err);
        CHECK_OK(sl_config_load(sl_source_documents(source), &config, &err), err);
        sl_source_close(source);
        CHECK(config.rope_type == cases[i].type && config.rope_factor == cases[i].factor);
        CHECK_NEAR(config.rope_attention, cases[i].attention, 1e-6);
        CHECK_INT(config.window, cases[i].window);
        CHECK_STR(config.model_type, cases[i].window ? "mistral" : "llama");
    }
}

// Every number of a file has a value of its own: no field takes the value of another key.
static void every_key(void) {
    static const struct {
        const char *key;
        double x;
        int is_float;
    } keys[] = {
        {"qwen2.block_count", 3, 0},
        {"qwen2.context_length", 4096, 0},
        {"qwen2.embedding_length", 96, 0},
        {"qwen2.feed_forward_length", 112, 0},
        {"qwen2.attention.head_count", 6, 0},
        {"qwen2.attention.head_count_kv", 2, 0},
        {"qwen2.attention.key_length", 32, 0},
        {"qwen2.attention.value_length", 32, 0},
        {"qwen2.vocab_size", 11, 0},
        {"qwen2.attention.layer_norm_rms_epsilon", 2e-5, 1},
        {"qwen2.rope.freq_base", 12345, 1},
        {"qwen2.rope.scaling.factor", 4, 1},
        {"qwen2.rope.scaling.yarn_beta_fast", 17, 1},
        {"qwen2.rope.scaling.yarn_beta_slow", 0.5, 1}, // a number between 0 and 1 is allowed
        {"qwen2.rope.scaling.attn_factor", 0.75, 1},
        {"qwen2.rope.scaling.original_context_length", 1024, 0},
    };
    gguf_file f = {0};
    sl_source *source;
    sl_config c;
    gguf_file_text(&f, "general.architecture", "qwen2");
    gguf_file_text(&f, "qwen2.rope.scaling.type", "yarn");
    for (size_t i = 0; i < sizeof keys / sizeof *keys; i++) {
        if (keys[i].is_float)
            gguf_file_float(&f, keys[i].key, (float)keys[i].x);
        else
            gguf_file_int(&f, keys[i].key, SL_GGUF_U32, (long long)keys[i].x);
    }
    gguf_file_write(&f, "x.gguf");
    CHECK_OK(sl_source_open(in_tmp("x.gguf"), &source, &err), err);
    CHECK_OK(sl_config_load(sl_source_documents(source), &c, &err), err);
    sl_source_close(source);
    CHECK(c.n_layers == 3 && c.n_trained == 4096 && c.n_ctx == 4096 && c.hidden == 96 && c.n_ffn == 112 && c.n_heads == 6);
    CHECK(c.n_kv_heads == 2 && c.head_dim == 32 && c.n_vocab == 11 && c.norm_eps == 2e-5f && c.rope_theta == 12345);
    CHECK(c.rope_type == SL_ROPE_YARN && c.rope_factor == 4 && c.rope_beta_fast == 17 && c.rope_beta_slow == 0.5f);
    CHECK_INT(c.rope_original_ctx, 1024);
    CHECK_NEAR(c.rope_attention, 0.75 * (0.1 * log(4) + 1), 1e-6);
    CHECK_STR(c.model_type, "qwen2");
}

// An array with one value for each layer: equal values are one value.
static void values_of_layers(void) {
    static const int equal[2] = {2, 2}, other[2] = {2, 4};
    sl_source *source;
    for (int i = 0; i < 2; i++) {
        gguf_file f = {0};
        gguf_file_text(&f, "general.architecture", "llama");
        for (int j = 0; j < 5; j++) {
            static const char *const keys[] = {"llama.block_count", "llama.context_length", "llama.embedding_length",
                                               "llama.feed_forward_length", "llama.attention.head_count"};
            gguf_file_int(&f, keys[j], SL_GGUF_U32, j == 2 ? 64 : 4);
        }
        gguf_file_ints(&f, "llama.attention.head_count_kv", i ? other : equal, 2);
        gguf_file_int(&f, "llama.vocab_size", SL_GGUF_U32, 10);
        gguf_file_float(&f, "llama.attention.layer_norm_rms_epsilon", 1e-5f);
        gguf_file_write(&f, "x.gguf");
        if (i) {
            CHECK_ERR(sl_source_open(in_tmp("x.gguf"), &source, &err), err, SL_ERR_UNSUPPORTED,
                      "key llama.attention.head_count_kv is 2 in layer 0 and 4 in layer 1, only equal values are supported");
            continue;
        }
        sl_config config;
        CHECK_OK(sl_source_open(in_tmp("x.gguf"), &source, &err), err);
        CHECK_OK(sl_config_load(sl_source_documents(source), &config, &err), err);
        CHECK(config.n_heads == 4 && config.n_kv_heads == 2 && config.head_dim == 16 && config.tied == 1);
        sl_source_close(source);
    }
}

// ---- parts ----

static void write_part(const char *name, int no, int n_parts, int from, int to, int all) {
    gguf_file f = {0};
    gguf_file_int(&f, "split.no", SL_GGUF_U16, no);
    gguf_file_int(&f, "split.count", SL_GGUF_U16, n_parts);
    gguf_file_int(&f, "split.tensors.count", SL_GGUF_I32, all);
    if (no == 0) gguf_file_config(&f, "tests/goldens/f16");
    gguf_file_tensors(&f, "tests/goldens/f16", from, to);
    gguf_file_write(&f, name);
}

static void two_parts(void) {
    enum { ALL = 21 };
    sl_model *model;
    write_part("m-00001-of-00002.gguf", 0, 2, 0, 8, ALL);
    write_part("m-00002-of-00002.gguf", 1, 2, 8, 99, ALL);
    const sl_model_options options = {.flags = SL_MODEL_NO_TOKENIZER};
    CHECK_OK(sl_model_load(in_tmp("m-00001-of-00002.gguf"), &options, &model, &err), err);
    CHECK_INT(sl_tensors_n_files(sl_model_tensors(model)), 2);
    CHECK_INT(sl_tensors_count(sl_model_tensors(model)), ALL);
    sl_model_free(model);
}

static void parts(void) {
    enum { ALL = 21 }; // tensors of the folder: 3 and 9 of each of 2 layers
    sl_model *model;
    write_part("m-00001-of-00003.gguf", 0, 3, 0, 0, ALL);
    write_part("m-00002-of-00003.gguf", 1, 3, 0, 8, ALL);
    write_part("m-00003-of-00003.gguf", 2, 3, 8, 99, ALL);
    const sl_model_options options = {.flags = SL_MODEL_NO_TOKENIZER};
    CHECK_OK(sl_model_load(in_tmp("m-00001-of-00003.gguf"), &options, &model, &err), err);
    CHECK_INT(sl_tensors_n_files(sl_model_tensors(model)), 3);
    CHECK_INT(sl_tensors_count(sl_model_tensors(model)), ALL);
    sl_model_free(model);
    CHECK_OK(sl_model_load(test_tmp(), &options, &model, &err), err); // the folder holds one model
    sl_model_free(model);
    CHECK_ERR(sl_model_load(in_tmp("m-00002-of-00003.gguf"), &options, &model, &err), err, SL_ERR_ARG,
              "part 2 of 3, expected the first part, whose name ends with -00001-of-00003.gguf");
    write_part("m-00003-of-00003.gguf", 1, 3, 8, 99, ALL);
    CHECK_ERR(sl_model_load(test_tmp(), &options, &model, &err), err, SL_ERR_FORMAT,
              "m-00003-of-00003.gguf: key split.no is 1, expected 2 to 2");
    write_part("m-00003-of-00003.gguf", 2, 4, 8, 99, ALL);
    CHECK_ERR(sl_model_load(test_tmp(), &options, &model, &err), err, SL_ERR_FORMAT,
              "m-00003-of-00003.gguf: key split.count is 4, expected 3 to 3");
    write_part("m-00003-of-00003.gguf", 2, 3, 9, 99, ALL);
    CHECK_ERR(sl_model_load(test_tmp(), &options, &model, &err), err, SL_ERR_FORMAT,
              "key split.tensors.count is 21, the parts have 20 tensors");
    write_part("m-00003-of-00003.gguf", 2, 3, 7, 99, ALL + 1);
    write_part("m-00001-of-00003.gguf", 0, 3, 0, 0, ALL + 1);
    CHECK_ERR(sl_model_load(test_tmp(), &options, &model, &err), err, SL_ERR_FORMAT, "occurs twice");
    CHECK(!unlink(in_tmp("m-00003-of-00003.gguf")));
    CHECK_ERR(sl_model_load(test_tmp(), &options, &model, &err), err, SL_ERR_IO, "m-00003-of-00003.gguf: No such file");
    write_part("other.gguf", 0, 3, 0, 0, ALL);
    CHECK_ERR(sl_model_load(in_tmp("other.gguf"), &options, &model, &err), err, SL_ERR_FORMAT,
              "part 1 of 3, expected a name that ends with -00001-of-00003.gguf");
    CHECK_ERR(sl_model_load(test_tmp(), &options, &model, &err), err, SL_ERR_ARG,
              "the folder holds 2 GGUF models, expected the path of one of them: m-00001-of-00003.gguf, other.gguf");
}

// ---- damaged files ----

// A file with random damage in its header is refused, or loads and gives a model whose weights can be read. Under
// AddressSanitizer this finds reads outside of the mapping.
static void damaged(void) {
    enum { ROUNDS = 200 };
    static const char *const texts[] = {"<unk>", "<s>", "</s>", "a", "b", "ab"};
    static const int types[] = {2, 3, 3, 1, 1, 1};
    static const float scores[] = {0, 0, 0, -1, -2, -3};
    gguf_file f = {0};
    sl_text file = {0}, copy = {0};
    uint64_t rng = test_seed;
    int n_refused = 0, n_loaded = 0;
    gguf_file_config(&f, "tests/goldens/eps");
    gguf_file_text(&f, "tokenizer.ggml.model", "llama");
    gguf_file_texts(&f, "tokenizer.ggml.tokens", texts, 6);
    gguf_file_ints(&f, "tokenizer.ggml.token_type", types, 6);
    gguf_file_floats(&f, "tokenizer.ggml.scores", scores, 6);
    gguf_file_tensors(&f, "tests/goldens/eps", 0, 99);
    size_t n_header = 24 + f.values.n + f.tensors.n;
    gguf_file_bytes(&f, &file);
    for (int round = 0; round < ROUNDS; round++) {
        copy.n = 0;
        size_t n = test_uniform(&rng) < 0.2 ? (size_t)(test_uniform(&rng) * (double)file.n) : file.n;
        CHECK_OK(sl_text_append(&copy, file.data, n, &err), err);
        for (int m = 1 + (int)(3 * test_uniform(&rng)); m > 0 && n > n_header; m--) {
            static const unsigned char likely[] = {0, 1, 2, 8, 9, 32, 127, 128, 255};
            size_t at = (size_t)(test_uniform(&rng) * (double)n_header);
            copy.data[at] =
                test_uniform(&rng) < 0.5 ? (char)likely[(int)(9 * test_uniform(&rng))] : (char)(256 * test_uniform(&rng));
        }
        tokens_write("x.gguf", copy.data, copy.n);
        sl_model *model;
        int rc = sl_model_load(in_tmp("x.gguf"), NULL, &model, &err);
        if (rc) {
            if (!strstr(err.message, "x.gguf")) FAIL("round %d: the message names no file: %s", round, err.message);
            n_refused++;
            continue;
        }
        CHECK(sl_tensors_hash(sl_model_tensors(model), 1) != 0);
        sl_model_free(model);
        n_loaded++;
    }
    CHECK(n_refused > ROUNDS / 3 && n_loaded > 0); // a flipped byte of a name or a text that nobody reads changes nothing
    sl_text_free(&file), sl_text_free(&copy);
}

static void changed_file(void) { // sl_model_check
    gguf_file f = {0};
    sl_model *model;
    gguf_file_config(&f, "tests/goldens/eps");
    gguf_file_tensors(&f, "tests/goldens/eps", 0, 99);
    gguf_file_write(&f, "x.gguf");
    CHECK_OK(sl_model_load(in_tmp("x.gguf"), &(sl_model_options){.flags = SL_MODEL_NO_TOKENIZER}, &model, &err), err);
    CHECK_OK(sl_model_check(model, &err), err);
    FILE *file = fopen(in_tmp("x.gguf"), "ab");
    CHECK(file && fputc('x', file) == 'x' && !fclose(file));
    CHECK_ERR(sl_model_check(model, &err), err, SL_ERR_IO, "x.gguf changed while it was in use");
    sl_model_free(model);
}

static const test_case cases[] = {{"refused", NEEDS_NOTHING, refused},
                                  {"truncated", NEEDS_NOTHING, truncated},
                                  {"duplicate-key", NEEDS_NOTHING, duplicate_key},
                                  {"values", NEEDS_NOTHING, values},
                                  {"refused-models", NEEDS_NOTHING, refused_models},
                                  {"every-key", NEEDS_NOTHING, every_key},
                                  {"settings", NEEDS_NOTHING, settings},
                                  {"values-of-layers", NEEDS_NOTHING, values_of_layers},
                                  {"parts", NEEDS_NOTHING, parts},
                                  {"two-parts", NEEDS_NOTHING, two_parts},
                                  {"damaged", NEEDS_NOTHING, damaged},
                                  {"changed-file", NEEDS_NOTHING, changed_file},
                                  {0}};

const test_suite suite_gguf = {"gguf", cases};
