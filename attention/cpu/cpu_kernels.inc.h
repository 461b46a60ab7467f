// attention/cpu/cpu_kernels.inc.h - the template of the vector loops of attention (cpu_kernels.h). SL_ISA: name of the
// instruction set.
#include "attention/cpu/cpu_kernels.h"
#include "attention/stages/stages.h"
#include "backend/cpu/simd.h"

#include <math.h>

#define PASTE_(a, b) a##b
#define PASTE(a, b) PASTE_(a, b)
#define STRING_(a) #a
#define STRING(a) STRING_(a)

typedef int8_t vb __attribute__((vector_size(VW), aligned(1), may_alias));
typedef uint16_t vh __attribute__((vector_size(VW * 2), aligned(2), may_alias));
typedef uint16_t vs __attribute__((vector_size(VW * 4), aligned(2), may_alias));

// ---- sums of VW vectors together ----
// Lane i of FOLD(a, b, s) is the sum of lanes i and i^s of a (bit s of i clear) or of b (bit s set). After log2(VW) levels lane
// r holds the sum of vector r. Every row is summed by the same balanced tree.
#define PICK(i, s, flip) (((i) ^ ((flip) * (s))) + (((i) & (s)) ? VW : 0))
#if defined(__AVX512F__)
#define MASK(s, f)                                                                                                             \
    (vi) {                                                                                                                     \
        PICK(0, s, f), PICK(1, s, f), PICK(2, s, f), PICK(3, s, f), PICK(4, s, f), PICK(5, s, f), PICK(6, s, f),               \
            PICK(7, s, f), PICK(8, s, f), PICK(9, s, f), PICK(10, s, f), PICK(11, s, f), PICK(12, s, f), PICK(13, s, f),       \
            PICK(14, s, f), PICK(15, s, f)                                                                                     \
    }
#elif defined(__AVX2__)
#define MASK(s, f)                                                                                                             \
    (vi) {                                                                                                                     \
        PICK(0, s, f), PICK(1, s, f), PICK(2, s, f), PICK(3, s, f), PICK(4, s, f), PICK(5, s, f), PICK(6, s, f), PICK(7, s, f) \
    }
#else
#define MASK(s, f)                                                                                                             \
    (vi) {                                                                                                                     \
        PICK(0, s, f), PICK(1, s, f), PICK(2, s, f), PICK(3, s, f)                                                             \
    }
#endif
#define FOLD(a, b, s) (__builtin_shuffle(a, b, MASK(s, 0)) + __builtin_shuffle(a, b, MASK(s, 1)))

SIMD_INLINE vf sum_each(vf *x) { // overwrites x[VW]
    for (int i = 0; i < VW / 2; i++) x[i] = FOLD(x[2 * i], x[2 * i + 1], 1);
    for (int i = 0; i < VW / 4; i++) x[i] = FOLD(x[2 * i], x[2 * i + 1], 2);
#if defined(__AVX2__)
    for (int i = 0; i < VW / 8; i++) x[i] = FOLD(x[2 * i], x[2 * i + 1], 4);
#endif
#if defined(__AVX512F__)
    x[0] = FOLD(x[0], x[1], 8);
#endif
    return x[0];
}

// ---- rows of the cache ----

// Calls a function whose first argument is a constant format.
#define BY_FORMAT(format, call)                                                                                                \
    switch (format) {                                                                                                          \
    case SL_FP8:                                                                                                               \
        call(SL_FP8);                                                                                                          \
        break;                                                                                                                 \
    case SL_INT8:                                                                                                              \
        call(SL_INT8);                                                                                                         \
        break;                                                                                                                 \
    default:                                                                                                                   \
        call(SL_BF16);                                                                                                         \
    }

// VW numbers of a row of the cache, from number i on. factor: factor_of the row's scale. The loops over rows read the cache
// through this function, and f is a constant. The product is rounded once, as in sl_kv_number.
SIMD_INLINE vf load_row(const void *row, sl_format f, int i, float factor) {
    vf x = v_load_weight(row, f, (size_t)i);
    if (f != SL_BF16) x *= factor;
    return x;
}
SIMD_INLINE float factor_of(sl_format f, float scale) { // exact: load_factor is a power of two
    return scale / load_factor(f);
}
SIMD_INLINE float run_factor(sl_kv_run run, sl_format f, int j) { // of row j
    return f == SL_BF16 ? 1 : factor_of(f, run.scale[j]);
}
SIMD_INLINE const void *run_row(sl_kv_run run, sl_format f, int head_dim, int j) {
    return (const char *)run.data + sl_format_bytes(f, (size_t)j * head_dim);
}
SIMD_INLINE void prefetch_row(const void *row, sl_format f, int head_dim) {
    for (size_t i = 0; i < sl_format_bytes(f, (size_t)head_dim); i += 64) __builtin_prefetch((const char *)row + i);
}

// ---- decode ----

