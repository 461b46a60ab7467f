// models/gguf_config.c - config.json of a GGUF file. See gguf_documents.h.
#include "models/gguf_documents.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef struct maker {
    const sl_gguf *g;
    const char *arch; // "llama"
    json_t *out;
    sl_error *err;
} maker;

enum { MOST_DIM = 1 << 20, MOST_LAYERS = 1024, MOST_HEADS = 1024, KEY_SIZE = 128 };

// Every key that an architecture may have. is_neutral: the only value that Sleigh supports is 0, false or "none".
static const struct {
    const char *name;
    int is_neutral;
} known_keys[] = {
    {"block_count", 0},
    {"context_length", 0},
    {"embedding_length", 0},
    {"feed_forward_length", 0},
    {"vocab_size", 0},
    {"attention.head_count", 0},
    {"attention.head_count_kv", 0},
    {"attention.key_length", 0},
    {"attention.value_length", 0},
    {"attention.layer_norm_rms_epsilon", 0},
    {"attention.sliding_window", 0},
    {"attention.causal", 0},
    {"rope.freq_base", 0},
    {"rope.dimension_count", 0},
    {"rope.scale_linear", 0},
    {"rope.scaling.type", 0},
    {"rope.scaling.factor", 0},
    {"rope.scaling.original_context_length", 0},
    {"rope.scaling.finetuned", 0},
    {"rope.scaling.attn_factor", 0},
    {"rope.scaling.yarn_beta_fast", 0},
    {"rope.scaling.yarn_beta_slow", 0},
    {"expert_count", 1},
    {"expert_used_count", 1},
    {"pooling_type", 1},
    {"use_parallel_residual", 1},
};

static const struct {
    const char *name, *model_type, *architecture;
    int is_sliding; // the model type of a file with attention.sliding_window
} architectures[] = {
    {"llama", "mistral", "MistralForCausalLM", 1},
    {"llama", "llama", "LlamaForCausalLM", 0},
    {"qwen2", "qwen2", "Qwen2ForCausalLM", 0},
    {"qwen3", "qwen3", "Qwen3ForCausalLM", 0},
};
enum { N_ARCHITECTURES = sizeof architectures / sizeof *architectures };

static const char *key_of(const maker *m, const char *name, char key[KEY_SIZE]) {
    snprintf(key, KEY_SIZE, "%.40s.%s", m->arch, name);
    return key;
}

static int out_of_memory(const maker *m) {
    return sl_fail(m->err, SL_ERR_MEMORY, "%s: out of memory", m->g->path);
}

static int set(const maker *m, const char *field, json_t *value) {
    return json_object_set_new(m->out, field, value) ? out_of_memory(m) : 0;
}

// ---- the architecture, and its keys ----

static int check_general(const sl_gguf *g, sl_error *err) {
    const long long current = 2;
    long long version;
    sl_gguf_string type;
    int rc = sl_gguf_text(g, "general.type", &type, err);
    if (!rc && type.at && !sl_gguf_equals(type, "model"))
        rc = sl_fail(err, SL_ERR_UNSUPPORTED, "%s: key general.type is \"%.*s\", only \"model\" is supported", g->path,
                     (int)(type.n < 60 ? type.n : 60), type.at);
    return rc ? rc : sl_gguf_int(g, "general.quantization_version", 2, 2, &current, &version, err);
}

static int find_architecture(maker *m, int *index) {
    sl_gguf_string name;
    char key[KEY_SIZE];
    int rc = sl_gguf_text(m->g, "general.architecture", &name, m->err);
    if (rc) return rc;
    for (int i = 0; i < N_ARCHITECTURES; i++) {
        m->arch = architectures[i].name;
        if (!sl_gguf_equals(name, m->arch)) continue;
        if (architectures[i].is_sliding && !sl_gguf_find(m->g, key_of(m, "attention.sliding_window", key))) continue;
        *index = i;
        return 0;
    }
    return sl_fail(m->err, SL_ERR_UNSUPPORTED,
                   "%s: key general.architecture is \"%.*s\", supported are \"llama\", \"qwen2\" and \"qwen3\"", m->g->path,
                   (int)(name.n < 60 ? name.n : 60), name.at ? name.at : "");
}

static int is_neutral(const sl_gguf *g, const sl_gguf_value *v) {
    long long x;
    if (v->type == SL_GGUF_BOOL) return !*v->at;
    return v->type != SL_GGUF_STRING && v->type != SL_GGUF_ARRAY && !sl_gguf_int(g, v->key, 0, 0, NULL, &x, NULL);
}

