// tests/support/take_all_probe.h - runs the draws of attention/cuda/santa/take_all.cuh on a GPU, for tests. Two thread blocks
// share a problem: the first one has the even turns and marks heavy rows, the second one has the odd turns.
#ifndef SLEIGH_TEST_TAKE_ALL_H
#define SLEIGH_TEST_TAKE_ALL_H

#include "base/bf16.h"
#include "base/philox.h"

#ifdef __cplusplus
extern "C" {
#endif

enum { TAKE_ALL_MARK = 16, TAKE_ALL_RESULT = 64 };

typedef struct take_all_problem { // pointers point to device memory
    const uint64_t *mass;         // [n_blocks] ref << 48 | block mass
    const bf16 *w;                // [n_blocks][32]
    int n, S, shared;
    double alpha;
    sl_rng_id id;
    int32_t *row;  // [n + S + 1024], -1: no row
    float *inv_pi; // [n + S + 1024]
    int *result;   // number of entries of row; of heavy rows; of light draws; 1: the candidates fitted
    uint64_t *light;
    // Memory for marks (take_marked.cuh): TAKE_ALL_MARK bytes for each block; [most] sizes; TAKE_ALL_RESULT bytes; two zeros.
    void *marks, *mark_result;
    uint64_t *sizes;
    int most, *ready;
} take_all_problem;

// problems: device memory. Return before the kernel ends. long: the code for contexts of more than SL_CUDA_SHORT_ROWS rows.
void take_all_on_gpu(const take_all_problem *problems, int n);
void take_all_on_gpu_long(const take_all_problem *problems, int n);

#ifdef __cplusplus
}
#endif

#endif
