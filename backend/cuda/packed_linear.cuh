// backend/cuda/packed_linear.cuh - the kernels for the linear layers of a decode step with quantised weights. See linear.h and
// packed.h. The naive version is naive_linear in tests/cuda/naive.h. Several sources include this file, and each makes the
// kernels of some kinds of packings (PACKED_LINEAR), because one source would compile for minutes.
//
// With 4 or 8 bits a number, the time of a matrix is only partly the time of its bytes: each number must also become a bf16,
// and with small matrices the time from one kernel to the next counts. Therefore
//   - one warp issues all copies of weights, a few large ones. Three warps end the tiles. The other warps only multiply.
//   - a stored integer becomes a bf16 with one AND-OR and one subtraction for two numbers (int4): 128 + u is the bf16 with
//     bits 0x4300 | u. Scales multiply fp32 sums, so the matrix instructions see exact integers.
//   - x lies in shared memory. If thread blocks read it from the L2 cache for every few tiles, 16 rows of x take longer than
//     the weights. So thread blocks of two kernels do not fit on a multiprocessor.
//   - y = W x with minimums is the sum over the groups of scale * sum(u x) + min * sum(x). Another matrix instruction, with
//     ones in the place of W, gives the sums of x.
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
// | parts                   | [1 or 2][consumer][TILES][blocks of 8 rows of x][32] float4                                   |
// | kv_row, factor          | static: [SL_PACKED_ROWS] size_t and float                                                     |
#ifndef SLEIGH_CUDA_PACKED_LINEAR_CUH
#define SLEIGH_CUDA_PACKED_LINEAR_CUH

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

// An entry of SL_PACKED_KINDS.
template <sl_format FORMAT_, int SCALES_, int WIDTH_> struct kind {
    static constexpr sl_format FORMAT = FORMAT_;
    enum {
        SCALES = SCALES_, // of a row and piece
        WIDTH = WIDTH_,   // numbers of a scale
        NUMBERS = SCALES * WIDTH,
        HAS_MIN = FORMAT == SL_UINT4 || FORMAT == SL_UINT8,
        HAS_ZERO = WIDTH == 2 && !HAS_MIN, // the columns may have another order too
        IS_SPLIT = SCALES == 8             // a lane has two times four columns of each 32
    };
    typedef packing<FORMAT> unpacker;
};

// Constants of a kernel. ROWS of x: 1, up to 8, up to 16. Sizes in bytes.
template <typename K, int ROWS> struct sizes {
    typedef K packed;
    enum {
        WORDS = K::unpacker::WORDS,
        // Warps. With 16 rows and many scales, or 8 bits, a warp needs more registers than 16 warps can have.
        CONSUMERS = ROWS > 8 && (int)K::NUMBERS *WORDS > 1 ? 8 : 16,
        OWN = SL_LEAVES / CONSUMERS, // leaves of a consumer
        THREADS = 32 * (CONSUMERS + 1 + FINISHERS),
        // Tiles that use one load of x, where x does not fit into shared memory; finished together. With one tile there is room
        // for two stages of many scales beside 16 rows.
        TILES = ROWS > 8 && WORDS == 2 && (int)K::NUMBERS > 1 ? 1 : 2,
        PIECE = 512 * WORDS,
        // Steps of a stage. With two steps and many scales, registers spill.
        PP = ROWS == 1 && WORDS == 1 && (int)K::NUMBERS <= 4 ? 2 : 1,
        STAGE_PIECES = PP * SL_LEAVES,            // pieces of 8 rows in a stage
        SCALE_ROWS = 4 * PIECE_ROWS * K::NUMBERS, // the scales of 8 rows and a piece
        HALF = STAGE_PIECES * PIECE,
        SCALE_HALF = STAGE_PIECES * SCALE_ROWS,
        STAGE = 2 * (HALF + SCALE_HALF),
        BLOCKS = ROWS > 8 ? 2 : 1,  // of 8 rows of x
        LANES = ROWS == 1 ? 4 : 32, // lanes with numbers of their own of x
        VECTORS = STEPS * BLOCKS,   // reads of 16 bytes by a lane, for a piece of x
        X_PIECE = VECTORS * LANES * 16,
        X_STEP = OWN * X_PIECE,                                        // of a consumer
        BUFFERS = CONSUMERS * BLOCKS > 16 ? 1 : 2,                     // of parts, as many as there is room for
        PARTS = CONSUMERS * TILES * BLOCKS * 32 * (int)sizeof(float4), // bytes of a buffer
    };
};

