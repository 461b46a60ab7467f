// models/recipe.h - how a load makes a weight: from the packed tensors of a quantised checkpoint, or by rounding plain numbers.
// The binding of a model (models/weights.h) fills recipes, and sl_recipe_make follows them.
#ifndef SLEIGH_RECIPE_H
#define SLEIGH_RECIPE_H

#include "models/safetensors.h"

typedef enum {
    SL_MADE_NOT,     // the weight is a plain tensor
    SL_MADE_ROUNDED, // from `plain` (models/quantise.h)
    SL_MADE_STORED,  // q of the file is what sl_weight stores, and stays in the mapped file; the scales become fp32
    SL_MADE_OFFSET,  // compressed-tensors, 8 bits in pack-quantized: q + 128
    SL_MADE_GPTQ,    // 4 bits, packed along the columns, transposed
    SL_MADE_AWQ,     // 4 bits, packed along the rows in the order 0 2 4 6 1 3 5 7, transposed
    SL_MADE_BLOCKS,  // from the blocks of a GGUF file; q is a kept tensor
} sl_making;

// A scale of the whole tensor beside those of its groups.
typedef enum {
    SL_GLOBAL_NONE,
    SL_GLOBAL_FACTOR,  // the scales are multiplied by it
    SL_GLOBAL_DIVISOR, // the scales are divided by it
} sl_global;

enum { SL_RECIPE_UNUSED = 4 };

// The tensors' shapes and dtypes have been checked. [groups]: the scales of a row.
typedef struct sl_recipe {
    sl_making making;
    sl_weight plain;         // of SL_MADE_ROUNDED. Without data it is a dummy weight
    const sl_tensor *q;      // NULL: SL_MADE_ROUNDED
    const sl_tensor *scale;  // [n_rows / scale_rows][groups], or one number; GPTQ, AWQ: [groups][n_rows]; U8: E8M0, 2^(e - 127)
    sl_global global_is;     // what `global` does
    const sl_tensor *global; // F32, one number; NULL: SL_GLOBAL_NONE
    const sl_tensor *zero;   // packed as q, or I8 in the shape of scale; NULL: none
    const sl_tensor *index;  // I32 [n_cols]: the group of each column, for columns in another order; NULL: none
    int zero_offset;         // GPTQ v1: the words of zero lack 0x11111111
    const sl_tensor *unused[SL_RECIPE_UNUSED]; // tensors that belong to the weight and change no number; NULL: none
} sl_recipe;

// Number i of a tensor of BF16, F16, F32, F8_E4M3 or U8 (E8M0). The tensor's data need not be aligned.
float sl_tensor_number(const sl_tensor *t, size_t i);
// Bytes of memory that sl_recipe_make needs.
size_t sl_recipe_bytes(const sl_recipe *r, const sl_weight *w);
// Bytes that an operation reads of the weight, also before it is made.
size_t sl_recipe_read_bytes(const sl_recipe *r, const sl_weight *w);
// Makes the weight: sets data, scale, zero, min and order of *w, whose other fields are set. memory: sl_recipe_bytes bytes,
// zeroed, aligned to 64 bytes. The threads of the calling thread's pool share the work. The product or quotient of a scale and
// the global scale is rounded to fp32 once. SL_ERR_FORMAT: a scale is not finite, a global scale is not a finite number above
// 0, a number is NaN, or an index is out of range.
int sl_recipe_make(const sl_recipe *r, sl_weight *w, char *memory, sl_error *err);

#endif
