// backend/cuda/cuda_ops.cu - see cuda_ops.h. Every thread moves 16 bytes at a time: eight bf16 elements.
// The naive versions are in tests/cuda/naive.h: naive_rope and naive_swiglu.
//
// Only norm_rope_append_kernel computes a sum. In the other kernels, one thread computes each output from its inputs.
// Rates: H100 80GB HBM3, November 2026, 2048 and 4096 rows of Llama-3.1-8B's shapes, cold L2, in graphs. A kernel that only
// reads gets 2.8 TB/s there.
#include "backend/cuda/device.cuh"
#include "backend/cuda/cuda_ops.h"
#include "kv/kv.h"
#include "base/philox.h"

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_fp8.h>

enum { BLOCK = 256, ROPE_BLOCK = 128, VEC = 8 };

static unsigned blocks_for(size_t n_threads) {
    return (unsigned)((n_threads + BLOCK - 1) / BLOCK);
}

// ---- eight elements, in fp32 ----

struct vec8 {
    float x[VEC];
};

// Eight bf16 to fp32; the element with the lower address is in the lower half of a word.
static __device__ __forceinline__ vec8 widen(uint4 packed) {
    const uint32_t w[4] = {packed.x, packed.y, packed.z, packed.w};
    vec8 u;
#pragma unroll
    for (int i = 0; i < 4; i++) {
        u.x[2 * i] = __uint_as_float(w[i] << 16);
        u.x[2 * i + 1] = __uint_as_float(w[i] & 0xFFFF0000u);
    }
    return u;
}

// Eight fp32 to bf16, rounded to nearest, ties to even.
static __device__ __forceinline__ uint4 narrow(const vec8 &u) {
    uint32_t w[4];
#pragma unroll
    for (int i = 0; i < 4; i++) {
        __nv_bfloat162 pair = __floats2bfloat162_rn(u.x[2 * i], u.x[2 * i + 1]);
        w[i] = (uint32_t)__bfloat16_as_ushort(pair.y) << 16 | __bfloat16_as_ushort(pair.x);
    }
    return make_uint4(w[0], w[1], w[2], w[3]);
}

// Stores u to out[i] .. out[i + 7], but nothing at or after out[n].
static __device__ __forceinline__ void store_vec8(bf16 *out, size_t i, size_t n, const vec8 &u) {
    if (i + VEC <= n) {
        *(uint4 *)(out + i) = narrow(u);
        return;
    }
#pragma unroll
    for (int j = 0; j < VEC; j++)
        if (i + j < n) out[i + j] = __bfloat16_as_ushort(__float2bfloat16_rn(u.x[j]));
}

// ---- the first operations of a step ----

// x[r] = table[ids[r]]
//
// Grid: (n_rows, ceil(hidden / 8 / BLOCK)). Each thread converts eight elements.
// Needs: hidden a multiple of 8; table and x 16-byte aligned.
// Bytes: 6 per element (reads 2, writes 4), at 2.4 and 2.6 TB/s.
static __global__ void embed_kernel(const bf16 *table, const int32_t *ids, int hidden, float *x) {
    sl_start_next();
    sl_wait_previous();
    int i = (blockIdx.y * BLOCK + threadIdx.x) * VEC;
    if (i >= hidden) return;
    vec8 u = widen(*(const uint4 *)(table + (size_t)ids[blockIdx.x] * hidden + i));
    float4 *to = (float4 *)(x + (size_t)blockIdx.x * hidden + i);
    to[0] = make_float4(u.x[0], u.x[1], u.x[2], u.x[3]);
    to[1] = make_float4(u.x[4], u.x[5], u.x[6], u.x[7]);
}

cudaError_t sl_cuda_ops_version(int *version) {
    cudaFuncAttributes attributes;
    cudaError_t rc = cudaFuncGetAttributes(&attributes, embed_kernel);
    if (rc == cudaSuccess) *version = attributes.ptxVersion;
    return rc;
}

void sl_cuda_embed(const bf16 *table, const int32_t *ids, int n_rows, int hidden, float *x, cudaStream_t stream) {
    SL_CHECK(hidden % VEC == 0);
    sl_launch(embed_kernel, dim3(n_rows, blocks_for(hidden / VEC)), dim3(BLOCK), 0, stream, table, ids, hidden, x);
}

