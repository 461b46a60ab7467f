// attention/cuda/hot_rows.cu - takes the rows that a step has fetched into the cache of hot rows (hot_rows.cuh).
#include "attention/cuda/head_dim.cuh"
#include "attention/cuda/hot_rows.cuh"

namespace {

enum {
    THREADS = 256,
    BLOCKS = 32,                     // thread blocks of a KV head
    WORKERS = BLOCKS * THREADS / 32, // warps of a KV head. Worker w owns the sets w, w + WORKERS, ..
    AHEAD = 8,                       // loads of a list in flight
};

// Takes one row, which all lanes know: a row of the cache becomes the most recent one of its set; another row replaces the
// least recent one. All lanes of a warp call it.
template <int DIM> __device__ void take_row(const sl_cuda_hot_lists &p, int row, const bf16 *from, int lane) {
    const sl_kv_hot_rows &hot = p.hot;
    size_t set = hot_set_of(hot, p.n_kv_heads, row);
    uint64_t *tags = hot.tags + set * SL_HOT_WAYS, tag = hot_tag_of(hot, p.n_kv_heads, row);
    uint64_t own = lane < SL_HOT_WAYS ? __ldcg(tags + lane) : 0;
    uint32_t order = __ldcg(hot.order + set), found = __ballot_sync(~0u, own == tag);
    int way = found ? __ffs(found) - 1 : sl_hot_oldest(order);
    if (!found) {
        if (lane < DIM / 4) __stcg((uint4 *)hot_row<DIM>(hot, set, way) + lane, __ldcg((const uint4 *)from + lane));
        if (lane == 0) __stcg((unsigned long long *)tags + way, (unsigned long long)tag);
    }
    if (lane == 0) __stcg(hot.order + set, sl_hot_used(order, way));
    __syncwarp(); // the next row can be of the same set
}

// Grid: (BLOCKS, KV heads). A warp reads the lists of all query heads of its KV head, 32 entries at a time, and takes the rows
// of its sets in the order of the lists. The next launch of the draws clears the lists.
// Bytes: 4 per entry of a list for each warp that reads it (from the L2 cache); 64 per row; 8 head_dim per row that is not in
// the cache.
template <int DIM> __global__ void __launch_bounds__(THREADS) keep_hot_kernel(const __grid_constant__ sl_cuda_hot_lists p) {
    sl_start_next();
    sl_wait_previous();
    int lane = threadIdx.x % 32, worker = blockIdx.x * (THREADS / 32) + threadIdx.x / 32, kv_head = blockIdx.y;
    int n_own = p.group * p.n_lists * p.places; // entries of the KV head in one sequence
    for (int seq = 0; seq < p.n_seqs; seq++) {
        size_t first = (size_t)(seq * p.n_kv_heads + kv_head) * n_own;
        for (int at = 0; at < n_own; at += 32 * AHEAD) { // n_own is a multiple of 32
            int row[AHEAD];
#pragma unroll
            for (int j = 0; j < AHEAD; j++)
                row[j] = at + 32 * j < n_own ? __ldcg(p.listed + first + at + 32 * j + lane) - 1 : -1;
#pragma unroll
            for (int j = 0; j < AHEAD; j++) {
                bool owns = row[j] >= 0 && (int)(hot_set_of(p.hot, p.n_kv_heads, row[j]) % WORKERS) == worker;
                for (uint32_t left = __ballot_sync(~0u, owns); left; left &= left - 1) {
                    int i = __ffs(left) - 1;
                    take_row<DIM>(p, __shfl_sync(~0u, row[j], i), p.fetched + (first + at + 32 * j + i) * 2 * DIM, lane);
                }
            }
        }
    }
}

template <int DIM> void launch(const sl_cuda_hot_lists *p, cudaStream_t stream) {
    sl_launch(keep_hot_kernel<DIM>, dim3(BLOCKS, p->n_kv_heads), dim3(THREADS), 0, stream, *p);
}

} // namespace

void sl_cuda_keep_hot_rows(const sl_cuda_hot_lists *lists, int head_dim, cudaStream_t stream) {
    SL_CHECK(lists->hot.n_sets > 0 && lists->places % 32 == 0);
    SL_WITH_HEAD_DIM(head_dim, launch, lists, stream);
}
