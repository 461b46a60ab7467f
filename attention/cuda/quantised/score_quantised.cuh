// attention/cuda/quantised/score_quantised.cuh - scores of quantised keys (propose_quantised.c), stored as masses, on CUDA.
// santa_is.cu and quantised_scores.cu (for dense-q and vattention) have this kernel. The newest page has no quantised copy yet,
// so its scores are exact. The naive version is in tests/cuda/naive.h: naive_quantised_score.
//
// | role      | warps        | does                                                                                    |
// |-----------|--------------|-----------------------------------------------------------------------------------------|
// | consumer  | 4 pairs of 2 | a pair takes a tile; each warp quantises half of the queries, then scores half the rows |
// | issuer    | 1            | copies quantised pages, or 32 rows of K and V of the newest page, and q                 |
// | planner   | 1            | takes tickets and lists the copies (quantised_tiles.cuh)                                |
// | announcer | 2            | adds a stored tile to `done` of its seq_head                                            |
//
// | shared memory, in order | bytes (int4, DIM 128, group 4) | contents                                               |
// |-------------------------|--------------------------------|--------------------------------------------------------|
// | quantised_shared        | 4 KB; with SIZES 8 KB          | barriers, tile_places, batches; means of heads         |
// | tile_space              | 8 x 720                        | twice for each pair: quantised queries, or masses      |
// | ring stages             | 7 x 17920                      | steps, zeros, code planes (or K and V); q [group][DIM] |
//
// Worked tile: int4, DIM 128, group 4. A tile is a page: 512 bytes of steps and zeros, 16 KB of codes, 1 KB of q. Warp 0 of the
// pair quantises heads 0 and 2, warp 1 heads 1 and 3: lane l multiplies channels 4 l .. 4 l + 3 by their steps and rounds to
// bytes. Then warp h scores blocks 4 h .. 4 h + 3 (32 rows each): 4 steps x 4 blocks x 4 = 64 mma.m16n8k32. They multiply
// signed query bytes by unsigned codes. Lane (g, q) gets 4 scores a block of head g % 4, and store_blocks turns them into
// masses.
//
// Tiles of the newest page with IS_BYTES: the scales of K and of V follow V.
//
// The integers are equal to the CPU's. So a score differs from the CPU's only by the order in which its bias is summed. For
// tiles of the newest page a pair can also sum mass * V. A separate kernel draws (take_all.cuh) and waits on `done`. Before
// `done` may grow, all threads must see the stored masses. That takes about a microsecond. So announcer warps wait for it, and
// consumers do not.
//
// With SIZES (santa-is with a stated error) built pages store sizes in place of row masses (quantised_masses.cuh). Stages also
// hold the norms |v| of the tile, after q.
#ifndef SLEIGH_SCORE_QUANTISED_CUH
#define SLEIGH_SCORE_QUANTISED_CUH

#include "attention/cuda/quantised/quantised_masses.cuh"
#include "attention/cuda/quantised/quantised_tiles.cuh"

#include <cuda_fp16.h>

extern "C" {
#include "attention/stages/stages.h"
}

