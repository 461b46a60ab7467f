// backend/cpu/int_ops.h - linear layers with activations of 8 or 16 bits: integer products of weights whose elements are
// integers (of e2m1: halves), one table per instruction set. All tables give equal bits.
//
// A group of SL_INT_GROUP columns of x shares a scale: a = max |x| / 127 (16 bits: max |x| / 32512), and x is rounded to the
// nearest multiple u a. A block is 64 bytes of a row of the weight, and lane l of 16 holds its bytes 4 l to 4 l + 3: 8 columns
// of 4 bits, or 4 of 8 bits. With the weight's scale s, its zero point z or its minimum m (weight.h),
//   lane[l] = sum over blocks of (sum of (q - z) u over the lane's columns) * (s a)  [ + m * ((sum of u) * a) ]
// where the inner sums are exact, and the outer one adds one product after the other in fp32, in the order of the blocks. (A
// fused multiply-add would be faster, but processors without one would take ten times as long for equal bits.) A leaf
// (leaves.h) is the sum of the lanes over the leaf's blocks: lane l and lane l + 8, then l and l + 4, and so on. An output is
// the sum of the leaves.
#ifndef SLEIGH_INT_OPS_H
#define SLEIGH_INT_OPS_H

#include "backend/cpu/leaves.h"
#include "backend/weight.h"

#include <stddef.h>
#include <stdint.h>

enum { SL_INT_GROUP = 32, SL_INT_LANES = 16, SL_INT_BYTES = 64 };

// One block of one row of x: u = high (8 bits), or 256 high + low. Columns after the last one of the matrix are 0.
typedef struct sl_int_block {
    // Weights of 4 bits: the even columns, then the odd ones. Weights of 8 bits: the columns; the second half is unused.
    int8_t high[2 * SL_INT_BYTES], low[2 * SL_INT_BYTES];
    int32_t sum[SL_INT_LANES];      // of u in each lane
    float scale[SL_INT_LANES];      // a of each lane's columns
    float scaled_sum[SL_INT_LANES]; // sum * scale
} sl_int_block;

typedef struct sl_int_ops {
    const char *isa;
    // Writes the blocks of a row, sl_int_blocks(w) of them, as w->activations says.
    void (*quantise)(const sl_weight *w, const float *x, sl_int_block *out);
    // As sl_cpu_ops.linear. x: [n_rows][sl_int_blocks(w)]
    void (*linear)(const sl_weight *w, const sl_int_block *x, int n_rows, int o_from, int o_to, int n_leaves, int accumulate,
                   float *out);
} sl_int_ops;

extern const sl_int_ops sl_int_ops_portable;
#if defined(__x86_64__)
extern const sl_int_ops sl_int_ops_avx2, sl_int_ops_avx512; // AVX-512 with VNNI
#endif

static inline int sl_int_blocks(const sl_weight *w) {
    return (int)((sl_weight_row_bytes(w) + SL_INT_BYTES - 1) / SL_INT_BYTES);
}

#endif
