// models/safetensors.h - the weights of a model folder, mapped read-only, with the extent of every tensor checked.
//
// Opens model.safetensors, or the shards that model.safetensors.index.json names, and owns the mappings. Parses the headers
// strictly: overlaps, holes, duplicates, wrong dtypes and truncated files are errors that name file and tensor. Finds tensors
// by name. Does not read the weights.
#ifndef SLEIGH_SAFETENSORS_H
#define SLEIGH_SAFETENSORS_H

#include "backend/backend.h"

#include <time.h>

enum { SL_MAX_DIMS = 8 };

typedef struct sl_tensor {
    const char *name;
    const char *file;    // for messages
    char dtype_name[16]; // as in the header: "BF16"
    int n_dims;
    int64_t dims[SL_MAX_DIMS];
    const void *data; // NULL: declared, without memory yet
    void *copy;       // of data that the file does not align, from malloc; NULL: none
    size_t n_bytes;
    // A tensor whose numbers a loader makes of the file's bytes (models/gguf_tensors.h). dtype_name, data and n_bytes are those
    // of the made numbers.
    struct {
        const struct sl_block_type *type; // NULL: the numbers lie in the file as they are
        const unsigned char *data;
        size_t n_bytes;
        int n_heads; // not 0: the file has the rows of each head in another order
        int is_kept; // 1: a recipe makes a weight of the blocks (models/recipe.h), whose format is dtype_name; data stays NULL
    } packed;
} sl_tensor;

// A mapped file, with the size and the time that it had when it was mapped.
typedef struct sl_tensor_file {
    char *path;
    char *map; // [size]
    size_t size;
    int fd;                   // stays open: a check must see this file, not a new file with the same name; -1: no file
    struct timespec modified; // when it was mapped
} sl_tensor_file;

typedef struct sl_tensors sl_tensors;

int sl_tensors_open(const char *dir, sl_tensors **out, sl_error *err);
int sl_tensors_open_file(const char *path, sl_tensors **out, sl_error *err); // one file
// A text of the header's __metadata__; NULL: there is none. Only after sl_tensors_open_file.
const char *sl_tensors_metadata(const sl_tensors *t, const char *name);

enum { SL_TENSOR_NAME = 120 };

// Declares tensors without a file: BF16, data NULL.
typedef struct sl_tensor_shape {
    char name[SL_TENSOR_NAME];
    int n_rows, n_cols; // n_rows 0: a vector [n_cols]
} sl_tensor_shape;
int sl_tensors_declare(const sl_tensor_shape *shapes, int n, sl_tensors **out, sl_error *err);
// Makes a set of tensors of files that another reader has mapped. Takes over both arrays, the names and the mappings, also
// after an error. Names and arrays are from malloc. Equal names are SL_ERR_FORMAT.
int sl_tensors_of_files(sl_tensor_file *files, int n_files, sl_tensor *tensors, int n_tensors, sl_tensors **out, sl_error *err);
// Allocates zeroed, writable memory for all tensors without data, each 64-byte aligned. Call it once.
int sl_tensors_allocate(sl_tensors *t, sl_error *err);
void sl_tensors_release(sl_tensors *t);                   // frees this memory: its tensors have no data again
size_t sl_tensors_bytes_to_allocate(const sl_tensors *t); // of the tensors without data
// The memory of sl_tensors_allocate; NULL: none.
const void *sl_tensors_memory(const sl_tensors *t, size_t *size);

void sl_tensors_close(sl_tensors *t);
// Maps a file with at least one byte, read-only. sl_tensor_file_unmap may be called after an error too.
int sl_tensor_file_map(const char *path, sl_tensor_file *file, sl_error *err);
void sl_tensor_file_unmap(sl_tensor_file *file);
int sl_tensors_n_files(const sl_tensors *t);
const sl_tensor_file *sl_tensors_file(const sl_tensors *t, int i);
const char *sl_tensors_place(const sl_tensors *t); // the path of the only file, or "the model's shards"; for messages
// SL_ERR_IO when the file's size or time has changed since it was mapped: later results may come from other weights. When the
// file has become shorter, a read of a missing page raises SIGBUS.
int sl_tensor_file_check(const sl_tensor_file *f, sl_error *err);
int sl_tensors_count(const sl_tensors *t);
const sl_tensor *sl_tensors_at(const sl_tensors *t, int i);
const sl_tensor *sl_tensors_find(const sl_tensors *t, const char *name); // NULL: no such tensor
size_t sl_tensors_bytes(const sl_tensors *t);                            // of all tensors
// Continues an FNV-1a hash (base/hash.h) with every tensor, in the order of the names (as bytes): the name and a NUL,
// the dtype of the header and a NUL, the number of dimensions, each dimension (numbers as 8 bytes, lowest byte first), samples
// of the data. Of a packed tensor, dtype and data are those of the file. The samples are all bytes of a tensor of at most 32
// KiB, otherwise 8 blocks of 4 KiB: block i < 7 begins at byte i * floor((size - 4096) / 7), and the last block ends the
// tensor. So shards do not change the hash, 10 MB of a model of 16 GB are read, and models that differ in a few numbers only
// may have equal hashes.
uint64_t sl_tensors_hash(const sl_tensors *t, uint64_t hash);

// Binds a matrix [n_rows][n_cols] (n_rows 0: a vector [n_cols]). A missing tensor, a dtype other than BF16, F16 and F32, a
// wrong rank and a wrong dimension are errors with file, name, found and expected. A kept tensor gives a weight without data.
int sl_tensors_bind(const sl_tensors *t, const char *name, int n_rows, int n_cols, sl_weight *out, sl_error *err);

void sl_format_dims(const int64_t *dims, int n, char *buf, size_t size); // "[2, 3]", for messages

#endif
