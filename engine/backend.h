// engine/backend.h - the operations a model is made of, as a table per device. models/*.c calls nothing else.
//
// Activations are fp32, weights stay in the file's dtype, sums are fp32. Two kinds of linear layer:
//   decode   any number of rows, each with the same reduction order whatever its company: a row alone and in a batch gives
//            equal bits;
//   prefill  a BLAS (CPU) or cuBLASLt (CUDA) on fixed panels of rows, a token's place in its panel being its position modulo
//            the panel: a BLAS may sum a panel's rows in different orders (OpenBLAS's Haswell kernels do), so only a fixed
//            place gives a token equal bits whole and in chunks.
#ifndef SLEIGH_BACKEND_H
#define SLEIGH_BACKEND_H

#include "engine/bf16.h"
#include "engine/error.h"

#include <stddef.h>
#include <stdint.h>

typedef enum { SL_BF16, SL_F16, SL_F32 } sl_dtype;

static inline size_t sl_dtype_size(sl_dtype t) {
    return t == SL_F32 ? 4 : 2;
}

// A weight as it lies in the mapped file: row-major [n_rows][n_cols]; a vector has n_rows = 1.
typedef struct sl_weight {
    const void *data;
    sl_dtype dtype;
    int n_rows, n_cols;
} sl_weight;

// One row of a step: a token of some sequence. On CUDA an array of them lies in device memory.
typedef struct sl_row {
    int32_t position;
    uint32_t sequence;    // keys the random numbers
    const int32_t *pages; // of its sequence; row `position` is written by rope_append
} sl_row;

typedef struct sl_rope {
    int head_dim;
    float *inv_freq; // [head_dim / 2], scaling applied (llama3, linear)
} sl_rope;

typedef enum { SL_LINEAR_DECODE, SL_LINEAR_PREFILL } sl_linear_mode;

typedef struct sl_backend {
    const char *name; // "cpu"
    // Describes what runs: "avx512bf16, 4 threads, OpenBLAS 0.3.21".
    void (*describe)(char *buf, size_t size);
    // x[i] = table[ids[i]]: x [n_rows][hidden]
    void (*embed)(const sl_weight *table, const int32_t *ids, int n_rows, float *x);
    // out[r] = x[r] / sqrt(mean(x[r]^2) + eps) * w: [n_rows][w->n_cols]
    void (*rmsnorm)(const float *x, const sl_weight *w, int n_rows, float eps, float *out);
    // out[r][o] = sum_i x[r][i] w[o][i], added to out if `accumulate`: x [n_rows][w->n_cols], out [n_rows][w->n_rows].
    // position: of the first row, the others follow (prefill; decode does not look at it)
    void (*linear)(const sl_weight *w, const float *x, int n_rows, sl_linear_mode mode, int position, int accumulate,
                   float *out);
    // Rotates q [n_rows][n_heads][head_dim] and k [n_rows][n_kv_heads][head_dim] in place (Hugging Face's half-split layout)
    // and stores bf16 k and v [n_rows][n_kv_heads][head_dim] into each row's page of this layer.
    void (*rope_append)(const sl_rope *rope, const sl_row *rows, int n_rows, int n_heads, int n_kv_heads, float *q, float *k,
                        const float *v, bf16 *k_layer, bf16 *v_layer);
    // gate[i] = silu(gate[i]) * up[i]
    void (*swiglu)(float *gate, const float *up, size_t n);
} sl_backend;

// n_threads 0: every core that this process may use. SL_ERR_ARG if out of 1..1024.
int sl_cpu_init(int n_threads, const sl_backend **out, sl_error *err);
int sl_cpu_threads(void);

#endif