// Widens VW rows of K once and multiplies them with every head of the group. AVX512-BF16 dot products are slower: with q as two
// bf16 numbers, for the precision of fp32, a santa-sys step took 1.3 times as long on a Zen 5.
SIMD_INLINE void score_format(sl_format f, const float *q, int group, sl_kv_run k, int n_rows, int head_dim, float scale,
                              float *out, int stride) {
    float wide[VW * 256] __attribute__((aligned(64)));
    for (int j = 0; j < n_rows; j += VW) {
        int rows = n_rows - j < VW ? n_rows - j : VW;
        for (int r = 0; r < rows; r++) {
            const void *row = run_row(k, f, head_dim, j + r);
            float factor = run_factor(k, f, j + r);
            for (int i = 0; i < head_dim; i += VW) v_store(wide + r * head_dim + i, load_row(row, f, i, factor));
        }
        for (int i = rows * head_dim; i < VW * head_dim; i += VW) v_store(wide + i, v_set(0));
        for (int g = 0; g < group; g++) {
            vf acc[VW];
            for (int r = 0; r < VW; r += 4) {
                const float *row = wide + r * head_dim;
                vf a0 = v_set(0), a1 = a0, a2 = a0, a3 = a0;
                for (int d = 0; d < head_dim; d += VW) {
                    vf x = v_load(q + (size_t)g * head_dim + d);
                    a0 = v_fma(x, v_load(row + d), a0);
                    a1 = v_fma(x, v_load(row + head_dim + d), a1);
                    a2 = v_fma(x, v_load(row + 2 * head_dim + d), a2);
                    a3 = v_fma(x, v_load(row + 3 * head_dim + d), a3);
                }
                acc[r] = a0, acc[r + 1] = a1, acc[r + 2] = a2, acc[r + 3] = a3;
            }
            v_store(out + (size_t)g * stride + j, sum_each(acc) * scale);
        }
    }
}

static void score(const float *q, int group, sl_kv_run k, int n_rows, int head_dim, float scale, float *out, int stride){
#define CALL(f) score_format(f, q, group, k, n_rows, head_dim, scale, out, stride)
    BY_FORMAT(k.format, CALL)
#undef CALL
}

SIMD_INLINE
    void score_rows_format(sl_format f, const float *q, const sl_kv_row *k, int n, int head_dim, float scale, float *out) {
    enum { AHEAD = 2 * VW }; // rows to prefetch: the rows lie far apart
    for (int j = 0; j < n; j += VW) {
        vf acc[VW];
        for (int r = 0; r < VW; r++) {
            const sl_kv_row *row = &k[j + r < n ? j + r : n - 1];
            float factor = factor_of(f, row->scale);
            acc[r] = v_set(0);
            if (j + r + AHEAD < n) prefetch_row(k[j + r + AHEAD].data, f, head_dim);
            for (int d = 0; d < head_dim; d += VW) acc[r] = v_fma(v_load(q + d), load_row(row->data, f, d, factor), acc[r]);
        }
        vf scores = sum_each(acc) * scale;
        if (j + VW <= n)
            v_store(out + j, scores);
        else
            memcpy(out + j, &scores, (size_t)(n - j) * sizeof *out);
    }
}

static void score_rows(const float *q, sl_format format, const sl_kv_row *k, int n, int head_dim, float scale, float *out){
#define CALL(f) score_rows_format(f, q, k, n, head_dim, scale, out)
    BY_FORMAT(format, CALL)
#undef CALL
}

SIMD_INLINE void score_features_heads(const float *q, int n_heads, int head_dim, const int32_t *features, int n_features,
                                      const bf16 *kt, float scale, float *out, int stride) {
    enum { LINE = 32 }; // rows of a cache line
    for (int j = 0; j < SL_TILE; j += 2 * VW) {
        vf acc[4][2];
        for (int h = 0; h < n_heads; h++) acc[h][0] = acc[h][1] = v_set(0);
        for (int i = 0; i < n_features; i++) {
            const bf16 *row = kt + (size_t)features[i] * SL_TILE + j;
            // The next lines of all features fit the L1 cache. Without this prefetch the loop took 2.5 times as long on a
            // Zen 5.
            if (j + LINE < SL_TILE) __builtin_prefetch(row + LINE);
            vf x0 = v_load_bf16(row), x1 = v_load_bf16(row + VW);
            for (int h = 0; h < n_heads; h++) {
                vf c = v_set(q[(size_t)h * head_dim + features[i]]);
                acc[h][0] = v_fma(c, x0, acc[h][0]);
                acc[h][1] = v_fma(c, x1, acc[h][1]);
            }
        }
        for (int h = 0; h < n_heads; h++) {
            v_store(out + (size_t)h * stride + j, acc[h][0] * scale);
            v_store(out + (size_t)h * stride + j + VW, acc[h][1] * scale);
        }
    }
}

