// tests/support/take_known_probe.cu - see take_known_probe.h.
#include "tests/support/take_known_probe.h"
#include "attention/cuda/santa/take_known.cuh"

#ifdef SL_LONG_CONTEXT
#define take_known_on_gpu take_known_on_gpu_long
#endif

namespace {

struct probe_shared {
    take_space take;
    known_rows rows;
    uint64_t mass[TAKE_WARPS];
    int top[TAKE_WARPS];
};

__global__ void take_known_kernel(const take_known_problem *problems) {
    extern __shared__ __align__(128) char memory[];
    probe_shared *s = (probe_shared *)memory;
    const take_known_problem p = problems[blockIdx.x];
    int thread = threadIdx.x, n = 0;
    if (thread == 0) place_listed(&s->rows, p.listed, 0);
    take_all_prepare(&s->take, memory + (sizeof *s + 15) / 16 * 16, p.mass, p.w, BLOCK, p.n, p.alpha,
                     {.blocks = (block_mark *)p.marks, .sizes = NULL, .most = 0, .result = NULL, .ready = NULL, .role = MARKS},
                     p.id, thread);
    __syncthreads();
    known_blocks(&s->take, &s->rows, p.kappa, {p.mass, s->take.sizes.n_blocks, s->mass, s->top}, thread);
    list_heavy(&s->take, &s->rows, 0, listed_blocks(&s->rows), thread);
    __syncthreads();
    known_split split = split_known(&s->take, &s->rows);
    auto add = [&](const drawn_row &x, uint32_t) {
        if (n + thread < p.most) p.row[n + thread] = x.row, p.inv_pi[n + thread] = inverse_pi(&s->take, x);
        n += TAKE_THREADS;
    };
    if (split.is_listed) {
        take_rows<false>(&s->take, &s->rows, split, p.shared, p.id, thread, add);
    } else {
        __syncthreads();
        mark_known(&s->take, &s->rows, thread);
        take_rows<true>(&s->take, &s->rows, split, p.shared, p.id, thread, add);
    }
    if (thread == 0) *p.result = {s->rows.kappa, split.light, split.n_heavy, split.is_listed, n};
}

} // namespace

void take_known_on_gpu(const take_known_problem *problems, int n) {
    int bytes = (sizeof(probe_shared) + 15) / 16 * 16 + take_all_memory(ROWS_MAX / BLOCK);
    cudaFuncSetAttribute(take_known_kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes);
    take_known_kernel<<<n, TAKE_THREADS, bytes>>>(problems);
}
