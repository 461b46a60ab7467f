// models/config.h - the checked contents of a model folder's config.json and generation_config.json.
//
// Sleigh understands a field that changes the arithmetic, or refuses the field by name. It never guesses.
#ifndef SLEIGH_CONFIG_H
#define SLEIGH_CONFIG_H

#include "base/comm.h"
#include "base/documents.h"

#include <stdint.h>

typedef enum { SL_ROPE_PLAIN, SL_ROPE_LINEAR, SL_ROPE_LLAMA3, SL_ROPE_YARN, SL_ROPE_FACTORS } sl_rope_type;

// fp32 represents the positions below 2^24 exactly, and RoPE computes its angles in fp32.
enum { SL_MAX_EOS = 16, SL_MOST_POSITIONS = 1 << 24, SL_MOST_FREQUENCIES = 128 };

struct sl_arch;

typedef struct sl_config {
    const struct sl_arch *arch;                                                 // models/arch.h
    char model_type[32];                                                        // "llama", "mistral", "qwen2", "qwen3"
    int n_vocab, hidden, n_ffn, n_layers, n_heads, n_kv_heads, head_dim, n_ctx; // n_ctx: most tokens of a session
    // Of a tensor-parallel run: which part of the weights this process loads. n 0: all of them. sl_config_of_shard divides the
    // dimensions.
    sl_shard shard;
    int n_trained; // max_position_embeddings; n_ctx is larger only after sl_config_change_rope
    int window;    // tokens of a sliding window, which limits n_ctx; 0: none
    int n_scaled;  // tokens that the scaling of RoPE is made for: n_trained, or more after sl_config_change_rope
    float norm_eps;
    int tied;         // 1: lm_head is the embedding table
    int has_qkv_bias; // q, k and v have biases (Qwen2.5)
    int has_qk_norm;  // query heads and key heads are normed (Qwen3)
    float rope_theta;
    sl_rope_type rope_type;
    float rope_factor;                       // 1: plain
    float rope_low_freq, rope_high_freq;     // llama3: turns within the original context
    int rope_original_ctx;                   // llama3, yarn
    float rope_beta_fast, rope_beta_slow;    // yarn: turns within the original context
    int rope_truncate;                       // yarn: 1: the ramp begins and ends at whole pairs
    float rope_factors[SL_MOST_FREQUENCIES]; // factors (GGUF): [head_dim / 2] divide the frequencies
    float rope_attention;                    // factor of cosine and sine; 1 without yarn
    int is_rope_changed;                     // 1: sl_config_change_rope has replaced what config.json says
    int32_t bos;                             // -1: none
    int32_t eos[SL_MAX_EOS];                 // the ids of both files; a model adds those of its tokenizer. n_eos may be 0
    int n_eos;
    // generation_config.json. NaN or -1: not given. do_sample: 0, 1, or -1
    float gen_temp, gen_top_p, gen_min_p, gen_repeat_penalty;
    int gen_top_k, gen_do_sample;
} sl_config;

// Reads both files. model_type names the architecture; its read_config reads the fields of config.json. Checks the description
// of quantised weights too (models/quant_config.h).
int sl_config_load(const sl_documents *documents, sl_config *config, sl_error *err);
// The dimensions of one rank: n_heads, n_kv_heads and n_ffn divided by shard.n. n_vocab stays: a rank has a part of the head's
// rows and gets the other logits from the other ranks. SL_ERR_UNSUPPORTED: a dimension does not divide.
int sl_config_of_shard(const sl_config *config, sl_config *out, sl_error *err);
// Adds an end token. 0: the id is none of this vocabulary, or there is no room for another one.
int sl_config_add_eos(sl_config *config, int32_t id);
// FNV-1a (base/hash.h) of the fields that change the arithmetic, as a text of lines NAME=VALUE, each ended by a newline:
//   model_type, vocab_size, hidden_size, intermediate_size, num_hidden_layers, num_attention_heads, num_key_value_heads,
//   head_dim, rms_norm_eps, tie_word_embeddings (0 or 1), rope_theta, rope_type (sl_config_rope_name), factor,
//   low_freq_factor, high_freq_factor, original_max_position_embeddings
// Numbers that are not integers are written as printf's %.9g of their fp32 value. Without a scaling, factor is 1 and the last
// three are 0; with linear, the last three are 0. With yarn and frequency factors, the text of
//   sl_config_describe_rope follows.
uint64_t sl_config_hash(const sl_config *config);
// Writes inv_freq[head_dim / 2] of RoPE, scaled as config says, in fp32 as Hugging Face computes it (rope.c).
void sl_config_rope(const sl_config *config, float *inv_freq);
// Replaces RoPE's fields by the options. With o->scaling, n_ctx becomes SL_MOST_POSITIONS. SL_ERR_ARG: an option is out of
// range, belongs to another scaling, or is missing; then *config is undefined. Call it once, after sl_config_load.
int sl_config_change_rope(sl_config *config, const sl_rope_options *o, sl_error *err);
const char *sl_config_limit(const sl_config *config);     // what limits n_ctx, for messages: "max_position_embeddings"
const char *sl_config_rope_name(const sl_config *config); // "plain", "linear", "llama3", "yarn", "frequency_factors"
// Writes all parameters of RoPE. Equal texts mean equal frequencies and factors.
void sl_config_describe_rope(const sl_config *config, char *buf, size_t size);

#endif
