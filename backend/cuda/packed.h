// backend/cuda/packed.h - quantised weights in the GPU's memory, in the order in which the matrix instructions take them.
//
// A matrix is cut into pieces of 8 rows and 128 columns. Matrices whose rows are multiples of 8 can lie one behind the other,
// and are then one matrix.
//
// The n pieces of 8 rows form 16 leaves: leaf l has the pieces [n l / 16, n (l + 1) / 16). In memory come the first pieces of
// all leaves, in the order of the leaves, then the second pieces of all leaves, and so on (sl_piece_at). So one copy brings
// equal work for all leaves. The pieces of the next 8 rows follow.
//
// Within a piece, lane (g, t) of a warp (lane = 4 g + t) has row g, and of each 32 columns u eight columns, c0 to c7, in one
// word (4 bits) or two. They are the columns 32 u + 8 t to 32 u + 8 t + 7. With a scale for 16 columns, c0 to c3 are the
// columns from 32 u + 4 t on, and c4 to c7 those from 32 u + 16 + 4 t on: a matrix instruction takes c0 to c3 or c4 to c7 of
// all lanes, and its columns share a scale.
//
//   int4, uint4, fp4  a word has columns c0 c2 c4 c6 c1 c3 c5 c7, four bits each, from the lowest on
//   iq4               a word has columns c0 to c7
//   int8, uint8       the first word has c0 c1 c2 c3, the second one c4 c5 c6 c7
//   fp8               the first word has c2 c0 c3 c1, the second one c6 c4 c7 c5: the numbers of a register are 16 bits apart
//
// int4 is stored as q + 8, int8 as q + 128; fp4 has no -0.
//
// A lane's 16 bytes lie at 16 lane within each 512 bytes of a piece: words of 4 bits of all 4 u; with 8 bits the first 512
// bytes have u = 0, 1 and the next ones u = 2, 3. So a warp reads a piece without a gap.
//
// A rank of a tensor-parallel run has 16 / N leaves of the columns of o and of down. There N tiles of 16 rows lie side by side,
// with the leaves of one after the leaves of another: the first 16 rows of the packed matrix have, in this order, the leaves of
// the tiles 0 to N - 1. So the packed matrix has 1/N of the rows and N times the pieces, and 16 leaves as any other.
//
// Scales are fp32: [n_rows / 8][n_sets][8][per_piece][width]. n_sets is 1 for one scale a row. Otherwise each piece has its
// set, in the order of the pieces in memory. per_piece is 8 (a scale for each 16 columns), 4 (for each 32) or 1. With width 2 a
// second number follows each scale. uint4 and uint8: the minimum. int4 and int8: what makes q - zero of a stored number
// (sl_packed_zero); weights with another order of columns have it too, because kernels without it read x in its own order.
#ifndef SLEIGH_CUDA_PACKED_H
#define SLEIGH_CUDA_PACKED_H

#include "backend/weight.h"
#include "base/host_device.h"

#include <string.h>

