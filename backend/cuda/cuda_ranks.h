// backend/cuda/cuda_ranks.h - the CUDA backend of a rank of a tensor-parallel run.
//
// A linear layer that is added to the residual stream (o, down) has a part of the columns on each rank. Its sums go to this
// rank's slot, and an exchange (rank_sum.h) adds the sums of all ranks to the residual stream. A decode step takes equal bits
// from every number of ranks. A prefill does not: there, one process adds all columns in the order of cuBLASLt.
#ifndef SLEIGH_CUDA_RANKS_H
#define SLEIGH_CUDA_RANKS_H

#include "backend/backend.h"
#include "base/comm.h"

// How the ranks are connected.
typedef struct sl_cuda_links {
    int n_sharing;    // ranks that use this rank's GPU; each has an equal share of its memory
    int is_one_each;  // each rank has a GPU of its own
    int has_peers;    // the ranks map each other's memory
    int has_nccl;     // NCCL adds the sums of prefills; without has_peers, it also brings the parts of all other sums
    sl_error why_not; // without has_nccl: the reason, if each rank has a GPU of its own
} sl_cuda_links;

// The ranks that share the model. All ranks call it, before the first weight is placed. comm outlives the backend. The memory
// that ranks map stays until the process ends, because a rank does not know when the others have read it for the last time.
// With NCCL, a thread ends all ranks (sl_comm.fail) if a rank does not come. SL_ERR_UNSUPPORTED: a GPU cannot map the memory of
// another one, and there is no NCCL. If one rank fails, all do.
int sl_cuda_use_comm(const sl_backend *be, sl_comm *comm, sl_cuda_links *out, sl_error *err);

// Queues: the logits of the ranks' parts of the vocabulary, [n_rows][n_part] at the begin of `logits` of each rank, become
// [n_rows][n n_part] on all ranks. logits: device memory
void sl_cuda_gather_logits(const sl_backend *be, int n_rows, int n_part, float *logits);

#endif
