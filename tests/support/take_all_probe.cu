// tests/support/take_all_probe.cu - see take_all_probe.h.
#include "tests/support/take_all_probe.h"
#include "attention/cuda/santa/take_all.cuh"

#ifdef SL_LONG_CONTEXT
#define take_all_on_gpu take_all_on_gpu_long
#endif

namespace {

__global__ void take_all_kernel(const take_all_problem *problems) {
    extern __shared__ __align__(128) char memory[];
    take_space *s = (take_space *)memory;
    const take_all_problem p = problems[blockIdx.x];
    int thread = threadIdx.x, n = 0;
    take_all_prepare(s, memory + (sizeof *s + 15) / 16 * 16, p.mass, p.w, BLOCK, p.n, p.alpha, p.id, thread);
    __syncthreads();
    take_all_begin(s, thread);
    take_all_solve(s, p.S, NULL, thread);
    for (int turn = 0; turn < turns_of(s); turn++, n += TAKE_THREADS) {
        drawn_row x = row_of_turn(s, p.shared, p.id, 0, turn, thread);
        p.row[n + thread] = x.row, p.inv_pi[n + thread] = inverse_pi(s, x);
    }
    if (thread > 0) return;
    p.result[0] = n, p.result[1] = s->drawn.n_heavy, p.result[2] = s->drawn.k, p.result[3] = s->drawn.listed;
    *p.light = s->drawn.light;
}

} // namespace

void take_all_on_gpu(const take_all_problem *problems, int n) {
    int bytes = (sizeof(take_space) + 15) / 16 * 16 + take_all_memory(ROWS_MAX / BLOCK);
    cudaFuncSetAttribute(take_all_kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes);
    take_all_kernel<<<n, TAKE_THREADS, bytes>>>(problems);
}
