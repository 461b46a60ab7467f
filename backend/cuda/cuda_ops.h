// backend/cuda/cuda_ops.h - the small kernels around the matrix products: the first operations of a step, the operations
// between the linear layers of a prefill, and the kernels that make or convert weights at load.
//
// All pointers are device memory, 16-byte aligned. Arithmetic is fp32 with one rounding at the end. Each output is a function
// of its inputs only: the number of rows and the grid do not change bits.
#ifndef SLEIGH_CUDA_OPS_H
#define SLEIGH_CUDA_OPS_H

#include "backend/backend.h"

#include <cuda_runtime.h>

#ifdef __cplusplus
extern "C" {
#endif

// *version: the generation for which the kernels of this build that the current device runs were compiled, such as 90.
// cudaErrorNoKernelImageForDevice: the build has no kernels for this device.
cudaError_t sl_cuda_ops_version(int *version);

// x[r] = table[ids[r]]: table [n_vocab][hidden], x [n_rows][hidden]; hidden a multiple of 8.
void sl_cuda_embed(const bf16 *table, const int32_t *ids, int n_rows, int hidden, float *x, cudaStream_t stream);

// table[r][i] = (cos a, sin a) * scale, a = (float)rows[r].position * inv_freq[i]. The products are fp32, cosine and sine are
// computed in double, as on the CPU. inv_freq: [head_dim / 2]; table: [n_rows][head_dim / 2].
void sl_cuda_rope_table(const float *inv_freq, float scale, const sl_row *rows, int n_rows, int head_dim, float2 *table,
                        cudaStream_t stream);

// RoPE, and the append to the KV cache. Dimension i is rotated with dimension i + head_dim / 2. qkv: [n_rows][stride] elements;
// a row begins with its n_heads heads of q, then k, then v, each of head_dim elements. q is rotated in place. Rotated k, and v,
// go to the row's place in its pages; k in qkv does not change. n_heads may be 0. head_dim a multiple of 16, stride a
// multiple of 8. table: the result of sl_cuda_rope_table. k, v: this layer, [n_pages][n_kv_heads][256][head_dim].
void sl_cuda_rope_append(bf16 *qkv, size_t stride, const float2 *table, const sl_row *rows, int n_rows, int n_heads,
                         int n_kv_heads, int head_dim, bf16 *k, bf16 *v, cudaStream_t stream);

// The same as sl_cuda_rope_append with biases and norms. For each head, with x' = x + bias: y = x' / sqrt(mean(x'^2) + eps) *
// norm for q and k, y = x' for v; then RoPE for q and k. The order of a sum does not depend on the number of rows, so a row has
// equal bits in every batch.
typedef struct sl_cuda_heads {
    const void *qkv; // [n_rows][stride]: the heads of q, then k, then v of a row, each of head_dim elements
    int is_fp32;     // 1: qkv is fp32, 0: bf16
    size_t stride;   // elements
    bf16 *q;         // [n_rows][q_stride]: gets the rotated heads of q; may be qkv if qkv is bf16
    size_t q_stride;
    int n_rows, n_heads, n_kv_heads, head_dim; // n_heads or n_kv_heads may be 0; head_dim a multiple of 16, at most 256
    const bf16 *bias;                          // [n_heads + 2 n_kv_heads][head_dim]; NULL: none
    const bf16 *q_norm, *k_norm;               // [head_dim]; NULL: none
    float eps;
    const float2 *table; // of sl_cuda_rope_table
    const sl_row *rows;  // [n_rows]
    bf16 *k, *v;         // this layer, [n_pages][n_kv_heads][256][head_dim]; with kv_stride: rows of KV heads
    size_t kv_stride;    // 0; or elements from row to row of k and v, which may be the K and V of a bf16 qkv
} sl_cuda_heads;
void sl_cuda_norm_rope_append(const sl_cuda_heads *args, cudaStream_t stream);

// Rounds rows of K and V and stores them in the row's place in a cache of fp8 or int8, with the bits of sl_kv_store
// (kv/kv_rows.h).
typedef struct sl_cuda_kv_rows {
    const bf16 *k, *v; // [n_rows][stride]; a row begins with its n_kv_heads heads of head_dim elements
    size_t stride;     // elements, a multiple of 8
    const sl_row *rows;
    int n_rows, n_kv_heads, head_dim; // head_dim a multiple of 16, at most 128
    sl_format format;                 // SL_FP8 or SL_INT8
    void *k_layer, *v_layer;          // this layer: [n_pages][n_kv_heads] blocks
    const float *k_scales, *v_scales; // [n_kv_heads] of a checkpoint; NULL: each row has its own scale
} sl_cuda_kv_rows;
void sl_cuda_store_rows(const sl_cuda_kv_rows *args, cudaStream_t stream);
// The same for the first n_rows rows of consecutive blocks. rows: [n_rows][head_dim]
void sl_cuda_store_blocks(const bf16 *rows, sl_format format, int head_dim, int n_rows, void *blocks, cudaStream_t stream);

// out[r][i] = silu(gate[r][i]) * up[r][i]: gate_up [n_rows][gate: n_ffn, up: n_ffn], out [n_rows][n_ffn]; n_ffn a multiple
// of 8.
void sl_cuda_swiglu(const bf16 *gate_up, int n_rows, int n_ffn, bf16 *out, cudaStream_t stream);

// out [n_rows][n_cols] = numbers from + r stride + i of a matrix of a dummy model, row r and column i, with the same bits as
// sl_dummy_fill (backend/dummy_weights.h). from is a multiple of 8, and so are n_cols and stride of several rows. quantiles:
// the table of that file, in device memory.
void sl_cuda_dummy_fill(uint64_t key, const bf16 *quantiles, size_t from, int n_rows, size_t n_cols, size_t stride, bf16 *out,
                        cudaStream_t stream);

// out[i] = in[i] rounded to nearest, ties to even. format: SL_F16 or SL_F32. Every NaN becomes the same NaN.
void sl_cuda_to_bf16(const void *in, sl_format format, size_t n, bf16 *out, cudaStream_t stream);

#ifdef __cplusplus
}
#endif

#endif
