// backend/cuda/packed_numbers.cu - the numbers of quantised weights: in bf16 for prefills, and rows of an embedding. See
// packed.h.
#include "backend/cuda/packed_format.cuh"
#include "backend/cuda/packed_linear.h"

namespace {

enum { TILE_ROWS = 2 * PIECE_ROWS };

// A weight in the GPU's memory.
struct packed {
    const char *data;
    const float *scale;
    const int32_t *order;
    sl_cuda_packing k;
    int n_cols;
};

packed packed_of(const sl_weight *w, int n_ranks) {
    return {(const char *)w->data, w->scale, w->order, sl_cuda_packing_of_part(w, n_ranks), w->n_cols};
}

// The numbers of columns col to col + 7 of row `row`, as packed.
template <sl_format F> __device__ void numbers(const packed &w, int row, int col, float (&out)[8]) {
    constexpr int WORDS = packing<F>::WORDS, PIECE = 512 * WORDS;
    constexpr bool HAS_MIN = F == SL_UINT4 || F == SL_UINT8;
    const sl_cuda_packing &k = w.k;
    if (k.n_beside > 1) { // to the row and the column of the packed matrix
        const int tile = row / TILE_ROWS;
        row = tile / k.n_beside * TILE_ROWS + row % TILE_ROWS;
        col += tile % k.n_beside * (k.n_pieces / k.n_beside) * PIECE_COLS;
    }
    const int g = row % PIECE_ROWS, u = col % PIECE_COLS / 32, eight = col % 32 / 8; // of the 32 columns
    const int place = sl_place_of_piece(k.n_pieces, col / PIECE_COLS);
    const bool is_split = k.per_piece == 8;
    const char *piece = w.data + ((size_t)(row / PIECE_ROWS) * k.n_pieces + place) * PIECE;
    const size_t set = (size_t)(row / PIECE_ROWS) * k.n_sets + (k.n_sets == 1 ? 0 : place);
    const int part = k.per_piece == 1 ? 0 : is_split ? 2 * u + eight / 2 : u;
    const float *scale = w.scale + ((set * PIECE_ROWS + g) * k.per_piece + part) * k.width;
    const float second = k.width == 2 ? scale[1] : 0, zero = k.width == 2 && !HAS_MIN ? second : packing<F>::none();
    const packing<F> unpacker;
#pragma unroll
    for (int i = 0; i < 2; i++) { // four columns, in the words of a lane (packed.h)
        const int lane = 4 * g + (is_split ? 2 * (eight % 2) + i : eight), half = is_split ? eight / 2 : i;
        uint32_t words[WORDS], pair[2];
#pragma unroll
        for (int j = 0; j < WORDS; j++) {
            const int at = u * WORDS + j;
            words[j] = *(const uint32_t *)(piece + at / 4 * 512 + lane * 16 + at % 4 * 4);
        }
        unpacker.unpack(words, half, zero, pair);
#pragma unroll
        for (int j = 0; j < 4; j++) {
            const float product = __fmul_rn(sl_widen((bf16)(pair[j / 2] >> 16 * (j % 2))), *scale);
            out[4 * i + j] = HAS_MIN ? __fadd_rn(product, second) : product;
        }
    }
}

// Grid: x: pieces and rows, 256 threads. Thread i has 8 columns.
template <sl_format F> __global__ void widen_kernel(packed w, int first, int n_rows, bf16 *out) {
    const int vectors = w.n_cols / 8, i = blockIdx.x * blockDim.x + threadIdx.x;
    sl_start_next();
    sl_wait_previous();
    if (i >= n_rows * vectors) return;
    const int row = i / vectors, col = i % vectors * 8;
    float x[8];
    numbers<F>(w, first + row, col, x);
    out += (size_t)row * w.n_cols;
    const uint32_t pairs[4] = {sl_pack_bf16(x[0], x[1]), sl_pack_bf16(x[2], x[3]), sl_pack_bf16(x[4], x[5]),
                               sl_pack_bf16(x[6], x[7])};
    if (!w.order)
        *(uint4 *)(out + col) = uint4{pairs[0], pairs[1], pairs[2], pairs[3]};
    else
        for (int j = 0; j < 8; j++) out[w.order[col + j]] = (bf16)(pairs[j / 2] >> 16 * (j % 2));
}

// Grid: x: pieces, a warp each. A lane reads its 32 bytes of a piece, and writes them as four runs of 8 columns of its row.
// Bytes: 2 per number.
__global__ void fp8_rows_kernel(const char *data, int n_pieces, int n_cols, int n, uint8_t *out) {
    const int i = (blockIdx.x * blockDim.x + threadIdx.x) / 32, lane = threadIdx.x % 32;
    sl_start_next();
    sl_wait_previous();
    if (i >= n) return;
    const int piece = i % n_pieces, place = i - piece + sl_place_of_piece(n_pieces, piece);
    const uint4 *from = (const uint4 *)(data + (size_t)place * 1024) + lane;
    const uint4 w[2] = {from[0], from[32]};
    const int col = piece * PIECE_COLS + lane % 4 * 8;
    uint8_t *to = out + (size_t)(i / n_pieces * PIECE_ROWS + lane / 4) * n_cols + col;
    const auto in_order = [](uint32_t x) { return __byte_perm(x, 0, 0x2031); }; // c2 c0 c3 c1 to c0 c1 c2 c3
#pragma unroll
    for (int half = 0; half < 2; half++) {
        if (col + 64 * half < n_cols) *(uint2 *)(to + 64 * half) = {in_order(w[half].x), in_order(w[half].y)};
        if (col + 64 * half + 32 < n_cols) *(uint2 *)(to + 64 * half + 32) = {in_order(w[half].z), in_order(w[half].w)};
    }
}

// Grid: x: blocks of 128 rows; a thread has a block of 128 columns, and those 128 blocks further on. stride: scales of a row of
// blocks of `out`.
__global__ void block_scales_kernel(const float *scale, int n_sets, int stride, float *out) {
    sl_start_next();
    sl_wait_previous();
    for (int i = threadIdx.x; i < stride; i += blockDim.x)
        out[blockIdx.x * stride + i] =
            i < n_sets ? scale[((size_t)blockIdx.x * (128 / PIECE_ROWS) * n_sets + sl_place_of_piece(n_sets, i)) * PIECE_ROWS]
                       : 0;
}

// Grid: x: rows of x; y: 8 columns a thread.
template <sl_format F> __global__ void packed_embed_kernel(packed w, const int32_t *ids, float *out) {
    const int col = (blockIdx.y * blockDim.x + threadIdx.x) * 8;
    sl_start_next();
    sl_wait_previous();
    if (col >= w.n_cols) return;
    float x[8];
    numbers<F>(w, ids[blockIdx.x], col, x);
    out += (size_t)blockIdx.x * w.n_cols;
    float4 *to = (float4 *)(out + col);
    if (!w.order)
        to[0] = {x[0], x[1], x[2], x[3]}, to[1] = {x[4], x[5], x[6], x[7]};
    else
        for (int j = 0; j < 8; j++) out[w.order[col + j]] = x[j];
}

} // namespace

