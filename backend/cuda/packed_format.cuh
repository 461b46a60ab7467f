// backend/cuda/packed_format.cuh - how the words of packed weights (packed.h) become numbers, for all kernels that read them.
#ifndef SLEIGH_CUDA_PACKED_FORMAT_CUH
#define SLEIGH_CUDA_PACKED_FORMAT_CUH

#include "backend/cuda/device.cuh"
#include "backend/cuda/packed.h"
#include "base/error.h"

#include <cuda_bf16.h>
#include <type_traits>

namespace {

enum { PIECE_ROWS = SL_PIECE_ROWS, PIECE_COLS = SL_PIECE_COLS };

__device__ __forceinline__ uint32_t and_or(uint32_t x, uint32_t mask, uint32_t bits) { // x & mask | bits in one instruction
    uint32_t y;
    asm("lop3.b32 %0, %1, %2, %3, 0xea;" : "=r"(y) : "r"(x), "r"(mask), "r"(bits));
    return y;
}
__device__ __forceinline__ __nv_bfloat162 as_pair(uint32_t x) {
    return *(__nv_bfloat162 *)&x;
}
__device__ __forceinline__ uint32_t as_bits(__nv_bfloat162 x) {
    return *(uint32_t *)&x;
}

// unpack: columns 4 half to 4 half + 3 of a lane's 8, as two pairs of bf16, exactly.
template <sl_format F> struct packing;

template <> struct packing<SL_INT4> {
    enum { WORDS = 1 }; // of 8 columns
    uint32_t mask = 0x000f000fu, magic = 0x43004300u;
    // The compiler would put two constants into two instructions; registers fit into one.
    __device__ packing() { asm volatile("" : "+r"(mask), "+r"(magic)); }
    __device__ __forceinline__ void unpack(const uint32_t *w, int half, uint32_t (&pair)[2]) const {
        const __nv_bfloat162 bias = __floats2bfloat162_rn(136, 136); // 128, and 8 of the stored q + 8
#pragma unroll
        for (int i = 0; i < 2; i++) pair[i] = as_bits(__hsub2(as_pair(and_or(w[0] >> (8 * half + 4 * i), mask, magic)), bias));
    }
};

template <> struct packing<SL_INT8> { // 2^23 + u is the fp32 number with bits 0x4b000000 | u
    enum { WORDS = 2 };
    __device__ __forceinline__ void unpack(const uint32_t *w, int half, uint32_t (&pair)[2]) const {
#pragma unroll
        for (int i = 0; i < 2; i++) {
            const float a = __uint_as_float(__byte_perm(w[half], 0x4b000000u, 0x7540 + 2 * i)) - (0x1p23f + 128);
            const float b = __uint_as_float(__byte_perm(w[half], 0x4b000000u, 0x7541 + 2 * i)) - (0x1p23f + 128);
            pair[i] = sl_pack_bf16(a, b);
        }
    }
};

// The bits of an e4m3 number, moved to the places of bf16's sign, exponent and mantissa, are the number times 2^-120. This
// holds for its subnormal numbers too.
template <> struct packing<SL_FP8> {
    enum { WORDS = 2 };
    uint32_t mask = 0x07f007f0u;
    __device__ packing() { asm volatile("" : "+r"(mask)); }
    __device__ __forceinline__ void unpack(const uint32_t *w, int half, uint32_t (&pair)[2]) const {
        const __nv_bfloat162 raise = as_pair(0x7b807b80u); // 2^120
        const uint32_t high = w[half], low = high << 8;
        pair[0] = as_bits(__hmul2(as_pair(and_or(high >> 4, mask, high & 0x80008000u)), raise));
        pair[1] = as_bits(__hmul2(as_pair(and_or(low >> 4, mask, low & 0x80008000u)), raise));
    }
};

// Calls with_format(the format as a constant).
template <typename Fn> void by_format(sl_format f, Fn with_format) {
    SL_CHECK(f == SL_INT4 || f == SL_INT8 || f == SL_FP8);
    if (f == SL_INT4) with_format(std::integral_constant<sl_format, SL_INT4>());
    if (f == SL_INT8) with_format(std::integral_constant<sl_format, SL_INT8>());
    if (f == SL_FP8) with_format(std::integral_constant<sl_format, SL_FP8>());
}

} // namespace

#endif
