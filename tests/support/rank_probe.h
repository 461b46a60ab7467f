// tests/support/rank_probe.h - kernels that give the ranks of rank_sum.h their parts, and check the sums.
//
// Numbers follow from the call, the rank and the place, so the host can compute them too.
#ifndef SLEIGH_TEST_RANK_PROBE_H
#define SLEIGH_TEST_RANK_PROBE_H

#include <cuda_runtime.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#define PROBE_FN static inline __host__ __device__
#else
#define PROBE_FN static inline
#endif

enum { PROBE_RESIDUAL = 99 }; // in place of a rank: what the sum is added to

// A number between -128 and 128 with 19 bits, so that sums in another order have other bits.
PROBE_FN float probe_number(uint32_t call, int rank, uint32_t i) {
    uint32_t h = call * 2654435761u ^ (uint32_t)rank * 40503u ^ i * 2246822519u;
    h ^= h >> 15, h *= 2246822519u, h ^= h >> 13, h *= 3266489917u, h ^= h >> 16;
    return (float)((int)(h & 0xffff) - 32768) * (1.0f / 2048) * (float)((h >> 16 & 7) + 1);
}

// The sum over n ranks, as the top of the tree of leaves.
PROBE_FN float probe_tree(uint32_t call, int n, uint32_t i) {
    float part[8];
    for (int r = 0; r < n; r++) part[r] = probe_number(call, r, i);
    for (int step = 1; step < n; step *= 2)
        for (int r = 0; r < n; r += 2 * step) part[r] += part[r + step];
    return part[0];
}

// Waits delay_ns, then writes a rank's part [n] and the residual stream [n] of a call. x NULL: no residual stream
void probe_fill(uint32_t call, int rank, int n, uint32_t delay_ns, float *part, float *x, cudaStream_t stream);
// Adds the number of wrong sums x [n] to *n_wrong.
void probe_check(uint32_t call, int n_ranks, int n, const float *x, int *n_wrong, cudaStream_t stream);

#ifdef __cplusplus
}
#endif

#endif
