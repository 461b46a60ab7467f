// base/number.c - see number.h.
#include "base/number.h"

#include <locale.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

// The calling thread gets the locale "C". Returns its locale before. The C library has one object of "C", which is never freed.
static locale_t enter(void) {
    locale_t c = newlocale(LC_ALL_MASK, "C", (locale_t)0);
    return c ? uselocale(c) : (locale_t)0;
}

static void leave(locale_t before) {
    if (before) uselocale(before);
}

double sl_strtod(const char *text, char **end) {
    locale_t before = enter();
    double x = strtod(text, end);
    leave(before);
    return x;
}

int sl_vprint(char *buf, size_t size, const char *format, va_list args) {
    locale_t before = enter();
    int n = vsnprintf(buf, size, format, args);
    leave(before);
    return n;
}

int sl_print(char *buf, size_t size, const char *format, ...) {
    va_list args;
    va_start(args, format);
    int n = sl_vprint(buf, size, format, args);
    va_end(args);
    return n;
}

static int is_whole(double x) { // 1048576 and 1000000, not 1.04858e+06 and 1e+06
    return x == floor(x) && fabs(x) < 1e9;
}

const char *sl_number_text(double x, char buf[SL_NUMBER_TEXT]) {
    for (int digits = is_whole(x) ? 15 : 6; digits <= 17; digits++) {
        sl_print(buf, SL_NUMBER_TEXT, "%.*g", digits, x);
        if (sl_strtod(buf, NULL) == x) break;
    }
    return buf;
}

const char *sl_float_text(float x, char buf[SL_NUMBER_TEXT]) {
    for (int digits = is_whole(x) ? 9 : 6; digits <= 9; digits++) {
        sl_print(buf, SL_NUMBER_TEXT, "%.*g", digits, (double)x);
        if ((float)sl_strtod(buf, NULL) == x) break;
    }
    return buf;
}
