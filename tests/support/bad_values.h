// tests/support/bad_values.h - caches with one row of V whose norm fp32 cannot hold, for tests of stated errors on the CPU and
// on a GPU.
#ifndef SLEIGH_TEST_BAD_VALUES_H
#define SLEIGH_TEST_BAD_VALUES_H

#include "tests/support/reference.h"

enum { BAD_HEADS = 4, BAD_DIM = 64, BAD_ROWS = 700 };

typedef struct bad_value {
    const char *name;
    bf16 bits;
    int is_number; // the value is finite: exact attention gives a number
} bad_value;
extern const bad_value bad_values[];
extern const int n_bad_values;

// One sequence of BAD_ROWS rows, and a KV head for each query head.
ref_cache bad_cache(void);
// Puts bad_values[kind] into one channel of row `row` of V of KV head 1, and changes the key of the row: it has so little mass
// that a finite value adds about as much to the output as the other rows together.
void bad_plant(ref_cache *c, int kind, int row);

#endif
