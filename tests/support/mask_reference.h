// tests/support/mask_reference.h - segments of a prefill for tests of masks, and the masks by their definitions: plain loops
// over a row of all scores, and selections that search the largest sum again for each block.
#ifndef SLEIGH_MASK_REFERENCE_H
#define SLEIGH_MASK_REFERENCE_H

#include "attention/prefill/prefill_mask.h"
#include "tests/support/reference.h"

// One sequence of n_kv rows, whose last n_tokens are the segment. Numbers are small multiples of a power of two. So a dot
// product is exact in fp32, and a score has one value, however it is summed.
typedef struct segment {
    ref_cache c;
    int n_tokens, base; // base: position of the first token
    int layer;          // what random numbers of a mask depend on; K and V are those of layer 0
    float *q;           // [n_tokens][n_heads][head_dim]
    float *out;         // [n_tokens][n_heads][head_dim]
    uint64_t *bits;
    sl_prefill_mask mask;    // of the last segment_mask; its bits are `bits`
    sl_mask_report *reports; // [n_heads]
    float **dots;            // [n_tokens][n_heads]: q.k with every key, filled on demand; NULL: not yet
} segment;

segment segment_new(int n_heads, int n_kv_heads, int head_dim, int base, int n_tokens, uint64_t seed);
void segment_free(segment *s);
// Scales keys by powers of two, other ones for each key block: the running maximum rises, and the blocks differ.
void segment_make_uneven(segment *s);
sl_mask_args segment_args(segment *s, const sl_attn_spec *spec);
void segment_mask(segment *s, const char *method); // makes s->mask and s->reports
// Attends with the mask, or to all keys, in calls of `step` tokens. rule: a method with a skip_distance, or NULL.
void segment_attend(segment *s, const sl_prefill_mask *mask, const char *rule, int step, float *lost, sl_prefill_count *counts);

// Scores of query token i of the segment with the keys up to it, in log2 units and in double precision, not rounded.
void naive_scores(const segment *s, int head, int token, double *score);
// The shares of a row of `stride` queries and keys in columns 0 .. row, as integers (row_sums.h).
void naive_shares(const segment *s, int head, int stride, int row, uint32_t *share);
// The row's shares of each key block: of the columns up to the split, and after it. share: [n_blocks][2]
void naive_block_shares(const segment *s, int head, int stride, int row, uint32_t *share);
// Clears and fills bits (sl_mask_bytes) by the definition of the method, and kept[n_heads] of its report.
void naive_mask(segment *s, const char *method, uint64_t *bits, int32_t *kept);
// The sum over a query block's rows of the shares in each key block 0 .. i.
void naive_block_sums(const segment *s, int head, int i, int stride, uint32_t *sum);
// The rule of `threshold` by definition. Fills the key blocks 0 .. i that query block i skips, and D / (l + D) of each of its
// rows: lost[128]. Returns the number of skipped blocks. i < 64
int naive_rule(const segment *s, int head, int i, double lambda, char *skipped, double *lost);

#endif
