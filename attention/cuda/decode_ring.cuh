// attention/cuda/decode_ring.cuh - what decode kernels share on CUDA: how blocks share the work of a ragged batch, and a ring
// of stages in shared memory that copies fill ahead of its consumers.
//
// Units of work are chunks of one KV head of one sequence, numbered sequence by sequence, chunk by chunk, head by head. A
// block's first one or two units follow from its own number, the others are handed out in order as blocks get to them.
#ifndef SLEIGH_DECODE_RING_CUH
#define SLEIGH_DECODE_RING_CUH

#include "attention/attention_cuda.h"
#include "engine/backend/cuda/barrier.cuh"
#include "engine/backend/cuda/device.cuh"

// ---- copies to shared memory ----

#if __CUDA_ARCH__ >= 900
enum { FULL_ARRIVALS = 1 };
static __device__ __forceinline__ void copy_bulk(uint32_t to, const void *from, int bytes, uint64_t *full) {
    asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(to), "l"(from),
                 "r"(bytes), "r"(shared_address(full))
                 : "memory");
}

// policy: sl_l2_policy's.
static __device__ __forceinline__ void copy_bulk(uint32_t to, const void *from, int bytes, uint64_t *full, uint64_t policy) {
    asm volatile(
        "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes.L2::cache_hint [%0], [%1], %2, [%3], %4;" ::"r"(to),
        "l"(from), "r"(bytes), "r"(shared_address(full)), "l"(policy)
        : "memory");
}
#else
enum { FULL_ARRIVALS = 33 };
static __device__ __forceinline__ void copy_warp(uint32_t to, const void *from, int bytes) {
    for (int at = threadIdx.x % 32 * 16; at < bytes; at += 32 * 16)
        asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(to + at), "l"((const char *)from + at) : "memory");
}
#endif

// ---- units ----

static __host__ __device__ __forceinline__ int ceil_div(int a, int b) {
    return (a + b - 1) / b;
}

// 32 sequences at a time, a lane each.
struct window {
    int first_seq;  // of lane 0
    int first_unit; // of first_seq
    int n_kv, end;  // of the lane's sequence; end: the unit after its last
    const int32_t *pages;
};

// units_of(n_kv): units of a KV head of n_kv rows.
template <typename Units>
static __device__ void window_load(window *w, const sl_row *rows, int n_seqs, int n_kv_heads, Units units_of, int first_seq,
                                   int first_unit) {
    int lane = threadIdx.x % 32, seq = first_seq + lane;
    *w = {.first_seq = first_seq, .first_unit = first_unit};
    if (seq < n_seqs) {
        int4 row = *(const int4 *)(rows + seq); // position, sequence, pages
        w->n_kv = row.x + 1;
        w->pages = (const int32_t *)((uint64_t)(uint32_t)row.w << 32 | (uint32_t)row.z);
    }
    w->end = first_unit + sl_scan_lanes(units_of(w->n_kv) * n_kv_heads, lane);
}

// Where a unit is.
struct unit_place {
    int seq, local; // -1: there is no such unit; the unit's number in its sequence
    int n_kv;
    const int32_t *pages;
};

// Of lane i's sequence.
static __device__ unit_place window_place(const window *w, int i, int unit) {
    int before = __shfl_sync(~0u, w->end, max(i - 1, 0));
    return {.seq = w->first_seq + i,
            .local = unit - (i ? before : w->first_unit),
            .n_kv = __shfl_sync(~0u, w->n_kv, i),
            .pages = (const int32_t *)__shfl_sync(~0u, (unsigned long long)w->pages, i)};
}

// The warp's unit, moving the window on to it.
template <typename Units>
static __device__ unit_place window_find(window *w, const sl_row *rows, int n_seqs, int n_kv_heads, Units units_of, int unit) {
    for (;;) {
        int end = __shfl_sync(~0u, w->end, 31);
        if (unit < end) return window_place(w, __popc(__ballot_sync(~0u, w->end <= unit)), unit);
        if (w->first_seq + 32 >= n_seqs) return {.seq = -1};
        window_load(w, rows, n_seqs, n_kv_heads, units_of, w->first_seq + 32, end);
    }
}

// Each lane's own unit; no lane's comes before a unit that was looked up earlier.
template <typename Units>
static __device__ unit_place window_find_each(window *w, const sl_row *rows, int n_seqs, int n_kv_heads, Units units_of,
                                              int unit) {
    unit_place place = {.seq = -1};
    for (;;) {
        int all = __shfl_sync(~0u, w->end, 31), i = 0;
        for (int step = 16; step > 0; step /= 2) // ends up to `unit`
            if (__shfl_sync(~0u, w->end, i + step - 1) <= unit) i += step;
        unit_place own = window_place(w, i, unit);
        if (unit >= w->first_unit && unit < all) place = own;
        if (w->first_seq + 32 >= n_seqs || !__any_sync(~0u, unit >= all)) return place;
        window_load(w, rows, n_seqs, n_kv_heads, units_of, w->first_seq + 32, all);
    }
}

#endif
