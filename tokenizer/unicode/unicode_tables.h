// tokenizer/unicode/unicode_tables.h - the tables of Unicode that scripts/goldens/make_unicode.py writes (unicode_tables.c,
// nfc_tables.c). The script says which version of Unicode each table has, and why. unicode.c and normalize.c read the tables.
#ifndef SLEIGH_UNICODE_TABLES_H
#define SLEIGH_UNICODE_TABLES_H

#include <stddef.h>
#include <stdint.h>

enum { SL_CODE_POINTS = 0x110000 };

typedef struct sl_code_range {
    uint32_t first, last;
} sl_code_range;

typedef struct sl_code_set { // ranges that ascend and do not touch
    const sl_code_range *ranges;
    size_t n;
} sl_code_set;

// ---- unicode_tables.c ----

// General categories. An entry is a first code point << 5 | index in sl_category_names; it holds up to the next entry.
extern const uint32_t sl_category_runs[];
extern const size_t sl_category_runs_n;
extern const char *const sl_category_names[]; // two letters
extern const size_t sl_category_names_n;

extern const sl_code_set sl_white_space;
extern const sl_code_set sl_other_alphabetic; // Alphabetic, and neither L nor Nl
extern const sl_code_set sl_other_uppercase;  // Uppercase, and not Lu
extern const sl_code_set sl_other_lowercase;  // Lowercase, and not Ll
extern const sl_code_set sl_long_folds;       // characters whose full case folding has several characters, like U+00DF
extern const sl_code_set sl_numeric_17;       // the characters that Unicode 17 adds to N
extern const sl_code_set sl_punctuation_8;    // P of Unicode 8, and the punctuation of ASCII

typedef struct sl_fold_run { // the simple case folding of first, first + step, ... last is the character + distance
    uint32_t first, last;
    int step, distance;
} sl_fold_run;
extern const sl_fold_run sl_fold_runs[]; // ascending
extern const size_t sl_fold_runs_n;

typedef struct sl_script {
    const char *name;
    const sl_code_set *set;
} sl_script;
extern const sl_script sl_scripts[];
extern const size_t sl_scripts_n;

// ---- nfc_tables.c ----

// Characters that have a combining class, that form C replaces, or that it joins to the character before. A text without them
// is in form C.
extern const sl_code_set sl_nfc_changed;

// Combining classes. An entry is a first code point << 8 | class; it holds up to the next entry.
extern const uint32_t sl_class_runs[];
extern const size_t sl_class_runs_n;

typedef struct sl_decomposition { // one step of the canonical decomposition; second 0: it has one character
    uint32_t c, first, second;
} sl_decomposition;
extern const sl_decomposition sl_decompositions[]; // by c
extern const size_t sl_decompositions_n;
// The places of the decompositions that form C joins again, by first and second.
extern const uint16_t sl_compositions[];
extern const size_t sl_compositions_n;

#endif
