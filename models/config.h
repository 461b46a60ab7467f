// models/config.h - the checked contents of a model folder's config.json and generation_config.json.
//
// Sleigh understands a field that changes the arithmetic, or refuses the field by name. It never guesses.
#ifndef SLEIGH_CONFIG_H
#define SLEIGH_CONFIG_H

#include "engine/base/error.h"

#include <stdint.h>

typedef enum { SL_ROPE_PLAIN, SL_ROPE_LINEAR, SL_ROPE_LLAMA3 } sl_rope_type;

enum { SL_MAX_EOS = 16 };

struct sl_arch;

typedef struct sl_config {
    const struct sl_arch *arch;                                                 // models/arch.h
    char model_type[32];                                                        // "llama", "mistral", "qwen2", "qwen3"
    int n_vocab, hidden, n_ffn, n_layers, n_heads, n_kv_heads, head_dim, n_ctx; // n_ctx: max_position_embeddings
    float norm_eps;
    int tied;         // 1: lm_head is the embedding table
    int has_qkv_bias; // q, k and v have biases (Qwen2.5)
    int has_qk_norm;  // query heads and key heads are normed (Qwen3)
    float rope_theta;
    sl_rope_type rope_type;
    float rope_factor, rope_low_freq, rope_high_freq; // linear RoPE uses rope_factor only
    int rope_original_ctx;
    int32_t bos;             // -1: none
    int32_t eos[SL_MAX_EOS]; // the ids of both files; n_eos may be 0
    int n_eos;
    // generation_config.json. NaN or -1: not given. do_sample: 0, 1, or -1
    float gen_temp, gen_top_p, gen_min_p, gen_repeat_penalty;
    int gen_top_k, gen_do_sample;
} sl_config;

// Reads both files. model_type names the architecture; its read_config reads the fields of config.json.
int sl_config_load(const char *dir, sl_config *config, sl_error *err);
// FNV-1a (engine/base/hash.h) of the fields that change the arithmetic, as a text of lines NAME=VALUE, each ended by a newline:
//   model_type, vocab_size, hidden_size, intermediate_size, num_hidden_layers, num_attention_heads, num_key_value_heads,
//   head_dim, rms_norm_eps, tie_word_embeddings (0 or 1), rope_theta, rope_type (plain, linear or llama3), factor,
//   low_freq_factor, high_freq_factor, original_max_position_embeddings
// Numbers that are not integers are written as printf's %.9g of their fp32 value. Without a scaling, factor is 1 and the last
// three are 0; with linear, the last three are 0.
uint64_t sl_config_hash(const sl_config *config);
const char *sl_config_rope_name(const sl_config *config); // "plain", "linear", "llama3"
// Writes inv_freq[head_dim / 2] of RoPE, scaled as config says, in fp32 as Hugging Face computes it (config_fields.c).
void sl_config_rope(const sl_config *config, float *inv_freq);

#endif
