// attention/cuda/prefill/row_sums.cuh - sums of attention probabilities over sampled rows, as integers: the kernels of what
// attention/prefill/row_sums.c computes on the CPU. No matrix of all scores is in memory. attention/prefill/row_sums.h defines
// rows and columns, and integer_softmax.h defines shares. From equal scores come the integers of the CPU.
//
// A task is up to 128 rows of one head. A row is one query, and a column is one key. A tile is 128 rows and one key block of a
// task.
//
// | kernel            | makes                                                                      |
// |-------------------|----------------------------------------------------------------------------|
// | row_masses_kernel | pass 1: ref and the two masses of each row and key block                   |
// | row_scales_kernel | from them top and factor of each row; clears what row_lines_kernel adds to |
// | row_lines_kernel  | pass 2, for single keys and offsets only: sums of shares                   |
//
// 8 warps: warp w has rows 32 (w % 4) .. + 31 and columns 64 (w / 4) .. + 63 of a tile. While a thread block computes the
// masses or shares of a tile, the keys of its next tile are on their way to shared memory.
#ifndef SLEIGH_ROW_SUMS_CUH
#define SLEIGH_ROW_SUMS_CUH

#include "attention/cpu/cpu_kernels.h"
#include "attention/cuda/prefill/dense_prefill.cuh"
#include "attention/cuda/mma_tiles.cuh"
#include "attention/prefill/integer_softmax.h"
#include "attention/prefill/row_sums.h"

enum { TASK_ROWS = 128, TASK_COLUMNS = 128, SUM_THREADS = 256, SCALE_ROWS = 32, SCALE_GROUPS = 32 };

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
    int most_rows;              // of a task: its last rows
    int n_blocks;               // key blocks of the sequence
    int n_tiles;                // of all tasks
    float scale;                // sl_score_scale
    // Task t has head first_head + t % n_heads and chunk t / n_heads.
    uint64_t *mass;             // [task][n_blocks][128 rows] pack_mass
    sl_row_scale *scales;       // [task][128]; top SL_REF_INVALID: no sums; factor 0: no shares
    uint32_t *column;           // [task][n_kv] sum over rows; NULL: not wanted
    uint32_t *offset;           // [task][n_kv] sum over rows; with `column`
    uint32_t octave[SL_OCTAVE]; // sl_mass_octave, with `column`
};

// A block's two masses and its ref in 64 bits. A mass is at most 2^23.
static __device__ __forceinline__ uint64_t pack_mass(uint32_t low, uint32_t high, int ref) {
    return (uint64_t)low | (uint64_t)high << 24 | (uint64_t)(uint16_t)ref << 48;
}
static __device__ __forceinline__ sl_block_mass unpack_mass(uint64_t x) {
    return {(uint32_t)x & 0xffffff, (uint32_t)(x >> 24) & 0xffffff, (int16_t)(x >> 48)};
}

// The rows of a task: those with the numbers row0 .. row0 + end - 1.
struct task_rows {
    int head, chunk, row0, end;
};

static __host__ __device__ __forceinline__ task_rows rows_of_task(const row_sums_params &p, int task) {
    task_rows t;
    t.head = task % p.n_heads, t.chunk = task / p.n_heads;
    int from = p.first_block + (int)((long long)t.chunk * p.n_queries / p.n_chunks); // query blocks [from, to)
    int to = p.first_block + (int)((long long)(t.chunk + 1) * p.n_queries / p.n_chunks);
    int last = min(to * SL_MASK_BLOCK, p.first + p.n_tokens);
    t.row0 = max(max(from * SL_MASK_BLOCK, p.first), last - p.most_rows);
    t.end = last - t.row0;
    return t;
}

static __host__ __device__ __forceinline__ int tiles_of(const task_rows &t) {
    return (t.row0 + t.end - 1) / TASK_COLUMNS + 1;
}

// ---- scores ----

// The queries of the task's rows.
template <int D> static __device__ __forceinline__ void load_queries(const row_sums_params &p, const task_rows &t, bf16 *to) {
    int before = t.row0 - p.first; // token of the task's row 0
    const bf16 *from = p.q + before * (ptrdiff_t)p.q_stride + (size_t)(p.first_head + t.head) * D;
    load_tile<D, TASK_ROWS, SUM_THREADS>(to, from, p.q_stride, max(-before, 0), max(p.n_tokens - before, 0));
}

