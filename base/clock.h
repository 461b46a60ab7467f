// base/clock.h - the time of a clock that nobody sets.
#ifndef SLEIGH_CLOCK_H
#define SLEIGH_CLOCK_H

#include <time.h>

static inline double sl_now_ms(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec * 1e3 + t.tv_nsec * 1e-6;
}

#endif
