// attention/prefill/mask_random.h - random key blocks, hashes of queries and keys, and the key blocks with the most pairs: what
// the masks share that read no scores.
//
// The random numbers depend on the layer, the head and their place in the mask, and on no seed: a prompt has one mask.
#ifndef SLEIGH_MASK_RANDOM_H
#define SLEIGH_MASK_RANDOM_H

#include "attention/prefill/row_sums.h"

// Adds n key blocks of [from, end) to the set, drawn without replacement, each set of n equally likely; all blocks if there are
// fewer. The set has none of these blocks before. place: a number of its own for each draw of a head, such as the query block.
void sl_mask_draw(const sl_mask_args *a, int head, int place, uint64_t *set, int from, int end, int n);

enum { SL_MASK_DIRECTIONS = 64 }; // most directions of a call
// What a hash makes of the products of a row with n directions.
typedef uint32_t (*sl_mask_hash)(const double *dot, int n);
// Hashes all keys up to the last query (x->column, [n_kv]) and all queries of the segment (x->offset, [n_tokens]) with n
// normally distributed directions of the query head. The products are in double precision, and the directions are multiples of
// 2^-8: so numbers of few bits have exact products. Returns 0 if a product is infinite or NaN: then the mask of the head has
// every block, so that its attention returns what dense attention returns.
int sl_mask_hash_rows(const sl_mask_args *a, int head, int n, sl_mask_hash hash, sl_row_sums *x);

// Adds to query block i the n of the key blocks from .. from + n_blocks - 1 that have the most pairs, the first blocks on ties,
// and none without pairs. pairs: [n_blocks]; rank: [n_blocks], scratch.
void sl_mask_add_most(const sl_prefill_mask *m, int head, int i, int from, int n_blocks, int n, const uint32_t *pairs,
                      uint64_t *rank);

#endif
