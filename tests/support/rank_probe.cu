// tests/support/rank_probe.cu - see rank_probe.h.
#include "backend/cuda/device.cuh"
#include "tests/support/rank_probe.h"

enum { BLOCKS = 16, THREADS = 256 };

static __device__ uint64_t nanoseconds() {
    uint64_t t;
    asm volatile("mov.u64 %0, %globaltimer;" : "=l"(t));
    return t;
}

static __global__ void fill_kernel(uint32_t call, int rank, int n, uint32_t delay_ns, float *part, float *x) {
    sl_wait_previous();
    for (const uint64_t begin = nanoseconds(); nanoseconds() - begin < delay_ns;) continue;
    for (int i = blockIdx.x * THREADS + threadIdx.x; i < n; i += BLOCKS * THREADS) {
        part[i] = probe_number(call, rank, i);
        if (x) x[i] = probe_number(call, PROBE_RESIDUAL, i);
    }
}

static __global__ void check_kernel(uint32_t call, int n_ranks, int n, const float *x, int *n_wrong) {
    sl_wait_previous();
    for (int i = blockIdx.x * THREADS + threadIdx.x; i < n; i += BLOCKS * THREADS)
        if (x[i] != probe_number(call, PROBE_RESIDUAL, i) + probe_tree(call, n_ranks, i)) atomicAdd(n_wrong, 1);
}

void probe_fill(uint32_t call, int rank, int n, uint32_t delay_ns, float *part, float *x, cudaStream_t stream) {
    sl_launch(fill_kernel, dim3(BLOCKS), dim3(THREADS), 0, stream, call, rank, n, delay_ns, part, x);
}

void probe_check(uint32_t call, int n_ranks, int n, const float *x, int *n_wrong, cudaStream_t stream) {
    sl_launch(check_kernel, dim3(BLOCKS), dim3(THREADS), 0, stream, call, n_ranks, n, x, n_wrong);
}
