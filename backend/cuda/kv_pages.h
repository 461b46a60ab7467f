// backend/cuda/kv_pages.h - sl_backend.move_pages on CUDA.
#ifndef SLEIGH_KV_PAGES_H
#define SLEIGH_KV_PAGES_H

#include "backend/backend.h"

#include <cuda_runtime.h>

#ifdef __cplusplus
extern "C" {
#endif

// k and v: device memory; rows: memory of sl_cuda_alloc_host.
void sl_cuda_move_pages(const sl_page_move *move, cudaStream_t stream);

#ifdef __cplusplus
}
#endif

#endif