// The keys of tile c.
template <int D>
static __device__ __forceinline__ void load_columns(const row_sums_params &p, const task_rows &t, int c, bf16 *to) {
    int kv_head = (p.first_head + t.head) / p.group, n_kv = p.first + p.n_tokens;
#pragma unroll 1
    for (int i = 0; i < TASK_COLUMNS; i += TILE_KEYS) {
        int key = c * TASK_COLUMNS + i, page = key < n_kv ? p.pages[key / SL_PAGE] : 0;
        size_t at = ((size_t)page * p.n_kv_heads + kv_head) * SL_PAGE + key % SL_PAGE;
        load_tile<D, TILE_KEYS, SUM_THREADS>(to + i * tile_stride<D>, p.k + at * D, D, 0, max(n_kv - key, 0));
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
        return r < t.end ? t.row0 + r - c * TASK_COLUMNS - column : -1;
    }
};

// Sets the elements that their rows do not see to -infinity.
static __device__ __forceinline__ void hide(const task_rows &t, int c, const lane_place &at,
                                            float s[BLOCKS][TILE_KEYS / 8][4]) {
#pragma unroll
    for (int i = 0; i < 4; i++) {
        int seen = at.seen(t, i, c);
#pragma unroll
        for (int n = 0; n < TILE_KEYS / 8; n++)
#pragma unroll
            for (int e = 0; e < 2; e++)
                if (8 * n + e > seen) s[i / 2][n][i % 2 * 2 + e] = -INFINITY;
    }
}

// The sum of a score and SCORE_ZERO has the unit 2^-6, so a fused product and sum rounds a score as sl_score_of does.
#define SCORE_ZERO 0x1.8p17f

// Makes of sums q.k the scores + SCORE_ZERO; -infinity where a row does not see a column. A score below -65536 has another
// unit, and its mass is 0 in any case.
static __device__ __forceinline__ void round_scores(const row_sums_params &p, const task_rows &t, int c, const lane_place &at,
                                                    float s[BLOCKS][TILE_KEYS / 8][4]) {
    bool whole = true; // the rows of the warp see all columns
#pragma unroll
    for (int i = 0; i < 4; i++) {
        whole &= at.seen(t, i, c) >= TILE_KEYS - 7;
#pragma unroll
        for (int n = 0; n < TILE_KEYS / 8; n++)
#pragma unroll
            for (int e = 0; e < 2; e++) {
                float *x = &s[i / 2][n][i % 2 * 2 + e];
                *x = __fmaf_rn(*x, p.scale, SCORE_ZERO);
            }
    }
    if (!__all_sync(~0u, whole)) hide(t, c, at, s);
}

// The tiles of a thread block: an equal part of the tiles of all tasks, in order.
struct tile_walk {
    task_rows t;
    int task, c, n_left;

    __device__ __forceinline__ tile_walk(const row_sums_params &p) {
        int at = (int)((long long)blockIdx.x * p.n_tiles / gridDim.x);
        n_left = (int)((long long)(blockIdx.x + 1) * p.n_tiles / gridDim.x) - at;
        for (int chunk = 0;; chunk++) {
            t = rows_of_task(p, chunk * p.n_heads);
            if (at < tiles_of(t) * p.n_heads || chunk == p.n_chunks - 1) break;
            at -= tiles_of(t) * p.n_heads;
        }
        task = t.chunk * p.n_heads + at / tiles_of(t), c = at % tiles_of(t);
        t.head = task % p.n_heads;
    }
    __device__ __forceinline__ bool next(const row_sums_params &p) { // true: of another task
        n_left--;
        if (++c < tiles_of(t) || !n_left) return false;
        t = rows_of_task(p, ++task), c = 0;
        return true;
    }
};

