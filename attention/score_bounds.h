// attention/score_bounds.h - page bounds (Quest) as stored weights, on CUDA: for each 16 consecutive rows the largest score
// that their channels' bounds allow (propose_bounds.c), kept as score_keys.h keeps exact ones.
#ifndef SLEIGH_SCORE_BOUNDS_H
#define SLEIGH_SCORE_BOUNDS_H

#include "attention/score_keys.h"

namespace {

enum {
    UNIT = 16, // rows that share bounds
    PAGE_UNITS = SL_PAGE / UNIT,
    BOUND_WARPS = 8,
};

struct bounds_params {
    score_params score; // of units
    const char *bounds; // [n_pages][n_kv_heads][16][2][head_dim] bf16: least, largest. Of full pages
    size_t size;        // bytes of a page and KV head
};

// The workspace of score_keys.h for units: stored weights behind the counters, which are not used.
template <int DIM> static bounds_params bounds_params_of(const sl_attn_cuda_decode_args *a) {
    sl_attn_cuda_decode_args units = *a;
    units.max_kv = ceil_div(a->max_kv, UNIT);
    return {score_params_of<DIM>(&units), (const char *)a->extra[0], a->extra_size[0]};
}

// Channel bounds of 16 rows, of which n_rows are there; a warp. out: [2][DIM]
template <int DIM> __device__ void find_bounds(const bf16 *k, int n_rows, bf16 *out) {
    int lane = threadIdx.x % 32;
    if (lane >= DIM / 4) return;
    uint2 x[UNIT];
#pragma unroll
    for (int j = 0; j < UNIT; j++) x[j] = *((const uint2 *)(k + (size_t)min(j, n_rows - 1) * DIM) + lane);
    __nv_bfloat162 low[2], high[2];
    memcpy(low, x, sizeof low), memcpy(high, x, sizeof high);
#pragma unroll
    for (int j = 1; j < UNIT; j++) {
        __nv_bfloat162 y[2];
        memcpy(y, x + j, sizeof y);
        for (int i = 0; i < 2; i++) low[i] = __hmin2(low[i], y[i]), high[i] = __hmax2(high[i], y[i]);
    }
    memcpy(out + 4 * lane, low, sizeof low), memcpy(out + DIM + 4 * lane, high, sizeof high);
}

// s_u = scale sum_c max(q_c low_c, q_c high_c) = scale [min(q, 0), max(q, 0)] . [low, high]: a product like that of keys of
// twice the dimension.
//
// grid: (blocks of 8 x 32 units, the newest first; sequences x KV heads), a warp 32 units (two pages). The bounds of the newest
// page, which is not full or was filled in this step, are found here.
// bytes: the bounds, a sixteenth of K and V.
template <int DIM> __global__ void __launch_bounds__(32 * BOUND_WARPS) score_bounds_kernel(const bounds_params p) {
    enum { ROW = layout<2 * DIM>::ROW };
    __shared__ __align__(16) bf16 q[GROUP_MAX][2 * DIM], newest[PAGE_UNITS][2 * DIM];
    sl_start_next();
    int slot = blockIdx.y, kv_head = slot % p.score.n_kv_heads, warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    const sl_row &row = p.score.rows[slot / p.score.n_kv_heads];
    int n_kv = row.position + 1, n_units = ceil_div(n_kv, UNIT), last_page = (n_kv - 1) / SL_PAGE;
    int first = (gridDim.x - 1 - blockIdx.x) * BOUND_WARPS, n_blocks = ceil_div(n_units, BLOCK);
    if (first >= n_blocks) return;
    sl_wait_previous();
    const bf16 *from = p.score.q + (size_t)slot * p.score.group * DIM;
    for (int i = threadIdx.x; i < p.score.group * DIM; i += 32 * BOUND_WARPS) {
        bool negative = from[i] >> 15;
        q[i / DIM][i % DIM] = negative ? from[i] : 0, q[i / DIM][DIM + i % DIM] = negative ? 0 : from[i];
    }
    if (last_page / 2 - first < BOUND_WARPS) {
        const bf16 *k = p.score.k + ((size_t)row.pages[last_page] * p.score.n_kv_heads + kv_head) * SL_PAGE * DIM;
        for (int u = warp; u < PAGE_UNITS && last_page * SL_PAGE + u * UNIT < n_kv; u += BOUND_WARPS)
            find_bounds<DIM>(k + u * UNIT * DIM, n_kv - last_page * SL_PAGE - u * UNIT, newest[u]);
    }
    __syncthreads();
    int block = first + warp, page = 2 * block + lane / 16; // of the rows that this lane reads (scorer)
    if (block >= n_blocks) return;
    const char *bounds =
        page < last_page ? p.bounds + ((size_t)row.pages[page] * p.score.n_kv_heads + kv_head) * p.size : (const char *)newest;
    scorer<2 * DIM> a;
    float s[8];
    a.begin((const char *)q, p.score.group);
    a.scores(bounds - lane / 16 * PAGE_UNITS * ROW, s);
    tile_info info = {.slot = slot, .row = block * BLOCK, .n_kv = n_units, .first = 1, .last = 1};
    store_block(p.score, info, block * BLOCK, s);
}

template <int DIM> static void launch_bounds(const bounds_params &p, cudaStream_t stream) {
    dim3 grid(ceil_div(p.score.max_blocks, BOUND_WARPS), p.score.n_seqs * p.score.n_kv_heads);
    sl_launch(score_bounds_kernel<DIM>, grid, dim3(32 * BOUND_WARPS), 0, stream, p);
}

} // namespace

#endif
