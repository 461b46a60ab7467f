// backend/cpu/leaves.h - the leaves of a row-parallel product: a product that is added to the residual stream (o and down).
//
// The columns of such a weight are cut into n_leaves equal leaves, a power of 2. A leaf is summed as a whole product is, and
// the sums of the leaves are added as a binary tree: leaf 2 i and leaf 2 i + 1, then the sums of these pairs, and so on. A rank
// of a tensor-parallel run holds consecutive leaves, whose sum is a subtree. So every number of ranks gives equal bits.
//
// The number of leaves follows from the whole model and not from the number of ranks: it is the most ranks that the model
// can have, because each rank needs a KV head. More leaves would only cost time.
#ifndef SLEIGH_LEAVES_H
#define SLEIGH_LEAVES_H

#include <stddef.h>

enum {
    SL_MOST_LEAVES = 8,
    SL_LEAF_UNIT = 128, // columns; the vector loops take 16 columns at a time, and those of integers up to 128
};

// The leaves of a weight with n_cols columns, in a model with n_kv_heads KV heads. Both count all ranks.
static inline int sl_cpu_leaves(int n_kv_heads, int n_cols) {
    int n = 1;
    while (n < SL_MOST_LEAVES && n_kv_heads % (2 * n) == 0 && n_cols % (2 * n * SL_LEAF_UNIT) == 0) n *= 2;
    return n;
}

// Adds n sums (n a power of 2) as a binary tree. The result replaces the first sum; the others change. Sum l: n_rows rows of
// n_cols numbers at sums + l * stride, a row every `width` numbers.
static inline void sl_add_leaves(int n, size_t stride, int n_rows, size_t width, size_t n_cols, float *sums) {
    for (int step = 1; step < n; step *= 2)
        for (int l = 0; l < n; l += 2 * step)
            for (int a = 0; a < n_rows; a++) {
                float *to = sums + (size_t)l * stride + (size_t)a * width;
                const float *other = to + (size_t)step * stride;
                for (size_t i = 0; i < n_cols; i++) to[i] += other[i];
            }
}

#endif