// Calls f for every tile of the thread block: f.tops(at, s), a __syncthreads, f.masses(t, task, c, at, s), the first
// __syncthreads of the next tile, f.finish(). A thread may be at f.tops of the next tile while another one is at f.finish.
// f.finish also runs once before the first tile.
template <int D, typename F>
static __device__ __forceinline__ void each_tile(const row_sums_params &p, unsigned char *shared, F &f) {
    bf16 *q = (bf16 *)shared, *k = q + TASK_ROWS * tile_stride<D>;
    lane_place at;
    tile_walk walk(p);
    if (!walk.n_left) return;
    load_queries<D>(p, walk.t, q);
    load_columns<D>(p, walk.t, walk.c, k);
    while (walk.n_left) {
        float s[BLOCKS][TILE_KEYS / 8][4];
        clear(s);
        copies_landed();
        __syncthreads();
        f.finish();
        if (at.warp_row < walk.t.end) // the warp has rows
            add_scores<D>(s, q + at.warp_row * tile_stride<D>, k + at.warp_column * tile_stride<D>, threadIdx.x % 32);
        round_scores(p, walk.t, walk.c, at, s);
        f.tops(at, s);
        task_rows t = walk.t;
        int task = walk.task, c = walk.c;
        bool other = walk.next(p);
        __syncthreads(); // no thread reads the tile
        if (walk.n_left) {
            if (other) load_queries<D>(p, walk.t, q);
            load_columns<D>(p, walk.t, walk.c, k);
        }
        f.masses(t, task, c, at, s);
    }
    __syncthreads();
    f.finish();
}

template <int D> static constexpr size_t sum_shared_bytes = (size_t)(TASK_ROWS + TASK_COLUMNS) * tile_stride<D> * sizeof(bf16);

static __device__ __forceinline__ uint32_t quad_sum(uint32_t x) {
    x += __shfl_xor_sync(~0u, x, 1);
    return x + __shfl_xor_sync(~0u, x, 2);
}

// ---- pass 1 ----

// The largest score + SCORE_ZERO of row i; NaN if one is NaN.
static __device__ __forceinline__ float top_of(const float s[BLOCKS][TILE_KEYS / 8][4], int i) {
    float top = -INFINITY;
#pragma unroll
    for (int n = 0; n < TILE_KEYS / 8; n++)
#pragma unroll
        for (int e = 0; e < 2; e++) top = sl_max_nan(top, s[i / 2][n][i % 2 * 2 + e]);
    return sl_quad_max_nan(top);
}

struct block_ref {
    float zero; // ref + SCORE_ZERO
    int stored; // SL_REF_EMPTY: no score of a mass above 0; SL_REF_INVALID: no sums
    __device__ __forceinline__ block_ref(float top) {
        float ref = ceilf(top - SCORE_ZERO);
        zero = ref + SCORE_ZERO;
        stored = top < SCORE_ZERO - SL_REF_MOST ? SL_REF_EMPTY : top <= SCORE_ZERO + SL_REF_MOST ? (int)ref : SL_REF_INVALID;
    }
};

// The sum of masses of row i, and with SPLIT also of the columns 8 n + e <= split. Sums start at 2^7, so their unit is 2^-16:
// each fused product and sum rounds one mass to nearest, and the sum does not depend on the order. A row has at most 128 masses
// of at most c < 1. NaN gives any integer.
template <bool SPLIT>
static __device__ __forceinline__ void mass_of(const float s[BLOCKS][TILE_KEYS / 8][4], int i, float zero, int split,
                                               uint32_t *all, uint32_t *low) {
    const float start = 1 << (23 - SL_MASS_BITS), c = SL_MASS_SCALE;
    float sum = start, part = start;
#pragma unroll
    for (int n = 0; n < TILE_KEYS / 8; n++)
#pragma unroll
        for (int e = 0; e < 2; e++) {
            float x = sl_exp2(__fsub_rn(s[i / 2][n][i % 2 * 2 + e], zero));
            sum = __fmaf_rn(x, c, sum);
            if (SPLIT && 8 * n + e <= split) part = __fmaf_rn(x, c, part);
        }
    *all = quad_sum(__float_as_uint(sum) - __float_as_uint(start)) & 0x7fffff;
    if (SPLIT) *low = quad_sum(__float_as_uint(part) - __float_as_uint(start)) & 0x7fffff;
}

// A tile has one key block, whose columns belong to two warps.
struct block_masses {
    const row_sums_params &p;
    float (*top)[TASK_ROWS];     // [2 halves of the columns] of the tile
    uint64_t (*half)[TASK_ROWS]; // [2] packed, of the tile before
    uint64_t *to;                // of the tile before; NULL: no tile yet
    float own[4];

