// tests/support/npy.h - reads goldens: .npy files of float32 and JSON lists of ids.
#ifndef SLEIGH_NPY_H
#define SLEIGH_NPY_H

#include <stdint.h>

typedef struct test_array {
    int n_rows, n_cols;
    float *data;
} test_array; // [n_rows][n_cols]

test_array test_read_npy(const char *path);       // the case fails unless the file holds 2-d little-endian float32 in C order
int32_t *test_read_ids(const char *path, int *n); // a JSON list of numbers

#endif