// table[r][i] = (cos a, sin a) * scale, a = rows[r].position * inv_freq[i]
//
// Grid: ceil(n_rows * half / BLOCK). Each thread computes one angle.
// Bytes: writes 8 per angle. The kernel takes 4.7 and 5.4 us; most of this time is the launch. The compiler reports local
// memory, which sincos needs for angles of 2^31 or more only.
static __global__ void rope_table_kernel(const float *inv_freq, float scale, const sl_row *rows, int n_rows, int half,
                                         float2 *table) {
    sl_start_next();
    sl_wait_previous();
    int i = blockIdx.x * BLOCK + threadIdx.x;
    if (i >= n_rows * half) return;
    float angle = (float)rows[i / half].position * inv_freq[i % half]; // fp32, as in transformers
    double sine, cosine;
    sincos((double)angle, &sine, &cosine);
    table[i] = make_float2((float)cosine * scale, (float)sine * scale);
}

void sl_cuda_rope_table(const float *inv_freq, float scale, const sl_row *rows, int n_rows, int head_dim, float2 *table,
                        cudaStream_t stream) {
    int half = head_dim / 2;
    sl_launch(rope_table_kernel, dim3(blocks_for((size_t)n_rows * half)), dim3(BLOCK), 0, stream, inv_freq, scale, rows, n_rows,
              half, table);
}

// ---- between the linear layers of a prefill ----

// Rotates q in place, rotates k and copies v into the row's page: for each head, with (c, s) = table[row][i],
//   out[i] = x[i] c - x[i + half] s,   out[i + half] = x[i + half] c + x[i] s
//
// Grid: one thread block per row. A task is dimensions [i, i + 8) and [i + half, i + half + 8) of one head; threads take tasks
// ROPE_BLOCK apart.
// Needs: head_dim a multiple of 16, stride a multiple of 8, all pointers 16-byte aligned.
// Bytes: 4 per element of q, k and v, at 2.9 TB/s. The table of a row (4 bytes per dimension) comes from device memory for the
// first head and from L1 for the others.
static __global__ void rope_append_kernel(bf16 *qkv, size_t stride, const float2 *table, const sl_row *rows, int n_heads,
                                          int n_kv_heads, int head_dim, bf16 *k, bf16 *v) {
    sl_start_next();
    sl_wait_previous();
    const int half = head_dim / 2, n_units = half / VEC;
    const sl_row row = rows[blockIdx.x];
    const size_t page = row.pages[row.position / SL_PAGE], at = row.position % SL_PAGE;
    qkv += blockIdx.x * stride;
    table += (size_t)blockIdx.x * half;
    for (int task = threadIdx.x; task < (n_heads + 2 * n_kv_heads) * n_units; task += ROPE_BLOCK) {
        const int head = task / n_units, i = task % n_units * VEC;
        bf16 *from = qkv + (size_t)head * head_dim + i, *to = from;
        if (head >= n_heads) {
            int kv_head = (head - n_heads) % n_kv_heads;
            to = (head < n_heads + n_kv_heads ? k : v) + ((page * n_kv_heads + kv_head) * SL_PAGE + at) * head_dim + i;
        }
        uint4 low = *(const uint4 *)from, high = *(const uint4 *)(from + half);
        if (head < n_heads + n_kv_heads) {
            vec8 a = widen(low), b = widen(high), c, d;
#pragma unroll
            for (int j = 0; j < VEC; j += 2) {
                float4 r = *(const float4 *)(table + i + j); // cos, sin, cos, sin
                c.x[j] = a.x[j] * r.x - b.x[j] * r.y, d.x[j] = b.x[j] * r.x + a.x[j] * r.y;
                c.x[j + 1] = a.x[j + 1] * r.z - b.x[j + 1] * r.w, d.x[j + 1] = b.x[j + 1] * r.z + a.x[j + 1] * r.w;
            }
            low = narrow(c), high = narrow(d);
        }
        *(uint4 *)to = low, *(uint4 *)(to + half) = high;
    }
}

void sl_cuda_rope_append(bf16 *qkv, size_t stride, const float2 *table, const sl_row *rows, int n_rows, int n_heads,
                         int n_kv_heads, int head_dim, bf16 *k, bf16 *v, cudaStream_t stream) {
    SL_CHECK(head_dim % (2 * VEC) == 0 && stride % VEC == 0);
    sl_launch(rope_append_kernel, dim3(n_rows), dim3(ROPE_BLOCK), 0, stream, qkv, stride, table, rows, n_heads, n_kv_heads,
              head_dim, k, v);
}

