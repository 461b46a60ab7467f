// attention/cuda/key_query.cuh - scores of rows of K in shared memory for the query heads of a group, with mma.m16n8k16:
// S [16 rows][8 heads] = K [16][DIM] Q^T [DIM][8], fp32. Lane (g, q) = (lane / 4, lane % 4).
#ifndef SLEIGH_KEY_QUERY_CUH
#define SLEIGH_KEY_QUERY_CUH

#include "attention/cuda/stored_rows.cuh"
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

// The same for rows of fp8 or int8, without the scales of the rows: K in shared memory is [DIM] bytes a row. A word of four
// numbers is one k-step, with numbers 0, 2 and 1, 3 as pairs (widen_bytes).
template <int DIM> struct group_byte_queries {
    enum {
        K_STEPS = DIM / 16,
        K_LOADS = DIM / 64, // loads of 16 bytes, each for four k-steps
        REST = K_STEPS % 4, // k-steps of the last load: 0, 1 (4 bytes) or 2 (8 bytes)
    };
    uint32_t q[K_STEPS][2];

    // The first dim of the lane's word of a k-step.
    static __device__ __forceinline__ int dim_of(int step, int lane_q) {
        return step < 4 * K_LOADS ? step / 4 * 64 + lane_q * 16 + step % 4 * 4
                                  : K_LOADS * 64 + lane_q * REST * 4 + step % 4 * 4;
    }

    // q_rows: [group][DIM] bf16. Columns group .. 7 are 0.
    __device__ void load(const char *q_rows, int group) {
        int g = threadIdx.x % 32 / 4, lane_q = threadIdx.x % 4;
#pragma unroll
        for (int i = 0; i < K_STEPS; i++) {
            const char *at = q_rows + (g * DIM + dim_of(i, lane_q)) * sizeof(bf16);
            uint2 x = g < group ? *(const uint2 *)at : make_uint2(0, 0);
            q[i][0] = __byte_perm(x.x, x.y, 0x5410), q[i][1] = __byte_perm(x.x, x.y, 0x7632);
        }
    }

    // As group_queries::add_scores, with rows of [DIM] bytes.
    template <bool FP8> __device__ void add_scores(float even[4], float odd[4], const char *a_row, const char *b_row) const {
        int lane_q = threadIdx.x % 4;
#pragma unroll
        for (int i = 0; i < K_LOADS; i++) {
            uint4 a = *(const uint4 *)(a_row + i * 64 + lane_q * 16), b = *(const uint4 *)(b_row + i * 64 + lane_q * 16);
            add_step<FP8>(even, a.x, b.x, 4 * i);
            add_step<FP8>(odd, a.y, b.y, 4 * i + 1);
            add_step<FP8>(even, a.z, b.z, 4 * i + 2);
            add_step<FP8>(odd, a.w, b.w, 4 * i + 3);
        }
        if (REST == 0) return;
        const char *a = a_row + K_LOADS * 64 + lane_q * REST * 4, *b = b_row + K_LOADS * 64 + lane_q * REST * 4;
#pragma unroll
        for (int i = 0; i < REST; i++)
            add_step<FP8>(i % 2 ? odd : even, *(const uint32_t *)(a + 4 * i), *(const uint32_t *)(b + 4 * i), 4 * K_LOADS + i);
    }

    template <bool FP8> __device__ __forceinline__ void add_step(float sum[4], uint32_t a, uint32_t b, int step) const {
        uint32_t x[2], y[2];
        widen_bytes<FP8>(a, x);
        widen_bytes<FP8>(b, y);
        sl_mma_bf16(sum, x[0], y[0], x[1], y[1], q[step][0], q[step][1]);
    }
};

#endif