namespace {

enum {
    ANNOUNCERS = 2,                                                   // warps: one continues while the other waits for memory
    QUANTISED_THREADS = PAIRS * PAIR_THREADS + 32 * (2 + ANNOUNCERS), // consumers, issuer, planner, announcers
    MASSES_BYTES = GROUP_MAX * EXACT_ROWS * sizeof(bf16),
    // Of a thread. Consumers take registers from the other warps (sm_90a; elsewhere all have SCORE_REGISTERS). With 80
    // registers, a consumer waits for one load before it can start the next one.
    SCORE_REGISTERS = 80,
    CONSUMER_REGISTERS = 96,
    OTHER_REGISTERS = 48,
    UNANNOUNCED = 8, // most tiles of a pair that are stored and not yet added to `done`
};

static_assert(2 * PAIRS * (CONSUMER_REGISTERS - SCORE_REGISTERS) <= (2 + ANNOUNCERS) * (SCORE_REGISTERS - OTHER_REGISTERS),
              "the consumers' registers");
static_assert(2 * PAIRS % 4 == 0 && (2 + ANNOUNCERS) % 4 == 0, "whole warp groups: set_registers");

// ---- shared memory ----

// The data that the warps of a pair exchange for one tile: the queries in the units of its page, or the masses of a tile of the
// newest page. A pair has two copies, so it needs only one barrier for each tile. They lie in shared memory.
template <int BITS> struct tile_space {
    enum {
        PARTS = BITS == 8 ? 2 : 1, // of 8-bit codes: the high part and the low part of a channel
        // Words of 4 channels in a query: PARTS * 32, the last ones zeros, and 8 more. So the words that the lanes of a warp
        // read at a time lie in different banks.
        WORDS = PARTS * 32 + 8,
    };
    char *at;
    int heads; // padded: of the group, a multiple of PASS
    static __host__ __device__ int padded(int group) { return ceil_div(group, PASS) * PASS; }
    static __host__ __device__ int bytes(int heads) {
        int queries = heads * (WORDS * (int)sizeof(uint32_t) + (int)sizeof(float4) + (int)sizeof(float));
        return queries > MASSES_BYTES ? queries : (int)MASSES_BYTES;
    }
    // The words of a head, in pairs: the parts of the same channels, or the words of channels 8 w .. 8 w + 3 and of the next
    // four.
    __device__ uint32_t *query(int head) const { return (uint32_t *)at + head * WORDS; }
    __device__ void put_word(int head, int w, uint32_t high, uint32_t low) const {
        if (PARTS == 1)
            query(head)[w] = high;
        else
            *(uint2 *)(query(head) + 2 * w) = make_uint2(high, low);
    }
    // Of a head: s = (dot - x) y + z; SIZES: w is 2^b, negative if b is too large.
    __device__ float4 *score() const { return (float4 *)query(heads); }
    __device__ float *mean() const { return (float *)(score() + heads); } // SIZES, of a head: keep_mean_of_heads
    typedef bf16 row_masses[EXACT_ROWS];
    __device__ row_masses *masses() const { return (row_masses *)at; } // [GROUP_MAX][EXACT_ROWS]
};

// Tiles of each pair that are stored and not yet added to `done`. Tile number i has the place i % UNANNOUNCED.
struct stored_tiles {
    uint64_t full[PAIRS][UNANNOUNCED], empty[PAIRS][UNANNOUNCED];
    int seq_head[PAIRS][UNANNOUNCED]; // -1: the pair has no more tiles
};
template <bool SIZES> struct __align__(128) quantised_shared { // then a tile_space twice for each pair, and the ring's stages
    ring_shared ring;
    planned_batches batches;
    stored_tiles stored;
    __align__(16) uint32_t zeros[tile_space<8>::WORDS]; // a query of zeros
    float means[SIZES ? (int)MEANS_KEPT : 1];           // of the first query heads: known_mean
};

// Makes the barriers. All consumers call it, before the thread block's first __syncthreads.
template <bool SIZES> __device__ void quantised_begin(quantised_shared<SIZES> *shared) {
    enum { WARPS = 2 * PAIRS };
    barriers_make<WARPS, PAIRS * UNANNOUNCED>(shared->stored.full[0], 2);
    barriers_make<WARPS, PAIRS * UNANNOUNCED>(shared->stored.empty[0], 1);
    barriers_make<WARPS, PAIRS * QUANTISED_STAGES>(shared->ring.full[0], FULL_ARRIVALS);
    barriers_make<WARPS, QUANTISED_STAGES>(shared->ring.empty, PAIR_THREADS);
    barriers_make<WARPS, 4>(shared->batches.full, 1); // and empty
    if (threadIdx.x < sizeof(shared->zeros) / sizeof(uint32_t)) shared->zeros[threadIdx.x] = 0;
    barriers_made();
}

// ---- a query in the units of a page ----

// Two f16 numbers as floats.
__device__ float2 halves(uint32_t x) {
    return __half22float2(*(const __half2 *)&x);
}

// x / y. The result is rounded to nearest if y and x / y are normal numbers.
__device__ float divide(float x, float y) {
    float inverse;
    asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(inverse) : "f"(y));
    inverse = fmaf(fmaf(-y, inverse, 1), inverse, inverse);
    float q = __fmul_rn(x, inverse);
    q = fmaf(fmaf(-y, q, x), inverse, q);
    return fmaf(fmaf(-y, q, x), inverse, q);
}

// Sums N numbers over the lanes of a warp. Lane l gets the sum of x[l % N]. N: 2 or 4.
template <int N> __device__ float sum_of_each(const float x[N]) {
    int lane = threadIdx.x % 32;
    float y[2] = {x[0], x[1]};
    if (N == 4) {
#pragma unroll
        for (int i = 0; i < 2; i++) y[i] = (lane & 2 ? x[2 + i] : x[i]) + __shfl_xor_sync(~0u, lane & 2 ? x[i] : x[2 + i], 2);
    }
    float z = (lane & 1 ? y[1] : y[0]) + __shfl_xor_sync(~0u, lane & 1 ? y[0] : y[1], 1);
#pragma unroll
    for (int step = N; step < 32; step *= 2) z += __shfl_xor_sync(~0u, z, step);
    return z;
}

// Packs four codes as bytes. code: the bits of 1.5 * 2^23 + code, so bit 22 and higher bits do not matter. 8-bit codes have the
// parts high and low: code = 128 high + low with -64 <= low < 64. Other codes have only one part.
template <int BITS> __device__ void pack_codes(const uint32_t code[4], uint32_t *high, uint32_t *low) {
    if constexpr (BITS == 8) {
        uint32_t x[4]; // 2 (code + 64): byte 1 is the high part, byte 0 is 2 (low + 64)
#pragma unroll
        for (int i = 0; i < 4; i++) x[i] = 2 * code[i] + 128;
        uint32_t first = __byte_perm(x[0], x[1], 0x4051), second = __byte_perm(x[2], x[3], 0x4051);
        *high = __byte_perm(first, second, 0x5410);
        uint32_t above = __byte_perm(first, second, 0x7632) >> 1; // low + 64
        *low = ((above | 0x80808080u) - 0x40404040u) ^ 0x80808080u;
    } else {
        *high = __byte_perm(__byte_perm(code[0], code[1], 0x40), __byte_perm(code[2], code[3], 0x40), 0x5410), *low = 0;
    }
}

