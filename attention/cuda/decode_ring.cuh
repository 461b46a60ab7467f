// attention/cuda/decode_ring.cuh - what the decode kernels share: their vocabulary, and the lookup of work items.
//
// Vocabulary of the decode kernels:
// | term          | meaning                                                                                             |
// |---------------|-----------------------------------------------------------------------------------------------------|
// | seq_head      | batch index * n_kv_heads + KV head: one KV head of one sequence                                     |
// | work item     | the part of one seq_head that one thread block takes at a time: a chunk of rows, a page or a tile   |
// | tile          | the rows that one step of a kernel handles; a ring stage holds one tile                             |
// | block         | 32 rows with one exponent reference; "thread block" is the CUDA block                               |
// | ring stage    | a part of a ring in shared memory, with barriers `full` and `empty` and a struct that describes it  |
// | tile_info     | the struct that describes the tile in a ring stage; stage_info in bernoulli.cu                      |
// | producer      | the warp that issues the copies of tiles into ring stages                                           |
// | consumer      | a warp that computes on full ring stages                                                            |
// | pool row      | a row's number in the layer's pool: (page * n_kv_heads + KV head) * 256 + row in the page           |
// | ticket        | a number that a thread block takes from a counter; it determines the thread block's next work items |
//
// Work items are numbered sequence by sequence, in a sequence chunk by chunk, in a chunk KV head by KV head. The first 1, 2 or
// 8 items of a thread block follow from blockIdx.x. The thread block takes tickets for the others. The lookup finds the
// sequence of an item. A kernel defines its items with a struct that has `int count(int n_kv)`: the items of one KV head of
// n_kv rows.
#ifndef SLEIGH_DECODE_RING_CUH
#define SLEIGH_DECODE_RING_CUH

#include "attention/attention_cuda.h"
#include "backend/cuda/bulk_copy.cuh"
#include "backend/cuda/device.cuh"

#include <math.h>

enum { GROUP_MAX = 8 }; // query heads of a KV head: the columns of an mma

static __host__ __device__ __forceinline__ int ceil_div(int a, int b) {
    return (a + b - 1) / b;
}

// Whether the tile of rows [from, from + n) can hold a row that the kernel before attention writes (SL_CUDA_RUN_MOST). n_kv: rows
// of the sequence.
static __device__ __forceinline__ bool has_new_rows(int from, int n, int n_kv) {
    return from + n + SL_CUDA_RUN_MOST > n_kv;
}

// ---- lookup of work items ----

// A view of 32 consecutive sequences, one for each lane. The view only moves forward.
struct seq_lookup {
    int first_seq;  // sequence of lane 0
    int first_item; // first item of first_seq
    int n_kv, end;  // of the lane's sequence; end: the item after its last one
    const int32_t *pages;
};

// Work items of one KV head of the lane's sequence. A kernel where neighbours share items overloads this function.
template <typename Items> static __device__ __forceinline__ int items_of_lane(const Items &items, const seq_lookup &lookup) {
    return items.count(lookup.n_kv);
}

template <typename Items>
static __device__ void lookup_load(seq_lookup *lookup, const sl_row *rows, int n_seqs, int n_kv_heads, Items items,
                                   int first_seq, int first_item) {
    int lane = threadIdx.x % 32, seq = first_seq + lane;
    *lookup = {.first_seq = first_seq, .first_item = first_item};
    if (seq < n_seqs) {
        int4 row = *(const int4 *)(rows + seq); // position, sequence, pages: an sl_row in one load
        lookup->n_kv = row.x + 1;
        lookup->pages = (const int32_t *)((uint64_t)(uint32_t)row.w << 32 | (uint32_t)row.z);
    }
    lookup->end = first_item + sl_scan_lanes(items_of_lane(items, *lookup) * n_kv_heads, lane);
}

struct item_place {
    int seq;   // -1: the item does not exist
    int local; // number of the item in its sequence: chunk * n_kv_heads + KV head (IS_OFFLOADED: plan_tile)
    int n_kv;
    const int32_t *pages;
};

// The place of an item of lane i's sequence.
static __device__ item_place lookup_place(const seq_lookup *lookup, int i, int item) {
    int before = __shfl_sync(~0u, lookup->end, max(i - 1, 0));
    return {.seq = lookup->first_seq + i,
            .local = item - (i ? before : lookup->first_item),
            .n_kv = __shfl_sync(~0u, lookup->n_kv, i),
            .pages = (const int32_t *)__shfl_sync(~0u, (unsigned long long)lookup->pages, i)};
}

// Finds one item for all lanes of the warp. Moves the lookup forward to the sequence of the item.
template <typename Items>
static __device__ item_place lookup_find(seq_lookup *lookup, const sl_row *rows, int n_seqs, int n_kv_heads, Items items,
                                         int item) {
    for (;;) {
        int end = __shfl_sync(~0u, lookup->end, 31);
        if (item < end) return lookup_place(lookup, __popc(__ballot_sync(~0u, lookup->end <= item)), item);
        if (lookup->first_seq + 32 >= n_seqs) return {.seq = -1};
        lookup_load(lookup, rows, n_seqs, n_kv_heads, items, lookup->first_seq + 32, end);
    }
}

// Finds an item for each lane. No lane may look up an item that precedes an item of an earlier call.
template <typename Items>
static __device__ item_place lookup_find_each(seq_lookup *lookup, const sl_row *rows, int n_seqs, int n_kv_heads, Items items,
                                              int item) {
    item_place place = {.seq = -1};
    for (;;) {
        int all = __shfl_sync(~0u, lookup->end, 31), i = 0;
        for (int step = 16; step > 0; step /= 2) // i = number of lanes whose `end` is at most `item`
            if (__shfl_sync(~0u, lookup->end, i + step - 1) <= item) i += step;
        item_place found = lookup_place(lookup, i, item);
        if (item >= lookup->first_item && item < all) place = found;
        if (lookup->first_seq + 32 >= n_seqs || !__any_sync(~0u, item >= all)) return place;
        lookup_load(lookup, rows, n_seqs, n_kv_heads, items, lookup->first_seq + 32, all);
    }
}

#endif
