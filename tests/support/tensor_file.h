// tests/support/tensor_file.h - writes variants of a model folder: other tensors, other fields of its JSON files.
#ifndef SLEIGH_TEST_TENSOR_FILE_H
#define SLEIGH_TEST_TENSOR_FILE_H

#include <jansson.h>
#include <stddef.h>

typedef struct test_tensor {
    const char *name, *dtype, *shape; // shape: "[2,3]"; NULL: the tensor is left out
    const void *data;                 // [n_bytes]
    size_t n_bytes;
} test_tensor;

// The header of a safetensors file as JSON. *data: the bytes behind it, from malloc.
json_t *test_read_tensors(const char *path, char **data);
// Writes to test_tmp() the files of a folder, model.safetensors with these changes: a tensor with a name of the file replaces
// it.
void test_write_model(const char *folder, const test_tensor *changes, int n);
// Sets a field of a JSON file in test_tmp(). value: JSON; NULL: the field is removed.
void test_set_field(const char *file, const char *field, const char *value);

// Lines of an sl_log, each ended by a newline.
typedef struct test_lines {
    char text[4096];
    int n;
} test_lines;
void test_note_line(void *ctx, const char *line); // ctx: test_lines *

#endif