static void score_features(const float *q, int group, int head_dim, const int32_t *features, int n_features, const bf16 *kt,
                           float scale, float *out, int stride) {
    for (int g = 0; g < group; g += 4, q += (size_t)4 * head_dim, out += (size_t)4 * stride)
        switch (group - g) { // each loop over heads gets a constant count
        case 1:
            score_features_heads(q, 1, head_dim, features, n_features, kt, scale, out, stride);
            break;
        case 2:
            score_features_heads(q, 2, head_dim, features, n_features, kt, scale, out, stride);
            break;
        case 3:
            score_features_heads(q, 3, head_dim, features, n_features, kt, scale, out, stride);
            break;
        default:
            score_features_heads(q, 4, head_dim, features, n_features, kt, scale, out, stride);
        }
}

static void score_bounds(const float *q, int group, const bf16 *bounds, int n_units, int head_dim, float scale, float *out,
                         int stride) {
    for (int u = 0; u < n_units; u++) {
        const bf16 *low = bounds + (size_t)u * 2 * head_dim, *high = low + head_dim;
        for (int g = 0; g < group; g++) {
            vf sum = v_set(0);
            for (int d = 0; d < head_dim; d += VW) {
                vf x = v_load(q + (size_t)g * head_dim + d);
                sum += v_max(x * v_load_bf16(low + d), x * v_load_bf16(high + d));
            }
            out[(size_t)g * stride + u] = v_sum(sum) * scale;
        }
    }
}

// ---- signatures ----

static void count_matches(const uint16_t *sig, const uint16_t *query, int n_tables, uint16_t *hits) {
    enum { LANES = 2 * VW, ROWS = 128, N = ROWS / LANES }; // rows whose counts fit in registers
    for (int j = 0; j < SL_TILE; j += ROWS) {
        vs count[N];
        for (int i = 0; i < N; i++) count[i] = (vs){0};
        for (int t = 0; t < n_tables; t++) {
            vs own = query[(size_t)t * SL_TILE] - (vs){0};
            const uint16_t *row = sig + (size_t)t * SL_TILE + j;
            for (int i = 0; i < N; i++) count[i] -= (vs)(*(const vs *)(row + i * LANES) == own); // true is -1
        }
        memcpy(hits + j, count, sizeof count);
    }
}

// ---- buckets ----

SIMD_INLINE void widen_format(sl_format f, sl_kv_run src, int n_rows, int head_dim, float *dst) {
    for (int j = 0; j < n_rows; j++, dst += head_dim) {
        const void *row = run_row(src, f, head_dim, j);
        float factor = run_factor(src, f, j);
        for (int i = 0; i < head_dim; i += VW) v_store(dst + i, load_row(row, f, i, factor));
    }
}

static void widen(sl_kv_run src, int n_rows, int head_dim, float *dst) {
#define CALL(f) widen_format(f, src, n_rows, head_dim, dst)
    BY_FORMAT(src.format, CALL)
#undef CALL
}

// Four rows against VW centroids at a time. A lane is a centroid, so a product sums in the order of the channels.
static void nearest(const float *x, int n_rows, const bf16 *centroids, int n_centroids, int head_dim, uint16_t *bucket) {
    enum { ROWS = 4 };
    float most[SL_TILE], tile[VW * 256] __attribute__((aligned(64))), wide[256];
    for (int j = 0; j < n_rows; j++) most[j] = -INFINITY, bucket[j] = 0;
    for (int c = 0; c < n_centroids; c += VW) {
        int n = n_centroids - c < VW ? n_centroids - c : VW;
        for (int r = 0; r < n; r++) {
            widen_format(SL_BF16, sl_kv_bf16_run(centroids + (size_t)(c + r) * head_dim), 1, head_dim, wide);
            for (int d = 0; d < head_dim; d++) tile[d * VW + r] = wide[d];
        }
        for (int r = n; r < VW; r++)
            for (int d = 0; d < head_dim; d++) tile[d * VW + r] = 0;
        for (int j = 0; j < n_rows; j += ROWS) {
            const float *row[ROWS];
            float dot[ROWS][VW];
            vf acc[ROWS];
            for (int r = 0; r < ROWS; r++) row[r] = x + (size_t)(j + r < n_rows ? j + r : j) * head_dim, acc[r] = v_set(0);
            for (int d = 0; d < head_dim; d++) {
                vf t = v_load(tile + d * VW);
                for (int r = 0; r < ROWS; r++) acc[r] = v_fma(v_set(row[r][d]), t, acc[r]);
            }
            memcpy(dot, acc, sizeof dot);
            for (int r = 0; r < ROWS && j + r < n_rows; r++)
                for (int i = 0; i < n; i++)
                    if (dot[r][i] > most[j + r]) most[j + r] = dot[r][i], bucket[j + r] = (uint16_t)(c + i);
        }
    }
}

// ---- quantised keys ----

