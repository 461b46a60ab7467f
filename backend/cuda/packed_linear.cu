// backend/cuda/packed_linear.cu - the linear layers of a decode step with quantised weights. See linear.h and packed.h. The
// naive version is naive_linear in tests/cuda/naive.h.
//
// With 4 or 8 bits a number, the time of a matrix is only partly the time of its bytes: each number must also become a bf16,
// and with small matrices the time from one kernel to the next counts. Therefore
//   - one warp issues all copies of weights, a few large ones. Three warps end the tiles. The other warps only multiply.
//   - a stored integer becomes a bf16 with one AND-OR and one subtraction for two numbers (int4): 128 + u is the bf16 with
//     bits 0x4300 | u. Scales multiply fp32 sums, so the matrix instructions see exact integers.
//   - x lies in shared memory. If thread blocks read it from the L2 cache for every few tiles, 16 rows of x take longer than
//     the weights. So thread blocks of two kernels do not fit on a multiprocessor.
//   - as in linear.cu, the ring fills before the previous kernel has ended, on multiprocessors where its block has ended.
//
// | role     | warps | does                                                                                               |
// |----------|-------|----------------------------------------------------------------------------------------------------|
// | consumer | 16, 8 | brings its leaves of x to shared memory, multiplies their pieces, stores the sums                  |
// | producer | 1     | copies weights and scales to the stages of the ring, in the order of use                           |
// | finisher | 3     | adds the parts of a tile, divides by the norm, ends the tile (linear_endings.cuh), by turns        |
//
// | shared memory, in order | contents                                                                                      |
// |-------------------------|-----------------------------------------------------------------------------------------------|
// | stages                  | [n_stages]: PP steps of a tile: pieces of 8 rows, of the other 8 rows, and scales of both     |
// | x                       | [consumer][step][own leaf]: a piece of x, [blocks of 8 rows of x][u][lane] 16 bytes           |
// | parts                   | [2][consumer][TILES][blocks of 8 rows of x][32] float4                                        |
// | kv_row, factor          | static: [SL_PACKED_ROWS] size_t and float                                                     |
#include "backend/cuda/bulk_copy.cuh"
#include "backend/cuda/linear_endings.cuh"
#include "backend/cuda/packed_format.cuh"
#include "backend/cuda/packed_linear.h"

namespace {

enum {
    FINISHERS = 3, // warps
    MOST_STAGES = 8,
    FINISHER_BARRIER = 1, // a barrier of the hardware; 0 is __syncthreads
};

// Constants of a kernel. SCALES: of a row and piece. ROWS of x: 1, up to 8, up to 16. Sizes in bytes.
template <sl_format F, int SCALES, int ROWS> struct sizes {
    enum {
        CONSUMERS = ROWS > 8 ? 8 : 16, // warps. With 16 rows a warp needs more registers than 16 warps can have
        OWN = SL_LEAVES / CONSUMERS,   // leaves of a consumer
        THREADS = 32 * (CONSUMERS + 1 + FINISHERS),
        TILES = 2, // that use one load of x, where x does not fit into shared memory; finished together
        WORDS = packing<F>::WORDS,
        PIECE = 512 * WORDS,
        PP = ROWS == 1 && F == SL_INT4 ? 2 : 1, // steps of a stage
        STAGE_PIECES = PP * SL_LEAVES,          // pieces of 8 rows in a stage
        SCALE_ROWS = 4 * PIECE_ROWS * SCALES,   // the scales of 8 rows and a piece
        HALF = STAGE_PIECES * PIECE,
        SCALE_HALF = STAGE_PIECES * SCALE_ROWS,
        STAGE = 2 * (HALF + SCALE_HALF),
        BLOCKS = ROWS > 8 ? 2 : 1,  // of 8 rows of x
        LANES = ROWS == 1 ? 4 : 32, // lanes that hold numbers of x
        VECTORS = STEPS * BLOCKS,   // reads of 16 bytes by one of these lanes, for a piece of x
        X_PIECE = VECTORS * LANES * 16,
        X_STEP = OWN * X_PIECE,                                        // of a consumer
        AT_ONCE = ROWS == 1 ? 8 : 1,                                   // steps of x that a warp copies together
        PARTS = CONSUMERS * TILES * BLOCKS * 32 * (int)sizeof(float4), // of one of the two buffers
    };
};

// What the launch chooses.
struct layout {
    int n_tiles;
    int n_stages;
    int x_steps; // of x in shared memory. All of a row, or 2 AT_ONCE, of which one half is in use while the other one is copied
};

struct block_shared {
    uint64_t full[MOST_STAGES], empty[MOST_STAGES], parts_full[2], parts_empty[2];
    size_t kv_row[SL_PACKED_ROWS];
    float factor[SL_PACKED_ROWS];
};

__device__ __forceinline__ int steps_of(const sl_cuda_linear &p) {
    return (p.packing.n_pieces + SL_LEAVES - 1) / SL_LEAVES;
}

// The piece of a leaf in step j, of n pieces; -1: none.
__device__ __forceinline__ int piece_of(int n, int leaf, int j) {
    const int first = sl_leaf_begin(n, leaf);
    return first + j < sl_leaf_begin(n, leaf + 1) ? first + j : -1;
}

// ---- shared memory ----

__device__ __forceinline__ uint4 load_16(uint32_t at) {
    uint4 v;
    asm volatile("ld.shared.v4.b32 {%0, %1, %2, %3}, [%4];" : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w) : "r"(at));
    return v;
}
__device__ __forceinline__ float load_4(uint32_t at) {
    float v;
    asm volatile("ld.shared.f32 %0, [%1];" : "=f"(v) : "r"(at));
    return v;
}

