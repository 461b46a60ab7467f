// attention/stages.h - the four stages that every decode method is made of (docs/methods.md), on the CPU.
//
//   propose  a cheap score for every row                       sl_proposal -> sl_weights
//   draw     rows, counts c_j and expected counts pi_j = E c_j  sl_draw     -> sl_draws
//   refine   the exact score of drawn rows, where the proposal was not exact      (combine.c)
//   combine  sum_j c_j (e^{s_j} / pi_j) v_j, divided by a known or estimated normaliser  (combine.c)
//
// A method is an sl_composition: it names one unit of each stage and holds no loop over keys. decode.c runs it.
//
// Stored weights. Scores are kept in log2 units. A row's weight is bf16(2^(s_j - ref)), ref the smallest integer not below
// the largest score of its block of 32 rows. In-block mass is the integer floor(w_j * 2^30); global mass is block mass
// << 8 >> (top - ref), top the largest ref: so masses add in 64-bit integers and the same rows are drawn whatever the tile,
// split, thread or device. p_j below is mass_j / total.
//
// Sizes p_j |v_j| are kept in the same form, and follow from stored weights and stored norms alone (cpu_kernels.h's size), so
// that whoever has those need not store sizes too.
//
// A reference is a 16-bit integer. A head whose largest reference lies outside +-SL_REF_MOST (22,180 nats), or that has a score
// that is NaN, cannot be drawn from stored weights: every method attends to all of its rows exactly and counts a fall-back.
#ifndef SLEIGH_STAGES_H
#define SLEIGH_STAGES_H

#include "attention/attention.h"
#include "attention/cpu_kernels.h"
#include "attention/page_extras.h"
#include "attention/random_counter.h"

// A function or table of attention/cuda/ in an initialiser; NULL in builds without CUDA.
#ifdef SLEIGH_CUDA
#include "attention/attention_cuda.h"
#define SL_ON_CUDA(SYMBOL) (&(SYMBOL))
#else
#define SL_ON_CUDA(SYMBOL) NULL
#endif

enum {
    SL_CHUNK = 1024,   // rows of one partial result; partial results merge in index order
    SL_TILE = SL_PAGE, // 256 rows: the tile of santa-prop and santa-flash
};

// ---- weights: what a proposal says of the rows, for one query head ----

typedef struct sl_weights {
    int n;         // rows (or units of several rows: sl_proposal.unit)
    int n_blocks;  // ceil(n / 32)
    bf16 *w;       // [n_blocks * 32], zero past n
    int16_t *ref;  // [n_blocks]
    uint64_t *cum; // [n_blocks + 1] global mass before each block; cum[n_blocks] is the blocks' total
    int top;       // largest ref
    uint64_t each; // added to the mass of every row: a uniform part mixed in
} sl_weights;

void sl_weights_finish(sl_weights *wt); // from cum[b + 1] = in-block mass of block b to running mass, and top
// Keeps the first n rows, whole blocks: where the others outweigh them by far, cum is made anew so that their masses are not 0.
void sl_weights_keep(sl_weights *wt, int n);
uint64_t sl_weights_running(const sl_weights *wt, int j);                     // C_j: mass up to and including row j; C_{-1} = 0
uint64_t sl_weights_mass(const sl_weights *wt, int j);                        // C_j - C_{j-1}
void sl_weights_masses(const sl_weights *wt, int b, uint64_t mass[SL_BLOCK]); // of block b's rows
uint64_t sl_weights_total(const sl_weights *wt);                              // C_{n-1}
// A mass of `wt` as a share of the total of `of`.
double sl_weights_share(const sl_weights *wt, uint64_t mass, const sl_weights *of);
int sl_weights_beyond(const sl_weights *wt);       // 1: the scores are too large, too small or NaN: nothing may be drawn
void sl_weights_mix(sl_weights *wt, double alpha); // p <- (1 - alpha) p + alpha / n
// The k rows of largest weight (fewer if fewer are positive), ascending in row; the lower row on ties. Returns how many.
int sl_weights_largest(const sl_weights *wt, int k, int32_t *rows);
// The fewest largest rows whose mass reaches p of the total; ascending in row. rows: [n].
int sl_weights_reaching(const sl_weights *wt, double p, int32_t *rows);

void sl_sort(uint64_t *x, int n); // ascending, without allocation

// ---- draws ----

// Distinct rows in ascending order.
typedef struct sl_draws {
    int n;             // distinct rows
    int n_samples;     // sum of counts
    int32_t *row;      // [capacity]
    int32_t *count;    // c_j
    float *inv_pi;     // 1 / pi_j
    uint64_t *scratch; // [sl_draw.scratch]
} sl_draws;

void sl_draws_clear(sl_draws *out);
void sl_draws_add(sl_draws *out, int row, float inv_pi); // one draw more of `row`, not below the last one

// Uniform number `index` of this head, as u / 2^64 in [0, 1). Tests put a grid in its place.
typedef struct sl_uniform {
    uint64_t (*next)(const void *ctx, uint32_t index);
    const void *ctx;
} sl_uniform;
sl_uniform sl_uniform_philox(const sl_rng_id *id); // id must outlive the result

