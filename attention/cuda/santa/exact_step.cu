// attention/cuda/santa/exact_step.cu - see attention/exact_step_cuda.h.
#include "attention/exact_step_cuda.h"
#include "attention/budgets/threshold.h"
#include "backend/cuda/device.cuh"

extern "C" {
#include "attention/stages/stages.h"
}

namespace {

enum { EXACT_THREADS = 256 };

// Counts a step as certified if |out| = sqrt(sum_i out_i^2) is a norm (sl_is_norm), and as unbounded if not. i runs over the
// outputs of all heads.
//
// Grid: a thread block for each sequence. out: [sequences][n] bf16, n a multiple of 2: the outputs of all heads.
// Bytes: reads 2 n for each sequence.
// Order of reduction: the pairs of a thread in order, then a tree over 32 lanes, then the sums of the warps in order.
// The sum is a double: squares of bf16 reach 2^256, and a float would overflow from 2^128 on.
__global__ void exact_step_kernel(const uint32_t *out, int n, sl_attn_cuda_stats *stats) {
    __shared__ double sums[EXACT_THREADS / 32];
    int thread = threadIdx.x;
    double sum = 0;
    sl_start_next();
    sl_wait_previous();
    for (int i = thread; i < n / 2; i += EXACT_THREADS) {
        uint32_t pair = __ldcg(out + (size_t)blockIdx.x * (n / 2) + i);
        double low = __uint_as_float(pair << 16), high = __uint_as_float(pair & 0xffff0000u);
        sum += low * low + high * high;
    }
    for (int step = 16; step > 0; step /= 2) sum += __shfl_xor_sync(~0u, sum, step);
    if (thread % 32 == 0) sums[thread / 32] = sum;
    __syncthreads();
    if (thread > 0) return;
    for (int i = 1; i < EXACT_THREADS / 32; i++) sum += sums[i];
    atomicAdd(&stats->stated, 1ull);
    atomicAdd(sl_is_norm(sqrt(sum)) ? &stats->certified : &stats->unbounded, 1ull);
}

} // namespace

void sl_cuda_exact_step(const sl_attn_cuda_decode_args *a) {
    if (!sl_attn_certifies_layer(a->spec) || !a->stats) return;
    sl_launch(exact_step_kernel, dim3(a->n_seqs), dim3(EXACT_THREADS), 0, a->stream, (const uint32_t *)a->out,
              a->geom->n_heads * a->geom->head_dim, a->stats);
}
