// backend/cuda/device.cuh - functions that all CUDA sources share: the launch of a kernel (host), and device helpers.
//
// The helpers wrap PTX instructions that CUDA C++ has no function for, or whose function waits longer than necessary. Sections:
// launch, order of kernels, counters, a warp, matrix instructions, L2 cache.
//
// Launchers return nothing. When a launch fails, the end of the step reads CUDA's last error (sl_cuda_finish). So each launch
// is checked exactly once.
#ifndef SLEIGH_CUDA_DEVICE_CUH
#define SLEIGH_CUDA_DEVICE_CUH

#include "backend/cuda/cuda_error.h"
#include "base/bf16.h"

#include <atomic>
#include <cuda_runtime.h>
#include <stddef.h>
#include <stdint.h>

// ---- launch (host) ----

// The current device of this thread, which launches go to. The caller has set it (sl_cuda_use).
static inline int sl_device() {
    int device = 0;
    cudaGetDevice(&device);
    return device;
}

// An attribute of the current device.
static inline int sl_device_get(enum cudaDeviceAttr what) {
    int x = 0;
    cudaDeviceGetAttribute(&x, what, sl_device());
    return x;
}

static inline int sl_multiprocessors() {
    return sl_device_get(cudaDevAttrMultiProcessorCount);
}

static inline size_t sl_l2_bytes() {
    return (size_t)sl_device_get(cudaDevAttrL2CacheSize);
}

// Returns true when this kernel may start before the previous kernel of the stream has ended. Only code that was compiled for
// sm_90 or later may start early. In code for older GPUs sl_wait_previous is empty, and the driver can translate such code for
// a newer GPU. The result is the same for all kernels of a file. Devices differ, so the result is cached for each device.
template <typename... Params> static bool sl_starts_early(void (*kernel)(Params...)) {
    static std::atomic<uint64_t> known{0}, early{0}; // a bit for each device
    const int device = sl_device();
    const uint64_t bit = device < 64 ? (uint64_t)1 << device : 0;
    if (known & bit) return early & bit;
    cudaFuncAttributes attributes;
    const bool is_early = cudaFuncGetAttributes(&attributes, kernel) == cudaSuccess && attributes.ptxVersion >= 90;
    if (is_early) early |= bit;
    known |= bit;
    return is_early;
}

// Launches kernel<<<grid, block, shared, stream>>> with programmatic dependent launch: the kernel may start before the previous
// kernel of the stream has ended.
// - Every kernel of a step is launched with sl_launch, and calls sl_wait_previous() and sl_start_next(). So, when the previous
//   kernel has ended, all earlier kernels have ended.
// - Before sl_wait_previous() a kernel reads only memory that no kernel of the step writes (weights), and writes no memory.
// - All kernels request the same split of L1 cache and shared memory. A multiprocessor must be idle before it changes the split
//   (RMSNorm with the default split: 2 to 15 us more per launch).
// - Exception: a kernel may read its input before sl_wait_previous() when a counter shows that the previous kernel has written
//   the input (take_all.cuh). Then the previous kernel calls sl_start_next() after its sl_wait_previous(). Otherwise the
//   counter may still have the value of an earlier step. The waiting kernel still calls sl_wait_previous() before it ends.
// - Exception: with 4-bit keys, pick_rows_kernel of vattention.cu clears memory before it waits. The previous kernel lets it
//   start only after its own sl_wait_previous(), so no earlier kernel reads this memory any more.
// - Exception: kernels of the saap methods read what existed before their step (bucket_scores.cu, "Order of the kernels").
template <typename... Params, typename... Args>
static void sl_launch(void (*kernel)(Params...), dim3 grid, dim3 block, size_t shared, cudaStream_t stream, Args... args) {
    cudaFuncSetAttribute(kernel, cudaFuncAttributePreferredSharedMemoryCarveout, cudaSharedmemCarveoutMaxShared);
    if (shared > 32 << 10) // above 48 KB, the static shared memory included, a kernel needs permission
        cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, (int)shared);
    cudaLaunchAttribute attribute = {};
    attribute.id = cudaLaunchAttributeProgrammaticStreamSerialization;
    attribute.val.programmaticStreamSerializationAllowed = 1;
    cudaLaunchConfig_t config = {};
    config.gridDim = grid;
    config.blockDim = block;
    config.dynamicSmemBytes = shared;
    config.stream = stream;
    config.attrs = &attribute;
    config.numAttrs = sl_starts_early(kernel);
    cudaLaunchKernelEx(&config, kernel, static_cast<Params>(args)...); // a failure stays CUDA's last error
}

// ---- order of kernels ----

