// attention/kernels.h - the CPU's loops over keys and values, one table per instruction set, picked at run time.
//
// Every function works on whole runs of rows inside one page, so that no kernel knows of page tables. All accumulate in
// fp32 in a fixed order that depends on the row's place in its page alone: results do not depend on batch, split or
// thread count. `group` query heads (any number; 1 to 8 are fast) share the rows, any head_dim that is a multiple of 16.
#ifndef SLEIGH_ATTENTION_KERNELS_H
#define SLEIGH_ATTENTION_KERNELS_H

#include "engine/bf16.h"

#include <stdint.h>

typedef struct sl_attn_kernels {
    const char *isa; // "avx512bf16", "avx512", "avx2", "portable"
    // score[g * stride + j] = (q_g . k_j) * scale for n_rows <= 256 rows. q: [group][head_dim]; k: [n_rows][head_dim].
    // scale is log2(e) / sqrt(head_dim): scores are in log2 units.
    void (*score)(const float *q, int group, const bf16 *k, int n_rows, int head_dim, float scale, float *score, int stride);
    // Stored weights of one head's rows (stages.h): n_rows a multiple of 32 except at the end; w and ref are filled up to
    // round_up(n_rows, 32) rows, zero past n_rows. ref: [ceil(n_rows / 32)].
    void (*weigh)(const float *score, int n_rows, bf16 *w, int16_t *ref);
    // In-block masses: returns sum over 32 weights of floor(w * 2^30).
    uint64_t (*block_mass)(const bf16 *w);
    // One step of online softmax over n_rows <= 256 rows for `group` heads. State: m (log2 units, start -inf), l, o
    // [group][head_dim] (start 0): o = sum 2^(s-m) v, l = sum 2^(s-m). `score` is [group][256] scratch, already filled.
    void (*attend)(const float *score, int stride, int group, const bf16 *v, int n_rows, int head_dim, float *m, float *l,
                   float *o);
    // out[d] += sum_i coef[i] * v[i][d] over n rows, v[i]: pointers to rows of head_dim bf16; in index order.
    void (*gather)(const bf16 *const *v, const float *coef, int n, int head_dim, float *out);
    // Rows to fp32, optionally scaled: dst [n][head_dim].
    void (*widen)(const bf16 *src, size_t n, float *dst);
    // Softmax of a prefill tile in place: s [n_rows][stride], row r sees its first visible[r] of n_cols columns (0..n_cols); the others become 0.
    // Updates m, l per row (log2 units) and writes corr[r] = 2^(m_old - m_new), with which the caller's o row is scaled.
    void (*softmax_tile)(float *s, int n_rows, int n_cols, int stride, const int32_t *visible, float scale, float *m, float *l,
                         float *corr);
} sl_attn_kernels;

const sl_attn_kernels *sl_attn_kernels_best(void);           // for this CPU
const sl_attn_kernels *sl_attn_kernels_named(const char *isa); // NULL: unknown or not on this CPU

#endif
