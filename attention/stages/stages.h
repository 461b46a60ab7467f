// attention/stages/stages.h - the four stages of a decode method on the CPU (docs/methods-theory.md).
//
//   propose  gives every row a cheap score            sl_proposal -> sl_masses
//   draw     chooses rows, with counts c_j and        sl_draw     -> sl_draws
//            expected counts pi_j = E c_j
//   refine   computes the exact score of drawn rows   combine.c
//            where the proposal was not exact
//   combine  sum_j c_j (e^{s_j} / pi_j) v_j over      combine.c
//            a known or estimated normaliser
//
// A method is an sl_composition. It names a proposal, a draw and a normaliser, and has no loop over keys. decode.c runs it.
//
// The files of attention/ have one order. A file calls only files of the lines above its line, and files to the left on its
// line. scripts/check/check_layers.py finds circles of calls:
//
//   contracts  buckets.h, bucket_index.h, pareto.h; attention.h, prefill_mask.h, random_counter.h, masses.h, threshold.h,
//   stages.h; spec.c (values of parameters), exact_below.c;
//              prefill_mask.c
//   loops      cpu_kernels_*.c, cpu_kernels.c, masses.c; cuda: page_extras.cu, page_bounds.cu, bucket_index.cu
//   shared     combine.c, budget.c, composition.c, page_norms.c, bucket_index.c, pareto.c
//   stages     draw_samplers.c, draw_take_all.c; carried.c; propose_*.c, draw_*.c; row_sums.c
//   drivers    online_softmax.c, decode.c; prefill_tiles.c; the other files of cuda/
//   methods    dense.c, santa.c, importance.c, bernoulli.c, subset.c, indexed.c, saap.c, vattention.c, random.c;
//   auto_request.c;
//              the other files of prefill/
//   registry   registry.c
//   on top     params.c (parsing), plan.c, auto_table.c, auto.c
#ifndef SLEIGH_STAGES_H
#define SLEIGH_STAGES_H

#include "attention/attention.h"
#include "attention/cpu/cpu_kernels.h"
#include "attention/stages/masses.h"
#include "attention/extras/page_extras.h"
#include "attention/random_counter.h"
#include "attention/budgets/threshold.h"

// A function or a table of attention/cuda/ in an initialiser. NULL in builds without CUDA.
#ifdef SLEIGH_CUDA
#include "attention/attention_cuda.h"
#define SL_ON_CUDA(SYMBOL) (&(SYMBOL))
#else
#define SL_ON_CUDA(SYMBOL) NULL
#endif

enum {
    SL_CHUNK = 1024,   // rows of one partial result; partial results merge in index order
    SL_TILE = SL_PAGE, // 256 rows: the default tile of santa-prop and santa-flash
    SL_LEAST_TILE = 64,
};

// ---- drawn rows and samplers: draw_samplers.c ----

// Distinct rows in ascending order.
typedef struct sl_draws {
    int n;             // distinct rows
    int n_draws;       // sum of counts
    int32_t *row;      // [capacity]
    int32_t *count;    // [capacity] c_j
    float *inv_pi;     // [capacity] 1 / pi_j
    uint64_t *scratch; // [sl_draw.scratch]
} sl_draws;

void sl_draws_clear(sl_draws *out);
// Adds one draw of `row`. Rows must not descend from call to call.
void sl_draws_add(sl_draws *out, int row, float inv_pi);

// Uniform number `index` of one head, as u / 2^64 in [0, 1). Tests use a grid in place of the generator.
typedef struct sl_uniform {
    uint64_t (*next)(const void *ctx, uint32_t index);
    const void *ctx;
} sl_uniform;
sl_uniform sl_uniform_philox(const sl_rng_id *id); // id must outlive the result

// Draws rows from masses with a budget of S >= 1. A total mass of zero draws nothing.
// A threshold t draws the first row whose running mass exceeds t, so rows of zero mass are never drawn. Draw m of S draws from
// the mass W has the threshold floor((m W + floor(u_m W / 2^64)) / S).
typedef void (*sl_sampler_fn)(const sl_masses *masses, int S, sl_uniform u, sl_draws *out);

