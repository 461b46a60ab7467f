// attention/cpu/cpu_kernels.h - the loops over keys and values on the CPU: one table of functions per instruction set.
//
// Every function works on rows of one page and reads no page table. Rows of K and V come in the formats of the KV cache
// (kv/kv_rows.h), and every function computes with the fp32 numbers that they stand for. All functions accumulate in fp32 in a
// fixed order: the result of a row does not depend on other rows, the batch, the split or the number of threads. head_dim is a
// multiple of 16. `group` query heads share the rows.
#ifndef SLEIGH_ATTENTION_KERNELS_H
#define SLEIGH_ATTENTION_KERNELS_H

#include "kv/kv_rows.h"

#include <stdint.h>

enum {
    SL_BLOCK = 32,         // rows that share an exponent reference (masses.h)
    SL_REF_EMPTY = -32768, // ref of a block whose masses are all 0
    // The refs of a head with draws lie within +-SL_REF_MOST, 22,180 nats. The refs of sizes p |v| differ from them by up to
    // SL_SIZE_UNIT_MOST. SL_REF_INVALID marks a block with a larger score or NaN. The masses of such a block are 0
    // (sl_masses_out_of_range).
    SL_REF_MOST = 32000,
    SL_REF_INVALID = 32767,
    SL_SIZE_UNIT_MOST = 126,
    SL_GEMM_ROWS = 8,   // the row count m of gemm is a multiple of this
    SL_GEMM_WIDTH = 16, // and the width n of this
    SL_SCORE_LEAD = 16, // score writes whole vectors: up to 15 floats past n_rows, within stride
};

// A query for one page of quantised keys (propose_quantised.c), whose channel c is zero_c + step_c code_c. The score is
//   s = scale * sum_c unit_c (code_c - middle) + bias, with |s - q.k| <= bound,
// where unit_c = 128 high_c + low_c (8-bit codes) or high_c. The dot products are exact in integers.
enum { SL_QUANT_DIM = 288 }; // channels, padded with zeros to a multiple of 32
typedef struct sl_quant_query {
    int8_t high[SL_QUANT_DIM], low[SL_QUANT_DIM];
    int32_t sum; // of unit_c
    float scale, bias, bound;
} sl_quant_query;

