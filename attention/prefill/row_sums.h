// attention/prefill/row_sums.h - sums of exact attention probabilities over some rows of one head, and the choice of the
// largest sums: what the masks that read scores share.
//
// A row is `stride` consecutive queries and a column is `stride` consecutive keys. The score of a row and a column is the mean
// of the stride scores on their antidiagonal: query t of the row with key stride - 1 - t of the column. With stride 1 these are
// the scores of attention. A row sees the columns up to its own number. Queries that the segment lacks, and keys past the end,
// are zero vectors. integer_softmax.h makes integers of scores, and shares of integers. Shares of up to 128 rows fit in uint32,
// and their sums do not depend on the order.
//
// The share of a key block needs only the block's mass, so one pass over the keys is enough. A row's offsets (row number -
// column number) in one key block belong to at most two groups of 128 offsets, `128 d .. 128 d + 127`. So a block has two
// masses: of the columns up to number (row number) % 128 in the block, and of the columns after it.
#ifndef SLEIGH_ROW_SUMS_H
#define SLEIGH_ROW_SUMS_H

#include "attention/prefill/prefill_mask.h"

#ifdef __cplusplus
extern "C" {
#endif

// Rows [first, first + n) of a head: row x has the positions stride x .. stride x + stride - 1. sl_sum_rows expects
// n * stride <= SL_MASK_BLOCK.
typedef struct sl_score_rows {
    int head, stride, first, n;
} sl_score_rows;

// The rows whose queries lie in the query blocks [from, to), as far as the segment has them.
sl_score_rows sl_rows_of_blocks(const sl_mask_args *a, int head, int from, int to, int stride);

typedef struct sl_block_mass {
    uint32_t low, high; // of the columns up to the split, and after it; with stride > 1 all columns are `low`
    int16_t ref;        // SL_REF_EMPTY: all scores are below -SL_REF_MOST, and the masses count as 0
} sl_block_mass;
typedef struct sl_row_scale {
    int top;
    uint32_t factor;
} sl_row_scale;

// Scratch of one thread, and results.
typedef struct sl_row_sums {
    int n_blocks, n_columns; // key blocks and columns up to those of the last row
    uint32_t *block;         // [n][n_blocks] the row's share of a key block
    uint32_t *slash;         // [n_blocks] sum over rows of the shares at offsets 128 d .. 128 d + 127; stride 1
    uint32_t *column;        // [n_columns] sum over rows of the shares of a column; sl_sum_lines
    uint32_t *offset;        // [n_columns] sum over rows of the shares at an offset; sl_sum_lines
    uint32_t *sum;           // [n_kv] free for the caller
    uint64_t *rank;          // [n_kv] free for the caller
    uint64_t *set, *other;   // [n_words of the mask] free for the caller
    float *q;                // [rows][stride * head_dim]
    float *k_page;           // [head_dim][256]
    float *k;                // [stride * head_dim][256 / stride]
    float *dot;              // [rows][256 / stride]
    int32_t *score;          // [rows][256 / stride]
    sl_block_mass *mass;     // [n][n_blocks]
    sl_row_scale *scale;     // [n]
    uint32_t *octave;        // [SL_OCTAVE] sl_mass_octave
    uint32_t *near;          // [SL_MASS_REACH] masses in units of 2^-16
} sl_row_sums;

// Fills block and slash. Returns 0 when the largest score of a row is NaN or larger than SL_REF_MOST in size: there are no
// sums. The attention of such a head must visit every block, so that it returns what dense attention returns.
int sl_sum_rows(const sl_mask_args *a, const sl_score_rows *rows, sl_row_sums *x);
// Fills column and offset, in a second pass over the keys. The last sl_sum_rows of x had the same rows, and returned 1.
void sl_sum_lines(const sl_mask_args *a, const sl_score_rows *rows, sl_row_sums *x);
void sl_mass_octave(uint32_t *octave); // [SL_OCTAVE] of sl_fine_mass: masses of the distances 0 .. 63 in units of 2^-30
void sl_sum_blocks(const sl_score_rows *rows, sl_row_sums *x); // x->sum[j]: the sum over rows of block j
// sl_sum_rows and sl_sum_blocks of all rows of query block i. Without sums the mask gets every block of the query block, and
// the function returns 0.
int sl_sum_query_block(const sl_mask_args *a, int head, int i, int stride, sl_row_sums *x);
// Runs task(a, i, scratch) for i < n on all threads. A task writes only its own part of the mask and the reports.
typedef void (*sl_mask_task)(const sl_mask_args *a, int i, sl_row_sums *scratch);
void sl_mask_run(const sl_mask_args *a, int n, sl_mask_task task);
size_t sl_mask_run_workspace(const sl_attn_geom *g, const sl_attn_spec *spec, int n_tokens, int n_kv); // a mask_workspace

// The least share, over the rows of the last sl_sum_rows (of stride 1), that the mask keeps.
int32_t sl_rows_kept(const sl_mask_args *a, const sl_score_rows *rows, const sl_row_sums *x);
void sl_mask_add_all(const sl_mask_args *a, int head, int from, int to); // every block of the query blocks [from, to)

// ---- the largest sums ----

// Writes the indices 0 .. n - 1, by sum descending and then by index ascending. rank: [n].
void sl_rank_sums(const uint32_t *sum, int n, uint64_t *rank);
static inline uint32_t sl_rank_index(uint64_t rank) {
    return (uint32_t)rank;
}
static inline uint32_t sl_rank_sum(uint64_t rank) {
    return ~(uint32_t)(rank >> 32);
}
// How many of the first entries reach `share` of the total of all sums: the fewest. The total is below 2^32. share is in units
// of 2^-32: sl_share_of of a parameter. Share 1 keeps every positive sum, and share 0 none.
int sl_fewest_reaching(const uint64_t *rank, int n, uint64_t share);
static inline uint64_t sl_share_of(double x) {
    return (uint64_t)(x * 0x1p32 + 0.5);
}

#ifdef __cplusplus
}
#endif

#endif
