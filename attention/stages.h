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
    SL_BLOCK = 32,         // rows that share an exponent reference
    SL_CHUNK = 1024,       // rows of one partial result; partial results merge in index order
    SL_TILE = SL_PAGE,     // 256 rows: the tile of santa-prop and santa-flash
    SL_REF_EMPTY = -32768, // ref of a block whose rows all have zero weight
};

// The proposal of one query head.
typedef struct sl_weights {
    int n;         // rows
    int n_blocks;  // ceil(n / 32)
    bf16 *w;       // [n_blocks * 32], zero past n
    int16_t *ref;  // [n_blocks]
    uint64_t *cum; // [n_blocks + 1] global mass before each block; cum[n_blocks] is the total
    int top;       // largest ref
} sl_weights;

// In-block mass of 32 weights: sum of floor(w * 2^30).
uint64_t sl_block_mass(const bf16 *w);
// From cum[b + 1] = in-block mass of block b to the running global mass, and top.
void sl_weights_finish(sl_weights *wt);
// Running mass up to and including row j: C_j; C_{-1} = 0. The mass of row j is C_j - C_{j-1}.
uint64_t sl_weights_running(const sl_weights *wt, int j);

// What a draw produced: distinct rows in ascending order.
typedef struct sl_draws {
    int n;             // distinct rows
    int n_samples;     // sum of counts
    int32_t *row;      // [sl_draw_capacity]
    int32_t *count;    // c_j
    float *per_draw;   // p_j / pi_j: the share of the output that one draw of row j stands for
    uint64_t *scratch; // [sl_draw_scratch]
} sl_draws;

// Uniform number `index` of this head, as u / 2^64 in [0, 1). Tests put a grid in its place.
typedef struct sl_uniform {
    uint64_t (*next)(const void *ctx, uint32_t index);
    const void *ctx;
} sl_uniform;
sl_uniform sl_uniform_philox(const sl_rng_id *id); // id must outlive the result

// A draw stage: fills *out from finished weights with budget S >= 1. A total mass of zero draws nothing.
// Thresholds t pick the first row whose running mass exceeds them: rows of zero mass are never drawn. An own uniform number
// u_m gives draw m of mass W in S equal parts the threshold floor((m W + floor(u_m W / 2^64)) / S).
typedef void (*sl_draw_fn)(const sl_weights *wt, int S, sl_uniform u, sl_draws *out);

void sl_draw_independent(const sl_weights *wt, int S, sl_uniform u,
                         sl_draws *out); // SANTA, Algorithm 1: m uses u_m, W = Z, S = 1
void sl_draw_stratified(const sl_weights *wt, int S, sl_uniform u, sl_draws *out); // S2ANTA: draw m in stratum m with u_m
void sl_draw_systematic(const sl_weights *wt, int S, sl_uniform u, sl_draws *out); // one u_0 for all strata
// Algorithms 2-5: tile t of mass W_t gets floor(S W_t / Z) draws, what is left goes to the largest remainders (the lower tile
// on ties); systematic in the tile with u_t. per_draw = 1 / S. Biased by sum_t (S_t / S - W_t / Z) mu_t.
void sl_draw_tiles_proportional(const sl_weights *wt, int S, sl_uniform u, sl_draws *out);
// Algorithms 6-8: every tile of positive mass gets S_t = max(1, round(S / T)) of the T tiles, systematic with u_t;
// per_draw = W_t / (Z S_t).
void sl_draw_tiles_uniform(const sl_weights *wt, int S, sl_uniform u, sl_draws *out);

size_t sl_draw_capacity(int S, int n); // most rows that any of them returns
size_t sl_draw_scratch(int S, int n);  // uint64_t of scratch that any of them needs

// The combination with a known normaliser: out = sum_j c_j per_draw_j v_j over KV head h of the view, in row order.
// rows, coef: scratch of draws->n each.
struct sl_attn_kernels;
void sl_combine(const sl_draws *draws, const sl_kv_view *kv, int n_kv_heads, int head_dim, int h,
                const struct sl_attn_kernels *kernels, const bf16 **rows, float *coef, float *out);

// A method is a row of stages. (The proposal is the exact score and the normaliser is known: see docs/methods.md for what
// other proposals add here.)
typedef struct sl_composition {
    sl_draw_fn draw; // its budget is the method's parameter S
} sl_composition;

// Runs spec->method->stages for every sequence and head of a call, over all threads.
extern const sl_attn_ops sl_stages_ops;

#endif
