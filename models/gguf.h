// models/gguf.h - a GGUF file: metadata and tensors, mapped read-only, with every extent checked.
//
// sl_gguf_open parses the container strictly: counts, types, lengths, alignment, duplicate keys and names, offsets and
// overlaps. A file in several parts (NAME-00001-of-0000N.gguf) is opened whole. Memory is allocated for as many entries as the
// file has bytes for. Refuses version 1, the other byte order, and types of tensors that Sleigh does not read. gguf_documents.h
// makes a model's documents of the metadata. gguf_tensors.h makes the weights.
#ifndef SLEIGH_GGUF_H
#define SLEIGH_GGUF_H

#include "base/error.h"
#include "models/dequant.h"
#include "models/safetensors.h"

typedef enum {
    SL_GGUF_U8,
    SL_GGUF_I8,
    SL_GGUF_U16,
    SL_GGUF_I16,
    SL_GGUF_U32,
    SL_GGUF_I32,
    SL_GGUF_F32,
    SL_GGUF_BOOL,
    SL_GGUF_STRING,
    SL_GGUF_ARRAY,
    SL_GGUF_U64,
    SL_GGUF_I64,
    SL_GGUF_F64
} sl_gguf_type;

typedef struct sl_gguf_string { // not NUL-terminated; may hold NUL
    const char *at;
    size_t n;
} sl_gguf_string;

typedef struct sl_gguf_value {
    char *key; // from malloc; keys hold no NUL
    sl_gguf_type type;
    sl_gguf_type item_type; // of an array
    uint64_t n;             // elements of an array; 1 for another type
    const char *at;         // the value, or the array's first element, in the mapped file
} sl_gguf_value;

enum { SL_GGUF_MAX_DIMS = 4 };

typedef struct sl_gguf_tensor {
    char *name; // from malloc
    const sl_block_type *type;
    int n_dims;
    int64_t dims[SL_GGUF_MAX_DIMS]; // dims[0] is the innermost one
    const unsigned char *data;
    size_t n_bytes;
    const char *file; // for messages
    uint64_t offset;  // from the start of the data
} sl_gguf_tensor;

typedef struct sl_gguf {
    const char *path;      // of the first part
    sl_tensor_file *files; // [n_files] the parts
    int n_files;
    sl_gguf_value *values; // [n_values] sorted by key: the metadata of the first part
    int n_values;
    sl_gguf_tensor *tensors; // [n_tensors] of all parts, sorted by name
    int n_tensors;
} sl_gguf;

int sl_gguf_open(const char *path, sl_gguf *out, sl_error *err); // *out can be closed after an error too
void sl_gguf_close(sl_gguf *g);
const sl_gguf_tensor *sl_gguf_find_tensor(const sl_gguf *g, const char *name); // NULL: no such tensor
// 1: the file begins with GGUF's magic, or its name ends with .gguf.
int sl_gguf_is(const char *path);

// ---- values (gguf_values.c). An error names the file, the key, the found and the expected value ----

const sl_gguf_value *sl_gguf_find(const sl_gguf *g, const char *key); // NULL: no such key
const char *sl_gguf_type_name(sl_gguf_type type);                     // "u32"
size_t sl_gguf_type_size(sl_gguf_type type);                          // bytes; 0: string, array
// Getters. A key of another type, or a number outside [min, max], is SL_ERR_FORMAT. When the key is missing, *out gets *def; if
// def is NULL, this is SL_ERR_FORMAT.
int sl_gguf_int(const sl_gguf *g, const char *key, long long min, long long max, const long long *def, long long *out,
                sl_error *err);
int sl_gguf_float(const sl_gguf *g, const char *key, double min, double max, const double *def, double *out, sl_error *err);
int sl_gguf_bool(const sl_gguf *g, const char *key, int def, int *out, sl_error *err);
int sl_gguf_text(const sl_gguf *g, const char *key, sl_gguf_string *out, sl_error *err); // out->at NULL: no such key
// Element i of an array of integers or of floats.
long long sl_gguf_int_at(const sl_gguf_value *array, uint64_t i);
float sl_gguf_float_at(const sl_gguf_value *array, uint64_t i);
// An array with elements of this type (SL_GGUF_I32 stands for every integer type). *out NULL: no such key.
int sl_gguf_array(const sl_gguf *g, const char *key, sl_gguf_type item_type, const sl_gguf_value **out, sl_error *err);
int sl_gguf_equals(sl_gguf_string s, const char *text);
// The strings of an array, in order: begin with at = array->at, and call once for each element.
sl_gguf_string sl_gguf_next_string(const char **at);

#endif