// ---- producer ----

// Lanes 0 and 1 copy the weights of the two halves of a tile, lanes 2 and 3 their scales. On GPUs without bulk copies all lanes
// copy all of them.
template <sl_linear_end END, sl_format F, int SCALES, int ROWS>
__device__ __forceinline__ void produce(const sl_cuda_linear &p, const layout &l, block_shared *b, uint32_t stages, int lane) {
    typedef sizes<F, SCALES, ROWS> S;
    const int n = p.packing.n_pieces, n_steps = steps_of(p), half = lane & 1, is_scale = lane / 2 & 1;
    const bool has_sets = p.packing.n_sets > 1;
    const char *data = (const char *)(is_scale ? (const void *)p.scale : p.w);
    const size_t row_bytes = is_scale ? (size_t)p.packing.n_sets * S::SCALE_ROWS : (size_t)n * S::PIECE; // of 8 rows
    const uint32_t piece_bytes = is_scale ? has_sets * S::SCALE_ROWS : S::PIECE;
    const uint32_t to = stages + (is_scale ? 2 * S::HALF + half * S::SCALE_HALF : half * S::HALF);
    const uint64_t policy = sl_l2_policy(SL_L2_FIRST_OUT);
    const tile_range tiles(l.n_tiles);
    int stage = 0, parity = 1;
    for (int tile = tiles.begin; tile < tiles.end; tile += S::TILES) {
        const char *from[S::TILES];
#pragma unroll
        for (int i = 0; i < S::TILES; i++) {
            const tile_rows rows = ending<END>::rows(p, tile + i);
            const bool exists = tile + i < tiles.end && (half ? rows.n_hi : rows.n_lo) > 0;
            from[i] = exists ? data + (half ? rows.hi : rows.lo) / PIECE_ROWS * row_bytes : nullptr;
        }
        for (int j = 0; j < n_steps; j += S::PP) {
            const int count = min((int)S::STAGE_PIECES, n - SL_LEAVES * j);
#pragma unroll
            for (int i = 0; i < S::TILES; i++) {
                if (tile + i >= tiles.end) continue;
                const int bytes = !from[i] ? 0 : is_scale && !has_sets ? S::SCALE_ROWS : count * piece_bytes;
                const char *source = from[i] + SL_LEAVES * j * piece_bytes;
                uint64_t *full = &b->full[stage];
                barrier_wait(&b->empty[stage], parity);
#if __CUDA_ARCH__ >= 900
                const int total = __reduce_add_sync(~0u, lane < 4 ? bytes : 0);
                if (lane == 0) barrier_expect(full, total);
                __syncwarp();
                if (lane < 4 && bytes) copy_bulk(to + stage * S::STAGE, source, bytes, full, policy);
#else
                for (int c = 0; c < 4; c++)
                    copy_warp(__shfl_sync(~0u, to + stage * S::STAGE, c),
                              (const void *)__shfl_sync(~0u, (unsigned long long)source, c), __shfl_sync(~0u, bytes, c));
                arrive_after_copies(full);
                if (lane == 0) barrier_arrive(full);
#endif
                if (++stage == l.n_stages) stage = 0, parity ^= 1;
            }
        }
    }
}

