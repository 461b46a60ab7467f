// attention/cuda/row_sums.cuh - sums of attention probabilities over sampled rows, as integers: the kernels of what
// attention/prefill/row_sums.c computes on the CPU. No matrix of all scores is in memory. attention/prefill/row_sums.h defines
// rows, columns and strides, and integer_softmax.h defines shares. From the bf16 scores on, the integers are those of the CPU.
//
// A task is up to 128 rows of one head. A tile is 128 rows and 128 columns of a task. With stride 1 a tile has one key block.
// With stride S it has S query blocks and S key blocks.
//
// | kernel            | makes                                                                        |
// |-------------------|------------------------------------------------------------------------------|
// | row_masses_kernel | pass 1: ref and mass of each row and key block                               |
// | row_scales_kernel | from them top and factor of each row; clears what pass 2 adds to             |
// | row_shares_kernel | pass 2: shares, and their sums                                               |
//
// 8 warps: warp w has rows 32 (w % 4) .. + 31 and columns 64 (w / 4) .. + 63 of a tile.
#ifndef SLEIGH_ROW_SUMS_CUH
#define SLEIGH_ROW_SUMS_CUH

#include "attention/cpu_kernels.h"
#include "attention/cuda/dense_prefill.cuh"
#include "attention/cuda/mma_tiles.cuh"
#include "attention/prefill/integer_softmax.h"
#include "attention/prefill_mask.h"

enum { TASK_ROWS = 128, TASK_COLUMNS = 128, SUM_THREADS = 256, SCALE_GROUPS = 8 };

struct row_scale {
    int top;
    uint32_t factor;
};

struct row_sums_params {
    const bf16 *q;   // [n_tokens][q_stride]
    size_t q_stride; // elements from token to token
    const bf16 *k;   // [n_pages][n_kv_heads][256][head_dim]
    const int32_t *pages;
    int n_tokens, first;        // the segment
    int group, n_kv_heads;      // query heads of a KV head
    int first_head, n_heads;    // the heads of this launch
    int first_block, n_queries; // query blocks [first_block, first_block + n_queries) of the segment
    int n_chunks;               // tasks of a head
    int most_rows;              // of a task with stride 1: its last rows
    int n_blocks;               // key blocks of the sequence
    float scale;                // sl_score_scale / stride
    // Task t has head first_head + t % n_heads and chunk t / n_heads.
    uint64_t *mass;    // [task][n_blocks][128 rows]
    int16_t *ref;      // [task][n_blocks][128 rows]
    row_scale *scales; // [task][128]
    // 1: a score is NaN or too large. Stride 1: [task]. Else [n_heads][n_queries].
    int *bad;
    uint32_t *block;  // [task][n_blocks][128 rows] sum of the row's shares in a key block; stride 1
    uint32_t *column; // [task][n_kv] sum over rows; NULL: not wanted; stride 1
    uint32_t *slash;  // [task][n_kv] sum over rows at an offset; without `column` over 128 offsets, at the first; stride 1
    uint32_t *pair;   // [n_heads][n_queries][n_blocks] sum over the rows of a query block; stride > 1
};

// The rows of a task: those with the numbers row0 + begin .. row0 + end - 1. from, to: the query blocks that they stand for.
struct task_rows {
    int head, chunk, from, to, row0, begin, end;
};

static __device__ __forceinline__ task_rows rows_of_task(const row_sums_params &p, int task, int stride) {
    task_rows t;
    int n_kv = p.first + p.n_tokens;
    t.head = task % p.n_heads, t.chunk = task / p.n_heads;
    if (stride == 1) {
        t.from = p.first_block + (int)((long long)t.chunk * p.n_queries / p.n_chunks);
        t.to = p.first_block + (int)((long long)(t.chunk + 1) * p.n_queries / p.n_chunks);
        int last = min(t.to * SL_MASK_BLOCK, n_kv);
        t.row0 = max(max(t.from * SL_MASK_BLOCK, p.first), last - p.most_rows);
        t.begin = 0, t.end = last - t.row0;
    } else {
        t.from = p.first_block + t.chunk * stride, t.to = min(t.from + stride, p.first_block + p.n_queries);
        t.row0 = t.from * SL_MASK_BLOCK / stride;
        t.begin = max(t.from * SL_MASK_BLOCK, p.first) / stride - t.row0;
        t.end = (min(t.to * SL_MASK_BLOCK, n_kv) - 1) / stride - t.row0 + 1;
    }
    return t;
}