// Quantises the queries of two heads, first and first + 2, for the steps and zeros at the tile's beginning (cpu_kernels.inc.h,
// quantise_query). A lane has four channels. For heads past the group, the function repeats the last head of the group, or is
// not called: store_blocks drops their scores.
template <int DIM, int BITS, bool SIZES>
__device__ void quantise_queries(const char *data, int first, int group, float scale, const tile_space<BITS> &out) {
    enum { SUMS = SIZES ? 4 : 2 }; // of a lane: the biases; SIZES: then the sums of |x|
    int lane = threadIdx.x % 32;
    const float middle = (float)((1 << BITS) - 1) / 2, levels = BITS == 8 ? 127 * 128 : 127, magic = 12582912.0f;
    float x[2][4] = {}, most[2] = {}, inverse[2], unit[2], total[SUMS] = {};
    int sum[2];
    if (lane < DIM / 4) {
        uint2 s = *(const uint2 *)(data + 8 * lane), z = *(const uint2 *)(data + 2 * DIM + 8 * lane);
        float2 s0 = halves(s.x), s1 = halves(s.y), z0 = halves(z.x), z1 = halves(z.y);
        const float step[4] = {s0.x, s0.y, s1.x, s1.y}, zero[4] = {z0.x, z0.y, z1.x, z1.y};
#pragma unroll
        for (int h = 0; h < 2; h++) {
            int head = min(first + 2 * h, group - 1);
            uint2 q = *(const uint2 *)(data + tile<DIM, BITS>::Q_AT + (head * DIM + 4 * lane) * 2);
#pragma unroll
            for (int i = 0; i < 4; i++) {
                uint32_t pair = i < 2 ? q.x : q.y;
                float own = __fmul_rn(__uint_as_float(i % 2 ? pair & 0xffff0000u : pair << 16), scale);
                x[h][i] = __fmul_rn(own, step[i]);
                total[h] = fmaf(own, zero[i], fmaf(x[h][i], middle, total[h]));
                most[h] = fmaxf(most[h], fabsf(x[h][i]));
                if (SIZES) total[2 + h] += fabsf(x[h][i]);
            }
        }
    }
    // The reductions of both heads come together, because each of them is a wait.
#pragma unroll
    for (int h = 0; h < 2; h++) // of bits: numbers are not negative
        most[h] = __uint_as_float(__reduce_max_sync(~0u, __float_as_uint(most[h])));
    float own = sum_of_each<SUMS>(total);
#pragma unroll
    for (int h = 0; h < 2; h++) {
        bool tiny = !(most[h] > 0x1p-100f); // such a query counts as 0
        float in = divide(levels, most[h]), of = divide(most[h], levels);
        inverse[h] = tiny ? 0 : in, unit[h] = tiny ? 0 : of;
    }
#pragma unroll
    for (int h = 0; h < 2; h++) {
        uint32_t code[4], high, low;
#pragma unroll
        for (int i = 0; i < 4; i++) code[i] = __float_as_uint(__fadd_rn(__fmul_rn(x[h][i], inverse[h]), magic));
        pack_codes<BITS>(code, &high, &low);
        out.put_word(first + 2 * h, lane, high, low);
        sum[h] = (int)(code[0] + code[1] + code[2] + code[3] - 4 * __float_as_uint(magic));
    }
#pragma unroll
    for (int h = 0; h < 2; h++) sum[h] = __reduce_add_sync(~0u, sum[h]);
    float own_unit = lane % 2 ? unit[1] : unit[0];
    float4 *score = out.score() + first + lane % 2 * 2;
    if (lane < 2) score->x = __fmul_rn(middle, (float)(lane ? sum[1] : sum[0])), score->y = own_unit, score->z = own;
    if (SIZES && lane / 2 == 1) {
        float bound = 0.5f * own + 0.5f * own_unit * middle * DIM;
        score->w = bound <= SL_MOST_SCORE_BOUND ? exp2f(bound) : -exp2f(SL_MOST_SCORE_BOUND);
    }
}

// ---- products ----

// d [16][8] = c + a [16][32] b [32][8]: signed query bytes times unsigned codes.
__device__ void mma_codes(int d[4], const uint32_t a[4], uint32_t b0, uint32_t b1, const int c[4]) {
    asm volatile("mma.sync.aligned.m16n8k32.row.col.s32.s8.u8.s32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
                 "{%10, %11, %12, %13};"
                 : "=r"(d[0]), "=r"(d[1]), "=r"(d[2]), "=r"(d[3])
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1), "r"(c[0]), "r"(c[1]), "r"(c[2]), "r"(c[3]));
}

