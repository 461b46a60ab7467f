// attention/cuda/prefill/widen_rows.cu - copies the rows of a sequence from a cache of fp8 or int8 to pages of bf16, which the
// prefill kernels read.
//
// | kernel            | bytes for each number | order of reduction |
// |-------------------|-----------------------|--------------------|
// | widen_rows_kernel | reads 1, writes 2     | no sums            |
#include "attention/attention_cuda.h"
#include "attention/cuda/stored_rows.cuh"

namespace {

enum { THREADS = 256 };

// to[row][i] = bf16(q * scale). Rows after the sequence's end become anything, as in the cache.
//
// Grid: (pages of the sequence, KV heads, K and V). A thread widens 8 numbers at a time.
template <sl_format F> __global__ void __launch_bounds__(THREADS) widen_rows_kernel(const sl_attn_cuda_widen_args a) {
    sl_start_next();
    sl_wait_previous();
    const size_t head = blockIdx.y, n_heads = gridDim.y;
    const stored_block_of<F> from(blockIdx.z ? a.v : a.k, a.pages[blockIdx.x] * n_heads + head, a.head_dim);
    bf16 *to = (blockIdx.z ? a.to_v : a.to_k) + (blockIdx.x * n_heads + head) * SL_PAGE * a.head_dim;
    const int per_row = a.head_dim / 8;
    for (int i = threadIdx.x; i < SL_PAGE * per_row; i += THREADS) {
        float x[8];
        from.numbers(i / per_row, i % per_row * 8, x);
        ((uint4 *)to)[i] =
            make_uint4(sl_pack_bf16(x[0], x[1]), sl_pack_bf16(x[2], x[3]), sl_pack_bf16(x[4], x[5]), sl_pack_bf16(x[6], x[7]));
    }
}

template <sl_format F> void launch(const sl_attn_cuda_widen_args *a) {
    sl_launch(widen_rows_kernel<F>, dim3(sl_kv_pages_of(a->n_rows), a->n_kv_heads, a->to_v ? 2 : 1), dim3(THREADS), 0,
              a->stream, *a);
}

} // namespace

void sl_cuda_widen_rows(const sl_attn_cuda_widen_args *args) {
    SL_CHECK(args->format == SL_FP8 || args->format == SL_INT8);
    (args->format == SL_FP8 ? launch<SL_FP8> : launch<SL_INT8>)(args);
}
