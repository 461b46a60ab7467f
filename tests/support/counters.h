// tests/support/counters.h - computes which rows a method draws from the documented counter of its random numbers: key (seed,
// sequence), counter (position, layer << 16 | head, index, stream).
//
// Every score is 0, so every row has the same mass, size and proposal, and the uniform number of a draw gives the row. The
// value of a row is random signs, so the output shows which rows the method drew.
#ifndef SLEIGH_TEST_COUNTERS_H
#define SLEIGH_TEST_COUNTERS_H

#include "base/philox.h"
#include "tests/support/reference.h"

enum { COUNTER_TILES = 8, COUNTER_ROWS = COUNTER_TILES * 256, COUNTER_DIM = 64 };

// How a method uses uniform numbers. COUNTER_TILE_DRAWS: one draw in every tile.
typedef enum { COUNTER_ROW_DRAWS, COUNTER_TILE_DRAWS, COUNTER_ONE_NUMBER, COUNTER_PERMUTATION } counter_kind;

typedef struct counter_method {
    const char *attn;
    counter_kind kind;
    int tiles; // tiles with draws: 8, or 7 when all rows of the newest page are taken
} counter_method;

enum { N_COUNTER_METHODS = 10 };
extern const counter_method counter_methods[N_COUNTER_METHODS];

// Sequences have COUNTER_ROWS rows; head_dim is COUNTER_DIM.
ref_cache counter_cache(int n_heads, int n_kv_heads, int n_seqs);
// The output that query head `head` of sequence s must give. budget: rows that a permutation draws, as the head's report states
// it.
void counter_expect(const ref_cache *c, const counter_method *m, int s, int head, const sl_rng_id *id, int budget,
                    double out[COUNTER_DIM]);

#endif
