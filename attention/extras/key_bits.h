// attention/extras/key_bits.h - learned bits of keys and queries, which predict the rows of large score (A. Desai, S. Yang, A.
// Cuadron, M. Zaharia, J. E. Gonzalez, I. Stoica: HashAttention: Semantic Sparsity for Faster Inference, arXiv:2412.14468).
//
//   bit i of a key x    wk_i . x + bk_i > 0
//   bit i of a query x  wq_i . x + bq_i > 0
//
// x is after RoPE, as the cache holds it. The numbers belong to a KV head (sl_key_bits in buckets.h). HashAttention has three
// layers of numbers in place of one. The score of a row is the number of bits that its key and the query have in common.
#ifndef SLEIGH_KEY_BITS_H
#define SLEIGH_KEY_BITS_H

#include "attention/extras/buckets.h"
#include "kv/kv_extras.h"

// The block of the extra "key bits": plane p has bits [32 p, 32 p + 32) of each row. Planes of a model with fewer bits are not
// written. invalid[0] is NaN if a product of a key of the page is infinite or NaN, and 0 otherwise.
typedef struct sl_key_bit_page {
    uint32_t plane[SL_KEY_BITS_MOST / 32][SL_PAGE];
    float invalid[16];
} sl_key_bit_page;

extern const sl_kv_extra_kind sl_key_bits_kind;
struct sl_proposal;
extern const struct sl_proposal sl_propose_bits; // propose_bits.c

// Writes the bits of n_rows <= 256 keys of one KV head in one layer: k [n_rows][head_dim].
void sl_key_bits_of(const sl_buckets *b, int layer, int h, sl_kv_run k, int n_rows, sl_key_bit_page *out);
// Writes the bits of a query x [head_dim] into out[B / 32]. Returns 0, or NaN as above.
float sl_query_bits_of(const sl_buckets *b, int layer, int h, const float *x, uint32_t *out);

#endif
