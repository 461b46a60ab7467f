// engine/attend/observe_cuda.h - the observer on a GPU (observe_cuda.c), and the kernel that only an observer needs
// (page_masses.cu).
#ifndef SLEIGH_CUDA_OBSERVE_H
#define SLEIGH_CUDA_OBSERVE_H

#include "attention/attention_cuda.h"
#include "engine/sleigh.h"
#include "models/arch.h"

typedef struct sl_observation sl_observation; // engine/attend/observation.h

#ifdef __cplusplus
extern "C" {
#endif

// ---- observe_cuda.c ----

int sl_cuda_check_shadow(sl_engine *e, const sl_attn_spec *spec, sl_error *err);
int sl_cuda_new_observation(sl_engine *e, sl_observation *o, sl_error *err);
void sl_cuda_free_observation(sl_engine *e, sl_observation *o);
// Call instead of launching the running method. Launches the running method and the shadows, and reports.
void sl_cuda_observe(const sl_batch *batch, const sl_attn_cuda_decode_args *running);

// ---- page_masses.cu ----

// masses[s][h][p] = log2 of sum_j e^{q_sh . k_j / sqrt(head_dim)} over the rows j of page p of sequence s. masses:
// [n_seqs][n_heads][max_pages]. scores: NULL, or [n_seqs][n_heads][max_pages][256], the exponents in log2 units. Entries after
// a sequence's last page or row do not change. Reads geom, n_seqs, rows, q, k and stream of args.
void sl_cuda_page_masses(const sl_attn_cuda_decode_args *args, int max_pages, float *masses, float *scores);

#ifdef __cplusplus
}
#endif

#endif
