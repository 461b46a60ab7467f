// tests/support/gguf_file.h - writes GGUF files for tests: any values and tensors, or the model of a folder.
#ifndef SLEIGH_TEST_GGUF_FILE_H
#define SLEIGH_TEST_GGUF_FILE_H

#include "base/arrays.h"
#include "models/gguf.h"

// Begin with zeros; gguf_file_write frees the parts.
typedef struct gguf_file {
    sl_text values, tensors, data;
    int n_values, n_tensors;
    unsigned alignment; // bytes; 0: 32, the default of the format
} gguf_file;

void gguf_file_int(gguf_file *f, const char *key, sl_gguf_type type, long long x); // also bool
void gguf_file_float(gguf_file *f, const char *key, float x);                      // f32
void gguf_file_text(gguf_file *f, const char *key, const char *text);
void gguf_file_texts(gguf_file *f, const char *key, const char *const *texts, int n);
void gguf_file_ints(gguf_file *f, const char *key, const int *x, int n);     // array of i32
void gguf_file_floats(gguf_file *f, const char *key, const float *x, int n); // array of f32
// dims: the innermost one first
void gguf_file_tensor(gguf_file *f, const char *name, int type, int n_dims, const int64_t *dims, const void *data, size_t n);
void gguf_file_bytes(gguf_file *f, sl_text *out);     // the whole file
void gguf_file_write(gguf_file *f, const char *name); // to test_tmp()/name

// Adds the configuration and the tensors of a folder with the architecture llama, mistral, qwen2 or qwen3. For llama and
// mistral the rows of q and k move as in the format. Tensors keep their types. from, to: the tensors to write, sorted by name;
// all of them: 0, INT32_MAX.
void gguf_file_config(gguf_file *f, const char *folder);
void gguf_file_tensors(gguf_file *f, const char *folder, int from, int to);

#endif
