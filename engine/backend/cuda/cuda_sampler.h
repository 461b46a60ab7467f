// engine/backend/cuda/cuda_sampler.h - token sampling on CUDA: engine/backend/sampler.c's filters and draw, from logits in
// device memory.
//
// What equals the CPU's token: greedy, always. Sampled rows that keep at most 1,024 candidates after top-k (or of a vocabulary
// that small): the same additions in the same order, so that only the last bit of an exp() can make a difference. Rows that
// keep more: sums over all candidates are added run by run instead of in sorted order; a token differs when the drawn
// number, or top-p's threshold, lies within that rounding (about 1e-14 of the sum) of the border between two tokens.
//
// Penalties, and more than SL_CUDA_SAMPLER_BIASES logit biases, are not offered; the caller then samples on the CPU.
#ifndef SLEIGH_CUDA_SAMPLER_H
#define SLEIGH_CUDA_SAMPLER_H

#include "engine/backend/backend.h"
#include "engine/backend/sampler.h"

#include <cuda_runtime.h>

#ifdef __cplusplus
extern "C" {
#endif

enum {
    SL_CUDA_SAMPLER_VOCAB = 512 * 1024, // no vocabulary may be larger
    SL_CUDA_SAMPLER_BIASES = 16,        // --ignore-eos needs a few
};

// One row's settings. In device memory: a captured graph serves any settings.
typedef struct sl_cuda_sampling {
    float temp;      // 0: greedy
    int top_k;       // 0: off
    float top_p;     // 1: off
    float log_min_p; // logf(min_p) of the host, whose last bit decides; -inf: off
    uint32_t seed;
    int n_bias;
    int not_finite; // 0; the kernels set it where a logit of the row is NaN or infinite
    sl_logit_bias bias[SL_CUDA_SAMPLER_BIASES];
} sl_cuda_sampling;

// 1 if these settings (checked by sl_sampling_check) can be sampled here.
int sl_cuda_sampler_offers(const sl_sampling *p, int n_vocab);
sl_cuda_sampling sl_cuda_sampling_of(const sl_sampling *p);

// Bytes of scratch, 256-byte aligned, with nothing to be kept in it: 24 for each logit, 50 MB for 16 rows of 128,256.
size_t sl_cuda_sampler_workspace(int n_rows, int n_vocab);

// ids[i] = the token drawn from logits[i] for position rows[i].position of sequence rows[i].sequence.
// told[i] is the same, or -1 where a logit of the row is NaN or infinite: ids[i] is a token then too, for a step that is
// queued. logits: [n_rows][n_vocab], NaN counts as -inf; rows, sampling, ids, told: [n_rows].
void sl_cuda_sample(const float *logits, const sl_row *rows, sl_cuda_sampling *sampling, int n_rows, int n_vocab, int32_t *ids,
                    int32_t *told, void *ws, cudaStream_t stream);

#ifdef __cplusplus
}
#endif

#endif
