// models/config.c - reads and checks config.json and generation_config.json. Refuses by name what it does not understand.
#include "models/config.h"
#include "engine/base/json.h"

#include <math.h>
#include <string.h>

enum { MAX_DIM = 1 << 20, MAX_GROUP = 64 }; // MAX_GROUP: SL_MAX_GROUP of attention/

// Fields that change the arithmetic when they differ from the neutral value (or are not null).
static const struct {
    const char *field, *neutral;
} refused[] = {
    {"attention_bias", "false"},
    {"mlp_bias", "false"},
    {"quantization_config", "null"},
    {"sliding_window", "null"},
    {"use_sliding_window", "false"},
    {"layer_types", "full_attention"},
    {"partial_rotary_factor", "1"},
    {"num_local_experts", "null"},
    {"num_experts", "null"},
    {"n_routed_experts", "null"},
    {"embedding_multiplier", "1"},
    {"attention_multiplier", "null"},
    {"residual_multiplier", "1"},
    {"logits_scaling", "1"},
    {"logit_scale", "null"},
    {"final_logit_softcapping", "null"},
    {"attn_logit_softcapping", "null"},
    {"use_qk_norm", "false"},
    {"qk_norm", "false"},
    {"no_rope_layers", "null"},
    {"attention_chunk_size", "null"},
    {"alibi", "false"},
};

static int is_neutral(const json_t *v, const char *neutral) {
    if (!v) return 1;
    if (!strcmp(neutral, "false")) return json_is_false(v);
    if (!strcmp(neutral, "1")) return json_is_number(v) && json_number_value(v) == 1;
    if (!strcmp(neutral, "full_attention") && json_is_array(v)) {
        for (size_t i = 0; i < json_array_size(v); i++) {
            const char *s = json_string_value(json_array_get(v, i));
            if (!s || strcmp(s, neutral)) return 0;
        }
        return 1;
    }
    return 0;
}

static int check_refused(const sl_json_file *f, sl_error *err) {
    for (size_t i = 0; i < sizeof refused / sizeof *refused; i++) {
        const json_t *v = sl_json_get(f->root, refused[i].field);
        if (is_neutral(v, refused[i].neutral)) continue;
        char text[64];
        size_t n = json_dumpb(v, text, sizeof text - 1, JSON_ENCODE_ANY | JSON_COMPACT);
        text[n < sizeof text ? n : sizeof text - 1] = 0;
        return sl_fail(err, SL_ERR_UNSUPPORTED, "%s: field %s is %s, only %s is supported", f->path, refused[i].field,
                       n < sizeof text ? text : "something else", refused[i].neutral);
    }
    return 0;
}

static int check_string(const sl_json_file *f, const char *field, const char *want, sl_error *err) {
    const char *s;
    int rc = sl_json_string(f, field, &s, err);
    if (rc || !s || !strcmp(s, want)) return rc;
    return sl_fail(err, SL_ERR_UNSUPPORTED, "%s: field %s is \"%s\", only \"%s\" is supported", f->path, field, s, want);
}

static int check_architecture(const sl_json_file *f, const char *want, sl_error *err) {
    const json_t *list = sl_json_get(f->root, "architectures");
    const char *name = json_string_value(json_array_get(list, 0));
    if (!list || (name && !strcmp(name, want))) return 0;
    return sl_fail(err, SL_ERR_UNSUPPORTED, "%s: field architectures begins with \"%s\", expected a list of \"%s\"", f->path,
                   name ? name : "(no string)", want);
}

static int read_type(const sl_json_file *f, sl_config *c, sl_error *err) {
    const char *type;
    int rc = sl_json_string(f, "model_type", &type, err);
    if (rc) return rc;
    if (!type || (strcmp(type, "llama") && strcmp(type, "mistral")))
        return sl_fail(err, SL_ERR_UNSUPPORTED, "%s: field model_type is \"%s\", supported are \"llama\" and \"mistral\"",
                       f->path, type ? type : "(missing)");
    strcpy(c->model_type, type);
    rc = check_architecture(f, !strcmp(type, "llama") ? "LlamaForCausalLM" : "MistralForCausalLM", err);
    if (!rc) rc = check_string(f, "hidden_act", "silu", err);
    return rc ? rc : check_refused(f, err);
}

