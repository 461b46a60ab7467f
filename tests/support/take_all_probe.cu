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
    const head_marks marks = {(block_mark *)p.marks,        p.sizes,           p.most,
                              (mark_result *)p.mark_result, p.ready + IS_LONG, blockIdx.y ? WAITS : MARKS};
    int thread = threadIdx.x, n_turns;
    take_all_prepare(s, memory + (sizeof *s + 15) / 16 * 16, p.mass, p.w, BLOCK, p.n, p.alpha, marks, p.id, thread);
    __syncthreads();
    take_all_begin(s, thread);
    take_all_solve(s, p.S, NULL, thread);
    if (blockIdx.y && !s->drawn.listed) { // a thread block that finds marks reads the same from them
        __syncthreads();
        if (thread == 0) s->marks.role = READY, s->drawn = {}, s->sizes.top = 0, s->sizes.each = s->sizes.total = 0;
        take_all_solve(s, p.S, NULL, thread);
    }
    n_turns = turns_of(s);
    for (int turn = blockIdx.y; turn < n_turns; turn += 2) {
        drawn_row x = row_of_turn(s, p.shared, p.id, 0, turn, thread);
        int at = turn * TAKE_THREADS + thread;
        p.row[at] = x.row, p.inv_pi[at] = inverse_pi(s, x);
    }
    if (thread > 0 || blockIdx.y) return;
    p.result[0] = n_turns * TAKE_THREADS, p.result[1] = s->drawn.n_heavy, p.result[2] = s->drawn.k,
    p.result[3] = s->drawn.listed;
    *p.light = s->drawn.light;
}

static_assert(sizeof(block_mark) == TAKE_ALL_MARK && sizeof(mark_result) <= TAKE_ALL_RESULT, "take_all_problem");

} // namespace

void take_all_on_gpu(const take_all_problem *problems, int n) {
    int bytes = (sizeof(take_space) + 15) / 16 * 16 + take_all_memory(ROWS_MAX / BLOCK);
    cudaFuncSetAttribute(take_all_kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes);
    take_all_kernel<<<dim3(n, 2), TAKE_THREADS, bytes>>>(problems);
}