static __device__ __forceinline__ int key_blocks_of(const task_rows &t, int stride) { // up to that of the last row
    return (t.row0 + t.end - 1) * stride / SL_MASK_BLOCK + 1;
}

// ---- scores ----

static __device__ __forceinline__ int divided_up(int x, int n) { // 0 for x <= 0
    return x > 0 ? (x + n - 1) / n : 0;
}

// Query `part` of each row: position stride * row + part.
template <int D, int STRIDE>
static __device__ __forceinline__ void load_queries(const row_sums_params &p, const task_rows &t, int part, bf16 *to) {
    int before = t.row0 * STRIDE + part - p.first; // token of the task's row 0
    const bf16 *from = p.q + before * (ptrdiff_t)p.q_stride + (size_t)(p.first_head + t.head) * D;
    load_tile<D, TASK_ROWS, SUM_THREADS>(to, from, STRIDE * p.q_stride, divided_up(-before, STRIDE),
                                         divided_up(p.n_tokens - before, STRIDE));
}

// Key stride - 1 - part of each column of tile c.
template <int D, int STRIDE>
static __device__ __forceinline__ void load_columns(const row_sums_params &p, const task_rows &t, int part, int c, bf16 *to) {
    constexpr int n = SL_PAGE / STRIDE < TILE_KEYS ? SL_PAGE / STRIDE : TILE_KEYS; // columns in one page
    int kv_head = (p.first_head + t.head) / p.group, n_kv = p.first + p.n_tokens;
#pragma unroll 1
    for (int i = 0; i < TASK_COLUMNS; i += n) {
        int key = (c * TASK_COLUMNS + i) * STRIDE, page = key < n_kv ? p.pages[key / SL_PAGE] : 0;
        size_t at = ((size_t)page * p.n_kv_heads + kv_head) * SL_PAGE + key % SL_PAGE + STRIDE - 1 - part;
        load_tile<D, n, SUM_THREADS>(to + i * tile_stride<D>, p.k + at * D, STRIDE * D, 0,
                                     divided_up(n_kv - key - (STRIDE - 1 - part), STRIDE));
    }
}

// What a thread has of a tile: rows 16 b + 8 h + lane / 4 of its warp, for b, h in {0, 1}, and of each row 16 columns.
struct lane_place {
    int warp_row, warp_column, row, column; // of the thread's first element, in the tile
    __device__ __forceinline__ lane_place() {
        int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
        warp_row = warp % 4 * WARP_ROWS, warp_column = warp / 4 * TILE_KEYS;
        row = warp_row + lane / 4, column = warp_column + lane % 4 * 2;
    }
    // Row number i = 2 b + h of the thread sees the columns 8 n + e <= seen(i), counted from its first column.
    __device__ __forceinline__ int seen(const task_rows &t, int i, int c) const {
        int r = row + 8 * i;
        return r >= t.begin && r < t.end ? t.row0 + r - c * TASK_COLUMNS - column : -1;
    }
};

// Sets the elements that their rows do not see to 0, or to -infinity.
template <bool to_zero>
static __device__ __forceinline__ void hide(const task_rows &t, int c, const lane_place &at,
                                            float s[BLOCKS][TILE_KEYS / 8][4]) {
#pragma unroll
    for (int i = 0; i < 4; i++) {
        int seen = at.seen(t, i, c);
#pragma unroll
        for (int n = 0; n < TILE_KEYS / 8; n++)
#pragma unroll
            for (int e = 0; e < 2; e++)
                if (8 * n + e > seen) s[i / 2][n][i % 2 * 2 + e] = to_zero ? 0 : -INFINITY;
    }
}

