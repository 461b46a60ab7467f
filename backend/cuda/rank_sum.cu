// backend/cuda/rank_sum.cu - see rank_sum.h. The naive version of a sum is in tests/cuda/test_cuda_ranks.c.
//
// A decode step has two sums in each layer, of few numbers, so the time of a sum is the time of its messages: one write of a
// flag to each peer, and one read of each peer's part. A thread has four neighbouring numbers of all ranks. A thread block
// waits for the thread blocks of its number only. While it waits, the next kernel of the step already starts (sl_start_next)
// and fetches weights; for this, a block of 128 threads of up to 64 registers fits beside two blocks of a linear layer.
#include "backend/cuda/device.cuh"
#include "backend/cuda/linear.h"
#include "backend/cuda/rank_sum.h"

#include <cuda_bf16.h>

namespace {

enum { THREADS = 128, LOOKS = 256 }; // LOOKS: at a flag, between two looks at the clock

__device__ __forceinline__ void store_flag(uint32_t *flag, uint32_t x) {
    asm volatile("st.release.sys.global.u32 [%0], %1;" ::"l"(flag), "r"(x) : "memory");
}

__device__ __forceinline__ uint32_t load_flag(const uint32_t *flag) {
    uint32_t x;
    asm volatile("ld.acquire.sys.global.u32 %0, [%1];" : "=r"(x) : "l"(flag) : "memory");
    return x;
}

__device__ __forceinline__ uint64_t nanoseconds() {
    uint64_t t;
    asm volatile("mov.u64 %0, %globaltimer;" : "=l"(t));
    return t;
}

// Reads a part past L1 and as another GPU has written it.
__device__ __forceinline__ float4 load_part(const float4 *from) {
    float4 v;
    asm volatile("ld.relaxed.sys.global.v4.f32 {%0, %1, %2, %3}, [%4];"
                 : "=f"(v.x), "=f"(v.y), "=f"(v.z), "=f"(v.w)
                 : "l"(from)
                 : "memory");
    return v;
}
__device__ __forceinline__ float load_part(const float *from) {
    float v;
    asm volatile("ld.relaxed.sys.global.f32 %0, [%1];" : "=f"(v) : "l"(from) : "memory");
    return v;
}

// Waits until rank `peer` has begun this exchange. After a wait that is too long, notes the rank; the sums are then wrong, and
// the host reports the rank before it uses a result. From then on this rank tells the others nothing: none of them adds parts
// that follow from a wrong sum.
__device__ void wait_for(const sl_exchange &e, int peer, uint32_t number) {
    const uint32_t *flag = &(*e.flags[e.rank])[blockIdx.x][peer];
    uint64_t begin = 0;
    while (true) {
        for (int i = 0; i < LOOKS; i++)
            if ((int32_t)(load_flag(flag) - number) >= 0) return;
        if (e.fault->missing) return;
        const uint64_t now = nanoseconds();
        if (!begin) begin = now;
        if (now - begin <= e.limit_ms * 1000000ull) continue;
        e.fault->missing = peer + 1;
        *(volatile uint32_t *)(e.state + 2) = 1;
        __threadfence_system();
        return;
    }
}

// All threads call it after sl_wait_previous. Thread i tells rank i that this rank's part is in its slot, and waits for rank
// i's. The release orders all writes of the previous kernels, which the wait for them has made visible to this thread, before
// the flag. The acquire and the barrier order the reads of all threads after it.
__device__ __forceinline__ void meet(const sl_exchange &e) {
    const int peer = threadIdx.x;
    if (e.has_all) return;
    const volatile uint32_t *state = e.state;
    if (peer < e.n && peer != e.rank && !state[2]) {
        const uint32_t number = state[0] + 1;
        store_flag(&(*e.flags[peer])[blockIdx.x][e.rank], number);
        wait_for(e, peer, number);
    }
    __syncthreads();
}

// All threads call it at the end. The last thread block counts the exchange; all blocks have read its number by then.
__device__ __forceinline__ void leave(const sl_exchange &e) {
    if (threadIdx.x || e.has_all) return;
    if (sl_add_ordered((int *)&e.state[1], 1) + 1 < (int)gridDim.x) return;
    e.state[1] = 0;
    e.state[0]++;
}

__device__ __forceinline__ float4 add(float4 a, float4 b) {
    return {a.x + b.x, a.y + b.y, a.z + b.z, a.w + b.w};
}

// The sum of squares of a tile of SL_NORM_TILE numbers, 4 of each of 4 neighbouring lanes, in the order of end_tile
// (linear_endings.cuh): number i and i + 8, then a tree over the eight sums. All lanes of a warp call it; lanes 0 and 1 of 4
// get the sum.
__device__ __forceinline__ float tile_squares(const float4 &x) {
    const float4 hi = {__shfl_down_sync(~0u, x.x, 2), __shfl_down_sync(~0u, x.y, 2), __shfl_down_sync(~0u, x.z, 2),
                       __shfl_down_sync(~0u, x.w, 2)};
    const float s0 = __fmaf_rn(x.x, x.x, __fmul_rn(hi.x, hi.x)), s1 = __fmaf_rn(x.y, x.y, __fmul_rn(hi.y, hi.y));
    const float s2 = __fmaf_rn(x.z, x.z, __fmul_rn(hi.z, hi.z)), s3 = __fmaf_rn(x.w, x.w, __fmul_rn(hi.w, hi.w));
    const float half = (s0 + s1) + (s2 + s3);
    return half + __shfl_xor_sync(~0u, half, 1);
}

// Grid: up to SL_EXCHANGE_BLOCKS blocks. Thread i of all has the numbers 4 i to 4 i + 3, and those a grid further on.
// Bytes: 4 N n_rows n_cols of parts, of which (N - 1) / N come from other GPUs; 8 of x, and 2 of out16 (n_rows n_cols each).
// Reduction order: the parts as a binary tree in the order of ranks; then x + this sum.
template <int N> __global__ void __launch_bounds__(THREADS, 8) rank_sum_kernel(const __grid_constant__ sl_cuda_rank_sum p) {
    sl_start_next();
    sl_wait_previous();
    meet(p.exchange);
    const int cols = p.n_cols / 4, n = p.n_rows * cols, lane = threadIdx.x % 32;
    for (int first = blockIdx.x * THREADS + threadIdx.x - lane; first < n; first += gridDim.x * THREADS) {
        const int i = first + lane; // the lanes of a tile exist, or none of them
        const bool exists = i < n;
        float4 part[N], x = {0, 0, 0, 0};
        float4 *const to = (float4 *)p.x + (p.x_stride == p.n_cols ? i : (size_t)(i / cols) * (p.x_stride / 4) + i % cols);
#pragma unroll
        for (int r = 0; r < N; r++) part[r] = exists ? load_part((const float4 *)p.exchange.parts[r] + i) : x;
        if (exists) x = __ldcg(to);
#pragma unroll
        for (int step = 1; step < N; step *= 2)
#pragma unroll
            for (int r = 0; r < N; r += 2 * step) part[r] = add(part[r], part[r + step]);
        x = add(x, part[0]);
        if (exists) *to = x;
        if (!p.next_w) continue;
        const float squares = tile_squares(x);
        if (!exists) continue;
        const uint2 w = *((const uint2 *)p.next_w + i % cols);
        ((uint2 *)p.out16)[i] = {sl_pack_bf16(x.x * sl_widen((bf16)w.x), x.y * sl_widen((bf16)(w.x >> 16))),
                                 sl_pack_bf16(x.z * sl_widen((bf16)w.y), x.w * sl_widen((bf16)(w.y >> 16)))};
        if (i % 4 == 0) p.next_sums[i / 4] = squares;
    }
    leave(p.exchange);
}

// Grid: as above; a thread has one number at a time.
__global__ void __launch_bounds__(THREADS, 8) rank_gather_kernel(const __grid_constant__ sl_cuda_rank_gather p) {
    sl_start_next();
    sl_wait_previous();
    meet(p.exchange);
    const int all = p.exchange.n * p.n_cols;
    const size_t n = (size_t)p.n_rows * all;
    for (size_t i = blockIdx.x * THREADS + threadIdx.x; i < n; i += gridDim.x * THREADS) {
        const size_t row = i / all;
        const int col = (int)(i - row * all), rank = col / p.n_cols;
        p.out[i] = load_part(p.exchange.parts[rank] + row * p.n_cols + (col - rank * p.n_cols));
    }
    leave(p.exchange);
}

__global__ void __launch_bounds__(THREADS, 8) rank_copy_kernel(const float *from, size_t n, float *to) {
    sl_start_next();
    sl_wait_previous();
    for (size_t i = blockIdx.x * THREADS + threadIdx.x; i < n; i += gridDim.x * THREADS) to[i] = __ldcg(from + i);
}

dim3 grid_for(size_t n_threads) {
    const size_t blocks = (n_threads + THREADS - 1) / THREADS;
    return dim3(blocks < 1 ? 1 : blocks < SL_EXCHANGE_BLOCKS ? (unsigned)blocks : (unsigned)SL_EXCHANGE_BLOCKS);
}

} // namespace

