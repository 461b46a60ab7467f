// attention/cuda/partial_softmax.cuh - partial results of attention over parts of a context, and their sum.
//
// A partial result of rows j has m, the largest score in log2 units; l = sum_j 2^(s_j - m); o = sum_j 2^(s_j - m) v_j. Kernels
// add parts in a fixed order, so that a result does not depend on which part ended first.
#ifndef SLEIGH_PARTIAL_SOFTMAX_CUH
#define SLEIGH_PARTIAL_SOFTMAX_CUH

#include "backend/cuda/device.cuh"

#include <math.h>

// Factor from masses relative to 2^m to masses relative to 2^most. A part without rows has m = -INFINITY.
static __device__ __forceinline__ float rescale(float m, float most) {
    return m == -INFINITY ? 0 : exp2f(m - most);
}

static __device__ __forceinline__ void add_scaled(float *sum, float factor, float x) {
    *sum += factor * x;
}

static __device__ __forceinline__ void add_scaled(float4 *sum, float factor, const float4 &x) {
    sum->x += factor * x.x, sum->y += factor * x.y, sum->z += factor * x.z, sum->w += factor * x.w;
}

// Adds parts 0 .. N - 1 in order. ml(i): (m, l) of part i; o(i): one or four channels of its o. *sum: 0 before. Returns (m, l)
// of the sum. A part whose scores are all NaN has no maximum, but its l and o are NaN, and so is the sum.
template <int N, typename Channels, typename PartMl, typename PartO>
static __device__ __forceinline__ float2 add_parts(PartMl ml, PartO o, Channels *sum) {
    float most = -INFINITY, l = 0;
#pragma unroll
    for (int i = 0; i < N; i++) most = fmaxf(most, ml(i).x);
#pragma unroll
    for (int i = 0; i < N; i++) {
        float2 part = ml(i);
        float factor = rescale(part.x, most);
        l += factor * part.y;
        add_scaled(sum, factor, o(i));
    }
    return make_float2(most, l);
}

// Counts n stored parts of `total`. Returns true when they were the last ones, and sets the counter to 0 for the next launch.
// One thread calls it, after the stores of all threads and a barrier; then it may read the parts of other thread blocks.
static __device__ __forceinline__ bool counts_last_part(int *counter, int n, int total) {
    bool is_last = sl_add_ordered(counter, n) == total - n;
    if (is_last) *counter = 0;
    return is_last;
}

#endif
