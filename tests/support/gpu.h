// tests/support/gpu.h - device memory for tests of CUDA kernels. A file with GPU cases compiles without CUDA too: the functions
// of its cases are within #ifdef SLEIGH_CUDA, and GPU_CASE lists the names of the cases in both builds, so that the runner
// counts the cases as skipped.
#ifndef SLEIGH_TEST_GPU_H
#define SLEIGH_TEST_GPU_H

#include "tests/test.h"

#ifdef SLEIGH_CUDA
#include <cuda_runtime_api.h>
#define GPU_CASE(NAME, FN)                                                                                                     \
    { NAME, NEEDS_GPU, FN }
#define WHOLE_GPU_CASE(NAME, FN)                                                                                               \
    { NAME, NEEDS_GPU | NEEDS_WHOLE_GPU, FN }

#define TWO_GPUS_CASE(NAME, FN)                                                                                                \
    { NAME, NEEDS_GPU | NEEDS_WHOLE_GPU | NEEDS_TWO_GPUS, FN }

// Each of these functions fails the case when CUDA returns an error. After each case, the runner frees the memory with
// gpu_free_all.
void *gpu_new(size_t size);                             // filled with 0xFF: NaN as bf16 and fp32
void *gpu_zero(size_t size);                            // filled with 0
void *gpu_copy(const void *data, size_t size);          // a device copy of host memory
void gpu_read(void *to, const void *from, size_t size); // device to host; waits for all work first
enum { GPU_GUARD = 64 };                                // bytes after an output that must keep the 0xFF of gpu_new
void *gpu_read_guarded(const void *from, size_t size);  // copies to new memory, and checks the GPU_GUARD bytes after the output
void gpu_sync(const char *what);                        // waits for all work; fails the case on an error since the last call
#else
#define GPU_CASE(NAME, FN)                                                                                                     \
    { NAME, NEEDS_GPU, NULL }
#define WHOLE_GPU_CASE(NAME, FN)                                                                                               \
    { NAME, NEEDS_GPU | NEEDS_WHOLE_GPU, NULL }
#define TWO_GPUS_CASE(NAME, FN)                                                                                                \
    { NAME, NEEDS_GPU | NEEDS_WHOLE_GPU | NEEDS_TWO_GPUS, NULL }
#endif
void gpu_free_all(void);
int gpu_count(void);   // 0 without a CUDA build
int gpu_present(void); // 1: this build has CUDA and finds a device

#endif
