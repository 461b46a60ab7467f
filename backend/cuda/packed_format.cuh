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

// unpack: columns 4 half to 4 half + 3 of a lane's 8, as two pairs of bf16, exactly. zero: the zero point as packed.h stores
// it, or none(); formats without zero points do not read it.
template <sl_format F> struct packing;

template <int BIAS> struct integers_4 { // 128 + u is the bf16 number with bits 0x4300 | u
    enum { WORDS = 1 };                 // of 8 columns
    uint32_t mask = 0x000f000fu, magic = 0x43004300u;
    // The compiler would put two constants into two instructions; registers fit into one.
    __device__ integers_4() { asm volatile("" : "+r"(mask), "+r"(magic)); }
    static __device__ __forceinline__ float none() { return __uint_as_float(as_bits(__floats2bfloat162_rn(BIAS, BIAS))); }
    __device__ __forceinline__ void unpack(const uint32_t *w, int half, float zero, uint32_t (&pair)[2]) const {
        const __nv_bfloat162 bias = as_pair(__float_as_uint(zero));
#pragma unroll
        for (int i = 0; i < 2; i++) pair[i] = as_bits(__hsub2(as_pair(and_or(w[0] >> (8 * half + 4 * i), mask, magic)), bias));
    }
};
template <> struct packing<SL_INT4> : integers_4<128 + 8> {}; // 8 of the stored q + 8
template <> struct packing<SL_UINT4> : integers_4<128> {};

template <int BIAS> struct integers_8 { // 2^23 + u is the fp32 number with bits 0x4b000000 | u
    enum { WORDS = 2 };
    static __device__ __forceinline__ float none() { return 0x1p23f + BIAS; }
    __device__ __forceinline__ void unpack(const uint32_t *w, int half, float zero, uint32_t (&pair)[2]) const {
#pragma unroll
        for (int i = 0; i < 2; i++) {
            const float a = __uint_as_float(__byte_perm(w[half], 0x4b000000u, 0x7540 + 2 * i)) - zero;
            const float b = __uint_as_float(__byte_perm(w[half], 0x4b000000u, 0x7541 + 2 * i)) - zero;
            pair[i] = sl_pack_bf16(a, b);
        }
    }
};
template <> struct packing<SL_INT8> : integers_8<128> {};
template <> struct packing<SL_UINT8> : integers_8<0> {};

// The bits of an e4m3 number, moved to the places of bf16's sign, exponent and mantissa, are the number times 2^-120. This
// holds for its subnormal numbers too.
template <> struct packing<SL_FP8> {
    enum { WORDS = 2 };
    uint32_t mask = 0x07f007f0u;
    __device__ packing() { asm volatile("" : "+r"(mask)); }
    static __device__ __forceinline__ float none() { return 0; }
    __device__ __forceinline__ void unpack(const uint32_t *w, int half, float, uint32_t (&pair)[2]) const {
        const __nv_bfloat162 raise = as_pair(0x7b807b80u); // 2^120
        const uint32_t high = w[half], low = high << 8;
        pair[0] = as_bits(__hmul2(as_pair(and_or(high >> 4, mask, high & 0x80008000u)), raise));
        pair[1] = as_bits(__hmul2(as_pair(and_or(low >> 4, mask, low & 0x80008000u)), raise));
    }
};

// The same with e2m1 and 2^-126.
template <> struct packing<SL_FP4> {
    enum { WORDS = 1 };
    uint32_t mask = 0x01c001c0u;
    __device__ packing() { asm volatile("" : "+r"(mask)); }
    static __device__ __forceinline__ float none() { return 0; }
    __device__ __forceinline__ void unpack(const uint32_t *w, int half, float, uint32_t (&pair)[2]) const {
        const __nv_bfloat162 raise = as_pair(0x7e807e80u); // 2^126
#pragma unroll
        for (int i = 0; i < 2; i++) {
            const uint32_t high = w[0] << (12 - 8 * half - 4 * i); // the two numbers in the highest bits of the halves
            pair[i] = as_bits(__hmul2(as_pair(and_or(high >> 6, mask, high & 0x80008000u)), raise));
        }
    }
};

// A permutation of bytes looks up four nibbles in eight bytes: in the first or the last eight of the code book.
template <> struct packing<SL_IQ4> {
    enum { WORDS = 1 };
    static __device__ __forceinline__ float none() { return 0; }
    static __device__ __forceinline__ uint32_t find(uint32_t a, uint32_t b, uint32_t c, uint32_t d, uint32_t at,
                                                    uint32_t pick) {
        return __byte_perm(__byte_perm(a, b, at), __byte_perm(c, d, at), pick);
    }
    __device__ __forceinline__ void unpack(const uint32_t *w, int half, float, uint32_t (&pair)[2]) const {
        const uint32_t four = w[0] >> 16 * half, at = four & 0x7777, pick = and_or(four >> 1, 0x4444, 0x3210);
        // the low and the high bytes of sl_iq4_numbers as bf16
        const uint32_t low = find(0x82a6d0feu, 0x20b00c44u, 0x18c85080u, 0xe2b28a54u, at, pick);
        const uint32_t high = find(0xc2c2c2c2u, 0xc1c1c2c2u, 0x4241413fu, 0x42424242u, at, pick);
        pair[0] = __byte_perm(low, high, 0x5140), pair[1] = __byte_perm(low, high, 0x7362);
    }
};

// Calls with_format(the format as a constant).
template <typename Fn> void by_format(sl_format f, Fn with_format) {
    switch (f) {
    case SL_INT4:
        return with_format(std::integral_constant<sl_format, SL_INT4>());
    case SL_INT8:
        return with_format(std::integral_constant<sl_format, SL_INT8>());
    case SL_FP8:
        return with_format(std::integral_constant<sl_format, SL_FP8>());
    case SL_UINT4:
        return with_format(std::integral_constant<sl_format, SL_UINT4>());
    case SL_UINT8:
        return with_format(std::integral_constant<sl_format, SL_UINT8>());
    case SL_FP4:
        return with_format(std::integral_constant<sl_format, SL_FP4>());
    case SL_IQ4:
        return with_format(std::integral_constant<sl_format, SL_IQ4>());
    default:
        SL_CHECK(!"a packed format");
    }
}

} // namespace

#endif