static void quantise_query(const float *q, const f16 *step, const f16 *zero, int head_dim, int bits, float scale,
                           sl_quant_query *out) {
    float unit[SL_QUANT_DIM], middle = (float)((1 << bits) - 1) / 2;
    vf most = v_set(0), bias = v_set(0), size = v_set(0);
    for (int d = 0; d < head_dim; d += VW) {
        vf x = v_load(q + d) * scale, x_step = x * v_load_f16(step + d), magnitude = v_max(x_step, -x_step);
        bias = v_fma(x, v_load_f16(zero + d), v_fma(x_step, v_set(middle), bias));
        most = v_max(most, magnitude);
        size += magnitude;
        v_store(unit + d, x_step);
    }
    int fine = bits == 8, levels = fine ? 127 * 128 : 127;
    float largest = v_max_lane(most), inverse = largest > 0 ? (float)levels / largest : 0;
    out->scale = largest / (float)levels;
    out->bias = v_sum(bias);
    // Rounding a key moves a channel by at most half a step. Rounding the query moves it by half a unit times |code - middle|.
    out->bound = 0.5f * v_sum(size) + 0.5f * out->scale * middle * (float)head_dim;
    vi sum = {0};
    for (int d = 0; d < head_dim; d += VW) {
        const float magic = 12582912.0f; // 1.5 * 2^23: adding this number rounds to an integer
        // NaN becomes a number here, because the conversion of NaN is undefined. The bias stays NaN, and so do the scores.
        vf rounded = v_max((v_load(unit + d) * inverse + magic) - magic, v_set((float)-levels));
        vi x = __builtin_convertvector(rounded, vi), high = (x + 64 * fine) >> (7 * fine);
        *(vb *)(out->high + d) = __builtin_convertvector(high, vb);
        *(vb *)(out->low + d) = __builtin_convertvector((x - 128 * high) * fine, vb);
        sum += x;
    }
    out->sum = v_sum_int(sum);
    memset(out->high + head_dim, 0, SL_QUANT_DIM - head_dim);
    memset(out->low + head_dim, 0, SL_QUANT_DIM - head_dim);
}

// Sums over the 4 bytes of a lane: codes (unsigned, below 16) times q (signed). Vector instructions compute 16-bit sums of
// pairs. FLUSH words fit in 16 bits: 8 * 2 * 15 * 127 < 2^15.
enum { FLUSH = 8 };
#if defined(__AVX512F__)
typedef __m512i pair_sums;
SIMD_INLINE pair_sums add_products(pair_sums sums, vi codes, int32_t q) {
    return _mm512_add_epi16(sums, _mm512_maddubs_epi16((__m512i)codes, _mm512_set1_epi32(q)));
}
SIMD_INLINE vi lane_sums(pair_sums sums) {
    return (vi)_mm512_madd_epi16(sums, _mm512_set1_epi16(1));
}
#elif defined(__AVX2__)
typedef __m256i pair_sums;
SIMD_INLINE pair_sums add_products(pair_sums sums, vi codes, int32_t q) {
    return _mm256_add_epi16(sums, _mm256_maddubs_epi16((__m256i)codes, _mm256_set1_epi32(q)));
}
SIMD_INLINE vi lane_sums(pair_sums sums) {
    return (vi)_mm256_madd_epi16(sums, _mm256_set1_epi16(1));
}
#else
typedef vi pair_sums;
SIMD_INLINE pair_sums add_products(pair_sums sums, vi codes, int32_t q) {
    for (int t = 0; t < 4; t++) sums += ((codes >> (8 * t)) & 0xff) * (int32_t)(int8_t)(q >> (8 * t));
    return sums;
}
SIMD_INLINE vi lane_sums(pair_sums sums) {
    return sums;
}
#endif

// Adds the dot products of VW rows with bits [first, first + n) of the codes in a plane of `width` bits, n at most 4, for
// n_heads queries; rows: the plane's first 64-byte unit.
SIMD_INLINE void dot_plane(const uint8_t *rows, int width, int first, int n, int head_dim, const int8_t *const *q, int n_heads,
                           vi *acc) {
    int steps = 8 / width, n_units = (head_dim + 4 * steps - 1) / (4 * steps);
    for (int from = 0; from < n_units; from += FLUSH / steps) {
        pair_sums sums[4] = {{0}};
        for (int u = from; u < from + FLUSH / steps && u < n_units; u++) {
            vi x;
            memcpy(&x, rows + (size_t)u * 64, sizeof x);
            for (int t = 0; t < steps; t++) {
                vi codes = (x >> (width * t + first)) & (((1 << n) - 1) * 0x01010101);
                for (int h = 0; h < n_heads; h++) {
                    int32_t word;
                    memcpy(&word, q[h] + 4 * (u * steps + t), sizeof word);
                    sums[h] = add_products(sums[h], codes, word);
                }
            }
        }
        for (int h = 0; h < n_heads; h++) acc[h] += lane_sums(sums[h]);
    }
}

// Dot products of VW rows of a page: the sum over its planes, and over the halves of 8-bit codes, each shifted to its bits of
// the code.
SIMD_INLINE void dot_codes(const uint8_t *planes, int row, int bits, int head_dim, const int8_t *const *q, int n_heads,
                           vi *acc) {
    int n_parts = bits == 4 ? 1 : 2, group = row / 16, part = row % 16;
    for (int h = 0; h < n_heads; h++) acc[h] = (vi){0};
    for (int p = 0; p < n_parts; p++) {
        int width = bits == 3 ? 2 - p : bits, first = bits == 8 ? 4 * p : 0, n = bits == 3 ? width : 4;
        int n_units = (head_dim * width + 31) / 32, shift = p * (bits == 3 ? 2 : 4);
        vi sum[4] = {{0}};
        dot_plane(planes + (size_t)group * n_units * 64 + part * 4, width, first, n, head_dim, q, n_heads, sum);
        for (int h = 0; h < n_heads; h++) acc[h] += sum[h] << shift;
        if (bits == 3) planes += (size_t)(SL_TILE / 16) * n_units * 64;
    }
}

