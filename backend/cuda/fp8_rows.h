// backend/cuda/fp8_rows.h - rounds the inputs of a linear layer to fp8 (sl_inputs of backend/weight.h), for products of fp8.
//
// A row has a scale s, and q = e4m3(x / s), rounded to nearest, ties to even; a size above 448 becomes 448.
//   s = max(max |x| / 448, 2^-126)      or the scale that the checkpoint gives
//   x / s is x * (1 / s), with 1 / s rounded to fp32
// All operations are fp32. If a number of the row is not finite, s and all q are NaN (0x7f), so that the error reaches the
// logits. A row's bits do not depend on other rows. In groups, the same holds for each 128 columns of a row.
#ifndef SLEIGH_CUDA_FP8_ROWS_H
#define SLEIGH_CUDA_FP8_ROWS_H

#include "base/bf16.h"

#include <cuda_runtime.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

enum { SL_FP8_MOST_COLS = 64 * 1024 }; // of a row

// x [n_rows][n_cols], 16-byte aligned, n_cols a multiple of 8; q [n_rows][n_cols], 8-byte aligned; scale [n_rows].
// given: the scale of all rows; 0: each row has its own.
void sl_cuda_round_rows(const bf16 *x, int n_rows, int n_cols, float given, uint8_t *q, float *scale, cudaStream_t stream);

// A scale for each 128 columns. x [n_rows][n_cols], n_cols a multiple of 128; q [n_out][n_cols]; scale [n_cols / 128][n_out].
// n_out: at least n_rows; rows after n_rows are rounded zeros.
void sl_cuda_round_groups(const bf16 *x, int n_rows, int n_cols, int n_out, uint8_t *q, float *scale, cudaStream_t stream);

#ifdef __cplusplus
}
#endif

#endif
