// models/safetensors_header.h - the parsed header of one safetensors file. sl_tensors_open checks it against the file.
#ifndef SLEIGH_SAFETENSORS_HEADER_H
#define SLEIGH_SAFETENSORS_HEADER_H

#include "models/safetensors.h"

typedef struct sl_header_entry {
    char *name;
    char dtype[16];
    int n_dims;
    int64_t dims[SL_MAX_DIMS];
    int64_t begin, end; // bytes within the data area
} sl_header_entry;

typedef struct sl_header {
    sl_header_entry *entries;
    int n, cap;
    char **metadata; // [n_metadata][2] names and texts of __metadata__, in the order of the file
    int n_metadata;
} sl_header;

int sl_header_parse(const char *file, const char *text, size_t n, sl_header *out, sl_error *err);
void sl_header_free(sl_header *header);

#endif