SIMD_INLINE void score_heads(const sl_quant_query *q, int n_heads, const uint8_t *planes, int head_dim, int bits, float *out,
                             int stride) {
    const int8_t *high[4], *low[4];
    float middle = (float)((1 << bits) - 1) / 2;
    for (int h = 0; h < n_heads; h++) high[h] = q[h].high, low[h] = q[h].low;
    for (int row = 0; row < SL_TILE; row += VW) {
        vi acc[4], fine[4];
        dot_codes(planes, row, bits, head_dim, high, n_heads, acc);
        if (bits == 8) {
            dot_codes(planes, row, bits, head_dim, low, n_heads, fine);
            for (int h = 0; h < n_heads; h++) acc[h] = acc[h] * 128 + fine[h];
        }
        for (int h = 0; h < n_heads; h++) {
            vf dot = __builtin_convertvector(acc[h], vf) - middle * (float)q[h].sum;
            v_store(out + (size_t)h * stride + row, v_fma(dot, v_set(q[h].scale), v_set(q[h].bias)));
        }
    }
}

SIMD_INLINE void score_group(const sl_quant_query *q, int group, const uint8_t *planes, int head_dim, int bits, float *out,
                             int stride) {
    int g = 0;
    for (; g + 4 <= group; g += 4) score_heads(q + g, 4, planes, head_dim, bits, out + (size_t)g * stride, stride);
    for (; g < group; g++) score_heads(q + g, 1, planes, head_dim, bits, out + (size_t)g * stride, stride);
}

static void score_quantised(const sl_quant_query *q, int group, const uint8_t *planes, int head_dim, int bits, float *out,
                            int stride) {
    if (bits == 4)
        score_group(q, group, planes, head_dim, 4, out, stride);
    else if (bits == 8)
        score_group(q, group, planes, head_dim, 8, out, stride);
    else
        score_group(q, group, planes, head_dim, 3, out, stride);
}

// ---- stored masses ----

static uint32_t at_least(const bf16 *stored, bf16 least) {
#if defined(__AVX512F__)
    return _mm512_cmpge_epu16_mask(_mm512_loadu_si512(stored), _mm512_set1_epi16((short)least));
#elif defined(__AVX2__)
    __m256i limit = _mm256_set1_epi16((short)least), x = _mm256_loadu_si256((const __m256i *)stored),
            y = _mm256_loadu_si256((const __m256i *)(stored + 16));
    x = _mm256_cmpeq_epi16(_mm256_max_epu16(x, limit), x), y = _mm256_cmpeq_epi16(_mm256_max_epu16(y, limit), y);
    return (uint32_t)_mm256_movemask_epi8(_mm256_permute4x64_epi64(_mm256_packs_epi16(x, y), 0xd8));
#else
    uint32_t mask = 0;
    for (int i = 0; i < SL_BLOCK; i++) mask |= (uint32_t)(stored[i] >= least) << i;
    return mask;
#endif
}

// To the nearest bf16, ties to even; x is not below 0.
SIMD_INLINE vi nearest_bf16(vf x) {
    vi u = (vi)x;
    return (u + 0x7fff + ((u >> 16) & 1)) >> 16;
}

// Stores the 32 bf16 numbers of a block, each in [0, 1]. Returns the block's mass: the sum of 32 integers of up to 2^30. The
// high and the low 15 bits are summed apart, so that sums fit in 32 bits.
SIMD_INLINE uint64_t store_block(const vi u[SL_BLOCK / VW], bf16 *stored) {
    vi high = {0}, low = {0};
    for (int i = 0; i < SL_BLOCK / VW; i++) {
        *(vh *)(stored + i * VW) = __builtin_convertvector(u[i], vh);
        vi m = __builtin_convertvector((vf)(u[i] << 16) * 0x1p30f, vi);
        high += m >> 15, low += m & 0x7fff;
    }
    return ((uint64_t)v_sum_int(high) << 15) + (uint64_t)v_sum_int(low);
}

SIMD_INLINE void masses_of_block(const float *s, bf16 *stored, int16_t *ref, uint64_t *mass) {
    vi u[SL_BLOCK / VW], unordered = {0};
    vf top = v_set(-INFINITY);
    for (int i = 0; i < SL_BLOCK; i += VW) {
        vf x = v_load(s + i);
        unordered |= x != x;
        top = v_max(top, x);
    }
    float largest = ceilf(v_max_lane(top));
    int is_invalid = v_any(unordered) || largest > SL_REF_MOST;
    if (is_invalid || !(largest > SL_REF_EMPTY)) { // -inf: every row is masked
        memset(stored, 0, SL_BLOCK * sizeof *stored);
        *ref = is_invalid ? SL_REF_INVALID : SL_REF_EMPTY;
        *mass = 0;
        return;
    }
    *ref = (int16_t)largest;
    for (int i = 0; i < SL_BLOCK / VW; i++) u[i] = nearest_bf16(v_exp2(v_load(s + i * VW) - largest));
    *mass = store_block(u, stored);
}

