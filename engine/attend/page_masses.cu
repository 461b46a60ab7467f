// engine/attend/page_masses.cu - the mass of each page in dense attention, and the scores of its rows. An observer counts tiles
// with the masses, and makes profiles from the scores.
#include "attention/cuda/stored_rows.cuh"
#include "backend/cuda/device.cuh"
#include "engine/attend/observe_cuda.h"

#include <math.h>

namespace {

enum { WARPS = SL_PAGE / 32 };

// The maximum of x over the thread block. warps: [WARPS] in shared memory.
__device__ float block_max(float x, float *warps) {
    x = sl_max_lanes(x);
    if (threadIdx.x % 32 == 0) warps[threadIdx.x / 32] = x;
    __syncthreads();
    for (int i = 0; i < WARPS; i++) x = fmaxf(x, warps[i]);
    __syncthreads();
    return x;
}

// The sum of x over the thread block, in a fixed order. warps: [WARPS] in shared memory.
__device__ float block_sum(float x, float *warps) {
    x = sl_sum_lanes(x);
    if (threadIdx.x % 32 == 0) warps[threadIdx.x / 32] = x;
    __syncthreads();
    x = 0;
    for (int i = 0; i < WARPS; i++) x += warps[i];
    __syncthreads();
    return x;
}

// masses[s][h][p] = max + log2 sum_j 2^{t_j - max}, t_j = q_sh . k_j * scale, scale = log2(e) / sqrt(head_dim). Thread block
// (p, g, s) handles page p of KV head g of sequence s, and thread j handles row j. The query heads of the group follow one
// after the other: the first head reads the keys of the page from memory, and the other heads read them from the L1 cache.
// Within a head, lanes add the terms, then warps. head_dim is a multiple of 8. The kernel is not tuned, because the time of an
// observed step is not measured.
template <sl_format F>
__global__ void __launch_bounds__(SL_PAGE)
    page_masses_kernel(const sl_row *__restrict__ rows, // [n_seqs]
                       const bf16 *__restrict__ q,      // [n_seqs][n_heads][head_dim]
                       const bf16 *__restrict__ k,      // [n_pages][n_kv_heads] blocks of 256 rows
                       int n_heads, int head_dim, float scale,
                       float *__restrict__ masses,   // [n_seqs][n_heads][max_pages]
                       float *__restrict__ scores) { // NULL, or [n_seqs][n_heads][max_pages][256]: t_j
    __shared__ float warps[WARPS];
    int page = blockIdx.x, kv_head = blockIdx.y, n_kv_heads = gridDim.y, s = blockIdx.z, group = n_heads / n_kv_heads;
    sl_start_next();
    sl_wait_previous();
    int n_rows = min(rows[s].position + 1 - page * SL_PAGE, (int)SL_PAGE);
    if (n_rows <= 0) return;
    const stored_block_of<F> keys(k, (size_t)rows[s].pages[page] * n_kv_heads + kv_head, head_dim);
    for (int i = 0; i < group; i++) {
        int head = kv_head * group + i;
        const uint4 *query = (const uint4 *)(q + ((size_t)s * n_heads + head) * head_dim);
        float t = 0;
        for (int c = 0; c < head_dim / 8 && (int)threadIdx.x < n_rows; c++) {
            float x[8], y[8];
            widen8(query[c], x);
            keys.numbers(threadIdx.x, 8 * c, y);
            for (int d = 0; d < 8; d++) t = fmaf(x[d], y[d], t);
        }
        t = (int)threadIdx.x < n_rows ? t * scale : -INFINITY;
        float most = block_max(t, warps), sum = block_sum(exp2f(t - most), warps);
        size_t at = ((size_t)s * n_heads + head) * gridDim.x + page;
        if (threadIdx.x == 0) masses[at] = most + log2f(sum);
        if (scores && (int)threadIdx.x < n_rows) scores[at * SL_PAGE + threadIdx.x] = t;
    }
}

template <sl_format F> void launch(const sl_attn_cuda_decode_args *a, int max_pages, float *masses, float *scores) {
    float scale = 1.44269504f / sqrtf((float)a->geom->head_dim);
    sl_launch(page_masses_kernel<F>, dim3(max_pages, a->geom->n_kv_heads, a->n_seqs), dim3(SL_PAGE), 0, a->stream, a->rows,
              a->q, a->k, a->geom->n_heads, a->geom->head_dim, scale, masses, scores);
}

} // namespace

void sl_cuda_page_masses(const sl_attn_cuda_decode_args *a, int max_pages, float *masses, float *scores) {
    SL_WITH_CACHE_FORMAT(a->format, launch, a, max_pages, masses, scores);
}
