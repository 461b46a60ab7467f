// backend/cuda/packed_linear.cu - chooses the kernels for packed weights. packed_linear_plain.cu, packed_linear_zeros.cu and
// packed_linear_groups.cu make them (packed_linear.cuh).
#include "backend/cuda/packed_linear.h"

template <sl_format F, int SCALES, int WIDTH> int sl_packed_rows(int n_pieces);
template <sl_format F, int SCALES, int WIDTH> void sl_packed_launch(const sl_cuda_linear &p, cudaStream_t stream);

int sl_cuda_packed_rows(const sl_cuda_packing *k) {
    if (k->n_pieces > SL_PACKED_COLS / SL_PIECE_COLS) return 0;
#define ROWS(FORMAT, SCALES, WIDTH)                                                                                            \
    if (k->format == FORMAT && k->per_piece == SCALES && k->width == WIDTH)                                                    \
        return sl_packed_rows<FORMAT, SCALES, WIDTH>(k->n_pieces);
    SL_PACKED_KINDS(ROWS)
    return 0;
}

void sl_cuda_packed_linear(const sl_cuda_linear *args, cudaStream_t stream) {
    const sl_cuda_packing *k = &args->packing;
    SL_CHECK(args->n_rows <= sl_cuda_packed_rows(k) && args->n_out % SL_PIECE_ROWS == 0);
    SL_CHECK(args->end != SL_LINEAR_SWIGLU || args->n_out % (2 * SL_PIECE_ROWS) == 0);
    SL_CHECK(k->n_beside == (args->n_ranks > 1 ? args->n_ranks : 1));
    SL_CHECK(k->n_beside == 1 || args->n_out % (2 * SL_PIECE_ROWS * k->n_beside) == 0);
    SL_CHECK(!args->order || (k->width == 2 && !sl_formats[k->format].has_min));
#define LAUNCH(FORMAT, SCALES, WIDTH)                                                                                          \
    if (k->format == FORMAT && k->per_piece == SCALES && k->width == WIDTH)                                                    \
        return sl_packed_launch<FORMAT, SCALES, WIDTH>(*args, stream);
    SL_PACKED_KINDS(LAUNCH)
}