static int read_shapes(const sl_json_file *f, sl_config *c, sl_error *err) {
    const double default_eps = 1e-6;
    int rc = sl_json_int(f, "vocab_size", 1, 1 << 24, NULL, &c->n_vocab, err);
    if (!rc) rc = sl_json_int(f, "hidden_size", 1, MAX_DIM, NULL, &c->hidden, err);
    if (!rc) rc = sl_json_int(f, "intermediate_size", 1, MAX_DIM, NULL, &c->n_ffn, err);
    if (!rc) rc = sl_json_int(f, "num_hidden_layers", 1, 1024, NULL, &c->n_layers, err);
    if (!rc) rc = sl_json_int(f, "num_attention_heads", 1, 1024, NULL, &c->n_heads, err);
    if (rc) return rc;
    const long long all_heads = c->n_heads, head_dim = c->hidden / c->n_heads, ctx = 2048;
    if (!sl_json_get(f->root, "head_dim") && c->hidden % c->n_heads)
        return sl_fail(err, SL_ERR_FORMAT,
                       "%s: hidden_size %d is no multiple of num_attention_heads %d and head_dim is not given", f->path,
                       c->hidden, c->n_heads);
    rc = sl_json_int(f, "num_key_value_heads", 1, c->n_heads, &all_heads, &c->n_kv_heads, err);
    if (!rc) rc = sl_json_int(f, "head_dim", 1, 1024, &head_dim, &c->head_dim, err);
    if (!rc) rc = sl_json_int(f, "max_position_embeddings", 1, 1 << 28, &ctx, &c->n_ctx, err);
    if (!rc) rc = sl_json_float(f, "rms_norm_eps", 0, 1, &default_eps, &c->norm_eps, err);
    if (rc) return rc;
    if (c->n_heads % c->n_kv_heads)
        return sl_fail(err, SL_ERR_FORMAT, "%s: num_attention_heads %d is no multiple of num_key_value_heads %d", f->path,
                       c->n_heads, c->n_kv_heads);
    if (c->n_heads / c->n_kv_heads > MAX_GROUP)
        return sl_fail(err, SL_ERR_UNSUPPORTED, "%s: %d query heads share a KV head, supported are at most %d", f->path,
                       c->n_heads / c->n_kv_heads, MAX_GROUP);
    if (c->head_dim % 16 || c->head_dim > 256)
        return sl_fail(err, SL_ERR_UNSUPPORTED, "%s: head_dim is %d, supported are multiples of 16 up to 256", f->path,
                       c->head_dim);
    return sl_json_bool(f, "tie_word_embeddings", 0, &c->tied, err);
}

// rope_theta and rope_scaling, or the newer rope_parameters that holds both.
static int read_rope(const sl_json_file *f, sl_config *c, sl_error *err) {
    const double theta = 10000;
    const char *name = sl_json_get(f->root, "rope_parameters") ? "rope_parameters" : "rope_scaling", *type;
    sl_json_file r = {f->path, sl_json_get(f->root, name)};
    if (r.root && !json_is_object(r.root))
        return sl_fail(err, SL_ERR_FORMAT, "%s: field %s is %s, expected an object", f->path, name, sl_json_type(r.root));
    int rc = sl_json_float(sl_json_get(r.root, "rope_theta") ? &r : f, "rope_theta", 1, 1e12, &theta, &c->rope_theta, err);
    if (!rc) rc = sl_json_string(&r, "rope_type", &type, err);
    if (!rc && !type) rc = sl_json_string(&r, "type", &type, err); // its older name
    if (rc || !type || !strcmp(type, "default")) return rc;
    if (strcmp(type, "linear") && strcmp(type, "llama3"))
        return sl_fail(err, SL_ERR_UNSUPPORTED,
                       "%s: field %s has rope_type \"%s\", supported are \"default\", \"linear\" and \"llama3\"", f->path, name,
                       type);
    rc = sl_json_float(&r, "factor", 1, 1e6, NULL, &c->rope_factor, err);
    c->rope_type = SL_ROPE_LINEAR;
    if (rc || !strcmp(type, "linear")) return rc;
    c->rope_type = SL_ROPE_LLAMA3;
    rc = sl_json_float(&r, "low_freq_factor", 1e-3, 1e6, NULL, &c->rope_low_freq, err);
    if (!rc) rc = sl_json_float(&r, "high_freq_factor", 1e-3, 1e6, NULL, &c->rope_high_freq, err);
    if (!rc) rc = sl_json_int(&r, "original_max_position_embeddings", 1, 1 << 28, NULL, &c->rope_original_ctx, err);
    if (!rc && c->rope_high_freq <= c->rope_low_freq)
        rc = sl_fail(err, SL_ERR_FORMAT, "%s: rope_scaling: high_freq_factor %g is not above low_freq_factor %g", f->path,
                     c->rope_high_freq, c->rope_low_freq);
    return rc;
}