// ---- x ----

// Copies AT_ONCE steps of x from step j on to `to`, the place of the first one, for a consumer's leaves. Lane (g, t) copies
// what it needs: row g, and of each 32 columns u the columns 8 t to 8 t + 7. With one row of x, lanes of different g copy
// different steps. Zeros where the row or the piece does not exist. Reads past L1, which may hold x of an earlier step.
template <typename S>
__device__ __forceinline__ void copy_x(const sl_cuda_linear &p, int warp, int lane, int j, int n_places, uint32_t to) {
    const int g = lane / 4, t = lane % 4;
    const bool is_one = S::LANES == 4; // one row of x
    if (is_one && g >= n_places) return;
#pragma unroll
    for (int own = 0; own < S::OWN; own++) {
        const int piece = piece_of(p.packing.n_pieces, S::OWN * warp + own, is_one ? j + g : j);
        const uint32_t at = to + (is_one ? g * S::X_STEP + t * 16 : lane * 16) + own * S::X_PIECE;
#pragma unroll
        for (int i = 0; i < S::VECTORS; i++) {
            const int row = is_one ? 0 : i / STEPS * 8 + g, k = piece * PIECE_COLS + i % STEPS * STEP + 8 * t;
            const bool exists = row < p.n_rows && piece >= 0 && k < p.n_in;
            asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(at + i * S::LANES * 16),
                         "l"(p.x + (exists ? (size_t)row * p.n_in + k : 0)), "r"(exists ? 16 : 0)
                         : "memory");
        }
    }
}

// Closes a group of copies; waits until all groups but the newest N have landed.
__device__ __forceinline__ void close_copies() {
    asm volatile("cp.async.commit_group;" ::: "memory");
}
template <int N> __device__ __forceinline__ void wait_copies() {
    asm volatile("cp.async.wait_group %0;" ::"n"(N) : "memory");
    __syncwarp();
}

// ---- products ----

__device__ __forceinline__ float4 add(float4 a, float4 b) {
    return {a.x + b.x, a.y + b.y, a.z + b.z, a.w + b.w};
}

__device__ __forceinline__ uint32_t word(const uint4 (&v)[2], int i) {
    const uint4 &x = v[i / 4];
    return i % 4 == 0 ? x.x : i % 4 == 1 ? x.y : i % 4 == 2 ? x.z : x.w;
}

// sl_mma_bf16 without `volatile`, so that the compiler may interleave the instructions of several pieces.
__device__ __forceinline__ void mma(float4 &c, uint32_t a0, uint32_t a1, uint32_t a2, uint32_t a3, uint32_t b0, uint32_t b1) {
    asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
        : "+f"(c.x), "+f"(c.y), "+f"(c.z), "+f"(c.w)
        : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b0), "r"(b1));
}

