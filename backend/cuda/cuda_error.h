// backend/cuda/cuda_error.h - a CUDA error code as an sl_error.
#ifndef SLEIGH_CUDA_ERROR_H
#define SLEIGH_CUDA_ERROR_H

#include "base/error.h"

#include <cuda_runtime_api.h>

#ifdef __cplusplus
extern "C" {
#endif

// Returns 0 for cudaSuccess. Else returns SL_ERR_DEVICE (SL_ERR_MEMORY when memory ran out); *err gets `what` and CUDA's text.
int sl_cuda_check(cudaError_t rc, const char *what, sl_error *err);

#ifdef __cplusplus
}
#endif

#endif