    __device__ __forceinline__ void finish() {
        if (threadIdx.x >= TASK_ROWS || !to) return;
        uint64_t a = half[0][threadIdx.x], b = half[1][threadIdx.x];
        to[threadIdx.x] = a + (b << 16 >> 16);
    }
    __device__ __forceinline__ void tops(const lane_place &at, const float s[BLOCKS][TILE_KEYS / 8][4]) {
#pragma unroll
        for (int i = 0; i < 4; i++) {
            own[i] = top_of(s, i);
            if (threadIdx.x % 4 == 0) top[at.warp_column / TILE_KEYS][at.row + 8 * i] = own[i];
        }
    }
    __device__ __forceinline__ void masses(const task_rows &t, int task, int c, const lane_place &at,
                                           const float s[BLOCKS][TILE_KEYS / 8][4]) {
        int side = at.warp_column / TILE_KEYS, split[4];
        bool is_low = true, is_high = true; // all columns of the warp are up to the split of their row, or after it
#pragma unroll
        for (int i = 0; i < 4; i++) {
            split[i] = (t.row0 + at.row + 8 * i) % SL_MASK_BLOCK - at.column;
            is_low &= split[i] >= TILE_KEYS - 7, is_high &= split[i] < 0;
        }
        is_low = __all_sync(~0u, is_low), is_high = __all_sync(~0u, is_high);
#pragma unroll
        for (int i = 0; i < 4; i++) {
            block_ref ref(sl_max_nan(own[i], top[1 - side][at.row + 8 * i]));
            uint32_t all, low;
            if (is_low || is_high) {
                mass_of<false>(s, i, ref.zero, 0, &all, &low);
                low = is_low ? all : 0;
            } else
                mass_of<true>(s, i, ref.zero, split[i], &all, &low);
            if (threadIdx.x % 4 == 0) half[side][at.row + 8 * i] = pack_mass(low, (all - low) & 0x7fffff, ref.stored);
        }
        to = p.mass + ((size_t)task * p.n_blocks + c) * TASK_ROWS;
    }
};

// Grid: any number of thread blocks, which share the tiles.
template <int D>
__global__ void __launch_bounds__(SUM_THREADS, 2) row_masses_kernel(const __grid_constant__ row_sums_params p) {
    extern __shared__ __align__(16) unsigned char shared[];
    __shared__ float top[2][TASK_ROWS];
    __shared__ uint64_t half[2][TASK_ROWS];
    sl_start_next();
    sl_wait_previous();
    block_masses f = {p, top, half, NULL, {}};
    each_tile<D>(p, shared, f);
}

// ---- shares of key blocks ----

// Grid: [tasks][4]. Thread (g, r) has the key blocks g, g + 32, ... of row r.
static __global__ void __launch_bounds__(SCALE_ROWS *SCALE_GROUPS)
    row_scales_kernel(const __grid_constant__ row_sums_params p) {
    __shared__ int tops[SCALE_GROUPS][SCALE_ROWS];
    __shared__ uint64_t sums[SCALE_GROUPS][SCALE_ROWS];
    sl_start_next();
    sl_wait_previous();
    int task = blockIdx.x, r = threadIdx.x % SCALE_ROWS, row = blockIdx.y * SCALE_ROWS + r, g = threadIdx.x / SCALE_ROWS;
    task_rows t = rows_of_task(p, task);
    int last = row < t.end ? (t.row0 + row) / SL_MASK_BLOCK : -1, top = SL_REF_EMPTY;
    const uint64_t *mass = p.mass + (size_t)task * p.n_blocks * TASK_ROWS + row;
    for (int b = g; b <= last; b += SCALE_GROUPS) top = max(top, (int)unpack_mass(mass[(size_t)b * TASK_ROWS]).ref);
    tops[g][r] = top;
    __syncthreads();
    for (int i = 0; i < SCALE_GROUPS; i++) top = max(top, tops[i][r]);
    uint64_t z = 0;
    for (int b = g; b <= last; b += SCALE_GROUPS) {
        sl_block_mass m = unpack_mass(mass[(size_t)b * TASK_ROWS]);
        z += sl_mass_below(m.low + m.high, top - m.ref);
    }
    sums[g][r] = z;
    __syncthreads();
    if (g == 0) {
        for (int i = 1; i < SCALE_GROUPS; i++) z += sums[i][r];
        bool lacks = last >= 0 && (top == SL_REF_EMPTY || top == SL_REF_INVALID);
        p.scales[task * TASK_ROWS + row] = {lacks ? SL_REF_INVALID : top, z && !lacks ? sl_share_factor(z) : 0};
    }
    if (!p.column) return;
    int n_kv = p.first + p.n_tokens, from = blockIdx.y * SCALE_ROWS * SCALE_GROUPS + threadIdx.x;
    for (int o = from; o < n_kv; o += TASK_ROWS * SCALE_GROUPS) p.offset[(size_t)task * n_kv + o] = 0;
}

