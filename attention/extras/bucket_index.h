// attention/extras/bucket_index.h - the index of a sequence's rows by bucket (attention/extras/buckets.h), as page extras
// (kv/kv_extras.h). Both extras have the argument 1 for centroids of keys after RoPE, and 0 for keys before RoPE.
//
// A row gets its bucket when its page is full. Two levels keep the walk of a step short (docs/methods-theory.md has the bytes):
//   bucket rows   of a page: its rows, sorted by bucket
//   bucket lists  of a span of 16 pages: for each bucket, the list of its rows
//   bucket cells  of a span, for saap-is: mean and variance of the keys of each cell
// A step reads the lists of the visited buckets in every full span, and the sorted rows of the pages after the last full span.
// A cell of a span is a group of consecutive buckets: there are 64 cells, or C if C is below 64.
#ifndef SLEIGH_BUCKET_INDEX_H
#define SLEIGH_BUCKET_INDEX_H

#include "attention/extras/buckets.h"
#include "base/philox.h"
#include "kv/kv_extras.h"

#ifdef __cplusplus
extern "C" {
#endif

enum { SL_BUCKET_SPAN = 16, SL_BUCKET_SPAN_ROWS = SL_BUCKET_SPAN * SL_PAGE };

// The block of the extra "bucket rows": row[i], a row of the page, lies in bucket[i]. bucket does not descend, and rows of one
// bucket ascend.
typedef struct sl_bucket_rows {
    uint16_t bucket[SL_PAGE];
    uint8_t row[SL_PAGE];
} sl_bucket_rows;

// The block of the extra "bucket lists": the rows of bucket c are row[first[c]] to row[first[c + 1] - 1], counted from the
// first row of the span, ascending. Numbers of `first` after number C are not written.
typedef struct sl_bucket_lists {
    uint16_t first[SL_BUCKETS_MOST + 1];
    uint16_t row[SL_BUCKET_SPAN_ROWS];
} sl_bucket_lists;

enum { SL_BUCKET_CELLS = 64 };

static inline SL_HOST_DEVICE int sl_bucket_cell(int bucket, int n_buckets) {
    return n_buckets < SL_BUCKET_CELLS ? bucket : bucket * SL_BUCKET_CELLS / n_buckets;
}
// The block of the extra "bucket cells" is bf16 [64][2][head_dim]: mean and variance by channel of the keys after RoPE of the
// rows of a cell; zeros for a cell without rows. The sums are fp32, page by page and in the order of the bucket rows.
extern const sl_kv_extra_kind sl_bucket_rows_kind, sl_bucket_lists_kind, sl_bucket_cells_kind;

// Undoes RoPE: rotates x [head_dim] back by the angles position * inv_freq[i], in the layout of Hugging Face (number i is
// rotated with number i + head_dim / 2). The angle is rounded to fp32, as the backends compute it. out may be x.
void sl_rotate_back(const float *inv_freq, int head_dim, int position, const float *x, float *out);
// Writes the buckets of n_rows <= 256 rows of one KV head in one layer: bucket[j] of k[j] at position first + j. k: [n_rows]
// [head_dim], keys after RoPE. roped 0: the key is rotated back and compared with the centroids of keys before RoPE (SAAP,
// section 4). roped 1: compared with the centroids of keys after RoPE. In both cases the key is rounded to bf16 first. A key
// with a product that is NaN with every centroid lies in bucket 0. The buckets have the same bits on every instruction set.
void sl_bucket_assign(const sl_buckets *b, int roped, int layer, int h, sl_kv_run k, int n_rows, int first, uint16_t *bucket);

#ifdef __cplusplus
}
#endif

#endif
