// models/config_fields.c - readers of config.json's fields, which architectures call. rope.c reads those of RoPE.
#include "models/config_fields.h"
#include "attention/attention.h"

#include <string.h>

enum { MAX_DIM = 1 << 20 };

const sl_refused_field sl_config_refused[] = {
    {"text_config", "null"},
    {"vision_config", "null"},
    {"per_layer_config", "null"},
    {"pruned_heads", "null"},
    {"is_encoder_decoder", "false"},
    {"add_cross_attention", "false"},
    {"partial_rotary_factor", "1"},
    {"rotary_pct", "1"},
    {"rotary_dim", "null"},
    {"rope_interleaved", "false"},
    {"rope_ratio", "1"},
    {"num_local_experts", "null"},
    {"num_experts", "null"},
    {"n_routed_experts", "null"},
    {"embedding_multiplier", "1"},
    {"attention_multiplier", "null"},
    {"residual_multiplier", "1"},
    {"logits_scaling", "1"},
    {"logit_scale", "null"},
    {"scale_emb", "1"},
    {"scale_depth", "null"},
    {"query_pre_attn_scalar", "null"},
    {"attn_temperature_tuning", "false"},
    {"llama_4_scaling", "null"},
    {"final_logit_softcapping", "null"},
    {"attn_logit_softcapping", "null"},
    {"use_qk_norm", "false"},
    {"qk_norm", "false"},
    {"no_rope_layers", "null"},
    {"no_rope_layer_interval", "null"},
    {"attention_chunk_size", "null"},
    {"alibi", "false"},
    {0},
};

static int is_neutral(const json_t *v, const char *neutral) {
    if (!v) return 1;
    if (!strcmp(neutral, "null"))
        return (json_is_object(v) && !json_object_size(v)) || (json_is_array(v) && !json_array_size(v));
    if (!strcmp(neutral, "false")) return json_is_false(v);
    return json_is_number(v) && json_number_value(v) == 1;
}

// The value of a field as JSON, for messages.
static const char *value_text(const json_t *v, char buf[64]) {
    size_t n = json_dumpb(v, buf, 63, JSON_ENCODE_ANY | JSON_COMPACT);
    if (n >= 63) return "something else";
    buf[n] = 0;
    return buf;
}

