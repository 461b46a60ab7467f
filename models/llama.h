// models/llama.h - the parts of the Llama architecture's table, for architectures with the same layers (models/qwen.c).
#ifndef SLEIGH_LLAMA_H
#define SLEIGH_LLAMA_H

#include "models/arch.h"
#include "models/config_fields.h"

// Reads the fields of config.json that Llama's layers need. Refuses the fields of `refused` and of sl_config_refused.
int sl_llama_read_config(const sl_json_file *f, const sl_refused_field *refused, const sl_config_defaults *d, sl_config *c,
                         sl_error *err);
size_t sl_llama_weights_size(const sl_config *c);
void sl_llama_declare(sl_model_weights *w); // with the tensors that has_qkv_bias and has_qk_norm of the config add
size_t sl_llama_scratch_size(const sl_config *c, const sl_backend *be, int max_rows);
void sl_llama_forward(const sl_batch *b);
void sl_llama_logits(const sl_batch *b, int first, int n, float *out);

// clang-format off
// The members of sl_arch for Llama's layers. The table adds model_type, architecture and read_config.
#define SL_LLAMA_LAYERS                                                                                                        \
    .weights_size = sl_llama_weights_size, .declare = sl_llama_declare, .scratch_size = sl_llama_scratch_size,                  \
    .forward = sl_llama_forward, .logits = sl_llama_logits
// clang-format on

#endif
