// attention/cuda/prefill/query_blocks.cuh - the query blocks of a call of prefill with a mask
// (attention/prefill/prefill_mask.h), in the order in which the kernels take them.
//
// An item is one query block of one head. The heads are cut into sections, one after the other. In a section, items are in
// order of falling length, because thread blocks that get the longest items last would end late. Items of equal length are in
// order of falling query blocks, and the heads of a block are neighbours, so they find their keys in the L2 cache.
//
// | bits of an item | contents                                                         |
// |-----------------|------------------------------------------------------------------|
// | 48 .. 63        | sections after that of the head                                  |
// | 32 .. 47        | length: key blocks that the query block visits, at least 1       |
// | 16 .. 31        | query head                                                       |
// | 0 .. 15         | query block, counted from the block of the call's first token    |
#ifndef SLEIGH_QUERY_BLOCKS_CUH
#define SLEIGH_QUERY_BLOCKS_CUH

#include "attention/attention_cuda.h"
#include "attention/prefill/prefill_mask.h"

enum { SL_ITEM_MOST = 0xffff }; // of each field

typedef struct query_blocks {
    const uint64_t *items; // [n_items]
    int n_items;
    const uint64_t *bits; // of the mask: [n_heads][n][n_words], in device memory
    int first, n, n_words;
} query_blocks;

// Sorts the query blocks of a call with a mask into args->ws, on args->stream. Adds their lengths to args->stats.
query_blocks sl_cuda_order_query_blocks(const sl_attn_cuda_prefill_args *args, int section_heads);

#ifdef __CUDACC__

static __device__ __forceinline__ int item_length(uint64_t item) {
    return (int)(item >> 32 & 0xffff);
}
static __device__ __forceinline__ int item_head(uint64_t item) {
    return (int)(item >> 16 & 0xffff);
}
static __device__ __forceinline__ int item_block(uint64_t item) {
    return (int)(item & 0xffff);
}

static __device__ __forceinline__ const uint64_t *mask_row(const query_blocks &b, int head, int query_block) { // [n_words]
    return b.bits + ((size_t)head * b.n + (query_block - b.first)) * b.n_words;
}

#endif // __CUDACC__
#endif
