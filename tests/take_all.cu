// tests/take_all.cu - see take_all.h.
#include "tests/take_all.h"
#include "attention/take_all.h"

namespace {

__global__ void take_all_kernel(const take_all_problem *problems) {
    __shared__ draw_space d;
    __shared__ take_space s;
    const take_all_problem p = problems[blockIdx.x];
    int thread = threadIdx.x, n = 0;
    size_view z = size_view_of(p.mass, p.w, BLOCK, p.n);
    z.alpha = p.alpha;
    take_all r = take_all_solve(&d, &s, &z, p.S, thread);
    take_all_draw(&d, &s, z, r, p.shared, p.id, 0, thread, [&](int row, float inv_pi, bool is_heavy) {
        p.row[n + thread] = row, p.inv_pi[n + thread] = is_heavy ? 1 : inv_pi;
        n += DRAW_THREADS;
    });
    if (thread > 0) return;
    p.result[0] = n, p.result[1] = r.n_heavy, p.result[2] = r.k, p.result[3] = r.listed;
    *p.light = r.light;
}

} // namespace

void take_all_on_gpu(const take_all_problem *problems, int n) {
    take_all_kernel<<<n, DRAW_THREADS>>>(problems);
}