// Dot products of two blocks of 32 rows with PASS heads.
//
// Lane (g, q) = (lane / 4, lane % 4) loads one word of unit 4 step + q of each of the rows 4 g .. 4 g + 3 of a block. These
// words are the operand b of two mma: rows 4 g and 4 g + 1 in the first one, rows 4 g + 2 and 4 g + 3 in the second. In column
// g of b, k < 16 belongs to the first row and k >= 16 to the second. So the queries have zeros where rows must not mix: rows 0
// .. 3 of the operand a have the heads in k < 16, rows 4 .. 7 have them in k >= 16. Rows 8 .. 15 have the second word of a pair
// of words (tile_space) in the same way. Lane (g, q) gets the sums of head g % 4 with rows 8 q + g / 4 + {0, 4} in the first
// accumulator, and with rows 8 q + g / 4 + {2, 6} in the second: c[0], c[1] of the first word of a pair, c[2], c[3] of the
// second.
template <int DIM, int BITS> struct code_scorer {
    typedef tile<DIM, BITS> at;
    // PAIRS_EACH: pairs of words in a unit. SUMS: accumulators of the same rows, for different bits of the codes.
    enum { PAIRS_EACH = BITS == 3 ? 2 : 1, SUMS = BITS == 8 ? 1 : 2, STEPS = (at::UNITS + 3) / 4 };
    int c[2][2][SUMS][4]; // [block][first or second accumulator][SUMS]: see above

    // What a lane loads for a step.
    struct operands {
        uint2 a[PAIRS_EACH][2]; // query words
        uint4 x[2], y[2];       // words of the planes, of each block
    };

    // first, second: the lane's words in the query, or in the zeros. group: of 16 rows.
    static __device__ operands load(const char *rows, const uint32_t *first, const uint32_t *second, int group, int step) {
        operands from = {};
        int unit = 4 * step + threadIdx.x % 4;
        // A unit past the last one reads the last one. Its query words are 0.
        if (at::UNITS % 4) unit = min(unit, at::UNITS - 1);
#pragma unroll
        for (int k = 0; k < PAIRS_EACH; k++) {
            from.a[k][0] = *(const uint2 *)(first + 2 * (4 * PAIRS_EACH * step + k));
            from.a[k][1] = *(const uint2 *)(second + 2 * (4 * PAIRS_EACH * step + k));
        }
#pragma unroll
        for (int b = 0; b < 2; b++, group += 2) {
            from.x[b] = *(const uint4 *)(rows + (group * at::UNITS + unit) * 64);
            if (BITS != 3) continue;
            uint4 y = *(const uint4 *)(rows + at::PLANE + (group * at::UNITS2 + unit / 2) * 64);
            int down = unit % 2 * 4;
            from.y[b] = make_uint4(y.x >> down, y.y >> down, y.z >> down, y.w >> down);
        }
        return from;
    }

    // block: first of the two blocks in the tile. zeros: a query of zeros. The operands of a step are loaded before the mma of
    // the step before.
    __device__ void multiply(const char *data, const uint32_t *query, const uint32_t *zeros, int block) {
        int g = threadIdx.x % 32 / 4, q = threadIdx.x % 4, group = block * 2 + g / 4;
        const char *rows = data + at::PLANE_AT + g % 4 * 16;
        const uint32_t *first = (g < PASS ? query : zeros) + 2 * PAIRS_EACH * q;
        const uint32_t *second = (g < PASS ? zeros : query) + 2 * PAIRS_EACH * q;
        const int zero[4] = {};
        operands next = load(rows, first, second, group, 0);
#pragma unroll
        for (int step = 0; step < STEPS; step++) {
            const operands now = next;
            if (step + 1 < STEPS) next = load(rows, first, second, group, step + 1);
#pragma unroll
            for (int b = 0; b < 2; b++) {
                const uint32_t xs[4] = {now.x[b].x, now.x[b].y, now.x[b].z, now.x[b].w};
                const uint32_t ys[4] = {now.y[b].x, now.y[b].y, now.y[b].z, now.y[b].w};
#pragma unroll
                for (int k = 0; k < PAIRS_EACH; k++) {
                    const uint32_t heads[4] = {now.a[k][0].x, now.a[k][0].y, now.a[k][1].x, now.a[k][1].y};
#pragma unroll
                    for (int i = 0; i < 2 * SUMS; i++) {
                        int row = i % 2 * 2, n = 2 * k + i / 2, *sum = c[b][i % 2][i / 2];
                        mma_codes(sum, heads, codes(xs[row], ys[row], n), codes(xs[row + 1], ys[row + 1], n),
                                  step + k ? sum : zero);
                    }
                }
            }
        }
    }

    // What mma number n of a unit multiplies, from the words of its planes: all bits of a word; int4: also its high codes,
    // times 16; int3: the codes of word n of the query.
    static __device__ uint32_t codes(uint32_t x, uint32_t y, int n) {
        if (BITS == 8) return x;
        if (BITS == 4) return n ? x & 0xf0f0f0f0u : x;
        return (x >> (2 * n) & 0x03030303u) | ((n < 2 ? y << (2 - n) : y >> (n - 2)) & 0x04040404u);
    }

    // The dot product of row 8 q + g / 4 + 2 i of block b.
    __device__ int dot(int b, int i) const {
        const int *x = c[b][i % 2][0] + i / 2, *y = c[b][i % 2][SUMS - 1] + i / 2;
        if (BITS == 8) return x[0] * 128 + x[2];
        if (BITS == 4) return x[0] - y[0] + (y[2] >> 4);
        return x[0] + y[2];
    }
};

