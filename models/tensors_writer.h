// models/tensors_writer.h - writes a safetensors file: declare the tensors, begin, write their data in any order, end.
//
// The data of dtypes with large elements comes first, as in the files of the safetensors package, so that every tensor is
// aligned to its dtype. The header is padded to a multiple of 8 bytes.
#ifndef SLEIGH_TENSORS_WRITER_H
#define SLEIGH_TENSORS_WRITER_H

#include "base/whole_file.h"

#include <jansson.h>
#include <stdint.h>

typedef struct sl_written_tensor {
    char *name;
    const char *dtype; // "BF16"
    json_t *shape;
    size_t n_bytes, element, at; // element: bytes of one; at: the first byte within the data
} sl_written_tensor;

typedef struct sl_tensors_writer {
    sl_whole_file whole;
    char *path;
    sl_written_tensor *tensors; // [n], in the order of declaration
    int n, cap;
    size_t data_at, n_written; // data_at: the first byte of the data in the file
} sl_tensors_writer;

int sl_tensors_writer_init(sl_tensors_writer *w, const char *path, sl_error *err);
// Returns the tensor's index, or an error. dtype must outlive the writer. n_bytes: of its data.
int sl_tensors_writer_declare(sl_tensors_writer *w, const char *name, const char *dtype, const int64_t *dims, int n_dims,
                              size_t n_bytes, sl_error *err);
// Creates the file and writes the header. After it, no tensor can be declared.
int sl_tensors_writer_begin(sl_tensors_writer *w, sl_error *err);
// Writes n bytes of a tensor's data, from byte `from` on.
int sl_tensors_writer_put(sl_tensors_writer *w, int tensor, size_t from, const void *data, size_t n, sl_error *err);
// ok: all data was written; the file is then at its path. Otherwise it is deleted. Frees the writer.
int sl_tensors_writer_end(sl_tensors_writer *w, int ok, sl_error *err);

#endif
