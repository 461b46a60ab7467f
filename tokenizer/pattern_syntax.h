// tokenizer/pattern_syntax.h - reads the regular expression of a pre-tokenizer.
#ifndef SLEIGH_PATTERN_SYNTAX_H
#define SLEIGH_PATTERN_SYNTAX_H

#include "base/arrays.h"
#include "tokenizer/unicode/unicode.h"

enum { SL_SYNTAX_SET = 0x80, SL_SYNTAX_BITS = 7, SL_SYNTAX_MOST_SETS = 1024 };

typedef struct sl_syntax {
    // The expression in PCRE2's syntax, without letters: where the expression matches one character, the text has two bytes
    // SL_SYNTAX_SET | high 7 bits, SL_SYNTAX_SET | low 7 bits of an index in `sets`. All other bytes are ASCII.
    sl_text text;
    sl_points *sets; // [n_sets], sorted and different
    int n_sets, cap;
} sl_syntax;

// Reads Oniguruma's syntax (with Ruby's options), as the Python package tokenizers does. An expression that is refused gives
// SL_ERR_UNSUPPORTED, the reason in *why and its place in *at; other errors are in *err. The caller frees *out in every case.
int sl_syntax_read(const char *regex, sl_syntax *out, const char **why, size_t *at, sl_error *err);
void sl_syntax_free(sl_syntax *s);

#endif
