// attention/cuda/quantised/quantised_scores.h - the scores of quantised keys as a launch of its own. Methods whose next kernel
// waits for the last score share it: dense-q and vattention. (santa-is draws while it scores, so santa_is.cu has the kernel for
// itself.)
#ifndef SLEIGH_QUANTISED_SCORES_H
#define SLEIGH_QUANTISED_SCORES_H

#include "attention/attention_cuda.h"

// Stores the masses of all rows from the keys that the specification quantises (propose_quantised.c). Their page extra is
// a->extra[0]. mass, w: as in score_params (score_keys.cuh), for blocks of a->max_kv rows. The next kernel must set the counter
// next_item to 0 (workspace.cuh).
void sl_cuda_store_quantised_masses(const sl_attn_cuda_decode_args *a, uint64_t *mass, bf16 *w);

// Counts the reads of these scores: quantised pages, and K of the newest page.
void sl_cuda_account_quantised(const sl_attn_geom *geom, const sl_attn_spec *spec, int n_kv, sl_attn_stats *stats);

#endif
