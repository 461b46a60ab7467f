// attention/cuda/page_extras.cu - builds page extras on CUDA: norms of V, quantised keys, keys by feature. The CPU's builders
// state the contents and the layout (page_norms.c, propose_quantised.c, propose_bernoulli.c). The results have the same bits as
// the CPU's, for a cache of every format. (Only methods without kernels for fp8 and int8 need keys by feature.)
#include "attention/cuda/norms.cuh"
#include "backend/cuda/device.cuh"

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <math.h>

enum { THREADS = 256 };
static_assert((int)THREADS == (int)SL_PAGE, "one thread for each row");

// ---- norms of V ----

// out[j] = |v_j|. Grid: (pages, KV heads), one thread for each row.
template <sl_format F>
static __global__ void __launch_bounds__(THREADS)
    norms_kernel(const int32_t *pages, const int32_t *from, const bf16 *v, int head_dim, bf16 *out) {
    sl_start_next();
    sl_wait_previous();
    size_t block = (size_t)pages[blockIdx.x] * gridDim.y + blockIdx.y, rows = (size_t)from[blockIdx.x] * gridDim.y + blockIdx.y;
    const stored_block_of<F> values(v, rows, head_dim);
    const char *row = values.row(threadIdx.x);
    out[block * SL_PAGE + threadIdx.x] = F == SL_BF16
                                             ? sl_norm_of_row((const bf16 *)row, head_dim)
                                             : sl_norm_of_bytes(row, values.scales[threadIdx.x], F == SL_FP8, head_dim);
}

template <sl_format F> static void build_norms(const sl_kv_device_build *b) {
    sl_launch(norms_kernel<F>, dim3(b->n, b->n_kv_heads), dim3(THREADS), 0, (cudaStream_t)b->stream, b->pages, b->from, b->v,
              b->head_dim, (bf16 *)b->data);
}

void sl_cuda_build_norms(const sl_kv_device_build *b) {
    SL_WITH_CACHE_FORMAT(b->format, build_norms, b);
}

// ---- quantised keys ----

// half_below: the largest f16 number that is not above x. half_above: the smallest f16 number that is not below x. The result
// is always finite: x is first limited to the range of f16.
static __device__ __forceinline__ __half half_below(float x) {
    return x > -65504.0f ? __float2half_rd(fminf(x, 65504.0f)) : __float2half_rd(-65504.0f);
}
static __device__ __forceinline__ __half half_above(float x) {
    return x < 65504.0f ? __float2half_ru(fmaxf(x, -65504.0f)) : __float2half_ru(65504.0f);
}

// A plane holds `width` bits of each code, from bit `shift` on.
struct plane {
    int width, shift;
};

static __device__ int plane_units(int width, int head_dim) { // number of 64-byte units, each with codes of 16 rows
    return (head_dim * width + 31) / 32;
}

// Stores the codes of channels first .. first + 31 of row j to one plane.
static __device__ void store_words(plane p, const uint8_t codes[32], int first, int head_dim, int j, uint8_t *to) {
    int n_units = plane_units(p.width, head_dim), per_word = 32 / p.width, per_byte = 8 / p.width;
    for (int w = 0; w < p.width; w++) {
        int unit = first / per_word + w;
        if (unit >= n_units) return;
        uint32_t word = 0;
        for (int i = 0; i < per_word; i++) { // channel 4 t + b of the word has bits [width t, width (t + 1)) of byte b
            uint32_t part = codes[w * per_word + i] >> p.shift & ((1u << p.width) - 1);
            word |= part << (i % 4 * 8 + i / 4 % per_byte * p.width);
        }
        *(uint32_t *)(to + ((size_t)(j / 16) * n_units + unit) * 64 + j % 16 * 4) = word;
    }
}