// Two neighbouring elements, in fp32.
static __device__ __forceinline__ float2 load_pair(const float *x) {
    return __ldcg((const float2 *)x);
}
static __device__ __forceinline__ float2 load_pair(const bf16 *x) {
    const uint32_t pair = __ldcg((const uint32_t *)x);
    return make_float2(__uint_as_float(pair << 16), __uint_as_float(pair & 0xFFFF0000u));
}
static __device__ __forceinline__ void store_pair(bf16 *to, float x, float y) {
    *(__nv_bfloat162 *)to = __floats2bfloat162_rn(x, y);
}

enum { HEAD_WARPS = 4, MOST_PAIRS = 2 }; // MOST_PAIRS: pairs of a lane in one half of a head of 256

// For each head of q, k and v, with x' = x + bias:
//   y = x' / sqrt(mean(x'^2) + eps) * norm (q and k, if there is a norm; else y = x'), then RoPE for q and k, then the append
//
// Grid: (n_rows, ceil(heads / HEAD_WARPS)), one warp per head. A lane holds the dimensions i, i + 1 and half + i, half + i + 1
// for i = 2 lane and 2 lane + 64: both members of each rotation. Needs: head_dim a multiple of 16, at most 128 MOST_PAIRS;
// strides even. Bytes: 4 per element of q, k and v (6 when T is float). Reduction order of the sum of squares: the values of a
// lane in the order of its pairs, low half before high half, then sl_sum_lanes.
template <typename T> static __global__ void __launch_bounds__(HEAD_WARPS * 32) norm_rope_append_kernel(const sl_cuda_heads p) {
    sl_start_next();
    sl_wait_previous();
    const int lane = threadIdx.x % 32, head = blockIdx.y * HEAD_WARPS + threadIdx.x / 32, half = p.head_dim / 2;
    if (head >= p.n_heads + 2 * p.n_kv_heads) return;
    const int is_q = head < p.n_heads, is_v = head >= p.n_heads + p.n_kv_heads;
    const T *x = (const T *)p.qkv + blockIdx.x * p.stride + (size_t)head * p.head_dim;
    const bf16 *norm = is_q ? p.q_norm : is_v ? NULL : p.k_norm;
    float2 low[MOST_PAIRS], high[MOST_PAIRS];
    float sum = 0;
#pragma unroll
    for (int s = 0; s < MOST_PAIRS; s++) {
        const int i = 2 * lane + 64 * s;
        low[s] = high[s] = make_float2(0, 0);
        if (i >= half) continue;
        low[s] = load_pair(x + i), high[s] = load_pair(x + half + i);
        if (p.bias) {
            const float2 a = load_pair(p.bias + (size_t)head * p.head_dim + i),
                         b = load_pair(p.bias + (size_t)head * p.head_dim + half + i);
            low[s].x += a.x, low[s].y += a.y, high[s].x += b.x, high[s].y += b.y;
        }
        sum += low[s].x * low[s].x + low[s].y * low[s].y + high[s].x * high[s].x + high[s].y * high[s].y;
    }
    const float scale = norm ? 1 / sqrtf(sl_sum_lanes(sum) / p.head_dim + p.eps) : 1;
    bf16 *out = p.q + blockIdx.x * p.q_stride + (size_t)head * p.head_dim;
    if (!is_q) {
        const sl_row row = p.rows[blockIdx.x];
        const size_t page = row.pages[row.position / SL_PAGE], kv_head = (head - p.n_heads) % p.n_kv_heads;
        const size_t at = p.kv_stride ? blockIdx.x * p.kv_stride + kv_head * p.head_dim
                                      : ((page * p.n_kv_heads + kv_head) * SL_PAGE + row.position % SL_PAGE) * p.head_dim;
        out = (is_v ? p.v : p.k) + at;
    }
#pragma unroll
    for (int s = 0; s < MOST_PAIRS; s++) {
        const int i = 2 * lane + 64 * s;
        if (i >= half) continue;
        float2 a = low[s], b = high[s];
        if (norm) {
            const float2 u = load_pair(norm + i), w = load_pair(norm + half + i);
            a.x *= scale * u.x, a.y *= scale * u.y, b.x *= scale * w.x, b.y *= scale * w.y;
        }
        if (!is_v) {
            const float4 r = __ldcg((const float4 *)(p.table + (size_t)blockIdx.x * half + i)); // cos, sin, cos, sin
            const float2 c = a, d = b;
            a = make_float2(c.x * r.x - d.x * r.y, c.y * r.z - d.y * r.w);
            b = make_float2(d.x * r.x + c.x * r.y, d.y * r.z + c.y * r.w);
        }
        store_pair(out + i, a.x, a.y), store_pair(out + half + i, b.x, b.y);
    }
}

