// models/safetensors.h - a model folder's weights, mapped read-only, with every tensor's extent checked.
//
// Owns the mappings. Opens model.safetensors or the shards that model.safetensors.index.json names, parses their headers
// strictly (overlaps, gaps in range checks, duplicates, wrong dtypes, truncated files are errors that name file and tensor)
// and finds tensors by name. Never reads the weights themselves.
#ifndef SLEIGH_SAFETENSORS_H
#define SLEIGH_SAFETENSORS_H

#include "engine/backend/backend.h"

#include <time.h>

enum { SL_MAX_DIMS = 8 };

typedef struct sl_tensor {
    const char *name;
    const char *file;   // for messages
    char dtype_name[8]; // as in the header: "BF16"
    int n_dims;
    int64_t dims[SL_MAX_DIMS];
    const void *data; // NULL: declared, not there yet
    size_t n_bytes;
} sl_tensor;

// A file of tensors: what is mapped, and how the file was then.
typedef struct sl_tensor_file {
    char *path;
    char *map; // [size]
    size_t size;
    int fd; // open as long as the mapping, so that a file that replaces this one is not taken for it; -1: none
    struct timespec modified; // of the file
} sl_tensor_file;

typedef struct sl_tensors sl_tensors;

int sl_tensors_open(const char *dir, sl_tensors **out, sl_error *err);

// Tensors without a file: BF16, declared with their shapes, data NULL.
typedef struct sl_tensor_shape {
    char name[120];
    int n_rows, n_cols; // n_rows 0: a vector [n_cols]
} sl_tensor_shape;
int sl_tensors_declare(const sl_tensor_shape *shapes, int n, sl_tensors **out, sl_error *err);
// Gives declared tensors zeroed memory, 64-byte aligned, that their maker may write to.
int sl_tensors_allocate(sl_tensors *t, sl_error *err);

void sl_tensors_close(sl_tensors *t);
int sl_tensors_n_files(const sl_tensors *t);
const sl_tensor_file *sl_tensors_file(const sl_tensors *t, int i);
// SL_ERR_IO when the file has another size or time than when it was mapped: what was computed since may be of other weights.
// A mapped page that the file no longer has is SIGBUS at its first use, before any check.
int sl_tensor_file_check(const sl_tensor_file *f, sl_error *err);
int sl_tensors_count(const sl_tensors *t);
const sl_tensor *sl_tensors_at(const sl_tensors *t, int i);
const sl_tensor *sl_tensors_find(const sl_tensors *t, const char *name); // NULL: not there
size_t sl_tensors_bytes(const sl_tensors *t);                            // of all tensors

// Binds a matrix [n_rows][n_cols] (n_rows 0: a vector [n_cols]). A missing tensor, a dtype other than BF16, F16, F32, a
// wrong rank or dimension is an error with file, name, found and expected.
int sl_tensors_bind(const sl_tensors *t, const char *name, int n_rows, int n_cols, sl_weight *out, sl_error *err);

#endif
