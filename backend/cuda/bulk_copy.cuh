// backend/cuda/bulk_copy.cuh - copies from device memory to ring stages in shared memory: with the bulk copy engine of sm_90,
// or, before sm_90, by a warp. A barrier (barrier.cuh) says when the copies have ended.
#ifndef SLEIGH_CUDA_BULK_COPY_CUH
#define SLEIGH_CUDA_BULK_COPY_CUH

#include "backend/cuda/barrier.cuh"

#if __CUDA_ARCH__ >= 900
// Arrivals that end a phase of barrier `full`: one lane of the producer arrives and announces the bytes.
enum { FULL_ARRIVALS = 1 };

static __device__ __forceinline__ void copy_bulk(uint32_t to, const void *from, int bytes, uint64_t *full) {
    asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(to), "l"(from),
                 "r"(bytes), "r"(shared_address(full))
                 : "memory");
}

// policy: from sl_l2_policy
static __device__ __forceinline__ void copy_bulk(uint32_t to, const void *from, int bytes, uint64_t *full, uint64_t policy) {
    asm volatile(
        "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes.L2::cache_hint [%0], [%1], %2, [%3], %4;" ::"r"(to),
        "l"(from), "r"(bytes), "r"(shared_address(full)), "l"(policy)
        : "memory");
}
#else
// Before sm_90, each lane arrives when its copies have ended. One lane of the producer arrives once
// more, after it has written what describes the stage.
enum { FULL_ARRIVALS = 33 };

// This lane arrives when its copies have ended.
static __device__ __forceinline__ void arrive_after_copies(uint64_t *full) {
    asm volatile("cp.async.mbarrier.arrive.noinc.shared.b64 [%0];" ::"r"(shared_address(full)) : "memory");
}

// All lanes of the warp copy, 16 bytes each.
static __device__ __forceinline__ void copy_warp(uint32_t to, const void *from, int bytes) {
    for (int at = threadIdx.x % 32 * 16; at < bytes; at += 32 * 16)
        asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(to + at), "l"((const char *)from + at) : "memory");
}
#endif

#endif
