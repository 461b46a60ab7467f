// attention/cuda/key_query.cuh - scores of rows of K in shared memory for the query heads of a group, with mma.m16n8k16:
// S [16 rows][8 heads] = K [16][DIM] Q^T [DIM][8], fp32. Lane (g, q) = (lane / 4, lane % 4).
#ifndef SLEIGH_KEY_QUERY_CUH
#define SLEIGH_KEY_QUERY_CUH

#include "backend/cuda/device.cuh"

// The queries of a group as operand b. The order of the dims is free, because K and q have the same one: the 16 bytes that a
// lane loads are the operand of two k-steps.
template <int DIM> struct group_queries {
    enum {
        K_STEPS = DIM / 16,
        K_LOADS = DIM / 32, // loads of 16 bytes, each for two k-steps; where DIM % 32 == 16, one load of 8 bytes more
    };
    uint32_t q[K_STEPS][2];

    // q_rows: [group][DIM] bf16. Columns group .. 7 are 0.
    __device__ void load(const char *q_rows, int group) {
        int g = threadIdx.x % 32 / 4, lane_q = threadIdx.x % 4;
        const char *row = q_rows + g * DIM * sizeof(bf16);
        bool real = g < group;
#pragma unroll
        for (int i = 0; i < K_LOADS; i++) {
            uint4 x = real ? *(const uint4 *)(row + i * 64 + lane_q * 16) : make_uint4(0, 0, 0, 0);
            q[2 * i][0] = x.x, q[2 * i][1] = x.y, q[2 * i + 1][0] = x.z, q[2 * i + 1][1] = x.w;
        }
        if (K_STEPS % 2) {
            uint2 x = real ? *(const uint2 *)(row + K_LOADS * 64 + lane_q * 8) : make_uint2(0, 0);
            q[K_STEPS - 1][0] = x.x, q[K_STEPS - 1][1] = x.y;
        }
    }

    // a_row, b_row: rows g and g + 8 of the operand, [DIM] bf16. Adds the products of even k-steps to `even`, and of odd ones
    // to `odd`, which may be the same sums: element i is row g + 8 (i / 2), head 2 q + i % 2.
    __device__ void add_scores(float even[4], float odd[4], const char *a_row, const char *b_row) const {
        int lane_q = threadIdx.x % 4;
#pragma unroll
        for (int i = 0; i < K_LOADS; i++) {
            uint4 a = *(const uint4 *)(a_row + i * 64 + lane_q * 16), b = *(const uint4 *)(b_row + i * 64 + lane_q * 16);
            sl_mma_bf16(even, a.x, b.x, a.y, b.y, q[2 * i][0], q[2 * i][1]);
            sl_mma_bf16(odd, a.z, b.z, a.w, b.w, q[2 * i + 1][0], q[2 * i + 1][1]);
        }
        if (K_STEPS % 2) {
            uint2 a = *(const uint2 *)(a_row + K_LOADS * 64 + lane_q * 8),
                  b = *(const uint2 *)(b_row + K_LOADS * 64 + lane_q * 8);
            sl_mma_bf16(even, a.x, b.x, a.y, b.y, q[K_STEPS - 1][0], q[K_STEPS - 1][1]);
        }
    }
};

#endif
