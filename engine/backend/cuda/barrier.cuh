// engine/backend/cuda/barrier.cuh - barriers in shared memory (mbarrier), on which copies announce that they have landed.
//
// A phase ends when all expected threads have arrived and all expected bytes have landed. Phases alternate in parity; a fresh
// barrier's phase of parity 1 counts as ended.
#ifndef SLEIGH_CUDA_BARRIER_CUH
#define SLEIGH_CUDA_BARRIER_CUH

#include <stdint.h>

static __device__ __forceinline__ uint32_t shared_address(const void *p) {
    return (uint32_t)__cvta_generic_to_shared(p);
}

static __device__ __forceinline__ void barrier_init(uint64_t *bar, int n_arrivals) {
    asm volatile("mbarrier.init.shared.b64 [%0], %1;" ::"r"(shared_address(bar)), "r"(n_arrivals) : "memory");
}

// Copies and other threads, behind a __syncthreads, see the barriers that this thread has made. A fence.proxy.async would wait
// for memory too, a microsecond.
static __device__ __forceinline__ void barriers_made() {
#if __CUDA_ARCH__ >= 900
    asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
#endif
}

// N barriers of n_arrivals each, by the block's first WARPS warps: others have better to do. barriers_made and a __syncthreads
// come next. The instruction takes one address for a warp: where lanes make one each it runs again and again, so the warps
// share them.
template <int WARPS, int N> static __device__ __forceinline__ void barriers_make(uint64_t *bars, int n_arrivals) {
    int warp = threadIdx.x / 32;
    if (warp >= WARPS || threadIdx.x % 32 > 0) return;
#pragma unroll
    for (int i = 0; i < N; i += WARPS)
        if (i + warp < N) barrier_init(bars + i + warp, n_arrivals);
}

static __device__ __forceinline__ void barrier_arrive(uint64_t *bar) {
    asm volatile("{ .reg .b64 t; mbarrier.arrive.shared.b64 t, [%0]; }" ::"r"(shared_address(bar)) : "memory");
}

#if __CUDA_ARCH__ >= 900
static __device__ __forceinline__ void barrier_expect(uint64_t *bar, int n_bytes) { // and arrives
    asm volatile("{ .reg .b64 t; mbarrier.arrive.expect_tx.shared.b64 t, [%0], %1; }" ::"r"(shared_address(bar)), "r"(n_bytes)
                 : "memory");
}
#endif

#if __CUDA_ARCH__ >= 900
// Asks again until the phase of this parity has ended.
#define BARRIER_ASK(QUESTION, BAR, PARITY)                                                                                     \
    asm volatile("{\n"                                                                                                         \
                 ".reg .pred done;\n"                                                                                          \
                 "again:\n"                                                                                                    \
                 "mbarrier." QUESTION ".parity.shared.b64 done, [%0], %1;\n"                                                   \
                 "@done bra ended;\n"                                                                                          \
                 "bra again;\n"                                                                                                \
                 "ended:\n"                                                                                                    \
                 "}" ::"r"(shared_address(BAR)),                                                                               \
                 "r"(PARITY)                                                                                                   \
                 : "memory")

// barrier_wait without sleep. The assembler moves the first question (of barrier_wait too) up in front of arithmetic that
// precedes it: there the answer may still be no, and a warp that slept over it would not do its arithmetic.
static __device__ __forceinline__ void barrier_poll(uint64_t *bar, uint32_t parity) {
    BARRIER_ASK("test_wait", bar, parity);
}
#endif

// Whether the phase of this parity has ended.
static __device__ __forceinline__ bool barrier_ended(uint64_t *bar, uint32_t parity) {
    uint32_t ended;
    asm volatile("{ .reg .pred p; mbarrier.test_wait.parity.shared.b64 p, [%1], %2; selp.u32 %0, 1, 0, p; }"
                 : "=r"(ended)
                 : "r"(shared_address(bar)), "r"(parity)
                 : "memory");
    return ended;
}

// Until the phase of this parity has ended.
static __device__ __forceinline__ void barrier_wait(uint64_t *bar, uint32_t parity) {
#if __CUDA_ARCH__ >= 900
    BARRIER_ASK("try_wait", bar, parity);
#else
    while (!barrier_ended(bar, parity)) __nanosleep(20);
#endif
}

// A thread has read what it needs of a stage that a bulk copy will fill again. Without the fence its arrival may overtake its
// reads while they queue behind other warps' loads, and the copy then lands on what they have yet to read (16 x 32k, santa: one
// run in three had a row's score wrong).
static __device__ __forceinline__ void leave_stage(uint64_t *empty) {
#if __CUDA_ARCH__ >= 900
    asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
#endif
    barrier_arrive(empty);
}

// Stages in shared memory, taken in order again and again. Head: how a stage's barriers, and what it holds, are found.
template <typename Head> struct stage_ring {
    Head head;
    char *stages;
    int n_stages, stage_bytes;
    int stage, parity; // the next one, and which of its barriers' phases
    __device__ char *data() const { return stages + stage * stage_bytes; }
    __device__ void advance() {
        if (++stage == n_stages) stage = 0, parity ^= 1;
    }
};

#endif
