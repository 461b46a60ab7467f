// backend/cuda/cuda_sampler.h - token sampling on CUDA, from logits in device memory (reference: sampler.c).
//
// When the token equals the CPU's token:
// - Greedy: always.
// - Top-k leaves at most 1,024 candidates: the additions are the same, in the same order. Only the last bit of an exp() can
//   differ.
// - Otherwise: the sums over all candidates are added run by run, not in sorted order. The token differs when the random
//   number, or top-p's threshold, lies within the rounding error (about 1e-14 of the sum) of the border between two tokens.
//
// Refuses penalties, and more than SL_CUDA_SAMPLER_BIASES logit biases (sl_cuda_can_sample). Then the caller samples on the
// CPU.
#ifndef SLEIGH_CUDA_SAMPLER_H
#define SLEIGH_CUDA_SAMPLER_H

#include "backend/backend.h"
#include "backend/sampler.h"

#include <cuda_runtime.h>

#ifdef __cplusplus
extern "C" {
#endif

enum {
    SL_CUDA_SAMPLER_VOCAB = 512 * 1024, // largest vocabulary
    SL_CUDA_SAMPLER_BIASES = 16,        // --ignore-eos uses one for each end token
};

// The settings of one row, in device memory.
typedef struct sl_cuda_sampling {
    float temp;      // 0: greedy
    int top_k;       // 0: off
    float top_p;     // 1: off
    float log_min_p; // logf(min_p), computed on the host, because the last bit can change the result. -inf: off
    uint32_t seed;
    int n_bias;
    int not_finite;          // 0 before; the kernel sets 1 when a logit of the row is NaN or infinite
    const uint32_t *allowed; // as in sl_sampler_allow, device memory; NULL: every token
    sl_logit_bias bias[SL_CUDA_SAMPLER_BIASES];
} sl_cuda_sampling;

// Returns 1 when the GPU can sample with these settings (checked by sl_sampling_check before).
int sl_cuda_can_sample(const sl_sampling *p, int n_vocab);
sl_cuda_sampling sl_cuda_sampling_of(const sl_sampling *p);

// Bytes of scratch memory, 256-byte aligned: 24 per logit, 50 MB for 16 rows of 128,256. No data stay there between calls.
size_t sl_cuda_sampler_workspace(int n_rows, int n_vocab);

// Samples ids[i] from logits[i], for position rows[i].position of sequence rows[i].sequence. host_ids[i] is the same id, or -1
// when a logit of the row is NaN or infinite. ids[i] is a valid token even then, because the next step is already queued with
// it. logits: [n_rows][n_vocab], NaN counts as -inf; rows, sampling, ids, host_ids: [n_rows].
void sl_cuda_sample(const float *logits, const sl_row *rows, sl_cuda_sampling *sampling, int n_rows, int n_vocab, int32_t *ids,
                    int32_t *host_ids, void *ws, cudaStream_t stream);

#ifdef __cplusplus
}
#endif

#endif
