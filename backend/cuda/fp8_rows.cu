// backend/cuda/fp8_rows.cu - see fp8_rows.h. The test compares it with the same formula in C (tests/cuda/test_cuda_fp8.c).
#include "backend/cuda/device.cuh"
#include "backend/cuda/fp8_rows.h"

#include <cuda_fp8.h>

namespace {

enum { VEC = 8, MOST_THREADS = 1024, MOST_VECTORS = 8 };

// The larger of two pairs of 16-bit numbers. As integers, sizes of bf16 numbers have the order of the numbers, with infinity
// and then NaN as the largest.
__device__ __forceinline__ uint32_t larger(uint32_t a, uint32_t b) {
    return __vmaxu2(a, b);
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
    for (int v = 0; v < VECTORS; v++) {
        const uint32_t a = larger(row[v].x & 0x7fff7fffu, row[v].y & 0x7fff7fffu);
        const uint32_t b = larger(row[v].z & 0x7fff7fffu, row[v].w & 0x7fff7fffu);
        pair = larger(pair, larger(a, b));
    }
    const uint32_t bits = largest_of_row<THREADS>(pair);
    const bool is_finite = bits < 0x7f80;
    const float s = given > 0 ? given : fmaxf(__fdiv_rn(__uint_as_float(bits << 16), 448), 0x1p-126f);
    const float factor = is_finite ? __frcp_rn(s) : __uint_as_float(0x7fc00000);
    if (threadIdx.x == 0) scale[blockIdx.x] = is_finite ? s : __uint_as_float(0x7fc00000);
#pragma unroll
    for (int v = 0; v < VECTORS; v++) {
        const int i = v * THREADS + threadIdx.x;
        if (i >= n) continue;
        to[i] = {__byte_perm(to_fp8(row[v].x, factor), to_fp8(row[v].y, factor), 0x5410),
                 __byte_perm(to_fp8(row[v].z, factor), to_fp8(row[v].w, factor), 0x5410)};
    }
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