// Waits until all earlier kernels of the stream have ended, and their writes are visible to this thread.
static __device__ __forceinline__ void sl_wait_previous() {
#if __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}

// Allows the next kernel of the stream to start. The thread blocks of the next kernel run together with ours if shared memory
// and registers have room for both. Otherwise they start when ours end. An early call hides the launch latency of the next
// kernel.
static __device__ __forceinline__ void sl_start_next() {
#if __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.launch_dependents;");
#endif
}

// ---- counters in device memory ----

// Acquire-release add: earlier writes of this thread block (before a __syncthreads) are visible to the next adder, and earlier
// adders' writes are visible to this thread. Returns the value before the addition.
static __device__ __forceinline__ int sl_add_ordered(int *to, int x) {
    int before;
    asm volatile("atom.acq_rel.gpu.global.add.s32 %0, [%1], %2;" : "=r"(before) : "l"(to), "r"(x) : "memory");
    return before;
}

// Adds 1 and returns the value before, without any memory order. At most one thread of a warp calls this function. The thread
// does not wait for the value before it uses the value. With atomicAdd and atom.add the thread would wait at the call, because
// the compiler combines the lanes of the warp.
static __device__ __forceinline__ int sl_take_number(int *from) {
    int before;
    asm volatile("atom.relaxed.gpu.global.inc.u32 %0, [%1], 0x7fffffff;" : "=r"(before) : "l"(from) : "memory");
    return before;
}

// ---- a warp ----

// All 32 lanes call these functions. The order of additions is fixed: steps of 1, 2, 4, 8, 16 lanes for the scan, and of 16, 8,
// 4, 2, 1 lanes for the sum. sl_scan_lanes: the sum over lanes 0 to `lane`.
template <typename T> static __device__ __forceinline__ T sl_scan_lanes(T x, int lane) {
    for (int step = 1; step < 32; step *= 2) {
        T before = __shfl_up_sync(~0u, x, step);
        if (lane >= step) x += before;
    }
    return x;
}
static __device__ __forceinline__ float sl_sum_lanes(float x) {
    for (int step = 16; step > 0; step /= 2) x += __shfl_xor_sync(~0u, x, step);
    return x;
}
static __device__ __forceinline__ float sl_max_lanes(float x) {
    for (int step = 16; step > 0; step /= 2) x = fmaxf(x, __shfl_xor_sync(~0u, x, step));
    return x;
}

// 2^x; 0 for -inf, and where 2^x is subnormal.
static __device__ __forceinline__ float sl_exp2(float x) {
    float y;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}

// The maximum; NaN if a or b is NaN. fmaxf ignores a NaN, and so it would hide an error in the model.
static __device__ __forceinline__ float sl_max_nan(float a, float b) {
    float x;
    asm("max.NaN.f32 %0, %1, %2;" : "=f"(x) : "f"(a), "f"(b));
    return x;
}

static __device__ __forceinline__ float sl_max_nan_lanes(float x) {
    for (int step = 16; step > 0; step /= 2) x = sl_max_nan(x, __shfl_xor_sync(~0u, x, step));
    return x;
}

// bf16 to fp32, exactly: a bf16 is the upper half of an fp32.
static __device__ __forceinline__ float sl_widen(bf16 x) {
    return __uint_as_float((uint32_t)x << 16);
}

// Rounds two numbers; `low` comes first in memory.
static __device__ __forceinline__ uint32_t sl_pack_bf16(float low, float high) {
    uint32_t r;
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(r) : "f"(high), "f"(low));
    return r;
}

// ---- matrix instructions ----

// c [16][8] += a [16][16] b [16][8] on tensor cores: bf16 inputs, fp32 sums. All lanes of a warp call it. With g = lane / 4 and
// t = lane % 4 a lane holds these elements (row, column); each of a0 .. a3, b0, b1 is a pair of neighbours:
//   c[0], c[1]: (g, 2 t), (g, 2 t + 1)        c[2], c[3]: (g + 8, 2 t), (g + 8, 2 t + 1)
//   a0: (g, 2 t) and (g, 2 t + 1)             a1: (g + 8, 2 t) and the next column
//   a2: (g, 2 t + 8) and the next column      a3: (g + 8, 2 t + 8) and the next column
//   b0: (2 t, g) and (2 t + 1, g)             b1: (2 t + 8, g) and the next row
static __device__ __forceinline__ void sl_mma_bf16(float c[4], uint32_t a0, uint32_t a1, uint32_t a2, uint32_t a3, uint32_t b0,
                                                   uint32_t b1) {
    asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
                 "{%0, %1, %2, %3};"
                 : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
                 : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b0), "r"(b1));
}