// Draws from weights with budget S >= 1. A total mass of zero draws nothing.
// Thresholds t pick the first row whose running mass exceeds them: rows of zero mass are never drawn. An own uniform number
// u_m gives draw m of mass W in S equal parts the threshold floor((m W + floor(u_m W / 2^64)) / S).
typedef void (*sl_sampler_fn)(const sl_weights *wt, int S, sl_uniform u, sl_draws *out);

void sl_draw_independent(const sl_weights *wt, int S, sl_uniform u, sl_draws *out); // SANTA, Algorithm 1: W = Z, S = 1, u_m
void sl_draw_stratified(const sl_weights *wt, int S, sl_uniform u, sl_draws *out);  // S2ANTA: draw m in stratum m with u_m
void sl_draw_systematic(const sl_weights *wt, int S, sl_uniform u, sl_draws *out);  // one u_0 for all strata
// Algorithms 2-5: tile t of mass W_t gets floor(S W_t / Z) draws, what is left goes to the largest remainders (the lower tile
// on ties); systematic in the tile with u_t. pi_j is taken as S p_j. Biased by sum_t (S_t / S - W_t / Z) mu_t.
void sl_draw_tiles_proportional(const sl_weights *wt, int S, sl_uniform u, sl_draws *out);
// Algorithms 6-8: every tile of positive mass gets S_t = max(1, round(S / T)) of the T tiles, systematic with u_t;
// pi_j = S_t mass_j / W_t.
void sl_draw_tiles_uniform(const sl_weights *wt, int S, sl_uniform u, sl_draws *out);

size_t sl_sampler_capacity(int S, int n); // most rows that any of these returns
size_t sl_sampler_scratch(int S, int n);  // uint64_t of scratch that any of these needs

// Take-all + PPS: the rows of size >= kappa are taken once, the others get k = S - n_heavy draws on their running size in steps
// of kappa = light / k, with own uniform numbers (shared = 0) or one (shared = 1). S draws in all, or every row of positive
// size once where there are fewer. pi_j = min(1, size_j / kappa). Scratch: 2 S uint64_t.
typedef struct sl_take_all {
    int n_heavy, k;
    uint64_t light; // total size of the light rows
} sl_take_all;

sl_take_all sl_draw_take_all(const sl_weights *size, int S, int shared, sl_uniform u, sl_draws *out);
// The fewest draws whose error bound stays within `target`: bound(kappa, light, k), in units of size. Returns its S, or 0 when
// it would be more than `most`. Scratch: 2 most uint64_t; out->row is used as scratch.
typedef double (*sl_bound_fn)(const void *ctx, double light, int k);
int sl_plan_take_all(const sl_weights *size, int most, double target, sl_bound_fn bound, const void *ctx, sl_draws *out);

// ---- one step of one KV head, and of one of its query heads ----

typedef struct sl_group {
    const sl_attn_decode_args *args;
    const sl_attn_query *query;
    const sl_kv_view *kv;
    const sl_attn_kernels *kernels;
    const float *q; // [n][head_dim]
    int h, n;       // KV head, its query heads
    int head_dim;
    float scale; // log2(e) / sqrt(head_dim): scores are in log2 units
    void *state; // sl_proposal.state bytes, made by begin
} sl_group;

typedef struct sl_head {
    const sl_group *group;
    const struct sl_draw *draw;
    int index;                 // within the group
    const float *q;            // [head_dim]
    sl_weights weights, sizes; // sizes: where the draw asked for them (sl_draw.size_power)
    int S;                     // budget
    int is_beyond;             // sl_weights_beyond(&weights): the head attends to every row exactly
    sl_rng_id id;
    sl_uniform u;        // of this head's draws
    const float *before; // [head_dim] the output of the step before; NULL: there is none
    sl_draws draws;
    const bf16 **rows; // scratch [capacity]
    float *coef;       // scratch [capacity]
    float *score;      // scratch [capacity]
    float *out;        // [head_dim]
    int n_profile;     // budget.c
    sl_attn_report *report;
} sl_head;

// ---- the units ----

// Rows j of page `page` of the view that are visible: 256, or fewer in the newest page.
int sl_page_rows(const sl_kv_view *kv, int page);
// c_i of a feature whose query magnitude is the share a of the largest: B trials (SANTA paper, equation 9). u: number
// `feature` for stratified trials, t * head_dim + feature for trial t of independent ones.
int sl_bernoulli_count(sl_uniform u, int feature, int head_dim, int B, double a, int iid);
const bf16 *sl_k_page(const sl_group *g, int page); // [256][head_dim]
const bf16 *sl_v_page(const sl_group *g, int page);

// A method's part of a specification may be one of two (bernoulli+santa-prop): parameters are found in either.
// Probability that a key at this cosine to the query matches it in at least `hits` (1, 2) of L tables of K bits (MagicPIG).
double sl_hash_probability(double cosine, int K, int L, int hits);

