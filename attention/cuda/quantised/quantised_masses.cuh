// attention/cuda/quantised/quantised_masses.cuh - turns scores of quantised keys into stored masses and sizes, on CUDA. A warp
// stores two blocks of 32 rows for PASS heads.
//
// With SIZES (santa-is with a stated error) it stores sizes z_j = 2^b p~_j (|v_j| + m) in place of row masses, and the block
// masses of both. No kernel reads these row masses, because drawn rows are scored exactly. b is the page's bound of a score's
// error. m follows from the step before (layer_state.cuh), or from the norms of the newest built page (draw_importance.c).
#ifndef SLEIGH_QUANTISED_MASSES_CUH
#define SLEIGH_QUANTISED_MASSES_CUH

#include "attention/cuda/layer_state.cuh"
#include "attention/cuda/norms.cuh"
#include "attention/cuda/score_keys.cuh"

namespace {

enum {
    PASS = 4,                         // heads scored together: two halves of 16 rows share the 8 columns of an mma
    SIZE_UNBOUNDED_AT = SIZE_UNIT_AT, // bit of a block mass of sizes: the page's bound is above SL_MOST_SCORE_BOUND, or a size
                                      // is infinite or NaN
};

// ---- masses ----

__device__ uint32_t ceilings(float low, float high) { // two ceilings as saturated 16-bit integers; NaN gives SL_REF_INVALID
    uint32_t x;
    asm("{ .reg .b16 a, b; cvt.rpi.s16.f32 a, %1; cvt.rpi.s16.f32 b, %2; mov.b32 %0, {a, b}; }"
        : "=r"(x)
        : "f"(fminf(low, SL_REF_INVALID)), "f"(fminf(high, SL_REF_INVALID))); // fminf drops NaN
    return x;
}

// Adds the bytes of two numbers of each lane to sums of bytes: column n of c, or n + 4, gets byte n of the numbers. c [16][8]:
// a0 and a2 belong to row g of the lane, a1 and a3 to row g + 8. ones: the lane's four bytes of the columns of zeros and ones
// (sum_each).
__device__ void add_bytes(int c[4], uint32_t a0, uint32_t a1, uint32_t a2, uint32_t a3, uint32_t ones) {
    asm volatile("mma.sync.aligned.m16n8k32.row.col.s32.u8.u8.s32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %8}, "
                 "{%0, %1, %2, %3};"
                 : "+r"(c[0]), "+r"(c[1]), "+r"(c[2]), "+r"(c[3])
                 : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(ones));
}

// Sums numbers below 2^31 over the lanes of a head, which differ in bits 0, 1 and 4: sum k adds x[k] of all of them, for k
// below N. Lane q = lane % 4 = 0 gets sums 0 and 1, lane q = 2 gets sums 2 and 3.
//
// Two mma for each pair of sums multiply the bytes of the numbers by columns of zeros and ones: column n of the first pair has
// ones at bytes n, n + 4, n + 8, ... Such a column adds byte n of all numbers. Sums 0 and 1 are rows g and g + 8 of columns 0
// .. 3 of c. Sums 2 and 3 are the same rows of columns 4 .. 7.
template <int N> __device__ void sum_each(const uint32_t x[N][4], uint64_t sum[2]) {
    int column = threadIdx.x % 32 / 4, c[4] = {};
#pragma unroll
    for (int k = 0; k < N; k += 2) {
        uint32_t ones = column / 4 == k / 2 ? 1u << (8 * (column % 4)) : 0;
        add_bytes(c, x[k][0], x[k + 1][0], x[k][1], x[k + 1][1], ones);
        add_bytes(c, x[k][2], x[k + 1][2], x[k][3], x[k + 1][3], ones);
    }
#pragma unroll
    for (int i = 0; i < 2; i++) { // an even lane has bytes 0 and 1, the next lane bytes 2 and 3
        uint32_t own = c[2 * i] + 256 * c[2 * i + 1];
        own += __shfl_xor_sync(~0u, own, 16);
        sum[i] = own + ((uint64_t)__shfl_xor_sync(~0u, own, 1) << 16);
    }
}

// The mean of a page's norms. Sums of 256 bf16 numbers in double have no rounding errors, unless the numbers differ by more
// than 2^37.
__device__ float mean_of_norms(const bf16 *norms, int lane) {
    uint4 x = __ldg((const uint4 *)norms + lane);
    const uint32_t pairs[4] = {x.x, x.y, x.z, x.w};
    double sum = 0;
    for (int i = 0; i < 4; i++)
        sum += (double)__uint_as_float(pairs[i] << 16) + (double)__uint_as_float(pairs[i] & 0xffff0000u);
    for (int step = 1; step < 32; step *= 2) sum += __shfl_xor_sync(~0u, sum, step);
    return fmaxf((float)(sum / SL_PAGE), 1e-30f);
}

// The number m of a query head, which stands for |mu| in its sizes (draw_importance.c, size_of_mean), if the head has a step
// before; 0: it has none. Reads only what earlier steps have stored.
__device__ float known_mean(const score_params &p, int seq_head, int head) {
    int n_heads = p.n_kv_heads * p.group, of_layer = seq_head % p.n_kv_heads * p.group + head;
    return __fmul_rn(1.25f, (float)sqrt(square_before(p.rows[seq_head / p.n_kv_heads], p.state_at, n_heads, of_layer)));
}

// The number m of a query head without a step before. All lanes of a warp call the function with the same seq_head. It is not
// inlined, because only the first step of a session needs it.
__device__ __noinline__ float first_mean(const score_params &p, int seq_head, int lane) {
    const sl_row row = p.rows[seq_head / p.n_kv_heads];
    size_t page = row.pages[row.position / SL_PAGE - 1];
    return mean_of_norms(p.norms + (page * p.n_kv_heads + seq_head % p.n_kv_heads) * SL_PAGE, lane);
}

enum { MEANS_KEPT = 1024 }; // query heads whose known_mean a thread block keeps in shared memory

// Fills means[MEANS_KEPT] for the first query heads of all sequences.
__device__ void keep_means(const score_params &p, float *means, int thread, int n_threads) {
    int n = min(p.n_seqs * p.n_kv_heads * p.group, (int)MEANS_KEPT);
    for (int i = thread; i < n; i += n_threads) means[i] = known_mean(p, i / p.group, i % p.group);
}

// The number m of each head of a seq_head's group, for `heads` heads. Heads past the group have the number of its last head.
// All lanes of a warp call the function.
__device__ void keep_mean_of_heads(const score_params &p, const float *means, int seq_head, float *to, int heads, int lane) {
    int head = min(lane, p.group - 1), i = seq_head * p.group + head;
    float m = i < MEANS_KEPT ? means[i] : known_mean(p, seq_head, head);
    if (__any_sync(~0u, !(m > 0))) {
        float first = first_mean(p, seq_head, lane);
        m = m > 0 ? m : first;
    }
    if (lane < heads) to[lane] = m;
}

// From what a lane computes the sizes of its rows in two blocks.
struct size_source {
    uint32_t norms[2][2]; // |v| of the lane's four rows in a block, two in a word
    float m, factor;      // of the lane's head. factor: tile_space.score, w
};

// |v| + m of two rows, times the factor, rounded up to bf16 (draw_importance.c, size_norms).
__device__ uint32_t size_norms(uint32_t norms, float m, float factor) {
    uint32_t low = sl_raise_to_bf16(__fmul_rn(factor, __fadd_rn(__uint_as_float(norms << 16), m)));
    uint32_t high = sl_raise_to_bf16(__fmul_rn(factor, __fadd_rn(__uint_as_float(norms & 0xffff0000u), m)));
    return __byte_perm(low, high, 0x7632);
}

// Half i of a word.
__device__ uint32_t half_of(uint32_t x, int i) {
    return i ? x >> 16 : x & 0xffff;
}

// The lane's row masses, as integers.
__device__ void lane_units(const uint32_t w[2], uint32_t units[4]) {
#pragma unroll
    for (int i = 0; i < 4; i++) units[i] = unit_mass(half_of(w[i / 2], i % 2));
}

// The largest x over the lanes of a head.
__device__ uint32_t max_of_head(uint32_t x, bool is_signed) {
#pragma unroll
    for (int i = 0; i < 3; i++) {
        uint32_t other = __shfl_xor_sync(~0u, x, i < 2 ? 1 << i : 16);
        x = is_signed ? __vmaxs2(x, other) : __vmaxu2(x, other);
    }
    return x;
}

// Half i of two words.
__device__ uint32_t halves_of(uint32_t x, uint32_t y, int i) {
    return __byte_perm(x, y, i ? 0x7632 : 0x5410);
}

// Turns the lane's masses of two blocks into sizes (store_sizes in score_keys.cuh). unit: their units; EMPTY_UNIT: all sizes of
// the block are 0.
enum { EMPTY_UNIT = SIZE_UNIT_MOST + 1 };
__device__ void to_sizes(uint32_t w[2][2], const size_source &from, int unit[2]) {
    uint32_t y[2][2], most[2];
    float factor = fabsf(from.factor);
#pragma unroll
    for (int b = 0; b < 2; b++) {
#pragma unroll
        for (int i = 0; i < 2; i++) y[b][i] = product_of(w[b][i], size_norms(from.norms[b][i], from.m, factor));
        most[b] = __vmaxu2(y[b][0], y[b][1]); // of bits: products are not negative
    }
    uint32_t both = max_of_head(__vmaxu2(halves_of(most[0], most[1], 0), halves_of(most[0], most[1], 1)), false);
#pragma unroll
    for (int b = 0; b < 2; b++) {
        uint32_t largest = half_of(both, b);
        int own = size_unit(largest);
#pragma unroll
        for (int i = 0; i < 2; i++) w[b][i] = size_of_product(y[b][i], own);
        unit[b] = largest ? own : (int)EMPTY_UNIT;
    }
}

// Stores what the drawing kernel will read. The policy is a constant, unlike that of store_result.
template <typename T> __device__ void keep(T *to, const T &x) {
    sl_store_l2(to, x, sl_l2_policy(SL_L2_LAST_OUT));
}

// Stores the masses of two blocks of 32 scores. Lane (g, q) has the scores of rows 8 q + g / 4 + {0, 2, 4, 6} of head pass *
// PASS + g % 4. first: number of the first block in the sequence, an even number. SIZES: stores sizes, and the block masses of
// both.
template <bool SIZES>
__device__ void store_blocks(const score_params &p, int seq_head, int first, int pass, const float s[2][4],
                             const size_source &from) {
    int lane = threadIdx.x % 32, g = lane / 4, q = lane % 4, odd = g / PASS, head = pass * PASS + g % PASS, unit[2] = {};
    uint32_t w[2][2], units[SIZES ? 4 : 2][4];
    uint64_t sum[2];
    float most[2];
#pragma unroll
    for (int b = 0; b < 2; b++) most[b] = sl_max_nan(sl_max_nan(s[b][0], s[b][1]), sl_max_nan(s[b][2], s[b][3]));
    // The low half belongs to the first block, the high half to the second block.
    uint32_t refs = max_of_head(ceilings(most[0], most[1]), true);
#pragma unroll
    for (int b = 0; b < 2; b++) {
        float ref = (float)(int16_t)half_of(refs, b);
#pragma unroll
        for (int i = 0; i < 2; i++) {
            __nv_bfloat162 pair = __hmin2(__floats2bfloat162_rn(sl_exp2(s[b][2 * i] - ref), sl_exp2(s[b][2 * i + 1] - ref)),
                                          __float2bfloat162_rn(1.0f));
            w[b][i] = *(uint32_t *)&pair;
        }
        lane_units(w[b], units[b]);
    }
    if constexpr (SIZES) {
        to_sizes(w, from, unit);
        lane_units(w[0], units[2]), lane_units(w[1], units[3]);
    }
    sum_each<SIZES ? 4 : 2>(units, sum);
    uint32_t other[2];
#pragma unroll
    for (int b = 0; b < 2; b++) other[b] = __shfl_xor_sync(~0u, odd ? w[b][0] : w[b][1], 16);
    if (head >= p.group) return;
    // Blocks are fewer than 2^32, because the row masses of so many would take 256 GiB. 32-bit places take fewer registers.
    uint32_t block = ((uint32_t)seq_head * p.max_blocks + first) * p.group + head;
    bf16 *to = p.w + (size_t)block * BLOCK + (8 * q + 4 * odd);
#pragma unroll
    for (int b = 0; b < 2; b++) { // rows 8 q + 4 odd + {0, 2} and {1, 3} give four rows in order
        uint32_t x = odd ? other[b] : w[b][0], y = odd ? w[b][1] : other[b];
        keep((uint2 *)(to + b * p.group * BLOCK), make_uint2(halves_of(x, y, 0), halves_of(x, y, 1)));
    }
    bool of_sizes = SIZES && q == 2; // the lane's sums are sums of sizes
    uint32_t high[2];
#pragma unroll
    for (int b = 0; b < 2; b++) {
        int ref = (int16_t)half_of(refs, b), of_block = SIZES ? size_ref(ref, unit[b], unit[b] == EMPTY_UNIT) : 0;
        high[b] = (uint32_t)(of_sizes ? of_block : ref) << 16 | (uint32_t)(sum[b] >> 32);
        if (of_sizes && (from.factor < 0 || unit[b] == SIZE_UNIT_MOST)) high[b] |= 1u << (SIZE_UNBOUNDED_AT - 32);
    }
    if (odd || !(q == 0 || of_sizes)) return;
    uint64_t *masses = of_sizes ? p.size_mass : p.mass;
    uint32_t place = ((uint32_t)seq_head * p.group + head) * p.max_blocks + first;
    keep((uint4 *)(masses + place), make_uint4((uint32_t)sum[0], high[0], (uint32_t)sum[1], high[1]));
}

} // namespace

#endif