// The row's shares of a key block, 0 without sums.
struct block_shares {
    uint32_t low, high;
};
static __device__ __forceinline__ block_shares shares_of(const row_sums_params &p, int task, int row, int key_block) {
    sl_row_scale scale = p.scales[task * TASK_ROWS + row];
    sl_block_mass m = unpack_mass(p.mass[((size_t)task * p.n_blocks + key_block) * TASK_ROWS + row]);
    int below = scale.top - m.ref;
    return {sl_share(sl_mass_below(m.low, below), scale.factor), sl_share(sl_mass_below(m.high, below), scale.factor)};
}

// ---- pass 2 ----

struct tile_sums {
    uint32_t column[TASK_COLUMNS];
    uint32_t offset[TASK_ROWS + TASK_COLUMNS]; // row - column + 127
};

// Adds to the sums of columns and offsets of a tile. s: shares.
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
#pragma unroll
    for (int d = -(TILE_KEYS / 8 - 1); d < 4; d++)
#pragma unroll
        for (int e = 0; e < 2; e++) {
            uint32_t x = 0;
#pragma unroll
            for (int i = 0; i < 4; i++) // elements of equal i - n lie on one diagonal: row - column is 8 d - e more
                if (i - d >= 0 && i - d < TILE_KEYS / 8) x += s[i / 2][i - d][i % 2 * 2 + e];
            if (x) atomicAdd(&sum.offset[at.row - at.column + 8 * d - e + TASK_COLUMNS - 1], x);
        }
}

struct line_shares {
    const row_sums_params &p;
    tile_sums &sum;
    const uint32_t *octave;

    __device__ __forceinline__ void finish() {}
    __device__ __forceinline__ void tops(const lane_place &, const float[BLOCKS][TILE_KEYS / 8][4]) {
        for (int i = threadIdx.x; i < (int)(sizeof sum / sizeof(uint32_t)); i += SUM_THREADS) ((uint32_t *)&sum)[i] = 0;
    }
    __device__ __forceinline__ void masses(const task_rows &t, int task, int c, const lane_place &at,
                                           const float s[BLOCKS][TILE_KEYS / 8][4]) {
        uint32_t share[BLOCKS][TILE_KEYS / 8][4];
#pragma unroll
        for (int i = 0; i < 4; i++) {
            sl_row_scale scale = p.scales[task * TASK_ROWS + at.row + 8 * i];
            // Floats of one unit have the order and the distances of their bits. A smaller score is at a larger distance.
            uint32_t zero = __float_as_uint((float)scale.top + SCORE_ZERO);
#pragma unroll
            for (int n = 0; n < TILE_KEYS / 8; n++)
#pragma unroll
                for (int e = 0; e < 2; e++) {
                    int j = i % 2 * 2 + e;
                    share[i / 2][n][j] = sl_share(sl_fine_mass(octave, zero - __float_as_uint(s[i / 2][n][j])), scale.factor);
                }
        }
        add_lines(at, share, sum);
        __syncthreads();
        int i = threadIdx.x, key = c * TASK_COLUMNS + i, n_kv = p.first + p.n_tokens;
        if (i < TASK_COLUMNS && key < n_kv) p.column[(size_t)task * n_kv + key] = sum.column[i];
        int offset = t.row0 - c * TASK_COLUMNS + i - (TASK_COLUMNS - 1);
        if (sum.offset[i]) atomicAdd(p.offset + (size_t)task * n_kv + offset, sum.offset[i]); // only offsets >= 0 have shares
    }
};

// Grid: any number of thread blocks, which share the tiles.
template <int D> __global__ void __launch_bounds__(SUM_THREADS, 2) row_lines_kernel(const __grid_constant__ row_sums_params p) {
    extern __shared__ __align__(16) unsigned char shared[];
    __shared__ tile_sums sum;
    __shared__ uint32_t octave[SL_OCTAVE];
    sl_start_next();
    sl_wait_previous();
    if (threadIdx.x < SL_OCTAVE) octave[threadIdx.x] = p.octave[threadIdx.x];
    line_shares f = {p, sum, octave};
    each_tile<D>(p, shared, f);
}

#endif
