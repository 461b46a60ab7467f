// base/normal.h - normally distributed numbers from random words (Box and Muller).
#ifndef SLEIGH_NORMAL_H
#define SLEIGH_NORMAL_H

#include "base/philox.h"

#include <math.h>

static inline double sl_uniform_of_word(uint32_t x) { // in (0, 1)
    return ((double)x + 0.5) * 0x1p-32;
}

// A standard normal number from the first two words.
static inline double sl_normal_of_words(sl_philox4 r) {
    return sqrt(-2 * log(sl_uniform_of_word(r.v[0]))) * cos(6.283185307179586 * sl_uniform_of_word(r.v[1]));
}

#endif
