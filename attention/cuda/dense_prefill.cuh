// attention/cuda/dense_prefill.cuh - what the two kernels of dense prefill share: dense_prefill.cu has the one for every GPU,
// and the launcher that chooses; dense_prefill_wgmma.cu has Hopper's.
//
// Both compute, for token i of a run, head h and its KV head h / group,
//   out[i][h] = sum_j p_j v_j,  p = softmax over rows j <= first + i of  q[i][h] . k_j / sqrt(head_dim)
// with scores, running maximum, sum and output in fp32 and p rounded to bf16 for its product with V. A row of the result has
// the same bits in whichever chunk, query tile or block it is computed: tiles of keys begin at multiples of their size from the
// sequence's start and are taken in ascending order, a row's sums never meet another row's, and a tile that lies wholly
// behind a row's position leaves that row's state as it is, to the bit (its p are 0 and its maximum does not grow). Rows of V
// past the sequence's end may hold anything, NaN too: 0 times NaN is NaN, so they are read as 0.
#ifndef SLEIGH_ATTENTION_DENSE_PREFILL_CUH
#define SLEIGH_ATTENTION_DENSE_PREFILL_CUH

#include "attention/attention_cuda.h"

#include <math.h>

#ifdef __cplusplus
extern "C" {
#endif

// What sl_cuda_dense_prefill calls: the first where it runs (this build holds its machine code and the current device is a
// Hopper), else the second. Which one depends on nothing else, so that equal rows have equal bits.
void sl_cuda_dense_prefill_wgmma(const sl_attn_cuda_prefill_args *args);
int sl_cuda_dense_prefill_wgmma_runs(void);
void sl_cuda_dense_prefill_mma(const sl_attn_cuda_prefill_args *args);

#ifdef __cplusplus
}
#endif

// Scores times this are exponents of 2.
static inline float sl_prefill_scale(int head_dim) {
    return (float)(1.4426950408889634 / sqrt((double)head_dim)); // log2(e) / sqrt(head_dim)
}

#ifdef __CUDACC__

static __device__ __forceinline__ float sl_exp2(float x) { // 2^x; 0 for -inf, and where 2^x is subnormal
    float y;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}

static __device__ __forceinline__ uint32_t sl_pack_bf16(float low, float high) {
    uint32_t r;
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(r) : "f"(high), "f"(low));
    return r;
}

// Over the four lanes that hold one row of a matrix product's accumulator.
static __device__ __forceinline__ float sl_quad_max(float x) {
    x = fmaxf(x, __shfl_xor_sync(0xffffffff, x, 1));
    return fmaxf(x, __shfl_xor_sync(0xffffffff, x, 2));
}
static __device__ __forceinline__ float sl_quad_sum(float x) {
    x += __shfl_xor_sync(0xffffffff, x, 1);
    return x + __shfl_xor_sync(0xffffffff, x, 2);
}

// A row's weights are 2^(scale (score - *max)). Before a tile whose highest score, or that of the tiles before, is `top`:
// raises *max to it, and returns the factor that sums under the old *max need. Only when the scores have grown by 2^8, though:
// until then weights exceed 1, which costs bf16 and fp32 no accuracy, and the factor of nearly every tile is 1, to the bit.
static __device__ __forceinline__ float sl_raise_max(float *max, float top, float scale) {
    float growth = (top - *max) * scale; // infinite at the first tile
    if (growth <= 8) return 1;
    *max = top;
    return sl_exp2(-growth);
}

#endif // __CUDACC__
#endif