// Marks the task, or the query blocks, that have a score which is NaN or too large.
template <int STRIDE>
static __device__ __forceinline__ void mark_bad(const row_sums_params &p, const task_rows &t, int task, const lane_place &at,
                                                const float s[BLOCKS][TILE_KEYS / 8][4]) {
#pragma unroll
    for (int i = 0; i < 4; i++) {
        float most = 0; // size of a score; NaN if one is NaN
#pragma unroll
        for (int n = 0; n < TILE_KEYS / 8; n++)
#pragma unroll
            for (int e = 0; e < 2; e++) most = sl_max_nan(most, fabsf(s[i / 2][n][i % 2 * 2 + e]));
        if (most <= SL_REF_MOST) continue;
        int query_block = (t.row0 + at.row + 8 * i) * STRIDE / SL_MASK_BLOCK - p.first_block;
        p.bad[STRIDE == 1 ? task : t.head * p.n_queries + query_block] = 1;
    }
}

// s = the scores of tile c, rounded to bf16; -infinity where a row does not see a column, so that the mass is 0. `checks`:
// marks scores that have no sums.
template <int D, int STRIDE, bool checks>
static __device__ __forceinline__ void score_tile(const row_sums_params &p, const task_rows &t, int task, int c, bool first,
                                                  bf16 *q, bf16 *k, const lane_place &at, float s[BLOCKS][TILE_KEYS / 8][4]) {
    clear(s);
#pragma unroll 1
    for (int part = 0; part < STRIDE; part++) {
        __syncthreads(); // no thread reads the keys before
        if (STRIDE > 1 || first) load_queries<D, STRIDE>(p, t, part, q);
        load_columns<D, STRIDE>(p, t, part, c, k);
        copies_landed();
        __syncthreads();
        add_scores<D>(s, q + at.warp_row * tile_stride<D>, k + at.warp_column * tile_stride<D>, threadIdx.x % 32);
    }
    bool whole = true; // the rows of the warp see all columns
#pragma unroll
    for (int i = 0; i < 4; i++) {
        whole &= at.seen(t, i, c) >= TILE_KEYS - 7;
#pragma unroll
        for (int n = 0; n < TILE_KEYS / 8; n++) {
            float *x = s[i / 2][n] + i % 2 * 2;
            uint32_t pair = sl_pack_bf16(__fmul_rn(x[0], p.scale), __fmul_rn(x[1], p.scale));
            x[0] = __uint_as_float(pair << 16), x[1] = __uint_as_float(pair & 0xffff0000);
        }
    }
    whole = __all_sync(~0u, whole);
    if (!whole) hide<checks>(t, c, at, s);
    if constexpr (checks) {
        mark_bad<STRIDE>(p, t, task, at, s);
        if (!whole) hide<false>(t, c, at, s);
    }
}

// The largest score of row i in the columns 8 [FROM, TO).
template <int FROM, int TO> static __device__ __forceinline__ float top_of(const float s[BLOCKS][TILE_KEYS / 8][4], int i) {
    float top = -INFINITY;
#pragma unroll
    for (int n = FROM; n < TO; n++)
#pragma unroll
        for (int e = 0; e < 2; e++) top = fmaxf(top, s[i / 2][n][i % 2 * 2 + e]);
    return top;
}
// The sum of their masses. A mass is at most 2^30, so three of them fit in 32 bits.
template <int FROM, int TO>
static __device__ __forceinline__ uint64_t mass_of(const float s[BLOCKS][TILE_KEYS / 8][4], int i, float ref) {
    uint64_t mass = 0;
    uint32_t part = 0;
#pragma unroll
    for (int n = FROM; n < TO; n++)
#pragma unroll
        for (int e = 0; e < 2; e++) {
            part += sl_distance_mass(ref - s[i / 2][n][i % 2 * 2 + e]);
            if ((2 * n + e) % 3 == 2) mass += part, part = 0;
        }
    return mass + part;
}