static int add_eos(const sl_json_file *f, sl_config *c, const json_t *v, sl_error *err) {
    if (!json_is_integer(v) || json_integer_value(v) < 0 || json_integer_value(v) >= c->n_vocab)
        return sl_fail(err, SL_ERR_FORMAT, "%s: field eos_token_id: expected ids from 0 to %d", f->path, c->n_vocab - 1);
    int32_t id = (int32_t)json_integer_value(v);
    for (int i = 0; i < c->n_eos; i++)
        if (c->eos[i] == id) return 0;
    if (c->n_eos == SL_MAX_EOS)
        return sl_fail(err, SL_ERR_FORMAT, "%s: field eos_token_id: more than %d ids", f->path, SL_MAX_EOS);
    c->eos[c->n_eos++] = id;
    return 0;
}

static int read_eos(const sl_json_file *f, sl_config *c, sl_error *err) {
    const json_t *v = sl_json_get(f->root, "eos_token_id");
    if (!v) return 0;
    if (!json_is_array(v)) return add_eos(f, c, v, err);
    int rc = 0;
    for (size_t i = 0; !rc && i < json_array_size(v); i++) rc = add_eos(f, c, json_array_get(v, i), err);
    return rc;
}

static int read_generation(const sl_json_file *f, sl_config *c, sl_error *err) {
    const double none = NAN;
    const long long unset = -1;
    int rc = read_eos(f, c, err);
    if (!rc) rc = sl_json_float(f, "temperature", 0, 1e6, &none, &c->gen_temp, err);
    if (!rc) rc = sl_json_float(f, "top_p", 0, 1, &none, &c->gen_top_p, err);
    if (!rc) rc = sl_json_float(f, "min_p", 0, 1, &none, &c->gen_min_p, err);
    if (!rc) rc = sl_json_float(f, "repetition_penalty", 1e-6, 1e6, &none, &c->gen_repeat_penalty, err);
    if (!rc) rc = sl_json_int(f, "top_k", 0, 1 << 24, &unset, &c->gen_top_k, err);
    return rc ? rc : sl_json_bool(f, "do_sample", -1, &c->gen_do_sample, err);
}

static int read_config(const sl_json_file *f, sl_config *c, sl_error *err) {
    const long long none = -1;
    int rc = read_type(f, c, err);
    if (!rc) rc = read_shapes(f, c, err);
    if (!rc) rc = read_rope(f, c, err);
    if (!rc) rc = sl_json_int(f, "bos_token_id", 0, c->n_vocab - 1, &none, &c->bos, err);
    return rc ? rc : read_eos(f, c, err);
}

int sl_config_load(const char *dir, sl_config *config, sl_error *err) {
    *config = (sl_config){.gen_temp = NAN,
                          .gen_top_p = NAN,
                          .gen_min_p = NAN,
                          .gen_repeat_penalty = NAN,
                          .gen_top_k = -1,
                          .gen_do_sample = -1,
                          .rope_factor = 1};
    char path[4200];
    json_t *root;
    int rc = sl_json_load(dir, "config.json", 0, &root, err);
    if (rc) return rc;
    snprintf(path, sizeof path, "%s/config.json", dir);
    rc = read_config(&(sl_json_file){path, root}, config, err);
    json_decref(root);
    if (rc) return rc;
    rc = sl_json_load(dir, "generation_config.json", 1, &root, err);
    if (rc || !root) return rc;
    snprintf(path, sizeof path, "%s/generation_config.json", dir);
    rc = read_generation(&(sl_json_file){path, root}, config, err);
    json_decref(root);
    return rc;
}

// Llama 3.1's rule: wavelengths below original / high stay, above original / low are divided by factor, between them the
// frequency is interpolated linearly in original / wavelength.
static float llama3_scaled(const sl_config *c, float freq) {
    const float pi2 = 6.283185307179586f;
    float wavelength = pi2 / freq, original = (float)c->rope_original_ctx;
    if (wavelength < original / c->rope_high_freq) return freq;
    if (wavelength > original / c->rope_low_freq) return freq / c->rope_factor;
    float smooth = (original / wavelength - c->rope_low_freq) / (c->rope_high_freq - c->rope_low_freq);
    return (1 - smooth) * freq / c->rope_factor + smooth * freq;
}

void sl_config_rope(const sl_config *c, float *inv_freq) {
    for (int i = 0; i < c->head_dim / 2; i++) {
        float exponent = (float)(2 * i) / (float)c->head_dim;
        float freq = 1.0f / powf(c->rope_theta, exponent);
        if (c->rope_type == SL_ROPE_LINEAR) freq /= c->rope_factor;
        if (c->rope_type == SL_ROPE_LLAMA3) freq = llama3_scaled(c, freq);
        inv_freq[i] = freq;
    }
}
