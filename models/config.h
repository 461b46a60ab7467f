// models/config.h - what a model folder's config.json and generation_config.json say, checked.
//
// Every field that changes the arithmetic is either understood here or refused by name: nothing is guessed.
#ifndef SLEIGH_CONFIG_H
#define SLEIGH_CONFIG_H

#include "engine/base/error.h"

#include <stdint.h>

typedef enum { SL_ROPE_PLAIN, SL_ROPE_LINEAR, SL_ROPE_LLAMA3 } sl_rope_type;

enum { SL_MAX_EOS = 16 };

struct sl_arch;

typedef struct sl_config {
    const struct sl_arch *arch;                                                 // models/arch.h
    char model_type[32];                                                        // "llama", "mistral"
    int n_vocab, hidden, n_ffn, n_layers, n_heads, n_kv_heads, head_dim, n_ctx; // n_ctx: max_position_embeddings
    float norm_eps;
    int tied; // the output head is the embedding table
    float rope_theta;
    sl_rope_type rope_type;
    float rope_factor, rope_low_freq, rope_high_freq; // linear: factor alone
    int rope_original_ctx;
    int32_t bos;             // -1: none
    int32_t eos[SL_MAX_EOS]; // the union of config.json's and generation_config.json's; n_eos may be 0
    int n_eos;
    // generation_config.json, NaN / -1 where it says nothing. do_sample: -1 unset, 0, 1
    float gen_temp, gen_top_p, gen_min_p, gen_repeat_penalty;
    int gen_top_k, gen_do_sample;
} sl_config;

// Reads what a folder says; the architecture that model_type names reads the fields of config.json that it knows.
int sl_config_load(const char *dir, sl_config *config, sl_error *err);
// inv_freq[head_dim / 2] of the rotary embedding, scaled as config says, in fp32 as Hugging Face computes it
// (models/config_fields.c).
void sl_config_rope(const sl_config *config, float *inv_freq);

#endif
