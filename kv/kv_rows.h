// kv/kv_rows.h - how the KV cache stores the rows of K or of V of one page, layer and KV head (a block), and the numbers that
// they stand for. K and V may have different formats:
//
//   SL_BF16           [256][head_dim] bf16
//   SL_FP8, SL_INT8   [256][head_dim] bytes, then [256] fp32 scales, one for each row
//
// A block is contiguous, and its size is a multiple of 256 bytes. head_dim is a multiple of 16, so every row begins at a
// multiple of 16 bytes, and the scales do too: a kernel reads both with aligned loads of 16 bytes.
//
// A stored number q of a row with a scale stands for q * scale, rounded once to fp32. This is the specification. The CPU and
// the page extras of both devices compute with these fp32 numbers. (Two page extras round them to bf16 first: Bernoulli's keys
// by feature and the bucket index.) On a GPU, decode multiplies sums by the scale (stored_rows.cuh), and prefill rounds the
// numbers to bf16 (widen_rows.cu). A scale depends on its row only, so a row has equal bits in every chunk and batch:
//   int8  scale = max |x| / 127, q = x / scale rounded to the nearest integer, ties to even, within +-127
//   fp8   scale = max |x| / 448, q = x / scale rounded to the nearest e4m3, ties to even
// in fp32. The scale of zeros is 1. A row with a number that is not finite has a scale of NaN, so all its numbers read as NaN.
// A checkpoint can have one scale for all rows of a KV head (models/kv_scales.h); numbers beyond it become the largest number.
#ifndef SLEIGH_KV_ROWS_H
#define SLEIGH_KV_ROWS_H

#include "backend/weight.h"

enum { SL_PAGE = 256 }; // rows of a page; also the tile of every sampler

typedef struct sl_kv_formats { // zeros: bf16
    sl_format k, v;            // SL_BF16, SL_FP8 or SL_INT8
} sl_kv_formats;

// Consecutive rows of one block.
typedef struct sl_kv_run {
    const void *data;   // [rows][head_dim] numbers of `format`
    const float *scale; // [rows]; NULL: SL_BF16
    sl_format format;
} sl_kv_run;

// One row, whose format the reader knows.
typedef struct sl_kv_row {
    const void *data; // [head_dim]
    float scale;      // 1: SL_BF16
} sl_kv_row;

// Bytes of a row with its scale.
static inline size_t sl_kv_row_bytes(sl_format f, int head_dim) {
    return sl_format_bytes(f, (size_t)head_dim) + (sl_formats[f].has_scale ? sizeof(float) : 0);
}
static inline size_t sl_kv_block_bytes(sl_format f, int head_dim) {
    return SL_PAGE * sl_kv_row_bytes(f, head_dim);
}

// Block number `block` of memory that holds blocks one after another.
static inline sl_kv_run sl_kv_run_of(const void *blocks, sl_format f, int head_dim, size_t block) {
    const char *at = (const char *)blocks + block * sl_kv_block_bytes(f, head_dim);
    sl_kv_run run = {at, NULL, f};
    if (sl_formats[f].has_scale) run.scale = (const float *)(at + SL_PAGE * sl_format_bytes(f, (size_t)head_dim));
    return run;
}
static inline sl_kv_run sl_kv_bf16_run(const bf16 *rows) {
    sl_kv_run run = {rows, NULL, SL_BF16};
    return run;
}
static inline sl_kv_row sl_kv_row_at(sl_kv_run run, int head_dim, int j) {
    // An element of a cache has whole bytes (n_values is 1), so this needs no division.
    sl_kv_row row = {(const char *)run.data + (size_t)j * (size_t)head_dim * (size_t)sl_formats[run.format].n_bytes,
                     run.scale ? run.scale[j] : 1};
    return row;
}
static inline sl_kv_run sl_kv_run_from(sl_kv_run run, int head_dim, int j) { // the rows from row j on
    run.data = sl_kv_row_at(run, head_dim, j).data;
    if (run.scale) run.scale += j;
    return run;
}

// Number i of a row: the specification of every format.
static inline float sl_kv_number(sl_kv_row row, sl_format f, int i) {
    if (f == SL_BF16) return sl_bf16_to_f32(((const bf16 *)row.data)[i]);
    if (f == SL_FP8) return sl_fp8_to_f32(((const uint8_t *)row.data)[i]) * row.scale;
    return (float)((const int8_t *)row.data)[i] * row.scale;
}

// out[n_rows][head_dim]: the numbers of the rows of a run.
void sl_kv_widen(sl_kv_run run, int head_dim, int n_rows, float *out);

// Rounds x [head_dim] and stores it as row `row` of block number `block`. given: the scale; 0: the row's own.
void sl_kv_store(void *blocks, sl_format f, int head_dim, size_t block, int row, const float *x, float given);

// Reads the formats of a cache. dtype: of K and V; k, v: of K or V alone, in place of dtype; NULL or "auto": not given. Names:
// "auto" and "bf16" ("bfloat16"), which is also the format when nothing is given; "fp8" ("fp8_e4m3"); "int8" ("q8_0").
// SL_ERR_ARG
int sl_kv_formats_parse(const char *dtype, const char *k, const char *v, sl_kv_formats *out, sl_error *err);

#endif
