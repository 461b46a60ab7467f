// models/dequant.h - the types of GGUF tensors, and the numbers of their blocks.
//
// A row of a tensor consists of blocks. A block holds `n_values` numbers in `n_bytes` bytes.
#ifndef SLEIGH_DEQUANT_H
#define SLEIGH_DEQUANT_H

#include "engine/base/bf16.h"

#include <stddef.h>

enum { SL_BLOCK_MOST = 256 }; // values of a block

typedef struct sl_block_type {
    int id;           // in the file
    const char *name; // "Q4_K"
    int n_values;     // of a block
    size_t n_bytes;   // of a block
    // Writes the numbers of a block in fp32: y [n_values]. The rounding is at most two roundings of fp32. NULL: Sleigh does not
    // read this type
    void (*unpack)(const unsigned char *block, float *y);
} sl_block_type;

const sl_block_type *sl_block_type_find(int id); // NULL: unknown
// `F32, F16, ...`: the types that Sleigh reads, for messages.
void sl_block_type_list(char *buf, size_t size);

// Rounds to nearest, ties to even. A number that rounds to 65520 or more becomes infinite.
f16 sl_f32_to_f16(float x);

#endif