// SANTA, equation 4: every draw has the total mass as its range, and its uniform number is u_m.
void sl_draw_independent(const sl_masses *masses, int S, sl_uniform u, sl_draws *out);
// S2ANTA, Appendix A: draw m lies in stratum m, with u_m.
void sl_draw_stratified(const sl_masses *masses, int S, sl_uniform u, sl_draws *out);
// S2ANTA, systematic: draw m lies in stratum m, with u_0 for all strata.
void sl_draw_systematic(const sl_masses *masses, int S, sl_uniform u, sl_draws *out);
// S2ANTA, Algorithms 2-5: tile t of mass W_t gets floor(S W_t / Z) draws. The tiles of largest remainder (the lower tile on
// ties) get the other draws, one each. Draws are systematic within a tile, with u_t. The method takes S p_j as pi_j. The bias
// is
// sum_t (S_t / S - W_t / Z) mu_t.
void sl_draw_tiles_proportional(const sl_masses *masses, int S, sl_uniform u, sl_draws *out);
// S2ANTA, Algorithms 6-8: each of the T tiles with positive mass gets S_t = max(1, round(S / T)) draws, systematic with u_t.
// pi_j = S_t mass_j / W_t.
void sl_draw_tiles_uniform(const sl_masses *masses, int S, sl_uniform u, sl_draws *out);

size_t sl_sampler_capacity(int S, int n); // most rows that a sampler returns, for every tile
size_t sl_sampler_scratch(int S, int n);  // scratch of a sampler, in uint64_t

// ---- take-all + PPS: draw_take_all.c ----

// Every heavy row (size >= kappa) is taken once. The light rows get k = S - n_heavy draws on their running size, in steps of
// kappa = light / k. Each draw has a uniform number (shared = 0), or all draws share one (shared = 1). In total there are S
// draws. If fewer than S rows have a positive size, each of them is taken once. pi_j = min(1, size_j / kappa). Scratch: 2 S
// uint64_t.
typedef struct sl_take_all {
    int n_heavy, k;
    uint64_t light; // total size of the light rows
} sl_take_all;

sl_take_all sl_draw_take_all(const sl_masses *size, int S, int shared, sl_uniform u, sl_draws *out);
// Splits rows at a known kappa, 1 <= kappa <= 2^62, in units of size: k = light / kappa.
sl_take_all sl_split_sizes(const sl_masses *size, uint64_t kappa);
// Takes every row of size >= kappa once, and draws one light row in each step of kappa on the running size of the light rows:
// the row at m kappa + floor(u_m kappa / 2^64). The last, partial step may draw none. pi_j = min(1, size_j / kappa).
// At most n_heavy + k + 1 rows of sl_split_sizes.
void sl_draw_at(const sl_masses *size, uint64_t kappa, int shared, sl_uniform u, sl_draws *out);
// Error bound of k draws from light rows of total size `light`, in units of size.
typedef double (*sl_bound_fn)(const void *ctx, double light, int k);
// Returns the smallest S whose error bound is at most `target`, or 0 when this S exceeds `most`. Scratch: 2 most uint64_t, and
// out->row.
int sl_plan_take_all(const sl_masses *size, int most, double target, sl_bound_fn bound, const void *ctx, sl_draws *out);

// ---- one step of one KV head, and of one of its query heads ----

// Rows that follow each other: [from[0], to[0]), and after them [from[1], to[1]).
typedef struct sl_row_ranges {
    int from[2], to[2];
} sl_row_ranges;
typedef sl_row_ranges (*sl_ranges_fn)(const sl_attn_spec *spec, int n_kv);

typedef struct sl_group {
    const sl_attn_decode_args *args;
    const sl_attn_query *query;
    const sl_kv_view *kv;
    const sl_attn_kernels *kernels;
    const float *q; // [n][head_dim]
    int h, n;       // KV head; number of query heads that share it
    int head_dim;
    float scale;        // log2(e) / sqrt(head_dim): scores are in log2 units
    sl_row_ranges rows; // that online_softmax.c reads; all rows, except with sl_draw.ranges
    void *state;        // sl_proposal.state bytes, filled by sl_proposal.begin
} sl_group;

typedef struct sl_head {
    const sl_group *group;
    const struct sl_draw *draw;
    int index;               // within the group
    const float *q;          // [head_dim]
    sl_masses masses, sizes; // sizes: only if sl_draw.size_power is not 0
    int32_t *set;            // [n_set] rows of sl_composition.select, ascending
    int n_set;
    int S;                  // budget
    int needs_exact;        // sl_masses_out_of_range(&masses): every row is attended to exactly
    int is_unbounded;       // sl_sizes_out_of_range(&sizes, &masses): draws in proportion to sizes bound no error
    double unit, units;     // of sizes: a unit of size in the unit of kappa, and its inverse (carried.c)
    double kappa;           // the layer's threshold; 0: the head searches for its own
    sl_threshold_step step; // of this head
    sl_rng_id id;
    sl_uniform u;       // of the draws of this head
    double norm_before; // |output| of the step before; -1: no such step
    double log2_total;  // of sum_j c_j 2^s_j / pi_j, for exact scores s_j of drawn rows; only after sl_combine with refined = 1
    sl_draws draws;
    sl_kv_row *rows; // scratch [capacity]: rows of K or V, in the format of the cache
    float *coef;     // scratch [capacity]
    float *score;    // scratch [capacity]
    float *out;      // [head_dim]
    int n_profile;   // budget.c
    sl_attn_report *report;
} sl_head;