// What the launch chooses.
struct layout {
    int n_tiles;     // of the packed matrix
    int tile_pieces; // of a tile of W; tiles lie side by side (packed.h)
    int n_stages;
    int x_steps; // of x in shared memory: all of a row, or 2, of which one is in use while the other one is copied
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
// The scales of a row.
template <int N> __device__ __forceinline__ void load_scales(uint32_t at, float (&v)[N]) {
    if constexpr (N % 8 == 0) {
#pragma unroll
        for (int i = 0; i < N; i += 4) {
            const uint4 x = load_16(at + 4 * i);
            v[i] = __uint_as_float(x.x), v[i + 1] = __uint_as_float(x.y), v[i + 2] = __uint_as_float(x.z);
            v[i + 3] = __uint_as_float(x.w);
        }
    } else {
#pragma unroll
        for (int i = 0; i < N; i++) v[i] = load_4(at + 4 * i);
    }
}

// ---- producer ----

// Lanes 0 and 1 copy the weights of the two halves of a tile, lanes 2 and 3 their scales. On GPUs without bulk copies all lanes
// copy all of them.
template <sl_linear_end END, typename S>
__device__ __forceinline__ void produce(const sl_cuda_linear &p, const layout &l, block_shared *b, uint32_t stages, int lane) {
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

// Where the 16 bytes of lane (g, t) lie. Of split pieces (packed.h) lanes read two times 8 bytes. The 8 bytes that 16 lanes
// read at once come from all banks, because the pieces of 16 bytes of rows 2, 3, 6 and 7 have changed places.
template <typename S> __device__ __forceinline__ int x_place(int lane) {
    return S::packed::IS_SPLIT && S::LANES == 32 ? lane ^ (lane / 4 & 2) : lane;
}

// Columns k to k + 7 of packed weights, which are other columns of row `row` of x.
__device__ __forceinline__ uint4 gather_x(const sl_cuda_linear &p, int row, int k) {
    const int4 *order = (const int4 *)(p.order + k);
    const int4 a = order[0], b = order[1];
    const unsigned short *x = (const unsigned short *)p.x + (size_t)row * p.n_in;
    const auto pair = [&](int lo, int hi) { return __ldcg(x + lo) | (uint32_t)__ldcg(x + hi) << 16; };
    return {pair(a.x, a.y), pair(a.z, a.w), pair(b.x, b.y), pair(b.z, b.w)};
}

// Copies columns k to k + 7 of a row of x. Zeros where the row or the columns do not exist. Reads past L1, which may hold x of
// an earlier step.
template <typename S> __device__ __forceinline__ void copy_8(const sl_cuda_linear &p, int row, int k, uint32_t to) {
    const bool exists = row < p.n_rows && k >= 0 && k < p.n_in;
    if (S::packed::HAS_ZERO && p.order) {
        const uint4 v = exists ? gather_x(p, row, k) : uint4{0, 0, 0, 0};
        asm volatile("st.shared.v4.b32 [%0], {%1, %2, %3, %4};" ::"r"(to), "r"(v.x), "r"(v.y), "r"(v.z), "r"(v.w) : "memory");
        return;
    }
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(to), "l"(p.x + (exists ? (size_t)row * p.n_in + k : 0)),
                 "r"(exists ? 16 : 0)
                 : "memory");
}

// Copies step j of x to `to`, for a consumer's leaves. tile_piece: the first piece of the tile that has these leaves, which x
// begins with. Lane (g, t) copies rows g and g + 8, and of each 32 columns u the
// columns 8 t to 8 t + 7.
template <typename S>
__device__ __forceinline__ void copy_step(const sl_cuda_linear &p, int warp, int lane, int tile_piece, int j, uint32_t to) {
#pragma unroll
    for (int own = 0; own < S::OWN; own++) {
        const int piece = piece_of(p.packing.n_pieces, S::OWN * warp + own, j);
        const int first = (piece - tile_piece) * PIECE_COLS + lane % 4 * 8;
#pragma unroll
        for (int i = 0; i < S::VECTORS; i++)
            copy_8<S>(p, i / STEPS * 8 + lane / 4, piece < 0 ? -1 : first + i % STEPS * STEP,
                      to + own * S::X_PIECE + x_place<S>(lane) * 16 + i * S::LANES * 16);
    }
}

// Copies the one row of x to `to`, for a consumer: the pieces of its leaf, one behind the other, as in memory.
template <typename S>
__device__ __forceinline__ void copy_row(const sl_cuda_linear &p, int warp, int lane, int tile_piece, uint32_t to) {
    const int begin = sl_leaf_begin(p.packing.n_pieces, warp), end = sl_leaf_begin(p.packing.n_pieces, warp + 1);
    const int first = (begin - tile_piece) * PIECE_COLS;
    for (int i = lane; i < (end - begin) * (PIECE_COLS / 8); i += 32) copy_8<S>(p, 0, first + i * 8, to + i * 16);
}

// The columns c0 to c7 (packed.h) of a lane, from vector i of the piece of x at `from`.
template <typename S> __device__ __forceinline__ uint4 load_x(uint32_t from, int i, int lane) {
    if (S::LANES == 4) lane %= 4; // the sums of rows that do not exist are not used
    if (!S::packed::IS_SPLIT) return load_16(from + (i * S::LANES + lane) * 16);
    uint4 v;
    const uint32_t at = from + i * S::LANES * 16 + lane % 2 * 8;
    const int first = lane / 4 * 4 + lane % 4 / 2; // the lane that has copied c0 to c3
    asm volatile("ld.shared.v2.b32 {%0, %1}, [%2];" : "=r"(v.x), "=r"(v.y) : "r"(at + x_place<S>(first) * 16));
    asm volatile("ld.shared.v2.b32 {%0, %1}, [%2];" : "=r"(v.z), "=r"(v.w) : "r"(at + x_place<S>(first + 2) * 16));
    return v;
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

// sum += y with a factor for row g and one for row g + 8. Fused explicitly, so that every number of rows of x gets the same
// roundings.
__device__ __forceinline__ void add_scaled(float4 &sum, float lo, float hi, const float4 &y) {
    sum.x = __fmaf_rn(lo, y.x, sum.x), sum.y = __fmaf_rn(lo, y.y, sum.y);
    sum.z = __fmaf_rn(hi, y.z, sum.z), sum.w = __fmaf_rn(hi, y.w, sum.w);
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
// of each lane. Neighbouring instructions add to different sums (CHAINS), so that one need not wait for the one before it. The
// sums become complete, and are scaled, after each 4 instructions (FOLDS), or after all 8.
template <typename K, int BLOCKS>
__device__ __forceinline__ void multiply(const typename K::unpacker &unpacker, const uint4 (&w)[2][2],
                                         const float (&scale)[2][K::NUMBERS], const uint4 (&x)[STEPS * BLOCKS],
                                         float4 (&sum)[BLOCKS]) {
    constexpr int WORDS = K::unpacker::WORDS, SCALES = K::SCALES, WIDTH = K::WIDTH;
    constexpr int CHAINS = SCALES == 1 || K::HAS_MIN ? 2 : 4;
    constexpr bool FOLDS = K::HAS_MIN || K::IS_SPLIT;
    constexpr uint32_t ONES = 0x3f803f80;
    float4 y[CHAINS][BLOCKS] = {}, of_x[CHAINS][BLOCKS] = {}; // of_x: the sums of x
#pragma unroll
    for (int part = 0; part < 2; part++) {
#pragma unroll
        for (int i = 0; i < STEPS; i++) {
            const int half = K::HAS_MIN ? i / 2 : part, u = K::HAS_MIN ? 2 * part + i % 2 : i;
            const int zero = (SCALES == 1 ? 0 : u) * WIDTH + WIDTH - 1;
            const uint32_t lo_words[2] = {word(w[0], u * WORDS), word(w[0], u * WORDS + WORDS - 1)};
            const uint32_t hi_words[2] = {word(w[1], u * WORDS), word(w[1], u * WORDS + WORDS - 1)};
            uint32_t lo[2], hi[2];
            unpacker.unpack(lo_words, half, K::HAS_ZERO ? scale[0][zero] : K::unpacker::none(), lo);
            unpacker.unpack(hi_words, half, K::HAS_ZERO ? scale[1][zero] : K::unpacker::none(), hi);
#pragma unroll
            for (int b = 0; b < BLOCKS; b++) {
                const uint4 &v = x[STEPS * b + u];
                mma(y[u % CHAINS][b], lo[0], hi[0], lo[1], hi[1], half ? v.z : v.x, half ? v.w : v.y);
                if (K::HAS_MIN) mma(of_x[u % CHAINS][b], ONES, ONES, ONES, ONES, half ? v.z : v.x, half ? v.w : v.y);
            }
        }
        if (!FOLDS && part == 0) continue;
#pragma unroll
        for (int b = 0; b < BLOCKS; b++) {
            if (SCALES == 1) y[0][b] = add(y[0][b], y[1][b]);
#pragma unroll
            for (int c = 0; c < (SCALES == 1 ? 1 : CHAINS); c++) {
                const int s = (K::HAS_MIN ? 2 * part + c : K::IS_SPLIT ? 2 * c + part : c) * WIDTH;
                add_scaled(sum[b], scale[0][s], scale[1][s], y[c][b]);
                if (K::HAS_MIN) add_scaled(sum[b], scale[0][s + 1], scale[1][s + 1], of_x[c][b]);
                if (FOLDS) y[c][b] = of_x[c][b] = {0, 0, 0, 0};
            }
        }
    }
}

// ---- consumers ----

template <typename K, int ROWS> struct consumer {
    typedef sizes<K, ROWS> S;
    const sl_cuda_linear &p;
    const layout &l;
    const uint32_t stages, x_at; // x_at: this warp's part of x
    const int warp, lane;
    const int set_bytes; // from the scales of a piece to those of the next one
    const typename K::unpacker unpacker = {};

    // Piece `place` of the stage at `from`, a piece of the consumer's leaf `own`. x: the place of the step of x
    __device__ __forceinline__ void multiply_piece(uint32_t from, int place, uint32_t x, int own,
                                                   float4 (&sum)[S::BLOCKS]) const {
        uint4 w[2][2], v[S::VECTORS];
        float scale[2][K::NUMBERS];
        const uint32_t at = from + place * S::PIECE + lane * 16;
        const uint32_t scales = from + 2 * S::HALF + place * set_bytes + lane / 4 * 4 * K::NUMBERS;
#pragma unroll
        for (int half = 0; half < 2; half++) {
#pragma unroll
            for (int c = 0; c < S::WORDS; c++) w[half][c] = load_16(at + half * S::HALF + 512 * c);
            load_scales(scales + half * S::SCALE_HALF, scale[half]);
        }
#pragma unroll
        for (int i = 0; i < S::VECTORS; i++) v[i] = load_x<S>(x + own * S::X_PIECE, i, lane);
        multiply<K, S::BLOCKS>(unpacker, w, scale, v, sum);
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
        const int tile_piece = S::OWN * warp * p.packing.n_beside / SL_LEAVES * l.tile_pieces;
        const tile_range tiles(l.n_tiles);
        int stage = 0, parity = 0, buffer = 0, parts_parity = 1;
        int turn = 1; // which step of x is in use, if x is not whole
        sl_wait_previous();
        if (S::LANES == 4)
            copy_row<S>(p, warp, lane, tile_piece, x_at);
        else
            copy_step<S>(p, warp, lane, tile_piece, 0, x_at);
        close_copies();
        if (S::LANES == 4) wait_copies<0>();
        for (int tile = tiles.begin; tile < tiles.end; tile += S::TILES) {
            const int n_now = min((int)S::TILES, tiles.end - tile);
            float4 sum[S::TILES][S::OWN][S::BLOCKS] = {};
#pragma unroll 1
            for (int j = 0; j < n_steps; j += S::PP) {
                // The step after this one, or the first one for the next tiles. If x is whole, only the first tiles copy it.
                if (S::LANES == 32 && (!is_whole || tile == tiles.begin)) {
                    __syncwarp();
                    if (!is_whole || j + 1 < n_steps)
                        copy_step<S>(p, warp, lane, tile_piece, j + 1 < n_steps ? j + 1 : 0,
                                     x_at + (is_whole ? j + 1 : turn) * S::X_STEP);
                    turn ^= 1;
                    close_copies();
                    wait_copies<1>();
                }
                const uint32_t x_step = x_at + (is_whole ? j : turn) * S::X_STEP;
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
            if (++buffer == S::BUFFERS) buffer = 0, parts_parity ^= 1;
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
            for (int step = 1; step <= S::CONSUMERS; step *= 2) {
                if constexpr (END == SL_LINEAR_STORE) {
                    const int n_beside = p.packing.n_beside; // tiles, each with the sums of `step` consumers
#pragma unroll
                    for (int w = 0; step * n_beside == S::CONSUMERS && w < S::CONSUMERS; w += step)
                        end_tile<END>(p, (tile + own) * n_beside + w / step, lane, first, y[w], before, next_w, b->factor,
                                      b->kv_row);
                }
#pragma unroll
                for (int w = 0; w + step < S::CONSUMERS; w += 2 * step) y[w] = add(y[w], y[w + step]);
            }
            if (END != SL_LINEAR_STORE) end_tile<END>(p, tile + own, lane, first, y[0], before, next_w, b->factor, b->kv_row);
        }
        barrier_wait(&b->parts_full[buffer], parity); // finishers without a tile may be a phase behind
        __syncwarp();
        if (lane == 0) barrier_arrive(&b->parts_empty[buffer]);
        if (++buffer == S::BUFFERS) buffer = 0, parity ^= 1;
    }
}

// y = W x, then the ending.
//
// Grid: one thread block per multiprocessor. Thread block b computes the tiles (16 rows of W each) [n_tiles b / grid,
// n_tiles (b + 1) / grid), TILES at a time.
//
// Needs: x 16-byte aligned, n_in a multiple of 8; with RoPE head_dim a multiple of 16.
// Bytes: W and its scales once from device memory. x once from L2, or once per TILES tiles where it does not fit.
// Rate: `sleigh bench decode --load-format dummy` of Llama-3.1-8B: the linear layers of a step take 1.53, 1.72 and 2.13 ms for
// 1, 8 and 16 rows with int4, and 2.30 and 3.02 ms for 1 and 16 rows with fp8 (H200, 1 December 2026). results/quantised.md
// compares these times with the time of the bytes, and says what is missing.
// Reduction order: leaf l has the pieces [n l / 16, n (l + 1) / 16) of the n pieces of a row. A leaf adds its pieces in order.
// Within a piece an instruction adds 16 products to a running sum. Each scale has a running sum. A piece with one scale has
// two: for its even and for its odd 32 columns; they are added at the end. A minimum's product follows its scale's. Leaves are
// added as a binary tree: 0 + 1, 2 + 3, ... The columns of one of 2, 4 or 8 ranks are whole leaves (n_ranks), and their sum is
// a part of this tree. The order depends on n_in and the group size only, so other rows of x, and the place of a row in x, do
// not change the bits of the row.
template <sl_linear_end END, typename K, int ROWS>
__global__ void __launch_bounds__(sizes<K, ROWS>::THREADS, 1)
    packed_linear_kernel(const __grid_constant__ sl_cuda_linear p, const __grid_constant__ layout l) {
    typedef sizes<K, ROWS> S;
    extern __shared__ __align__(128) char shared[];
    __shared__ block_shared b;
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    if (threadIdx.x == 0) {
        for (int i = 0; i < l.n_stages; i++) barrier_init(&b.full[i], FULL_ARRIVALS), barrier_init(&b.empty[i], S::CONSUMERS);
        for (int i = 0; i < S::BUFFERS; i++)
            barrier_init(&b.parts_full[i], S::CONSUMERS), barrier_init(&b.parts_empty[i], FINISHERS);
        barriers_made();
    }
    __syncthreads();
    sl_start_next(); // the ring of the next kernel fills while this kernel computes
    const uint32_t stages = shared_address(shared), x_at = stages + l.n_stages * S::STAGE, x_bytes = l.x_steps * S::X_STEP;
    float4 *parts = (float4 *)(shared + l.n_stages * S::STAGE + S::CONSUMERS * x_bytes);
    if (warp < S::CONSUMERS)
        consumer<K, ROWS>{p, l, stages, x_at + warp * x_bytes, warp, lane, p.packing.n_sets > 1 ? (int)S::SCALE_ROWS : 0}.run(
            &b, parts);
    else if (warp == S::CONSUMERS)
        produce<END, S>(p, l, &b, stages, lane);
    else
        finish<END, S>(p, l, &b, parts, warp - S::CONSUMERS - 1, lane);
}

// Bytes of dynamic shared memory of a thread block.
int most_shared() {
    return sl_device_get(cudaDevAttrMaxSharedMemoryPerBlockOptin) - (int)sizeof(block_shared);
}

// Chooses the layout for `most` bytes of shared memory, and returns the bytes; 0: not even two stages and a part of x fit. One
// row of x lies there as a whole.
template <typename S> int choose(int n_pieces, int most, layout *l) {
    const int n_steps = (n_pieces + SL_LEAVES - 1) / SL_LEAVES, part = S::LANES == 32 ? min(2, n_steps) : n_steps;
    for (l->x_steps = n_steps;; l->x_steps = part) {
        const int fixed = S::BUFFERS * S::PARTS + S::CONSUMERS * l->x_steps * S::X_STEP;
        l->n_stages = min((most - fixed) / (int)S::STAGE, (int)MOST_STAGES);
        if (l->n_stages >= 2) return fixed + l->n_stages * S::STAGE;
        if (l->x_steps == part) return 0;
    }
}

template <sl_linear_end END, typename K, int ROWS> void launch(const sl_cuda_linear &p, cudaStream_t stream) {
    typedef sizes<K, ROWS> S;
    layout l = {.n_tiles = n_tiles_of<END>(p) / p.packing.n_beside,
                .tile_pieces = p.packing.n_pieces / p.packing.n_beside,
                .n_stages = 0,
                .x_steps = 0};
    // Over half of the shared memory: see linear.cu.
    const int shared = max(choose<S>(p.packing.n_pieces, most_shared(), &l), over_half());
    SL_CHECK(l.n_stages >= 2);
    sl_launch(packed_linear_kernel<END, K, ROWS>, dim3(min(l.n_tiles, sl_multiprocessors())), dim3(S::THREADS), shared, stream,
              p, l);
}

template <int ROWS, typename K> int fits(int n_pieces) {
    layout l;
    return choose<sizes<K, ROWS>>(n_pieces, most_shared(), &l) > 0;
}

} // namespace

// The functions of a kind: see packed_linear.cu.
template <sl_format F, int SCALES, int WIDTH> int sl_packed_rows(int n_pieces) {
    typedef kind<F, SCALES, WIDTH> K;
    return !fits<1, K>(n_pieces) || !fits<8, K>(n_pieces) ? 0 : fits<16, K>(n_pieces) ? 16 : 8;
}
template <sl_format F, int SCALES, int WIDTH> void sl_packed_launch(const sl_cuda_linear &p, cudaStream_t stream) {
    typedef kind<F, SCALES, WIDTH> K;
    by_ending(p, [&](auto end) {
        if (p.n_rows == 1)
            launch<end(), K, 1>(p, stream);
        else if (p.n_rows <= 8)
            launch<end(), K, 8>(p, stream);
        else
            launch<end(), K, 16>(p, stream);
    });
}

// Makes the kernels of an entry of SL_PACKED_KINDS.
#define PACKED_LINEAR(FORMAT, SCALES, WIDTH)                                                                                   \
    template int sl_packed_rows<FORMAT, SCALES, WIDTH>(int);                                                                   \
    template void sl_packed_launch<FORMAT, SCALES, WIDTH>(const sl_cuda_linear &, cudaStream_t);

#endif