// Refuses keys of the architecture that are not known. They may change the arithmetic.
static int check_keys(const maker *m) {
    size_t n = strlen(m->arch);
    for (int i = 0; i < m->g->n_values; i++) {
        const sl_gguf_value *v = &m->g->values[i];
        if (strncmp(v->key, m->arch, n) || v->key[n] != '.') continue;
        size_t k = 0, n_known = sizeof known_keys / sizeof *known_keys;
        while (k < n_known && strcmp(v->key + n + 1, known_keys[k].name)) k++;
        if (k == n_known) return sl_fail(m->err, SL_ERR_UNSUPPORTED, "%s: key %.200s is not supported", m->g->path, v->key);
        if (known_keys[k].is_neutral && !is_neutral(m->g, v))
            return sl_fail(m->err, SL_ERR_UNSUPPORTED, "%s: key %.200s is not 0, which is the only supported value", m->g->path,
                           v->key);
    }
    return 0;
}

// ---- fields ----

// A number, or an array with one number for each layer; they must be equal.
static int read_layers_int(const maker *m, const char *name, long long max, const long long *def, long long *out) {
    char key[KEY_SIZE];
    const sl_gguf_value *v = sl_gguf_find(m->g, key_of(m, name, key));
    if (!v || v->type != SL_GGUF_ARRAY) return sl_gguf_int(m->g, key, 1, max, def, out, m->err);
    int rc = sl_gguf_array(m->g, key, SL_GGUF_I32, &v, m->err);
    if (rc) return rc;
    if (v->n == 0) return sl_fail(m->err, SL_ERR_FORMAT, "%s: key %s is an array without elements", m->g->path, key);
    *out = sl_gguf_int_at(v, 0);
    for (uint64_t i = 1; i < v->n; i++)
        if (sl_gguf_int_at(v, i) != *out)
            return sl_fail(m->err, SL_ERR_UNSUPPORTED,
                           "%s: key %s is %lld in layer 0 and %lld in layer %llu, only equal values are supported", m->g->path,
                           key, *out, sl_gguf_int_at(v, i), (unsigned long long)i);
    if (*out >= 1 && *out <= max) return 0;
    return sl_fail(m->err, SL_ERR_FORMAT, "%s: key %s is %lld, expected 1 to %lld", m->g->path, key, *out, max);
}

static int copy_int(const maker *m, const char *name, long long max, const char *field, long long *out) {
    int rc = read_layers_int(m, name, max, NULL, out);
    return rc ? rc : set(m, field, json_integer(*out));
}

static int add_heads(const maker *m, long long hidden, long long *head_dim) {
    long long heads, kv_heads, key_length, value_length, all, dim;
    int rc = copy_int(m, "attention.head_count", MOST_HEADS, "num_attention_heads", &heads);
    if (rc) return rc;
    all = heads, dim = hidden / heads;
    rc = read_layers_int(m, "attention.head_count_kv", MOST_HEADS, &all, &kv_heads);
    if (!rc) rc = set(m, "num_key_value_heads", json_integer(kv_heads));
    if (!rc) rc = read_layers_int(m, "attention.key_length", 1024, &dim, &key_length);
    if (!rc) rc = read_layers_int(m, "attention.value_length", 1024, &dim, &value_length);
    if (rc) return rc;
    if (key_length != value_length)
        return sl_fail(m->err, SL_ERR_UNSUPPORTED,
                       "%s: key %s.attention.key_length is %lld and value_length is %lld, only equal values are supported",
                       m->g->path, m->arch, key_length, value_length);
    *head_dim = key_length;
    return set(m, "head_dim", json_integer(key_length));
}

static int add_shapes(const maker *m, long long *head_dim) {
    char key[KEY_SIZE];
    long long x, hidden, vocab;
    const long long none = 0;
    const sl_gguf_value *tokens;
    int rc = copy_int(m, "block_count", MOST_LAYERS, "num_hidden_layers", &x);
    if (!rc) rc = copy_int(m, "context_length", 1 << 28, "max_position_embeddings", &x);
    if (!rc) rc = copy_int(m, "embedding_length", MOST_DIM, "hidden_size", &hidden);
    if (!rc) rc = copy_int(m, "feed_forward_length", MOST_DIM, "intermediate_size", &x);
    if (!rc) rc = add_heads(m, hidden, head_dim);
    if (!rc) rc = sl_gguf_int(m->g, key_of(m, "vocab_size", key), 1, 1 << 24, &none, &vocab, m->err);
    if (!rc && !vocab) {
        rc = sl_gguf_array(m->g, "tokenizer.ggml.tokens", SL_GGUF_STRING, &tokens, m->err);
        if (!rc && !tokens)
            rc = sl_fail(m->err, SL_ERR_FORMAT, "%s: neither key %s nor key tokenizer.ggml.tokens exists", m->g->path, key);
        if (!rc) vocab = tokens->n > INT32_MAX ? INT32_MAX : (long long)tokens->n;
    }
    return rc ? rc : set(m, "vocab_size", json_integer(vocab));
}

