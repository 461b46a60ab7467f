// attention/cuda/norms.cuh - the norm of a row of V on CUDA, as the page extra stores it (page_norms.c).
#ifndef SLEIGH_NORMS_CUH
#define SLEIGH_NORMS_CUH

#include "attention/attention_cuda.h"
#include "attention/cuda/stored_rows.cuh"

// x as bf16, rounded up, in the upper half of the word; the lower half can be anything. A NaN, whose bits the addition would
// carry into the sign, becomes 0x7fc0. x: at least 0, or NaN.
static __device__ __forceinline__ uint32_t sl_raise_to_bf16(float x) {
    return min(__float_as_uint(x), 0x7fc00000u) + 0xffff;
}

// |v| as bf16, rounded up (sl_raise_to_bf16). Squares are added in order. row: 16-byte aligned. head_dim: a multiple of 8.
static __device__ __forceinline__ bf16 sl_norm_of_row(const bf16 *row, int head_dim) {
    float square = 0;
    for (int d = 0; d < head_dim; d += 8) {
        uint4 x = *(const uint4 *)(row + d);
        const uint32_t pairs[4] = {x.x, x.y, x.z, x.w};
#pragma unroll
        for (int i = 0; i < 8; i++) {
            float y = __uint_as_float(i % 2 ? pairs[i / 2] & 0xffff0000u : pairs[i / 2] << 16);
            square = __fadd_rn(square, __fmul_rn(y, y));
        }
    }
    return (bf16)(sl_raise_to_bf16(__fsqrt_rn(square)) >> 16);
}

// The same for a row of fp8 or int8. row: 16-byte aligned. head_dim: a multiple of 16.
static __device__ __forceinline__ bf16 sl_norm_of_bytes(const char *row, float scale, bool is_fp8, int head_dim) {
    float square = 0, y[8];
    for (int d = 0; d < head_dim; d += 8) {
        widen8(*(const uint2 *)(row + d), y, is_fp8);
#pragma unroll
        for (int i = 0; i < 8; i++) {
            float x = __fmul_rn(y[i], scale);
            square = __fadd_rn(square, __fmul_rn(x, x));
        }
    }
    return (bf16)(sl_raise_to_bf16(__fsqrt_rn(square)) >> 16);
}

#endif