#ifdef __cplusplus
extern "C" {
#endif

enum { SL_PIECE_ROWS = 8, SL_PIECE_COLS = 128, SL_LEAVES = 16 };

// The kernels: format, scales of a row and piece, width. Other weights become bf16.
#define SL_PACKED_KINDS(X)                                                                                                     \
    X(SL_INT4, 1, 1)                                                                                                           \
    X(SL_INT4, 4, 1)                                                                                                           \
    X(SL_INT4, 1, 2) X(SL_INT4, 4, 2) X(SL_INT8, 1, 1) X(SL_INT8, 4, 1) X(SL_INT8, 8, 1) X(SL_INT8, 1, 2) X(SL_INT8, 4, 2)     \
        X(SL_FP8, 1, 1) X(SL_UINT4, 4, 2) X(SL_UINT8, 4, 2) X(SL_IQ4, 4, 1) X(SL_FP4, 4, 1) X(SL_FP4, 8, 1)

typedef struct sl_cuda_packing {
    sl_format format;
    int n_pieces;  // of 8 rows, of all tiles that lie side by side
    int per_piece; // scales of a row and piece: 1, 4 or 8
    int n_sets;    // of scales of 8 rows: 1 or n_pieces
    int width;     // fp32 numbers of a scale: 1, or 2
    int n_beside;  // tiles that lie side by side; 1: each has its rows to itself
} sl_cuda_packing;

// The first piece of a leaf, of n pieces.
static inline SL_HOST_DEVICE int sl_leaf_begin(int n, int leaf) {
    return n * leaf / SL_LEAVES;
}

// Where the piece of step j of a leaf lies among the pieces of 8 rows. The leaf has more than j pieces.
static inline SL_HOST_DEVICE int sl_piece_at(int n, int leaf, int j) {
    const int full = n / SL_LEAVES; // steps in which every leaf has a piece
    return j < full ? SL_LEAVES * j + leaf : SL_LEAVES * full + sl_leaf_begin(n, leaf) - full * leaf;
}

// The same for piece i of n.
static inline SL_HOST_DEVICE int sl_place_of_piece(int n, int i) {
    const int leaf = (SL_LEAVES * i + SL_LEAVES - 1) / n; // the last leaf that begins at i or before
    return sl_piece_at(n, leaf, i - sl_leaf_begin(n, leaf));
}

// The packing of a weight. per_piece 0: there is none for its groups.
sl_cuda_packing sl_cuda_packing_of(const sl_weight *w);
// The same for a weight with the columns of one of n_ranks ranks: whole pieces. 0, 1: it has all columns
sl_cuda_packing sl_cuda_packing_of_part(const sl_weight *w, int n_ranks);
// 1: there are kernels for this packing; for this weight as it is stored (its n_rows are a multiple of 8 too).
int sl_cuda_has_kernels(const sl_cuda_packing *p);
int sl_cuda_can_pack(const sl_weight *w);

// 1: the numbers of a format have 4 bits, else 8.
static inline SL_HOST_DEVICE int sl_is_nibbles(sl_format f) {
    return f == SL_INT4 || f == SL_UINT4 || f == SL_FP4 || f == SL_IQ4;
}
static inline int sl_piece_bytes(sl_format f) {
    return sl_is_nibbles(f) ? 512 : 1024;
}
// n_rows: of the packed matrix, which are the weight's rows / n_beside
static inline size_t sl_packed_bytes(const sl_cuda_packing *p, int n_rows) { // without the scales
    return (size_t)(n_rows / SL_PIECE_ROWS) * (size_t)p->n_pieces * (size_t)sl_piece_bytes(p->format);
}
static inline size_t sl_packed_scales(const sl_cuda_packing *p, int n_rows) { // numbers
    return (size_t)n_rows * (size_t)p->n_sets * (size_t)p->per_piece * (size_t)p->width;
}

// What stands for a zero point: of int4 the bf16 number 136 + zero twice, because a stored number u becomes the bf16 number
// 128 + u; of int8 2^23 + 128 + zero, because u becomes the fp32 number 2^23 + u.
static inline float sl_packed_zero(sl_format f, int zero) {
    uint32_t pair = sl_f32_to_bf16((float)(136 + zero)) * 0x10001u;
    float bits;
    memcpy(&bits, &pair, sizeof bits);
    return f == SL_INT4 ? bits : (float)((1 << 23) + 128 + zero);
}

// Packs rows 8 i to 8 i + 7 of the packed matrix, their pieces to `data` and their scales to `scale`. Columns after n_cols have
// the number 0 of their code (int4: 8, int8: 128); x is 0 there. p: the packing of w; its width may be 2 although w has no zero
// points.
void sl_cuda_pack_rows(const sl_weight *w, const sl_cuda_packing *p, int i, char *data, float *scale);

#ifdef __cplusplus
}
#endif

#endif
