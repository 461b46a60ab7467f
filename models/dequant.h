// models/dequant.h - the types of GGUF tensors, and the numbers of their blocks.
//
// A row of a tensor consists of blocks. A block holds `n_values` numbers in `n_bytes` bytes.
#ifndef SLEIGH_DEQUANT_H
#define SLEIGH_DEQUANT_H

#include "backend/weight.h"

#include <stddef.h>

enum { SL_BLOCK_MOST = 256 }; // values of a block

typedef struct sl_block_type {
    int id;           // in the file
    const char *name; // "Q4_K"
    int n_values;     // of a block; 0: Sleigh does not read this type
    size_t n_bytes;   // of a block
    sl_format format; // of a weight with the same numbers
    int group;        // values that share a scale; 0: plain numbers
    // Splits a block into the bytes or nibbles of such a weight [n_values], and its scales and minimums [n_values / group].
    // min: not written in formats without a minimum. NULL: plain numbers
    void (*split)(const unsigned char *block, uint8_t *code, float *scale, float *min);
} sl_block_type;

// Splits a block of a type that is not plain. data: [sl_format_bytes(format, n_values)].
void sl_block_split(const sl_block_type *type, const unsigned char *block, uint8_t *data, float *scale, float *min);
// Writes the numbers of a block: y [n_values]. The products are exact, and the sum of Q4_1, Q5_1, Q4_K and Q5_K is rounded to
// fp32 once.
void sl_block_unpack(const sl_block_type *type, const unsigned char *block, float *y);

const sl_block_type *sl_block_type_find(int id); // NULL: unknown
// `F32, F16, ...`: the types that Sleigh reads, for messages.
void sl_block_type_list(char *buf, size_t size);

// Rounds to nearest, ties to even. A number that rounds to 65520 or more becomes infinite. There are no branches, so that a
// compiler makes vector code of a loop.
static inline f16 sl_f32_to_f16(float x) {
    float size = x < 0 ? -x : x, small = size + 0.5f; // below 2^-14 the sum rounds to multiples of 2^-24
    uint32_t u, v, w;
    memcpy(&u, &x, 4), memcpy(&v, &small, 4);
    w = u & 0x7fffffff;
    uint32_t normal = (w - 0x38000000 + 0xfff + (w >> 13 & 1)) >> 13, out = w < 0x38800000 ? v - 0x3f000000 : normal;
    out = w >= 0x477ff000 ? 0x7c00 : out; // 65520
    out = w > 0x7f800000 ? 0x7e00 : out;
    return (f16)(out | (u >> 16 & 0x8000));
}

#endif
