// attention/random_counter.h - which random number each use of attention reads, on the CPU and on CUDA.
//
// Philox (base/philox.h) maps a key and a counter to a number:
//
//   key      (seed, sequence id)
//   counter  (position of the query token, layer << 16 | query head, index, stream)
//
// The query head is the model's: sl_attn_geom.first_head + the head of this shard. So a shard draws the same rows as an engine
// with all heads. The index tells the numbers of a head apart:
//
//   stream     use                                        index
//   ATTENTION  independent and stratified draws           m, the draw
//   ATTENTION  systematic draws                           0
//   ATTENTION  draws of a tile                            t, the tile
//   ATTENTION  draws at a carried threshold               m, the step of kappa
//   ATTENTION  searches with a stated error               sl_try_index(try, m)
//   ATTENTION  uniform sample without replacement         i, the step of the shuffle
//   BUCKETS    draws from the buckets not visited         m, the draw
//   FEATURES   Bernoulli trials, stratified               i, the feature
//   FEATURES   Bernoulli trials, independent              sl_trial_index(t, i, head_dim)
//
// One head uses one line of this table in a step: a layer with a stated error searches in its first step, and draws at the
// carried threshold later. An index has 32 bits, and each of m, t and i is at most the number of rows of a sequence (or, of the
// trials, B * head_dim). So no two numbers of a head share a counter for all lengths that an int holds.
//
// The stream HASH (propose_hashes.c) has a key and a counter of other words: the projections belong to pages, which sequences
// share. sl_hash_random gives them.
#ifndef SLEIGH_RANDOM_COUNTER_H
#define SLEIGH_RANDOM_COUNTER_H

#include "base/philox.h"

// head: the model's query head.
static inline SL_HOST_DEVICE sl_rng_id sl_attn_rng_id(uint32_t seed, uint32_t sequence, uint32_t position, int layer,
                                                      int head) {
    sl_rng_id id;
    id.seed = seed, id.sequence = sequence, id.position = position;
    id.layer = (uint32_t)layer, id.head = (uint32_t)head;
    return id;
}

// The uniform number `index` of a head's draws, as u / 2^64 in [0, 1).
static inline SL_HOST_DEVICE uint64_t sl_draw_random(const sl_rng_id *id, uint32_t index) {
    return sl_rng_u64(id, index, SL_STREAM_ATTENTION);
}

// The uniform number `index` of a query's Bernoulli trials, as u / 2^64 in [0, 1).
static inline SL_HOST_DEVICE uint64_t sl_feature_random(const sl_rng_id *id, uint32_t index) {
    return sl_rng_u64(id, index, SL_STREAM_FEATURES);
}

// The uniform number of draw m from the buckets that a head does not visit, as u / 2^64 in [0, 1).
static inline SL_HOST_DEVICE uint64_t sl_bucket_random(const sl_rng_id *id, uint32_t m) {
    return sl_rng_u64(id, m, SL_STREAM_BUCKETS);
}

// Four random words for number i of a KV head's projections. The caller uses two of them.
static inline SL_HOST_DEVICE sl_philox4 sl_hash_random(uint32_t seed, uint32_t i, int layer, int kv_head) {
    return sl_philox(seed, 0, i, (uint32_t)layer << 16 | (uint32_t)kv_head, 0, SL_STREAM_HASH);
}

// santa-pps with a stated error draws again while its bound fails: number m of try i, 0 <= i < SL_TRIES and m < SL_TRY_DRAWS;
// try 0 is the pilot. The low SL_TRY_BITS bits of m come first, then i, then the high bits of m. So no two pairs (i, m) have
// the same index. A try has at most half as many draws as the sequence has rows, and a sequence has fewer than 2^31 rows.
enum { SL_TRY_BITS = 20, SL_TRIES = 4, SL_TRY_DRAWS = 1 << 30 };
static inline SL_HOST_DEVICE uint32_t sl_try_index(int i, uint32_t m) {
    return m >> SL_TRY_BITS << (SL_TRY_BITS + 2) | (uint32_t)i << SL_TRY_BITS | (m & ((1u << SL_TRY_BITS) - 1));
}

// Trial t of feature i.
static inline SL_HOST_DEVICE uint32_t sl_trial_index(int t, int i, int head_dim) {
    return (uint32_t)(t * head_dim + i);
}

#endif