// sum += a piece of 16 rows of W times a piece of x. w: words of row g of the two halves. An instruction multiplies 4 columns
// of each lane. Neighbouring instructions add to different sums (CHAINS), so that one need not wait for the one before it.
template <sl_format F, int SCALES, int BLOCKS>
__device__ __forceinline__ void multiply(const packing<F> &unpacker, const uint4 (&w)[2][2], const float (&scale)[2][SCALES],
                                         const uint4 (&x)[STEPS * BLOCKS], float4 (&sum)[BLOCKS]) {
    constexpr int CHAINS = SCALES == 1 ? 2 : SCALES, WORDS = packing<F>::WORDS;
    float4 y[CHAINS][BLOCKS] = {};
#pragma unroll
    for (int half = 0; half < 2; half++)
#pragma unroll
        for (int u = 0; u < STEPS; u++) {
            const uint32_t lo_words[2] = {word(w[0], u * WORDS), word(w[0], u * WORDS + WORDS - 1)};
            const uint32_t hi_words[2] = {word(w[1], u * WORDS), word(w[1], u * WORDS + WORDS - 1)};
            uint32_t lo[2], hi[2];
            unpacker.unpack(lo_words, half, lo);
            unpacker.unpack(hi_words, half, hi);
#pragma unroll
            for (int b = 0; b < BLOCKS; b++) {
                const uint4 &v = x[STEPS * b + u];
                mma(y[u % CHAINS][b], lo[0], hi[0], lo[1], hi[1], half ? v.z : v.x, half ? v.w : v.y);
            }
        }
#pragma unroll
    for (int b = 0; b < BLOCKS; b++) {
        if (SCALES == 1) y[0][b] = add(y[0][b], y[1][b]);
#pragma unroll
        for (int s = 0; s < SCALES; s++) { // fused explicitly, so that every number of rows gets the same roundings
            sum[b].x = __fmaf_rn(scale[0][s], y[s][b].x, sum[b].x), sum[b].y = __fmaf_rn(scale[0][s], y[s][b].y, sum[b].y);
            sum[b].z = __fmaf_rn(scale[1][s], y[s][b].z, sum[b].z), sum[b].w = __fmaf_rn(scale[1][s], y[s][b].w, sum[b].w);
        }
    }
}

// ---- consumers ----

template <sl_format F, int SCALES, int ROWS> struct consumer {
    typedef sizes<F, SCALES, ROWS> S;
    const sl_cuda_linear &p;
    const layout &l;
    const uint32_t stages, x_at; // x_at: this warp's part of x
    const int warp, lane;
    const packing<F> unpacker = {};

    // Piece `place` of the stage at `from`, a piece of the consumer's leaf `own`. x: the place of the step of x
    __device__ __forceinline__ void multiply_piece(uint32_t from, int place, uint32_t x, int own,
                                                   float4 (&sum)[S::BLOCKS]) const {
        uint4 w[2][2], v[S::VECTORS];
        float scale[2][SCALES];
        const uint32_t at = from + place * S::PIECE + lane * 16;
        const uint32_t scales = from + 2 * S::HALF + (p.packing.n_sets > 1 ? place : 0) * S::SCALE_ROWS + lane / 4 * 4 * SCALES;
#pragma unroll
        for (int half = 0; half < 2; half++) {
#pragma unroll
            for (int c = 0; c < S::WORDS; c++) w[half][c] = load_16(at + half * S::HALF + 512 * c);
#pragma unroll
            for (int s = 0; s < SCALES; s++) scale[half][s] = load_4(scales + half * S::SCALE_HALF + 4 * s);
        }
#pragma unroll
        for (int i = 0; i < S::VECTORS; i++) {
            v[i] = uint4{0, 0, 0, 0};
            if (lane < S::LANES) v[i] = load_16(x + own * S::X_PIECE + (i * S::LANES + lane) * 16);
        }
        multiply<F, SCALES, S::BLOCKS>(unpacker, w, scale, v, sum);
    }

    // The stage at `from`: steps j to j + PP - 1 of a tile. x: the place of step j of x
    __device__ __forceinline__ void multiply_stage(uint32_t from, int j, uint32_t x, float4 (&sum)[S::OWN][S::BLOCKS]) const {
        const int n = p.packing.n_pieces;
        if (SL_LEAVES * (j + S::PP) <= n) {
#pragma unroll
            for (int k = 0; k < S::PP; k++)
#pragma unroll
                for (int own = 0; own < S::OWN; own++)
                    multiply_piece(from, SL_LEAVES * k + S::OWN * warp + own, x + k * S::X_STEP, own, sum[own]);
            return;
        }
#pragma unroll
        for (int own = 0; own < S::OWN; own++) // some leaves have no piece in the last step
#pragma unroll 1
            for (int k = 0; k < S::PP; k++) {
                const int leaf = S::OWN * warp + own;
                if (piece_of(n, leaf, j + k) < 0) continue;
                multiply_piece(from, sl_piece_at(n, leaf, j + k) - SL_LEAVES * j, x + k * S::X_STEP, own, sum[own]);
            }
    }

    __device__ __forceinline__ void run(block_shared *b, float4 *parts) const {
        const int n_steps = steps_of(p);
        const bool is_whole = l.x_steps >= n_steps;
        const tile_range tiles(l.n_tiles);
        int stage = 0, parity = 0, buffer = 0, parts_parity = 1;
        int turn = 1; // which AT_ONCE steps of x are in use, if x is not whole
        sl_wait_previous();
        for (int j = 0; j < (is_whole ? n_steps : S::AT_ONCE); j += S::AT_ONCE)
            copy_x<S>(p, warp, lane, j, is_whole ? n_steps - j : S::AT_ONCE, x_at + j * S::X_STEP);
        close_copies();
        if (is_whole) wait_copies<0>();
        for (int tile = tiles.begin; tile < tiles.end; tile += S::TILES) {
            const int n_now = min((int)S::TILES, tiles.end - tile);
            float4 sum[S::TILES][S::OWN][S::BLOCKS] = {};
#pragma unroll 1
            for (int j = 0; j < n_steps; j += S::PP) {
                if (!is_whole && j % S::AT_ONCE == 0) { // the steps after these, or the first ones for the next tiles
                    const int next = j + S::AT_ONCE < n_steps ? j + S::AT_ONCE : 0;
                    __syncwarp();
                    copy_x<S>(p, warp, lane, next, S::AT_ONCE, x_at + turn * S::AT_ONCE * S::X_STEP);
                    turn ^= 1;
                    close_copies();
                    wait_copies<1>();
                }
                const uint32_t x_step = x_at + (is_whole ? j : turn * S::AT_ONCE + j % S::AT_ONCE) * S::X_STEP;
#pragma unroll
                for (int i = 0; i < S::TILES; i++) {
                    if (i >= n_now) continue;
                    barrier_wait(&b->full[stage], parity);
                    multiply_stage(stages + stage * S::STAGE, j, x_step, sum[i]);
                    __syncwarp();
                    if (lane == 0) leave_stage(&b->empty[stage]);
                    if (++stage == l.n_stages) stage = 0, parity ^= 1;
                }
            }
            barrier_wait(&b->parts_empty[buffer], parts_parity);
            float4 *to = parts + buffer * (S::PARTS / (int)sizeof(float4)) + warp * S::TILES * S::BLOCKS * 32 + lane;
#pragma unroll
            for (int i = 0; i < S::TILES; i++)
#pragma unroll
                for (int block = 0; block < S::BLOCKS; block++)
                    to[(i * S::BLOCKS + block) * 32] =
                        S::OWN == 1 ? sum[i][0][block] : add(sum[i][0][block], sum[i][S::OWN - 1][block]);
            __syncwarp();
            if (lane == 0) barrier_arrive(&b->parts_full[buffer]);
            parts_parity ^= buffer, buffer ^= 1;
        }
        wait_copies<0>();
    }
};

