// attention/cuda/stored_rows.cuh - how decode kernels read rows of K and V in the format of the cache (kv/kv_rows.h).
//
// The Makefile compiles decode kernels a second time, with SL_BYTE_ROWS, for caches of fp8 or int8: a row has head_dim bytes,
// and the scales of a block's 256 rows follow its rows. K and V have the same format, which is an argument of the kernel. Every
// fp8 and int8 number is also a bf16 number. So the matrix instructions multiply the stored numbers exactly, and the kernel
// multiplies the fp32 score of a row by the scale of K, and the mass of a row by the scale of V.
#ifndef SLEIGH_STORED_ROWS_CUH
#define SLEIGH_STORED_ROWS_CUH

#include "backend/cuda/device.cuh"
#include "base/error.h"
#include "kv/kv.h"

#include <cuda_bf16.h>
#include <type_traits>

namespace {

#ifdef SL_BYTE_ROWS
enum { IS_BYTES = 1 };
#else
enum { IS_BYTES = 0 };
#endif

// Bytes of a row without its scale, of its scale, and of a block.
template <int DIM> static constexpr int stored_row = IS_BYTES ? DIM : DIM *(int)sizeof(bf16);
enum { STORED_SCALE = IS_BYTES * (int)sizeof(float) };
template <int DIM> static constexpr int stored_block = SL_PAGE *(stored_row<DIM> + STORED_SCALE);

// Bytes of a row with its scale, as statistics count them (sl_kv_row_bytes).
static inline __host__ __device__ int counted_row(int head_dim) {
    return head_dim * (IS_BYTES ? 1 : (int)sizeof(bf16)) + STORED_SCALE;
}

// Four and eight consecutive numbers of a row, as they are stored.
typedef std::conditional_t<IS_BYTES, uint32_t, uint2> four_numbers;
typedef std::conditional_t<IS_BYTES, uint2, uint4> eight_numbers;

// A row of a block of K or V. blocks: of the layer. block: page * n_kv_heads + KV head
template <int DIM> __device__ __forceinline__ const char *row_of_block(const bf16 *blocks, size_t block, int row) {
    return (const char *)blocks + block * stored_block<DIM> + row * stored_row<DIM>;
}

// The address of a row's scale. The scales of the next rows of the block follow it. Only with IS_BYTES.
template <int DIM> __device__ __forceinline__ const float *scale_of_block(const bf16 *blocks, size_t block, int row) {
    return (const float *)((const char *)blocks + block * stored_block<DIM> + SL_PAGE * DIM) + row;
}

// The same for a pool row (decode_ring.cuh).
template <int DIM> __device__ __forceinline__ const char *row_of_pool(const bf16 *blocks, int row) {
    if (!IS_BYTES) return (const char *)(blocks + (size_t)row * DIM);
    return row_of_block<DIM>(blocks, row / SL_PAGE, row % SL_PAGE);
}
template <int DIM> __device__ __forceinline__ const float *scale_of_pool(const bf16 *blocks, int row) {
    return scale_of_block<DIM>(blocks, row / SL_PAGE, row % SL_PAGE);
}

// A pair of fp8 numbers as a pair of bf16. bits: the numbers without signs, at the places of bf16's exponent and mantissa.
// There they are the numbers times 2^-120, also if subnormal. signs: the signs, at bf16's place. `bits` may have other bits
// outside the mask, and `signs` inside it.
__device__ __forceinline__ uint32_t widen_spread_fp8(uint32_t bits, uint32_t signs) {
    const uint32_t mask = 0x07f007f0u, raised = 0x7b807b80u; // 2^120
    uint32_t x;
    asm("lop3.b32 %0, %1, %2, %3, 0xca;" : "=r"(x) : "r"(mask), "r"(bits), "r"(signs)); // mask ? bits : signs
    __nv_bfloat162 y = __hmul2(*(const __nv_bfloat162 *)&x, *(const __nv_bfloat162 *)&raised);
    return *(uint32_t *)&y;
}

// The number of a pair of bytes in the upper byte of each half of x, as a pair of bf16. The lower bytes may be anything.
template <bool FP8> __device__ __forceinline__ uint32_t widen_upper_bytes(uint32_t x) {
    __nv_bfloat162 y;
    if (FP8) { // at the places of bf16's sign, exponent and mantissa, the bits are the number times 2^-120, also if subnormal
        const uint32_t raised = 0x7b807b80u, bits = (x >> 4 & 0x07f007f0u) | (x & 0x80008000u); // 2^120
        y = __hmul2(*(const __nv_bfloat162 *)&bits, *(const __nv_bfloat162 *)&raised);
    } else { // 128 + the lower seven bits, minus 128 or, with the sign bit, 256
        const uint32_t a = (x >> 8 & 0x007f007fu) | 0x43004300u, b = (x >> 8 & 0x00800080u) | 0x43004300u;
        y = __hsub2(*(const __nv_bfloat162 *)&a, *(const __nv_bfloat162 *)&b);
    }
    return *(uint32_t *)&y;
}

// Four stored numbers as bf16 pairs: pair[0] has numbers 0 and 2, pair[1] has numbers 1 and 3. So K and q must take their
// dimensions in this order.
template <bool FP8> __device__ __forceinline__ void widen_bytes(uint32_t word, uint32_t pair[2]) {
    if (FP8) { // as widen_upper_bytes; the four signs together save an instruction
        uint32_t signs;
        asm("and.b32 %0, %1, 0x80808080;" : "=r"(signs) : "r"(word)); // asm: the compiler would split it again
        pair[0] = widen_spread_fp8(word << 4, signs << 8);
        pair[1] = widen_spread_fp8(word >> 4, signs);
        return;
    }
    pair[0] = widen_upper_bytes<FP8>(word << 8);
    pair[1] = widen_upper_bytes<FP8>(word);
}

// Four stored numbers as floats, in order, without the scale. is_fp8: for kernels in which the format is not a constant.
__device__ __forceinline__ float4 floats_of_bytes(uint32_t word, bool is_fp8) {
    uint32_t pair[2];
    if (is_fp8)
        widen_bytes<true>(word, pair);
    else
        widen_bytes<false>(word, pair);
    return make_float4(__uint_as_float(pair[0] << 16), __uint_as_float(pair[1] << 16), __uint_as_float(pair[0] & 0xffff0000u),
                       __uint_as_float(pair[1] & 0xffff0000u));
}

// Stored numbers as floats, in order, without the scale. is_fp8: only read with IS_BYTES.
__device__ __forceinline__ void widen4(uint2 x, float to[4], bool = false) {
    to[0] = __uint_as_float(x.x << 16), to[1] = __uint_as_float(x.x & 0xffff0000u);
    to[2] = __uint_as_float(x.y << 16), to[3] = __uint_as_float(x.y & 0xffff0000u);
}
__device__ __forceinline__ void widen4(uint32_t x, float to[4], bool is_fp8) {
    float4 y = floats_of_bytes(x, is_fp8);
    to[0] = y.x, to[1] = y.y, to[2] = y.z, to[3] = y.w;
}
__device__ __forceinline__ void widen8(const uint4 &x, float to[8], bool = false) {
    widen4(make_uint2(x.x, x.y), to), widen4(make_uint2(x.z, x.w), to + 4);
}
__device__ __forceinline__ void widen8(uint2 x, float to[8], bool is_fp8) {
    widen4(x.x, to, is_fp8), widen4(x.y, to + 4, is_fp8);
}

// ---- blocks for kernels that are compiled once, for every format of a cache ----

// One block. Its numbers have the bits of sl_kv_number.
template <sl_format F> struct stored_block_of {
    const char *rows;
    const float *scales; // [256]; of bf16 not used
    int head_dim;

    // Block number `block` of a layer's K or V.
    __device__ __forceinline__ stored_block_of(const bf16 *blocks, size_t block, int dim) : head_dim(dim) {
        const int row = F == SL_BF16 ? dim * (int)sizeof(bf16) : dim;
        rows = (const char *)blocks + block * SL_PAGE * (row + (F == SL_BF16 ? 0 : (int)sizeof(float)));
        scales = (const float *)(rows + SL_PAGE * row);
    }
    __device__ __forceinline__ const char *row(int j) const { // without its scale
        return rows + (size_t)j * head_dim * (F == SL_BF16 ? sizeof(bf16) : 1);
    }
    // Number i of row j.
    __device__ __forceinline__ float number(int j, int i) const {
        if (F == SL_BF16) return sl_widen(((const bf16 *)row(j))[i]);
        return __fmul_rn(floats_of_bytes(((const uint8_t *)row(j))[i], F == SL_FP8).x, scales[j]);
    }
    // Numbers i .. i + 7 of row j; i a multiple of 8.
    __device__ __forceinline__ void numbers(int j, int i, float x[8]) const {
        if (F == SL_BF16) {
            widen8(*(const uint4 *)(row(j) + i * sizeof(bf16)), x);
            return;
        }
        widen8(*(const uint2 *)(row(j) + i), x, F == SL_FP8);
#pragma unroll
        for (int c = 0; c < 8; c++) x[c] = __fmul_rn(x[c], scales[j]);
    }
};

// Calls FUNCTION<format>(arguments) for the format of a cache.
#define SL_WITH_CACHE_FORMAT(FORMAT, FUNCTION, ...)                                                                            \
    switch (FORMAT) {                                                                                                          \
    case SL_BF16:                                                                                                              \
        FUNCTION<SL_BF16>(__VA_ARGS__);                                                                                        \
        break;                                                                                                                 \
    case SL_FP8:                                                                                                               \
        FUNCTION<SL_FP8>(__VA_ARGS__);                                                                                         \
        break;                                                                                                                 \
    case SL_INT8:                                                                                                              \
        FUNCTION<SL_INT8>(__VA_ARGS__);                                                                                        \
        break;                                                                                                                 \
    default:                                                                                                                   \
        SL_CHECK(!"bf16, fp8 or int8");                                                                                        \
    }

} // namespace

#endif