// First, one thread for each channel finds the step and the zero of the channel. Then one thread for each row computes the
// codes of the row.
//
// Grid: (pages, KV heads).
// Bytes: reads K of the page twice, the second time from the L2 cache; writes bits / 16 of its size.
template <sl_format F>
static __global__ void __launch_bounds__(THREADS)
    quantise_kernel(const int32_t *pages, const int32_t *from_pages, const bf16 *k, int head_dim, int bits, size_t size,
                    uint8_t *data) {
    __shared__ float zero[128], inverse[128];
    sl_start_next();
    sl_wait_previous();
    size_t block = (size_t)pages[blockIdx.x] * gridDim.y + blockIdx.y;
    const stored_block_of<F> rows(k, (size_t)from_pages[blockIdx.x] * gridDim.y + blockIdx.y, head_dim);
    uint8_t *out = data + block * size;
    int c = threadIdx.x, levels = (1 << bits) - 1;
    if (c < head_dim) {
        float low = INFINITY, high = -INFINITY;
        bool has_nan = false;
        for (int j = 0; j < SL_PAGE; j++) {
            float x = rows.number(j, c) + 0.0f; // -0 becomes 0, as on the CPU
            low = fminf(low, x), high = fmaxf(high, x);
            has_nan |= isnan(x);
        }
        __half from = half_below(low);
        zero[c] = __half2float(from);
        __half step = half_above(fmaxf(__fdiv_rn(high - zero[c], (float)levels), 2 * (zero[c] - low)));
        float width = __half2float(step);
        inverse[c] = width > 0 ? __fdiv_rn(1, width) : 0;
        if (has_nan || high > __fadd_rn(zero[c], __fmul_rn(width, (float)levels + 0.5f)) ||
            low < __fsub_rn(zero[c], __fmul_rn(width, 0.5f)))
            step = __ushort_as_half(0x7e00), inverse[c] = 0;
        ((__half *)out)[c] = step;
        ((__half *)out)[head_dim + c] = from;
    }
    __syncthreads();
    plane planes[2] = {{bits == 3 ? 2 : bits, 0}, {1, 2}};
    int j = threadIdx.x, n_planes = bits == 3 ? 2 : 1;
    uint8_t *at = out + 2 * head_dim * sizeof(__half);
    for (int first = 0; first < head_dim; first += 32) {
        uint8_t codes[32];
        for (int i = 0; i < 32; i++) {
            int channel = first + i;
            float x = channel < head_dim ? rows.number(j, channel) : 0;
            int code = channel < head_dim ? __float2int_rn(__fmul_rn(x - zero[channel], inverse[channel])) : 0;
            codes[i] = (uint8_t)min(max(code, 0), levels);
        }
        uint8_t *to = at;
        for (int i = 0; i < n_planes; i++) {
            store_words(planes[i], codes, first, head_dim, j, to);
            to += (size_t)plane_units(planes[i].width, head_dim) * 64 * (SL_PAGE / 16);
        }
    }
}

template <sl_format F> static void build_quantised(const sl_kv_device_build *b) {
    sl_launch(quantise_kernel<F>, dim3(b->n, b->n_kv_heads), dim3(THREADS), 0, (cudaStream_t)b->stream, b->pages, b->from, b->k,
              b->head_dim, b->arg, b->size, (uint8_t *)b->data);
}

void sl_cuda_build_quantised(const sl_kv_device_build *b) {
    SL_CHECK(b->head_dim <= 128);
    SL_WITH_CACHE_FORMAT(b->format, build_quantised, b);
}

// ---- keys by feature ----

enum { FEATURES = 16 }; // features that a thread block transposes

// out[i][j] = k[j][i]. Grid: (pages, KV heads, head_dim / 16). A thread reads 16 numbers of one row. Then it writes 32 bytes of
// one feature.
static __global__ void __launch_bounds__(THREADS)
    by_feature_kernel(const int32_t *pages, const int32_t *from, const bf16 *k, int head_dim, size_t size, char *data) {
    __shared__ __align__(16) bf16 turned[FEATURES][SL_PAGE + 8]; // the pad puts neighbouring features into different banks
    sl_start_next();
    sl_wait_previous();
    size_t block = (size_t)pages[blockIdx.x] * gridDim.y + blockIdx.y;
    size_t rows = (size_t)from[blockIdx.x] * gridDim.y + blockIdx.y;
    const stored_block_of<SL_BF16> from_rows(k, rows, head_dim);
    float x[FEATURES];
    from_rows.numbers(threadIdx.x, blockIdx.z * FEATURES, x);
    from_rows.numbers(threadIdx.x, blockIdx.z * FEATURES + 8, x + 8);
#pragma unroll
    for (int i = 0; i < FEATURES; i++) turned[i][threadIdx.x] = (bf16)(__float_as_uint(x[i]) >> 16);
    __syncthreads();
    int feature = threadIdx.x / 16, part = threadIdx.x % 16;
    uint4 *out = (uint4 *)(data + block * size) + (blockIdx.z * FEATURES + feature) * (SL_PAGE / 8);
#pragma unroll
    for (int i = 0; i < 2; i++) out[part + 16 * i] = *(const uint4 *)&turned[feature][(part + 16 * i) * 8];
}

void sl_cuda_build_keys_by_feature(const sl_kv_device_build *b) {
    SL_CHECK(b->head_dim % FEATURES == 0 && b->format == SL_BF16);
    sl_launch(by_feature_kernel, dim3(b->n, b->n_kv_heads, b->head_dim / FEATURES), dim3(THREADS), 0, (cudaStream_t)b->stream,
              b->pages, b->from, b->k, b->head_dim, b->size, (char *)b->data);
}
