// models/config_fields.h - readers of config.json's fields, for the read_config of an architecture (models/arch.h).
#ifndef SLEIGH_CONFIG_FIELDS_H
#define SLEIGH_CONFIG_FIELDS_H

#include "engine/base/json.h"
#include "models/config.h"

// A field that changes the arithmetic unless its value is `neutral` or null. neutral: "null", "false", "1", or "full_attention"
// for a list in which every entry is "full_attention".
typedef struct sl_refused_field {
    const char *field, *neutral;
} sl_refused_field;

extern const sl_refused_field sl_config_refused[]; // fields that no architecture supports; {0} ends the list

// SL_ERR_UNSUPPORTED, with the field's name, when a field of the list is not neutral. {0} ends the list.
int sl_config_refuse(const sl_json_file *f, const sl_refused_field *refused, sl_error *err);
// SL_ERR_UNSUPPORTED when the field is given and is not `want`.
int sl_config_check_string(const sl_json_file *f, const char *field, const char *want, sl_error *err);
// vocab_size, hidden_size, intermediate_size, num_hidden_layers, num_attention_heads, num_key_value_heads, head_dim,
// max_position_embeddings, rms_norm_eps, tie_word_embeddings.
int sl_config_read_shapes(const sl_json_file *f, sl_config *c, sl_error *err);
// rope_theta and rope_scaling, or the newer rope_parameters that holds both.
int sl_config_read_rope(const sl_json_file *f, sl_config *c, sl_error *err);

#endif
