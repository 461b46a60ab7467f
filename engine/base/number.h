// engine/base/number.h - writes a number as text that reads back as the same number.
#ifndef SLEIGH_NUMBER_H
#define SLEIGH_NUMBER_H

#include <stdio.h>
#include <stdlib.h>

enum { SL_NUMBER_TEXT = 32 };

// Writes x with the fewest digits that strtod (sl_float_text: strtof) reads back as x, but at least 6. Different numbers have
// different texts.
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
