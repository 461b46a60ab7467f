// attention/cuda/lists/page_bounds.cu - builds the page extra "key bounds" on CUDA (propose_bounds.c states the layout). The
// builder is not in quest.cu, because that would make a circle of calls: quest.cu needs the page extra, and the page extra
// needs its builder. Files that are compiled twice call sl_cuda_account_bounds, so it is here too.
//
// | kernel              | bytes for each page and KV head                      | order of reduction                 |
// |---------------------|------------------------------------------------------|------------------------------------|
// | build_bounds_kernel | reads K once, bf16: 512 head_dim; writes 64 head_dim | smallest and largest numbers: none |
#include "attention/cuda/head_dim.cuh"
#include "attention/cuda/lists/score_bounds.cuh"
#include "attention/cuda/workspace.cuh"

namespace {

// The page extra, [16][2][DIM]: smallest and largest key element of every channel, for each unit. Grid: (pages, KV heads). A
// warp takes two of the 16 units.
template <int DIM, sl_format F>
__global__ void __launch_bounds__(BOUND_THREADS)
    build_bounds_kernel(const int32_t *pages, const int32_t *from, const bf16 *k, size_t size, char *data) {
    sl_start_next();
    sl_wait_previous();
    size_t block = (size_t)pages[blockIdx.x] * gridDim.y + blockIdx.y, rows = (size_t)from[blockIdx.x] * gridDim.y + blockIdx.y;
    const stored_block_of<F> keys(k, rows, DIM);
    for (int u = threadIdx.x / 32; u < PAGE_UNITS; u += BOUND_THREADS / 32) {
        bf16 *out = (bf16 *)(data + block * size) + u * 2 * DIM;
        if (F == SL_BF16)
            find_bounds<DIM>((const bf16 *)keys.row(u * UNIT), UNIT, out);
        else
            find_bounds_of_bytes<DIM>(keys.row(u * UNIT), keys.scales + u * UNIT, F == SL_FP8, UNIT, out);
    }
}

template <int DIM, sl_format F> void launch_build_bounds(const sl_kv_device_build *b) {
    sl_launch(build_bounds_kernel<DIM, F>, dim3(b->n, b->n_kv_heads), dim3(BOUND_THREADS), 0, (cudaStream_t)b->stream, b->pages,
              b->from, b->k, b->size, (char *)b->data);
}

template <int DIM> void build_bounds(const sl_kv_device_build *b) {
    switch (b->format) {
    case SL_BF16:
        launch_build_bounds<DIM, SL_BF16>(b);
        break;
    case SL_FP8:
        launch_build_bounds<DIM, SL_FP8>(b);
        break;
    case SL_INT8:
        launch_build_bounds<DIM, SL_INT8>(b);
        break;
    default:
        SL_CHECK(!"bf16, fp8 or int8");
    }
}

} // namespace

void sl_cuda_build_bounds(const sl_kv_device_build *b) {
    SL_WITH_HEAD_DIM(b->head_dim, build_bounds, b);
}

// Counts the bounds of built pages, and the keys of the newest page, because each step computes the bounds of this page.
void sl_cuda_account_bounds(const sl_attn_geom *geom, int row_bytes, int n_kv, sl_attn_stats *stats) {
    uint64_t n_built = (n_kv - 1) / SL_PAGE, n_newest = n_kv - n_built * SL_PAGE;
    stats->k_rows += n_newest * geom->n_kv_heads;
    stats->bytes += geom->n_kv_heads * (n_newest * row_bytes + n_built * PAGE_UNITS * 2 * geom->head_dim * sizeof(bf16));
    stats->features += geom->n_heads;
}