typedef struct sl_proposal {
    int exact; // its scores are the exact ones: nothing is refined
    int unit;  // rows that share one score: 1, or 16 for page bounds; 0: it proposes nothing, draws know no weights
    int (*needs)(const sl_attn_spec *spec, sl_kv_need *out); // page extras, at most SL_MAX_NEEDS; NULL: none
    size_t (*state)(const sl_attn_geom *geom, const sl_attn_spec *spec, int n_kv); // bytes per KV head; NULL: none
    void (*begin)(sl_group *g);                                                    // fills g->state once a step; NULL
    // Scores in log2 units of the units of one page: score[i * SL_CHUNK + j], head i of the group, unit j. May write up to 15
    // floats past the last unit, within the page.
    void (*score)(const sl_group *g, int page, float *score);
    uint64_t (*bytes)(const sl_group *g); // that it read, all pages together
    void (*report)(const sl_head *x);     // its own figures into x->report; NULL: none
} sl_proposal;

typedef struct sl_draw {
    int (*needs)(const sl_attn_spec *spec, sl_kv_need *out); // page extras of its own; NULL: none
    int (*size_power)(const sl_attn_spec *spec);             // x->sizes: w_j |v_j|^power; NULL or 0: none
    int (*budget)(const sl_attn_spec *spec, int n_kv);       // S of a head; NULL: parameter S
    size_t (*capacity)(const sl_attn_spec *spec, int n_kv);  // most rows of a head
    size_t (*scratch)(const sl_attn_spec *spec, int n_kv);   // uint64_t of scratch of a head; NULL: none
    void (*run)(sl_head *x);                                 // fills x->draws
    // Where pi_j follows from the exact score alone (MagicPIG): x->score[i] of row draws.row[i]; fills draws.inv_pi. NULL.
    void (*expect)(sl_head *x);
    sl_sampler_fn sampler; // of the SANTA family's run
} sl_draw;

typedef enum {
    SL_BY_TOTAL,  // the proposal's scores are taken as exact: their total is the normaliser Z
    SL_BY_SAMPLE, // sum_j c_j e^{s_j} / pi_j: self-normalised; where pi_j = 1 it renormalises the kept mass
} sl_normaliser;

typedef struct sl_composition {
    const sl_proposal *propose;
    const sl_draw *draw; // NULL: every row once, fused with the proposal (online_softmax.c)
    sl_normaliser normaliser;
    const sl_proposal *(*choose)(const sl_attn_spec *spec); // the proposal, where a parameter names it; NULL: propose
} sl_composition;

// What a specification composes: with `score+value` the proposal of the first and the draw of the second.
sl_composition sl_composition_of(const sl_attn_spec *spec);

extern const sl_proposal sl_propose_exact, sl_propose_nothing, sl_propose_uniform, sl_propose_quantised, sl_propose_bounds,
    sl_propose_hashes, sl_propose_bernoulli, sl_propose_bernoulli_group;

void sl_score_exact(const sl_group *g, int page, float *score); // a proposal's score of pages that lack their extras

extern const sl_draw sl_draw_pps, sl_draw_importance, sl_draw_top_k, sl_draw_top_p, sl_draw_window, sl_draw_top_units,
    sl_draw_members, sl_draw_verified;

void sl_norms(const bf16 *v, int n_rows, int head_dim, bf16 *out);
void sl_norms_of_page(const sl_group *g, int page, bf16 out[SL_PAGE]); // of its visible rows, from its extra once it is built

void sl_refine(sl_head *x); // x->score[i]: the exact score of draws.row[i], in log2 units
// Fills x->out from x->draws; refined: with x->score, else with x->weights.
void sl_combine(sl_head *x, sl_normaliser normaliser, int refined);
double sl_norm(const float *x, int n);

// --budget=variance (even without it): how many draws each head of one sequence's layer gets: n_heads * S in all, fewer
// where those that want more are at their limit.
int sl_budget_wanted(const sl_attn_spec *spec);
enum { SL_BUDGET_MOST = 4 }; // a head gets from S / 4 to 4 S
void sl_budget_profile(sl_head *x);
void sl_budget_by_variance(sl_head *heads, int n_heads);

// Runs the composition of a call's specification for every sequence and head, over all threads.
extern const sl_attn_ops sl_stages_ops;
size_t sl_workspace_take(size_t *at, size_t bytes); // the offset of so many bytes, 64-byte aligned; moves *at past them
int sl_longest(const sl_attn_decode_args *args);    // rows of the longest sequence
sl_group sl_group_of(const sl_attn_decode_args *args, int s, int h);                   // all but its state
void sl_reports_close(const sl_attn_decode_args *args, const sl_attn_report *reports); // into args->stats and args->reports
// The fused path of a composition whose draw is NULL.
size_t sl_attend_workspace(const sl_attn_geom *geom, const sl_attn_spec *spec, int n_seqs, int n_kv);
void sl_attend_all(const sl_attn_decode_args *args, const sl_proposal *propose);
// Exact attention of one query head into x->out: the bits of method dense. Reads K and V twice.
void sl_attend_head(sl_head *x);

#endif
