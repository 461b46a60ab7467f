// backend/cuda/barrier.cuh - barriers in shared memory (PTX mbarrier). Bulk copies and threads signal on a barrier that
// they have ended their work.
//
// A barrier counts arrivals of threads and bytes of copies. A phase ends when all expected threads have arrived and all
// expected bytes have landed; then the next phase begins. The parity of phases alternates, 0 first. A new barrier behaves as if
// a phase of parity 1 had ended. So the first wait for an empty stage (parity 1) does not block.
#ifndef SLEIGH_CUDA_BARRIER_CUH
#define SLEIGH_CUDA_BARRIER_CUH

#include <stdint.h>

// The 32-bit address within shared memory that PTX instructions take.
static __device__ __forceinline__ uint32_t shared_address(const void *p) {
    return (uint32_t)__cvta_generic_to_shared(p);
}

// Makes a barrier whose phases need n_arrivals arrivals of threads.
static __device__ __forceinline__ void barrier_init(uint64_t *bar, int n_arrivals) {
    asm volatile("mbarrier.init.shared.b64 [%0], %1;" ::"r"(shared_address(bar)), "r"(n_arrivals) : "memory");
}

// Makes this thread's barrier_init calls visible to copies, and to other threads after a __syncthreads. A fence.proxy.async
// would have the same effect, but it takes about 1 us, because it waits for memory.
static __device__ __forceinline__ void barriers_made() {
#if __CUDA_ARCH__ >= 900
    asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
#endif
}

// Makes N barriers of n_arrivals arrivals each. Lane 0 of each of the first WARPS warps makes a part of the barriers: the
// instruction takes one address per warp, so lanes of one warp would run it one after the other. Call barriers_made and then
// __syncthreads before the first use.
template <int WARPS, int N> static __device__ __forceinline__ void barriers_make(uint64_t *bars, int n_arrivals) {
    int warp = threadIdx.x / 32;
    if (warp >= WARPS || threadIdx.x % 32 > 0) return;
#pragma unroll
    for (int i = 0; i < N; i += WARPS)
        if (i + warp < N) barrier_init(bars + i + warp, n_arrivals);
}

// This thread arrives. Earlier reads and writes of shared memory by this thread happen before the end of the phase.
static __device__ __forceinline__ void barrier_arrive(uint64_t *bar) {
    asm volatile("{ .reg .b64 t; mbarrier.arrive.shared.b64 t, [%0]; }" ::"r"(shared_address(bar)) : "memory");
}

#if __CUDA_ARCH__ >= 900
// Returns true for one lane of the warp. All lanes call it together. The assembler knows that the lane is alone. So it issues
// bulk copies under this condition one after the other, and without it in a loop that looks for active lanes.
static __device__ __forceinline__ bool elect_lane() {
    uint32_t elected;
    asm volatile("{ .reg .pred p; elect.sync _|p, 0xffffffff; selp.u32 %0, 1, 0, p; }" : "=r"(elected));
    return elected;
}

// This thread arrives, and the phase also waits for n_bytes of bulk copies.
static __device__ __forceinline__ void barrier_expect(uint64_t *bar, int n_bytes) {
    asm volatile("{ .reg .b64 t; mbarrier.arrive.expect_tx.shared.b64 t, [%0], %1; }" ::"r"(shared_address(bar)), "r"(n_bytes)
                 : "memory");
}
#endif

#if __CUDA_ARCH__ >= 900
// A loop around one of the two test instructions (QUESTION), until the phase of this parity has ended.
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

// Waits like barrier_wait, but never sleeps. The assembler moves the first test to a place before arithmetic that precedes the
// test in the source. The test may fail there. Then barrier_wait makes the warp sleep, and barrier_poll lets the warp compute.
static __device__ __forceinline__ void barrier_poll(uint64_t *bar, uint32_t parity) {
    BARRIER_ASK("test_wait", bar, parity);
}
#endif

// Returns true when the phase of this parity has ended.
static __device__ __forceinline__ bool barrier_ended(uint64_t *bar, uint32_t parity) {
    uint32_t ended;
    asm volatile("{ .reg .pred p; mbarrier.test_wait.parity.shared.b64 p, [%1], %2; selp.u32 %0, 1, 0, p; }"
                 : "=r"(ended)
                 : "r"(shared_address(bar)), "r"(parity)
                 : "memory");
    return ended;
}

// Waits until the phase of this parity has ended. The hardware may suspend the warp for a short time (try_wait).
static __device__ __forceinline__ void barrier_wait(uint64_t *bar, uint32_t parity) {
#if __CUDA_ARCH__ >= 900
    BARRIER_ASK("try_wait", bar, parity);
#else
    while (!barrier_ended(bar, parity)) __nanosleep(20);
#endif
}

// This thread has read a stage, and a bulk copy may fill the stage again. The fence orders the reads before the copy. Without
// the fence the arrival may overtake reads that wait for other warps' loads. Then the copy overwrites data before they are read
// (santa, 16 sequences of 32k tokens: one run in three had a wrong score).
static __device__ __forceinline__ void leave_stage(uint64_t *empty) {
#if __CUDA_ARCH__ >= 900
    asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
#endif
    barrier_arrive(empty);
}

// A ring of stages in shared memory. Producer and consumer warps each keep their own position in the ring. Head holds the
// addresses of the barriers and of the description of each stage.
template <typename Head> struct stage_ring {
    Head head;
    char *stages;
    int n_stages, stage_bytes;
    int stage, parity; // the next stage, and the parity of the phase to wait for
    __device__ char *data() const { return stages + stage * stage_bytes; }
    __device__ void advance() {
        if (++stage == n_stages) stage = 0, parity ^= 1;
    }
};

#endif
