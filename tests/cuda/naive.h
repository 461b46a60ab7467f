// tests/cuda/naive.h - the simplest version of what each CUDA kernel computes: the explanation of the fast kernels, and the
// reference that tests compare them with (test_cuda_naive.c).
//
// Each function here computes one output element by plain loops, in double precision or in integers. It uses no shared memory,
// no tiles and no running maximum. The functions compile for the CPU and for the GPU: naive.cu starts one GPU thread per output
// element, and the test also calls the same functions on the CPU. Read the function here first, then the fast kernel.
//
// Sizes: n_kv rows of K and V (a row is one token's K or V of one KV head); head_dim numbers in a row; group = n_heads /
// n_kv_heads query heads read one KV head.
#ifndef SLEIGH_TEST_NAIVE_H
#define SLEIGH_TEST_NAIVE_H

#include "attention/cpu/cpu_kernels.h"
#include "base/philox.h"

#include <math.h>
#include <stdint.h>
#include <string.h>

// ---- numbers ----

static inline SL_HOST_DEVICE double naive_from_bf16(bf16 x) {
    uint32_t bits = (uint32_t)x << 16;
    float f;
    memcpy(&f, &bits, sizeof f);
    return f;
}

// To the nearest bf16, ties to the even one. x is finite.
static inline SL_HOST_DEVICE bf16 naive_to_bf16(double x) {
    float f = (float)x;
    uint32_t bits;
    memcpy(&bits, &f, sizeof bits);
    return (bf16)((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}

// floor(a b / 2^64)
static inline SL_HOST_DEVICE uint64_t naive_high(uint64_t a, uint64_t b) {
    return (uint64_t)((unsigned __int128)a * b >> 64);
}

// ---- dense attention ----

// One layer of the paged KV cache, as one sequence sees it. Row j lies in page pages[j / 256], at j % 256.
typedef struct naive_cache {
    const bf16 *k, *v;    // [n_pages][n_kv_heads][256][head_dim]
    const int32_t *pages; // [ceil(n_kv / 256)]
    int n_heads, n_kv_heads, head_dim;
} naive_cache;

// Row j of K or V that query head `head` reads: [head_dim]. kv: c.k or c.v.
static inline SL_HOST_DEVICE const bf16 *naive_row(naive_cache c, const bf16 *kv, int head, int j) {
    int kv_head = head / (c.n_heads / c.n_kv_heads);
    return kv + (((size_t)c.pages[j / 256] * c.n_kv_heads + kv_head) * 256 + j % 256) * c.head_dim;
}

// s_j = log2(e) / sqrt(head_dim) q . k_j: a score in log2 units, with e^(q . k_j / sqrt(head_dim)) = 2^s_j. q: [head_dim]
static inline SL_HOST_DEVICE double naive_score(naive_cache c, const bf16 *q, int head, int j) {
    const bf16 *k = naive_row(c, c.k, head, j);
    double dot = 0;
    for (int d = 0; d < c.head_dim; d++) dot += naive_from_bf16(q[d]) * naive_from_bf16(k[d]);
    return dot * 1.4426950408889634 / sqrt((double)c.head_dim);
}

// Softmax attention: out[d] = sum_j p_j v_j[d],  p_j = 2^(s_j - top) / sum_i 2^(s_i - top),  over rows j < n_rows. With
// blocks, only over the rows of its key blocks: bit b % 64 of blocks[b / 64] stands for the rows 128 b .. 128 b + 127.
// top is the largest score: subtracting it changes no p_j and keeps 2^(...) within the range of floating-point numbers.
static inline SL_HOST_DEVICE int naive_visits(const uint64_t *blocks, int j) {
    return !blocks || (blocks[j / 128 / 64] >> (j / 128 % 64) & 1);
}
static inline SL_HOST_DEVICE double naive_attention(naive_cache c, const bf16 *q, int head, int n_rows, const uint64_t *blocks,
                                                    int d) {
    double top = -INFINITY, sum = 0, out = 0;
    for (int j = 0; j < n_rows; j++)
        if (naive_visits(blocks, j)) top = fmax(top, naive_score(c, q, head, j));
    for (int j = 0; j < n_rows; j++) {
        if (!naive_visits(blocks, j)) continue;
        double e = exp2(naive_score(c, q, head, j) - top);
        sum += e;
        out += e * naive_from_bf16(naive_row(c, c.v, head, j)[d]);
    }
    return out / sum;
}

// Decode (attention/cuda/dense_decode.cu): one query, the newest token's, attends to every row.
// q: [n_heads][head_dim]; the result is out[head][d].
static inline SL_HOST_DEVICE double naive_dense_decode(naive_cache c, const bf16 *q, int n_kv, int head, int d) {
    return naive_attention(c, q + (size_t)head * c.head_dim, head, n_kv, NULL, d);
}

// Causal prefill (attention/cuda/prefill/dense_prefill.cu): token i of a run stands at position first + i and attends to the
// rows up to this position, not to later ones. q: [n_tokens][q_stride]; the result is out[i][head][d].
static inline SL_HOST_DEVICE double naive_dense_prefill(naive_cache c, const bf16 *q, size_t q_stride, int first, int i,
                                                        int head, int d) {
    return naive_attention(c, q + i * q_stride + (size_t)head * c.head_dim, head, first + i + 1, NULL, d);
}

// The same with a mask of key blocks (attention/prefill/prefill_mask.h). blocks: the row of the head and of the token's query
// block.
static inline SL_HOST_DEVICE double naive_masked_prefill(naive_cache c, const bf16 *q, size_t q_stride, int first, int i,
                                                         int head, const uint64_t *blocks, int d) {
    return naive_attention(c, q + i * q_stride + (size_t)head * c.head_dim, head, first + i + 1, blocks, d);
}

// ---- the masses of a head: attention/cuda/score_keys.cuh, on the CPU `weigh` ----
//
// Sampled methods keep one number per row, the mass w_j = 2^(s_j - ref), as bf16. A block of 32 rows shares the integer ref,
// the smallest integer that is not below the block's largest score. So w_j <= 1, and the largest w_j of a block is above 1/2.

// The reference of block b. SL_REF_EMPTY: no row has a score above -32768. SL_REF_INVALID: a score is too large, or is NaN.
static inline SL_HOST_DEVICE int naive_reference(const float *score, int n, int b) {
    double top = -INFINITY;
    for (int j = b * SL_BLOCK; j < n && j < (b + 1) * SL_BLOCK; j++) {
        if (score[j] != score[j]) return SL_REF_INVALID;
        top = fmax(top, (double)score[j]);
    }
    if (ceil(top) > SL_REF_MOST) return SL_REF_INVALID;
    return ceil(top) > SL_REF_EMPTY ? (int)ceil(top) : SL_REF_EMPTY;
}

// The mass of a row. 0 in a block without a reference, and below 2^-126, where fp32 loses precision.
static inline SL_HOST_DEVICE bf16 naive_mass(float score, int ref) {
    if (ref == SL_REF_EMPTY || ref == SL_REF_INVALID || score - (float)ref < -126) return 0;
    return naive_to_bf16(exp2((double)(score - (float)ref)));
}

// A mass as an integer, so that sums do not depend on their order: floor(w 2^30).
static inline SL_HOST_DEVICE uint64_t naive_integer_mass(bf16 w) {
    return (uint64_t)(naive_from_bf16(w) * 0x1p30);
}

// The sum over a block's rows. w: [n]
static inline SL_HOST_DEVICE uint64_t naive_block_mass(const bf16 *w, int n, int b) {
    uint64_t sum = 0;
    for (int j = b * SL_BLOCK; j < n && j < (b + 1) * SL_BLOCK; j++) sum += naive_integer_mass(w[j]);
    return sum;
}

// ---- draws from masses: attention/cuda/santa/samplers.cuh ----

typedef struct naive_masses {
    const bf16 *w;      // [n]
    const int16_t *ref; // [ceil(n / 32)]
    int n, top;         // rows; the largest reference
} naive_masses;

// The mass of rows 0..j in one unit for all blocks, 2^(top - 38): a block's sum is shifted by the distance of its reference
// from `top`. The sum of a block up to a row is shifted, not each mass. So the running mass never falls, and each block loses
// less than 1.
static inline SL_HOST_DEVICE uint64_t naive_running_mass(naive_masses m, int j) {
    uint64_t running = 0;
    for (int b = 0; b <= j / SL_BLOCK; b++) {
        int shift = m.top - m.ref[b];
        uint64_t in_block = naive_block_mass(m.w, j + 1 < m.n ? j + 1 : m.n, b);
        running += shift < 64 ? in_block << 8 >> shift : 0;
    }
    return running;
}

// The row of threshold t: the first row whose running mass exceeds t. A row is found with probability mass / total when t is
// uniform in [0, total). Binary search, as the running mass does not fall.
static inline SL_HOST_DEVICE int naive_find_row(naive_masses m, uint64_t t) {
    int low = 0, high = m.n - 1;
    while (low < high) {
        int middle = (low + high) / 2;
        if (naive_running_mass(m, middle) > t)
            high = middle;
        else
            low = middle + 1;
    }
    return low;
}

// santa: draw i is independent of the others. Its threshold is u_i Z, with Z the total mass and u_i uniform in [0, 1).
static inline SL_HOST_DEVICE int naive_draw_independent(naive_masses m, sl_rng_id id, int i) {
    uint64_t total = naive_running_mass(m, m.n - 1);
    return naive_find_row(m, naive_high(sl_rng_u64(&id, (uint32_t)i, SL_STREAM_ATTENTION), total));
}

// santa-sys: S thresholds at equal distances Z / S, all shifted by one uniform number u_0: t_i = (i + u_0) Z / S.
static inline SL_HOST_DEVICE int naive_draw_systematic(naive_masses m, int S, sl_rng_id id, int i) {
    uint64_t total = naive_running_mass(m, m.n - 1), u = sl_rng_u64(&id, 0, SL_STREAM_ATTENTION);
    return naive_find_row(m, (uint64_t)(((unsigned __int128)(unsigned)i * total + naive_high(u, total)) / (unsigned)S));
}

// The output of every sampled method: out[d] = sum_i coef[i] v_{rows[i]}[d]. A row that is drawn twice occurs in `rows` twice;
// rows[i] = -1 means no row. For santa and santa-sys coef[i] = 1 / S, because a row is drawn S p_j times on average.
static inline SL_HOST_DEVICE double naive_sum_of_rows(naive_cache c, const int32_t *rows, const double *coef, int n, int head,
                                                      int d) {
    double out = 0;
    for (int i = 0; i < n; i++)
        if (rows[i] >= 0) out += coef[i] * naive_from_bf16(naive_row(c, c.v, head, rows[i])[d]);
    return out;
}

// ---- take-all + PPS: attention/cuda/santa/take_all.cuh ----
//
// santa-pps makes S draws, in proportion to the size z_j = p_j |v_j| of row j. Rows of large size would be drawn more than
// once. So each large row is taken exactly once ("heavy"). The other k = S - n_heavy draws choose among the other rows
// ("light"). With `light` the sum of the light sizes, one draw stands for the size kappa = light / k. The expected number of
// draws of a light row is z_j / kappa, which is below 1.

// The mass of row j: a difference of running masses, so that the masses of all rows add up to the total.
static inline SL_HOST_DEVICE uint64_t naive_row_mass(naive_masses m, int j) {
    return naive_running_mass(m, j) - (j > 0 ? naive_running_mass(m, j - 1) : 0);
}

// The probability of row j: its bf16 mass w_j 2^ref as a share of the total. total: the running mass of all rows, whose unit is
// 2^(top - 38)
static inline SL_HOST_DEVICE double naive_probability(naive_masses m, uint64_t total, int j) {
    return ldexp(naive_from_bf16(m.w[j]), m.ref[j / SL_BLOCK] - m.top + 38) / (double)total;
}

typedef struct naive_split {
    int n_heavy, k; // heavy rows; draws of light rows
    uint64_t light; // the light rows' size
} naive_split;

// Which rows are heavy: the largest row that is still light becomes heavy as long as its size exceeds kappa. At least one draw
// remains for the light rows. size: [n]; is_heavy: [n], filled.
static inline SL_HOST_DEVICE naive_split naive_heavy_rows(const uint64_t *size, int n, int S, uint8_t *is_heavy) {
    naive_split split = {0, 0, 0};
    for (int j = 0; j < n; j++) is_heavy[j] = 0, split.light += size[j];
    while (split.n_heavy < S - 1) {
        int best = -1;
        for (int j = 0; j < n; j++)
            if (!is_heavy[j] && (best < 0 || size[j] > size[best])) best = j;
        if (best < 0 || (unsigned __int128)size[best] * (unsigned)(S - split.n_heavy) <= split.light) break;
        is_heavy[best] = 1, split.n_heavy++, split.light -= size[best];
    }
    split.k = split.light > 0 ? S - split.n_heavy : 0;
    return split;
}

// Light draw i: the first light row at which the running size of light rows exceeds t = (i + u) kappa, u uniform in [0, 1).
static inline SL_HOST_DEVICE int naive_draw_light(const uint64_t *size, const uint8_t *is_heavy, int n, naive_split split,
                                                  uint64_t u, int i) {
    uint64_t running = 0,
             t = (uint64_t)(((unsigned __int128)(unsigned)i * split.light + naive_high(u, split.light)) / (unsigned)split.k);
    for (int j = 0; j < n; j++) {
        if (!is_heavy[j]) running += size[j];
        if (!is_heavy[j] && running > t) return j;
    }
    return -1;
}

// Both: rows [S] and 1 / pi_j of each, with pi_j the expected number of draws of its row: 1 for heavy rows, z_j / kappa for
// light rows. Entries without a draw have row -1. shared: one uniform number for all light draws ("sys"), else one for each
// ("strat"). The output is sum_i p_j / pi_j v_j over the entries, j = rows[i].
static inline SL_HOST_DEVICE void naive_take_all(const uint64_t *size, int n, int S, int shared, sl_rng_id id,
                                                 uint8_t *is_heavy, int32_t *rows, float *inv_pi) {
    naive_split split = naive_heavy_rows(size, n, S, is_heavy);
    int at = 0;
    for (int j = 0; j < n; j++)
        if (is_heavy[j]) rows[at] = j, inv_pi[at++] = 1;
    for (int i = 0; i < split.k; i++) {
        uint64_t u = sl_rng_u64(&id, shared ? 0 : (uint32_t)i, SL_STREAM_ATTENTION);
        int j = naive_draw_light(size, is_heavy, n, split, u, i);
        rows[at] = j, inv_pi[at++] = (float)((double)split.light / split.k / (double)size[j]);
    }
    while (at < S) rows[at] = -1, inv_pi[at++] = 0;
}

// ---- the rows of largest mass: attention/cuda/lists/select_rows.cuh (topk) ----

// The distance of a mass from 2^top, in steps of bf16 numbers: 128 steps are one octave. Equal masses have equal ranks, even in
// blocks with different references. Masses of less than 2^(top - 64) share the last rank. -1: the mass is 0, no rank.
static inline SL_HOST_DEVICE int naive_rank(naive_masses m, int j) {
    int one = 0x3f80, rank = (m.top - m.ref[j / SL_BLOCK]) * 128 + one - m.w[j]; // one: the bf16 number 1
    return m.w[j] == 0 ? -1 : rank < 64 * 128 ? rank : 64 * 128;
}

// 1: row j is one of the k rows of largest mass. Among rows of equal rank, the first rows are taken.
static inline SL_HOST_DEVICE int naive_is_among_largest(naive_masses m, int k, int j) {
    int rank = naive_rank(m, j), n_before = 0;
    for (int i = 0; i < m.n; i++) {
        int other = naive_rank(m, i);
        n_before += other >= 0 && (other < rank || (other == rank && i < j));
    }
    return rank >= 0 && n_before < k;
}

// ---- scores from quantised keys: attention/cuda/quantised/score_quantised.cuh (santa-is, dense-q) ----

// Channel c of row `row` of a page: a code of 8, 4 or 3 bits. Its bits lie in planes: 8, 4, or 2 + 1 bits, the low bits
// first. In a plane 16 rows form a group, and 64 bytes (4 per row) form a unit. Byte c % 4 of a row holds channels c, c + 4, c
// + 8, ...
static inline SL_HOST_DEVICE int naive_code(const uint8_t *planes, int bits, int head_dim, int row, int c) {
    int code = 0;
    for (int shift = 0, width; shift < bits; shift += width) {
        width = bits == 3 ? 2 - shift / 2 : bits;
        int per_byte = 8 / width, n_units = (head_dim * width + 31) / 32, word = c / 4;
        int byte = planes[(row / 16 * n_units + word / per_byte) * 64 + row % 16 * 4 + c % 4];
        code |= (byte >> width * (word % per_byte) & ((1 << width) - 1)) << shift;
        planes += n_units * 64 * 16; // 256 / 16 groups of rows
    }
    return code;
}

// With k_c = zero_c + step_c code_c, the score is sum_c q_c k_c times log2(e) / sqrt(head_dim). The query is quantised too, so
// that the sum is one of integers: unit_c is q_c step_c in units of q.scale, and q.bias holds all terms without a code.
//   s = scale sum_c unit_c (code_c - middle) + bias,  middle = (2^bits - 1) / 2
static inline SL_HOST_DEVICE double naive_quantised_score(sl_quant_query q, const uint8_t *planes, int bits, int head_dim,
                                                          int row) {
    double middle = ((1 << bits) - 1) / 2.0, sum = 0;
    for (int c = 0; c < head_dim; c++) {
        int unit = bits == 8 ? 128 * q.high[c] + q.low[c] : q.high[c];
        sum += unit * (naive_code(planes, bits, head_dim, row, c) - middle);
    }
    return q.scale * sum + q.bias;
}

// ---- scores from some features: attention/cuda/santa/bernoulli.cu ----

// Feature d of the sampled query: sign(q_d) norm c / B, norm the largest |q_d|. The count c is floor(B |q_d| / norm + u), u
// uniform in [0, 1): its mean is B |q_d| / norm, so the sampled query has the mean q. Features with count 0 are not read from
// K. q: [head_dim]
static inline SL_HOST_DEVICE double naive_bernoulli_feature(const bf16 *q, int head_dim, int B, sl_rng_id id, int d) {
    double norm = 0, own = naive_from_bf16(q[d]);
    for (int i = 0; i < head_dim; i++) norm = fmax(norm, fabs(naive_from_bf16(q[i])));
    if (norm == 0) return 0;
    double x = B * (fabs(own) / norm), whole = floor(x);
    uint64_t rest = (uint64_t)((x - whole) * 0x1p64), u = sl_rng_u64(&id, (uint32_t)d, SL_STREAM_FEATURES);
    double count = whole + (u > UINT64_MAX - rest); // adds 1 if fraction + u >= 1; comparing integers is exact
    return (own < 0 ? -norm : norm) * count / B;
}

// The score of row j with the sampled query, in log2 units. feature: [head_dim]
static inline SL_HOST_DEVICE double naive_bernoulli_score(naive_cache c, const double *feature, int head, int j) {
    const bf16 *k = naive_row(c, c.k, head, j);
    double dot = 0;
    for (int d = 0; d < c.head_dim; d++) dot += feature[d] * naive_from_bf16(k[d]);
    return dot * 1.4426950408889634 / sqrt((double)c.head_dim);
}

// ---- the layers around attention ----

// RMSNorm (backend/cuda/linear.cu): out[i] = x[i] / sqrt(mean(x^2) + eps) w[i]. x: [n] fp32, w: [n]
static inline SL_HOST_DEVICE double naive_rmsnorm(const float *x, const bf16 *w, int n, double eps, int i) {
    double squares = 0;
    for (int j = 0; j < n; j++) squares += (double)x[j] * x[j];
    return x[i] / sqrt(squares / n + eps) * naive_from_bf16(w[i]);
}

// A linear layer (backend/cuda/linear.cu): y[o] = sum_i w[o][i] x[i]. w: [n_out][n_in], x: [n_in]
static inline SL_HOST_DEVICE double naive_linear(const bf16 *w, const bf16 *x, int n_in, int o) {
    double sum = 0;
    for (int i = 0; i < n_in; i++) sum += naive_from_bf16(w[(size_t)o * n_in + i]) * naive_from_bf16(x[i]);
    return sum;
}

// SwiGLU (backend/cuda/cuda_ops.cu): silu(gate) up,  silu(g) = g / (1 + e^-g)
static inline SL_HOST_DEVICE double naive_swiglu(bf16 gate, bf16 up) {
    double g = naive_from_bf16(gate);
    return g / (1 + exp(-g)) * naive_from_bf16(up);
}

// RoPE (backend/cuda/cuda_ops.cu): rotates the pair (a, b) = (y[i], y[i + head_dim / 2]) of a head by the angle
// position inv_freq[i]. The angle is rounded to fp32, because transformers computes it so. The result is the first or the
// second number of the rotated pair.
static inline SL_HOST_DEVICE double naive_rotate(double a, double b, float inv_freq, int position, int second) {
    float angle = (float)position * inv_freq;
    double cosine = cos((double)angle), sine = sin((double)angle);
    return second ? b * cosine + a * sine : a * cosine - b * sine;
}

// The parameters of the heads of q or k. Each may be NULL.
typedef struct naive_head {
    const bf16 *bias; // [head_dim] of this head
    const bf16 *norm; // [head_dim]
    double eps;
} naive_head;

// Element d of a head before RoPE: x' = x + bias, y = x' / sqrt(mean(x'^2) + eps) norm. x: [head_dim]
static inline SL_HOST_DEVICE double naive_norm_head(const bf16 *x, naive_head h, int head_dim, int d) {
    double squares = 0, own = 0;
    for (int i = 0; i < head_dim; i++) {
        double y = naive_from_bf16(x[i]) + (h.bias ? naive_from_bf16(h.bias[i]) : 0);
        squares += y * y;
        if (i == d) own = y;
    }
    return h.norm ? own / sqrt(squares / head_dim + h.eps) * naive_from_bf16(h.norm[d]) : own;
}

// Element d of a head after RoPE.
static inline SL_HOST_DEVICE double naive_rope(const bf16 *x, naive_head h, const float *inv_freq, int head_dim, int position,
                                               int d) {
    int half = head_dim / 2, i = d % half;
    double a = naive_norm_head(x, h, head_dim, i), b = naive_norm_head(x, h, head_dim, i + half);
    return naive_rotate(a, b, inv_freq[i], position, d >= half);
}

// Where row `position` of KV head h begins in the cache: RoPE's k, and v as it is, go there (rope_append).
static inline SL_HOST_DEVICE size_t naive_place(const int32_t *pages, int n_kv_heads, int head_dim, int position, int h) {
    return (((size_t)pages[position / 256] * n_kv_heads + h) * 256 + position % 256) * head_dim;
}

// ---- the same functions on a GPU (naive.cu): one thread per output element ----
// Pointers are device pointers. Every function returns before the kernel has ended.

#ifdef SLEIGH_CUDA
#ifdef __cplusplus
extern "C" {
#endif

// out: [n_heads][head_dim]
void naive_cuda_dense_decode(naive_cache c, const bf16 *q, int n_kv, double *out);
// out: [n_tokens][n_heads][head_dim]
void naive_cuda_dense_prefill(naive_cache c, const bf16 *q, size_t q_stride, int first, int n_tokens, double *out);
// score: [n_kv], of query head `head`; q: [head_dim]
void naive_cuda_scores(naive_cache c, const bf16 *q, int n_kv, int head, float *score);
// From score [n]: w [n], ref and sum (the blocks' integer masses) [ceil(n / 32)]
void naive_cuda_masses(const float *score, int n, bf16 *w, int16_t *ref, uint64_t *sum);
// rows: [S]
void naive_cuda_draw_independent(naive_masses m, int S, sl_rng_id id, int32_t *rows);
void naive_cuda_draw_systematic(naive_masses m, int S, sl_rng_id id, int32_t *rows);
// out: [head_dim]
void naive_cuda_sum_of_rows(naive_cache c, const int32_t *rows, const double *coef, int n, int head, double *out);

// size: [n]
void naive_cuda_row_masses(naive_masses m, uint64_t *size);
// One thread in all. is_heavy: [n]; rows, inv_pi: [S]
void naive_cuda_take_all(const uint64_t *size, int n, int S, int shared, sl_rng_id id, uint8_t *is_heavy, int32_t *rows,
                         float *inv_pi);
// taken: [n], 1 for the k rows of largest mass
void naive_cuda_largest(naive_masses m, int k, uint8_t *taken);
// score: [256] of one page's planes
void naive_cuda_quantised_scores(sl_quant_query q, const uint8_t *planes, int bits, int head_dim, double *score);
// feature: [head_dim]; score: [n_kv]; q: [head_dim]
void naive_cuda_bernoulli_scores(naive_cache c, const bf16 *q, int n_kv, int head, int B, sl_rng_id id, double *feature,
                                 double *score);

// x: [n_rows][n]; out: [n_rows][n]
void naive_cuda_rmsnorm(const float *x, const bf16 *w, int n_rows, int n, double eps, double *out);
// x: [n_rows][n_in]; out: [n_rows][n_out]
void naive_cuda_linear(const bf16 *w, const bf16 *x, int n_rows, int n_in, int n_out, double *out);
// gate_up: [n_rows][gate: n, up: n]; out: [n_rows][n]
void naive_cuda_swiglu(const bf16 *gate_up, int n_rows, int n, double *out);
// qkv: [n_rows][stride], a row's first n_heads q heads, n_kv_heads k heads and n_kv_heads v heads. position: [n_rows]. All rows
// are of one sequence. q: [n_rows][n_heads][head_dim]; k, v: [n_pages][n_kv_heads][256][head_dim] in double precision.
typedef struct naive_qkv {
    const bf16 *qkv;
    size_t stride;
    const float *inv_freq; // [head_dim / 2]
    const int32_t *position, *pages;
    int n_rows, n_heads, n_kv_heads, head_dim;
    const bf16 *bias;            // [n_heads + 2 n_kv_heads][head_dim]; NULL: none
    const bf16 *q_norm, *k_norm; // [head_dim]; NULL: none
    double eps;
    double *q, *k, *v;
} naive_qkv;
void naive_cuda_rope_append(naive_qkv a);

#ifdef __cplusplus
}
#endif
#endif

#endif
