// tests/models.h - what tests of whole models share.
#ifndef SLEIGH_TEST_MODELS_H
#define SLEIGH_TEST_MODELS_H

#include <stdint.h>

int test_argmax(const float *x, int n); // the lowest of equal ones
// n ids of a model's vocabulary, its last 16 (special ones) left out. From malloc.
int32_t *test_ids(int n, int n_vocab, uint64_t seed);

#endif
