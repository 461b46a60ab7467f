// attention/cuda/lists/attend_tiles.cuh - attention over listed rows of bf16 with matrix instructions, on CUDA: attend_rows.cuh
// with another attender of a warp, for lists of hundreds of rows (vattention.cu). The lists, chunks and results are the same.
//
// A warp has 16 rows at a time. It copies them to its tile in shared memory, K and then V of a row side by side, so the memory
// gets requests of whole rows. While the copies travel, the warp finds its next 16 rows. ldmatrix then loads the operands:
//   s [16 rows][8]  += K [16 rows][16 channels] Q [16 channels][8]      once for 16 channels; the 8 columns are the same query
//   n [16 rows][16] += V [16 rows][16 channels] V^T                     MOMENTS: |v|^2 is the diagonal
//   o [16 channels][8] += V^T [16 channels][16 rows] P [16 rows][8]     once for 16 channels
// With g = lane / 4 and t = lane % 4, a lane holds the scores of rows g and g + 8. A mass is the sum of two bf16 numbers, in
// columns 0 and 1 of P: one bf16 number would lose up to 2^-9 of a row.
//
// Measured (H200, 1 December 2026, vattention's lists 0 and 1 at 6 x 32k, MOMENTS): a warp has 730 instructions for 16 rows
// with the merges, and the kernel takes 106 us. With the attender of attend_rows.cuh they are 1,100 instructions and 123 us.
#ifndef SLEIGH_ATTEND_TILES_CUH
#define SLEIGH_ATTEND_TILES_CUH

#include "attention/cuda/lists/attend_rows.cuh"
#include "attention/cuda/mma_tiles.cuh"

