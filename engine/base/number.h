// engine/base/number.h - numbers as texts that read back as the same number.
#ifndef SLEIGH_NUMBER_H
#define SLEIGH_NUMBER_H

#include <stdio.h>
#include <stdlib.h>

enum { SL_NUMBER_TEXT = 32 };

// x with the fewest digits, 6 at least, that strtod (strtof) reads as x: two numbers that differ never look the same.
static inline const char *sl_number_text(double x, char buf[SL_NUMBER_TEXT]) {
    for (int digits = 6; digits <= 17; digits++) {
        snprintf(buf, SL_NUMBER_TEXT, "%.*g", digits, x);
        if (strtod(buf, NULL) == x) break;
    }
    return buf;
}
static inline const char *sl_float_text(float x, char buf[SL_NUMBER_TEXT]) {
    for (int digits = 6; digits <= 9; digits++) {
        snprintf(buf, SL_NUMBER_TEXT, "%.*g", digits, (double)x);
        if (strtof(buf, NULL) == x) break;
    }
    return buf;
}

#endif