static void masses(const float *s, int n_rows, bf16 *stored, int16_t *ref, uint64_t *mass) {
    int n_whole = n_rows / SL_BLOCK * SL_BLOCK;
    for (int i = 0; i < n_whole; i += SL_BLOCK) masses_of_block(s + i, stored + i, ref++, mass++);
    if (n_whole == n_rows) return;
    float last[SL_BLOCK];
    for (int i = 0; i < SL_BLOCK; i++) last[i] = n_whole + i < n_rows ? s[n_whole + i] : -INFINITY;
    masses_of_block(last, stored + n_whole, ref, mass);
}

SIMD_INLINE void sizes_of_block(const bf16 *stored, int ref, const bf16 *norm, int power, bf16 *size_stored, int16_t *size_ref,
                                uint64_t *mass) {
    vi u[SL_BLOCK / VW], top = {0};
    for (int i = 0; i < SL_BLOCK / VW; i++) {
        vf norms = v_load_bf16(norm + i * VW);
        u[i] = nearest_bf16(v_load_bf16(stored + i * VW) * norms);
        if (power == 2) u[i] = nearest_bf16((vf)(u[i] << 16) * norms);
        vi bits = u[i] & 0x7fff, larger = bits > top; // bits of numbers >= 0 have their order; those of NaN are the largest
        top = (bits & larger) | (top & ~larger);
    }
    int most = 0;
    for (int i = 0; i < VW; i++) most = top[i] > most ? top[i] : most;
    int e = ((most + 0x7f) >> 7) - 127; // smallest integer not below log2 of most
    e = e < -SL_SIZE_UNIT_MOST ? -SL_SIZE_UNIT_MOST : e > SL_SIZE_UNIT_MOST ? SL_SIZE_UNIT_MOST : e;
    float unit = -sl_bf16_to_f32((bf16)((127 - e) << 7)); // -2^-e
    for (int i = 0; i < SL_BLOCK / VW; i++) u[i] = nearest_bf16(-v_max((vf)(u[i] << 16) * unit, v_set(-1)));
    *mass = store_block(u, size_stored);
    int both = ref + e > SL_REF_EMPTY ? ref + e : SL_REF_EMPTY + 1; // only heads beyond SL_REF_MOST reach the limits
    if (both > SL_REF_INVALID) both = SL_REF_INVALID;
    *size_ref = (int16_t)(most == 0 ? SL_REF_EMPTY : both);
}

static void sizes(const bf16 *stored, const int16_t *ref, const bf16 *norm, int n_rows, int power, bf16 *size_stored,
                  int16_t *size_ref, uint64_t *mass) {
    int n_whole = n_rows / SL_BLOCK * SL_BLOCK;
    for (int i = 0; i < n_whole; i += SL_BLOCK)
        sizes_of_block(stored + i, *ref++, norm + i, power, size_stored + i, size_ref++, mass++);
    if (n_whole == n_rows) return;
    bf16 last[SL_BLOCK] = {0};
    memcpy(last, norm + n_whole, (n_rows - n_whole) * sizeof *last);
    sizes_of_block(stored + n_whole, *ref, last, power, size_stored + n_whole, size_ref, mass);
}

// e[j] = 2^(s[j] - m), m the new maximum. Returns the factor for earlier sums. n <= 256; e is 0 from n to a multiple of VW.
SIMD_INLINE float softmax_step(const float *s, int n, float *m, float *l, float *e) {
    float last[VW];
    int n_vec = n / VW * VW;
    vf top = v_set(-INFINITY), sum = v_set(0);
    for (int i = 0; i < n_vec; i += VW) top = v_max(top, v_load(s + i));
    for (int i = 0; i < VW; i++) last[i] = n_vec + i < n ? s[n_vec + i] : -INFINITY;
    float largest = v_max_lane(v_max(top, v_load(last)));
    if (!(largest > *m)) largest = *m;
    if (largest == -INFINITY) { // no row is visible yet, or the maximum skipped a NaN
        memset(e, 0, (size_t)(n_vec + VW) * sizeof *e);
        for (int i = 0; i < n; i++)
            if (isnan(s[i])) *l = NAN;
        return 1;
    }
    for (int i = 0; i < n_vec; i += VW) {
        vf x = v_exp2(v_load(s + i) - largest);
        v_store(e + i, x);
        sum += x;
    }
    vf x = v_exp2(v_load(last) - largest);
    v_store(e + n_vec, x);
    float factor = exp2f(*m - largest);
    *l = *l * factor + v_sum(sum + x);
    *m = largest;
    return factor;
}

