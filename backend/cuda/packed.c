// backend/cuda/packed.c - see packed.h.
#include "backend/cuda/packed.h"

// Scales of a row and piece; 0: the groups fit to no packing.
static int per_piece_of(const sl_weight *w) {
    int is_row = w->group >= w->n_cols;
    int has_one = w->format == SL_INT4 || w->format == SL_INT8 || w->format == SL_FP8; // kernels with one scale for a piece
    if (!w->group) return 0;
    if (has_one && (is_row || w->group % SL_PIECE_COLS == 0)) return 1;
    return is_row || w->group % 32 == 0 ? 4 : w->group % 16 == 0 ? 8 : 0;
}

sl_cuda_packing sl_cuda_packing_of(const sl_weight *w) {
    int n = (w->n_cols + SL_PIECE_COLS - 1) / SL_PIECE_COLS, per_piece = per_piece_of(w);
    return (sl_cuda_packing){.format = w->format,
                             .n_pieces = n,
                             .per_piece = per_piece,
                             .n_sets = per_piece == 1 && w->group >= w->n_cols ? 1 : n,
                             .width = sl_formats[w->format].has_min || w->zero || w->order ? 2 : 1,
                             .n_beside = 1};
}

// Rows that lie side by side have different scales, so each piece has its set.
sl_cuda_packing sl_cuda_packing_of_part(const sl_weight *w, int n_ranks) {
    sl_cuda_packing p = sl_cuda_packing_of(w);
    if (n_ranks <= 1) return p;
    SL_CHECK(w->n_cols % SL_PIECE_COLS == 0 && !w->order);
    p.n_beside = n_ranks, p.n_pieces *= n_ranks, p.n_sets = p.n_pieces;
    return p;
}

int sl_cuda_has_kernels(const sl_cuda_packing *p) {
#define IS(FORMAT, PER_PIECE, WIDTH) || (p->format == FORMAT && p->per_piece == PER_PIECE && p->width == WIDTH)
    return 0 SL_PACKED_KINDS(IS);
#undef IS
}

int sl_cuda_can_pack(const sl_weight *w) {
    sl_cuda_packing p = sl_cuda_packing_of(w);
    if (w->order && sl_formats[w->format].has_min) return 0; // kernels with minimums read x in its own order
    return sl_cuda_has_kernels(&p) && w->n_rows % SL_PIECE_ROWS == 0 && w->n_cols % 8 == 0;
}

// The stored number of a column; columns after the last one are 0.
static uint32_t code_at(const sl_weight *w, const unsigned char *row, int col) {
    if (col >= w->n_cols) return w->format == SL_INT4 ? 8 : w->format == SL_INT8 ? 128 : 0;
    if (!sl_is_nibbles(w->format)) return w->format == SL_INT8 ? row[col] ^ 128u : row[col];
    uint32_t nibble = row[col / 2] >> 4 * (col % 2) & 15;
    return w->format == SL_FP4 && nibble == 8 ? 0 : nibble; // -0
}

// The word of columns first to first + 3 (8 bits), or (4 bits) of these columns and the four from `second` on.
static uint32_t word_at(const sl_weight *w, const unsigned char *row, int first, int second) {
    static const int pairs[8] = {0, 2, 4, 6, 1, 3, 5, 7}, fp8[4] = {2, 0, 3, 1};
    uint32_t word = 0;
    int is_nibbles = sl_is_nibbles(w->format), n = is_nibbles ? 8 : 4, bits = 32 / n;
    for (int i = 0; i < n; i++) {
        int c = w->format == SL_FP8 ? fp8[i] : is_nibbles && w->format != SL_IQ4 ? pairs[i] : i;
        word |= code_at(w, row, c < 4 ? first + c : second + c - 4) << bits * i;
    }
    return word;
}

// The scales of one row and the columns of set `piece`.
static void pack_set(const sl_weight *w, const sl_cuda_packing *p, int row, int piece, float *scale) {
    int n_groups = sl_weight_groups(w);
    for (int k = 0; k < p->per_piece; k++, scale += p->width) {
        int group = (piece * SL_PIECE_COLS + k * (SL_PIECE_COLS / p->per_piece)) / w->group, exists = group < n_groups;
        size_t at = exists ? sl_weight_scale_at(w, (size_t)row) + (size_t)group : 0;
        scale[0] = exists ? w->scale[at] : 0;
        if (p->width == 2 && sl_formats[w->format].has_min) scale[1] = exists ? w->min[at] : 0;
        if (p->width == 2 && !sl_formats[w->format].has_min)
            scale[1] = sl_packed_zero(w->format, exists && w->zero ? w->zero[at] : 0);
    }
}

void sl_cuda_pack_rows(const sl_weight *w, const sl_cuda_packing *p, int i, char *data, float *scale) {
    int n_words = sl_is_nibbles(p->format) ? 1 : 2;                    // of 8 columns
    int is_split = p->per_piece == 8, own = p->n_pieces / p->n_beside; // pieces of a tile
    for (int at_piece = 0; at_piece < p->n_pieces; at_piece++) {
        int place = sl_place_of_piece(p->n_pieces, at_piece), beside = at_piece / own, piece = at_piece % own;
        int first_row = SL_PIECE_ROWS * (p->n_beside == 1 ? i : 2 * (i / 2 * p->n_beside + beside) + i % 2);
        for (int lane = 0; lane < 32; lane++) {
            const unsigned char *row = (const unsigned char *)sl_weight_row(w, (size_t)(first_row + lane / 4));
            for (int u = 0; u < 4; u++)
                for (int k = 0; k < n_words; k++) {
                    int first = piece * SL_PIECE_COLS + 32 * u + (is_split ? 4 : 8) * (lane % 4);
                    int second = first + (is_split ? 16 : 4), at = u * n_words + k;
                    uint32_t word = word_at(w, row, k ? second : first, second);
                    memcpy(data + place * sl_piece_bytes(p->format) + at / 4 * 512 + lane * 16 + at % 4 * 4, &word,
                           sizeof word);
                }
        }
        if (p->n_sets == 1 && at_piece > 0) continue;
        for (int g = 0; g < SL_PIECE_ROWS; g++)
            pack_set(w, p, first_row + g, piece,
                     scale + ((p->n_sets == 1 ? 0 : place) * SL_PIECE_ROWS + g) * p->per_piece * p->width);
    }
}
