// engine/backend/cuda/cuda_error.h - CUDA's error codes as an sl_error.
#ifndef SLEIGH_CUDA_ERROR_H
#define SLEIGH_CUDA_ERROR_H

#include "engine/base/error.h"

#include <cuda_runtime_api.h>

#ifdef __cplusplus
extern "C" {
#endif

// Returns 0, or SL_ERR_DEVICE (SL_ERR_MEMORY when memory ran out) with `what` and CUDA's own words.
int sl_cuda_check(cudaError_t rc, const char *what, sl_error *err);

#ifdef __cplusplus
}
#endif

#endif
