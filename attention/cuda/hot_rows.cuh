// attention/cuda/hot_rows.cuh - the cache of hot rows: copies of rows of the host in the GPU's memory (sl_kv_hot_rows).
//
// Heavy rows are drawn step after step. The cache of a layer has sets of 8 ways for each KV head. A row can be in one set,
// which follows from its page and its place there. A tag holds the version of the page, so copies of a page that was written
// again are not found. During a draw kernel nothing changes: its threads look tags up, fetch rows, and list them with their
// places. After it, keep_hot_kernel (hot_rows.cu) takes the listed rows in a fixed order. So the cache does not depend on the
// order in which thread blocks run, and it changes no bit of an output, because it holds copies only.
#ifndef SLEIGH_HOT_ROWS_CUH
#define SLEIGH_HOT_ROWS_CUH

#include "attention/attention_cuda.h"
#include "attention/extras/hot_order.h"
#include "backend/cuda/device.cuh"

namespace {

// A row in all pages of its KV head. row: a pool row.
__device__ uint32_t hot_place_of(int n_kv_heads, int row) {
    return (uint32_t)(row / SL_PAGE / n_kv_heads) * SL_PAGE + row % SL_PAGE;
}

// The set of a row, among all sets of the layer.
__device__ size_t hot_set_of(const sl_kv_hot_rows &hot, int n_kv_heads, int row) {
    uint32_t x = hot_place_of(n_kv_heads, row) * 0x9e3779b1u;
    x = (x ^ x >> 16) * 0x85ebca6bu;
    x ^= x >> 13;
    return (size_t)(row / SL_PAGE % n_kv_heads) * hot.n_sets + __umulhi(x, hot.n_sets);
}

// The tag of a row. It is not 0, because a version is not 0.
__device__ uint64_t hot_tag_of(const sl_kv_hot_rows &hot, int n_kv_heads, int row) {
    return (uint64_t)__ldcg(hot.versions + row / SL_PAGE / n_kv_heads) << 32 | hot_place_of(n_kv_heads, row);
}

// The way of a set that has the tag; -1: none.
__device__ int hot_way(const sl_kv_hot_rows &hot, size_t set, uint64_t tag) {
    const ulonglong2 *tags = (const ulonglong2 *)(hot.tags + set * SL_HOT_WAYS);
    ulonglong2 x[SL_HOT_WAYS / 2];
    int way = -1;
#pragma unroll
    for (int i = 0; i < SL_HOT_WAYS / 2; i++) x[i] = __ldcg(tags + i);
#pragma unroll
    for (int i = 0; i < SL_HOT_WAYS / 2; i++) way = x[i].x == tag ? 2 * i : x[i].y == tag ? 2 * i + 1 : way;
    return way;
}

// K and V of a way.
template <int DIM> __device__ bf16 *hot_row(const sl_kv_hot_rows &hot, size_t set, int way) {
    return hot.rows + (set * SL_HOT_WAYS + way) * 2 * DIM;
}

} // namespace

#endif
