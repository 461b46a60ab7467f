// attention/cuda/prefill/query_blocks.cu - see query_blocks.cuh.
#include "attention/cuda/prefill/query_blocks.cuh"
#include "backend/cuda/device.cuh"

#define CCCL_DISABLE_NVTX // otherwise the library would define the global names of NVTX
#include <cub/device/device_radix_sort.cuh>

enum { THREADS = 256, WARPS = THREADS / 32 };

typedef struct count_params {
    query_blocks blocks;
    uint64_t *items;                   // [n_query_blocks * n_heads], in order of falling query blocks
    sl_attn_cuda_prefill_stats *stats; // [n_heads]; NULL: not wanted
    int first, n_query_blocks;         // query blocks [first, first + n_query_blocks)
    int n_heads, section_heads;
} count_params;

// Makes the items. A warp per item.
static __global__ void __launch_bounds__(THREADS) count_blocks_kernel(const count_params p) {
    int i = blockIdx.x * WARPS + threadIdx.x / 32, lane = threadIdx.x % 32;
    sl_start_next();
    sl_wait_previous();
    if (i >= p.n_query_blocks * p.n_heads) return;
    int head = i % p.n_heads, block = p.n_query_blocks - 1 - i / p.n_heads, length = 0;
    const uint64_t *row = mask_row(p.blocks, head, p.first + block);
    for (int w = lane; w < p.blocks.n_words; w += 32) length += __popcll(row[w]);
    length = __reduce_add_sync(~0u, length);
    if (lane) return;
    uint64_t later = (p.n_heads - 1) / p.section_heads - head / p.section_heads;
    p.items[i] = later << 48 | (uint64_t)length << 32 | (uint64_t)head << 16 | block;
    if (p.stats) atomicAdd(&p.stats[head].visited, (unsigned long long)length);
}

static int n_query_blocks(int first, int n_tokens) {
    return (first + n_tokens - 1) / SL_MASK_BLOCK - first / SL_MASK_BLOCK + 1;
}

static size_t aligned(size_t n) {
    return (n + SL_CUDA_ALIGNMENT - 1) / SL_CUDA_ALIGNMENT * SL_CUDA_ALIGNMENT;
}

// Sorts by bits 32 to 63, downwards. The sort keeps the order of equal numbers. temporary NULL: only computes *bytes.
static cudaError_t sort(void *temporary, size_t *bytes, const uint64_t *from, uint64_t *to, int n, cudaStream_t stream) {
    return cub::DeviceRadixSort::SortKeysDescending(temporary, *bytes, from, to, n, 32, 64, stream);
}

size_t sl_cuda_query_blocks_workspace(const sl_attn_geom *geom, int n_tokens) {
    size_t n = (size_t)n_query_blocks(SL_MASK_BLOCK - 1, n_tokens) * geom->n_heads, bytes = 0;
    sort(NULL, &bytes, NULL, NULL, (int)n, 0);
    return 2 * aligned(n * sizeof(uint64_t)) + aligned(bytes);
}

query_blocks sl_cuda_order_query_blocks(const sl_attn_cuda_prefill_args *args, int section_heads) {
    const sl_prefill_mask *m = args->mask;
    int n_heads = args->geom->n_heads, n_blocks = n_query_blocks(args->first, args->n_tokens), n = n_blocks * n_heads;
    size_t size = aligned(n * sizeof(uint64_t)), bytes = 0;
    uint64_t *unsorted = (uint64_t *)args->ws, *items = (uint64_t *)((char *)args->ws + size);
    SL_CHECK(n_heads <= SL_ITEM_MOST && (args->first + args->n_tokens) / SL_MASK_BLOCK < SL_ITEM_MOST);
    query_blocks blocks = {.items = items, .n_items = n, .bits = m->bits, .first = m->first, .n = m->n, .n_words = m->n_words};
    count_params p = {.blocks = blocks,
                      .items = unsorted,
                      .stats = args->stats,
                      .first = args->first / SL_MASK_BLOCK,
                      .n_query_blocks = n_blocks,
                      .n_heads = n_heads,
                      .section_heads = section_heads};
    SL_CHECK(p.first >= m->first && p.first + n_blocks <= m->first + m->n);
    sl_launch(count_blocks_kernel, dim3((n + WARPS - 1) / WARPS), dim3(THREADS), 0, args->stream, p);
    sort(NULL, &bytes, unsorted, items, n, args->stream);
    sort((char *)args->ws + 2 * size, &bytes, unsorted, items, n, args->stream); // a failure stays CUDA's last error
    return blocks;
}
