// attention/stages.h - the four stages that every decode method is made of (docs/methods.md), on the CPU.
//
//   propose  a cheap score for every row              -> sl_weights   (this issue: the exact score)
//   draw     counts c_j with known expectation pi_j   -> sl_draws
//   refine   the exact score of drawn rows, where the proposal was not exact (no method of this kind yet)
//   combine  sum_j c_j (p_j / pi_j) v_j               -> out
//
// Stored weights. Scores are kept in log2 units. A row's weight is bf16(2^(s_j - ref)), ref the smallest integer not below
// the largest score of its block of 32 rows. In-block mass is the integer floor(w_j * 2^30); global mass is block mass
// << 8 >> (top - ref), top the largest ref: so masses add in 64-bit integers and the same rows are drawn whatever the tile,
// split, thread or device. p_j below is mass_j / total.
#ifndef SLEIGH_STAGES_H
#define SLEIGH_STAGES_H

#include "attention/attention.h"
#include "engine/philox.h"

enum {
    SL_BLOCK = 32,     // rows that share an exponent reference
    SL_CHUNK = 1024,   // rows of one partial result; partial results merge in index order
    SL_TILE = SL_PAGE, // 256 rows: the tile of santa-prop and santa-flash
    SL_REF_EMPTY = -32768, // ref of a block whose rows all have zero weight
};

// The proposal of one query head.
typedef struct sl_weights {
    int n;          // rows
    bf16 *w;        // [round_up(n, 32)], zero past n
    int16_t *ref;   // [n_blocks]
    uint64_t *cum;  // [n_blocks + 1] global mass before each block; cum[n_blocks] = total
    int top;        // largest ref
} sl_weights;

// Fills cum and top from w and ref. Mass is zero everywhere only if every weight is.
void sl_weights_finish(sl_weights *wt);
// Running mass up to and including row j: C_j. C_{-1} = 0.
uint64_t sl_weights_running(const sl_weights *wt, int j);
// First row whose running mass exceeds t, clamped to the last row of positive mass.
int sl_weights_find(const sl_weights *wt, uint64_t t);

// What a draw produced: distinct rows in ascending order.
typedef struct sl_draws {
    int n;            // distinct rows
    int n_samples;    // sum of counts
    int cap;          // room in the arrays
    int32_t *row;     // [n]
    int32_t *count;   // [n] c_j
    float *per_draw;  // [n] p_j / pi_j: the share of the output that one draw of row j stands for
} sl_draws;

// One uniform number in [0, 1) as u / 2^64, number `index` of this head. Tests replace it by a grid.
typedef uint64_t (*sl_uniform_fn)(void *ctx, uint32_t index);
typedef struct sl_uniform { sl_uniform_fn next; void *ctx; } sl_uniform;
sl_uniform sl_uniform_philox(sl_rng_id *id);

// A draw stage: fills `out` from the weights, with budget S.
typedef void (*sl_draw_fn)(const sl_weights *wt, int S, sl_uniform u, sl_draws *out);
int sl_draw_capacity(sl_draw_fn draw, int S, int n); // most distinct rows that it returns

void sl_draw_independent(const sl_weights *wt, int S, sl_uniform u, sl_draws *out);       // SANTA, Algorithm 1
void sl_draw_stratified(const sl_weights *wt, int S, sl_uniform u, sl_draws *out);        // S2ANTA, Appendix A
void sl_draw_systematic(const sl_weights *wt, int S, sl_uniform u, sl_draws *out);
void sl_draw_tiles_proportional(const sl_weights *wt, int S, sl_uniform u, sl_draws *out); // Algorithms 2-5
void sl_draw_tiles_uniform(const sl_weights *wt, int S, sl_uniform u, sl_draws *out);      // Algorithms 6-8

// A composition. Known normaliser: scores are exact, so the output is divided by the exact Z.
typedef struct sl_composition {
    sl_draw_fn draw;
} sl_composition;

size_t sl_stages_workspace(const sl_attn_geom *geom, const sl_attn_spec *spec, const sl_composition *comp, int n_seqs,
                           int n_kv);
// Runs a composition for every sequence and head of the call, over all threads.
void sl_stages_decode(const sl_attn_decode_args *args, const sl_composition *comp);

#endif