// ---- finishers ----

template <sl_linear_end END, typename S>
__device__ __forceinline__ void finish(const sl_cuda_linear &p, const layout &l, block_shared *b, const float4 *parts, int warp,
                                       int lane) {
    enum { PARTS = S::PARTS / (int)sizeof(float4), BLOCKS = S::BLOCKS };
    const int g = lane / 4, t = lane % 4, thread = warp * 32 + lane;
    const tile_range tiles(l.n_tiles);
    sl_wait_previous();
    if (END == SL_LINEAR_ROPE_APPEND && thread < p.n_rows) {
        const int32_t position = __ldcg(&p.rows[thread].position);
        const int32_t *pages = (const int32_t *)__ldcg((const uintptr_t *)&p.rows[thread].pages);
        b->kv_row[thread] = kv_row_of(p, thread, __ldcg(pages + position / SL_PAGE), position);
    }
    if (END != SL_LINEAR_ADD) find_factors<FINISHERS>(p, warp, lane, b->factor);
    asm volatile("bar.sync %0, %1;" ::"n"((int)FINISHER_BARRIER), "n"(32 * (int)FINISHERS) : "memory");
    int turn = 0, buffer = 0, parity = 0;
    for (int tile = tiles.begin; tile < tiles.end; tile += S::TILES) {
        const int n_jobs = min((int)S::TILES, tiles.end - tile) * BLOCKS;
        for (int job = 0; job < n_jobs; job++) {
            const bool is_mine = turn == warp;
            turn = turn + 1 == FINISHERS ? 0 : turn + 1;
            if (!is_mine) continue;
            const int own = job / BLOCKS, first = job % BLOCKS * 8; // the tile, and its first row of x
            float2 before[2] = {};
            for (int c = 0; c < 2; c++)
                if (first + 2 * t + c < p.n_rows) before[c] = ending<END>::before(p, tile + own, g, first + 2 * t + c);
            const ushort2 next_w = next_weights<END>(p, tile + own, g);
            barrier_wait(&b->parts_full[buffer], parity);
            float4 y[S::CONSUMERS];
#pragma unroll
            for (int w = 0; w < S::CONSUMERS; w++) y[w] = parts[buffer * PARTS + (w * S::TILES * BLOCKS + job) * 32 + lane];
#pragma unroll
            for (int step = 1; step < S::CONSUMERS; step *= 2)
#pragma unroll
                for (int w = 0; w < S::CONSUMERS; w += 2 * step) y[w] = add(y[w], y[w + step]);
            end_tile<END>(p, tile + own, lane, first, y[0], before, next_w, b->factor, b->kv_row);
        }
        barrier_wait(&b->parts_full[buffer], parity); // finishers without a tile may be a phase behind
        __syncwarp();
        if (lane == 0) barrier_arrive(&b->parts_empty[buffer]);
        parity ^= buffer, buffer ^= 1;
    }
}

