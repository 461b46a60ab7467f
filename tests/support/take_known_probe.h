// tests/support/take_known_probe.h - runs the draws of attention/cuda/santa/take_known.cuh on a GPU, for tests. Each thread
// block solves one problem.
#ifndef SLEIGH_TEST_TAKE_KNOWN_H
#define SLEIGH_TEST_TAKE_KNOWN_H

#include "base/bf16.h"
#include "base/philox.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct take_known_result {
    uint64_t kappa, light; // kappa in units of size
    int n_heavy, n_listed; // n_listed: 1 if the heavy rows fitted into the lists
    int n_entries;         // of row and inv_pi
} take_known_result;

typedef struct take_known_problem { // pointers point to device memory
    const uint64_t *mass;           // [n_blocks] ref << 48 | block mass
    const bf16 *w;                  // [n_blocks][32]
    int n, shared;
    double alpha, kappa; // kappa: as a share of the total of the masses
    sl_rng_id id;
    int32_t *row;  // [most], -1: no row
    float *inv_pi; // [most]
    int most;
    uint16_t *listed; // [n_blocks], for the code for long contexts
    void *marks;      // [n_blocks] marks of 16 bytes
    take_known_result *result;
} take_known_problem;

// problems: device memory. Return before the kernel ends. long: the code for contexts of more than SL_CUDA_SHORT_ROWS rows.
void take_known_on_gpu(const take_known_problem *problems, int n);
void take_known_on_gpu_long(const take_known_problem *problems, int n);

#ifdef __cplusplus
}
#endif

#endif
