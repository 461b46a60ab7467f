// base/number.h - numbers as text, with a decimal point in every locale.
//
// A program may call setlocale(LC_ALL, "de_DE.UTF-8"). Then printf and strtod use a decimal comma. Library code uses the
// functions of this file, so that the numbers of parameters, hashes, files and messages do not depend on the locale.
#ifndef SLEIGH_NUMBER_H
#define SLEIGH_NUMBER_H

#include <stdarg.h>
#include <stddef.h>

enum { SL_NUMBER_TEXT = 32 };

double sl_strtod(const char *text, char **end);
int sl_print(char *buf, size_t size, const char *format, ...) __attribute__((format(printf, 3, 4))); // as snprintf
int sl_vprint(char *buf, size_t size, const char *format, va_list args);

// Writes x with the fewest digits that read back as x (sl_float_text: as a float), but at least 6. Different numbers have
// different texts.
const char *sl_number_text(double x, char buf[SL_NUMBER_TEXT]);
const char *sl_float_text(float x, char buf[SL_NUMBER_TEXT]);

#endif