// ---- RoPE ----

// The factors of rope_freqs.weight.
static int add_factors(const maker *m, const sl_gguf_tensor *t, long long head_dim) {
    json_t *list = json_array(), *scaling;
    if (t->n_dims != 1 || t->dims[0] != head_dim / 2 || strcmp(t->type->name, "F32")) {
        json_decref(list);
        return sl_fail(m->err, SL_ERR_FORMAT,
                       "%s: tensor %s has type %s, %d dimensions and %lld rows of numbers, expected type F32 and [%lld]",
                       t->file, t->name, t->type->name, t->n_dims, (long long)t->dims[0], head_dim / 2);
    }
    for (long long i = 0; i < head_dim / 2; i++) {
        float x;
        sl_block_unpack(t->type, t->data + 4 * i, &x);
        if (!(x > 0 && isfinite(x))) {
            json_decref(list);
            return sl_fail(m->err, SL_ERR_FORMAT, "%s: tensor %s: number %lld is %g, expected a number above 0", t->file,
                           t->name, i, x);
        }
        json_array_append_new(list, json_real(x));
    }
    scaling = json_pack("{s:s, s:o}", "rope_type", "frequency_factors", "factors", list);
    return set(m, "rope_scaling", scaling);
}

// Adds a number of the scaling, where the file has it.
static int copy_scaling(const maker *m, json_t *scaling, const char *name, const char *field) {
    char key[KEY_SIZE];
    double x;
    if (!sl_gguf_find(m->g, key_of(m, name, key))) return 0;
    int rc = sl_gguf_float(m->g, key, 0, 1e6, NULL, &x, m->err);
    return rc ? rc : json_object_set_new(scaling, field, json_real(x)) ? out_of_memory(m) : 0;
}

static int add_yarn(const maker *m, json_t *scaling, double factor) {
    char key[KEY_SIZE];
    long long original;
    const double one = 1;
    double attention;
    int rc = copy_scaling(m, scaling, "rope.scaling.yarn_beta_fast", "beta_fast");
    if (!rc) rc = copy_scaling(m, scaling, "rope.scaling.yarn_beta_slow", "beta_slow");
    if (!rc) rc = sl_gguf_float(m->g, key_of(m, "rope.scaling.attn_factor", key), 0, 1e3, &one, &attention, m->err);
    // The file's factor multiplies what config.json calls attention_factor by default.
    if (!rc && attention != 1) json_object_set_new(scaling, "attention_factor", json_real(attention * (0.1 * log(factor) + 1)));
    if (!rc && sl_gguf_find(m->g, key_of(m, "rope.scaling.original_context_length", key))) {
        rc = sl_gguf_int(m->g, key, 1, 1 << 28, NULL, &original, m->err);
        if (!rc) json_object_set_new(scaling, "original_max_position_embeddings", json_integer(original));
    }
    return rc;
}

static int add_scaling(const maker *m, int *is_scaled) {
    char key[KEY_SIZE], factor_key[KEY_SIZE];
    sl_gguf_string type;
    double factor;
    int rc = sl_gguf_text(m->g, key_of(m, "rope.scaling.type", key), &type, m->err);
    if (rc) return rc;
    int is_old = !type.at && sl_gguf_find(m->g, key_of(m, "rope.scale_linear", key)) != NULL;
    int is_linear = is_old || sl_gguf_equals(type, "linear"), is_yarn = sl_gguf_equals(type, "yarn");
    *is_scaled = is_linear || is_yarn;
    if (type.at && !*is_scaled && !sl_gguf_equals(type, "none"))
        return sl_fail(m->err, SL_ERR_UNSUPPORTED, "%s: key %s is \"%.*s\", supported are \"none\", \"linear\" and \"yarn\"",
                       m->g->path, key, (int)(type.n < 60 ? type.n : 60), type.at);
    if (!*is_scaled) return 0;
    key_of(m, is_old ? "rope.scale_linear" : "rope.scaling.factor", factor_key);
    rc = sl_gguf_float(m->g, factor_key, 1, 1e6, NULL, &factor, m->err);
    if (rc) return rc;
    json_t *scaling = json_pack("{s:s, s:f}", "rope_type", is_yarn ? "yarn" : "linear", "factor", factor);
    if (!scaling) return out_of_memory(m);
    if (is_yarn) rc = add_yarn(m, scaling, factor);
    if (!rc) return set(m, "rope_scaling", scaling);
    json_decref(scaling);
    return rc;
}

