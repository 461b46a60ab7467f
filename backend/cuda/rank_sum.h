// backend/cuda/rank_sum.h - what ranks that share a model exchange through the memory of their GPUs (peer memory): sums,
// logits.
//
// Ranks whose memory cannot be mapped meet in an exchange without data, whose flags are in memory of the host. NCCL then brings
// the parts, and the kernel that adds them waits for no rank (has_all).
//
// Each rank has an exchange memory, which the other ranks map: two slots for data, and flags. The ranks call the same exchanges
// in the same order. In exchange k, a rank has its part in its slot, tells the other ranks so, waits until they have told the
// same, and reads all parts. The exchanges use the two slots in turns: a rank that has begun exchange k + 1 no longer reads the
// slots of exchange k, so these can be filled when all ranks have begun exchange k + 1. One wait for each exchange is enough.
//
// The number of an exchange is in device memory, so a recorded step can hold exchanges. Which slot an exchange takes is in the
// arguments: a recorded step begins with the slot 0 (cuda_ranks.h).
#ifndef SLEIGH_CUDA_RANK_SUM_H
#define SLEIGH_CUDA_RANK_SUM_H

#include "base/bf16.h"
#include "base/comm.h"

#include <cuda_runtime.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

enum {
    // Most thread blocks of an exchange. Ranks that are streams of one process (the tests) wait for each other on one GPU, so
    // it must hold the blocks of all ranks at a time. A multiprocessor holds at least 8 (rank_sum.cu): those of 8 ranks fit on
    // 128 multiprocessors (H100 and H200 have 132), and those of 4 ranks on 64. Ranks that are processes take turns.
    SL_EXCHANGE_BLOCKS = 128,
    SL_EXCHANGE_SLOT = 8 << 20,   // bytes of a slot
    SL_EXCHANGE_LIMIT_MS = 10000, // of a wait for another rank
};

// Of the ranks' flags; flag [block][rank] of a rank holds the last exchange that thread block `block` of rank `rank` has begun.
typedef uint32_t sl_exchange_flags[SL_EXCHANGE_BLOCKS][SL_MOST_RANKS];

// A wait that was too long, in host memory. Later exchanges do not wait, and tell the other ranks nothing.
typedef struct sl_exchange_fault {
    int32_t missing; // the rank that has not come, plus 1; 0: none
} sl_exchange_fault;

typedef struct sl_exchange {
    int rank, n;                       // n: 2, 4 or 8; with has_all also 1
    int has_all;                       // 1: `parts` lie in this rank's memory already, and only `rank`, `n` and `parts` are set
    const float *parts[SL_MOST_RANKS]; // the slots of all ranks for this exchange
    sl_exchange_flags *flags[SL_MOST_RANKS]; // of all ranks
    uint32_t *state;                         // [3] of this rank: exchanges, and thread blocks, that have ended; 1: fault
    volatile sl_exchange_fault *fault;       // of this rank
    uint32_t limit_ms;
} sl_exchange;

// x [n_rows][n_cols] += the sum of the parts [n_rows][n_cols] of all ranks, which are added as a binary tree: 0 + 1, 2 + 3,
// ..., the top of the tree whose lower part the linear layers add (linear.h). So all ranks, and one process, get equal bits.
// With next_w also out16 and next_sums as SL_LINEAR_ADD of linear.h. n_rows 0: only waits for all ranks.
typedef struct sl_cuda_rank_sum {
    sl_exchange exchange;
    int n_rows, n_cols; // n_cols: a multiple of 4; with next_w of SL_NORM_MULTIPLE
    float *x;
    int x_stride;       // numbers between two rows of x, a multiple of 4
    const bf16 *next_w; // [n_cols]; NULL: no norm
    bf16 *out16;        // [n_rows][n_cols]
    float *next_sums;   // [n_rows][n_cols / SL_NORM_TILE]
} sl_cuda_rank_sum;
void sl_cuda_rank_sum_launch(const sl_cuda_rank_sum *args, cudaStream_t stream);

// out [n_rows][n][n_cols] = the parts [n_rows][n_cols] of all ranks side by side.
typedef struct sl_cuda_rank_gather {
    sl_exchange exchange;
    int n_rows, n_cols;
    float *out;
} sl_cuda_rank_gather;
void sl_cuda_rank_gather_launch(const sl_cuda_rank_gather *args, cudaStream_t stream);

// to [n] = from [n]: brings a part to its slot.
void sl_cuda_rank_copy(const float *from, size_t n, float *to, cudaStream_t stream);

#ifdef __cplusplus
}
#endif

#endif
