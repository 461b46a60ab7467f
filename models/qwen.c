// models/qwen.c - Qwen2.5 and Qwen3 (dense). Their layers are Llama's (models/llama.c) with one change each:
//
//   Qwen2.5  q, k and v have biases
//   Qwen3    RMSNorm over head_dim of every query head and key head, before RoPE
//
// Refuses mixtures of experts (other model types). A sliding window limits the context.
#include "models/llama.h"

static int read_qwen2(const sl_json_file *f, sl_config *c, sl_error *err) {
    static const sl_refused_field refused[] = {{"mlp_bias", "false"}, {0}};
    const sl_config_defaults d = {.n_kv_heads = 32, .n_ctx = 32768, .window = 4096, .has_window_layers = 1};
    c->has_qkv_bias = 1;
    return sl_llama_read_config(f, refused, &d, c, err);
}

static int read_qwen3(const sl_json_file *f, sl_config *c, sl_error *err) {
    static const sl_refused_field refused[] = {{"attention_bias", "false"}, {"mlp_bias", "false"}, {0}};
    const sl_config_defaults d = {.n_kv_heads = 32, .head_dim = 128, .n_ctx = 32768, .window = 4096, .has_window_layers = 1};
    c->has_qk_norm = 1;
    return sl_llama_read_config(f, refused, &d, c, err);
}

const sl_arch sl_arch_qwen2 = {
    .model_type = "qwen2", .architecture = "Qwen2ForCausalLM", .read_config = read_qwen2, SL_LLAMA_LAYERS};
const sl_arch sl_arch_qwen3 = {
    .model_type = "qwen3", .architecture = "Qwen3ForCausalLM", .read_config = read_qwen3, SL_LLAMA_LAYERS};
