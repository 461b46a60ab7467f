// attention/cuda/santa/stated.cuh - parts of a stated error that santa-pps and santa-is share, on CUDA: how many draws a bound
// needs (draw_take_all.c, sl_plan_take_all), and the pairs of draws whose directions the chi-square bound compares (carried.c,
// sl_pairs).
//
// All TAKE_THREADS threads of a thread block call these functions together.
#ifndef SLEIGH_STATED_CUH
#define SLEIGH_STATED_CUH

#include "attention/cuda/santa/carried.cuh"

namespace {

// An sl_attn_cuda_ops.supports.
static int supports_on_miss(const sl_attn_spec *spec, sl_error *err) {
    if (!sl_attn_certifies_layer(spec) || !sl_attn_chooses(spec, "on-miss", "dense")) return 0;
    return sl_fail(err, SL_ERR_UNSUPPORTED,
                   "{attn} %s: {on-miss} dense is not offered on a GPU, where a layer's error is known when its heads have "
                   "ended; use {on-miss} report, or {device} cpu",
                   spec->method->name);
}

enum { MOST_PAIRED = 64 }; // light draws of a head that are compared with each other

// The norm of a vector; each thread has one element, x. square: [TAKE_WARPS] in shared memory.
__device__ float norm_of(float *square, float x, int thread) {
    x = sl_sum_lanes(x * x);
    __syncthreads();
    if (thread % 32 == 0) square[thread / 32] = x;
    __syncthreads();
    x = 0;
    for (int i = 0; i < TAKE_WARPS; i++) x += square[i];
    return sqrtf(x);
}

// ---- how many draws ----

// A bound of the error of k draws.
struct draw_bound {
    bool bernstein;
    double z, log_term; // z(1 - delta / 2), ln(2 / delta)
};

// The error bound of k draws from light rows of total size `light`.
__device__ double error_bound(const draw_bound &p, double light, int k) {
    if (light <= 0) return 0;
    double kappa = light / k, B = kappa * light;
    if (!p.bernstein && k >= SL_STATED_FEW) return p.z * sqrt(B);
    return sqrt(2 * B * p.log_term) + 4.0 / 3 * kappa * p.log_term;
}

// The largest kappa whose Bernstein bound is within target.
__device__ double bernstein_kappa(const draw_bound &p, double light, double target) {
    double a = 4.0 / 3 * p.log_term, b = sqrt(2 * light * p.log_term);
    double root = 2 * target / (b + sqrt(b * b + 4 * a * target)); // solves a root^2 + b root = target
    return root * root;
}

// The largest kappa whose bound is within target.
__device__ double widest_kappa(const draw_bound &p, double light, double target) {
    enum {
        MARGIN = SL_STATED_FEW + 4
    }; // when k is rounded to an integer, more rows can become heavy, and fewer light draws remain
    double kappa = bernstein_kappa(p, light, target), x = target / p.z;
    return p.bernstein ? kappa : fmax(kappa, fmin(x * x / light, light / MARGIN));
}

// The number of draws at kappa. *light: the size of the rows that are not heavy.
template <typename Space> __device__ double draws_at(Space *s, double kappa, uint64_t *light, int thread) {
    __syncthreads(); // all threads have read the rows and the sums before
    heavy_sum heavy = split_blocks(s, (uint64_t)kappa, 0, thread);
    *light = s->sizes.total - heavy.size;
    return heavy.n + (*light > 0 ? ceil((double)*light / kappa) : 0);
}

// The number of draws at a kappa whose bound is within target. The bound of a kappa that is 0.05% larger is above target. So
// the number is at most a few draws above the smallest number. The light size grows with kappa. The first kappa follows from
// the Bernstein bound of the whole size, so the bound of the first kappa is within target. No kappa between the first kappa and
// the solution has a smaller light size than the first kappa. So the kappa that follows from this light size is not below the
// solution.
template <typename Space> __device__ double bisect_draws(Space *s, const draw_bound &p, double target, int thread) {
    enum { MOST_ROUNDS = 24 };
    uint64_t light;
    double within = bernstein_kappa(p, (double)s->sizes.total, target), x = target / p.z,
           S = draws_at(s, within, &light, thread);
    double beyond =
        light == 0 ? (double)s->sizes.total : fmax(bernstein_kappa(p, (double)light, target), x * x / (double)light);
    for (int round = 0; round < MOST_ROUNDS && beyond > 1.0005 * within; round++) {
        double kappa = sqrt(within * beyond), n = draws_at(s, kappa, &light, thread);
        if (light == 0 || kappa <= widest_kappa(p, (double)light, target))
            within = kappa, S = n;
        else
            beyond = kappa;
    }
    return S;
}

// Returns a number of draws with which the bound is within target. It is near the smallest such number. 0: the number is more
// than half of the rows. The rounds compute kappa from the light size, and the light size from kappa. With many heavy rows,
// kappa can oscillate around the solution, or become so small that every row is heavy. Then bisect_draws finds kappa.
template <typename Space> __device__ int plan(Space *s, const draw_bound &p, double target, int thread) {
    enum { MOST_ROUNDS = 12 };
    uint64_t light = s->sizes.total, before = 0;
    double S = 0;
    for (int round = 0; round < MOST_ROUNDS && light > 0 && light != before; round++) {
        before = light;
        S = draws_at(s, widest_kappa(p, (double)light, target), &light, thread);
    }
    if (light != before) S = bisect_draws(s, p, target, thread);
    return S <= s->sizes.n / 2 ? max((int)S, 1) : 0;
}

// ---- pairs of draws ----

// The light draws of a head that are compared.
struct pair_space {
    int n_light;                                        // light draws of the head
    int row[MOST_PAIRED];                               // pool rows
    float inverse_square[MOST_PAIRED], sum[TAKE_WARPS]; // 1 / |v - centre|^2 of the compared rows; 0: the norm is 0
};

// Every how many light draws one is compared. n_light: at least their number.
__device__ uint32_t pair_step_of(int n_light) {
    return ceil_div(n_light, (int)MOST_PAIRED);
}

// Two elements of v - centre, rounded to bf16.
__device__ uint32_t centred(uint32_t pair, const float *centre) {
    __nv_bfloat162 x =
        __floats2bfloat162_rn(__uint_as_float(pair << 16) - centre[0], __uint_as_float(pair & 0xffff0000u) - centre[1]);
    return *(const uint32_t *)&x;
}

// Eight elements of a row of bytes, or with CENTRED of the row minus the centre, rounded to bf16.
template <bool CENTRED> __device__ uint4 elements_of(uint2 x, bool is_fp8, float scale, const float *centre) {
    float y[8];
    uint32_t pairs[4];
    widen8(x, y, is_fp8);
#pragma unroll
    for (int i = 0; i < 4; i++) {
        float a = __fmul_rn(y[2 * i], scale), b = __fmul_rn(y[2 * i + 1], scale); // no FMA, as on the CPU
        __nv_bfloat162 pair =
            CENTRED ? __floats2bfloat162_rn(a - centre[2 * i], b - centre[2 * i + 1]) : __floats2bfloat162_rn(a, b);
        pairs[i] = *(const uint32_t *)&pair;
    }
    return make_uint4(pairs[0], pairs[1], pairs[2], pairs[3]);
}

// The sum over pairs of n_light light draws (carried.c, sl_pairs), from the n rows l->row[0, n). centre: [DIM] in shared memory
// with CENTRED; else 0. All rows are compared in one product of bf16 mma: warp w has columns 8 w .. 8 w + 7. The rows lie over
// `lists`: call __syncthreads after the last use of the lists and before this.
template <int DIM, bool CENTRED, typename Rows>
__device__ double pairs_of(const Rows &v, known_lists *lists, pair_space *l, const float *centre, int n_light, int n,
                           int thread) {
    enum { STRIDE = DIM + 8, PIECES = DIM / 8, TILES = MOST_PAIRED / 16 };
    enum { EACH = (MOST_PAIRED * PIECES + TAKE_THREADS - 1) / TAKE_THREADS };
    static_assert(MOST_PAIRED * STRIDE * sizeof(bf16) <= sizeof(known_lists), "the tile");
    static_assert(MOST_PAIRED == 8 * TAKE_WARPS, "columns");
    bf16 *tile = (bf16 *)lists;
    int lane = thread % 32, warp = thread / 32, g = lane / 4, q = lane % 4, n_pairs = n * (n - 1) / 2;
    float c[TILES][4] = {}, sum = 0, all = 0;
    eight_numbers own[EACH];
    [[maybe_unused]] float scale[EACH]; // of rows of bytes
#pragma unroll
    for (int j = 0; j < EACH; j++) { // all loads of a thread are in flight together
        int i = thread + j * TAKE_THREADS;
        own[j] = i / PIECES < n ? load_piece<DIM>(v, l->row[i / PIECES], i % PIECES) : eight_numbers{};
        if constexpr (IS_BYTES) scale[j] = i / PIECES < n ? value_scale<DIM>(v, l->row[i / PIECES]) : 0;
    }
#pragma unroll
    for (int j = 0; j < EACH; j++) {
        int i = thread + j * TAKE_THREADS, row = i / PIECES, piece = i % PIECES;
        const float *from = centre + piece * 8;
        uint4 x;
        if constexpr (IS_BYTES) {
            x = row < n ? elements_of<CENTRED>(own[j], v.is_fp8, scale[j], from) : make_uint4(0, 0, 0, 0);
        } else {
            x = own[j];
            if (CENTRED && row < n)
                x = make_uint4(centred(x.x, from), centred(x.y, from + 2), centred(x.z, from + 4), centred(x.w, from + 6));
        }
        if (row < MOST_PAIRED) *(uint4 *)(tile + row * STRIDE + piece * 8) = x;
    }
    __syncthreads();
    for (int k = 2 * q; k < DIM; k += 16) {
        const bf16 *column = tile + (8 * warp + g) * STRIDE + k;
        uint32_t b0 = *(const uint32_t *)column, b1 = *(const uint32_t *)(column + 8);
#pragma unroll
        for (int t = 0; t < TILES; t++) {
            const bf16 *upper = tile + (16 * t + g) * STRIDE + k, *lower = upper + 8 * STRIDE;
            sl_mma_bf16(c[t], *(const uint32_t *)upper, *(const uint32_t *)lower, *(const uint32_t *)(upper + 8),
                        *(const uint32_t *)(lower + 8), b0, b1);
        }
    }
#pragma unroll
    for (int i = 0; i < 4 * TILES; i++) {
        int row = 16 * (i / 4) + g + i % 4 / 2 * 8, column = 8 * warp + 2 * q + i % 2;
        if (row == column) l->inverse_square[row] = c[i / 4][i % 4] > 1e-30f ? __fdividef(1, c[i / 4][i % 4]) : 0;
    }
    __syncthreads();
#pragma unroll
    for (int i = 0; i < 4 * TILES; i++) {
        int row = 16 * (i / 4) + g + i % 4 / 2 * 8, column = 8 * warp + 2 * q + i % 2;
        float x = c[i / 4][i % 4], a = l->inverse_square[row], b = l->inverse_square[column];
        if (column < row && row < n) sum += a > 0 && b > 0 ? (x * a) * (x * b) : 1;
    }
    sum = sl_sum_lanes(sum);
    if (lane == 0) l->sum[warp] = sum;
    __syncthreads();
    for (int i = 0; i < TAKE_WARPS; i++) all += l->sum[i];
    double mean = n_pairs > 0 ? (double)all / n_pairs : 1;
    return n_light * (1 + (n_light - 1) * mean);
}

} // namespace

#endif
