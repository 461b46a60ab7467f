// backend/weight.h - a weight, and how its numbers are stored.
//
// A quantised weight is stored as a structure of arrays: packed elements in `data`, a scale for a block of columns and rows,
// and perhaps a zero point or a minimum for each scale. The numbers that the weight stands for are
//   w = (q - zero) * scale        q: the number of the element, an integer or a small float
//   w = q * scale + min           formats with has_min
// in fp32: the difference is exact, and the product and the sum are each rounded once. This is the specification. A device
// computes with these numbers, rounds them once more, or multiplies the sum of the products with q - zero of a group by its
// scale.
#ifndef SLEIGH_WEIGHT_H
#define SLEIGH_WEIGHT_H

#include "base/bf16.h"
#include "base/error.h"

#include <stddef.h>
#include <stdint.h>

typedef enum {
    SL_BF16,
    SL_F16,
    SL_F32,
    SL_FP8,   // e4m3: 1 sign, 4 exponent bits (bias 7), 3 mantissa bits; 0x7f and 0xff are NaN, and there are no infinities
    SL_INT8,  // two's complement
    SL_INT4,  // -8 to 7, stored as q + 8; in all formats of 4 bits, element 2 i of a row is the low nibble of byte i
    SL_UINT8, // 0 to 255, with a minimum
    SL_UINT4, // 0 to 15, with a minimum
    SL_FP4,   // e2m1: sl_fp4_numbers[nibble]
    SL_IQ4,   // the code book of GGUF's IQ4_NL and IQ4_XS: sl_iq4_numbers[nibble]
    SL_N_FORMATS
} sl_format;

// What a CPU multiplies the rows of a weight with.
typedef enum {
    SL_ACT_FLOAT, // fp32
    SL_ACT_INT8,  // rounded to 8 bits, in groups (backend/cpu/int_ops.h); only if sl_format_takes_integers
    SL_ACT_INT16, // the same with 16 bits
    SL_ACT_AUTO,  // for sl_quant (models/quant_scheme.h): no weight has it
    SL_ACT_FP8,   // for sl_quant: sl_inputs of weights of fp8
} sl_activations;

// What a prefill on a GPU rounds the inputs of a weight of fp8 to. A decode step and a CPU do not round them.
typedef enum {
    SL_INPUTS_PLAIN,  // they are not rounded
    SL_INPUTS_ROWS,   // fp8 with a scale for each row (backend/cuda/fp8_rows.h)
    SL_INPUTS_STATIC, // fp8 with the scale sl_weight.input_scale
    SL_INPUTS_GROUPS, // fp8 with a scale for 128 columns of a row, for weights with a scale for 128 x 128 numbers
} sl_inputs;

// Elements are stored in blocks. A row of a matrix begins with a new block.
typedef struct sl_format_info {
    const char *name; // "int4"
    int n_values;     // of a block
    int n_bytes;      // of a block
    int has_scale;    // 1: the numbers need scales
    int has_min;      // 1: each scale has a minimum
} sl_format_info;

static const sl_format_info sl_formats[SL_N_FORMATS] = {
    // in the order of sl_format; C++ has no [SL_BF16] = ...
    {"bf16", 1, 2, 0, 0}, {"f16", 1, 2, 0, 0},   {"f32", 1, 4, 0, 0},   {"fp8", 1, 1, 1, 0}, {"int8", 1, 1, 1, 0},
    {"int4", 2, 1, 1, 0}, {"uint8", 1, 1, 1, 1}, {"uint4", 2, 1, 1, 1}, {"fp4", 2, 1, 1, 0}, {"iq4", 2, 1, 1, 0},
};

// 8 is the sign bit of e2m1; -0 is 0.
static const float sl_fp4_numbers[16] = {0, 0.5f, 1, 1.5f, 2, 3, 4, 6, 0, -0.5f, -1, -1.5f, -2, -3, -4, -6};
static const float sl_iq4_numbers[16] = {-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113};