static __device__ __forceinline__ uint64_t quad_sum(uint64_t x) {
    x += __shfl_xor_sync(~0u, x, 1);
    return x + __shfl_xor_sync(~0u, x, 2);
}
static __device__ __forceinline__ uint32_t quad_sum(uint32_t x) {
    x += __shfl_xor_sync(~0u, x, 1);
    return x + __shfl_xor_sync(~0u, x, 2);
}

template <int D> static constexpr size_t sum_shared_bytes = (size_t)(TASK_ROWS + TASK_COLUMNS) * tile_stride<D> * sizeof(bf16);

// ---- pass 1 ----

struct half_masses { // of the two halves of a key block's columns
    float top[2][TASK_ROWS];
    uint64_t mass[2][TASK_ROWS];
};

// A tile has one key block, whose columns belong to two warps.
static __device__ __forceinline__ void add_block_masses(const row_sums_params &p, int task, int c, const lane_place &at,
                                                        float s[BLOCKS][TILE_KEYS / 8][4], half_masses &half) {
    int lane = threadIdx.x % 32, side = at.warp_column / TILE_KEYS;
    float top[4];
#pragma unroll
    for (int i = 0; i < 4; i++) {
        top[i] = sl_quad_max(top_of<0, TILE_KEYS / 8>(s, i));
        if (lane % 4 == 0) half.top[side][at.row + 8 * i] = top[i];
    }
    __syncthreads();
#pragma unroll
    for (int i = 0; i < 4; i++) {
        float ref = ceilf(fmaxf(top[i], half.top[1 - side][at.row + 8 * i]));
        uint64_t mass = quad_sum(mass_of<0, TILE_KEYS / 8>(s, i, ref));
        if (lane % 4 == 0) half.mass[side][at.row + 8 * i] = mass;
    }
    __syncthreads();
    int row = threadIdx.x;
    if (row >= TASK_ROWS) return;
    float ref = ceilf(fmaxf(half.top[0][row], half.top[1][row]));
    size_t to = ((size_t)task * p.n_blocks + c) * TASK_ROWS + row;
    if (ref > -INFINITY) p.mass[to] = half.mass[0][row] + half.mass[1][row], p.ref[to] = (int16_t)ref;
}

// A key block has 128 / STRIDE columns, in one warp.
template <int STRIDE>
static __device__ __forceinline__ void add_pair_masses(const row_sums_params &p, int task, int c, const lane_place &at,
                                                       float s[BLOCKS][TILE_KEYS / 8][4]) {
    constexpr int WIDTH = SL_MASK_BLOCK / STRIDE / 8; // of a key block, in units of 8 columns
    auto add = [&](auto block) {
        constexpr int j = decltype(block)::value;
#pragma unroll
        for (int i = 0; i < 4; i++) {
            float ref = ceilf(sl_quad_max(top_of<j * WIDTH, (j + 1) * WIDTH>(s, i)));
            uint64_t mass = quad_sum(mass_of<j * WIDTH, (j + 1) * WIDTH>(s, i, ref));
            int key_block = c * STRIDE + at.warp_column * STRIDE / SL_MASK_BLOCK + j;
            size_t to = ((size_t)task * p.n_blocks + key_block) * TASK_ROWS + at.row + 8 * i;
            if (threadIdx.x % 4 == 0 && ref > -INFINITY) p.mass[to] = mass, p.ref[to] = (int16_t)ref;
        }
    };
    add(std::integral_constant<int, 0>()), add(std::integral_constant<int, 1>());
    add(std::integral_constant<int, 2>()), add(std::integral_constant<int, 3>());
    if constexpr (WIDTH == 1) {
        add(std::integral_constant<int, 4>()), add(std::integral_constant<int, 5>());
        add(std::integral_constant<int, 6>()), add(std::integral_constant<int, 7>());
    }
}

