// attention/exact_step_cuda.h - what sequences state on CUDA that attend exactly in place of a method with a stated error of
// the layer, because they have few rows (exact_below.c).
#ifndef SLEIGH_EXACT_STEP_CUDA_H
#define SLEIGH_EXACT_STEP_CUDA_H

#include "attention/attention_cuda.h"

#ifdef __cplusplus
extern "C" {
#endif

// Counts the stated error of n_seqs layer-steps whose outputs `out` come from exact attention: 0, or no bound, as
// sl_reports_state_zero does on the CPU. Does nothing if `spec`, the method of the layer, states no error of the layer. Reads
// geom, spec, n_seqs, out, stats and stream.
void sl_cuda_exact_step(const sl_attn_cuda_decode_args *args);

#ifdef __cplusplus
}
#endif

#endif
