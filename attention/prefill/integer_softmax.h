// attention/prefill/integer_softmax.h - the probabilities of a row of scores as integers, for masks.
//
// The scores of a row are bf16 numbers in log2 units, at most SL_REF_MOST in size. From the scores on, all is exact: every
// device gets the same integers from the same scores, in any order of the keys. A score itself is an fp32 sum of products, so
// the scores of two devices may differ by a rounding step of bf16.
//
//   ref_b  = ceil(largest score of key block b), an integer        mass(x): 2^-x in units of 2^-30, relative error below 2e-4
//   mass_b = sum over the block's keys of mass(ref_b - s)           share: p in units of 2^-24
//   Z      = sum over blocks of mass_b >> (top - ref_b)              top = largest ref_b
//   share of a key = (mass(top - s) factor + 2^36) >> 37            factor = floor(2^61 / Z)
//
// Z keeps one number for each block, because a sum that is shifted when its maximum grows would depend on the order. Only the
// subtraction of two floats and a product with a power of two are in floating point. Neither can be fused with another
// operation.
#ifndef SLEIGH_INTEGER_SOFTMAX_H
#define SLEIGH_INTEGER_SOFTMAX_H

#include "engine/base/philox.h"

#include <stdint.h>

// 2^-distance in units of 2^-30, for distance >= 0. f is the fraction of the distance in units of 2^-16. The cubic polynomial
// has the smallest relative error on [0, 1] of those with the values 1 and 1/2 at the ends, so there is no step between
// octaves.
//   y = 45342 - (u f >> 16), u = 15185 - (2611 f >> 16): each difference is one product with a constant that rounds up
static inline SL_HOST_DEVICE uint32_t sl_distance_mass(float distance) {
    float d = distance < 30 ? distance : 31; // 31 for NaN: 2^30 >> 31 is 0
#ifdef __CUDA_ARCH__
    // The sum has the unit 1 and is rounded down, so its lower half and upper half end with those of floor(65536 d). A
    // conversion to an integer has a quarter of the rate.
    uint32_t t = __float_as_uint(__fmaf_rd(d, 65536.0f, 8388608.0f));
#else
    uint32_t t = (uint32_t)(d * 65536.0f);
#endif
    uint32_t f = t & 0xffff, u = ((15185u << 16) + 0xffff - 2611 * f) >> 16, y = ((45342u << 16) + 0xffff - u * f) >> 16;
    return ((1u << 30) - (y * f >> 2)) >> (t >> 16 & 31);
}

// Z is above 2^29, because the largest score of a row is less than 1 below top. So the factor fits in 32 bits.
static inline SL_HOST_DEVICE uint32_t sl_share_factor(uint64_t z) {
    return (uint32_t)(((uint64_t)1 << 61) / z);
}

static inline SL_HOST_DEVICE uint32_t sl_share(uint32_t mass, uint32_t factor) {
    return (uint32_t)(((uint64_t)mass * factor + ((uint64_t)1 << 36)) >> 37);
}

#endif