// Grid: [splits][tasks]. The thread blocks of a task share its tiles.
template <int D, int STRIDE> __global__ void __launch_bounds__(SUM_THREADS, 2) row_masses_kernel(const row_sums_params p) {
    extern __shared__ __align__(16) unsigned char shared[];
    __shared__ half_masses half; // of stride 1
    bf16 *q = (bf16 *)shared, *k = q + TASK_ROWS * tile_stride<D>;
    sl_start_next();
    sl_wait_previous();
    int task = blockIdx.y;
    task_rows t = rows_of_task(p, task, STRIDE);
    lane_place at;
    int n_tiles = (t.row0 + t.end - 1) / TASK_COLUMNS + 1;
    for (int c = blockIdx.x; c < n_tiles; c += gridDim.x) {
        float s[BLOCKS][TILE_KEYS / 8][4];
        score_tile<D, STRIDE, true>(p, t, task, c, c == (int)blockIdx.x, q, k, at, s);
        if constexpr (STRIDE == 1)
            add_block_masses(p, task, c, at, s, half);
        else
            add_pair_masses<STRIDE>(p, task, c, at, s);
    }
}

// Grid: [tasks]. Thread (g, r) has the key blocks g, g + 8, ... of row r.
template <int STRIDE> __global__ void __launch_bounds__(TASK_ROWS *SCALE_GROUPS) row_scales_kernel(const row_sums_params p) {
    __shared__ int tops[SCALE_GROUPS][TASK_ROWS];
    __shared__ uint64_t sums[SCALE_GROUPS][TASK_ROWS];
    sl_start_next();
    sl_wait_previous();
    int task = blockIdx.x, row = threadIdx.x % TASK_ROWS, g = threadIdx.x / TASK_ROWS, top = INT16_MIN;
    task_rows t = rows_of_task(p, task, STRIDE);
    int last = row >= t.begin && row < t.end ? (t.row0 + row) * STRIDE / SL_MASK_BLOCK : -1;
    const int16_t *ref = p.ref + (size_t)task * p.n_blocks * TASK_ROWS + row;
    const uint64_t *mass = p.mass + (size_t)task * p.n_blocks * TASK_ROWS + row;
    for (int b = g; b <= last; b += SCALE_GROUPS) top = max(top, (int)ref[(size_t)b * TASK_ROWS]);
    tops[g][row] = top;
    __syncthreads();
    for (int i = 0; i < SCALE_GROUPS; i++) top = max(top, tops[i][row]);
    uint64_t z = 0;
    for (int b = g; b <= last; b += SCALE_GROUPS) {
        int shift = top - ref[(size_t)b * TASK_ROWS];
        z += shift < 64 ? mass[(size_t)b * TASK_ROWS] >> shift : 0;
    }
    sums[g][row] = z;
    __syncthreads();
    if (g == 0) {
        for (int i = 1; i < SCALE_GROUPS; i++) z += sums[i][row];
        p.scales[task * TASK_ROWS + row] = {top, z ? sl_share_factor(z) : 0}; // 0: a row without sums
    }
    if (!p.slash) return;
    uint32_t *slash = p.slash + (size_t)task * (p.first + p.n_tokens);
    for (int o = threadIdx.x; o < p.first + p.n_tokens; o += TASK_ROWS * SCALE_GROUPS) slash[o] = 0;
}

// ---- pass 2 ----

struct tile_sums {
    uint32_t row[TASK_ROWS], column[TASK_COLUMNS];
    uint32_t slash[TASK_ROWS + TASK_COLUMNS]; // row - column + 127
};

