// base/bf16.h - conversions between float32, bfloat16 and float16. They are the reference for the vector code and the
// CUDA code.
#ifndef SLEIGH_BF16_H
#define SLEIGH_BF16_H

#include <stdint.h>
#include <string.h>

typedef uint16_t bf16; // the upper half of an IEEE float32
typedef uint16_t f16;  // IEEE binary16

static inline float sl_bf16_to_f32(bf16 x) {
    uint32_t u = (uint32_t)x << 16;
    float f;
    memcpy(&f, &u, 4);
    return f;
}

// Rounds to nearest, ties to even. A NaN stays a NaN (a quiet one). Overflow gives infinity.
static inline bf16 sl_f32_to_bf16(float f) {
    uint32_t u;
    memcpy(&u, &f, 4);
    if ((u & 0x7fffffffu) > 0x7f800000u) return (bf16)((u >> 16) | 0x40);
    return (bf16)((u + 0x7fffu + ((u >> 16) & 1)) >> 16);
}

static inline float sl_f16_to_f32(f16 h) {
    uint32_t sign = (uint32_t)(h & 0x8000) << 16, exp = (h >> 10) & 31, frac = h & 1023, u;
    if (exp == 31) {
        u = sign | 0x7f800000u | (frac << 13);
    } else if (exp) {
        u = sign | ((exp + 112) << 23) | (frac << 13);
    } else { // zero or subnormal: frac * 2^-24 is exact
        float f = (float)frac * 0x1p-24f;
        memcpy(&u, &f, 4);
        u |= sign;
    }
    float f;
    memcpy(&f, &u, 4);
    return f;
}

#endif
