// attention/cuda/lists/verified_sample.cuh - parameters of vAttention's kernels, its uniform sample without replacement, and
// the largest mass of the rows that are left (vattention.cu, draw_verified.c).
#ifndef SLEIGH_VERIFIED_SAMPLE_CUH
#define SLEIGH_VERIFIED_SAMPLE_CUH

// pick_rows_kernel is a chain of twenty short steps, and each step ends with a barrier.
#define SL_SELECT_THREADS 1024
#include "attention/attention_cuda.h"
#include "attention/budgets/bernstein.h"
#include "attention/cuda/norms.cuh"
#include "attention/cuda/lists/score_bounds.cuh"
#include "attention/cuda/lists/select_rows.cuh"
#include "attention/random_counter.h"

#include <cuda_fp16.h>

namespace {

enum {
    SPLITS = 50,       // ways to split delta between numerator and denominator
    ATTEND_PER_SM = 4, // thread blocks that attend, for each multiprocessor: two waves
    LEAST_ROWS = 512,  // of a chunk: each warp has four times 16 rows before the warps' sums are merged
};

struct verified_params {
    score_params score; // scores of rows, or of units of 16 rows
    row_lists lists;    // lists of rows: fixed rows, base sample, rest of the sample
    attend_params attend;
    uint32_t *fixed;  // [n_seqs * n_heads][mask_words] bits of list 0
    int *permutation; // [n_seqs * n_heads][2][stride] `last` and `partners` of draw_sample
    int stride;
    int unit, layer, n_heads, first_head;
    bool refines;      // the listed rows are scored exactly; false: they have their stored masses
    const char *codes; // [n_pages][n_kv_heads][codes_size] quantised keys, which the scores are of; NULL: no such scores
    size_t codes_size;
    double top, base;
    int sink, window;
    int verify, bound;
    double epsilon, delta, z[SPLITS + 1]; // z[i] = Phi^-1(1 - delta i / 50 / 2)
    const char *norms;                    // [n_pages][n_kv_heads][256] |v|; only for bounds that need |v|
    size_t norms_size;
    sl_attn_cuda_stats *stats;
};

// ---- a uniform sample without replacement ----

// The key and counter of a head's random numbers.
__device__ sl_rng_id rng_of(const verified_params &p, int head) {
    const sl_row &row = p.score.rows[head / p.n_heads];
    return sl_attn_rng_id(row.seed, row.sequence, (uint32_t)row.position, p.layer, p.first_head + head % p.n_heads);
}

// Finds the first m of n residual rows in a random permutation: bit r of drawn is set if row r is among them. An earlier call
// has made the first `from` steps. Step k of the Fisher-Yates shuffle exchanges places k and p(k) >= k; p(k) is the partner of
// k. The threads compute all steps in parallel. Let k be the last step with partner p >= m. After the shuffle, place p contains
// the row that place k had before step k. This is row k, or a row that an earlier step put there: the row of the last step
// whose partner was k, and so on along the chain. So the first m places contain the rows 0 .. m - 1 without the ends of these
// chains, and the rows p. partners: [n] the partner of each step. last: [n] 1 + the last step with this partner, 0 before the
// first call. Both lie in global memory, and later calls use them again.
__device__ void draw_sample(const sl_rng_id &id, int n, int from, int m, int *partners, int *last, uint32_t *drawn) {
    enum { AHEAD = 8 };
    for (int i = threadIdx.x; i < n / 32 + 2; i += SELECT_THREADS)
        drawn[i] = 32 * i + 32 <= m ? ~0u : 32 * i < m ? (1u << m % 32) - 1 : 0;
    __syncthreads();
    for (int k = from + threadIdx.x; k < m; k += SELECT_THREADS) {
        int p = k + (int)__umul64hi(sl_draw_random(&id, k), (uint64_t)(n - k)); // Fisher and Yates
        partners[k] = p;
        if (p != k) atomicMax(last + p, k + 1);
    }
    __syncthreads();
    for (int first = threadIdx.x; first < m; first += SELECT_THREADS * AHEAD) {
        int p[AHEAD], own[AHEAD], before[AHEAD];
#pragma unroll
        for (int i = 0; i < AHEAD; i++) {
            int k = first + i * SELECT_THREADS;
            p[i] = k < m ? __ldcg(partners + k) : 0;
            before[i] = k < m ? __ldcg(last + k) : 0;
        }
#pragma unroll
        for (int i = 0; i < AHEAD; i++) own[i] = p[i] >= m ? __ldcg(last + p[i]) : 0;
#pragma unroll
        for (int i = 0; i < AHEAD; i++) {
            int end = first + i * SELECT_THREADS;
            if (own[i] != end + 1) continue;
            for (int x = before[i]; x > 0; x = __ldcg(last + end)) end = x - 1;
            atomicOr(drawn + p[i] / 32, 1u << p[i] % 32);
            atomicAnd(drawn + end / 32, ~(1u << end % 32));
        }
    }
    __syncthreads();
}

__device__ uint32_t range_bits(int b, int from, int end) { // rows of word b within [from, end)
    int lo = max(from - 32 * b, 0), hi = min(end - 32 * b, 32);
    return lo >= hi ? 0 : (hi < 32 ? (1u << hi) - 1 : ~0u) & (~0u << lo);
}

// Bit i goes to the i-th set bit of mask: inserts a zero at each place that is not set. Most words of a mask have few of them.
__device__ uint32_t deposit(uint32_t bits, uint32_t mask) {
    if (mask == 0) return 0;
    for (uint32_t out = ~mask; out; out &= out - 1) {
        uint32_t below = (out & -out) - 1;
        bits = (bits & below) | (bits & ~below) << 1;
    }
    return bits;
}

// words[b] = the drawn rows of word b. Residual rows are numbered without the fixed rows. The function draws m of n_residual
// rows; an earlier call drew `from` of them. If m = n_residual, it takes all rows.
template <bool GLOBAL>
__device__ void sample_words(select_space *s, const verified_params &p, int head, const uint32_t *fixed, int n_kv,
                             int n_residual, int from, int m, uint32_t *drawn, uint32_t *words) {
    // Reads a word of `drawn`. draw_sample has changed it with atomics, and atomics in global memory do not change the L1
    // cache.
    auto drawn_word = [&](int i) { return GLOBAL ? __ldcg(drawn + i) : drawn[i]; };
    int n_words = ceil_div(n_kv, 32);
    int before = 0, all;
    int *last = p.permutation + (size_t)head * 2 * p.stride;
    if (m < n_residual) draw_sample(rng_of(p, head), n_residual, from, m, last + p.stride, last, drawn);
    for (int b = threadIdx.x; b - (int)threadIdx.x < n_words; b += SELECT_THREADS) {
        uint32_t free = b < n_words ? ~fixed[b] & range_bits(b, 0, n_kv) : 0;
        int at = before + scan_block(s, __popc(free), &all);
        before += all;
        if (b >= n_words) continue;
        words[b] =
            m < n_residual ? deposit(__funnelshift_r(drawn_word(at / 32), drawn_word(at / 32 + 1), at % 32), free) : free;
    }
    __syncthreads();
}

// ---- the rows that are left ----

// A visitor of for_pieces: finds the lowest rank (the largest mass) of the entries that are not taken.
struct least_rank {
    const uint32_t *taken; // a bit for each entry
    int least;
    __device__ void visit(int piece, const uint4 &x, int base) {
        uint32_t is_taken = ((const uint8_t *)taken)[piece];
#pragma unroll
        for (int i = 0; i < 8; i++)
            if (mass_at(x, i) > 0 && !(is_taken >> i & 1)) least = min(least, base - mass_at(x, i));
    }
};

// log2 of the largest mass that is not taken, relative to 2^top, with a margin for the rounding to bf16.
__device__ float largest_left(select_space *s, const stored_masses &h, const uint32_t *taken) {
    least_rank visitor = {taken, INT_MAX};
    for_pieces(h, RANKS - 1, visitor);
    int least = visitor.least;
    least = -max_block(s, -least);
    if (least == INT_MAX) return -INFINITY;
    return (float)(log2(256.0 - least % 128) - least / 128 - 8 + log2(1 + 0x1p-8));
}

// The bound of a score's error in a page of 4-bit keys, in log2 units (cpu_kernels.inc.h, quantise_query). step: the steps of
// the page's channels. One warp calls the function.
__device__ float bound_of_codes(const bf16 *q, const __half *step, int dim, float scale) {
    float most = 0, sum = 0;
    for (int d = threadIdx.x % 32; d < dim; d += 32) {
        float size = fabsf(__fmul_rn(__fmul_rn(sl_widen(q[d]), scale), __half2float(step[d])));
        most = sl_max_nan(most, size), sum += size;
    }
    return 0.5f * sl_sum_lanes(sum) + 0.5f * (sl_max_nan_lanes(most) / 127) * 7.5f * (float)dim;
}

// largest_left for scores of 4-bit keys: an exact score can lie above the stored one by the bound of its page (draw_verified.c,
// largest_left). A warp takes every SELECT_WARPS-th page. A lane has eight of its rows.
template <int DIM>
__device__ float largest_left_of_codes(select_space *s, const verified_params &p, const stored_masses &h, int head,
                                       const uint32_t *taken) {
    int n_built = (h.n - 1) / SL_PAGE, lane = threadIdx.x % 32, seq_head = head / p.score.group;
    const int32_t *pages = p.score.rows[head / p.n_heads].pages;
    float most = -INFINITY;
    for (int page = threadIdx.x / 32; page <= n_built; page += SELECT_WARPS) {
        int piece = page * 32 + lane;
        float own = -INFINITY;
        if (piece * 8 < h.n) {
            uint4 x = __ldcg((const uint4 *)(h.w + (size_t)(piece / 4) * h.stride) + piece % 4);
            uint32_t is_taken = ((const uint8_t *)taken)[piece];
            for (int i = 0; i < 8 && piece * 8 + i < h.n; i++) {
                if (is_taken >> i & 1) continue;
                float w = __uint_as_float((uint32_t)mass_at(x, i) << 16);
                own = fmaxf(own, (w > 0 ? (float)log2((double)w) : -133) + (float)(h.ref[piece / 4] - h.top));
            }
        }
        own = sl_max_lanes(own);
        if (page < n_built && own > -INFINITY) {
            size_t block = (size_t)pages[page] * p.score.n_kv_heads + seq_head % p.score.n_kv_heads;
            own += bound_of_codes(p.score.q + (size_t)head * DIM, (const __half *)(p.codes + block * p.codes_size), DIM,
                                  p.score.scale);
        }
        most = sl_max_nan(most, own);
    }
    __syncthreads();
    if (lane == 0) s->ints[threadIdx.x / 32] = __float_as_int(most);
    __syncthreads();
    for (int i = 0; i < SELECT_WARPS; i++) most = sl_max_nan(most, __int_as_float(s->ints[i]));
    return most + log2f(1 + 0x1p-8f);
}

} // namespace

#endif
