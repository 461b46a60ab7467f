// tests/support/gguf_file.c - see gguf_file.h.
#include "tests/support/gguf_file.h"
#include "base/json.h"
#include "tests/support/tokens.h"
#include "tests/test.h"

#include <stdlib.h>
#include <string.h>

static sl_error err;

static void put(sl_text *to, const void *data, size_t n) {
    CHECK_OK(sl_text_append(to, data, n, &err), err);
}

static void put_number(sl_text *to, uint64_t x, size_t size) { // little-endian
    char bytes[8];
    for (size_t i = 0; i < size; i++) bytes[i] = (char)(x >> 8 * i);
    put(to, bytes, size);
}

static void put_text(sl_text *to, const char *text) {
    put_number(to, strlen(text), 8);
    put(to, text, strlen(text));
}

static void put_key(gguf_file *f, const char *key, sl_gguf_type type) {
    f->n_values++;
    put_text(&f->values, key);
    put_number(&f->values, type, 4);
}

static void put_array(gguf_file *f, const char *key, sl_gguf_type type, int n) {
    put_key(f, key, SL_GGUF_ARRAY);
    put_number(&f->values, type, 4);
    put_number(&f->values, (uint64_t)n, 8);
}

void gguf_file_int(gguf_file *f, const char *key, sl_gguf_type type, long long x) {
    put_key(f, key, type);
    put_number(&f->values, (uint64_t)x, sl_gguf_type_size(type));
}

static void put_float(sl_text *to, float x) {
    uint32_t u;
    memcpy(&u, &x, 4);
    put_number(to, u, 4);
}

void gguf_file_float(gguf_file *f, const char *key, float x) {
    put_key(f, key, SL_GGUF_F32);
    put_float(&f->values, x);
}

void gguf_file_text(gguf_file *f, const char *key, const char *text) {
    put_key(f, key, SL_GGUF_STRING);
    put_text(&f->values, text);
}

void gguf_file_texts(gguf_file *f, const char *key, const char *const *texts, int n) {
    put_array(f, key, SL_GGUF_STRING, n);
    for (int i = 0; i < n; i++) put_text(&f->values, texts[i]);
}

void gguf_file_ints(gguf_file *f, const char *key, const int *x, int n) {
    put_array(f, key, SL_GGUF_I32, n);
    for (int i = 0; i < n; i++) put_number(&f->values, (uint32_t)x[i], 4);
}

void gguf_file_floats(gguf_file *f, const char *key, const float *x, int n) {
    put_array(f, key, SL_GGUF_F32, n);
    for (int i = 0; i < n; i++) put_float(&f->values, x[i]);
}

static void pad(const gguf_file *f, sl_text *to) {
    unsigned alignment = f->alignment ? f->alignment : 32;
    while (to->n % alignment) put(to, "", 1);
}

void gguf_file_tensor(gguf_file *f, const char *name, int type, int n_dims, const int64_t *dims, const void *data, size_t n) {
    pad(f, &f->data);
    f->n_tensors++;
    put_text(&f->tensors, name);
    put_number(&f->tensors, (uint64_t)n_dims, 4);
    for (int i = 0; i < n_dims; i++) put_number(&f->tensors, (uint64_t)dims[i], 8);
    put_number(&f->tensors, (uint64_t)type, 4);
    put_number(&f->tensors, f->data.n, 8);
    put(&f->data, data, n);
}

void gguf_file_bytes(gguf_file *f, sl_text *out) {
    put(out, "GGUF", 4);
    put_number(out, 3, 4);
    put_number(out, (uint64_t)f->n_tensors, 8);
    put_number(out, (uint64_t)f->n_values, 8);
    put(out, f->values.data, f->values.n);
    put(out, f->tensors.data, f->tensors.n);
    pad(f, out);
    put(out, f->data.data, f->data.n);
    sl_text_free(&f->values), sl_text_free(&f->tensors), sl_text_free(&f->data);
    *f = (gguf_file){0};
}

void gguf_file_write(gguf_file *f, const char *name) {
    sl_text file = {0};
    gguf_file_bytes(f, &file);
    tokens_write(name, file.data, file.n);
    sl_text_free(&file);
}

// ---- the model of a folder ----

static int number(const json_t *config, const char *field) {
    return (int)json_integer_value(json_object_get(config, field));
}

static json_t *load_config(const char *folder) {
    json_t *config;
    CHECK_OK(sl_json_load(folder, "config.json", 0, &config, &err), err);
    return config;
}

static const char *arch_of(const json_t *config) {
    const char *type = json_string_value(json_object_get(config, "model_type"));
    return strcmp(type, "mistral") ? type : "llama";
}

