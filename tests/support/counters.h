// tests/support/counters.h - which rows a method draws, worked out from the documented counter of its random numbers: key
// (seed, sequence), counter (position, layer << 16 | head, index, stream). For methods on the CPU and on a GPU.
//
// Every score is 0, so every row has the same weight, size and proposal on every device, and a draw's place is its uniform
// number. A row's value holds its number in its tile, in channels of the tile's own: the output tells which rows were drawn.
#ifndef SLEIGH_TEST_COUNTERS_H
#define SLEIGH_TEST_COUNTERS_H

#include "engine/base/philox.h"
#include "tests/support/reference.h"

enum { COUNTER_TILES = 8, COUNTER_ROWS = COUNTER_TILES * 256, COUNTER_DIM = 64 };

// How a method takes uniform numbers. Tile draws: one draw in every tile.
typedef enum { COUNTER_ROW_DRAWS, COUNTER_TILE_DRAWS, COUNTER_ONE_NUMBER, COUNTER_PERMUTATION } counter_kind;

typedef struct counter_method {
    const char *attn;
    counter_kind kind;
    int tiles; // that are drawn from: 8, or 7 where the newest page is taken whole
} counter_method;

enum { N_COUNTER_METHODS = 10 };
extern const counter_method counter_methods[N_COUNTER_METHODS];

// Sequences of COUNTER_ROWS rows, head_dim COUNTER_DIM.
ref_cache counter_cache(int n_heads, int n_kv_heads, int n_seqs);
// What query head `head` of sequence s must give. budget: rows that a permutation draws, what the head's report says.
void counter_expect(const ref_cache *c, const counter_method *m, int s, int head, const sl_rng_id *id, int budget,
                    double out[COUNTER_DIM]);
// The number in its tile of the row that a tile's draws show, from -1 to 1; the mean of several. out: of `head`.
double counter_place(const ref_cache *c, int s, int head, const float *out, int tile);

#endif