void sl_cuda_norm_rope_append(const sl_cuda_heads *args, cudaStream_t stream) {
    const sl_cuda_heads &p = *args;
    SL_CHECK(p.head_dim % (2 * VEC) == 0 && p.head_dim <= 128 * MOST_PAIRS && p.stride % 2 == 0 && p.q_stride % 2 == 0);
    const dim3 grid(p.n_rows, (p.n_heads + 2 * p.n_kv_heads + HEAD_WARPS - 1) / HEAD_WARPS);
    sl_launch(p.is_fp32 ? norm_rope_append_kernel<float> : norm_rope_append_kernel<bf16>, grid, dim3(HEAD_WARPS * 32), 0,
              stream, p);
}

// ---- the append to a cache of fp8 or int8 ----

// Eight numbers as bytes, in order. A number beyond the largest stored number becomes that number.
template <bool FP8> static __device__ __forceinline__ uint2 to_bytes(const vec8 &u) {
    const float most = FP8 ? 448 : 127;
    uint32_t w[2] = {0, 0};
#pragma unroll
    for (int i = 0; i < VEC; i++) {
        const float q = fminf(fmaxf(u.x[i], -most), most);
        const uint32_t byte =
            FP8 ? (uint32_t)__nv_cvt_float_to_fp8(q, __NV_SATFINITE, __NV_E4M3) : (uint32_t)__float2int_rn(q) & 255;
        w[i / 4] |= byte << i % 4 * 8;
    }
    return make_uint2(w[0], w[1]);
}

enum { ROW_LANES = 16 }; // lanes of a row: 8 numbers each

// Two rows of a warp, one in lanes 0 .. 15, one in lanes 16 .. 31: scale = max |x| / 127 or / 448 (1 for zeros, NaN if a number
// is not finite), bytes = x / scale, rounded to nearest, ties to even. from: the lane's numbers, if exists. block, row: the
// place of the lane's row. given: the scale of a checkpoint; 0: none.
template <bool FP8>
static __device__ __forceinline__ void store_row(const bf16 *from, bool exists, int head_dim, void *blocks, size_t block,
                                                 int row, float given) {
    const int i = threadIdx.x % ROW_LANES * VEC, first = threadIdx.x % 32 / ROW_LANES * ROW_LANES;
    exists = exists && i < head_dim;
    const vec8 x = widen(exists ? __ldcg((const uint4 *)from) : uint4{0, 0, 0, 0});
    float largest = 0;
    bool is_finite = true;
#pragma unroll
    for (int j = 0; j < VEC; j++) largest = fmaxf(largest, fabsf(x.x[j])), is_finite &= fabsf(x.x[j]) < INFINITY;
    for (int step = ROW_LANES / 2; step > 0; step /= 2) largest = fmaxf(largest, __shfl_xor_sync(~0u, largest, step));
    is_finite = (__ballot_sync(~0u, !is_finite) >> first & 0xffff) == 0;
    if (!exists) return;
    float scale = given > 0 ? given : __fdiv_rn(largest, FP8 ? 448 : 127);
    scale = scale > 0 ? scale : 1;
    vec8 q;
#pragma unroll
    for (int j = 0; j < VEC; j++) q.x[j] = is_finite ? __fdiv_rn(x.x[j], scale) : 0;
    char *out = (char *)blocks + block * SL_PAGE * (head_dim + sizeof(float));
    *(uint2 *)(out + row * head_dim + i) = to_bytes<FP8>(q);
    if (i == 0) ((float *)(out + SL_PAGE * head_dim))[row] = is_finite ? scale : __uint_as_float(0x7fc00000);
}

