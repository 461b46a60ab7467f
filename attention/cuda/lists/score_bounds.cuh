// attention/cuda/lists/score_bounds.cuh - page bounds (Quest) stored as masses, on CUDA. The score of a unit of 16 rows is the
// largest score that the channel bounds of the unit allow (propose_bounds.c). The format is that of score_keys.cuh, with units
// in place of rows.
#ifndef SLEIGH_SCORE_BOUNDS_CUH
#define SLEIGH_SCORE_BOUNDS_CUH

#include "attention/cuda/score_keys.cuh"

namespace {

enum {
    UNIT = 16, // rows that share bounds
    PAGE_UNITS = SL_PAGE / UNIT,
    BOUND_WARPS = 4,                  // warps that score
    BOUND_THREADS = 64 * BOUND_WARPS, // the other warps only help to find the newest page's bounds
};

struct bounds_params {
    score_params score; // scores of units in place of rows
    const char *bounds; // [n_pages][n_kv_heads][16][2][head_dim] bf16: smallest and largest element; only full pages have them
    size_t size;        // bytes of the bounds of a page and KV head
};

// The parameters of score_keys.cuh for units in place of rows. The counters are not used.
template <int DIM> static bounds_params bounds_params_of(const sl_attn_cuda_decode_args *a) {
    sl_attn_cuda_decode_args units = *a;
    units.max_kv = ceil_div(a->max_kv, UNIT);
    return {score_params_of<DIM>(&units), (const char *)a->extra[0], a->extra_size[0]};
}

// Finds the channel bounds of a unit. Only the first n_rows of its 16 rows exist. One warp calls the function. A NaN in a
// channel makes its bounds NaN. Zeros have no sign, as on the CPU. out: [2][DIM].
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
        for (int i = 0; i < 2; i++) low[i] = __hmin2_nan(low[i], y[i]), high[i] = __hmax2_nan(high[i], y[i]);
    }
    uint32_t bits[4];
    memcpy(bits, low, sizeof low), memcpy(bits + 2, high, sizeof high);
    for (int i = 0; i < 4; i++) bits[i] &= ~__vcmpeq2(bits[i], 0x80008000u); // -0 becomes 0
    memcpy(out + 4 * lane, bits, sizeof low), memcpy(out + DIM + 4 * lane, bits + 2, sizeof high);
}

// The largest bf16 that is not above x. A NaN stays a NaN.
__device__ __forceinline__ bf16 bf16_below(float x) {
    return __bfloat16_as_ushort(__float2bfloat16_rd(x));
}

// find_bounds for rows of bytes, whose numbers lie between bf16 numbers: the bounds are rounded outwards (propose_bounds.c).
template <int DIM>
__device__ void find_bounds_of_bytes(const char *k, const float *scales, bool is_fp8, int n_rows, bf16 *out) {
    int lane = threadIdx.x % 32;
    if (lane >= DIM / 4) return;
    uint32_t x[UNIT];
    float scale[UNIT], low[4], high[4];
#pragma unroll
    for (int j = 0; j < UNIT; j++) {
        int row = min(j, n_rows - 1);
        x[j] = *((const uint32_t *)(k + row * DIM) + lane), scale[j] = scales[row];
    }
#pragma unroll
    for (int j = 0; j < UNIT; j++) {
        float y[4];
        widen4(x[j], y, is_fp8);
#pragma unroll
        for (int i = 0; i < 4; i++) {
            y[i] = __fmul_rn(y[i], scale[j]) + 0.0f; // -0 becomes 0, as on the CPU
            low[i] = j ? -sl_max_nan(-low[i], -y[i]) : y[i], high[i] = j ? sl_max_nan(high[i], y[i]) : y[i];
        }
    }
#pragma unroll
    for (int i = 0; i < 4; i++) out[4 * lane + i] = bf16_below(low[i]), out[DIM + 4 * lane + i] = bf16_below(-high[i]) ^ 0x8000;
}

// Shared memory of a warp: the bounds of two pages.
template <int DIM> struct bounds_stage { bf16 page[2][PAGE_UNITS][2 * DIM]; };

// Copies the bounds of a warp's pages [first, end), at most two, to shared memory. before: only prefetches the bounds to the L2
// cache.
template <int DIM>
__device__ void load_bounds(const bounds_params &p, const int32_t *pages, int kv_head, int first, int end, bool before,
                            bounds_stage<DIM> *to, uint64_t *full) {
    enum { BYTES = sizeof(to->page[0]) };
#if __CUDA_ARCH__ >= 900
    if (threadIdx.x % 32 > 0) return;
    if (!before) barrier_expect(full, max(end - first, 0) * BYTES);
#else
    if (before) return;
#endif
    for (int page = first; page < end; page++) {
        const char *from = p.bounds + ((size_t)pages[page] * p.score.n_kv_heads + kv_head) * p.size;
#if __CUDA_ARCH__ >= 900
        if (before)
            asm volatile("cp.async.bulk.prefetch.L2.global [%0], %1;" ::"l"(from), "r"((int)BYTES) : "memory");
        else
            copy_bulk(shared_address(to->page[page - first]), from, BYTES, full);
#else
        copy_warp(shared_address(to->page[page - first]), from, BYTES);
#endif
    }
}

