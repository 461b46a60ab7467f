// engine/cuda/device.h - what the CUDA sources share: error checks, kernel launches with programmatic dependent launch,
// and the few device functions that more than one kernel needs.
//
// Launchers return nothing. A failed launch stays CUDA's last error until the step ends, where the engine reads it
// (sl_cuda_check) and turns it into an sl_error: every launch is checked, none is checked twice.
#ifndef SLEIGH_CUDA_DEVICE_H
#define SLEIGH_CUDA_DEVICE_H

#include "engine/bf16.h"
#include "engine/error.h"

#include <cuda_runtime.h>
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

// 0, or SL_ERR_DEVICE (SL_ERR_MEMORY when memory ran out) with `what` and CUDA's own words.
int sl_cuda_check(cudaError_t rc, const char *what, sl_error *err);

#ifdef __cplusplus
}
#endif

#ifdef __CUDACC__

// Was this file's device code made for sm_90 or later, so that it has sl_wait_previous? Older code that the driver compiles
// for a newer GPU must not start early.
static inline bool sl_overlaps(const void *kernel) {
    cudaFuncAttributes attributes;
    return cudaFuncGetAttributes(&attributes, kernel) == cudaSuccess && attributes.ptxVersion >= 90;
}

// An attribute of the current device.
static inline int sl_device_get(enum cudaDeviceAttr what) {
    int device = 0, x = 0;
    cudaGetDevice(&device);
    cudaDeviceGetAttribute(&x, what, device);
    return x;
}

static inline int sl_multiprocessors() {
    return sl_device_get(cudaDevAttrMultiProcessorCount);
}

// Launches kernel<<<grid, block, shared, stream>>>. The kernel may start before the one in front of it in the stream has
// ended, so it must call sl_wait_previous() before it touches anything that an earlier kernel writes or reads; only what no
// kernel of the step writes may be read before that. Every kernel of a step is launched this way and calls both functions
// below, so that "the previous one has ended" carries over from kernel to kernel. All ask for the same split of L1 and shared
// memory: a multiprocessor must run empty before it changes the split (RMSNorm with the default split: 2 to 15 us more each).
template <typename... Params, typename... Args>
static void sl_launch(void (*kernel)(Params...), dim3 grid, dim3 block, size_t shared, cudaStream_t stream, Args... args) {
    static const bool overlaps = sl_overlaps((const void *)kernel); // of all kernels with these parameters alike
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
    config.numAttrs = overlaps;
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

#endif // __CUDACC__
#endif
