// tests/support/stored_weight.h - random weights of every format and layout of scales that a GPU multiplies packed.
#ifndef SLEIGH_TEST_STORED_WEIGHT_H
#define SLEIGH_TEST_STORED_WEIGHT_H

#include "backend/weight.h"

enum { TEST_ZERO = 1, TEST_ORDER = 2 };

// How a weight is stored.
typedef struct test_storage {
    sl_format format;
    int group; // columns that share a scale; 0: a row
    int parts; // TEST_ZERO: zero points; TEST_ORDER: columns in another order. Formats with a minimum have one
} test_storage;

enum { N_TEST_STORAGES = 27 };
extern const test_storage test_storages[N_TEST_STORAGES]; // every entry of SL_PACKED_KINDS, and other groups

// Random bf16 numbers, or codes, scales and what belongs to them.
sl_weight test_stored_weight(test_storage kind, int n_rows, int n_cols, uint64_t *seed);
void test_stored_free(sl_weight *w);
const char *test_stored_name(const sl_weight *w); // "int8, groups of 16, zero points", until the next call

#endif