// y = W x, then the ending.
//
// Grid: one thread block per multiprocessor. Thread block b computes the tiles (16 rows of W each) [n_tiles b / grid,
// n_tiles (b + 1) / grid), TILES at a time.
//
// Needs: x 16-byte aligned, n_in a multiple of 8; with RoPE head_dim a multiple of 16.
// Bytes: W and its scales once from device memory. x once from L2, or once per TILES tiles where it does not fit.
// Rate: `sleigh bench decode --load-format dummy` of Llama-3.1-8B: the linear layers of a step take 1.61, 1.77 and 2.26 ms for
// 1, 8 and 16 rows with int4, and 2.37 and 3.11 ms for 1 and 16 rows with fp8 (H200, 30 November 2026). results/quantised.md
// compares these times with the time of the bytes, and says what is missing.
// Reduction order: leaf l has the pieces [n l / 16, n (l + 1) / 16) of the n pieces of a row. A leaf adds its pieces in order.
// Within a piece an instruction adds 16 products to a running sum. Each scale has a running sum. A piece with one scale has
// two: for its even and for its odd 32 columns; they are added at the end. Leaves are added as a binary tree: 0 + 1, 2 + 3, ...
// The order depends on n_in and the group size only, so other rows of x, and the place of a row in x, do not change the bits
// of the row.
template <sl_linear_end END, sl_format F, int SCALES, int ROWS>
__global__ void __launch_bounds__(sizes<F, SCALES, ROWS>::THREADS, 1)
    packed_linear_kernel(const __grid_constant__ sl_cuda_linear p, const __grid_constant__ layout l) {
    typedef sizes<F, SCALES, ROWS> S;
    extern __shared__ __align__(128) char shared[];
    __shared__ block_shared b;
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    if (threadIdx.x == 0) {
        for (int i = 0; i < l.n_stages; i++) barrier_init(&b.full[i], FULL_ARRIVALS), barrier_init(&b.empty[i], S::CONSUMERS);
        for (int i = 0; i < 2; i++) barrier_init(&b.parts_full[i], S::CONSUMERS), barrier_init(&b.parts_empty[i], FINISHERS);
        barriers_made();
    }
    __syncthreads();
    sl_start_next(); // the ring of the next kernel fills while this kernel computes
    const uint32_t stages = shared_address(shared), x_at = stages + l.n_stages * S::STAGE, x_bytes = l.x_steps * S::X_STEP;
    float4 *parts = (float4 *)(shared + l.n_stages * S::STAGE + S::CONSUMERS * x_bytes);
    if (warp < S::CONSUMERS)
        consumer<F, SCALES, ROWS>{p, l, stages, x_at + warp * x_bytes, warp, lane}.run(&b, parts);
    else if (warp == S::CONSUMERS)
        produce<END, F, SCALES, ROWS>(p, l, &b, stages, lane);
    else
        finish<END, S>(p, l, &b, parts, warp - S::CONSUMERS - 1, lane);
}