// o[g][d .. d + n_vec * VW) += sum_j e[g][j] v[j][d..] for n_heads heads, the rows in order.
SIMD_INLINE void accumulate_tile(sl_format f, const float *e, sl_kv_run v, int n_rows, int head_dim, int d, int n_heads,
                                 int n_vec, float *o) {
    vf acc[4][4];
    for (int g = 0; g < n_heads; g++)
        for (int c = 0; c < n_vec; c++) acc[g][c] = v_load(o + (size_t)g * head_dim + d + c * VW);
    for (int j = 0; j < n_rows; j++) {
        const void *row = run_row(v, f, head_dim, j);
        float factor = run_factor(v, f, j);
        vf x[4];
        for (int c = 0; c < n_vec; c++) x[c] = load_row(row, f, d + c * VW, factor);
        for (int g = 0; g < n_heads; g++)
            for (int c = 0; c < n_vec; c++) acc[g][c] = v_fma(v_set(e[g * (SL_TILE + VW) + j]), x[c], acc[g][c]);
    }
    for (int g = 0; g < n_heads; g++)
        for (int c = 0; c < n_vec; c++) v_store(o + (size_t)g * head_dim + d + c * VW, acc[g][c]);
}

SIMD_INLINE void accumulate_heads(sl_format f, const float *e, sl_kv_run v, int n_rows, int head_dim, int n_heads, float *o) {
    int d = 0;
    for (; d + 4 * VW <= head_dim; d += 4 * VW) accumulate_tile(f, e, v, n_rows, head_dim, d, n_heads, 4, o);
    for (; d < head_dim; d += VW) accumulate_tile(f, e, v, n_rows, head_dim, d, n_heads, 1, o);
}

static void scale_row(float *x, int n, float factor) {
    for (int i = 0; i < n; i += VW) v_store(x + i, v_load(x + i) * factor);
}

SIMD_INLINE void online_softmax_format(sl_format f, const float *s, int stride, int group, sl_kv_run v, int n_rows,
                                       int head_dim, float *m, float *l, float *o) {
    float e[4 * (SL_TILE + VW)];
    for (int g = 0; g < group;) {
        int heads = group - g >= 4 ? 4 : group - g >= 2 ? 2 : 1;
        for (int h = 0; h < heads; h++) {
            float factor = softmax_step(s + (size_t)(g + h) * stride, n_rows, m + g + h, l + g + h, e + h * (SL_TILE + VW));
            if (factor != 1) scale_row(o + (size_t)(g + h) * head_dim, head_dim, factor);
        }
        float *to = o + (size_t)g * head_dim;
        if (heads == 4)
            accumulate_heads(f, e, v, n_rows, head_dim, 4, to);
        else if (heads == 2)
            accumulate_heads(f, e, v, n_rows, head_dim, 2, to);
        else
            accumulate_heads(f, e, v, n_rows, head_dim, 1, to);
        g += heads;
    }
}

static void online_softmax(const float *s, int stride, int group, sl_kv_run v, int n_rows, int head_dim, float *m, float *l,
                           float *o){
#define CALL(f) online_softmax_format(f, s, stride, group, v, n_rows, head_dim, m, l, o)
    BY_FORMAT(v.format, CALL)
#undef CALL
}

// out[d .. d + n_vec * VW) = sum_i coef[i] v[i][d..], the rows in order. coef NULL: v[i] is added count[i] times.
SIMD_INLINE void gather_tile(sl_format f, const sl_kv_row *v, const float *coef, const int32_t *count, int n, int head_dim,
                             int d, int n_vec, float *out) {
    enum { AHEAD = 8 }; // rows to prefetch: drawn rows lie far apart
    vf acc[4];
    for (int c = 0; c < n_vec; c++) acc[c] = v_set(0);
    for (int i = 0; i < n; i++) {
        float factor = factor_of(f, v[i].scale);
        if (d == 0 && i + AHEAD < n) prefetch_row(v[i + AHEAD].data, f, head_dim);
        vf x[4];
        for (int c = 0; c < n_vec; c++) x[c] = load_row(v[i].data, f, d + c * VW, factor);
        if (coef)
            for (int c = 0; c < n_vec; c++) acc[c] = v_fma(v_set(coef[i]), x[c], acc[c]);
        else
            for (int k = 0; k < count[i]; k++)
                for (int c = 0; c < n_vec; c++) acc[c] += x[c];
    }
    for (int c = 0; c < n_vec; c++) v_store(out + d + c * VW, acc[c]);
}

SIMD_INLINE void gather_format(sl_format f, const sl_kv_row *v, const float *coef, const int32_t *count, int n, int head_dim,
                               float *out) {
    int d = 0;
    for (; d + 4 * VW <= head_dim; d += 4 * VW) gather_tile(f, v, coef, count, n, head_dim, d, 4, out);
    for (; d < head_dim; d += VW) gather_tile(f, v, coef, count, n, head_dim, d, 1, out);
}