// What a sequence's layer keeps for its next step.
typedef struct sl_layer_state {
    sl_threshold threshold; // `next` holds for all values; the other fields: carried.c
    float norm[];           // [n_heads] |output|
} sl_layer_state;

// One step of all query heads of a sequence.
typedef struct sl_layer {
    const sl_attn_decode_args *args;
    const sl_attn_query *query;
    sl_head *heads;        // [n_heads]
    sl_layer_state *state; // NULL: the specification keeps none
    int follows;           // the state is of the position before
    int goes_dense;        // after sl_draw.settle: every row is attended to exactly
} sl_layer;

// ---- a stage ----

typedef struct sl_proposal {
    int exact; // 1: scores are exact, and nothing is refined
    int unit;  // rows that share one score: 1, or 16 for page bounds; 0: no scores, and draws read no masses
    int (*needs)(const sl_attn_spec *spec, sl_kv_need *out); // page extras, at most SL_MAX_NEEDS; NULL: none
    size_t (*state)(const sl_attn_geom *geom, const sl_attn_spec *spec, int n_kv); // bytes per KV head; NULL: none
    void (*begin)(sl_group *g);                                                    // fills g->state once a step; NULL: nothing
    // Writes the scores of one page in log2 units: score[i * SL_CHUNK + j] for head i of the group and unit j. May write up to
    // 15 floats past the last unit, within the page.
    void (*score)(const sl_group *g, int page, float *score);
    uint64_t (*bytes)(const sl_group *g); // bytes that the proposal read, over all pages
    void (*report)(const sl_head *x);     // writes figures of the proposal into x->report; NULL: none
} sl_proposal;

typedef struct sl_draw {
    int (*needs)(const sl_attn_spec *spec, sl_kv_need *out); // page extras of the draw; NULL: none
    int (*size_power)(const sl_attn_spec *spec);             // x->sizes: p_j |v_j|^power; NULL or 0: none
    // Fills `out` with the numbers that sizes of a page have in place of |v_j|, norms: |v_j|. NULL: |v_j|.
    void (*size_norms)(const sl_head *x, int page, const bf16 *norms, bf16 *out);
    int (*keeps)(const sl_attn_spec *spec);                 // 1: decode keeps an sl_layer_state; NULL: never
    int (*budget)(const sl_attn_spec *spec, int n_kv);      // S of a head; NULL: parameter S
    size_t (*capacity)(const sl_attn_spec *spec, int n_kv); // most rows of a head
    size_t (*scratch)(const sl_attn_spec *spec, int n_kv);  // scratch of a head in uint64_t; NULL: none
    void (*prepare)(sl_head *x);                            // after the head's masses; NULL: nothing
    void (*plan)(sl_layer *l);   // after `prepare` of all heads: sets the heads' S or kappa; NULL: nothing
    void (*run)(sl_head *x);     // fills x->draws
    void (*measure)(sl_head *x); // after the head's output: fills x->step; NULL: nothing
    void (*settle)(sl_layer *l); // after `measure` of all heads: changes l->state; NULL: nothing
    // Fills draws.inv_pi if pi_j depends on the exact score (MagicPIG). x->score[i]: the score of draws.row[i]. NULL: run has
    // filled it.
    void (*expect)(sl_head *x);
    sl_sampler_fn sampler; // SANTA family: the sampler that `run` calls
    int takes_set;         // 1: `run` takes rows once each, by no random number: another method can draw from these rows
    // The rows of `run`, if positions alone decide. Without another draw, online_softmax.c then reads them as ranges, for all
    // heads of a group at once, and `run` is not called. NULL: the rows depend on the head.
    sl_ranges_fn ranges;
} sl_draw;

typedef enum {
    SL_BY_TOTAL,  // scores of the proposal are taken as exact: their total is the normaliser Z
    SL_BY_SAMPLE, // sum_j c_j e^{s_j} / pi_j: self-normalised. If every pi_j is 1, this renormalises the drawn rows.
} sl_normaliser;

