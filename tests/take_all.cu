// tests/take_all.cu - see take_all.h.
#include "tests/take_all.h"
#include "attention/take_all.h"

namespace {

__global__ void take_all_kernel(const take_all_problem *problems) {
    __shared__ draw_space d;
    __shared__ take_space s;
    const take_all_problem p = problems[blockIdx.x];
    int thread = threadIdx.x, n = 0;
    if (thread == 0) take_all_of(&s, p.mass, p.w, BLOCK, p.n, p.alpha);
    drawers_sync();
    take_all_solve(&d, &s, p.S, thread);
    take_all_draw(&d, &s, p.shared, p.id, 0, thread, [&](int row, float inv_pi, bool is_heavy) {
        p.row[n + thread] = row, p.inv_pi[n + thread] = is_heavy ? 1 : inv_pi;
        n += DRAW_THREADS;
    });
    if (thread > 0) return;
    p.result[0] = n, p.result[1] = s.drawn.n_heavy, p.result[2] = s.drawn.k, p.result[3] = s.drawn.listed;
    *p.light = s.drawn.light;
}

} // namespace

void take_all_on_gpu(const take_all_problem *problems, int n) {
    take_all_kernel<<<n, DRAW_THREADS>>>(problems);
}