void gguf_file_config(gguf_file *f, const char *folder) {
    static const char *const ints[][2] = {{"block_count", "num_hidden_layers"},
                                          {"context_length", "max_position_embeddings"},
                                          {"embedding_length", "hidden_size"},
                                          {"feed_forward_length", "intermediate_size"},
                                          {"attention.head_count", "num_attention_heads"},
                                          {"attention.head_count_kv", "num_key_value_heads"},
                                          {"attention.key_length", "head_dim"},
                                          {"attention.value_length", "head_dim"},
                                          {"vocab_size", "vocab_size"}};
    json_t *config = load_config(folder);
    const char *arch = arch_of(config);
    char key[100];
    const json_t *scaling = json_object_get(config, "rope_scaling");
    const char *rope = json_string_value(json_object_get(scaling, "rope_type"));
    if (!rope) rope = json_string_value(json_object_get(scaling, "type"));
    gguf_file_text(f, "general.architecture", arch);
    for (size_t i = 0; i < sizeof ints / sizeof *ints; i++) {
        snprintf(key, sizeof key, "%s.%s", arch, ints[i][0]);
        if (json_object_get(config, ints[i][1])) gguf_file_int(f, key, SL_GGUF_U32, number(config, ints[i][1]));
    }
    snprintf(key, sizeof key, "%s.attention.layer_norm_rms_epsilon", arch);
    gguf_file_float(f, key, (float)json_number_value(json_object_get(config, "rms_norm_eps")));
    snprintf(key, sizeof key, "%s.rope.freq_base", arch);
    const json_t *theta = json_object_get(config, "rope_theta");
    if (!theta) theta = json_object_get(json_object_get(config, "rope_parameters"), "rope_theta");
    gguf_file_float(f, key, (float)json_number_value(theta));
    if (rope && !strcmp(rope, "yarn")) {
        snprintf(key, sizeof key, "%s.rope.scaling.type", arch);
        gguf_file_text(f, key, rope);
        snprintf(key, sizeof key, "%s.rope.scaling.factor", arch);
        gguf_file_float(f, key, (float)json_number_value(json_object_get(scaling, "factor")));
        snprintf(key, sizeof key, "%s.rope.scaling.original_context_length", arch);
        gguf_file_int(f, key, SL_GGUF_U32, number(scaling, "original_max_position_embeddings"));
    }
    json_decref(config);
}

// Writes the name of the format for a name of Hugging Face. Returns the heads whose rows move; 0: none.
static int rename_tensor(const json_t *config, const char *from, char to[100]) {
    static const char *const parts[][2] = {{"input_layernorm", "attn_norm"},    {"self_attn.q_proj", "attn_q"},
                                           {"self_attn.k_proj", "attn_k"},      {"self_attn.v_proj", "attn_v"},
                                           {"self_attn.o_proj", "attn_output"}, {"self_attn.q_norm", "attn_q_norm"},
                                           {"self_attn.k_norm", "attn_k_norm"}, {"post_attention_layernorm", "ffn_norm"},
                                           {"mlp.gate_proj", "ffn_gate"},       {"mlp.up_proj", "ffn_up"},
                                           {"mlp.down_proj", "ffn_down"}};
    int layer, end, is_llama = !strcmp(arch_of(config), "llama");
    snprintf(to, 100, "%s",
             !strcmp(from, "model.embed_tokens.weight") ? "token_embd.weight"
             : !strcmp(from, "model.norm.weight")       ? "output_norm.weight"
                                                        : "output.weight");
    if (sscanf(from, "model.layers.%d.%n", &layer, &end) != 1) return 0;
    for (size_t i = 0; i < sizeof parts / sizeof *parts; i++)
        if (!strncmp(from + end, parts[i][0], strlen(parts[i][0])))
            snprintf(to, 100, "blk.%d.%s%s", layer, parts[i][1], from + end + strlen(parts[i][0]));
    return !is_llama                  ? 0
           : strstr(from, ".q_proj.") ? number(config, "num_attention_heads")
           : strstr(from, ".k_proj.") ? number(config, "num_key_value_heads")
                                      : 0;
}

// Row p * (n / 2) + i of a head goes to row 2 i + p.
static void permute(const char *from, int64_t n_rows, size_t row, int heads, char *to) {
    int64_t n = n_rows / heads;
    for (int64_t h = 0; h < heads; h++)
        for (int64_t p = 0; p < 2; p++)
            for (int64_t i = 0; i < n / 2; i++)
                memcpy(to + (size_t)(h * n + 2 * i + p) * row, from + (size_t)(h * n + p * (n / 2) + i) * row, row);
}

void gguf_file_tensors(gguf_file *f, const char *folder, int from, int to) {
    json_t *config = load_config(folder);
    sl_tensors *tensors;
    CHECK_OK(sl_tensors_open(folder, &tensors, &err), err);
    for (int i = from; i < to && i < sl_tensors_count(tensors); i++) {
        const sl_tensor *t = sl_tensors_at(tensors, i);
        char name[100], *moved = NULL;
        int64_t dims[2] = {t->dims[t->n_dims - 1], t->dims[0]};
        int heads = rename_tensor(config, t->name, name);
        int type = !strcmp(t->dtype_name, "F32") ? 0 : !strcmp(t->dtype_name, "F16") ? 1 : 30;
        if (heads) {
            moved = malloc(t->n_bytes);
            CHECK(moved != NULL);
            permute(t->data, t->dims[0], t->n_bytes / (size_t)t->dims[0], heads, moved);
        }
        gguf_file_tensor(f, name, type, t->n_dims, dims, moved ? moved : t->data, t->n_bytes);
        free(moved);
    }
    sl_tensors_close(tensors);
    json_decref(config);
}
