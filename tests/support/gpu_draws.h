// tests/support/gpu_draws.h - masses of the CPU as the input of a GPU's draws, and the comparison of their draws.
#ifndef SLEIGH_TEST_GPU_DRAWS_H
#define SLEIGH_TEST_GPU_DRAWS_H

#include "attention/stages/stages.h"

#ifdef SLEIGH_CUDA
// A device copy of the block masses of `size`, before sl_masses_mix. gpu_free_all frees it.
uint64_t *gpu_block_masses(const sl_masses *size);

// Fails the case unless row, inv_pi: [n_entries] have the draws of `want`, in any order. row -1: no draw. what: names the
// draws.
void check_same_draws(const char *what, const sl_draws *want, const int32_t *row, const float *inv_pi, int n_entries);
#endif

#endif
