// models/config_fields.c - readers of config.json's fields, which architectures call. rope.c reads those of RoPE.
#include "models/config_fields.h"
#include "attention/attention.h"

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
    c->n_trained = c->n_scaled = c->n_ctx;
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
