// models/config_fields.h - readers of config.json's fields, for the read_config of an architecture (models/arch.h).
#ifndef SLEIGH_CONFIG_FIELDS_H
#define SLEIGH_CONFIG_FIELDS_H

#include "base/json.h"
#include "models/config.h"

// A field that changes the arithmetic unless its value is `neutral` or null. neutral: "null" (or an empty object or list),
// "false", or "1".
typedef struct sl_refused_field {
    const char *field, *neutral;
} sl_refused_field;

extern const sl_refused_field sl_config_refused[]; // fields that no architecture supports; {0} ends the list

// SL_ERR_UNSUPPORTED, with the field's name, when a field of the list is not neutral. {0} ends the list.
int sl_config_refuse(const sl_json_file *f, const sl_refused_field *refused, sl_error *err);
// SL_ERR_UNSUPPORTED when the field is given and is not `want`.
int sl_config_check_string(const sl_json_file *f, const char *field, const char *want, sl_error *err);
// What transformers takes for a field that the file lacks, and whether its attention has a window.
typedef struct sl_config_defaults {
    int n_kv_heads; // 0: num_attention_heads, which null means in every architecture
    int head_dim;   // 0: hidden_size / num_attention_heads
    int n_ctx;
    // Mistral: sliding_window, with this default, counts for all layers. 0: no default
    int window;
    // Qwen: sliding_window counts only with use_sliding_window, and only for the layers of layer_types, or from
    // max_window_layers on.
    int has_window_layers;
} sl_config_defaults;

// vocab_size, hidden_size, intermediate_size, num_hidden_layers, num_attention_heads, num_key_value_heads, head_dim,
// max_position_embeddings, rms_norm_eps, tie_word_embeddings.
int sl_config_read_shapes(const sl_json_file *f, const sl_config_defaults *d, sl_config *c, sl_error *err);
// sliding_window, use_sliding_window, max_window_layers, layer_types. Limits c->n_ctx to the window, because Sleigh attends
// without one, and rows within the first `window` tokens see all rows before them.
int sl_config_read_window(const sl_json_file *f, const sl_config_defaults *d, sl_config *c, sl_error *err);
// rope_theta and rope_scaling, or rope_parameters, which holds both. rope_scaling has priority, as in transformers. Another key
// in these objects is SL_ERR_UNSUPPORTED.
int sl_config_read_rope(const sl_json_file *f, sl_config *c, sl_error *err);

#endif
