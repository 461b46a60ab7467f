// backend/cuda/fp8_rows.cu - see fp8_rows.h. The test compares it with the same formula in C (tests/cuda/test_cuda_fp8.c).
#include "backend/cuda/device.cuh"
#include "backend/cuda/fp8_rows.h"

#include <cuda_fp8.h>

namespace {

enum { VEC = 8, MOST_THREADS = 1024, MOST_VECTORS = 8, GROUP = 128 };

// The larger of two pairs of 16-bit numbers. As integers, the bits of sizes in bf16 have the order of the sizes. Infinity is
// larger than all numbers, and NaN is larger than infinity.
__device__ __forceinline__ uint32_t larger(uint32_t a, uint32_t b) {
    return __vmaxu2(a, b);
}

__device__ __forceinline__ uint32_t largest_pair(const uint4 &x) { // of sizes
    return larger(larger(x.x & 0x7fff7fffu, x.y & 0x7fff7fffu), larger(x.z & 0x7fff7fffu, x.w & 0x7fff7fffu));
}

// largest: bits of bf16
__device__ __forceinline__ float scale_of(uint32_t largest, float given) {
    const float s = given > 0 ? given : fmaxf(__fdiv_rn(__uint_as_float(largest << 16), 448), 0x1p-126f);
    return largest < 0x7f80 ? s : __uint_as_float(0x7fc00000);
}

// The largest size of a row, as bits of bf16. THREADS: all threads of the block call it.
template <int THREADS> __device__ __forceinline__ uint32_t largest_of_row(uint32_t pair) {
    __shared__ uint32_t of_warp[THREADS / 32];
    uint32_t most = max(pair & 0xffff, pair >> 16);
    for (int step = 16; step > 0; step /= 2) most = max(most, __shfl_xor_sync(~0u, most, step));
    if (threadIdx.x % 32 == 0) of_warp[threadIdx.x / 32] = most;
    __syncthreads();
#pragma unroll
    for (int i = 0; i < THREADS / 32; i++) most = max(most, of_warp[i]);
    return most;
}

__device__ __forceinline__ uint32_t to_fp8(uint32_t pair, float factor) { // two numbers, the first one in the low byte
    const float2 x = {__uint_as_float(pair << 16) * factor, __uint_as_float(pair & 0xffff0000u) * factor};
    return __nv_cvt_float2_to_fp8x2(x, __NV_SATFINITE, __NV_E4M3);
}

__device__ __forceinline__ uint2 to_fp8(const uint4 &x, float factor) { // eight numbers
    return {__byte_perm(to_fp8(x.x, factor), to_fp8(x.y, factor), 0x5410),
            __byte_perm(to_fp8(x.z, factor), to_fp8(x.w, factor), 0x5410)};
}

// Grid: one thread block per row. Thread t has the vectors (8 numbers) t, t + THREADS, ... of the row, in registers.
// Needs: n_cols a multiple of 8 and at most 8 THREADS VECTORS. Bytes: 3 per number.
template <int THREADS, int VECTORS>
__global__ void __launch_bounds__(THREADS) round_rows_kernel(const bf16 *x, int n_cols, float given, uint8_t *q, float *scale) {
    sl_start_next();
    sl_wait_previous();
    const int n = n_cols / VEC;
    const uint4 *from = (const uint4 *)(x + (size_t)blockIdx.x * n_cols);
    uint2 *to = (uint2 *)(q + (size_t)blockIdx.x * n_cols);
    uint4 row[VECTORS];
#pragma unroll
    for (int v = 0; v < VECTORS; v++) {
        const int i = v * THREADS + threadIdx.x;
        row[v] = i < n ? from[i] : uint4{0, 0, 0, 0};
    }
    uint32_t pair = 0;
#pragma unroll
    for (int v = 0; v < VECTORS; v++) pair = larger(pair, largest_pair(row[v]));
    const float s = scale_of(largest_of_row<THREADS>(pair), given), factor = __frcp_rn(s);
    if (threadIdx.x == 0) scale[blockIdx.x] = s;
#pragma unroll
    for (int v = 0; v < VECTORS; v++) {
        const int i = v * THREADS + threadIdx.x;
        if (i >= n) continue;
        to[i] = to_fp8(row[v], factor);
    }
}

// Grid: (ceil(n_cols / 128 / 16), n_out), 256 threads. 16 lanes have a group of a row, 8 numbers each. Bytes: 3 per number.
__global__ void __launch_bounds__(256) round_groups_kernel(const bf16 *x, int n_rows, int n_cols, uint8_t *q, float *scale) {
    enum { LANES = GROUP / VEC };
    sl_start_next();
    sl_wait_previous();
    const int group = blockIdx.x * (256 / LANES) + threadIdx.x / LANES, row = blockIdx.y;
    const size_t at = (size_t)row * n_cols + group * GROUP + threadIdx.x % LANES * VEC;
    const bool exists = group < n_cols / GROUP;
    const uint4 numbers = exists && row < n_rows ? *(const uint4 *)(x + at) : uint4{0, 0, 0, 0};
    const uint32_t pair = largest_pair(numbers);
    uint32_t most = max(pair & 0xffff, pair >> 16);
    for (int step = LANES / 2; step > 0; step /= 2) most = max(most, __shfl_xor_sync(~0u, most, step));
    if (!exists) return;
    const float s = scale_of(most, 0);
    *(uint2 *)(q + at) = to_fp8(numbers, __frcp_rn(s));
    if (threadIdx.x % LANES == 0) scale[(size_t)group * gridDim.y + row] = s;
}

} // namespace

void sl_cuda_round_rows(const bf16 *x, int n_rows, int n_cols, float given, uint8_t *q, float *scale, cudaStream_t stream) {
    SL_CHECK(n_rows > 0 && n_cols % VEC == 0 && n_cols > 0 && n_cols <= SL_FP8_MOST_COLS);
    static_assert(SL_FP8_MOST_COLS == VEC * MOST_THREADS * MOST_VECTORS, "the largest row");
    const int n = n_cols / VEC;
    const auto launch = [&](auto kernel, int threads) {
        sl_launch(kernel, dim3(n_rows), dim3(threads), 0, stream, x, n_cols, given, q, scale);
    };
    if (n <= 128)
        launch(round_rows_kernel<128, 1>, 128);
    else if (n <= 256)
        launch(round_rows_kernel<128, 2>, 128);
    else if (n <= 512)
        launch(round_rows_kernel<128, 4>, 128);
    else if (n <= 1024)
        launch(round_rows_kernel<256, 4>, 256);
    else if (n <= 2048)
        launch(round_rows_kernel<256, 8>, 256);
    else
        launch(round_rows_kernel<MOST_THREADS, MOST_VECTORS>, MOST_THREADS);
}

void sl_cuda_round_groups(const bf16 *x, int n_rows, int n_cols, int n_out, uint8_t *q, float *scale, cudaStream_t stream) {
    SL_CHECK(n_rows > 0 && n_rows <= n_out && n_out <= 65535 && n_cols % GROUP == 0);
    sl_launch(round_groups_kernel, dim3((n_cols / GROUP + 15) / 16, n_out), dim3(256), 0, stream, x, n_rows, n_cols, q, scale);
}
