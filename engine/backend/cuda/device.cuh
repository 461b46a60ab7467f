// engine/backend/cuda/device.cuh - what the CUDA sources share: kernel launches with programmatic dependent launch,
// and the few device functions that more than one kernel needs.
//
// Launchers return nothing. A failed launch stays CUDA's last error until the step ends, where the engine reads it
// (sl_cuda_check) and turns it into an sl_error: every launch is checked, none is checked twice.
#ifndef SLEIGH_CUDA_DEVICE_CUH
#define SLEIGH_CUDA_DEVICE_CUH

#include "engine/backend/cuda/cuda_error.h"
#include "engine/base/bf16.h"

#include <atomic>
#include <cuda_runtime.h>
#include <stddef.h>
#include <stdint.h>

// The device that the launches of this thread go to: the launcher's caller has set it (sl_cuda_use).
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

// May this kernel start before its predecessor in the stream has ended? Only code that was compiled for sm_90 or later may:
// older code, which the driver translates for a newer GPU, has an empty sl_wait_previous. The answer depends on the device, and
// all kernels of a file have the same answer. It is asked once for each list of parameters and device.
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

// Launches kernel<<<grid, block, shared, stream>>>. The kernel may start before the one in front of it in the stream has
// ended, so it must call sl_wait_previous() before it touches anything that an earlier kernel writes or reads; only what no
// kernel of the step writes may be read before that. Every kernel of a step is launched this way and calls both functions
// below, so that "the previous one has ended" carries over from kernel to kernel. All ask for the same split of L1 and shared
// memory: a multiprocessor must run empty before it changes the split (RMSNorm with the default split: 2 to 15 us more each).
//
// One exception: a kernel may learn from a counter, instead of from sl_wait_previous(), that the kernel in front has written
// what it needs (take_all.cuh). That kernel must then call sl_start_next() after its own sl_wait_previous(), or the counter
// read may be an earlier step's; and the waiting one must still call sl_wait_previous() before it ends.
template <typename... Params, typename... Args>
static void sl_launch(void (*kernel)(Params...), dim3 grid, dim3 block, size_t shared, cudaStream_t stream, Args... args) {
    cudaFuncSetAttribute(kernel, cudaFuncAttributePreferredSharedMemoryCarveout, cudaSharedmemCarveoutMaxShared);
    if (shared > 32 << 10) // 48 KB, less what the kernel declares itself
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
    cudaLaunchKernelEx(&config, kernel, static_cast<Params>(args)...); // an error stays the last error
}

// Waits until all earlier kernels of the stream have ended and their writes are visible.
static __device__ __forceinline__ void sl_wait_previous() {
#if __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}

// Lets the next kernel of the stream start: its blocks take the place of ours as these end, or lie beside them where shared
// memory and registers allow.
static __device__ __forceinline__ void sl_start_next() {
#if __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.launch_dependents;");
#endif
}

// Adds; what this block has written before is seen by whoever reads the sum, and what they had written by this block.
static __device__ __forceinline__ int sl_add_ordered(int *to, int x) {
    int before;
    asm volatile("atom.acq_rel.gpu.global.add.s32 %0, [%1], %2;" : "=r"(before) : "l"(to), "r"(x) : "memory");
    return before;
}

// Adds 1, for one thread of a warp. The answer is waited for where it is used: of atomicAdd, or atom.add, the compiler makes
// one for all lanes that may come there, and waits at once to hand out their shares.
static __device__ __forceinline__ int sl_take_number(int *from) {
    int before;
    asm volatile("atom.relaxed.gpu.global.inc.u32 %0, [%1], 0x7fffffff;" : "=r"(before) : "l"(from) : "memory");
    return before;
}

// Over the lanes of a warp: the sum of the lanes up to this one; of all; the largest.
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

// The larger one; NaN where either is NaN, which fmaxf passes over.
static __device__ __forceinline__ float sl_max_nan(float a, float b) {
    float x;
    asm("max.NaN.f32 %0, %1, %2;" : "=f"(x) : "f"(a), "f"(b));
    return x;
}

static __device__ __forceinline__ float sl_max_nan_lanes(float x) {
    for (int step = 16; step > 0; step /= 2) x = sl_max_nan(x, __shfl_xor_sync(~0u, x, step));
    return x;
}

static __device__ __forceinline__ float sl_widen(bf16 x) {
    return __uint_as_float((uint32_t)x << 16);
}

// c [16][8] += a [16][16] b [16][8] in bf16, all lanes of a warp; lane (g, t) = (lane / 4, lane % 4) has c's elements (g, 2 t),
// (g, 2 t + 1), (g + 8, 2 t), (g + 8, 2 t + 1), a's pairs from (g, 2 t), (g + 8, 2 t), (g, 2 t + 8), (g + 8, 2 t + 8) on, b's
// from (2 t, g), (2 t + 8, g) on.
static __device__ __forceinline__ void sl_mma_bf16(float c[4], uint32_t a0, uint32_t a1, uint32_t a2, uint32_t a3, uint32_t b0,
                                                   uint32_t b1) {
    asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
                 "{%0, %1, %2, %3};"
                 : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
                 : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b0), "r"(b1));
}

// An 8 x 8 matrix of 16-bit elements, all lanes of a warp: lane (g, t) = (lane / 4, lane % 4) gives (g, 2 t), (g, 2 t + 1) and
// gets (2 t, g), (2 t + 1, g).
static __device__ __forceinline__ uint32_t sl_transpose_b16(uint32_t x) {
    uint32_t y;
    asm volatile("movmatrix.sync.aligned.m8n8.trans.b16 %0, %1;" : "=r"(y) : "r"(x));
    return y;
}

// How the L2 cache is to treat data: as any other; it leaves first, being read once; or last, being asked for soon.
enum sl_l2_rank { SL_L2_ANY, SL_L2_FIRST_OUT, SL_L2_LAST_OUT };

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

// Stores x; policy: sl_l2_policy's.
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

// Loads what is read once and no kernel writes meanwhile; volatile, so that it stays behind sl_wait_previous. policy:
// sl_l2_policy's.
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

// Nobody needs these bytes any more: whole lines of them that the L2 cache holds and has not written to memory never are. What
// lies there then is anything, until it is written anew. Threads 0 .. n_threads - 1 share the lines.
static __device__ __forceinline__ void sl_discard(const void *from, size_t n_bytes, int thread, int n_threads) {
    enum { LINE = 128 };
    uint64_t begin = ((uint64_t)from + LINE - 1) / LINE * LINE, end = ((uint64_t)from + n_bytes) / LINE * LINE;
    for (uint64_t at = begin + thread * LINE; at < end; at += n_threads * LINE)
        asm volatile("discard.global.L2 [%0], 128;" ::"l"(at) : "memory");
}

#endif