// ---- consumers ----

// A barrier of the two warps of a pair.
__device__ void pair_sync(int pair) {
    asm volatile("bar.sync %0, %1;" ::"r"(2 + pair), "n"((int)PAIR_THREADS) : "memory");
}

// Four matrices of 8 x 8 elements of 16 bits, transposed. from: the lane's row in shared memory; lanes 8 i .. 8 i + 7 have
// those of matrix i. to[i]: of matrix i, rows 2 (lane % 4) and the next of column lane / 4.
__device__ __forceinline__ void load_transposed(uint32_t to[4], uint32_t from) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(to[0]), "=r"(to[1]), "=r"(to[2]), "=r"(to[3])
                 : "r"(from)
                 : "memory");
}

// The sums of mass * v over the rows of a tile of the newest page, for half of the dimensions. data: the stage. masses: [head
// of the group][EXACT_ROWS]. n_rows: rows of the sequence from the tile's first row on. to: of head 0; `stride` from head to
// head.
template <int DIM, int BITS>
__device__ __forceinline__ void sum_newest_values(const char *data, const bf16 (*masses)[EXACT_ROWS], int n_rows, int group,
                                                  int half, float *to, size_t stride) {
    int lane = threadIdx.x % 32, g = lane / 4, q = lane % 4;
#pragma unroll 1 // unrolled code needs more registers, and heads are drawn on the same multiprocessor
    for (int d = 16 * half; d < DIM; d += 32) {
        float c[4] = {};
#pragma unroll
        for (int k = 0; k < EXACT_ROWS; k += 16) {
            uint32_t a[4], from = shared_address(data) + tile<DIM, BITS>::V_AT +
                                  (k + lane / 16 * 8 + lane % 8) * layout<DIM>::ROW +
                                  (d + lane / 8 % 2 * 8) * (int)sizeof(bf16);
            load_transposed(a, from);
#pragma unroll
            for (int i = 0; i < 4; i++) { // memory after the last row can hold NaN
                int row = k + i / 2 * 8 + 2 * q;
                a[i] &= (row < n_rows ? 0xffffu : 0) | (row + 1 < n_rows ? 0xffff0000u : 0);
            }
            const uint32_t *w = (const uint32_t *)&masses[g][k];
            sl_mma_bf16(c, a[0], a[1], a[2], a[3], w[q], w[4 + q]);
        }
#pragma unroll
        for (int i = 0; i < 4; i++)
            if (2 * q + i % 2 < group) __stcg(to + (2 * q + i % 2) * stride + d + g + i / 2 * 8, c[i]);
    }
}

// The same for rows of bytes. Two dimensions of a row are one element of 16 bits, so lane (g, q) loads dimensions 2 g and 2 g +
// 1 of two rows at a time, which are rows g and g + 8 of the mma. The masses times the scales of V are operand b. They are the
// sum of two bf16 numbers: one bf16 number would lose up to 2^-9 of a row.
template <int DIM, int BITS, bool FP8>
__device__ __forceinline__ void sum_newest_bytes(const char *data, const bf16 (*masses)[EXACT_ROWS], int n_rows, int group,
                                                 int half, float *to, size_t stride) {
    typedef tile<DIM, BITS> at;
    int lane = threadIdx.x % 32, g = lane / 4, q = lane % 4;
    uint32_t high[EXACT_ROWS / 8], low[EXACT_ROWS / 8]; // of rows 8 i + 2 q and the next
#pragma unroll
    for (int i = 0; i < EXACT_ROWS / 8; i++) {
        int row = 8 * i + 2 * q;
        uint32_t w = *(const uint32_t *)&masses[g][row];
        float2 scale = *(const float2 *)(data + at::SCALES_AT + at::SCALES + row * sizeof(float));
        float x = row < n_rows ? __uint_as_float(w << 16) * scale.x : 0; // scales after the last row can be NaN
        float y = row + 1 < n_rows ? __uint_as_float(w & 0xffff0000u) * scale.y : 0;
        __nv_bfloat162 pair = __floats2bfloat162_rn(x, y);
        high[i] = *(const uint32_t *)&pair;
        pair = __floats2bfloat162_rn(x - __uint_as_float(high[i] << 16), y - __uint_as_float(high[i] & 0xffff0000u));
        low[i] = *(const uint32_t *)&pair;
    }
#pragma unroll 1 // as above
    for (int d = 16 * half; d < DIM; d += 32) {
        float c[4] = {};
        uint32_t a[4];
        load_transposed(a, shared_address(data) + at::V_AT + lane * layout<DIM>::ROW + d);
#pragma unroll
        for (int k = 0; k < EXACT_ROWS / 8; k += 2) {
            uint32_t even[2], odd[2]; // dimensions
#pragma unroll
            for (int i = 0; i < 2; i++)
                even[i] = widen_upper_bytes<FP8>(a[k + i] << 8), odd[i] = widen_upper_bytes<FP8>(a[k + i]);
            sl_mma_bf16(c, even[0], odd[0], even[1], odd[1], high[k], high[k + 1]);
            sl_mma_bf16(c, even[0], odd[0], even[1], odd[1], low[k], low[k + 1]);
        }
#pragma unroll
        for (int i = 0; i < 4; i++)
            if (2 * q + i % 2 < group) __stcg(to + (2 * q + i % 2) * stride + d + 2 * g + i / 2, c[i]);
    }
}

