// backend/cuda/packed.c - see packed.h.
#include "backend/cuda/packed.h"

#include <string.h>

int sl_cuda_can_pack(const sl_weight *w) {
    int is_large = w->group == w->n_cols || (w->group && w->group % SL_PIECE_COLS == 0);
    int is_small = w->format == SL_INT4 && (w->group == 32 || w->group == 64);
    int is_known = w->format == SL_FP8 || w->format == SL_INT8 || w->format == SL_INT4;
    return is_known && (is_large || is_small) && !w->zero && !w->order && w->n_rows % SL_PIECE_ROWS == 0 && w->n_cols % 8 == 0;
}

sl_cuda_packing sl_cuda_packing_of(const sl_weight *w) {
    int n = (w->n_cols + SL_PIECE_COLS - 1) / SL_PIECE_COLS, is_small = w->group < SL_PIECE_COLS && w->group < w->n_cols;
    return (sl_cuda_packing){
        .format = w->format, .n_pieces = n, .per_piece = is_small ? 4 : 1, .n_sets = w->group >= w->n_cols ? 1 : n};
}

// The stored number of a column; columns after the last one are 0.
static uint32_t code_at(const sl_weight *w, const unsigned char *row, int col) {
    if (col >= w->n_cols) return w->format == SL_INT4 ? 8 : w->format == SL_INT8 ? 128 : 0;
    if (w->format == SL_INT4) return row[col / 2] >> 4 * (col % 2) & 15;
    return w->format == SL_INT8 ? row[col] ^ 128u : row[col];
}

// The word of columns first to first + 3 (8 bits) or first + 7 (int4).
static uint32_t word_at(const sl_weight *w, const unsigned char *row, int first) {
    static const int int4[8] = {0, 2, 4, 6, 1, 3, 5, 7}, fp8[4] = {2, 0, 3, 1};
    uint32_t word = 0;
    int n = w->format == SL_INT4 ? 8 : 4, bits = 32 / n;
    for (int i = 0; i < n; i++) {
        int col = w->format == SL_INT4 ? int4[i] : w->format == SL_FP8 ? fp8[i] : i;
        word |= code_at(w, row, first + col) << bits * i;
    }
    return word;
}

// The scales of one row and the columns of set `piece`.
static void pack_set(const sl_weight *w, const sl_cuda_packing *p, int row, int piece, float *scale) {
    int n_groups = sl_weight_groups(w);
    for (int k = 0; k < p->per_piece; k++) {
        int group = (piece * SL_PIECE_COLS + k * (SL_PIECE_COLS / 4)) / w->group;
        scale[k] = group < n_groups ? w->scale[sl_weight_scale_at(w, (size_t)row) + (size_t)group] : 0;
    }
}

void sl_cuda_pack_rows(const sl_weight *w, const sl_cuda_packing *p, int i, char *data, float *scale) {
    int n_words = p->format == SL_INT4 ? 1 : 2; // of 8 columns
    for (int piece = 0; piece < p->n_pieces; piece++) {
        int place = sl_place_of_piece(p->n_pieces, piece);
        for (int lane = 0; lane < 32; lane++) {
            const unsigned char *row = (const unsigned char *)sl_weight_row(w, (size_t)(i * SL_PIECE_ROWS + lane / 4));
            for (int u = 0; u < 4; u++)
                for (int k = 0; k < n_words; k++) {
                    int first = piece * SL_PIECE_COLS + 32 * u + 8 * (lane % 4) + 4 * k, at = u * n_words + k;
                    uint32_t word = word_at(w, row, first);
                    memcpy(data + place * sl_piece_bytes(p->format) + at / 4 * 512 + lane * 16 + at % 4 * 4, &word,
                           sizeof word);
                }
        }
        if (p->n_sets == 1 && piece > 0) continue;
        for (int g = 0; g < SL_PIECE_ROWS; g++)
            pack_set(w, p, i * SL_PIECE_ROWS + g, piece,
                     scale + ((p->n_sets == 1 ? 0 : place) * SL_PIECE_ROWS + g) * p->per_piece);
    }
}
