// base/json_lenient.h - rewrites JSON that Python's json reads and Jansson refuses: integers of any size, reals that
// overflow, NaN, Infinity, -Infinity, and surrogates without a partner.
#ifndef SLEIGH_JSON_LENIENT_H
#define SLEIGH_JSON_LENIENT_H

#include "base/arrays.h"

// A value that Jansson cannot hold becomes a string: this mark, then the text of the value. The NUL makes sl_json_string refuse
// it.
#define SL_JSON_MARK "\0\1"
enum { SL_JSON_MARK_SIZE = 2 };

// Rewrites text [n]. out->data stays NULL when Jansson can hold every value. Lines stay where they are, so Jansson's messages
// name the line of the file. A name with such a surrogate or a NUL is written with its escape as text ("\\ud800"), and a number
// behind it is marked, because a vocabulary must not take this text for a token.
int sl_json_rewrite(const char *text, size_t n, sl_text *out, sl_error *err);

#endif
