// cli/bench/random_mask.h - random masks of a given density, for the times of attention with a mask.
#ifndef SLEIGH_RANDOM_MASK_H
#define SLEIGH_RANDOM_MASK_H

#include "attention/prefill/prefill_mask.h"

#ifdef __cplusplus
extern "C" {
#endif

// Fills *mask. Each query block of each head visits the sink, the diagonal and other key blocks by chance, in all the share
// `density` of its causal blocks, rounded, and at least the sink and the diagonal. Equal shapes and densities give equal masks.
// Returns the density of the whole mask.
double cli_random_mask(const sl_prefill_mask *mask, double density);

#ifdef __cplusplus
}
#endif

#endif
