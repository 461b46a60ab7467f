// attention/prefill/prefill_mask.h - which keys the queries of a prefill attend to: the contract of a mask proposal
// (sl_attn_ops.mask).
//
// A query block is the queries of SL_MASK_BLOCK consecutive positions, and a key block the keys of as many positions. Query
// block i and key block i have the positions 128 i .. 128 i + 127, whatever the first position of a call is. A mask says for
// each query head and query block which key blocks 0 .. i the attention visits. Inside a block, a query sees the keys up to its
// position. Every mask has the diagonal (block i) and the sink (block 0): no query is without a key.
//
// A mask is made for a segment at once. A segment is consecutive tokens of one sequence. A method may read all queries of the
// segment, so a segment has fixed borders, and passes of a prefill do not move them. The attention of a segment may be split at
// any token: it gives the same bits.
//
// A mask is a set of bits, the same on every device, so memcmp compares two masks.
#ifndef SLEIGH_PREFILL_MASK_H
#define SLEIGH_PREFILL_MASK_H

#include "attention/attention.h"

#ifdef __cplusplus
extern "C" {
#endif

enum { SL_MASK_BLOCK = 128 };

typedef struct sl_prefill_mask {
    int n_heads;
    int first, n;   // query blocks [first, first + n)
    int n_words;    // of a row
    uint64_t *bits; // [n_heads][n][n_words]; bit j % 64 of word j / 64 is key block j; bits past the diagonal are 0
} sl_prefill_mask;

// The shape of the mask of n_tokens queries, the last of which has the position n_kv - 1. The caller adds sl_mask_bytes of
// memory.
static inline sl_prefill_mask sl_mask_of(int n_heads, int n_tokens, int n_kv) {
    sl_prefill_mask m;
    int end = (n_kv + SL_MASK_BLOCK - 1) / SL_MASK_BLOCK;
    m.n_heads = n_heads, m.first = (n_kv - n_tokens) / SL_MASK_BLOCK, m.n = end - m.first;
    m.n_words = (end + 63) / 64, m.bits = NULL;
    return m;
}
static inline size_t sl_mask_bytes(const sl_prefill_mask *m) {
    return (size_t)m->n_heads * m->n * m->n_words * sizeof *m->bits;
}
static inline uint64_t *sl_mask_row(const sl_prefill_mask *m, int head, int query_block) { // [n_words]
    return m->bits + ((size_t)head * m->n + (query_block - m->first)) * m->n_words;
}

// ---- a row, or another set of blocks ----

static inline int sl_mask_has(const uint64_t *row, int block) {
    return (int)(row[block / 64] >> (block % 64) & 1);
}
static inline void sl_mask_set(uint64_t *row, int block) {
    row[block / 64] |= (uint64_t)1 << (block % 64);
}
// The first block of the row in [from, last]; last + 1: there is none.
static inline int sl_mask_next(const uint64_t *row, int from, int last) {
    if (from > last) return last + 1;
    uint64_t word = row[from / 64] >> (from % 64) << (from % 64);
    for (int w = from / 64;; word = row[w]) {
        int block = word ? w * 64 + __builtin_ctzll(word) : last + 1;
        if (word) return block <= last ? block : last + 1;
        if (++w > last / 64) return last + 1;
    }
}

// ---- a mask ----

// Adds the key blocks [from, to] that exist and are not past the diagonal.
void sl_mask_add(const sl_prefill_mask *m, int head, int query_block, int from, int to);
// Adds the key blocks of the set `columns`, and the key blocks i - d for each distance d of the set `distances`, to the query
// blocks [from, to).
void sl_mask_add_lines(const sl_prefill_mask *m, int head, int from, int to, const uint64_t *columns,
                       const uint64_t *distances);
uint64_t sl_mask_count(const sl_prefill_mask *m, int head); // blocks of a head
uint64_t sl_mask_causal(const sl_prefill_mask *m);          // blocks of a head with dense attention; density = count / causal

// ---- a mask proposal ----

// What a method reports about one head. A share of the mass is in units of 2^-24.
enum { SL_SHARE_BITS = 24, SL_MASK_NOT_SAMPLED = -1 };
typedef struct sl_mask_report {
    // The estimated CRA (cumulative residual attention, SampleAttention): the least share of a sampled row's mass that the mask
    // keeps. SL_MASK_NOT_SAMPLED: the method samples no rows.
    int32_t kept;
} sl_mask_report;

typedef struct sl_mask_args {
    const sl_attn_geom *geom;
    const sl_attn_spec *spec;
    int layer;
    int n_tokens;            // of the segment
    const float *q;          // [n_tokens][n_heads][head_dim], after RoPE
    sl_kv_view kv;           // all keys up to the last query, whose position is kv.n_kv - 1
    sl_workspace *ws;        // at least sl_mask_workspace bytes
    sl_prefill_mask *mask;   // of sl_mask_of(n_heads, n_tokens, kv.n_kv), overwritten
    sl_mask_report *reports; // [n_heads], overwritten; NULL: no reports
} sl_mask_args;

// Bytes of scratch for a segment. 0 for a method without a mask.
size_t sl_mask_workspace(const sl_attn_geom *geom, const sl_attn_spec *spec, int n_tokens, int n_kv);
// Makes the mask of a segment with a method that has sl_attn_ops.mask. Equal inputs give equal bits for every number of
// threads.
void sl_mask_propose(const sl_mask_args *args);
// The measured CRA of a head: the least share of the mass of the segment's tokens [first, first + n) that args->mask keeps, n
// <= SL_MASK_BLOCK. The function needs sl_mask_measure_workspace bytes, and reads neither spec nor reports.
int32_t sl_mask_measure(const sl_mask_args *args, int head, int first, int n);
size_t sl_mask_measure_workspace(const sl_attn_geom *geom, int n_kv);
// The error of args->out against dense attention, |out - exact| / |exact|, for the tokens [first, first + n) of a call that has
// run. exact: [n][n_heads][head_dim], overwritten; error: [n][n_heads].
void sl_prefill_errors(const sl_attn_prefill_args *args, int first, int n, float *exact, float *error);

#ifdef __cplusplus
}
#endif

#endif
