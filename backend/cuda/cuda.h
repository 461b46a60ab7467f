// backend/cuda/cuda.h - how the engine opens the CUDA backend. The engine calls everything else through
// backend/backend.h.
#ifndef SLEIGH_CUDA_H
#define SLEIGH_CUDA_H

#include "backend/backend.h"

int sl_cuda_count(void); // number of GPUs; 0 without a driver
int sl_cuda_name(int index, char *buf, size_t size, sl_error *err);
// Creates a backend on GPU `index`, with a stream that no other backend uses. A process may have backends on several GPUs.
// SL_ERR_UNSUPPORTED: compute capability below 8.0, or this build has no kernels for the GPU. SL_ERR_DEVICE: CUDA failed.
int sl_cuda_init(int index, const sl_backend **out, sl_error *err);

#endif