// A tile of the newest page: the first warp stores the masses; then each warp sums mass * v for half of the dimensions.
template <int DIM, int BITS, sl_format F>
__device__ void consume_rows(const quantised_params &params, const tile_place &info, const char *data, uint64_t *empty,
                             bf16 (*masses)[EXACT_ROWS], int pair, int half) {
    const score_params &p = params.score;
    int lane = threadIdx.x % 32, g = lane / 4, q = lane % 4, n_rows = info.n_kv - info.row;
    float *sums =
        params.newest + ((size_t)info.seq_head * p.group * NEWEST_TILES + info.row % SL_PAGE / EXACT_ROWS) * (DIM + 2);
    const size_t stride = NEWEST_TILES * (DIM + 2); // from head to head
    if (half == 0) {
        scorer<DIM, F> a;
        float s[8], total = 0;
        a.begin(data + tile<DIM, BITS>::Q_AT, p.group);
        a.scores(data, s);
        scale_scores<F>(data + tile<DIM, BITS>::SCALES_AT, s);
#pragma unroll
        for (int i = 0; i < 8; i++) s[i] = row_of_part(i / 2) < n_rows ? s[i] * p.scale : -INFINITY;
        block_masses x = to_masses(s);
        store_block(p, info.seq_head, info.row, x);
        *(uint4 *)&masses[g][8 * q] = x.w;
        const uint32_t pairs[4] = {x.w.x, x.w.y, x.w.z, x.w.w};
#pragma unroll
        for (int i = 0; i < 4; i++) total += __uint_as_float(pairs[i] << 16) + __uint_as_float(pairs[i] & 0xffff0000u);
        total += __shfl_xor_sync(~0u, total, 1);
        total += __shfl_xor_sync(~0u, total, 2);
        if (params.newest && q == 0 && g < p.group)
            __stcg(sums + g * stride + DIM, (float)x.ref), __stcg(sums + g * stride + DIM + 1, total);
    }
    pair_sync(pair);
    if constexpr (F == SL_BF16) {
        if (params.newest) sum_newest_values<DIM, BITS>(data, masses, n_rows, p.group, half, sums, stride);
    } else {
        if (params.newest) sum_newest_bytes<DIM, BITS, F == SL_FP8>(data, masses, n_rows, p.group, half, sums, stride);
    }
    leave_stage(empty);
}

template <int DIM, int BITS>
__device__ void consume_newest(const quantised_params &params, const tile_place &info, const char *data, uint64_t *empty,
                               bf16 (*masses)[EXACT_ROWS], int pair, int half) {
    if constexpr (!IS_BYTES)
        consume_rows<DIM, BITS, SL_BF16>(params, info, data, empty, masses, pair, half);
    else if (params.score.is_fp8)
        consume_rows<DIM, BITS, SL_FP8>(params, info, data, empty, masses, pair, half);
    else
        consume_rows<DIM, BITS, SL_INT8>(params, info, data, empty, masses, pair, half);
}

// Consumes a tile of quantised keys. The first tile of a page also quantises the queries. Releases the stage as soon as the
// products are computed.
template <int DIM, int BITS, bool SIZES>
__device__ void consume_codes(const score_params &p, const tile_place &info, const char *data, uint64_t *empty,
                              const tile_space<BITS> &queries, const quantised_shared<SIZES> &shared, int pair, int half) {
    enum { PARTS = tile<DIM, BITS>::BLOCKS / 2 };
    int lane = threadIdx.x % 32, q = lane % 4, g = lane / 4, n_passes = ceil_div(p.group, PASS);
    if (tile<DIM, BITS>::TILES == 1 || info.row % SL_PAGE == 0) {
        if (SIZES && half == 0) keep_mean_of_heads(p, shared.means, info.seq_head, queries.mean(), queries.heads, lane);
        for (int head = half; head < p.group; head += 4)
            quantise_queries<DIM, BITS, SIZES>(data, head, p.group, p.scale, queries);
        pair_sync(pair);
    }
#pragma unroll 1
    for (int i = 0; i < n_passes * PARTS; i++) {
        int pass = i / PARTS, block = half * 2 * PARTS + i % PARTS * 2, head = pass * PASS + g % PASS;
        code_scorer<DIM, BITS> sums;
        size_source sizes = {};
#pragma unroll
        for (int b = 0; SIZES && b < 2; b++) {
            uint4 x = ((const uint4 *)(data + tile<DIM, BITS>::norms_at(p.group)))[(block + b) * (BLOCK / 8) + q];
            sizes.norms[b][0] = halves_of(x.x, x.y, g / PASS), sizes.norms[b][1] = halves_of(x.z, x.w, g / PASS);
        }
        sums.multiply(data, queries.query(head), shared.zeros, block);
        if (i == n_passes * PARTS - 1) leave_stage(empty);
        const float4 f = queries.score()[head];
        float s[2][4];
#pragma unroll
        for (int k = 0; k < 8; k++) s[k / 4][k % 4] = fmaf((float)sums.dot(k / 4, k % 4) - f.x, f.y, f.z);
        if (SIZES) sizes.m = queries.mean()[head], sizes.factor = f.w;
        store_blocks<SIZES>(p, info.seq_head, info.row / BLOCK + block, pass, s, sizes);
    }
}

