// attention/cpu_kernels.h - the CPU's loops over keys and values, one table per instruction set, picked at run time.
//
// Every function works on rows inside one page, so that no kernel knows of page tables. All accumulate in fp32 in a fixed
// order: a row's result does not depend on its neighbours, the batch, the split or the number of threads. head_dim is a
// multiple of 16; `group` query heads share the rows.
#ifndef SLEIGH_ATTENTION_KERNELS_H
#define SLEIGH_ATTENTION_KERNELS_H

#include "engine/base/bf16.h"

#include <stdint.h>

enum {
    SL_BLOCK = 32,         // rows that share an exponent reference (stages.h)
    SL_REF_EMPTY = -32768, // ref of a block whose rows all have zero weight
    // References of heads that are drawn from stored weights lie within +-SL_REF_MOST, 22,180 nats: sizes p |v| need up to 126
    // more. SL_REF_INVALID marks a block that has a larger score or NaN; its weights are 0 (sl_masses_out_of_range).
    SL_REF_MOST = 32000,
    SL_REF_INVALID = 32767,
    SL_GEMM_ROWS = 8,   // row counts of gemm are multiples of this
    SL_SCORE_LEAD = 16, // score writes whole vectors: up to 15 floats past n_rows, within stride
};

// A query against one page of quantised keys (propose_quantised.c): with key channel c = zero_c + step_c code,
//   s = scale * sum_c unit_c (code_c - middle) + bias, |s - q.k| <= bound,
// unit_c = 128 high_c + low_c (8-bit codes) or high_c: the dot products are exact in integers.
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
    void (*score)(const float *q, int group, const bf16 *k, int n_rows, int head_dim, float scale, float *score, int stride);
    // The same for rows that lie anywhere: score[i] of k[i], one query.
    void (*score_rows)(const float *q, const bf16 *const *k, int n, int head_dim, float scale, float *score);
    // Scores of a page of 256 rows that lies feature by feature, kt: [head_dim][256], from some features alone:
    // score[g * stride + j] = scale * sum_i q[g][features[i]] kt[features[i]][j], in order. q: [group][head_dim].
    void (*score_features)(const float *q, int group, int head_dim, const int32_t *features, int n_features, const bf16 *kt,
                           float scale, float *score, int stride);
    // Largest score that a row within channel bounds can have, for units of a page: sum_c max(q_c low_c, q_c high_c) * scale.
    // bounds: [n_units][2][head_dim], low and high; score[g * stride + u].
    void (*score_bounds)(const float *q, int group, const bf16 *bounds, int n_units, int head_dim, float scale, float *score,
                         int stride);
    // hits[j], j < 256: in how many of n_tables tables the signature of row j is the query's. sig: [n_tables][256]; the query's
    // of table t at query[t * 256]; hits: [256].
    void (*count_matches)(const uint16_t *sig, const uint16_t *query, int n_tables, uint16_t *hits);
    // q, times scale, against a page whose channels have these steps and zeros, in `bits`-bit codes.
    void (*quantise_query)(const float *q, const f16 *step, const f16 *zero, int head_dim, int bits, float scale,
                           sl_quant_query *out);
    // Scores of the page's 256 rows for `group` heads: score[g * stride + j]. planes: propose_quantised.c's layout.
    void (*score_quantised)(const sl_quant_query *q, int group, const uint8_t *planes, int head_dim, int bits, float *score,
                            int stride);
    // Stored weights (stages.h) of one head's n_rows scores: w, ref and the blocks' in-block mass are filled up to
    // round_up(n_rows, 32), zero past n_rows. A block with a score above SL_REF_MOST or NaN is marked SL_REF_INVALID.
    void (*masses)(const float *score, int n_rows, bf16 *w, int16_t *ref, uint64_t *mass);
    // The sizes w_j |v_j|^power of stored weights, power 1 or 2, in the same form; ref: the weights'. norm: [n_rows]. Of a
    // block they are bf16 products, rounded at each step, in units of the smallest power of two 2^e not below the largest of
    // them, |e| <= 126, and at most 1; a size's reference is the weight's, plus e.
    void (*sizes)(const bf16 *w, const int16_t *ref, const bf16 *norm, int n_rows, int power, bf16 *size_w, int16_t *size_ref,
                  uint64_t *mass);
    // Bit i: w[i] >= least, of a block's 32 stored weights (as integers they order as numbers do).
    uint32_t (*at_least)(const bf16 *w, bf16 least);
    // One step of online softmax over n_rows <= 256 rows for `group` heads: o = sum 2^(s-m) v, l = sum 2^(s-m), m the largest
    // s so far. score: [group][stride]; v: [n_rows][head_dim]; m, l: [group], start -inf and 0; o: [group][head_dim], start 0.
    // A score that is NaN makes l NaN, and with it the output o / l.
    void (*online_softmax)(const float *score, int stride, int group, const bf16 *v, int n_rows, int head_dim, float *m,
                           float *l, float *o);
    // out[d] = sum_i coef[i] * v[i][d] in index order; v[i] points to a row of head_dim bf16.
    void (*gather)(const bf16 *const *v, const float *coef, int n, int head_dim, float *out);

    // ---- prefill: fp32 tiles ----
    void (*widen)(const bf16 *src, int n, float *dst);                               // n: a multiple of 16
    void (*widen_transposed)(const bf16 *src, int n_rows, int head_dim, float *dst); // dst: [head_dim][256], zero past n_rows
    // c (+)= a b: a [m][lda], b [k][ldb], c [m][ldc]; m a multiple of 8, n of 16.
    void (*gemm)(const float *a, int lda, const float *b, int ldb, int m, int n, int k, int accumulate, float *c, int ldc);
    // Softmax of one row of 256 scores, of which the first n_visible (0 to 256) count; the others become 0. s is scaled to log2
    // units on the way. Updates m and l and returns 2^(m_before - m), with which the row's output so far is to be scaled.
    float (*softmax_row)(float *s, int n_visible, float scale, float *m, float *l);
    void (*scale_row)(float *x, int n, float factor); // n: a multiple of 16
} sl_attn_kernels;

const sl_attn_kernels *sl_attn_kernels_best(void);             // for this processor, or what SLEIGH_ISA forces
const sl_attn_kernels *sl_attn_kernels_named(const char *isa); // NULL: unknown, or not on this processor

#endif
