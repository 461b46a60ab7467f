// backend/cuda/packed_numbers.cu - the numbers of quantised weights: in bf16 for prefills, and rows of an embedding. See
// packed.h.
#include "backend/cuda/packed_format.cuh"
#include "backend/cuda/packed_linear.h"

namespace {

enum { PIECE_ROWS = SL_PIECE_ROWS, PIECE_COLS = SL_PIECE_COLS };

// The numbers of columns 32 u + 8 t to 32 u + 8 t + 7 of row `row`, from piece `piece`, lane t of the row.
template <sl_format F>
__device__ void numbers(const char *data, const float *scale, const sl_cuda_packing &k, int row, int piece, int u, int t,
                        float (&out)[8]) {
    constexpr int WORDS = packing<F>::WORDS, PIECE = 512 * WORDS;
    const int g = row % PIECE_ROWS, at = u * WORDS, place = sl_place_of_piece(k.n_pieces, piece);
    const char *from = data + ((size_t)(row / PIECE_ROWS) * k.n_pieces + place) * PIECE + (4 * g + t) * 16;
    const size_t set = (size_t)(row / PIECE_ROWS) * k.n_sets + (k.n_sets == 1 ? 0 : place);
    const float factor = scale[(set * PIECE_ROWS + g) * k.per_piece + (k.per_piece == 4 ? u : 0)];
    uint32_t w[WORDS];
    for (int i = 0; i < WORDS; i++) w[i] = *(const uint32_t *)(from + at / 4 * 512 + (at % 4 + i) * 4);
    const packing<F> unpacker;
#pragma unroll
    for (int half = 0; half < 2; half++) {
        uint32_t pair[2];
        unpacker.unpack(w, half, pair);
#pragma unroll
        for (int i = 0; i < 2; i++) {
            out[4 * half + 2 * i] = sl_widen((bf16)pair[i]) * factor;
            out[4 * half + 2 * i + 1] = sl_widen((bf16)(pair[i] >> 16)) * factor;
        }
    }
}

// Grid: x: pieces and rows, 256 threads. Thread i has 8 columns.
template <sl_format F>
__global__ void widen_kernel(const char *data, const float *scale, sl_cuda_packing k, int n_cols, int first, int n_rows,
                             bf16 *out) {
    const int vectors = n_cols / 8, i = blockIdx.x * blockDim.x + threadIdx.x;
    sl_start_next();
    sl_wait_previous();
    if (i >= n_rows * vectors) return;
    const int row = i / vectors, col = i % vectors * 8;
    float x[8];
    numbers<F>(data, scale, k, first + row, col / PIECE_COLS, col % PIECE_COLS / 32, col % 32 / 8, x);
    *(uint4 *)(out + (size_t)row * n_cols + col) =
        uint4{sl_pack_bf16(x[0], x[1]), sl_pack_bf16(x[2], x[3]), sl_pack_bf16(x[4], x[5]), sl_pack_bf16(x[6], x[7])};
}

// Grid: x: rows of x; y: 8 columns a thread.
template <sl_format F>
__global__ void packed_embed_kernel(const char *data, const float *scale, sl_cuda_packing k, int n_cols, const int32_t *ids,
                                    float *out) {
    const int col = (blockIdx.y * blockDim.x + threadIdx.x) * 8;
    sl_start_next();
    sl_wait_previous();
    if (col >= n_cols) return;
    float x[8];
    numbers<F>(data, scale, k, ids[blockIdx.x], col / PIECE_COLS, col % PIECE_COLS / 32, col % 32 / 8, x);
    float4 *to = (float4 *)(out + (size_t)blockIdx.x * n_cols + col);
    to[0] = {x[0], x[1], x[2], x[3]}, to[1] = {x[4], x[5], x[6], x[7]};
}

} // namespace

void sl_cuda_packed_widen(const void *data, const float *scale, const sl_cuda_packing *packing, int n_cols, int first,
                          int n_rows, bf16 *out, cudaStream_t stream) {
    SL_CHECK(first % PIECE_ROWS == 0 && n_rows % PIECE_ROWS == 0 && n_cols % 8 == 0);
    const int n = n_rows * (n_cols / 8);
    by_format(packing->format, [&](auto format) {
        sl_launch(widen_kernel<format()>, dim3((n + 255) / 256), dim3(256), 0, stream, (const char *)data, scale, *packing,
                  n_cols, first, n_rows, out);
    });
}

void sl_cuda_packed_embed(const void *data, const float *scale, const sl_cuda_packing *packing, int n_cols, const int32_t *ids,
                          int n_rows, float *x, cudaStream_t stream) {
    SL_CHECK(n_cols % 8 == 0);
    by_format(packing->format, [&](auto format) {
        sl_launch(packed_embed_kernel<format()>, dim3(n_rows, (n_cols / 8 + 127) / 128), dim3(128), 0, stream,
                  (const char *)data, scale, *packing, n_cols, ids, x);
    });
}