typedef struct sl_composition {
    const sl_proposal *propose;
    const sl_draw *draw; // NULL: every row once, fused with the proposal (online_softmax.c)
    sl_normaliser normaliser;
    const sl_proposal *(*choose)(const sl_attn_spec *spec); // the proposal that a parameter names; NULL: propose
    // Takes a set of rows. `draw` then draws from the exact masses of this set: other rows have the mass 0. NULL: `draw` draws
    // from the masses of the proposal.
    const sl_draw *select;
} sl_composition;

// ---- shared parts: composition.c ----

// The composition of a specification. `first+value` has the proposal of the first method and the draw of the second. If the
// first method has a draw, this draw selects the set.
sl_composition sl_composition_of(const sl_attn_spec *spec);
int sl_page_rows(const sl_kv_view *kv, int page); // visible rows of a page: 256, or fewer in the newest page
sl_kv_run sl_k_page(const sl_group *g, int page); // [256][head_dim]
sl_kv_run sl_v_page(const sl_group *g, int page); // [256][head_dim]
size_t sl_k_row_bytes(const sl_group *g);         // of the cache, with a scale
size_t sl_v_row_bytes(const sl_group *g);
uint64_t sl_newest_bytes(const sl_group *g);        // of the visible keys of the newest page, which has no page extras
int sl_longest(const sl_attn_decode_args *args);    // rows of the longest sequence
size_t sl_workspace_take(size_t *at, size_t bytes); // returns the offset *at, and moves *at past `bytes`, 64-byte aligned
sl_group sl_group_of(const sl_attn_decode_args *args, int s, int h);                   // everything but state
void sl_reports_close(const sl_attn_decode_args *args, const sl_attn_report *reports); // fills args->stats and args->reports

// ---- norms of V: page_norms.c ----

void sl_norms(sl_kv_run v, int n_rows, int head_dim, bf16 *out);       // |v_j|, rounded up to bf16
void sl_norms_of_page(const sl_group *g, int page, bf16 out[SL_PAGE]); // of the visible rows; read from the page extra if built

// ---- refine and combine: combine.c ----

void sl_refine(sl_head *x); // x->score[i]: the exact score of draws.row[i], in log2 units
// Fills x->out from x->draws, with the scores x->score (refined = 1) or the masses x->masses (refined = 0).
void sl_combine(sl_head *x, sl_normaliser normaliser, int refined);
int sl_adds_values(const sl_attn_spec *spec); // 1: --value=adds, for draws with pi_j = S p_j
double sl_norm(const float *x, int n);        // Euclidean
// b / norm as a report states it: 0 for b = 0; infinity where b or the norm is infinite or NaN, because then there is no bound.
double sl_relative_bound(double b, double norm);
// After exact attention of the heads of a layer: no error, if the output [n_heads][head_dim] is a number. reports: [n_heads]
void sl_reports_state_zero(const sl_attn_geom *geom, const float *out, sl_attn_report *reports);

// ---- draws over the heads of a layer: budget.c ----

// A head gets at most 4 S draws, and with --budget=variance at least S / 4.
enum { SL_BUDGET_MOST = 4 };
int sl_budget_is_by_variance(const sl_attn_spec *spec); // 1: --budget=variance, and no stated error
int sl_tile_of(const sl_attn_spec *spec);               // rows of a tile: --tile, or SL_TILE for methods without it
// Without --budget=variance these two functions do nothing.
void sl_budget_profile(sl_head *x); // an sl_draw.prepare
// An sl_draw.plan: sets S of every head of one sequence's layer, at most n_heads * S draws in all.
void sl_budget_by_variance(sl_layer *l);

// ---- a threshold for the heads of a layer: carried.c ----

enum { SL_PILOT = 128 }; // draws that give a first estimate of |output|

int sl_carries_threshold(const sl_attn_spec *spec); // 1: a carried budget, or a stated error of a layer
sl_stated sl_stated_of(double delta, sl_stated_bound bound);
double sl_bound_of_draws(const void *stated, double light, int k); // an sl_bound_fn of an sl_stated, with a spread of 1
// Without a carried threshold the next two functions do nothing.
void sl_threshold_plan(sl_layer *l);   // an sl_draw.plan: sets kappa of every head
void sl_threshold_settle(sl_layer *l); // an sl_draw.settle
// An sl_draw.run: draws at x->kappa, or searches; fills x->step. `estimate` fills x->out from x->draws, for the pilot.
void sl_draw_of_layer(sl_head *x, int shared, void (*estimate)(sl_head *x));
// Draws S rows by a search, with the uniform numbers of try i (sl_try_index).
sl_take_all sl_draw_try(sl_head *x, int S, int i);
void sl_take_every_row(sl_head *x); // every row that has a size, once; counts a fallback
// Sum over pairs of the head's light draws of (u.u')^2, u the unit vector of v - centre. centre: [head_dim], or NULL: 0.
double sl_pairs(const sl_head *x, const float *centre);