// Grid: ceil(n_rows * n_kv_heads / warps). A warp has a row of K and the same row of V.
// Needs: head_dim at most 128; k and v 16-byte aligned. Bytes: 3 for each number. A step calls it once a layer, so its time is
// the latency of two dependent loads and of the stores.
template <bool FP8> static __global__ void __launch_bounds__(BLOCK) store_rows_kernel(const sl_cuda_kv_rows p) {
    sl_start_next();
    sl_wait_previous();
    const int item = blockIdx.x * (BLOCK / 32) + threadIdx.x / 32, r = item / p.n_kv_heads, head = item % p.n_kv_heads;
    if (r >= p.n_rows) return;
    const bool is_v = threadIdx.x % 32 >= ROW_LANES;
    const bf16 *from = (is_v ? p.v : p.k) + r * p.stride + (size_t)head * p.head_dim + threadIdx.x % ROW_LANES * VEC;
    const sl_row row = p.rows[r];
    const size_t block = (size_t)row.pages[row.position / SL_PAGE] * p.n_kv_heads + head;
    const float *scales = is_v ? p.v_scales : p.k_scales;
    store_row<FP8>(from, true, p.head_dim, is_v ? p.v_layer : p.k_layer, block, row.position % SL_PAGE,
                   scales ? scales[head] : 0);
}

void sl_cuda_store_rows(const sl_cuda_kv_rows *args, cudaStream_t stream) {
    const sl_cuda_kv_rows &p = *args;
    SL_CHECK(p.format == SL_FP8 || p.format == SL_INT8);
    SL_CHECK(p.head_dim % (2 * VEC) == 0 && p.head_dim <= ROW_LANES * VEC && p.stride % VEC == 0);
    sl_launch(p.format == SL_FP8 ? store_rows_kernel<true> : store_rows_kernel<false>,
              dim3(blocks_for((size_t)p.n_rows * p.n_kv_heads * 32)), dim3(BLOCK), 0, stream, p);
}

// Grid: ceil(n_rows / rows of a thread block), two rows for each warp. Needs: as store_rows_kernel.
template <bool FP8>
static __global__ void __launch_bounds__(BLOCK) store_blocks_kernel(const bf16 *rows, int head_dim, int n_rows, void *blocks) {
    sl_start_next();
    sl_wait_previous();
    const int r = blockIdx.x * (BLOCK / ROW_LANES) + threadIdx.x / ROW_LANES;
    const bf16 *from = rows + (size_t)r * head_dim + threadIdx.x % ROW_LANES * VEC;
    store_row<FP8>(from, r < n_rows, head_dim, blocks, r / SL_PAGE, r % SL_PAGE, 0);
}

void sl_cuda_store_blocks(const bf16 *rows, sl_format format, int head_dim, int n_rows, void *blocks, cudaStream_t stream) {
    SL_CHECK(format == SL_FP8 || format == SL_INT8);
    SL_CHECK(head_dim % (2 * VEC) == 0 && head_dim <= ROW_LANES * VEC);
    sl_launch(format == SL_FP8 ? store_blocks_kernel<true> : store_blocks_kernel<false>,
              dim3(blocks_for((size_t)n_rows * ROW_LANES)), dim3(BLOCK), 0, stream, rows, head_dim, n_rows, blocks);
}

// out = silu(gate) * up, silu(g) = g / (1 + e^-g)
//
// Grid: (n_rows, ceil(n_ffn / 8 / BLOCK)). Each thread computes eight outputs.
// Needs: n_ffn a multiple of 8, all pointers 16-byte aligned.
// Bytes: 6 per output (reads 4, writes 2), at 3.0 to 3.1 TB/s.
// Error: the fast exponential and the fast division have relative errors of a few 2^-22. The rounding to bf16 has 2^-8.
static __global__ void swiglu_kernel(const bf16 *gate_up, int n_ffn, bf16 *out) {
    sl_start_next();
    sl_wait_previous();
    int i = (blockIdx.y * BLOCK + threadIdx.x) * VEC;
    if (i >= n_ffn) return;
    const bf16 *gate = gate_up + (size_t)blockIdx.x * 2 * n_ffn + i;
    uint4 packed = *(const uint4 *)gate;
    vec8 up = widen(*(const uint4 *)(gate + n_ffn)), g = widen(packed);
#pragma unroll
    for (int j = 0; j < VEC; j++) up.x[j] *= __fdividef(g.x[j], 1 + __expf(-g.x[j]));
    *(uint4 *)(out + (size_t)blockIdx.x * n_ffn + i) = narrow(up);
}