// Bytes of dynamic shared memory of a thread block.
int most_shared() {
    return sl_device_get(cudaDevAttrMaxSharedMemoryPerBlockOptin) - (int)sizeof(block_shared);
}

// Chooses the layout for `most` bytes of shared memory, and returns the bytes; 0: not even two stages and a part of x fit.
template <typename S> int choose(int n_pieces, int most, layout *l) {
    const int n_steps = (n_pieces + SL_LEAVES - 1) / SL_LEAVES, fixed = 2 * S::PARTS;
    l->x_steps = n_steps;
    l->n_stages = (most - fixed - S::CONSUMERS * n_steps * S::X_STEP) / S::STAGE;
    if (l->n_stages < 2 && n_steps > 2 * S::AT_ONCE) {
        l->x_steps = 2 * S::AT_ONCE;
        l->n_stages = (most - fixed - S::CONSUMERS * l->x_steps * S::X_STEP) / S::STAGE;
    }
    if (l->n_stages > MOST_STAGES) l->n_stages = MOST_STAGES;
    return l->n_stages < 2 ? 0 : fixed + S::CONSUMERS * l->x_steps * S::X_STEP + l->n_stages * S::STAGE;
}

// 1: there is a layout of the kernels for this many rows of x, with any format.
template <int ROWS> int fits(int n_pieces) {
    layout l;
    const int most = most_shared();
    return choose<sizes<SL_INT4, 1, ROWS>>(n_pieces, most, &l) > 0 && choose<sizes<SL_INT4, 4, ROWS>>(n_pieces, most, &l) > 0 &&
           choose<sizes<SL_INT8, 1, ROWS>>(n_pieces, most, &l) > 0 && choose<sizes<SL_FP8, 1, ROWS>>(n_pieces, most, &l) > 0;
}

template <sl_linear_end END, sl_format F, int SCALES, int ROWS> void launch(const sl_cuda_linear &p, cudaStream_t stream) {
    layout l = {.n_tiles = n_tiles_of<END>(p), .n_stages = 0, .x_steps = 0};
    // Over half of the shared memory: see linear.cu.
    const int shared = max(choose<sizes<F, SCALES, ROWS>>(p.packing.n_pieces, most_shared(), &l), over_half());
    SL_CHECK(l.n_stages >= 2);
    sl_launch(packed_linear_kernel<END, F, SCALES, ROWS>, dim3(min(l.n_tiles, sl_multiprocessors())),
              dim3(sizes<F, SCALES, ROWS>::THREADS), shared, stream, p, l);
}

template <sl_linear_end END, sl_format F, int SCALES> void launch(const sl_cuda_linear &p, cudaStream_t stream) {
    if (p.n_rows == 1)
        launch<END, F, SCALES, 1>(p, stream);
    else if (p.n_rows <= 8)
        launch<END, F, SCALES, 8>(p, stream);
    else
        launch<END, F, SCALES, 16>(p, stream);
}

} // namespace

int sl_cuda_packed_fits(int n_cols) {
    const int n_pieces = (n_cols + PIECE_COLS - 1) / PIECE_COLS;
    return n_cols <= SL_PACKED_COLS && fits<1>(n_pieces) && fits<8>(n_pieces);
}

int sl_cuda_packed_rows(void) {
    return fits<16>(SL_PACKED_COLS / PIECE_COLS) ? SL_PACKED_ROWS : 8; // the largest matrix has the largest part of x
}

void sl_cuda_packed_linear(const sl_cuda_linear *args, cudaStream_t stream) {
    const sl_cuda_linear &p = *args;
    SL_CHECK(p.n_rows <= sl_cuda_packed_rows() && p.n_out % PIECE_ROWS == 0);
    SL_CHECK(p.end != SL_LINEAR_SWIGLU || p.n_out % TILE == 0);
    SL_CHECK(p.packing.per_piece == 1 || p.packing.format == SL_INT4);
    by_format(p.packing.format, [&](auto format) {
        by_ending(p, [&](auto end) {
            if (p.packing.per_piece == 1)
                launch<end(), format(), 1>(p, stream);
            else if constexpr (format() == SL_INT4)
                launch<end(), format(), 4>(p, stream);
        });
    });
}
