// attention/extras/buckets.h - what the saap methods know about a model: centroids of its keys and a classifier of its queries
// (P.-E. Mazare et al.: Inference-time sparse attention with asymmetric indexing, 2025; "SAAP" below). models/bucket_file.h
// reads them from a file, and docs/methods-theory.md describes them.
//
// The keys of a KV head are split into n_buckets buckets. A row lies in the bucket of the nearest centroid: the centroid with
// the largest inner product with the row's key, the lowest bucket among equals (SAAP, sections 3 and 4).
#ifndef SLEIGH_BUCKETS_H
#define SLEIGH_BUCKETS_H

#include "base/bf16.h"

enum {
    SL_BUCKETS_MOST = 4096,      // buckets of a KV head
    SL_BUCKETS_WIDTH_MOST = 8192 // hidden numbers of a classifier
};

// head below: layer * n_kv_heads + KV head.
typedef struct sl_buckets {
    int n_layers, n_kv_heads, head_dim;
    int n_buckets;         // C
    int width;             // W, of the classifier; 0: none
    int n_dense;           // layers [0, n_dense) have no trained numbers: a method attends to all of their rows
    const bf16 *centroids; // [head][C][head_dim] of keys before RoPE; of norm 1 before their rounding to bf16
    const bf16 *roped;     // [head][C][head_dim] of keys after RoPE; NULL: none
    const bf16 *w1, *w2;   // [head][W][head_dim], [head][C][W]; NULL: no classifier
    const float *b1, *b2;  // [head][W], [head][C]
    const float *inv_freq; // [head_dim / 2] of RoPE: pair i of position p is rotated by the angle p * inv_freq[i]
} sl_buckets;

#endif