// Calls f(d, e, x) with the sum x of the elements on each diagonal of the thread: their row - column is that of the first
// element + 8 d - e.
template <typename F> static __device__ __forceinline__ void each_diagonal(const uint32_t s[BLOCKS][TILE_KEYS / 8][4], F f) {
#pragma unroll
    for (int d = -(TILE_KEYS / 8 - 1); d < 4; d++)
#pragma unroll
        for (int e = 0; e < 2; e++) {
            uint32_t x = 0;
#pragma unroll
            for (int i = 0; i < 4; i++) // elements of equal i - n lie on one diagonal
                if (i - d >= 0 && i - d < TILE_KEYS / 8) x += s[i / 2][i - d][i % 2 * 2 + e];
            f(d, e, x);
        }
}

// Adds to the sums of 128 offsets, each of which stands at its first offset. The warp's part of a tile has 95 offsets, of at
// most two such sums. total: of the thread's shares.
static __device__ __forceinline__ void add_slash_blocks(const row_sums_params &p, int task, int first, const lane_place &at,
                                                        const uint32_t s[BLOCKS][TILE_KEYS / 8][4], uint32_t total) {
    int block = (first + at.warp_row - at.warp_column - (TILE_KEYS - 1)) >> 7; // of the least offset; down, if it is negative
    int end = (block + 1) * SL_MASK_BLOCK - (first + at.row - at.column);      // of the block, for 8 d - e
    uint32_t low = 0, *to = p.slash + (size_t)task * (p.first + p.n_tokens);
    each_diagonal(s, [&](int d, int e, uint32_t x) { low += 8 * d - e < end ? x : 0; });
    low = __reduce_add_sync(~0u, low), total = __reduce_add_sync(~0u, total);
    if (threadIdx.x % 32 > 0) return;
    if (low) atomicAdd(to + block * SL_MASK_BLOCK, low); // only offsets >= 0 have shares
    if (total - low) atomicAdd(to + (block + 1) * SL_MASK_BLOCK, total - low);
}

// Adds to the sums of keys and of single offsets.
static __device__ __forceinline__ void add_lines(const lane_place &at, const uint32_t s[BLOCKS][TILE_KEYS / 8][4],
                                                 tile_sums &sum) {
    int lane = threadIdx.x % 32;
#pragma unroll
    for (int n = 0; n < TILE_KEYS / 8; n++)
#pragma unroll
        for (int e = 0; e < 2; e++) {
            uint32_t x = s[0][n][e] + s[0][n][e + 2] + s[1][n][e] + s[1][n][e + 2];
            for (int step = 4; step < 32; step *= 2) x += __shfl_xor_sync(~0u, x, step);
            if (lane < 4) atomicAdd(&sum.column[at.column + 8 * n + e], x);
        }
    each_diagonal(s, [&](int d, int e, uint32_t x) {
        if (x) atomicAdd(&sum.slash[at.row - at.column + 8 * d - e + TASK_COLUMNS - 1], x);
    });
}

// s: shares, 0 where a row does not see a column. All sums are of integers, so their order is free.
static __device__ __forceinline__ void add_tile_sums(const row_sums_params &p, const task_rows &t, int task, int c,
                                                     const lane_place &at, const uint32_t s[BLOCKS][TILE_KEYS / 8][4],
                                                     tile_sums &sum) {
    int first = t.row0 - c * TASK_COLUMNS; // offset of the tile's first element
    for (int i = threadIdx.x; i < (int)(sizeof sum / sizeof(uint32_t)); i += SUM_THREADS) ((uint32_t *)&sum)[i] = 0;
    __syncthreads();
    uint32_t total = 0;
#pragma unroll
    for (int i = 0; i < 4; i++) {
        uint32_t x = 0;
#pragma unroll
        for (int n = 0; n < TILE_KEYS / 8; n++) x += s[i / 2][n][i % 2 * 2] + s[i / 2][n][i % 2 * 2 + 1];
        total += x;
        x = quad_sum(x);
        if (threadIdx.x % 4 == 0) atomicAdd(&sum.row[at.row + 8 * i], x);
    }
    if (p.column)
        add_lines(at, s, sum);
    else
        add_slash_blocks(p, task, first, at, s, total);
    __syncthreads();
    int i = threadIdx.x, key = c * TASK_COLUMNS + i, n_kv = p.first + p.n_tokens;
    if (i < TASK_ROWS) p.block[((size_t)task * p.n_blocks + c) * TASK_ROWS + i] = sum.row[i];
    if (!p.column) return;
    if (i < TASK_COLUMNS && key < n_kv) p.column[(size_t)task * n_kv + key] = sum.column[i];
    int offset = first + i - (TASK_COLUMNS - 1);
    if (sum.slash[i]) atomicAdd(p.slash + (size_t)task * n_kv + offset, sum.slash[i]); // only offsets >= 0 have shares
}

