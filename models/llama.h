// models/llama.h - the Llama architecture: Llama 2, 3, 3.1, 3.2 and Mistral 7B are this file with other numbers.
#ifndef SLEIGH_LLAMA_H
#define SLEIGH_LLAMA_H

#include "engine/kv/kv.h"
#include "engine/base/progress.h"
#include "models/safetensors.h"
#include "models/config.h"

typedef struct sl_llama_layer {
    sl_weight attn_norm; // [hidden]
    sl_weight q, k, v;   // [n_heads * head_dim][hidden], [n_kv_heads * head_dim][hidden] twice
    sl_weight o;         // [hidden][n_heads * head_dim]
    sl_weight mlp_norm;  // [hidden]
    sl_weight gate, up;  // [n_ffn][hidden]
    sl_weight down;      // [hidden][n_ffn]
} sl_llama_layer;

typedef struct sl_llama {
    sl_weight embed; // [n_vocab][hidden]
    sl_llama_layer *layers;
    sl_weight norm; // [hidden]
    sl_weight head; // [n_vocab][hidden]; the embedding again where tied
    sl_rope rope;
} sl_llama;

// Binds every tensor once, with dtype, rank and dimensions checked.
int sl_llama_bind(const sl_tensors *tensors, const sl_config *config, sl_llama *model, sl_error *err);
// Declares the tensors that sl_llama_bind would look for and binds them: names, dtypes (BF16) and shapes, data NULL.
int sl_llama_shape(const sl_config *config, sl_tensors **tensors, sl_llama *model, sl_error *err);
void sl_llama_free(sl_llama *model);
size_t sl_llama_decode_bytes(const sl_llama *model, const sl_config *config);

// Brings the weights where a backend wants them: *placed is a model whose weights' data are the backend's. SL_ERR_MEMORY.
int sl_llama_place(const sl_llama *model, const sl_config *config, const sl_backend *backend, const sl_progress *progress,
                   sl_llama *placed, sl_error *err);

// Activations of one step, for up to max_rows rows, in the backend's memory. Act: bf16 or fp32 (backend.h).
typedef struct sl_llama_scratch {
    const sl_backend *backend;
    size_t size;
    float *x;   // [max_rows][hidden] the residual stream
    void *h;    // act [max_rows][hidden]: normed
    void *att;  // act [max_rows][n_heads * head_dim]
    void *act;  // act [max_rows][n_ffn]
    void *work; // act [max_rows][the larger of n_heads * head_dim + 2 * n_kv_heads * head_dim and 2 * n_ffn]
} sl_llama_scratch;

size_t sl_llama_scratch_size(const sl_config *config, const sl_backend *backend, int max_rows);
int sl_llama_scratch_new(const sl_config *config, const sl_backend *backend, int max_rows, sl_llama_scratch *scratch,
                         sl_error *err);
void sl_llama_scratch_free(sl_llama_scratch *scratch);

// What the engine lends to a step: where K and V of a layer lie, and attention over them.
typedef struct sl_llama_step {
    const sl_backend *backend;
    sl_linear_mode mode;
    int n_rows, n_out;  // the last n_out rows are carried to the end: 0 fills the cache alone
    int position;       // of row 0, in a prefill
    const int32_t *ids; // [n_rows]
    const sl_row *rows; // [n_rows]
    sl_kv_rows (*kv)(void *ctx, int layer);
    // rows [first, first + n) of the step; out: act [n][n_heads * head_dim]
    void (*attend)(void *ctx, int layer, int first, int n, sl_queries q, void *out);
    void *ctx;
} sl_llama_step;

// Runs all layers. On return the final-normed states of the last n_out rows lie in scratch->h, in order.
void sl_llama_forward(const sl_llama *model, const sl_config *config, const sl_llama_step *step, sl_llama_scratch *scratch);

#endif
