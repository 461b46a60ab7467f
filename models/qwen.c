// models/qwen.c - Qwen2.5 and Qwen3 (dense). Their layers are Llama's (models/llama.c) with one change each:
//
//   Qwen2.5  q, k and v have biases
//   Qwen3    RMSNorm over head_dim of every query head and key head, before RoPE
//
// Refuses mixtures of experts (other model types) and sliding windows.
#include "models/llama.h"

// use_sliding_window is in sl_config_refused. Where it is false, sliding_window and max_window_layers have no effect.
static int read_config(const sl_json_file *f, const sl_refused_field *refused, sl_config *c, sl_error *err) {
    int n; // the default of transformers is 32 heads for every model, so the field must be given
    int rc = sl_json_int(f, "num_key_value_heads", 1, 1024, NULL, &n, err);
    return rc ? rc : sl_llama_read_config(f, refused, c, err);
}

static int read_qwen2(const sl_json_file *f, sl_config *c, sl_error *err) {
    static const sl_refused_field refused[] = {{"mlp_bias", "false"}, {0}};
    c->has_qkv_bias = 1;
    return read_config(f, refused, c, err);
}

static int read_qwen3(const sl_json_file *f, sl_config *c, sl_error *err) {
    static const sl_refused_field refused[] = {{"attention_bias", "false"}, {"mlp_bias", "false"}, {0}};
    int n; // the default of transformers is 128 for every model, so the field must be given
    int rc = sl_json_int(f, "head_dim", 1, 1024, NULL, &n, err);
    c->has_qk_norm = 1;
    return rc ? rc : read_config(f, refused, c, err);
}

const sl_arch sl_arch_qwen2 = {
    .model_type = "qwen2", .architecture = "Qwen2ForCausalLM", .read_config = read_qwen2, SL_LLAMA_LAYERS};
const sl_arch sl_arch_qwen3 = {
    .model_type = "qwen3", .architecture = "Qwen3ForCausalLM", .read_config = read_qwen3, SL_LLAMA_LAYERS};
