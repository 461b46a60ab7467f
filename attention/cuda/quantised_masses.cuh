// attention/cuda/quantised_masses.cuh - turns scores of quantised keys into stored masses and sizes, on CUDA. A warp stores N
// blocks of 32 rows for PASS heads.
//
// With SIZES (santa-is with a stated error) it stores sizes z_j = 2^b p~_j (|v_j| + m) in place of row masses, and the block
// masses of both. No kernel reads these row masses, because drawn rows are scored exactly. b is the page's bound of a score's
// error. m follows from the step before (layer_state.cuh), or from the norms of the newest built page (draw_importance.c).
#ifndef SLEIGH_QUANTISED_MASSES_CUH
#define SLEIGH_QUANTISED_MASSES_CUH

#include "attention/cuda/layer_state.cuh"
#include "attention/cuda/score_keys.cuh"

namespace {

enum {
    PASS = 4,                         // heads scored together: two halves of 16 rows share the 8 columns of an mma
    SIZE_UNBOUNDED_AT = SIZE_UNIT_AT, // bit of a block mass of sizes: the page's bound is above SL_MOST_SCORE_BOUND
};

// ---- masses ----

__device__ uint32_t ceilings(float low, float high) { // two ceilings as saturated 16-bit integers; NaN gives SL_REF_INVALID
    uint32_t x;
    asm("{ .reg .b16 a, b; cvt.rpi.s16.f32 a, %1; cvt.rpi.s16.f32 b, %2; mov.b32 %0, {a, b}; }"
        : "=r"(x)
        : "f"(fminf(low, SL_REF_INVALID)), "f"(fminf(high, SL_REF_INVALID))); // fminf drops NaN
    return x;
}

// Sums x[i] over the lanes that differ in bits 0, 1 and 4. Lane q = lane % 4 gets the sum of x[q % N].
template <int N> __device__ uint64_t sum_each(const uint64_t x[N]) {
    int q = threadIdx.x % 4;
    uint64_t y[2], z;
#pragma unroll
    for (int k = 0; k < N / 2; k++) {
        uint64_t keep = q & 1 ? x[2 * k + 1] : x[2 * k], send = q & 1 ? x[2 * k] : x[2 * k + 1];
        y[k] = keep + __shfl_xor_sync(~0u, send, 1);
    }
    if (N == 4) {
        uint64_t keep = q & 2 ? y[1] : y[0], send = q & 2 ? y[0] : y[1];
        z = keep + __shfl_xor_sync(~0u, send, 2);
    } else {
        z = y[0] + __shfl_xor_sync(~0u, y[0], 2);
    }
    return z + __shfl_xor_sync(~0u, z, 16);
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

// The number m of head `head` of a seq_head's group. All lanes of a warp call the function with the same seq_head.
__device__ float mean_of_head(const score_params &p, const float *means, int seq_head, int head, int lane) {
    int i = seq_head * p.group + head;
    float m = i < MEANS_KEPT ? means[i] : known_mean(p, seq_head, head);
    if (!__any_sync(~0u, !(m > 0))) return m;
    float first = first_mean(p, seq_head, lane);
    return m > 0 ? m : first;
}

// From what a lane computes the sizes of its rows in N blocks.
template <int N> struct size_source {
    uint32_t norms[N][2]; // |v| of the lane's rows, two in a word
    float m, factor;      // of the lane's head. factor: quantised_queries.score.w
};

// |v| + m of two rows, times the factor, rounded up to bf16 (draw_importance.c, size_norms).
__device__ uint32_t size_norms(uint32_t norms, float m, float factor) {
    uint32_t low = __float_as_uint(__fmul_rn(factor, __fadd_rn(__uint_as_float(norms << 16), m)));
    uint32_t high = __float_as_uint(__fmul_rn(factor, __fadd_rn(__uint_as_float(norms & 0xffff0000u), m)));
    return __byte_perm(low + 0xffff, high + 0xffff, 0x7632);
}

// The sum of the lane's row masses.
__device__ uint64_t lane_mass(uint32_t w0, uint32_t w1) {
    return (uint64_t)(unit_mass(w0 & 0xffff) + unit_mass(w0 >> 16)) + (unit_mass(w1 & 0xffff) + unit_mass(w1 >> 16));
}

// Turns the lane's masses into sizes (store_sizes in score_keys.cuh). Returns their unit; EMPTY_UNIT: all sizes of the block
// are 0.
enum { EMPTY_UNIT = SIZE_UNIT_MOST + 1 };
__device__ int to_sizes(uint32_t *w0, uint32_t *w1, const uint32_t norms[2], float m, float factor) {
    uint32_t y0 = product_of(*w0, size_norms(norms[0], m, factor)), y1 = product_of(*w1, size_norms(norms[1], m, factor));
    uint32_t most = __vmaxu2(y0, y1); // of bits: products are not negative
    most = __vmaxu2(most, __shfl_xor_sync(~0u, most, 1));
    most = __vmaxu2(most, __shfl_xor_sync(~0u, most, 2));
    most = __vmaxu2(most, __shfl_xor_sync(~0u, most, 16));
    most = max(most & 0xffff, most >> 16);
    int unit = size_unit(most);
    *w0 = size_of_product(y0, unit), *w1 = size_of_product(y1, unit);
    return most ? unit : (int)EMPTY_UNIT;
}

// Stores the masses of N blocks of 32 scores. s has the layout of code_scorer's accumulators. first: number of the first block
// in the sequence. SIZES: stores sizes, and the block masses of both.
template <int N, bool SIZES>
__device__ void store_blocks(const score_params &p, int seq_head, int first, int pass, const float s[N][4],
                             const size_source<N> &from) {
    int lane = threadIdx.x % 32, g = lane / 4, q = lane % 4, head = pass * PASS + g % 4, lower = g / 4, unit = 0;
    uint32_t refs[N];
    uint64_t mass[N], size[N];
    uint2 w[N];
#pragma unroll
    for (int b = 0; b < N; b++) refs[b] = ceilings(sl_max_nan(s[b][0], s[b][2]), sl_max_nan(s[b][1], s[b][3]));
#pragma unroll
    for (int step = 2; step < 32; step *= 2)
#pragma unroll
        for (int b = 0; b < N; b++) refs[b] = __vmaxs2(refs[b], __shfl_xor_sync(~0u, refs[b], step));
#pragma unroll
    for (int b = 0; b < N; b++) {
        float even = (float)(int16_t)refs[b], odd = (float)((int)refs[b] >> 16);
        __nv_bfloat162 one = __float2bfloat162_rn(1.0f);
        __nv_bfloat162 upper_row = __hmin2(__floats2bfloat162_rn(sl_exp2(s[b][0] - even), sl_exp2(s[b][1] - odd)), one);
        __nv_bfloat162 lower_row = __hmin2(__floats2bfloat162_rn(sl_exp2(s[b][2] - even), sl_exp2(s[b][3] - odd)), one);
        // after the transposition, lane (g, q) has rows 8 q + 2 (g / 4) + {0, 1, 4, 5} of head g % 4
        uint32_t x = sl_transpose_b16(*(uint32_t *)&upper_row), y = sl_transpose_b16(*(uint32_t *)&lower_row);
        uint32_t w0 = __byte_perm(x, y, 0x5410), w1 = __byte_perm(x, y, 0x7632);
        mass[b] = lane_mass(w0, w1);
        if (SIZES) {
            int own = to_sizes(&w0, &w1, from.norms[b], from.m, fabsf(from.factor));
            size[b] = lane_mass(w0, w1);
            if (b == q % N) unit = own;
        }
        uint32_t other = __shfl_xor_sync(~0u, lower ? w0 : w1, 16);
        w[b] = lower ? make_uint2(other, w1) : make_uint2(w0, other);
    }
    uint64_t sum = sum_each<N>(mass), size_sum = SIZES ? sum_each<N>(size) : 0;
    uint32_t own = refs[0]; // reference of block g % N; lane (b, head / 2) passes it to lanes (head, b)
#pragma unroll
    for (int b = 1; b < N; b++) own = g % N == b ? refs[b] : own;
    own = __shfl_sync(~0u, own, q * 4 + g % 4 / 2);
    uint64_t ref = head % 2 ? own >> 16 : own & 0xffff;
    if (head >= p.group) return;
    bf16 *to = p.w + (((size_t)seq_head * p.max_blocks + first) * p.group + head) * BLOCK + 8 * q + 4 * lower;
#pragma unroll
    for (int b = 0; b < N; b++) store_result(p, (uint2 *)(to + b * p.group * BLOCK), w[b]);
    size_t at = ((size_t)seq_head * p.group + head) * p.max_blocks + first + q;
    if (lower == 0 && q < N) store_result(p, p.mass + at, ref << 48 | sum);
    if (SIZES && lower == 0 && q < N) {
        uint64_t unbounded = from.factor < 0, of_sizes = (uint16_t)size_ref((int16_t)ref, unit, unit == EMPTY_UNIT);
        store_result(p, p.size_mass + at, of_sizes << 48 | unbounded << SIZE_UNBOUNDED_AT | size_sum);
    }
}

} // namespace

#endif