// The sums of the pairs of a query block and a key block in the warp's part of a tile.
template <int STRIDE>
static __device__ __forceinline__ void store_pair_sums(const row_sums_params &p, const task_rows &t, int c,
                                                       const lane_place &at, uint32_t s[BLOCKS][TILE_KEYS / 8][4]) {
    constexpr int WIDTH = SL_MASK_BLOCK / STRIDE / 8, HEIGHT = WIDTH; // of a block, in units of 8 columns, and of 8 rows
#pragma unroll
    for (int i = 0; i < 4; i += HEIGHT)
#pragma unroll
        for (int n = 0; n < TILE_KEYS / 8; n += WIDTH) {
            uint32_t x = 0;
#pragma unroll
            for (int r = i; r < i + HEIGHT; r++)
#pragma unroll
                for (int m = n; m < n + WIDTH; m++) x += s[r / 2][m][r % 2 * 2] + s[r / 2][m][r % 2 * 2 + 1];
            x = __reduce_add_sync(~0u, x);
            int query_block = t.from + (at.warp_row + 8 * i) * STRIDE / SL_MASK_BLOCK;
            int key_block = (c * TASK_COLUMNS + at.warp_column + 8 * n) * STRIDE / SL_MASK_BLOCK;
            if (threadIdx.x % 32 == 0 && query_block < t.to && key_block <= query_block)
                p.pair[((size_t)t.head * p.n_queries + query_block - p.first_block) * p.n_blocks + key_block] = x;
        }
}

template <int D, int STRIDE> __global__ void __launch_bounds__(SUM_THREADS, 2) row_shares_kernel(const row_sums_params p) {
    extern __shared__ __align__(16) unsigned char shared[];
    __shared__ tile_sums sum; // of stride 1
    bf16 *q = (bf16 *)shared, *k = q + TASK_ROWS * tile_stride<D>;
    sl_start_next();
    sl_wait_previous();
    int task = blockIdx.y;
    task_rows t = rows_of_task(p, task, STRIDE);
    lane_place at;
    int n_tiles = (t.row0 + t.end - 1) / TASK_COLUMNS + 1;
    for (int c = blockIdx.x; c < n_tiles; c += gridDim.x) {
        float s[BLOCKS][TILE_KEYS / 8][4];
        score_tile<D, STRIDE, false>(p, t, task, c, c == (int)blockIdx.x, q, k, at, s);
        uint32_t share[BLOCKS][TILE_KEYS / 8][4];
#pragma unroll
        for (int i = 0; i < 4; i++) {
            row_scale scale = p.scales[task * TASK_ROWS + at.row + 8 * i];
#pragma unroll
            for (int n = 0; n < TILE_KEYS / 8; n++)
#pragma unroll
                for (int e = 0; e < 2; e++) {
                    uint32_t mass = sl_distance_mass((float)scale.top - s[i / 2][n][i % 2 * 2 + e]);
                    share[i / 2][n][i % 2 * 2 + e] = sl_share(mass, scale.factor);
                }
        }
        if constexpr (STRIDE == 1)
            add_tile_sums(p, t, task, c, at, share, sum);
        else
            store_pair_sums<STRIDE>(p, t, c, at, share);
    }
}

#endif