// The numbers of a format's nibbles 0 to 15; NULL: the format has no code book.
static inline const float *sl_code_book(sl_format f) {
    return f == SL_FP4 ? sl_fp4_numbers : f == SL_IQ4 ? sl_iq4_numbers : NULL;
}

// Stores the nibble of element i of a row. An even element clears the odd one after it.
static inline void sl_nibble_put(uint8_t *row, int i, unsigned u) {
    row[i / 2] = (uint8_t)(i % 2 ? row[i / 2] | u << 4 : u);
}

// Bytes of n elements of a row.
static inline size_t sl_format_bytes(sl_format f, size_t n) {
    size_t values = (size_t)sl_formats[f].n_values;
    return (n + values - 1) / values * (size_t)sl_formats[f].n_bytes;
}

// SL_WEIGHT_GROUP: a group of columns that share a scale begins at a multiple of this number, because the vector loops take so
// many columns at a time.
enum { SL_WEIGHT_GROUP = 16 };

// Row-major [n_rows][n_cols]; a vector has n_rows = 1. On the CPU data may lie in the mapped file.
typedef struct sl_weight {
    const void *data; // NULL: a weight that is not made yet (dummy_weights.h, models/recipe.h)
    sl_format format;
    int n_rows, n_cols;
    const float *scale;   // [ceil(n_rows / scale_rows)][ceil(n_cols / group)]; NULL: the format has no scales
    const int8_t *zero;   // the same shape; NULL: 0; formats with a code book or a minimum have none
    const float *min;     // the same shape; NULL: the format has no minimum
    int group;            // columns that share a scale: n_cols, or a multiple of SL_WEIGHT_GROUP; 0 without scales
    int scale_rows;       // rows that share a scale; 0 without scales
    const int32_t *order; // [n_cols]: column i of data, scale and zero is column order[i] of the matrix; NULL: column i
    sl_activations activations;
    sl_inputs inputs;  // only with SL_FP8
    float input_scale; // SL_INPUTS_STATIC
    const char *name;  // of the tensor
} sl_weight;

// Operations that read data as plain numbers call this.
static inline void sl_weight_check_plain(const sl_weight *w) {
    SL_CHECK(!sl_formats[w->format].has_scale && !w->scale && !w->zero && !w->min && !w->order && w->group == 0);
}

// 1: activations can be integers, because the elements are integers (of e2m1: halves).
static inline int sl_format_takes_integers(sl_format f) {
    return sl_formats[f].has_scale && f != SL_FP8;
}

static inline size_t sl_weight_row_bytes(const sl_weight *w) {
    return sl_format_bytes(w->format, (size_t)w->n_cols);
}
static inline const char *sl_weight_row(const sl_weight *w, size_t row) {
    return (const char *)w->data + row * sl_weight_row_bytes(w);
}

static inline int sl_weight_groups(const sl_weight *w) { // scales of a row
    return w->group ? (w->n_cols + w->group - 1) / w->group : 0;
}
static inline size_t sl_weight_scales(const sl_weight *w) { // all scales
    return w->group ? (size_t)(w->n_rows + w->scale_rows - 1) / (size_t)w->scale_rows * (size_t)sl_weight_groups(w) : 0;
}
// The place of a row's first scale.
static inline size_t sl_weight_scale_at(const sl_weight *w, size_t row) {
    return row / (size_t)w->scale_rows * (size_t)sl_weight_groups(w);
}

size_t sl_weight_bytes(const sl_weight *w); // of data, scales, minimums, zero points and order

float sl_fp8_to_f32(uint8_t x);
// Rounds to nearest, ties to even. A size above 448 becomes 448.
uint8_t sl_f32_to_fp8(float x);

// Writes row `row` of the matrix to out[n_cols]: the specification of every format.
void sl_weight_widen(const sl_weight *w, size_t row, float *out);

#endif
