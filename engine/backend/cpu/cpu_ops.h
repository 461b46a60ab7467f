// engine/backend/cpu/cpu_ops.h - the CPU backend's inner loops, one table per instruction set, picked at run time
// (cpu_backend.c).
#ifndef SLEIGH_CPU_OPS_H
#define SLEIGH_CPU_OPS_H

#include "engine/backend/backend.h"

typedef struct sl_cpu_ops {
    const char *isa;
    // out[r * out_stride + o] (+)= sum_i x[r][i] w[o][i] for outputs [o_from, o_to). One (r, o) pair is summed in lanes of the
    // vector width along i, then over lanes, then the tail: an order that depends on n_cols alone.
    void (*linear)(const sl_weight *w, const float *x, int n_rows, int o_from, int o_to, int accumulate, float *out);
    void (*widen)(const void *src, sl_dtype dtype, size_t n, float *dst);       // to fp32
    void (*rmsnorm)(const float *x, const sl_weight *w, float eps, float *out); // one row
    void (*swiglu)(float *gate, const float *up, size_t n);
} sl_cpu_ops;

extern const sl_cpu_ops sl_cpu_ops_portable;
#if defined(__x86_64__)
extern const sl_cpu_ops sl_cpu_ops_avx2, sl_cpu_ops_avx512;
#endif

// Rotates q [n_rows][n_heads][head_dim] and k [n_rows][n_kv_heads][head_dim] in place (Hugging Face's half-split layout) and
// stores bf16 k and v [n_rows][n_kv_heads][head_dim] into each row's page of this layer.
void sl_cpu_rope_append(const sl_rope *rope, const sl_row *rows, int n_rows, int n_heads, int n_kv_heads, float *q, float *k,
                        const float *v, bf16 *k_layer, bf16 *v_layer);
void sl_cpu_swiglu(float *gate, const float *up, size_t n); // gate[i] = silu(gate[i]) * up[i]

// 1: this processor and operating system run that instruction set.
int sl_cpu_has(const char *isa);
const char *sl_cpu_isa(void); // the one in use: the best, or what SLEIGH_ISA forces

#endif
