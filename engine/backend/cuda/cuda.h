// engine/backend/cuda/cuda.h - what the engine sees of the CUDA backend; the rest is behind engine/backend.h.
#ifndef SLEIGH_CUDA_H
#define SLEIGH_CUDA_H

#include "engine/backend/backend.h"

int sl_cuda_count(void); // GPUs; 0 without a driver
int sl_cuda_name(int index, char *buf, size_t size, sl_error *err);
// A backend of its own stream on that GPU. SL_ERR_UNSUPPORTED below compute capability 8.0, SL_ERR_DEVICE.
int sl_cuda_init(int index, const sl_backend **out, sl_error *err);

#endif
