// backend/cpu/cpu_ops.h - the inner loops of the CPU backend, one table per instruction set. cpu_backend.c chooses a
// table at run time.
#ifndef SLEIGH_CPU_OPS_H
#define SLEIGH_CPU_OPS_H

#include "backend/backend.h"
#include "kv/kv.h"

typedef struct sl_cpu_ops {
    const char *isa;
    // out[r][o] = sum_i x[r][i] w[o][i], added to out if `accumulate`, for outputs [o_from, o_to). x: [n_rows][n_cols]; out:
    // [n_rows][w->n_rows]. Order of a sum: each vector lane adds its elements along i; then the lanes are added; then the
    // elements after the last full vector. This order depends on n_cols only. w: without an
    // order of columns, which the caller has applied to x. A weight with scales gives the bits that its numbers in fp32 give.
    void (*linear)(const sl_weight *w, const float *x, int n_rows, int o_from, int o_to, int accumulate, float *out);
    // Writes the numbers of a row, columns [col, col + n), in fp32, as sl_weight_widen does without the order of columns. col:
    // 0, or any column of a plain weight.
    void (*widen)(const sl_weight *w, size_t row, int col, int n, float *dst);
    void (*rmsnorm)(const float *x, const sl_weight *w, float eps, float *out); // one row
    void (*swiglu)(float *gate, const float *up, size_t n);
} sl_cpu_ops;

extern const sl_cpu_ops sl_cpu_ops_portable;
#if defined(__x86_64__)
extern const sl_cpu_ops sl_cpu_ops_avx2, sl_cpu_ops_avx512;
#endif

// Rotates q [n_rows][n_heads][head_dim] and k [n_rows][n_kv_heads][head_dim] in place (Hugging Face's half-split layout) and
// stores k and v [n_rows][n_kv_heads][head_dim] into the page of each row, in this layer.
void sl_cpu_rope_append(const sl_rope *rope, const sl_row *rows, int n_rows, int n_heads, int n_kv_heads, float *q, float *k,
                        const float *v, sl_kv_rows layer);
void sl_cpu_swiglu(float *gate, const float *up, size_t n); // gate[i] = silu(gate[i]) * up[i]

// Returns 1 when this processor and operating system can run the instruction set.
int sl_cpu_has(const char *isa);
const char *sl_cpu_isa(void); // the instruction set in use: the best one, or the one that SLEIGH_ISA names

#endif