typedef struct sl_attn_kernels {
    const char *isa; // "avx512", "avx2", "portable"
    // score[g * stride + j] = (q_g . k_j) * scale, n_rows <= 256, stride >= round_up(n_rows, 16).
    // q: [group][head_dim]; k: [n_rows][head_dim]. scale is log2(e) / sqrt(head_dim): scores are in log2 units.
    void (*score)(const float *q, int group, sl_kv_run k, int n_rows, int head_dim, float scale, float *score, int stride);
    // score[i] of the row k[i], for one query. The rows may lie anywhere.
    void (*score_rows)(const float *q, sl_format format, const sl_kv_row *k, int n, int head_dim, float scale, float *score);
    // Scores of a page of 256 rows from some features of the keys, kt: [head_dim][256]:
    // score[g * stride + j] = scale * sum_i q[g][features[i]] kt[features[i]][j], in order. q: [group][head_dim].
    void (*score_features)(const float *q, int group, int head_dim, const int32_t *features, int n_features, const bf16 *kt,
                           float scale, float *score, int stride);
    // score[g * stride + u]: the largest score that a key within the channel bounds of unit u can have,
    // scale * sum_c max(q_c low_c, q_c high_c). bounds: [n_units][2][head_dim], low and high.
    void (*score_bounds)(const float *q, int group, const bf16 *bounds, int n_units, int head_dim, float scale, float *score,
                         int stride);
    // hits[j]: the number of tables where row j has the signature of the query. sig: [n_tables][256]; the query's signature of
    // table t is query[t * 256]; hits: [256].
    void (*count_matches)(const uint16_t *sig, const uint16_t *query, int n_tables, uint16_t *hits);
    // Quantises q, times scale, for a page of `bits`-bit codes. step, zero: [head_dim], of the page.
    void (*quantise_query)(const float *q, const f16 *step, const f16 *zero, int head_dim, int bits, float scale,
                           sl_quant_query *out);
    // Scores of the 256 rows of a page for `group` heads: score[g * stride + j]. planes: propose_quantised.c has the layout.
    void (*score_quantised)(const sl_quant_query *q, int group, const uint8_t *planes, int head_dim, int bits, float *score,
                            int stride);
    // Stored masses (masses.h) of n_rows scores of one head. Fills `stored` up to round_up(n_rows, 32), with 0 past n_rows.
    // Fills ref and in-block mass of every block. A block with a score above SL_REF_MOST or NaN gets SL_REF_INVALID.
    void (*masses)(const float *score, int n_rows, bf16 *stored, int16_t *ref, uint64_t *mass);
    // Sizes stored_j |v_j|^power, power 1 or 2, in the format of masses. stored, ref: of the masses. norm: [n_rows]. A size is
    // a bf16 product, rounded at each step. Its unit is 2^e, the smallest power of two not below the largest product of the
    // block, with |e| <= 126, so sizes are at most 1. size_ref = ref + e. A block with a product that is infinite or NaN has e
    // = SL_SIZE_UNIT_MOST. No finite |v| of the cache reaches it: |v| is below 2^65.
    void (*sizes)(const bf16 *stored, const int16_t *ref, const bf16 *norm, int n_rows, int power, bf16 *size_stored,
                  int16_t *size_ref, uint64_t *mass);
    // Bit i: stored[i] >= least, for the 32 stored masses of a block. bf16 >= 0 have the order of their bits as integers.
    uint32_t (*at_least)(const bf16 *stored, bf16 least);
    // bucket[j]: the centroid with the largest inner product with row j, the lowest one among equals; 0: all products are NaN.
    // x: [n_rows][head_dim], each number a bf16; centroids: [n_centroids][head_dim]. A product sums in the order of the
    // channels. Products of two bf16 are exact in fp32, so every instruction set gives the same buckets.
    void (*nearest)(const float *x, int n_rows, const bf16 *centroids, int n_centroids, int head_dim, uint16_t *bucket);
    // One step of online softmax over n_rows <= 256 rows for `group` heads: o = sum 2^(s-m) v, l = sum 2^(s-m), m = max s over
    // all rows so far. score: [group][stride]; v: [n_rows][head_dim]; m, l: [group], start -inf and 0; o: [group][head_dim],
    // start 0. A score that is NaN makes l NaN, and so the output o / l.
    void (*online_softmax)(const float *score, int stride, int group, sl_kv_run v, int n_rows, int head_dim, float *m, float *l,
                           float *o);
    // out[d] = sum_i coef[i] * v[i][d] in index order; v[i]: a row of head_dim numbers.
    void (*gather)(sl_format format, const sl_kv_row *v, const float *coef, int n, int head_dim, float *out);
    // The same with whole numbers count[i], by additions alone: v[i] is added count[i] times. No multiplication, except by the
    // scales of rows of bytes.
    void (*gather_adds)(sl_format format, const sl_kv_row *v, const int32_t *count, int n, int head_dim, float *out);

    // ---- prefill: fp32 tiles ----
    void (*widen)(sl_kv_run src, int n_rows, int head_dim, float *dst);            // dst: [n_rows][head_dim]
    void (*widen_transposed)(sl_kv_run src, int n_rows, int head_dim, float *dst); // dst: [head_dim][256], zero past n_rows
    // c (+)= a b: a [m][lda], b [k][ldb], c [m][ldc]; m a multiple of SL_GEMM_ROWS, n of SL_GEMM_WIDTH.
    void (*gemm)(const float *a, int lda, const float *b, int ldb, int m, int n, int k, int accumulate, float *c, int ldc);
    // One step of online softmax for one query: s[0, n_visible) becomes 2^(s * scale - m), the other scores of the 256 become
    // 0. Updates m and l. Returns 2^(m_before - m): the caller scales its output so far by it.
    float (*softmax_row)(float *s, int n_visible, float scale, float *m, float *l);
    void (*scale_row)(float *x, int n, float factor); // n: a multiple of 16
} sl_attn_kernels;

const sl_attn_kernels *sl_attn_kernels_best(void); // the fastest one for this processor, or the one that SLEIGH_ISA names
const sl_attn_kernels *sl_attn_kernels_named(const char *isa); // NULL: unknown, or not on this processor

#endif
