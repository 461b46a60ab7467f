// attention/extras/hot_order.h - which way of a set of the cache of hot rows was used least recently
// (attention/cuda/hot_rows.cuh).
//
// The order of a set has 4 bits for each of its 8 ways: bits 4 i .. 4 i + 3 are the way that was used i-th last, XOR i. So 0 is
// an order: that of a set that was never used.
#ifndef SLEIGH_HOT_ORDER_H
#define SLEIGH_HOT_ORDER_H

#include "kv/kv_offload.h"

#ifdef __CUDACC__
#define SL_HOT_FN static __host__ __device__ __forceinline__
#else
#define SL_HOT_FN static inline
#endif

enum { SL_HOT_WAYS = SL_KV_HOT_WAYS };
#define SL_HOT_NEVER_USED 0x76543210u

SL_HOT_FN int sl_hot_oldest(uint32_t order) {
    return (int)((order ^ SL_HOT_NEVER_USED) >> 4 * (SL_HOT_WAYS - 1));
}

// The order after a use of `way`.
SL_HOT_FN uint32_t sl_hot_used(uint32_t order, int way) {
    uint32_t ways = order ^ SL_HOT_NEVER_USED, newer = 0, at = 0;
    for (at = 0; (ways >> 4 * at & 15) != (uint32_t)way; at++) newer |= ways & 15u << 4 * at;
    uint32_t older = at + 1 < SL_HOT_WAYS ? ways >> 4 * (at + 1) << 4 * (at + 1) : 0;
    return (older | newer << 4 | (uint32_t)way) ^ SL_HOT_NEVER_USED;
}

#endif
