// tests/support/take_all_probe.h - draws of attention/cuda/take_all.cuh on a GPU, for tests: one block a problem.
#ifndef SLEIGH_TEST_TAKE_ALL_H
#define SLEIGH_TEST_TAKE_ALL_H

#include "engine/base/bf16.h"
#include "engine/base/philox.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct take_all_problem { // pointers are the device's
    const uint64_t *mass;         // [n_blocks] ref << 48 | in-block mass
    const bf16 *w;                // [n_blocks][32]
    int n, S, shared;
    double alpha;
    sl_rng_id id;
    int32_t *row;  // [n + S + 1024] -1 where there is none
    float *inv_pi; // likewise
    int *result;   // entries of row; heavy rows; light draws; 1: its candidates fitted
    uint64_t *light;
} take_all_problem;

void take_all_on_gpu(const take_all_problem *problems, int n); // in device memory; returns at once

#ifdef __cplusplus
}
#endif

#endif