// Transposes an 8 x 8 matrix of 16-bit elements without shared memory. All lanes of a warp call it: with g = lane / 4 and
// t = lane % 4, x holds (g, 2 t), (g, 2 t + 1), and the result holds (2 t, g), (2 t + 1, g).
static __device__ __forceinline__ uint32_t sl_transpose_b16(uint32_t x) {
    uint32_t y;
    asm volatile("movmatrix.sync.aligned.m8n8.trans.b16 %0, %1;" : "=r"(y) : "r"(x));
    return y;
}

// ---- L2 cache ----

// The eviction priority of cache lines. SL_L2_ANY: normal. SL_L2_FIRST_OUT: evicted first, for data that is read once.
// SL_L2_LAST_OUT: evicted last, for data that a later kernel reads soon.
enum sl_l2_rank { SL_L2_ANY, SL_L2_FIRST_OUT, SL_L2_LAST_OUT };

// The cache policy that loads and stores take as an operand.
static __device__ __forceinline__ uint64_t sl_l2_policy(enum sl_l2_rank rank) {
    uint64_t policy;
    if (rank == SL_L2_FIRST_OUT)
        asm("createpolicy.fractional.L2::evict_first.b64 %0, 1.0;" : "=l"(policy));
    else if (rank == SL_L2_LAST_OUT)
        asm("createpolicy.fractional.L2::evict_last.b64 %0, 1.0;" : "=l"(policy));
    else
        asm("createpolicy.fractional.L2::evict_normal.b64 %0, 1.0;" : "=l"(policy));
    return policy;
}

// Stores x with a policy of sl_l2_policy.
static __device__ __forceinline__ void sl_store_l2(uint4 *to, const uint4 &x, uint64_t policy) {
    asm volatile("st.global.L2::cache_hint.v4.u32 [%0], {%1, %2, %3, %4}, %5;" ::"l"(to), "r"(x.x), "r"(x.y), "r"(x.z),
                 "r"(x.w), "l"(policy)
                 : "memory");
}
static __device__ __forceinline__ void sl_store_l2(uint2 *to, const uint2 &x, uint64_t policy) {
    asm volatile("st.global.L2::cache_hint.v2.u32 [%0], {%1, %2}, %3;" ::"l"(to), "r"(x.x), "r"(x.y), "l"(policy) : "memory");
}
static __device__ __forceinline__ void sl_store_l2(uint32_t *to, uint32_t x, uint64_t policy) {
    asm volatile("st.global.L2::cache_hint.u32 [%0], %1, %2;" ::"l"(to), "r"(x), "l"(policy) : "memory");
}
static __device__ __forceinline__ void sl_store_l2(uint64_t *to, uint64_t x, uint64_t policy) {
    asm volatile("st.global.L2::cache_hint.u64 [%0], %1, %2;" ::"l"(to), "l"(x), "l"(policy) : "memory");
}

// Loads with a policy of sl_l2_policy, past L1 (the data is read once). No kernel may write this memory at the same time (.nc).
// `volatile` keeps the load after sl_wait_previous.
static __device__ __forceinline__ uint4 sl_load_l2(const uint4 *from, uint64_t policy) {
    uint4 x;
    asm volatile("ld.global.nc.L1::no_allocate.L2::cache_hint.v4.u32 {%0, %1, %2, %3}, [%4], %5;"
                 : "=r"(x.x), "=r"(x.y), "=r"(x.z), "=r"(x.w)
                 : "l"(from), "l"(policy));
    return x;
}

static __device__ __forceinline__ uint2 sl_load_l2(const uint2 *from, uint64_t policy) {
    uint2 x;
    asm volatile("ld.global.nc.L1::no_allocate.L2::cache_hint.v2.u32 {%0, %1}, [%2], %3;"
                 : "=r"(x.x), "=r"(x.y)
                 : "l"(from), "l"(policy));
    return x;
}

static __device__ __forceinline__ uint32_t sl_load_l2(const uint32_t *from, uint64_t policy) {
    uint32_t x;
    asm volatile("ld.global.nc.L1::no_allocate.L2::cache_hint.u32 %0, [%1], %2;" : "=r"(x) : "l"(from), "l"(policy));
    return x;
}

// Discards data that no later kernel reads: the L2 cache then drops its modified lines instead of writing them to memory. The
// content is undefined until the next write. Only lines of 128 bytes that lie completely in the range are discarded. Threads 0
// to n_threads - 1 share the lines.
static __device__ __forceinline__ void sl_discard(const void *from, size_t n_bytes, int thread, int n_threads) {
    enum { LINE = 128 };
    uint64_t begin = ((uint64_t)from + LINE - 1) / LINE * LINE, end = ((uint64_t)from + n_bytes) / LINE * LINE;
    for (uint64_t at = begin + thread * LINE; at < end; at += n_threads * LINE)
        asm volatile("discard.global.L2 [%0], 128;" ::"l"(at) : "memory");
}

#endif
