// tests/support/reference.h - the independent reference: dense attention in double precision, and KV caches with random rows
// for tests of kernels.
#ifndef SLEIGH_REFERENCE_H
#define SLEIGH_REFERENCE_H

#include "attention/attention.h"
#include "attention/extras/buckets.h"
#include "kv/kv_rows.h"

// A pool of one layer with its sequences. Pages are shuffled. Rows after the end of a sequence are NaN.
typedef struct ref_cache {
    sl_attn_geom geom;
    sl_kv_pool pool;
    int n_seqs;
    sl_kv_seq *seqs;
    float *q, *out; // [n_seqs][n_heads][head_dim]
    sl_attn_query *queries;
    sl_attn_report *reports; // [n_seqs][n_heads] of the last ref_decode
    int exact_below;         // of sl_attn_decode_args, for ref_decode
    sl_workspace ws;
    sl_buckets buckets; // random, of REF_BUCKETS buckets
} ref_cache;

enum { REF_BUCKETS = 13, REF_WIDTH = 32 };

// Keys and queries are normal random numbers. query_scale 0 gives flat attention, 1 mild, 4 and more peaked.
ref_cache ref_cache_new(int n_heads, int n_kv_heads, int head_dim, int n_seqs, const int *lengths, double query_scale,
                        uint64_t seed);
void ref_cache_free(ref_cache *c);
// Decodes the sequences [first, first + n) of the cache with the method; results go to c->out.
sl_attn_stats ref_decode(ref_cache *c, const char *attn, int first, int n, uint32_t seed, int layer);
sl_attn_stats ref_decode_spec(ref_cache *c, const sl_attn_spec *spec, int first, int n, uint32_t seed, int layer);

// Builds a page extra for sequences [first, first + n). The engine builds page extras before it appends the newest row, so the
// newest row does not count.
void ref_build_extras(ref_cache *c, sl_kv_need need, int first, int n);
// Row j of KV head h of a sequence.
// Fills the rows [from, to) of sequence s with normal numbers. A row depends on the seed, its number and its KV head alone.
void ref_write_rows(ref_cache *c, int s, int from, int to, uint64_t seed);
void ref_set_length(ref_cache *c, int s, int n);                // the first n rows are the sequence's
const bf16 *ref_k_row(const ref_cache *c, int s, int h, int j); // of a bf16 cache
const bf16 *ref_v_row(const ref_cache *c, int s, int h, int j);
// Stores all rows in another format. Rows after the end of a sequence get a scale of NaN. Call it before page extras are built.
void ref_store_as(ref_cache *c, sl_format f);
// The numbers of row j of KV head h of a sequence, in any format, to: [head_dim]; and the rows of its page from row j on.
void ref_key(const ref_cache *c, int s, int h, int j, double *to);
void ref_value(const ref_cache *c, int s, int h, int j, double *to);
sl_kv_run ref_value_run(const ref_cache *c, int s, int h, int j);
// Dense attention of one head over the first n_visible rows. p: [n_visible] probabilities; mu: [head_dim] output.
void ref_attention(const ref_cache *c, int s, int head, const float *q, int n_visible, double *p, double *mu);
double ref_error(const ref_cache *c, int s, int head); // |out - mu| / |mu| of the output in c->out
// Adds x to every value. Values with mean 0 make the output of a flat head almost 0. Then even a few missing rows give a large
// relative error.
void ref_add_to_values(ref_cache *c, float x);
// Number d of row j as the format defines it, from its bits: the code times the scale, rounded once to fp32.
double ref_number(sl_kv_run run, int head_dim, int j, int d);
double ref_relative(const float *got, const double *want, int n); // |got - want| / |want|

#endif
