// backend/cuda/packed.h - quantised weights in the GPU's memory, in the order in which the matrix instructions take them.
//
// A matrix is cut into pieces of 8 rows and 128 columns. Matrices whose rows are multiples of 8 can lie one behind the other,
// and are then one matrix.
//
// The n pieces of 8 rows form 16 leaves: leaf l has the pieces [n l / 16, n (l + 1) / 16). In memory come the first pieces of
// all leaves, in the order of the leaves, then the second pieces of all leaves, and so on (sl_piece_at). So one copy brings
// equal work for all leaves. The pieces of the next 8 rows follow.
//
// Within a piece, lane (g, t) of a warp (lane = 4 g + t) has row g, and of each 32 columns u the columns 32 u + 8 t to
// 32 u + 8 t + 7, c0 to c7, in one word (int4) or two:
//
//   int4         a word has columns c0 c2 c4 c6 c1 c3 c5 c7, four bits each, from the lowest on; stored as q + 8
//   int8         the first word has c0 c1 c2 c3, the second one c4 c5 c6 c7; stored as q + 128
//   fp8          the first word has c2 c0 c3 c1, the second one c6 c4 c7 c5: the two numbers of a register lie 16 bits apart
//
// A lane's 16 bytes lie at 16 lane within each 512 bytes of a piece: words of int4 of all 4 u; with 8 bits the first 512 bytes
// have u = 0, 1 and the next ones u = 2, 3. So a warp reads a piece without a gap.
//
// Scales are fp32: [n_rows / 8][n_sets][8][per_piece]. n_sets is 1 for one scale a row. Otherwise each piece has its set, in
// the order of the pieces in memory. per_piece is 4 for groups of 32 and 64 columns (one scale for each 32), else 1.
#ifndef SLEIGH_CUDA_PACKED_H
#define SLEIGH_CUDA_PACKED_H

#include "backend/weight.h"
#include "base/host_device.h"

#ifdef __cplusplus
extern "C" {
#endif

enum { SL_PIECE_ROWS = 8, SL_PIECE_COLS = 128, SL_LEAVES = 16 };

typedef struct sl_cuda_packing {
    sl_format format; // SL_INT4, SL_INT8, SL_FP8
    int n_pieces;     // of 8 rows
    int per_piece;    // scales of a row and piece: 1 or 4
    int n_sets;       // of scales of 8 rows: 1 or n_pieces
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

// 1: the GPU computes with this weight as it is stored: int4, int8 or fp8 without zero points and without another order of the
// columns, groups of a multiple of 128 columns or a whole row (int4: also of 32 and 64), and n_rows a multiple of 8.
int sl_cuda_can_pack(const sl_weight *w);
sl_cuda_packing sl_cuda_packing_of(const sl_weight *w); // after sl_cuda_can_pack

static inline int sl_piece_bytes(sl_format f) {
    return f == SL_INT4 ? 512 : 1024;
}
static inline size_t sl_packed_bytes(const sl_cuda_packing *p, int n_rows) { // without the scales
    return (size_t)(n_rows / SL_PIECE_ROWS) * (size_t)p->n_pieces * (size_t)sl_piece_bytes(p->format);
}
static inline size_t sl_packed_scales(const sl_cuda_packing *p, int n_rows) { // numbers
    return (size_t)n_rows * (size_t)p->n_sets * (size_t)p->per_piece;
}

// Packs rows 8 i to 8 i + 7, their pieces to `data` and their scales to `scale`. Columns after n_cols are zeros.
void sl_cuda_pack_rows(const sl_weight *w, const sl_cuda_packing *p, int i, char *data, float *scale);

#ifdef __cplusplus
}
#endif

#endif
