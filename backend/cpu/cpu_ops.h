// backend/cpu/cpu_ops.h - the inner loops of the CPU backend, one table per instruction set. cpu_backend.c chooses a
// table at run time.
#ifndef SLEIGH_CPU_OPS_H
#define SLEIGH_CPU_OPS_H

#include "backend/backend.h"
#include "backend/cpu/leaves.h"
#include "kv/kv.h"

enum {
    SL_PREFILL_STRIP = 192, // columns whose products are summed before they are added to the sum of the columns before them
    SL_PREFILL_ROWS = 512,  // rows of x that `prefill` multiplies with a weight that it has made fp32 once
    SL_PREFILL_OUTS = 48,   // outputs that `prefill` computes
    SL_PREFILL_TOTALS = 4,  // sums of leaves that wait for their partner: log2(SL_MOST_LEAVES), and the current leaf
    // floats that a call of `prefill` works in
    SL_PREFILL_PART = SL_PREFILL_OUTS * (SL_PREFILL_STRIP + 16 + SL_PREFILL_TOTALS * SL_PREFILL_ROWS),
};

typedef struct sl_cpu_ops {
    const char *isa;
    int tile_rows; // rows of a packed block
    // out[r][o] = sum_i x[r][i] w[o][i], added to out if `accumulate`, for outputs [o_from, o_to). x: [n_rows][n_cols]; out:
    // [n_rows][w->n_rows]. Order of a sum in each of n_leaves leaves (leaves.h): each vector lane adds its elements along i;
    // then the lanes are added; then the elements after the last full vector, which only a single leaf has. This order depends
    // on n_cols and n_leaves only. w: without an order of columns, which the caller has applied to x. A weight with scales
    // gives the bits that its numbers in fp32 give.
    void (*linear)(const sl_weight *w, const float *x, int n_rows, int o_from, int o_to, int n_leaves, int accumulate,
                   float *out);
    // The matrix product of prefill has two steps. `pack` writes one block of tile_rows rows of x [n_rows][n_cols] in the
    // layout that `prefill` reads, in the order of the weight's columns. packed: n_cols floats for each row of each block.
    void (*pack)(const sl_weight *w, const float *x, int n_rows, int n_leaves, int block, float *packed);
    // As `linear`, for the packed rows, at most SL_PREFILL_ROWS, and at most SL_PREFILL_OUTS outputs. Order of a sum in each of
    // n_leaves leaves: strips of SL_PREFILL_STRIP columns, the last one perhaps shorter. A strip adds one product after the
    // other with fused multiply-adds (portable: with a product and a sum), from 0 on. The strips are added in their order.
    // `accumulate` adds the sum of all leaves to out. So a row has equal bits among any other rows, and with AVX2 and AVX-512.
    // part: [SL_PREFILL_PART], aligned to 64 bytes.
    void (*prefill)(const sl_weight *w, const float *packed, int n_rows, int o_from, int o_to, int n_leaves, int accumulate,
                    float *out, float *part);
    // Writes the numbers of a row, columns [col, col + n), in fp32, as sl_weight_widen does without the order of columns. col:
    // a multiple of SL_WEIGHT_GROUP, or any column of a plain weight.
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
