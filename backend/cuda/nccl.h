// backend/cuda/nccl.h - sums and copies between GPUs by NCCL, which is loaded at run time (libnccl.so.2): a program runs
// without it.
//
// NCCL takes one rank for each GPU. Its use of NVLink multicast is off. Its kernels wait for other ranks without a limit.
#ifndef SLEIGH_CUDA_NCCL_H
#define SLEIGH_CUDA_NCCL_H

#include "base/error.h"

#include <cuda_runtime_api.h>

enum { SL_NCCL_ID = 128 }; // bytes

typedef struct sl_nccl sl_nccl; // this rank's end of a communicator

// Loads NCCL, and makes the name of a new communicator. SL_ERR_UNSUPPORTED: there is no NCCL, with the reason
int sl_nccl_id(char id[SL_NCCL_ID], sl_error *err);
// Joins the communicator of n ranks on the current device. It waits for all ranks; rank 0's id is that of all.
int sl_nccl_open(const char id[SL_NCCL_ID], int rank, int n, sl_nccl **out, sl_error *err);
void sl_nccl_close(sl_nccl *c); // does not wait for the other ranks; NULL: nothing

// Queue operations on device memory; all ranks make the same calls. data [n] += the data of the other ranks, with equal bits on
// all ranks. all: [ranks][n]
int sl_nccl_all_reduce(sl_nccl *c, float *data, size_t n, cudaStream_t stream, sl_error *err);
int sl_nccl_all_gather(sl_nccl *c, const float *part, size_t n, float *all, cudaStream_t stream, sl_error *err);

#endif
