// attention/attention.h - the contract between the engine and an attention method.
//
// A method is one const sl_attn_method in attention/registry.c: a name, a parameter table from which the command line, the
// help and the docs are generated, and per backend a table of functions. NULL means "not offered"; asking for it is a clear
// error before anything runs. On the CPU a decode method is a composition of the four stages of stages.h
// (propose, draw, refine, combine); it has no loop over keys of its own.
//
// Shapes: q and out are fp32 [n_heads][head_dim] per token; K and V are bf16 pages (engine/kv/kv.h). Query head h reads KV
// head h / group, group = n_heads / n_kv_heads. Scores are q.k / sqrt(head_dim).
#ifndef SLEIGH_ATTENTION_H
#define SLEIGH_ATTENTION_H

#include "engine/base/error.h"
#include "engine/kv/kv_extras.h"

#include <stdint.h>
#include <stdio.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef struct sl_attn_geom {
    int n_layers, n_heads, n_kv_heads, head_dim;
    // The model-wide index of query head 0. Random counters add it, so that a shard of the heads draws the whole model's
    // numbers.
    int first_head; // 0: every engine holds all heads today
} sl_attn_geom;

// ---- parameters ----

typedef enum { SL_PARAM_INT, SL_PARAM_FLOAT, SL_PARAM_CHOICE } sl_param_type;

typedef struct sl_attn_param {
    const char *name; // as in --S=128 and santa-prop:S=128
    sl_param_type type;
    double def, min, max; // a choice is the index of its word
    const char *help;     // one line
    const char *choices;  // "even,variance"; NULL unless SL_PARAM_CHOICE
} sl_attn_param;

enum { SL_ATTN_MAX_PARAMS = 12 };

typedef struct sl_attn_method sl_attn_method;

// A method with its parameters' values, as parsed from `name[:k=v]*`; with `score+value`, two of them.
typedef struct sl_attn_spec {
    const sl_attn_method *method;
    double value[SL_ATTN_MAX_PARAMS]; // parallel to method->params
    const sl_attn_method *plus;       // the value stage after '+'; NULL: none
    double plus_value[SL_ATTN_MAX_PARAMS];
} sl_attn_spec;

// ---- what a call reads and writes ----

// What one query head's step did. Figures of the KV head are the same for all heads of its group.
typedef struct sl_attn_report {
    // of the KV head
    uint32_t k_rows;     // rows of K read whole: all of them by an exact proposal, else those refined
    uint32_t v_distinct; // distinct rows of V: a row that two heads of the group drew counts once; sl_attn_knows_distinct
    float features;      // share of key features that the proposal read
    uint64_t bytes, dense_bytes; // read, page extras included; what dense attention reads
    // of the query head
    uint32_t v_rows, samples, budget; // rows gathered; sum of counts; S asked of the draw
    float ess;                        // effective samples of the combined weights x: (sum x)^2 / sum x^2
    float score_bound;                // no proposed score is further than this from the exact one, in nats; 0: no bound
    float error_bound;                // b / |mu^| of methods with a stated error; NaN: none is stated
    uint32_t tries, fallback;         // draws until certified; 1: went dense
    float kurtosis;                   // of e^s over vattention's base sample (3 for normal numbers); NaN: there is none
    uint32_t heavy_tail; // 1: it is so large that the base sample's variance, and with it bound=clt, is not to be believed
    // against dense attention on the same state, where that was asked for, else NaN: |out - mu| / |mu|; the cosine; the
    // error's part along mu, (out - mu).mu / |mu|^2, whose mean over seeds is a bias
    float error, cosine, bias;
    uint32_t tiles; // with them: the fewest 256-row tiles that hold 90% of dense attention's mass; 0: not asked for
} sl_attn_report;

