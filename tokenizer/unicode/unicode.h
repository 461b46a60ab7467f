// tokenizer/unicode/unicode.h - properties of code points and sets of code points. The tables are Sleigh's own, so the ids of a
// text do not depend on the version of Unicode that a library of the system has.
#ifndef SLEIGH_UNICODE_H
#define SLEIGH_UNICODE_H

#include "base/error.h"
#include "tokenizer/unicode/unicode_tables.h"

// ---- properties ----

// Each property is what a part of the Python package tokenizers 0.23 tests. The parts know different versions of Unicode.
typedef enum {
    SL_UNICODE_WHITE,   // White_Space, which is also \s: the pre-tokenizers Whitespace and WhitespaceSplit, lstrip and rstrip
    SL_UNICODE_WORD,    // \w of Rust's regex (Unicode 16): the pre-tokenizer Whitespace, and single_word
    SL_UNICODE_NUMERIC, // N of Unicode 17: the pre-tokenizer Digits
    SL_UNICODE_PUNCTUATION, // P of Unicode 8, and the punctuation of ASCII: the pre-tokenizer Punctuation
} sl_unicode_property;

int sl_unicode_is(sl_unicode_property property, uint32_t c);

// ---- sets, for the compiler of patterns ----

typedef struct sl_points { // a set that grows; zero is the empty set
    sl_code_range *ranges;
    size_t n, cap;
} sl_points;

void sl_points_free(sl_points *p);
int sl_points_add(sl_points *p, uint32_t first, uint32_t last, sl_error *err);
int sl_points_add_set(sl_points *p, sl_code_set set, sl_error *err);
// Sorts and joins the ranges. The set that is returned is valid until *p changes.
sl_code_set sl_points_sort(sl_points *p);
int sl_points_complement(sl_points *p, sl_error *err);
int sl_points_intersect(sl_points *p, sl_code_set with, sl_error *err);
// Adds every character whose simple case folding is the folding of a character of the set.
int sl_points_fold(sl_points *p, sl_error *err);

int sl_code_set_has(sl_code_set set, uint32_t c);
int sl_code_sets_meet(sl_code_set a, sl_code_set b); // 1: some code point is in both

// Adds what Oniguruma calls \p{name}, a general category of one or two letters or one of some scripts, or [:name:]. *found 0:
// there is no such name.
int sl_points_add_property(sl_points *p, const char *name, size_t n, int *found, sl_error *err);
int sl_points_add_posix(sl_points *p, const char *name, size_t n, int *found, sl_error *err);

#endif