// ---- announcing ----

// Passes tile number i of the pair to the announcer. A warp calls it when it has stored its part of the tile.
__device__ void add_tile(stored_tiles *stored, int pair, int half, int i, int seq_head) {
    int at = i % UNANNOUNCED, leads = threadIdx.x % 32 == 0;
    if (half == 0) {
        barrier_wait(&stored->empty[pair][at], i / UNANNOUNCED % 2 ^ 1);
        if (leads) stored->seq_head[pair][at] = seq_head;
    }
    __syncwarp();
    if (leads) barrier_arrive(&stored->full[pair][at]);
}

// The loop of announcer warp `own`. It has one lane for each place of its pairs.
__device__ void announce_tiles(const score_params &p, stored_tiles *stored, int own) {
    enum { PLACES = PAIRS * UNANNOUNCED / ANNOUNCERS };
    int lane = threadIdx.x % 32, place = own * PLACES + lane, parity = 0, n_ended = 0; // n_ended: pairs that have ended
    for (;;) {
        bool here = lane < PLACES && barrier_ended(&stored->full[0][place], parity);
        if (!__any_sync(~0u, here)) {
            if (n_ended == PAIRS / ANNOUNCERS) return;
            __nanosleep(20);
            continue;
        }
        int seq_head = here ? stored->seq_head[0][place] : 0;
        if (here) {
            if (seq_head >= 0)
                add_released(p.done + seq_head, 1); // release: makes the consumers' earlier stores visible to all threads
            barrier_arrive(&stored->empty[0][place]);
            parity ^= 1;
        }
        n_ended += __popc(__ballot_sync(~0u, seq_head < 0));
    }
}

// The loop of a consumer warp: waits for its pair's next tile, stores the masses, passes the tile to the announcer.
template <int DIM, int BITS, bool SIZES>
__device__ void consume_pages(const quantised_params &params, const page_ring &r, char *spaces,
                              quantised_shared<SIZES> *shared) {
    const score_params &p = params.score;
    stored_tiles *stored = &shared->stored;
    int warp = threadIdx.x / 32, pair = warp / 2, half = warp % 2;
    int heads = tile_space<BITS>::padded(p.group);
    sl_wait_previous(); // the drawers of the layer before may still read the stored masses
    if (warp == 0) {
        clear(params.cleared);
        sl_start_next(); // after the wait: vattention.cu relies on it, too. From now on the draw kernel may read what is
                         // cleared, and `done`, which the previous launch has set to 0
    }
    for (int i = 0;; i++) {
        barrier_wait(&r.head->full[pair][i % QUANTISED_STAGES], i / QUANTISED_STAGES % 2);
        __syncwarp(); // mma needs a converged warp; lanes can leave the wait one by one
        tile_place info = r.head->tile[pair][i % QUANTISED_STAGES];
        const char *data = r.data(info.stage);
        uint64_t *empty = &r.head->empty[info.stage];
        if (p.done && info.seq_head < 0) add_tile(stored, pair, half, i, -1);
        if (info.seq_head < 0) return;
        tile_space<BITS> space = {spaces + (pair * 2 + info.space) * tile_space<BITS>::bytes(heads), heads};
        if (info.row >= (info.n_kv - 1) / SL_PAGE * SL_PAGE)
            consume_newest<DIM, BITS>(params, info, data, empty, space.masses(), pair, half);
        else
            consume_codes<DIM, BITS, SIZES>(p, info, data, empty, space, *shared, pair, half);
        if (p.done) add_tile(stored, pair, half, i, info.seq_head);
    }
}

// The value of `done` when all masses of a seq_head are stored: the number of its tiles.
__device__ int quantised_done_target(int page_tiles, int n_kv) {
    return built_pages(n_kv) * page_tiles + newest_tiles(n_kv);
}

// Sets the registers of a thread (sm_90a). All warps of a warp group call the function: consumers are two groups, and the other
// warps are one.
template <int N, bool MORE> __device__ void set_registers() {
#if defined __CUDA_ARCH_FEAT_SM90_ALL
    if (MORE)
        asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(N));
    else
        asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(N));
#endif
}

