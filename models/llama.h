// models/llama.h - the members of the Llama architecture's table, for architectures with the same layers (models/qwen.c).
#ifndef SLEIGH_LLAMA_H
#define SLEIGH_LLAMA_H

#include "models/arch.h"

size_t sl_llama_weights_size(const sl_config *c);
void sl_llama_declare(sl_model_weights *w); // with the tensors that has_qkv_bias and has_qk_norm of the config add
size_t sl_llama_scratch_size(const sl_config *c, const sl_backend *be, int max_rows);
void sl_llama_forward(const sl_batch *b);
void sl_llama_logits(const sl_batch *b, int first, int n, float *out);

#endif
