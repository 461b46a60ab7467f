// backend/cuda/cuda_error.c - see cuda_error.h.
#include "backend/cuda/cuda_error.h"

int sl_cuda_check(cudaError_t rc, const char *what, sl_error *err) {
    if (rc == cudaSuccess) return 0;
    cudaGetLastError(); // clears the error: err holds it now, and the next call must not report it again
    return sl_fail(err, rc == cudaErrorMemoryAllocation ? SL_ERR_MEMORY : SL_ERR_DEVICE, "CUDA: %s: %s", what,
                   cudaGetErrorString(rc));
}