static int add_rope(const maker *m, long long head_dim) {
    char key[KEY_SIZE];
    const double base = 10000;
    const long long all = head_dim;
    double theta;
    long long rotated;
    int is_scaled = 0;
    const sl_gguf_tensor *factors = sl_gguf_find_tensor(m->g, "rope_freqs.weight");
    int rc = sl_gguf_float(m->g, key_of(m, "rope.freq_base", key), 1, 1e12, &base, &theta, m->err);
    if (!rc) rc = set(m, "rope_theta", json_real(theta));
    if (!rc) rc = sl_gguf_int(m->g, key_of(m, "rope.dimension_count", key), 1, 1024, &all, &rotated, m->err);
    if (!rc && rotated != head_dim)
        rc = sl_fail(m->err, SL_ERR_UNSUPPORTED, "%s: key %s is %lld, only the whole head of %lld is supported", m->g->path,
                     key, rotated, head_dim);
    if (!rc) rc = add_scaling(m, &is_scaled);
    if (!rc && factors && is_scaled)
        rc = sl_fail(m->err, SL_ERR_UNSUPPORTED,
                     "%s: tensor rope_freqs.weight beside key %s.rope.scaling.type, only one of them is supported", m->g->path,
                     m->arch);
    return rc || !factors ? rc : add_factors(m, factors, head_dim);
}

// ---- the rest ----

static int add_tokens(const maker *m) {
    static const char *const ends[] = {"eos_token_id", "eot_token_id", "eom_token_id"};
    json_t *list = json_array();
    int id, rc = sl_gguf_token_id(m->g, "bos_token_id", &id, m->err);
    if (!rc && id >= 0) rc = set(m, "bos_token_id", json_integer(id));
    for (int i = 0; !rc && i < 3; i++) {
        rc = sl_gguf_token_id(m->g, ends[i], &id, m->err);
        if (!rc && id >= 0) json_array_append_new(list, json_integer(id));
    }
    if (rc || json_array_size(list) == 0) {
        json_decref(list);
        return rc;
    }
    return set(m, "eos_token_id", list);
}

static int add_attention(const maker *m) {
    char key[KEY_SIZE];
    long long window;
    double eps;
    int causal, rc = sl_gguf_float(m->g, key_of(m, "attention.layer_norm_rms_epsilon", key), 0, 1, NULL, &eps, m->err);
    if (!rc) rc = set(m, "rms_norm_eps", json_real(eps));
    if (!rc) rc = sl_gguf_bool(m->g, key_of(m, "attention.causal", key), 1, &causal, m->err);
    if (!rc && !causal)
        rc = sl_fail(m->err, SL_ERR_UNSUPPORTED, "%s: key %s is false, only true is supported", m->g->path, key);
    if (!rc && sl_gguf_find(m->g, key_of(m, "attention.sliding_window", key))) {
        rc = sl_gguf_int(m->g, key, 0, INT32_MAX, NULL, &window, m->err);
        if (!rc) rc = set(m, "sliding_window", window ? json_integer(window) : json_null());
        if (!rc && window && strcmp(m->arch, "llama")) { // in every layer
            rc = set(m, "use_sliding_window", json_true());
            if (!rc) rc = set(m, "max_window_layers", json_integer(0));
        }
    }
    if (!rc && !strcmp(m->arch, "llama") && sl_gguf_find_tensor(m->g, "blk.0.attn_q.bias"))
        rc = set(m, "attention_bias", json_true());
    return rc;
}

static int make(maker *m) {
    int index = 0;
    long long head_dim = 0;
    int rc = check_general(m->g, m->err);
    if (!rc) rc = find_architecture(m, &index);
    if (!rc) rc = check_keys(m);
    if (!rc) rc = set(m, "model_type", json_string(architectures[index].model_type));
    if (!rc) rc = set(m, "architectures", json_pack("[s]", architectures[index].architecture));
    if (!rc) rc = add_shapes(m, &head_dim);
    if (!rc) rc = add_attention(m);
    if (!rc) rc = add_rope(m, head_dim);
    if (!rc) rc = add_tokens(m);
    return rc ? rc : set(m, "tie_word_embeddings", json_boolean(!sl_gguf_find_tensor(m->g, "output.weight")));
}

int sl_gguf_config(const sl_gguf *g, json_t **out, sl_error *err) {
    maker m = {.g = g, .out = json_object(), .err = err};
    int rc = m.out ? make(&m) : out_of_memory(&m);
    if (rc) {
        json_decref(m.out);
        return rc;
    }
    *out = m.out;
    return 0;
}
