// models/qwen.c - Qwen2.5 and Qwen3 (dense). Their layers are Llama's (models/llama.c) with one change each:
//
//   Qwen2.5  q, k and v have biases
//   Qwen3    RMSNorm over head_dim of every query head and key head, before RoPE
//
// Refuses mixtures of experts (other model types) and sliding windows.
#include "models/config_fields.h"
#include "models/llama.h"

static int read_config(const sl_json_file *f, const sl_refused_field *refused, sl_config *c, sl_error *err) {
    int n;
    int rc = sl_config_check_string(f, "hidden_act", "silu", err);
    if (!rc) rc = sl_config_refuse(f, refused, err);
    if (!rc) rc = sl_config_refuse(f, sl_config_refused, err);
    // transformers' default is 32 heads, whatever the model: the field must be given.
    if (!rc) rc = sl_json_int(f, "num_key_value_heads", 1, 1024, NULL, &n, err);
    if (!rc) rc = sl_config_read_shapes(f, c, err);
    return rc ? rc : sl_config_read_rope(f, c, err);
}

// use_sliding_window is in sl_config_refused. Where it is false, sliding_window and max_window_layers have no effect.
static int read_qwen2(const sl_json_file *f, sl_config *c, sl_error *err) {
    static const sl_refused_field refused[] = {{"mlp_bias", "false"}, {0}};
    c->has_qkv_bias = 1;
    return read_config(f, refused, c, err);
}

static int read_qwen3(const sl_json_file *f, sl_config *c, sl_error *err) {
    static const sl_refused_field refused[] = {{"attention_bias", "false"}, {"mlp_bias", "false"}, {0}};
    int head_dim,
        rc = sl_json_int(f, "head_dim", 1, 1024, NULL, &head_dim, err); // transformers' default is 128: it must be given
    c->has_qk_norm = 1;
    return rc ? rc : read_config(f, refused, c, err);
}

const sl_arch sl_arch_qwen2 = {
    .model_type = "qwen2",
    .architecture = "Qwen2ForCausalLM",
    .read_config = read_qwen2,
    .weights_size = sl_llama_weights_size,
    .declare = sl_llama_declare,
    .scratch_size = sl_llama_scratch_size,
    .forward = sl_llama_forward,
    .logits = sl_llama_logits,
};

const sl_arch sl_arch_qwen3 = {
    .model_type = "qwen3",
    .architecture = "Qwen3ForCausalLM",
    .read_config = read_qwen3,
    .weights_size = sl_llama_weights_size,
    .declare = sl_llama_declare,
    .scratch_size = sl_llama_scratch_size,
    .forward = sl_llama_forward,
    .logits = sl_llama_logits,
};
