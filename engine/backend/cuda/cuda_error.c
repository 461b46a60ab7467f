// engine/backend/cuda/cuda_error.c - CUDA's failures as ours.
#include "engine/backend/cuda/cuda_backend.h"
#include "engine/backend/cuda/cuda_error.h"

int sl_cuda_check(cudaError_t rc, const char *what, sl_error *err) {
    if (rc == cudaSuccess) return 0;
    cudaGetLastError(); // reported here, so it is not the next call's
    return sl_fail(err, rc == cudaErrorMemoryAllocation ? SL_ERR_MEMORY : SL_ERR_DEVICE, "CUDA: %s: %s", what,
                   cudaGetErrorString(rc));
}

int sl_cuda_note(sl_cuda *c, cudaError_t rc, const char *what) {
    if (rc == cudaSuccess) return 0;
    sl_error unused;
    sl_cuda_check(rc, what, c->failed.code ? &unused : &c->failed);
    return 1;
}