__device__ void wait_bounds(uint64_t *full) {
#if __CUDA_ARCH__ >= 900
    barrier_wait(full, 0);
#else
    asm volatile("cp.async.wait_all;" ::: "memory");
    __syncwarp();
#endif
}

// s_u = scale sum_c max(q_c low_c, q_c high_c) = scale [min(q, 0), max(q, 0)] . [low, high]: a product with keys of twice the
// dimension.
//
// Grid: (thread blocks of 4 x 32 units, the newest first; sequences x KV heads). A warp has 32 units (two pages). The newest
// page has no page extra, so the kernel finds its bounds.
// Bytes: the bounds, a sixteenth of K and V. All loads are in flight together.
template <int DIM> __global__ void __launch_bounds__(BOUND_THREADS) score_bounds_kernel(const bounds_params p) {
    extern __shared__ __align__(128) char bounds_memory[];
    __shared__ __align__(16) bf16 q[GROUP_MAX][2 * DIM];
    __shared__ uint64_t full[BOUND_THREADS / 32];
    int seq_head = blockIdx.y, kv_head = seq_head % p.score.n_kv_heads, warp = threadIdx.x / 32;
    barriers_make<BOUND_THREADS / 32, BOUND_THREADS / 32>(full, 1);
    barriers_made();
    __syncthreads();
    sl_start_next();
    bounds_stage<DIM> *stages = (bounds_stage<DIM> *)bounds_memory;
    const sl_row &row = p.score.rows[seq_head / p.score.n_kv_heads];
    int n_kv = row.position + 1, n_units = ceil_div(n_kv, UNIT), newest = (n_kv - 1) / SL_PAGE;
    int first = (gridDim.x - 1 - blockIdx.x) * BOUND_WARPS, n_blocks = ceil_div(n_units, BLOCK);
    if (first >= n_blocks) return;
    int block = warp < BOUND_WARPS ? first + warp : n_blocks; // block of 32 units of this warp; n_blocks: none
    load_bounds<DIM>(p, row.pages, kv_head, 2 * block, min(2 * block + 2, newest), true, stages + warp, full + warp);
    sl_wait_previous();
    load_bounds<DIM>(p, row.pages, kv_head, 2 * block, min(2 * block + 2, newest), false, stages + warp, full + warp);
    const bf16 *from = p.score.q + (size_t)seq_head * p.score.group * DIM;
    for (int i = threadIdx.x; i < p.score.group * DIM; i += BOUND_THREADS) {
        bool negative = from[i] >> 15;
        q[i / DIM][i % DIM] = negative ? from[i] : 0, q[i / DIM][DIM + i % DIM] = negative ? 0 : from[i];
    }
    if (newest / 2 < first + BOUND_WARPS) {
        size_t page = (size_t)row.pages[newest] * p.score.n_kv_heads + kv_head;
        for (int u = warp; u < PAGE_UNITS && newest * SL_PAGE + u * UNIT < n_kv; u += BOUND_THREADS / 32) {
            const char *k = row_of_block<DIM>(p.score.k, page, u * UNIT);
            int n_rows = n_kv - newest * SL_PAGE - u * UNIT;
            bf16 *to = stages[newest / 2 - first].page[newest % 2][u];
            if (IS_BYTES)
                find_bounds_of_bytes<DIM>(k, scale_of_block<DIM>(p.score.k, page, u * UNIT), p.score.is_fp8, n_rows, to);
            else
                find_bounds<DIM>((const bf16 *)k, n_rows, to);
        }
    }
    __syncthreads();
    if (block >= n_blocks) return;
    scorer<2 * DIM> a;
    float s[8];
    a.begin((const char *)q, p.score.group);
    wait_bounds(full + warp);
    a.scores((const char *)(stages + warp), s); // scores of units that do not exist become -inf below
#pragma unroll
    for (int i = 0; i < 8; i++) s[i] = block * BLOCK + row_of_part(i / 2) < n_units ? s[i] * p.score.scale : -INFINITY;
    store_block(p.score, seq_head, block * BLOCK, to_masses(s));
}

template <int DIM> static void launch_bounds(const bounds_params &p, cudaStream_t stream) {
    dim3 grid(ceil_div(p.score.max_blocks, BOUND_WARPS), p.score.n_seqs * p.score.n_kv_heads);
    sl_launch(score_bounds_kernel<DIM>, grid, dim3(BOUND_THREADS), BOUND_WARPS * sizeof(bounds_stage<DIM>), stream, p);
}

} // namespace

#endif