// Stores masses of all rows of all heads, and the sums of the newest page if p.newest is given.
//
// Grid: one thread block per multiprocessor, for any lengths.
// Preconditions: next_item is 0; the next kernel of the method sets it to 0 again. Before the previous kernel has ended, the
// kernel reads only built pages, lengths, page tables, and the state of the layer, which the step before has ended
// (sl_cuda_end_step).
// Bytes: the quantised pages, K (and V) of the newest page, 2 + 1/4 bytes per row and query head of masses.
// SIZES: also the norms of built pages, and 1/4 byte per row and query head of block masses of sizes.
template <int DIM, int BITS, bool SIZES>
__global__ void __maxnreg__(SCORE_REGISTERS) quantised_scores_kernel(const quantised_params p) {
    extern __shared__ __align__(128) char memory[];
    typedef quantised_shared<SIZES> shared_type;
    typedef tile_space<BITS> space;
    shared_type *shared = (shared_type *)memory;
    char *spaces = memory + sizeof(shared_type);
    page_ring r = {&shared->ring, spaces + 2 * PAIRS * space::bytes(space::padded(p.score.group)), p.score.n_stages,
                   tile<DIM, BITS>::template stage<SIZES>(p.score.group)};
    int other = threadIdx.x / 32 - 2 * PAIRS; // number of a warp that does not consume
    if (other < 0) {
        set_registers<CONSUMER_REGISTERS, true>();
        if (SIZES) keep_means(p.score, shared->means, threadIdx.x, PAIRS * PAIR_THREADS);
        quantised_begin(shared);
        __syncthreads();
        consume_pages<DIM, BITS, SIZES>(p, r, spaces, shared);
        return;
    }
    set_registers<OTHER_REGISTERS, false>();
    if (other == 1) {
        plan_pages<DIM, BITS, SIZES>(p, &shared->batches); // calls __syncthreads
        return;
    }
    __syncthreads();
    if (other == 0)
        issue_pages<DIM, BITS>(p, r, &shared->batches);
    else if (p.score.done)
        announce_tiles(p.score, &shared->stored, other - 2);
}

// cleared: for the kernel that draws next. newest: memory for the sums of the newest page; in this case `done` counts stored
// tiles. NULL: no sums; readers wait for the end of the kernel. scores: with the arrays of the workspace. Returns the
// parameters for the kernel that reads the masses.
template <int DIM, int BITS, bool SIZES = false>
score_params launch_quantised_scores(const sl_attn_cuda_decode_args *a, score_params scores, float *newest,
                                     const cleared_ints &cleared = {}) {
    typedef tile<DIM, BITS> at;
    quantised_params p = {.score = scores,
                          .codes = (const char *)a->extra[0],
                          .size = (int)a->extra_size[0],
                          .v = a->v,
                          .newest = newest,
                          .cleared = cleared};
    p.score.masses_last_out = true;
    p.score.n_discarded = 0; // 1 to 2 us less: codes have at most half of K's bytes, so masses are a larger share of all bytes
    score_params score = p.score;
    if (!newest) p.score.done = NULL;
    p.score.n_normal = normal_tiles((size_t)a->n_seqs * a->max_kv / SL_PAGE * a->geom->n_kv_heads * p.size, at::BYTES);
    int stage = at::template stage<SIZES>(p.score.group);
    int others = sizeof(quantised_shared<SIZES>) + 2 * PAIRS * tile_space<BITS>::bytes(tile_space<BITS>::padded(p.score.group));
    p.score.n_stages = at::stages(stage, others);
    size_t bytes = others + (size_t)p.score.n_stages * stage;
    sl_launch(quantised_scores_kernel<DIM, BITS, SIZES>, dim3(sl_multiprocessors()), dim3(QUANTISED_THREADS), bytes, a->stream,
              p);
    return score;
}

// ---- parts that methods with quantised keys share ----

// Calls FUNCTION<DIM, bits of a code>(arguments). CHOICE: index into the parameter's choices "8,4,3".
#define SL_WITH_BITS(CHOICE, FUNCTION, DIM, ...)                                                                               \
    switch (CHOICE) {                                                                                                          \
    case 0:                                                                                                                    \
        FUNCTION<DIM, 8>(__VA_ARGS__);                                                                                         \
        break;                                                                                                                 \
    case 1:                                                                                                                    \
        FUNCTION<DIM, 4>(__VA_ARGS__);                                                                                         \
        break;                                                                                                                 \
    default:                                                                                                                   \
        FUNCTION<DIM, 3>(__VA_ARGS__);                                                                                         \
    }

int needs_quantised(const sl_attn_spec *spec, sl_kv_need *out) {
    return sl_propose_quantised.needs(spec, out);
}

// Counts the reads of the scores of n_kv rows: quantised pages, and K of the newest page. Returns the number of rows of the
// newest page.
int account_quantised(const sl_attn_geom *geom, const sl_attn_spec *spec, int n_kv, sl_attn_stats *stats) {
    sl_kv_need need;
    needs_quantised(spec, &need);
    int n_built = (n_kv - 1) / SL_PAGE, newest = n_kv - n_built * SL_PAGE;
    uint64_t pages = n_built * (uint64_t)need.kind->size(need.arg, geom->head_dim);
    stats->k_rows += (uint64_t)newest * geom->n_kv_heads;
    stats->bytes += (pages + (uint64_t)newest * counted_row(geom->head_dim)) * geom->n_kv_heads;
    stats->features += geom->n_heads;
    return newest;
}

} // namespace

#endif
