// attention/cuda/buckets/rotate_back.cuh - undoes RoPE on CUDA, with the CPU's bits (sl_rotate_back in bucket_index.h).
//
// The cosine of an angle is computed in double precision and rounded to fp32, as on the CPU. Both libraries err by less than
// 2^-50, so the fp32 numbers differ only if the exact cosine lies that close to the middle of two fp32 numbers.
#ifndef SLEIGH_ROTATE_BACK_CUH
#define SLEIGH_ROTATE_BACK_CUH

#include <cuda_runtime.h>

// Rotates the pair (a, b) of a row at `position` back by position * inv_freq.
static __device__ __forceinline__ void rotate_pair_back(float inv_freq, int position, float *a, float *b) {
    double cosine, sine;
    sincos((double)__fmul_rn((float)position, inv_freq), &sine, &cosine);
    float c = (float)cosine, s = (float)sine, x = *a, y = *b;
    *a = __fadd_rn(__fmul_rn(x, c), __fmul_rn(y, s));
    *b = __fsub_rn(__fmul_rn(y, c), __fmul_rn(x, s));
}

#endif