namespace {

// The 16 rows of a warp in shared memory.
template <int DIM> struct row_tile {
    bf16 rows[BATCH_ROWS][tile_stride<2 * DIM>]; // K, then V

    // Starts the copies. at: the lane's marked pool row (offloaded_rows.cuh), as attender.add has it; -1: zeros.
    __device__ __forceinline__ void fetch(const attend_params &p, int at) {
        enum { PIECES = DIM / 8 };                       // of 16 bytes in a row of K
        uint64_t policy = sl_l2_policy(SL_L2_FIRST_OUT); // draw_rows.cuh, gather: why these rows leave the L2 cache first
#pragma unroll
        for (int j = 0; j < BATCH_ROWS * 2 * PIECES / 32; j++) {
            int i = 32 * j + threadIdx.x % 32, row = i / (2 * PIECES), piece = i % (2 * PIECES);
            int own = __shfl_sync(~0u, at, row * (32 / BATCH_ROWS)), pool = max(own, 0);
            if (IS_OFFLOADED) {
                const bf16 *from = piece < PIECES ? k_of_row<DIM>(p.k, p.host, pool) : v_of_row<DIM>(p.v, p.host, pool) - DIM;
                copy_async(rows[row] + 8 * piece, from + 8 * piece, own >= 0);
            } else { // one address of a lane, in K or in V
                const bf16 *from = (piece < PIECES ? p.k : p.v - DIM) + 8 * piece;
                copy_async(rows[row] + 8 * piece, from + (size_t)pool * DIM, own >= 0, policy);
            }
        }
        count_fetched(p.stats, at, 32 / BATCH_ROWS);
    }
};

template <int DIM, bool MOMENTS> struct tile_attender {
    enum { STEPS = DIM / 16, OF_ROWS = 1 };
    row_tile<DIM> *tile;
    uint32_t q[STEPS][2]; // channels 16 i + 8 j + 2 t and the next one
    float o[STEPS][4]; // channels 16 i + g and, from 2 on, 16 i + g + 8; t = 0: sums of the upper and the lower parts of masses
    float m, l;        // l: of the rows that the lane owns
    double sums[MOMENT_SUMS];

    __device__ void begin(const bf16 *q_row) {
#pragma unroll
        for (int i = 0; i < STEPS; i++) {
#pragma unroll
            for (int j = 0; j < 2; j++) q[i][j] = *(const uint32_t *)(q_row + 16 * i + 8 * j + 2 * (threadIdx.x % 4));
            o[i][0] = o[i][1] = o[i][2] = o[i][3] = 0;
        }
        m = -INFINITY, l = 0;
        for (int i = 0; i < MOMENT_SUMS; i++) sums[i] = 0;
    }

    __device__ __forceinline__ void fetch(const attend_params &p, int row) {
        __syncwarp(); // all lanes have read the rows before
        tile->fetch(p, row);
    }

    // |v|^2 of rows g and g + 8, for the lane with t = g / 2.
    __device__ __forceinline__ void find_squares(float square[2]) const {
        int lane = threadIdx.x % 32, odd = lane / 4 % 2;
        const bf16 *v = tile->rows[lane % 16] + DIM + lane / 16 * 8;
        float low[4] = {}, high[4] = {};
#pragma unroll
        for (int i = 0; i < STEPS; i++) {
            uint32_t a[4];
            load_matrices(a, v + 16 * i);
            mma(low, a, a[0], a[2]);
            mma(high, a, a[1], a[3]);
        }
        square[0] = odd ? low[1] : low[0], square[1] = odd ? high[3] : high[2];
    }

    // o += mass v. mass: of rows g and g + 8. An infinite v gives NaN, because the lower part of a mass may be 0 or negative.
    __device__ __forceinline__ void add_values(const float mass[2]) {
        int lane = threadIdx.x % 32;
        const bf16 *v = tile->rows[lane % 8 + lane / 16 * 8] + DIM + lane / 8 % 2 * 8;
        uint32_t parts[2];
#pragma unroll
        for (int i = 0; i < 2; i++) {
            float upper = __bfloat162float(__float2bfloat16_rn(mass[i]));
            parts[i] = sl_transpose_b16(lane % 4 == 0 ? sl_pack_bf16(upper, mass[i] - upper) : 0);
        }
#pragma unroll
        for (int i = 0; i < STEPS; i++) {
            uint32_t a[4];
            load_matrices_transposed(a, v + 16 * i);
            mma(o[i], a, parts[0], parts[1]);
        }
    }

    // Raises the reference m to `most`, and rescales the sums. Both are equal in all lanes.
    __device__ __forceinline__ void raise(float most) {
        float factor = most == -INFINITY ? 0 : exp2f(m - most);
        m = most;
        if (factor == 1) return;
        l *= factor;
#pragma unroll
        for (int i = 0; i < STEPS; i++) o[i][0] *= factor, o[i][1] *= factor, o[i][2] *= factor, o[i][3] *= factor;
        if (MOMENTS) scale_moments(sums, factor);
    }

    // Adds the rows of the tile. row: the lane's pool row, or -1.
    __device__ __forceinline__ void add(const attend_params &p, int row, float) {
        int lane = threadIdx.x % 32, g = lane / 4;
        bool owns = lane % 4 == g / 2; // rows g and g + 8
        const bf16 *k = tile->rows[lane % 16] + lane / 16 * 8;
        float s[4] = {}, score[2], mass[2], square[2];
        copies_landed();
        __syncwarp();
#pragma unroll
        for (int i = 0; i < STEPS; i++) {
            uint32_t a[4];
            load_matrices(a, k + 16 * i);
            mma(s, a, q[i][0], q[i][1]);
        }
#pragma unroll
        for (int i = 0; i < 2; i++)
            score[i] = __shfl_sync(~0u, row, (g + 8 * i) * (32 / BATCH_ROWS)) >= 0 ? s[2 * i] * p.scale : -INFINITY;
        float most = fmaxf(score[0], score[1]);
#pragma unroll
        for (int step = 4; step < 32; step *= 2) most = fmaxf(most, __shfl_xor_sync(~0u, most, step));
        raise(fmaxf(m, most));
#pragma unroll
        for (int i = 0; i < 2; i++) mass[i] = score[i] == -INFINITY ? 0 : exp2f(score[i] - m);
        if (owns) l += mass[0] + mass[1];
        if (MOMENTS) {
            find_squares(square);
#pragma unroll
            for (int i = 0; owns && i < 2; i++) {
                double x = mass[i], xx = x * x, of_v = xx * square[i]; // |mass v|^2
                sums[0] += x, sums[1] += xx, sums[2] += of_v, sums[3] += xx * x, sums[4] += xx * xx, sums[5] += of_v * of_v;
            }
        }
        add_values(mass);
    }
};

// Stores the sums of a warp for the merge: store_warp of attend_rows.cuh, for this attender.
template <int DIM, bool MOMENTS> __device__ void store_warp(const tile_attender<DIM, MOMENTS> &a, attend_space<DIM> *s) {
    int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    float l = sl_sum_lanes(a.l);
    if (lane == 0) s->ml[warp] = make_float2(a.m, l);
#pragma unroll
    for (int i = 0; i < a.STEPS; i++) {
        if (lane % 4 > 0) continue;
        s->o[warp][16 * i + lane / 4] = a.o[i][0] + a.o[i][1], s->o[warp][16 * i + lane / 4 + 8] = a.o[i][2] + a.o[i][3];
    }
    if constexpr (MOMENTS) {
#pragma unroll
        for (int i = 0; i < MOMENT_SUMS; i++) {
            double sum = sum_lanes(a.sums[i]);
            if (lane == 0) s->moments[warp][i] = sum;
        }
    }
}

// attend_rows_kernel with SCORES, for rows of bf16: the same formula, grid and lists.
//
// Shared memory: a tile for each warp.
// Bytes: K and V of the listed rows once for each list and head.
// Reduction order: a warp adds its batches of 16 rows in order. Within a batch a matrix instruction adds the rows, and the
// warps of a thread block and the chunks of a list are merged in order. The order depends on the list only.
template <int DIM, bool MOMENTS>
__global__ void __launch_bounds__(ATTEND_THREADS, 2) attend_tiles_kernel(const attend_params p) {
    extern __shared__ __align__(16) char tiles[];
    __shared__ __align__(16) attend_space<DIM> s;
    sl_start_next();
    sl_wait_previous();
    tile_attender<DIM, MOMENTS> a;
    a.tile = (row_tile<DIM> *)tiles + threadIdx.x / 32;
    attend_lists<DIM, true, MOMENTS, SL_BF16>(p, s, a);
}

// launch_attend with SCORES. blocks_per_sm: most thread blocks for each multiprocessor.
template <int DIM, bool MOMENTS>
static void launch_attend_tiles(attend_params p, int n_heads, int n_lists, int blocks_per_sm, cudaStream_t stream) {
    p.n_workers = attend_workers(p, n_heads * n_lists, blocks_per_sm);
    sl_launch(attend_tiles_kernel<DIM, MOMENTS>, dim3(p.n_workers + (p.out && p.stats), n_heads, n_lists), dim3(ATTEND_THREADS),
              ATTEND_WARPS * sizeof(row_tile<DIM>), stream, p);
}

} // namespace

#endif