static void gather(sl_format format, const sl_kv_row *v, const float *coef, int n, int head_dim, float *out) {
#define CALL(f) gather_format(f, v, coef, NULL, n, head_dim, out)
    BY_FORMAT(format, CALL)
#undef CALL
}

static void gather_adds(sl_format format, const sl_kv_row *v, const int32_t *count, int n, int head_dim, float *out){
#define CALL(f) gather_format(f, v, NULL, count, n, head_dim, out)
    BY_FORMAT(format, CALL)
#undef CALL
}

// ---- prefill ----

SIMD_INLINE void widen_transposed_format(sl_format f, sl_kv_run src, int n_rows, int head_dim, float *dst) {
    int j = 0;
    for (; j < n_rows; j += VW)
        for (int d = 0; d < head_dim; d += VW) {
            vf x[VW];
            for (int r = 0; r < VW; r++)
                x[r] = j + r < n_rows ? load_row(run_row(src, f, head_dim, j + r), f, d, run_factor(src, f, j + r)) : v_set(0);
            v_transpose(x);
            for (int i = 0; i < VW; i++) v_store(dst + (size_t)(d + i) * SL_TILE + j, x[i]);
        }
    for (int d = 0; d < head_dim; d++) memset(dst + (size_t)d * SL_TILE + j, 0, (size_t)(SL_TILE - j) * sizeof *dst);
}

static void widen_transposed(sl_kv_run src, int n_rows, int head_dim, float *dst){
#define CALL(f) widen_transposed_format(f, src, n_rows, head_dim, dst)
    BY_FORMAT(src.format, CALL)
#undef CALL
}

// 8 rows by n_vec vectors of c, summed over k in order.
CHECKED_BY_ROWS SIMD_INLINE
    void gemm_tile(const float *a, int lda, const float *b, int ldb, int n_vec, int k, int accumulate, float *c, int ldc) {
    vf acc[SL_GEMM_ROWS][2];
    for (int r = 0; r < SL_GEMM_ROWS; r++)
        for (int v = 0; v < n_vec; v++) acc[r][v] = accumulate ? v_load(c + (size_t)r * ldc + v * VW) : v_set(0);
    for (int i = 0; i < k; i++) {
        vf x[2];
        for (int v = 0; v < n_vec; v++) x[v] = v_load(b + (size_t)i * ldb + v * VW);
        for (int r = 0; r < SL_GEMM_ROWS; r++)
            for (int v = 0; v < n_vec; v++) acc[r][v] = v_fma(v_set(a[(size_t)r * lda + i]), x[v], acc[r][v]);
    }
    for (int r = 0; r < SL_GEMM_ROWS; r++)
        for (int v = 0; v < n_vec; v++) v_store(c + (size_t)r * ldc + v * VW, acc[r][v]);
}

CHECKED_BY_ROWS static void gemm(const float *a, int lda, const float *b, int ldb, int m, int n, int k, int accumulate,
                                 float *c, int ldc) {
    int rows = (m + SL_GEMM_ROWS - 1) / SL_GEMM_ROWS * SL_GEMM_ROWS;
    check_rows(a, lda * sizeof *a, rows, k * sizeof *a);
    check_rows(b, ldb * sizeof *b, k, (n + VW - 1) / VW * VW * sizeof *b);
    check_rows(c, ldc * sizeof *c, rows, (n + VW - 1) / VW * VW * sizeof *c);
    for (int j = 0; j < n;) { // every tile is whole, and every vector is
        int pair = n - j >= 2 * VW;
        for (int i = 0; i < m; i += SL_GEMM_ROWS) {
            const float *from = a + (size_t)i * lda;
            float *to = c + (size_t)i * ldc + j;
            if (pair)
                gemm_tile(from, lda, b + j, ldb, 2, k, accumulate, to, ldc);
            else
                gemm_tile(from, lda, b + j, ldb, 1, k, accumulate, to, ldc);
        }
        j += pair ? 2 * VW : VW;
    }
}

static float softmax_row(float *s, int n_visible, float scale, float *m, float *l) {
    float e[SL_TILE + VW];
    for (int i = 0; i < n_visible; i += VW) v_store(s + i, v_load(s + i) * scale);
    float factor = softmax_step(s, n_visible, m, l, e);
    memcpy(s, e, n_visible * sizeof *s);
    memset(s + n_visible, 0, (SL_TILE - n_visible) * sizeof *s);
    return factor;
}

const sl_attn_kernels PASTE(sl_attn_kernels_, SL_ISA) = {
    .isa = STRING(SL_ISA),
    .score = score,
    .score_rows = score_rows,
    .score_features = score_features,
    .score_bounds = score_bounds,
    .count_matches = count_matches,
    .nearest = nearest,
    .quantise_query = quantise_query,
    .score_quantised = score_quantised,
    .masses = masses,
    .sizes = sizes,
    .at_least = at_least,
    .online_softmax = online_softmax,
    .gather = gather,
    .gather_adds = gather_adds,
    .widen = widen,
    .widen_transposed = widen_transposed,
    .gemm = gemm,
    .softmax_row = softmax_row,
    .scale_row = scale_row,
};
