// attention/extras/buckets.h - what was trained for the keys and queries of a model, and methods read: centroids of keys and a
// classifier of queries for the saap methods (P.-E. Mazare et al.: Inference-time sparse attention with asymmetric indexing,
// 2025; "SAAP" below), and projections to bits (key_bits.h). models/bucket_file.h and models/bit_file.h read them from files,
// and docs/methods-theory.md describes them.
//
// The keys of a KV head are split into n_buckets buckets. A row lies in the bucket of the nearest centroid: the centroid with
// the largest inner product with the row's key, the lowest bucket among equals (SAAP, sections 3 and 4).
#ifndef SLEIGH_BUCKETS_H
#define SLEIGH_BUCKETS_H

#include "base/bf16.h"

enum {
    SL_BUCKETS_MOST = 4096,       // buckets of a KV head
    SL_BUCKETS_WIDTH_MOST = 8192, // hidden numbers of a classifier
    SL_KEY_BITS_MOST = 128        // bits of a key
};

// head below: layer * n_kv_heads + KV head. A rank of several has the model's n_kv_heads, and arrays from its first head on.
typedef struct sl_key_bits {
    int n_bits;           // B, a multiple of 32; 0: none
    const bf16 *wq, *wk;  // [head][B][head_dim] of queries and of keys, both after RoPE
    const float *bq, *bk; // [head][B]
} sl_key_bits;

typedef struct sl_buckets {
    int n_layers, n_kv_heads, head_dim;
    int n_buckets;         // C; 0: no buckets
    int width;             // W, of the classifier; 0: none
    int n_dense;           // layers [0, n_dense) have no trained numbers: a method attends to all of their rows
    const bf16 *centroids; // [head][C][head_dim] of keys before RoPE; of norm 1 before their rounding to bf16
    const bf16 *roped;     // [head][C][head_dim] of keys after RoPE; NULL: none
    const bf16 *w1, *w2;   // [head][W][head_dim], [head][C][W]; NULL: no classifier
    const float *b1, *b2;  // [head][W], [head][C]
    const float *inv_freq; // [head_dim / 2] of RoPE: pair i of position p is rotated by the angle p * inv_freq[i]
    sl_key_bits bits;
} sl_buckets;

struct sl_attn_spec;
int sl_attn_reads_buckets(const struct sl_attn_spec *spec); // 1: the specification reads buckets; spec.c
int sl_attn_reads_key_bits(const struct sl_attn_spec *spec);

#endif