void sl_cuda_swiglu(const bf16 *gate_up, int n_rows, int n_ffn, bf16 *out, cudaStream_t stream) {
    SL_CHECK(n_ffn % VEC == 0);
    sl_launch(swiglu_kernel, dim3(n_rows, blocks_for(n_ffn / VEC)), dim3(BLOCK), 0, stream, gate_up, n_ffn, out);
}

// ---- at load ----

// out[i] = quantiles[16 random bits]
//
// Grid: ceil(n / 8 / BLOCK). Each thread makes eight numbers from one Philox block (128 bits).
// Bytes: writes 2 per number. The table (128 KB) stays in the caches.
static __global__ void dummy_fill_kernel(uint64_t key, const bf16 *quantiles, size_t from, size_t n, size_t n_cols,
                                         size_t stride, bf16 *out) {
    sl_start_next();
    sl_wait_previous();
    const size_t first = ((size_t)blockIdx.x * BLOCK + threadIdx.x) * VEC;
    if (first >= n) return;
    const size_t block = (from + first / n_cols * stride + first % n_cols) / VEC;
    sl_philox4 r =
        sl_philox((uint32_t)key, (uint32_t)(key >> 32), (uint32_t)block, (uint32_t)(block >> 32), 0, SL_STREAM_WEIGHTS);
#pragma unroll
    for (int i = 0; i < VEC; i++)
        if (first + i < n) out[first + i] = quantiles[r.v[i / 2] >> 16 * (i % 2) & 0xffff];
}

void sl_cuda_dummy_fill(uint64_t key, const bf16 *quantiles, size_t from, int n_rows, size_t n_cols, size_t stride, bf16 *out,
                        cudaStream_t stream) {
    const size_t n = n_rows * n_cols;
    SL_CHECK(from % VEC == 0 && (n_rows == 1 || (n_cols % VEC == 0 && stride % VEC == 0)));
    if (n == 0) return;
    sl_launch(dummy_fill_kernel, dim3(blocks_for((n + VEC - 1) / VEC)), dim3(BLOCK), 0, stream, key, quantiles, from, n, n_cols,
              stride, out);
}

static __device__ __forceinline__ float to_float(float x) {
    return x;
}
static __device__ __forceinline__ float to_float(__half x) {
    return __half2float(x);
}

// out[i] = bf16(in[i])
//
// Grid: ceil(n / 8 / BLOCK). Each thread converts eight elements.
// Needs: in and out 16-byte aligned.
// Bytes: 4 (F16) or 6 (F32) per element, at 3.1 TB/s.
template <typename T> static __global__ void to_bf16_kernel(const T *in, size_t n, bf16 *out) {
    sl_start_next();
    sl_wait_previous();
    const size_t first = ((size_t)blockIdx.x * BLOCK + threadIdx.x) * VEC;
    if (first >= n) return;
    vec8 u = {};
    if (first + VEC <= n) {
        alignas(16) T x[VEC];
#pragma unroll
        for (int i = 0; i < (int)(sizeof x / sizeof(uint4)); i++) ((uint4 *)x)[i] = ((const uint4 *)(in + first))[i];
#pragma unroll
        for (int i = 0; i < VEC; i++) u.x[i] = to_float(x[i]);
    } else {
#pragma unroll
        for (int i = 0; i < VEC; i++)
            if (first + i < n) u.x[i] = to_float(in[first + i]);
    }
    store_vec8(out, first, n, u);
}

void sl_cuda_to_bf16(const void *in, sl_format format, size_t n, bf16 *out, cudaStream_t stream) {
    SL_CHECK(format == SL_F16 || format == SL_F32);
    if (n == 0) return;
    const dim3 grid(blocks_for((n + VEC - 1) / VEC)), block(BLOCK);
    if (format == SL_F16)
        sl_launch(to_bf16_kernel<__half>, grid, block, 0, stream, (const __half *)in, n, out);
    else
        sl_launch(to_bf16_kernel<float>, grid, block, 0, stream, (const float *)in, n, out);
}
