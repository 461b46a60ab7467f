// attention/cuda/prefill/dense_prefill.cuh - parts that the two kernels of dense prefill share. dense_prefill.cu has the kernel
// for every GPU, and the launcher that chooses a kernel. dense_prefill_wgmma.cu has the kernel for Hopper.
//
// Both compute, for token i of a run, head h and its KV head h / group,
//   out[i][h] = sum_j p_j v_j,  p = softmax over rows j <= first + i of  q[i][h] . k_j / sqrt(head_dim)
// Scores, running maximum, sum and output are fp32. p is rounded to bf16 for its product with V. A row of the result has the
// same bits in any chunk, query tile and thread block, for three reasons:
// - Tiles of keys begin at multiples of their size from the sequence's start, and are taken in ascending order.
// - The sums of a row never include another row's.
// - A tile wholly after a row's position does not change that row's state: its p are 0, and its maximum does not grow.
//
// With a mask only the key blocks of the mask are visited (prefill_mask.h).
//
// Rows of V after the sequence's end can hold NaN, and 0 times NaN is NaN. So both kernels read these rows as 0.
#ifndef SLEIGH_ATTENTION_DENSE_PREFILL_CUH
#define SLEIGH_ATTENTION_DENSE_PREFILL_CUH

#include "attention/attention_cuda.h"
#include "attention/prefill/prefill_mask.h"

#include <math.h>

#ifdef __cplusplus
extern "C" {
#endif

// sl_cuda_dense_prefill calls sl_cuda_dense_prefill_wgmma if the build has its machine code and the current device is a Hopper
// GPU. Otherwise it calls sl_cuda_dense_prefill_mma. The choice depends on nothing else, so equal rows have equal bits.
void sl_cuda_dense_prefill_wgmma(const sl_attn_cuda_prefill_args *args);
int sl_cuda_dense_prefill_wgmma_runs(void);
void sl_cuda_dense_prefill_mma(const sl_attn_cuda_prefill_args *args);

#ifdef __cplusplus
}
#endif

#ifdef __CUDACC__
#include "backend/cuda/device.cuh"

// Maximum and sum over the four lanes that hold one row of a matrix product's accumulator.
static __device__ __forceinline__ float sl_quad_max(float x) {
    x = fmaxf(x, __shfl_xor_sync(0xffffffff, x, 1));
    return fmaxf(x, __shfl_xor_sync(0xffffffff, x, 2));
}
static __device__ __forceinline__ float sl_quad_max_nan(float x) { // NaN if one of them is NaN
    x = sl_max_nan(x, __shfl_xor_sync(0xffffffff, x, 1));
    return sl_max_nan(x, __shfl_xor_sync(0xffffffff, x, 2));
}
static __device__ __forceinline__ float sl_quad_sum(float x) {
    x += __shfl_xor_sync(0xffffffff, x, 1);
    return x + __shfl_xor_sync(0xffffffff, x, 2);
}

// The masses of a row are 2^(scale (score - *max)). top: the highest score of the next tile and the tiles before. If masses
// would exceed 2^8, raises *max to top and returns the factor for sums that are relative to the old *max. Otherwise returns 1:
// masses above 1 have the same relative accuracy in bf16 and fp32, and with this rule the factor of nearly every tile is 1.
static __device__ __forceinline__ float sl_raise_max(float *max, float top, float scale) {
    float growth = (top - *max) * scale; // infinite at the first tile
    if (growth <= 8) return 1;
    *max = top;
    return sl_exp2(-growth);
}

#endif // __CUDACC__
#endif