extern "C" void sl_cuda_rank_sum_launch(const sl_cuda_rank_sum *args, cudaStream_t stream) {
    const sl_cuda_rank_sum &p = *args;
    const int n = p.exchange.n;
    SL_CHECK(n == 2 || n == 4 || n == 8 || (n == 1 && p.exchange.has_all));
    SL_CHECK(p.n_cols % (p.next_w ? (int)SL_NORM_MULTIPLE : 4) == 0 && p.x_stride % 4 == 0);
    SL_CHECK((size_t)p.n_rows * p.n_cols * sizeof(float) <= SL_EXCHANGE_SLOT);
    sl_launch(n == 1   ? rank_sum_kernel<1>
              : n == 2 ? rank_sum_kernel<2>
              : n == 4 ? rank_sum_kernel<4>
                       : rank_sum_kernel<8>,
              grid_for((size_t)p.n_rows * p.n_cols / 4), dim3(THREADS), 0, stream, p);
}

extern "C" void sl_cuda_rank_gather_launch(const sl_cuda_rank_gather *args, cudaStream_t stream) {
    const sl_cuda_rank_gather &p = *args;
    SL_CHECK((size_t)p.n_rows * p.n_cols * sizeof(float) <= SL_EXCHANGE_SLOT);
    sl_launch(rank_gather_kernel, grid_for((size_t)p.n_rows * p.exchange.n * p.n_cols), dim3(THREADS), 0, stream, p);
}

extern "C" void sl_cuda_rank_copy(const float *from, size_t n, float *to, cudaStream_t stream) {
    sl_launch(rank_copy_kernel, grid_for(n), dim3(THREADS), 0, stream, from, n, to);
}