void sl_cuda_packed_widen(const sl_weight *w, int n_ranks, int first, int n_rows, bf16 *out, cudaStream_t stream) {
    SL_CHECK(first % PIECE_ROWS == 0 && n_rows % PIECE_ROWS == 0 && w->n_cols % 8 == 0);
    const int n = n_rows * (w->n_cols / 8);
    by_format(w->format, [&](auto format) {
        sl_launch(widen_kernel<format()>, dim3((n + 255) / 256), dim3(256), 0, stream, packed_of(w, n_ranks), first, n_rows,
                  out);
    });
}

void sl_cuda_packed_fp8_rows(const void *data, const sl_cuda_packing *packing, int n_cols, int first, int n_rows, uint8_t *out,
                             cudaStream_t stream) {
    SL_CHECK(packing->format == SL_FP8 && first % PIECE_ROWS == 0 && n_rows % PIECE_ROWS == 0 && n_cols % 8 == 0);
    const int n = n_rows / PIECE_ROWS * packing->n_pieces;
    sl_launch(fp8_rows_kernel, dim3((n + 7) / 8), dim3(256), 0, stream, (const char *)data + sl_packed_bytes(packing, first),
              packing->n_pieces, n_cols, n, out);
}

void sl_cuda_packed_block_scales(const float *scale, const sl_cuda_packing *packing, int first, int n_rows, float *out,
                                 cudaStream_t stream) {
    SL_CHECK(packing->n_sets == packing->n_pieces && packing->per_piece == 1 && first % 128 == 0 && n_rows % 128 == 0);
    sl_launch(block_scales_kernel, dim3(n_rows / 128), dim3(128), 0, stream, scale + (size_t)first * packing->n_sets,
              packing->n_sets, (packing->n_sets + 3) / 4 * 4, out);
}

void sl_cuda_packed_embed(const sl_weight *table, const int32_t *ids, int n_rows, float *x, cudaStream_t stream) {
    SL_CHECK(table->n_cols % 8 == 0);
    by_format(table->format, [&](auto format) {
        sl_launch(packed_embed_kernel<format()>, dim3(n_rows, (table->n_cols / 8 + 127) / 128), dim3(128), 0, stream,
                  packed_of(table, 1), ids, x);
    });
}