// The parameters of a stated error, and of its plan for a layer.
// clang-format off
#define SL_EPSILON_PARAMS                                                                                                      \
    {"epsilon", SL_PARAM_FLOAT, 0, 0, 1, "relative error that the method states, in place of S; 0: S draws", NULL},            \
    {"delta", SL_PARAM_FLOAT, 0.05, 1e-9, 0.2, "probability that a stated error is exceeded", NULL},                           \
    {"bound", SL_PARAM_CHOICE, 2, 0, 2, "bound of the error; clt and chi2 hold for many draws", "clt,bernstein,chi2"}
#define SL_LAYER_PARAMS                                                                                                        \
    {"on-miss", SL_PARAM_CHOICE, 0, 0, 1,                                                                                      \
     "a layer whose error is not certified: count it, or attend to every row (a biased estimate)", "report,dense"},            \
    {"aim", SL_PARAM_FLOAT, 0.75, 0.5, 0.99, "share of layer-steps that the plan aims to certify", NULL}
// clang-format on

// ---- proposals: propose_*.c ----

extern const sl_proposal sl_propose_exact, sl_propose_nothing, sl_propose_uniform, sl_propose_quantised, sl_propose_bounds,
    sl_propose_hashes, sl_propose_bernoulli, sl_propose_bernoulli_group, sl_propose_buckets, sl_propose_centroids,
    sl_propose_cells;

// In log2 units. A page with a larger bound states no error. Sizes grow with the bound of their page, and integers keep 38
// octaves below the largest size. The rows that round to 0 then have at most 2^-26 of the largest mass times norm.
enum { SL_MOST_SCORE_BOUND = 12 };
// The bound of a proposed score's error in a page, in log2 units.
float sl_quantised_bound(const sl_head *x, int page);
void sl_score_exact(const sl_group *g, int page, float *score); // an sl_proposal.score, for pages without page extras
// Count c_i of a feature, from B trials of probability a = |q_i| / max |q| (SANTA paper, equation 9). iid = 0: stratified
// trials, with number `feature`. iid = 1: trial t has number sl_trial_index(t, feature, head_dim).
int sl_bernoulli_count(sl_uniform u, int feature, int head_dim, int B, double a, int iid);
// Probability that a key matches a query in at least `hits` (1 or 2) of L tables of K bits. cosine: of query and key
// (MagicPIG).
double sl_hash_probability(double cosine, int K, int L, int hits);

// ---- draws: draw_*.c, propose_hashes.c, propose_buckets.c ----

extern const sl_draw sl_draw_pps, sl_draw_importance, sl_draw_top_k, sl_draw_top_p, sl_draw_window, sl_draw_top_units,
    sl_draw_candidates, sl_draw_verified, sl_draw_visited, sl_draw_unvisited;

// ---- every row once: online_softmax.c ----

// The driver of a composition without a draw, or with the rows of sl_draw.ranges, and of the sequences that attend exactly with
// any method (propose: sl_propose_exact; then reports state the error 0 if the specification states an error).
int sl_reads_ranges(const sl_composition *c); // 1: online_softmax.c runs the composition
size_t sl_online_softmax_workspace(const sl_attn_geom *geom, const sl_attn_spec *spec, const sl_proposal *propose, int n_seqs,
                                   int n_kv);
// ranges: the rows, with exact scores; NULL: every row, with the scores of `propose`.
void sl_online_softmax_decode(const sl_attn_decode_args *args, const sl_proposal *propose, sl_ranges_fn ranges);
// Exact attention of one query head into x->out, with the bits of method dense. The function reads K twice and V twice.
void sl_exact_head(sl_head *x);

// ---- prefill: prefill_tiles.c ----

void sl_prefill_tiles(const sl_attn_prefill_args *args);
size_t sl_prefill_workspace(const sl_attn_geom *geom);

// ---- the driver of a composition: decode.c ----

// Runs the composition of a call for every sequence and head, over all threads.
void sl_stages_decode(const sl_attn_decode_args *args);
extern const sl_attn_ops sl_stages_ops; // sl_stages_decode with its workspace, page extras and state

#endif
