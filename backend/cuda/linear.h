// backend/cuda/linear.h - the linear layers of a decode step: y = W x for up to SL_LINEAR_ROWS rows of x.
//
// A launch reads W once. Every output has one reduction order. The order does not depend on the number of rows or on the place
// of a row. So a row has equal bits in every batch.
//
// RMSNorm, y = W h with h_i = x_i w_i / rms, needs no kernel of its own: y = (W u) / rms with u_i = x_i w_i. The launch that
// completes x (SL_LINEAR_ADD with next_w) stores u, and the sum of x^2 of each SL_NORM_TILE numbers. The launch that multiplies
// u by a matrix (with sums) adds these sums up and divides its products.
#ifndef SLEIGH_CUDA_LINEAR_H
#define SLEIGH_CUDA_LINEAR_H

#include "backend/backend.h"
#include "backend/cuda/packed.h"

#include <cuda_runtime.h>

#ifdef __cplusplus
extern "C" {
#endif

enum {
    SL_LINEAR_ROWS = 32, // rows of one launch
    // A row with partial sums has a multiple of this many numbers, because four sums are read at once.
    SL_NORM_MULTIPLE = 4 * SL_NORM_TILE
};

typedef enum {             // what happens to y [n_rows][n_out]
    SL_LINEAR_STORE,       // out32 = y
    SL_LINEAR_ADD,         // out32 += y: the residual stream x; with next_w also out16 = x * next_w, and next_sums
    SL_LINEAR_SWIGLU,      // W is [gate rows; up rows]: out16 [n_rows][n_out / 2] = silu(gate) * up
    SL_LINEAR_ROPE_APPEND, // W is [q rows; k rows; v rows]: q after RoPE goes to out16 [n_rows][n_heads * head_dim], k after
                           // RoPE and v go to the row's place in the pages of this layer, or to staged rows. RoPE is fp32,
                           // then rounded.
} sl_linear_end;

typedef struct sl_cuda_linear {
    const void *w; // bf16 [n_out][n_in] row-major, 16-byte aligned; n_in a multiple of 8. sl_cuda_packed_linear: packed
    int n_out, n_in;
    const bf16 *x; // [n_rows][n_in]
    int n_rows;    // 1 to SL_LINEAR_ROWS; packed: to sl_cuda_packed_rows
    // All endings but SL_LINEAR_ADD: y is divided by the root of eps + the sum of these sums / n_in. n_in is a multiple of
    // SL_NORM_MULTIPLE. 16-byte aligned; NULL: y is not divided
    const float *sums; // [n_rows][n_in / SL_NORM_TILE]
    float eps;
    sl_linear_end end;
    float *out32; // [n_rows][n_out]
    bf16 *out16;
    // SL_LINEAR_ADD: the RMSNorm that follows; n_out is a multiple of SL_NORM_MULTIPLE. NULL: none
    const bf16 *next_w; // [n_out]
    float *next_sums;   // [n_rows][n_out / SL_NORM_TILE]
    // sl_cuda_packed_linear
    sl_cuda_packing packing;
    const float *scale;   // packed.h
    const int32_t *order; // [n_in] of sl_weight; NULL: x is read in its order
    // SL_LINEAR_STORE: the columns of w are those of one of this many ranks (2, 4 or 8), whose outputs are added later
    // (rank_sum.h). 0, 1: they are all columns
    int n_ranks;
    // SL_LINEAR_STORE, SL_LINEAR_ROPE_APPEND: w has this many rows, a multiple of 16, which give the first outputs of the
    // n_out. 0: n_out
    int n_part;
    // SL_LINEAR_ROPE_APPEND. n_heads: heads of q from the first row of w on. If this row is k's, it is 0; if it is v's,
    // -n_kv_heads
    int n_heads, n_kv_heads, head_dim;
    const float2 *rope; // [n_rows][head_dim / 2] cosine and sine; rotates dimension i with dimension i + head_dim / 2
    const sl_row *rows; // [n_rows]
    bf16 *k, *v;        // [n_pages][n_kv_heads][256][head_dim]; is_staged: [n_rows][n_kv_heads][head_dim]
    int is_staged;      // 1: for a cache of fp8 or int8, because no thread block has a whole row (sl_cuda_store_rows)
} sl_cuda_linear;

void sl_cuda_linear_decode(const sl_cuda_linear *args, cudaStream_t stream);
// The part of sl_cuda_linear_decode for more than 16 rows, with the same bits. Returns 0, and launches nothing, for fewer rows,
// for the columns of a rank, and if the GPU cannot.
int sl_cuda_linear_cluster(const sl_cuda_linear *args, cudaStream_t stream);
int sl_cuda_linear_rows(void); // the most rows of one launch on the current GPU: SL_LINEAR_ROWS or 16, by its shared memory

// out[r] = bf16(x[r] / sqrt(mean(x[r]^2) + eps) * w): x [n_rows][n] fp32, w [n] bf16
void sl_cuda_rmsnorm(const float *x, const bf16 *w, int n_rows, int n, float eps, bf16 *out, cudaStream_t stream);

#ifdef __cplusplus
}
#endif

#endif
