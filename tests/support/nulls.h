// tests/support/nulls.h - null in a JSON file means "not given": a field that is null must have the effect of a missing field.
#ifndef SLEIGH_TEST_NULLS_H
#define SLEIGH_TEST_NULLS_H

#include <jansson.h>
#include <stddef.h>

// Loads the file in test_tmp() and writes the result to out: the message of the error, or all values read.
typedef void (*null_probe)(char *out, size_t size);

// For each field of each object in `root`: writes `root` to test_tmp()/file without the field and with the field as null, and
// compares the outputs of `probe`. maps: names of objects whose entries are not fields, ends with NULL. Returns the number of
// fields tried.
int test_nulls(json_t *root, const char *file, const char *const *maps, null_probe probe);

#endif
