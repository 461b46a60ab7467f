// models/config_fields.c - readers of config.json's fields, which architectures call, and the frequencies of RoPE.
#include "models/config_fields.h"
#include "attention/attention.h"

#include <math.h>
#include <string.h>

enum { MAX_DIM = 1 << 20 };

const sl_refused_field sl_config_refused[] = {
    {"quantization_config", "null"},
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
    {0},
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

int sl_config_refuse(const sl_json_file *f, const sl_refused_field *refused, sl_error *err) {
    for (size_t i = 0; refused[i].field; i++) {
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

int sl_config_check_string(const sl_json_file *f, const char *field, const char *want, sl_error *err) {
    const char *s;
    int rc = sl_json_string(f, field, &s, err);
    if (rc || !s || !strcmp(s, want)) return rc;
    return sl_fail(err, SL_ERR_UNSUPPORTED, "%s: field %s is \"%s\", only \"%s\" is supported", f->path, field, s, want);
}

// ---- readers ----

int sl_config_read_shapes(const sl_json_file *f, sl_config *c, sl_error *err) {
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
                       "%s: hidden_size %d is not a multiple of num_attention_heads %d and head_dim is not given", f->path,
                       c->hidden, c->n_heads);
    rc = sl_json_int(f, "num_key_value_heads", 1, c->n_heads, &all_heads, &c->n_kv_heads, err);
    if (!rc) rc = sl_json_int(f, "head_dim", 1, 1024, &head_dim, &c->head_dim, err);
    if (!rc) rc = sl_json_int(f, "max_position_embeddings", 1, 1 << 28, &ctx, &c->n_ctx, err);
    if (!rc) rc = sl_json_float(f, "rms_norm_eps", 0, 1, &default_eps, &c->norm_eps, err);
    if (rc) return rc;
    if (c->n_heads % c->n_kv_heads)
        return sl_fail(err, SL_ERR_FORMAT, "%s: num_attention_heads %d is not a multiple of num_key_value_heads %d", f->path,
                       c->n_heads, c->n_kv_heads);
    if (c->n_heads / c->n_kv_heads > SL_MAX_GROUP)
        return sl_fail(err, SL_ERR_UNSUPPORTED, "%s: %d query heads share a KV head, supported are at most %d", f->path,
                       c->n_heads / c->n_kv_heads, SL_MAX_GROUP);
    if (c->head_dim % 16 || c->head_dim > 256)
        return sl_fail(err, SL_ERR_UNSUPPORTED, "%s: head_dim is %d, supported are multiples of 16 up to 256", f->path,
                       c->head_dim);
    return sl_json_bool(f, "tie_word_embeddings", 0, &c->tied, err);
}

int sl_config_read_rope(const sl_json_file *f, sl_config *c, sl_error *err) {
    const double theta = 10000;
    const char *name = sl_json_get(f->root, "rope_parameters") ? "rope_parameters" : "rope_scaling", *type;
    sl_json_file r = {f->path, sl_json_get(f->root, name)};
    if (r.root && !json_is_object(r.root))
        return sl_fail(err, SL_ERR_FORMAT, "%s: field %s is %s, expected an object", f->path, name, sl_json_type(r.root));
    int rc = sl_json_float(sl_json_get(r.root, "rope_theta") ? &r : f, "rope_theta", 1, 1e12, &theta, &c->rope_theta, err);
    if (!rc) rc = sl_json_string(&r, "rope_type", &type, err);
    if (!rc && !type) rc = sl_json_string(&r, "type", &type, err); // older files use "type"
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

// ---- RoPE ----

// Llama 3.1's rule. A frequency with a wavelength below original / high does not change. A frequency with a wavelength above
// original / low is divided by factor. Between the two wavelengths the result is interpolated linearly in original /
// wavelength.
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
