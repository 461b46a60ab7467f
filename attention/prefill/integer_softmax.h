// attention/prefill/integer_softmax.h - the probabilities of a row of scores as integers, for masks.
//
// A score is an integer in units of 2^-6 in log2 units: the fp32 sum of products times the scale, rounded once, to nearest.
// From the scores on, all is exact: every device gets the same integers from the same scores, in any order of the keys. The
// fp32 sums of two devices differ in their last bits, so two scores differ by one unit where a limit lies between the sums.
//
// | number   | definition                                                  | unit  |
// |----------|-------------------------------------------------------------|-------|
// | ref_b    | ceil(largest score of key block b / 64)                     | 1     |
// | top      | largest ref_b of the row                                    | 1     |
// | mass(d)  | c 2^(-d / 64), to nearest: of a score at the distance d     | 2^-16 |
// | mass_b   | sum of mass(64 ref_b - score) over the block's keys         | 2^-16 |
// | Z        | sum over blocks of (mass_b << 14) >> (top - ref_b)          | 2^-30 |
// | factor   | floor(2^61 / Z)                                             |       |
// | share(x) | (x factor + 2^36) >> 37 of a mass x in units of 2^-30       | 2^-24 |
//
// The mass of a single key is relative to top, in units of 2^-30, rounded down (sl_fine_mass).
//
// mass_b is wrong by at most 2^-9 of itself: 128 roundings of 2^-17, and the block's largest mass is above 1/2. Z keeps one
// number for each block, because a sum that is shifted when its maximum grows would depend on the order.
//
// c is the float below 1 with this property: no mass lies nearer than 2^-20.1, relative, to the middle of two integers in units
// of 2^-16. So every 2^x with a relative error below 2^-21 gives the same integers: exp2 of a C library, and ex2.approx of a
// GPU (at most 2^-22).
#ifndef SLEIGH_INTEGER_SOFTMAX_H
#define SLEIGH_INTEGER_SOFTMAX_H

#include "base/philox.h"

#include <stdint.h>

enum {
    SL_OCTAVE = 64,                 // units of a score in 1
    SL_MASS_BITS = 16,              // a mass of 1 is 2^16 in a block
    SL_MASS_REACH = 17 * SL_OCTAVE, // from this distance on, the mass in units of 2^-16 is 0
    SL_SCORE_LEAST = -40000,        // smaller scores count as this one: their mass is 0
    SL_SCORE_MOST = 33000           // larger scores, and NaN, count as this one: there are no sums (row_sums.h)
};
#define SL_MASS_SCALE 0x1.fbccbcp-1f // c

// Rounds dot * scale to a score. The product is exact in double precision, and the sum has the unit 2^-6.
static inline int32_t sl_score_of(float dot, float scale) {
    union {
        double x;
        uint64_t bits;
    } u = {(double)dot * scale};
    u.x = u.x < SL_SCORE_MOST ? u.x : (double)SL_SCORE_MOST;
    u.x = u.x > SL_SCORE_LEAST ? u.x : (double)SL_SCORE_LEAST;
    u.x += 0x1.8p46;
    return (int32_t)(uint32_t)u.bits;
}

// The shift of a distance of more than 31 octaves is 31, and all masses are below 2^30.
static inline SL_HOST_DEVICE uint32_t sl_fine_mass(const uint32_t octave[SL_OCTAVE], uint32_t d) { // units of 2^-30
    return octave[d % SL_OCTAVE] >> (d < 31 * SL_OCTAVE ? d / SL_OCTAVE : 31);
}

// A mass of a block, in units of 2^-16, relative to the top of the row, in units of 2^-30. below: top - ref_b.
static inline SL_HOST_DEVICE uint64_t sl_mass_below(uint32_t mass, int below) {
    return below < 64 ? (uint64_t)mass << 14 >> below : 0;
}

// Z is above 2^29, because the largest score of a row is less than 1 below top. So the factor fits in 32 bits.
static inline SL_HOST_DEVICE uint32_t sl_share_factor(uint64_t z) {
    return (uint32_t)(((uint64_t)1 << 61) / z);
}

// mass: at most Z, or 2^30.
static inline SL_HOST_DEVICE uint32_t sl_share(uint64_t mass, uint32_t factor) {
    return (uint32_t)((mass * factor + ((uint64_t)1 << 36)) >> 37);
}

#endif
