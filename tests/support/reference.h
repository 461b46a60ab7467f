// tests/support/reference.h - the independent judge: dense attention in double precision, and KV caches to try kernels on.
#ifndef SLEIGH_REFERENCE_H
#define SLEIGH_REFERENCE_H

#include "attention/attention.h"

// A pool of one layer with its sequences, pages shuffled, rows past each sequence's end filled with NaN.
typedef struct ref_cache {
    sl_attn_geom geom;
    sl_kv_pool pool;
    int n_seqs;
    sl_kv_seq *seqs;
    float *q, *out; // [n_seqs][n_heads][head_dim]
    sl_attn_query *queries;
    sl_attn_report *reports; // [n_seqs][n_heads] of the last ref_decode
    sl_workspace ws;
} ref_cache;

// Keys and queries are normal numbers; query_scale 0: flat attention, 1: mild, 4 and above: peaked.
ref_cache ref_cache_new(int n_heads, int n_kv_heads, int head_dim, int n_seqs, const int *lengths, double query_scale,
                        uint64_t seed);
void ref_cache_free(ref_cache *c);
// Runs spec's decode over the sequences [first, first + n) of the cache; results in c->out.
sl_attn_stats ref_decode(ref_cache *c, const char *attn, int first, int n, uint32_t seed, int layer);
sl_attn_stats ref_decode_spec(ref_cache *c, const sl_attn_spec *spec, int first, int n, uint32_t seed, int layer);

// Row j of KV head h of a sequence.
const bf16 *ref_k_row(const ref_cache *c, int s, int h, int j);
const bf16 *ref_v_row(const ref_cache *c, int s, int h, int j);
// p[n]: softmax of head's scores; mu[head_dim]: dense output. n_visible rows.
void ref_attention(const ref_cache *c, int s, int head, const float *q, int n_visible, double *p, double *mu);
double ref_error(const ref_cache *c, int s, int head); // of what c->out holds: |out - mu| / |mu|
// Adds x to every value: without a mean a flat head's output is so near zero that a relative error needs every row.
void ref_add_to_values(ref_cache *c, float x);
double ref_relative(const float *got, const double *want, int n); // |got - want| / |want|

#endif
