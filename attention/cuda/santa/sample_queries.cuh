// attention/cuda/santa/sample_queries.cuh - samples the queries of a KV head to few features (propose_bernoulli.c), on CUDA.
// The counts are equal to the CPU's.
#ifndef SLEIGH_SAMPLE_QUERIES_CUH
#define SLEIGH_SAMPLE_QUERIES_CUH

#include "attention/attention_cuda.h"
#include "backend/cuda/device.cuh"
#include "attention/random_counter.h"

namespace {

struct query_sampling {
    int B, iid, shared; // trials per feature; independent trials; one set of features for the group
};

// Sampled queries of a KV head: the features to read, and the coefficient of each feature for every head of the group.
template <int DIM, int HEADS> struct __align__(16) sampled {
    float coef[DIM][HEADS];
    int n;
    uint8_t feature[DIM]; // ascending
};

// The same count as sl_bernoulli_count (propose_bernoulli.c). B a is rounded before its floor is subtracted, as on the CPU.
__device__ int count_of(const sl_rng_id &id, int feature, int dim, int B, double a, int iid) {
    if (a >= 1) return B;
    if (!iid) {
        double all = __dmul_rn(B, a), whole = floor(all);
        uint64_t rest = (uint64_t)(__dsub_rn(all, whole) * 0x1p64);
        return (int)whole + (sl_feature_random(&id, feature) + rest < rest);
    }
    uint64_t chance = (uint64_t)(a * 0x1p64);
    int count = 0;
    for (int t = 0; t < B; t++) count += sl_feature_random(&id, sl_trial_index(t, feature, dim)) < chance;
    return count;
}

// Equation 9 of the SANTA paper: coef[i][h] = sign(q_h) norm_h c_h / B of feature i. Every head has its own counts. The lanes
// of the warp take 32 features at a time. Loops are not unrolled, because the instructions for the first item are read from
// memory.
template <int DIM, int HEADS>
__device__ void sample_each(const query_sampling &p, int group, sl_rng_id id, const bf16 *q, float coef[DIM][HEADS]) {
    int lane = threadIdx.x % 32;
#pragma unroll 1
    for (int h = 0; h < group; h++, id.head++, q += DIM) {
        float norm = 0;
        for (int i = lane; i < DIM; i += 32) norm = sl_max_nan(norm, fabsf(sl_widen(q[i])));
        norm = sl_max_nan_lanes(norm);
        bool samples = norm < INFINITY; // false: the query is used as it is
#pragma unroll 1
        for (int i = lane; i < DIM; i += 32) {
            float x = sl_widen(q[i]);
            int count = norm > 0 && samples ? count_of(id, i, DIM, p.B, (double)fabsf(x) / norm, p.iid) : 0;
            coef[i][h] = samples ? copysignf(norm * (float)count / (float)p.B, x) : x;
        }
    }
}

// Equations 10 to 13 of the SANTA paper: the heads of the group share the counts, which follow from the mean magnitude.
template <int DIM, int HEADS>
__device__ void sample_shared(const query_sampling &p, int group, const sl_rng_id &id, const bf16 *q, float coef[DIM][HEADS]) {
    int lane = threadIdx.x % 32;
    float norm = 0;
#pragma unroll 1
    for (int i = lane; i < DIM; i += 32) {
        float sum = 0;
        for (int h = 0; h < group; h++) sum += fabsf(sl_widen(q[h * DIM + i]));
        coef[i][0] = sum / (float)group;
        norm = sl_max_nan(norm, coef[i][0]);
    }
    norm = sl_max_nan_lanes(norm);
    bool samples = norm < INFINITY; // false: the queries are used as they are
#pragma unroll 1
    for (int i = lane; i < DIM; i += 32) {
        float mean = coef[i][0];
        int count = norm > 0 && samples ? count_of(id, i, DIM, p.B, (double)mean / norm, p.iid) : 0;
        float magnitude = norm * (float)count / (float)p.B;
        for (int h = 0; h < group; h++) {
            float x = sl_widen(q[h * DIM + i]);
            coef[i][h] = !samples ? x : mean > 0 ? magnitude * (x / mean) : 0;
        }
    }
}

// Samples the queries of a KV head. One warp calls it. q: [group][DIM] in shared memory.
template <int DIM, int HEADS>
__device__ void sample_queries(const query_sampling &p, int group, const sl_rng_id &id, const bf16 *q,
                               sampled<DIM, HEADS> *to) {
    int lane = threadIdx.x % 32, n = 0;
    for (int i = lane; i < DIM; i += 32)
        for (int h = group; h < HEADS; h++) to->coef[i][h] = 0;
    if (p.shared)
        sample_shared<DIM, HEADS>(p, group, id, q, to->coef);
    else
        sample_each<DIM, HEADS>(p, group, id, q, to->coef);
#pragma unroll 1
    for (int first = 0; first < DIM; first += 32) { // moves used features to the front
        float x[HEADS];
        bool used = false;
#pragma unroll
        for (int h = 0; h < HEADS; h++) {
            x[h] = first + lane < DIM ? to->coef[first + lane][h] : 0;
            used |= x[h] != 0;
        }
        uint32_t all = __ballot_sync(~0u, used);
        int at = n + __popc(all & ((1u << lane) - 1));
        __syncwarp(); // all lanes have read the entries that are overwritten below
        if (used) {
            to->feature[at] = (uint8_t)(first + lane);
#pragma unroll
            for (int h = 0; h < HEADS; h += 4) *(float4 *)&to->coef[at][h] = make_float4(x[h], x[h + 1], x[h + 2], x[h + 3]);
        }
        n += __popc(all);
        __syncwarp();
    }
    if (lane == 0) to->n = n;
    __syncwarp();
}

} // namespace

#endif
