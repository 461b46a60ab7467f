// tests/support/nulls.h - null in a JSON file means "not given": every field of a file, set to null, must do what its absence
// does.
#ifndef SLEIGH_TEST_NULLS_H
#define SLEIGH_TEST_NULLS_H

#include <jansson.h>
#include <stddef.h>

// Loads what lies in test_tmp() and writes what came of it: the error's message, or all that was read.
typedef void (*null_probe)(char *out, size_t size);

// Writes `root` to test_tmp()/file once without each field of each of its objects and once with the field as null, and compares
// what `probe` says. Objects of these names are maps, whose entries are no fields; the list ends with NULL. Returns how many
// fields were tried.
int test_nulls(json_t *root, const char *file, const char *const *maps, null_probe probe);

#endif
