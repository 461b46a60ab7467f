// tests/support/gpu.c - see gpu.h.
#include "tests/support/gpu.h"

#ifdef SLEIGH_CUDA

#include <stdlib.h>

enum { MAX_BLOCKS = 256 };
static void *blocks[MAX_BLOCKS];
static int n_blocks;

static void check(cudaError_t rc, const char *what) {
    if (rc != cudaSuccess) FAIL("%s: %s", what, cudaGetErrorString(rc));
}

void *gpu_new(size_t size) {
    void *p = NULL;
    if (n_blocks == MAX_BLOCKS) FAIL("a case may allocate at most %d blocks of device memory", MAX_BLOCKS);
    check(cudaMalloc(&p, size ? size : 1), "cudaMalloc");
    blocks[n_blocks++] = p;
    check(cudaMemset(p, 0xFF, size), "cudaMemset");
    return p;
}

void *gpu_copy(const void *data, size_t size) {
    void *p = gpu_new(size);
    check(cudaMemcpy(p, data, size, cudaMemcpyHostToDevice), "cudaMemcpy");
    return p;
}

void *gpu_zero(size_t size) {
    void *p = gpu_new(size);
    check(cudaMemset(p, 0, size), "cudaMemset");
    return p;
}

void gpu_sync(const char *what) {
    check(cudaGetLastError(), what);
    check(cudaDeviceSynchronize(), what);
}

void gpu_read(void *to, const void *from, size_t size) {
    gpu_sync("kernels before a read");
    check(cudaMemcpy(to, from, size, cudaMemcpyDeviceToHost), "cudaMemcpy");
}

void *gpu_read_guarded(const void *from, size_t size) {
    unsigned char *to = malloc(size + GPU_GUARD);
    gpu_read(to, from, size + GPU_GUARD);
    for (int i = 0; i < GPU_GUARD; i++)
        if (to[size + i] != 0xFF) FAIL("byte %d after the output was written", i);
    return to;
}

void gpu_free_all(void) {
    while (n_blocks > 0) cudaFree(blocks[--n_blocks]);
}

int gpu_count(void) {
    int n = 0;
    // The queues of a GPU. With the 8 that CUDA takes, streams whose kernels wait for each other (cuda_ranks) can share one.
    setenv("CUDA_DEVICE_MAX_CONNECTIONS", "32", 0);
    return cudaGetDeviceCount(&n) == cudaSuccess ? n : 0;
}

#else

void gpu_free_all(void) {}

int gpu_count(void) {
    return 0;
}

#endif

int gpu_present(void) {
    return gpu_count() > 0;
}