// Sums over calls; every count is over query heads unless stated.
typedef struct sl_attn_stats {
    uint64_t steps;                                   // query heads served: n_seqs * n_heads a call
    uint64_t k_rows;                                  // rows of K read (once per KV head)
    uint64_t v_rows;                                  // rows of V gathered; a dense pass reads each row once per KV head
    uint64_t v_distinct;                              // distinct rows of V, once per KV head
    uint64_t samples;                                 // draws made, after a method's own rounding
    uint64_t bytes;                                   // of K, V and page extras actually read, once per KV head
    uint64_t tries;                                   // of methods with a stated error
    uint64_t fallbacks;                               // heads that attended to every row exactly
    uint64_t heavy_tails;                             // of the reports' heavy_tail
    double kurtosis;                                  // the largest of the reports'; 0: none
    double features;                                  // sum over query heads of the share of key features read
    uint64_t dense_k_rows, dense_v_rows, dense_bytes; // of dense attention: per KV head, per query head, per KV head
} sl_attn_stats;

void sl_attn_stats_add(sl_attn_stats *to, const sl_attn_stats *from);

// Samplers on a GPU do not tell which heads drew one row: their v_distinct is 0 where rows were read, which no other method's
// is.
static inline int sl_attn_knows_distinct(uint64_t v_rows, uint64_t v_distinct) {
    return v_distinct > 0 || v_rows == 0;
}

// One sequence's new token in one layer.
typedef struct sl_attn_query {
    const float *q;    // [n_heads][head_dim], after RoPE
    float *out;        // [n_heads][head_dim]
    sl_kv_view kv;     // n_kv rows, the token's own included
    uint32_t sequence; // the caller's sequence id, never the batch slot: it keys the random numbers
    uint32_t position; // of the query token
    void *state;       // ops->state bytes, this sequence's and layer's own, or NULL
} sl_attn_query;

enum {
    SL_MAX_GROUP = 64, // query heads of one KV head
    SL_MAX_NEEDS = 4,  // page extras of one specification
};

// Grow-only scratch memory; a call takes what ops->workspace said, so nothing is allocated within a step.
typedef struct sl_workspace {
    void *data;
    size_t size;
} sl_workspace;

int sl_workspace_reserve(sl_workspace *ws, size_t size, sl_error *err);
void sl_workspace_free(sl_workspace *ws);

typedef struct sl_attn_decode_args {
    const sl_attn_geom *geom;
    const sl_attn_spec *spec;
    int layer;
    uint32_t seed;
    int n_seqs;
    const sl_attn_query *seqs; // [n_seqs], lengths may differ
    sl_workspace *ws;          // at least ops->workspace() bytes
    sl_attn_stats *stats;      // added to
    sl_attn_report *reports;   // [n_seqs][n_heads], filled; NULL: not wanted
} sl_attn_decode_args;

// A run of consecutive tokens of one sequence; token i is at position kv.n_kv - n_tokens + i and sees the rows up to its own.
typedef struct sl_attn_prefill_args {
    const sl_attn_geom *geom;
    const sl_attn_spec *spec;
    int layer;
    int n_tokens;
    const float *q; // [n_tokens][n_heads][head_dim], after RoPE
    float *out;     // [n_tokens][n_heads][head_dim]
    sl_kv_view kv;  // the rows of these tokens included
    sl_workspace *ws;
} sl_attn_prefill_args;

// ---- a method ----

// Per backend. decode and prefill of one call may use all threads; equal inputs give equal bits with any thread count,
// batch size and slot.
typedef struct sl_attn_ops {
    // Bytes of scratch that decode (n_tokens == 1) or prefill of n_tokens needs for up to n_seqs sequences of n_kv rows.
    size_t (*workspace)(const sl_attn_geom *geom, const sl_attn_spec *spec, int n_seqs, int n_tokens, int n_kv);
    void (*decode)(const sl_attn_decode_args *args);
    void (*prefill)(const sl_attn_prefill_args *args);
    // Page extras that decode reads (engine/kv/kv_extras.h), at most SL_MAX_NEEDS; the engine builds them before a step. NULL: none.
    int (*needs)(const sl_attn_spec *spec, sl_kv_need *out);
    // Bytes that decode keeps from step to step for a sequence and layer, zero at the start. NULL or 0: none.
    size_t (*state)(const sl_attn_geom *geom, const sl_attn_spec *spec);
} sl_attn_ops;