int sl_config_refuse(const sl_json_file *f, const sl_refused_field *refused, sl_error *err) {
    for (size_t i = 0; refused[i].field; i++) {
        const json_t *v = sl_json_get(f->root, refused[i].field);
        char text[64];
        if (!is_neutral(v, refused[i].neutral))
            return sl_fail(err, SL_ERR_UNSUPPORTED, "%s: field %s is %s, only %s is supported", f->path, refused[i].field,
                           value_text(v, text), refused[i].neutral);
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

// An integer that has a default only where the file lacks the field: null means `null`.
static int read_count(const sl_json_file *f, const char *field, int most, int missing, int null, int *out, sl_error *err) {
    const long long def = json_object_get(f->root, field) ? null : missing;
    return sl_json_int(f, field, 1, most, &def, out, err);
}

static int check_heads(const sl_json_file *f, const sl_config *c, sl_error *err) {
    if (c->n_heads % c->n_kv_heads)
        return sl_fail(err, SL_ERR_FORMAT, "%s: num_attention_heads %d is not a multiple of num_key_value_heads %d", f->path,
                       c->n_heads, c->n_kv_heads);
    if (c->n_heads / c->n_kv_heads > SL_MAX_GROUP)
        return sl_fail(err, SL_ERR_UNSUPPORTED, "%s: %d query heads share a KV head, supported are at most %d", f->path,
                       c->n_heads / c->n_kv_heads, SL_MAX_GROUP);
    if (c->head_dim % 16 || c->head_dim > 256)
        return sl_fail(err, SL_ERR_UNSUPPORTED, "%s: head_dim is %d, supported are multiples of 16 up to 256", f->path,
                       c->head_dim);
    return 0;
}

int sl_config_read_shapes(const sl_json_file *f, const sl_config_defaults *d, sl_config *c, sl_error *err) {
    const double default_eps = 1e-6;
    int rc = sl_json_int(f, "vocab_size", 1, 1 << 24, NULL, &c->n_vocab, err);
    if (!rc) rc = sl_json_int(f, "hidden_size", 1, MAX_DIM, NULL, &c->hidden, err);
    if (!rc) rc = sl_json_int(f, "intermediate_size", 1, MAX_DIM, NULL, &c->n_ffn, err);
    if (!rc) rc = sl_json_int(f, "num_hidden_layers", 1, 1024, NULL, &c->n_layers, err);
    if (!rc) rc = sl_json_int(f, "num_attention_heads", 1, 1024, NULL, &c->n_heads, err);
    if (rc) return rc;
    const long long head_dim = d->head_dim ? d->head_dim : c->hidden / c->n_heads, ctx = d->n_ctx;
    if (!sl_json_get(f->root, "head_dim") && !d->head_dim && c->hidden % c->n_heads)
        return sl_fail(err, SL_ERR_FORMAT,
                       "%s: hidden_size %d is not a multiple of num_attention_heads %d and head_dim is not given", f->path,
                       c->hidden, c->n_heads);
    rc = read_count(f, "num_key_value_heads", c->n_heads, d->n_kv_heads ? d->n_kv_heads : c->n_heads, c->n_heads,
                    &c->n_kv_heads, err);
    if (!rc) rc = sl_json_int(f, "head_dim", 1, 1024, &head_dim, &c->head_dim, err);
    if (!rc) rc = sl_json_int(f, "max_position_embeddings", 1, 1 << 28, &ctx, &c->n_ctx, err);
    if (!rc) rc = sl_json_float(f, "rms_norm_eps", 0, 1, &default_eps, &c->norm_eps, err);
    if (!rc) rc = check_heads(f, c, err);
    c->n_trained = c->n_scaled = c->n_ctx;
    return rc ? rc : sl_json_bool(f, "tie_word_embeddings", 0, &c->tied, err);
}

// ---- the sliding window ----

// *n_sliding: entries of layer_types that are "sliding_attention"; -1: the field is not given.
static int count_sliding(const sl_json_file *f, const sl_config *c, int *n_sliding, sl_error *err) {
    const json_t *types = sl_json_get(f->root, "layer_types");
    char text[64];
    *n_sliding = types ? 0 : -1;
    if (!types) return 0;
    if (json_array_size(types) != (size_t)c->n_layers)
        return sl_fail(err, SL_ERR_FORMAT, "%s: field layer_types has %zu entries, expected %d, one for each layer", f->path,
                       json_array_size(types), c->n_layers);
    for (int i = 0; i < c->n_layers; i++) {
        const json_t *type = json_array_get(types, (size_t)i);
        const char *name = json_string_value(type);
        int slides = name && !strcmp(name, "sliding_attention");
        *n_sliding += slides;
        if (!slides && (!name || (strcmp(name, "full_attention") && strcmp(name, "attention"))))
            return sl_fail(err, SL_ERR_UNSUPPORTED,
                           "%s: field layer_types has %s, supported are \"full_attention\" and \"sliding_attention\"", f->path,
                           value_text(type, text));
    }
    return 0;
}

int sl_config_read_window(const sl_json_file *f, const sl_config_defaults *d, sl_config *c, sl_error *err) {
    const long long qwen_from = 28, given = json_object_get(f->root, "sliding_window") ? 0 : d->window; // null: no window
    int uses, from, n_sliding, rc = sl_json_bool(f, "use_sliding_window", !d->has_window_layers, &uses, err);
    if (d->window && !d->has_window_layers) uses = 1; // Mistral has no such field
    if (!rc) rc = sl_json_int(f, "sliding_window", uses ? 1 : 0, 1 << 28, &given, &c->window, err);
    if (!rc) rc = sl_json_int(f, "max_window_layers", 0, 1 << 20, &qwen_from, &from, err);
    if (!rc) rc = count_sliding(f, c, &n_sliding, err);
    if (rc) return rc;
    if (!uses) c->window = 0;
    if (n_sliding > 0 && !c->window)
        return sl_fail(err, SL_ERR_UNSUPPORTED, "%s: field layer_types has \"sliding_attention\", but %s", f->path,
                       uses ? "sliding_window is not given" : "use_sliding_window is false");
    if (d->has_window_layers && (n_sliding < 0 ? from >= c->n_layers : n_sliding == 0)) c->window = 0;
    if (c->window && c->window < c->n_ctx) c->n_ctx = c->n_scaled = c->window;
    return 0;
}
