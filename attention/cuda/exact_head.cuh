// attention/cuda/exact_head.cuh - exact attention of one query head by one warp, on CUDA. Decode kernels use it for a head
// whose scores are out of the range of stored masses (masses.h).
//
// attend_exactly is slow and rarely runs. It is not inlined, so it adds no registers and few instructions to its callers.
#ifndef SLEIGH_EXACT_HEAD_CUH
#define SLEIGH_EXACT_HEAD_CUH

#include "attention/cuda/offloaded_rows.cuh"
#include "backend/cuda/device.cuh"

extern "C" {
#include "attention/cpu/cpu_kernels.h"
}

namespace {

// Whether stored masses cannot represent a head with the largest reference `top`. Such a head attends to every row exactly.
__device__ __forceinline__ bool is_beyond(int top) {
    return top > SL_REF_MOST || top < -SL_REF_MOST;
}

// The format of rows of bytes. Without them the struct is empty, so that kernels for bf16 rows do not store it.
#ifdef SL_BYTE_ROWS
struct byte_format {
    bool is_fp8;
};
static __device__ __forceinline__ byte_format byte_format_of(bool is_fp8) {
    return {is_fp8};
}
#else
struct byte_format {
    enum { is_fp8 = 0 };
};
static __device__ __forceinline__ byte_format byte_format_of(bool) {
    return {};
}
#endif

// One query head of one sequence, with the memory that attend_exactly reads.
struct exact_head : byte_format {
    const bf16 *q;        // [head_dim]
    const bf16 *k, *v;    // [n_pages][n_kv_heads] blocks of 256 rows
    const bf16 *host;     // IS_OFFLOADED: rows of full pages, as offloaded_rows.rows
    const int32_t *pages; // of the sequence
    int n_kv_heads, kv_head, n_kv;
    float scale;               // log2(e) / sqrt(head_dim)
    sl_attn_cuda_stats *stats; // attend_exactly adds one fallback and all rows of K and V; NULL: it counts nothing
};

// q: the query row [head_dim]. k, v: the layer's pools. host: NULL without IS_OFFLOADED. is_fp8: only read with IS_BYTES.
inline __device__ exact_head make_exact_head(const bf16 *q, const bf16 *k, const bf16 *v, const sl_row &row, int n_kv_heads,
                                             int seq_head, float scale, sl_attn_cuda_stats *stats, const bf16 *host = NULL,
                                             bool is_fp8 = false) {
    return {byte_format_of(is_fp8), q,     k,    v, host, row.pages, n_kv_heads, seq_head % n_kv_heads,
            row.position + 1,       scale, stats};
}

// Loads four bf16 numbers as floats, or zeros.
__device__ __forceinline__ void load4(const bf16 *from, bool there, float to[4]) {
    widen4(there ? __ldg((const uint2 *)from) : make_uint2(0, 0), to);
}

// Loads four numbers of a pool row of bytes, numbers 4 lane .. 4 lane + 3, without the scale, or zeros. Returns the scale.
template <int DIM>
__device__ __forceinline__ float load_bytes4(const bf16 *pool, int row, bool is_fp8, bool has_dims, bool there, float to[4]) {
    const uint32_t *words = (const uint32_t *)row_of_pool<DIM>(pool, row);
    widen4(has_dims && there ? __ldg(words + threadIdx.x % 32) : 0u, to, is_fp8);
    return there ? __ldg(scale_of_pool<DIM>(pool, row)) : 0;
}

// out[d] = sum_j 2^(s_j - m) v_j[d] / sum_j 2^(s_j - m), s_j = scale q.k_j, with an online softmax in fp32 over all rows in
// order. NaN in q or in a key gives NaN, as in dense decode. One warp calls the function. out: [DIM], each lane writes four
// elements.
template <int DIM> __device__ __noinline__ void attend_exactly(const exact_head &h, float *out) {
    enum { AHEAD = 4 }; // rows in flight
    int lane = threadIdx.x % 32;
    bool has_dims = lane < DIM / 4;
    float q[4], o[4] = {0, 0, 0, 0}, m = -INFINITY, l = 0;
    load4(h.q + 4 * lane, has_dims, q);
    for (int first = 0; first < h.n_kv; first += AHEAD) { // AHEAD divides a page
        size_t block = (size_t)h.pages[first / SL_PAGE] * h.n_kv_heads + h.kv_head;
        const bool offloaded = IS_OFFLOADED && first / SL_PAGE < (h.n_kv - 1) / SL_PAGE;
        const size_t row = block * SL_PAGE + first % SL_PAGE;
        float s[AHEAD], v[AHEAD][4], most = m;
#pragma unroll
        for (int i = 0; i < AHEAD; i++) {
            bool there = has_dims && first + i < h.n_kv;
            float k[4], k_scale = 1;
            if (IS_BYTES) {
                k_scale = load_bytes4<DIM>(h.k, (int)row + i, h.is_fp8, has_dims, first + i < h.n_kv, k);
                float v_scale = load_bytes4<DIM>(h.v, (int)row + i, h.is_fp8, has_dims, first + i < h.n_kv, v[i]);
                for (int d = 0; d < 4; d++) v[i][d] *= v_scale;
            } else {
                const size_t stride = offloaded ? 2 * DIM : DIM;
                const bf16 *const k_rows = (offloaded ? h.host : h.k) + row * stride + 4 * lane;
                const bf16 *const v_rows = offloaded ? k_rows + DIM : h.v + row * stride + 4 * lane;
                load4(k_rows + i * stride, there, k);
                load4(v_rows + i * stride, there, v[i]);
            }
            s[i] = sl_sum_lanes(q[0] * k[0] + q[1] * k[1] + q[2] * k[2] + q[3] * k[3]) * h.scale;
            if (IS_BYTES) s[i] *= k_scale;
            if (first + i >= h.n_kv) s[i] = -INFINITY;
            most = fmaxf(most, s[i]);
        }
        float base = most == -INFINITY ? 0 : most, factor = exp2f(m - base);
        m = most, l *= factor;
        for (int d = 0; d < 4; d++) o[d] *= factor;
#pragma unroll
        for (int i = 0; i < AHEAD; i++) {
            float row_mass = exp2f(s[i] - base);
            l += row_mass;
            for (int d = 0; d < 4; d++) o[d] += row_mass * v[i][d];
        }
    }
    for (int d = 0; has_dims && d < 4; d++) out[4 * lane + d] = o[d] / l;
    __syncwarp();
    if (!h.stats || lane > 0) return;
    atomicAdd(&h.stats->fallbacks, 1ull);
    atomicAdd(&h.stats->v_rows, (unsigned long long)h.n_kv);
    atomicAdd(&h.stats->samples, (unsigned long long)h.n_kv);
    atomicAdd(&h.stats->bytes, (unsigned long long)h.n_kv * 2 * counted_row(DIM));
    if (IS_OFFLOADED) atomicAdd(&h.stats->fetched, (unsigned long long)(h.n_kv - 1) / SL_PAGE * SL_PAGE);
}

} // namespace

#endif