// What the mean of the output over seeds is, beside rounding. tests/attention/test_means.c checks every method against its
// statement.
typedef enum {
    SL_MEAN_UNSTATED, // a method that does not say: sl_attn_parse refuses it
    SL_MEAN_UNBIASED, // dense attention's output
    SL_MEAN_BIASED,   // another
    SL_MEAN_EXACT,    // nothing is random, nothing is left out
} sl_attn_mean;

struct sl_attn_method {
    const char *name;                                  // as in --attn=NAME
    const char *summary;                               // one line for `sleigh methods`
    const char *source;                                // where it comes from: paper and section, or "ours"
    sl_attn_mean mean;                                 // with default parameters
    sl_attn_mean (*mean_of)(const sl_attn_spec *spec); // with these parameters; NULL: always `mean`
    const char *caution;         // what a user must know before a figure is believed, with figures; NULL: nothing
    const sl_attn_param *params; // ended by {0}; NULL: none
    // 0, or SL_ERR_ARG with the reason: parameters that exclude each other; NULL: none do
    int (*check)(const sl_attn_spec *spec, sl_error *err);
    // 0, or SL_ERR_UNSUPPORTED with the reason; NULL: every shape that the engine loads
    int (*supports)(const sl_attn_geom *geom, const sl_attn_spec *spec, sl_error *err);
    const struct sl_composition *stages; // what sl_stages_ops runs (stages.h); NULL: ops do all themselves
    const sl_attn_ops *cpu;              // NULL: not offered there
    const struct sl_attn_cuda_ops *cuda; // likewise (attention_cuda.h)
};

// ---- methods ----

extern const sl_attn_method sl_method_dense; // exact attention: what every other method is compared with

extern const sl_attn_method *const sl_attn_methods[]; // the registry, ended by NULL; dense first

const sl_attn_method *sl_attn_find(const char *name); // NULL: unknown; "auto" is found too (auto.h)
// Parses `name[:k=v]*[+name[:k=v]*]` (k and K suffixes mean 1024) and checks the whole (sl_attn_check). An unknown name or
// parameter is an error that suggests the nearest.
int sl_attn_parse(const char *text, sl_attn_spec *spec, sl_error *err);
// SL_ERR_ARG when parameters exclude each other or a method does not state its mean. sl_engine_set_attention asks it too.
int sl_attn_check(const sl_attn_spec *spec, sl_error *err);
sl_attn_mean sl_attn_mean_of(const sl_attn_spec *spec);
const char *sl_attn_mean_name(sl_attn_mean mean); // "unbiased", "biased", "exact"
// Sets one parameter from text, as --S=128 does. The whole is not checked.
int sl_attn_set(sl_attn_spec *spec, const char *name, const char *value, sl_error *err);
int sl_attn_param_index(const sl_attn_method *method, const char *name); // -1: it has no such parameter
double sl_attn_get(const sl_attn_spec *spec, const char *name);          // one of its methods must have it
int sl_attn_has(const sl_attn_spec *spec, const char *name);
int sl_attn_states_error(const sl_attn_spec *spec); // 1: --epsilon sets the draws, and every head reports its error bound
int sl_attn_on_gpu(const sl_attn_spec *spec);       // does decode with it run on a GPU, in this build?
// `santa-prop:S=128`, with the first parameter and those that are not at their default, into buf.
void sl_attn_format(const sl_attn_spec *spec, char *buf, size_t size);
// A parameter's value as the command line takes it.
void sl_attn_param_format(const sl_attn_param *param, double value, char *buf, size_t size);
void sl_attn_list(FILE *out); // the table of `sleigh methods`

// Which method each layer decodes with.
typedef struct sl_attn_plan {
    int n_layers;
    sl_attn_spec *layer; // [n_layers]
} sl_attn_plan;

int sl_attn_plan_init(sl_attn_plan *plan, int n_layers, const sl_attn_spec *all, sl_error *err);
int sl_attn_plan_set(sl_attn_plan *plan, const char *rule, sl_error *err); // `0=dense`, `2-5=santa:S=64`
// A file of `layer S` lines ('#' starts a comment): sets parameter S of those layers.
int sl_attn_plan_schedule(sl_attn_plan *plan, const char *path, sl_error *err);
void sl_attn_plan_free(sl_attn_plan *plan);

#ifdef __cplusplus
}
#endif

#endif
