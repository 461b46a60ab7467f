// backend/cuda/packed_linear.h - kernels for quantised weights in the order of packed.h.
#ifndef SLEIGH_CUDA_PACKED_LINEAR_H
#define SLEIGH_CUDA_PACKED_LINEAR_H

#include "backend/cuda/linear.h"

#ifdef __cplusplus
extern "C" {
#endif

enum {
    SL_PACKED_ROWS = 16,        // most rows of x of one launch
    SL_PACKED_COLS = 128 * 1024 // most columns of a matrix: a prefill widens at least 256 rows at a time into 64 MiB (SL_WIDE)
};

// The most rows of x of one launch on the current GPU: SL_PACKED_ROWS or 8, by its shared memory. 0: the kernels do not take
// the matrix. GPUs of compute capability 8.6, 8.9 and 12.0 have 99 KiB of shared memory for a thread block, which is too
// little.
int sl_cuda_packed_rows(const sl_cuda_packing *packing);

// The same as sl_cuda_linear_decode for a packed matrix: args->packing, args->scale and args->order are set. n_out a multiple
// of 8.
void sl_cuda_packed_linear(const sl_cuda_linear *args, cudaStream_t stream);

// w: a weight in the GPU's memory, as sl_cuda_place leaves it. n_ranks: as in sl_cuda_packing_of_part. out [n_rows][n_cols] =
// the numbers of rows first to first + n_rows - 1, rounded to bf16. first and n_rows multiples of 8. Rows after w's are those
// of a weight of equal packing that lies behind w.
void sl_cuda_packed_widen(const sl_weight *w, int n_ranks, int first, int n_rows, bf16 *out, cudaStream_t stream);

// out [n_rows][n_cols] = the stored fp8 numbers of these rows, without scales, one row after the other. first and n_rows
// multiples of 8, n_cols a multiple of 8.
void sl_cuda_packed_fp8_rows(const void *data, const sl_cuda_packing *packing, int n_cols, int first, int n_rows, uint8_t *out,
                             cudaStream_t stream);

// The scales of blocks of 128 x 128 numbers of rows first to first + n_rows - 1, in the order of sl_gemm_scales
// (cuda_backend.h). Every 128 rows have equal scales. first, n_rows and the columns are multiples of 128.
void sl_cuda_packed_block_scales(const float *scale, const sl_cuda_packing *packing, int first, int n_rows, float *out,
                                 cudaStream_t stream);

// x[r] = row ids[r] of the table, which lies in the GPU's memory: x [n_rows][n_cols] fp32
void sl_cuda_packed_embed(const sl_weight *table, const int32_t *ids, int n_rows, float *x, cudaStream_t stream);

#ifdef __cplusplus
}
#endif

#endif
