// attention/attention.h - the contract between the engine and an attention method.
//
// A method is one const sl_attn_method: a name, a table of parameters, and a table of functions for each backend. The command
// line, the help and the table of `sleigh methods` follow from the parameters. A NULL table means that the backend does not
// offer the method. The engine refuses the method before the first step. On the CPU a decode method composes the four stages of
// stages.h (propose, draw, refine, combine). A method has no loop over keys.
//
// Shapes: q and out are fp32 [n_heads][head_dim] per token; K and V are pages (kv/kv.h). Query head h reads
// KV head h / group, group = n_heads / n_kv_heads. Scores are q.k / sqrt(head_dim).
#ifndef SLEIGH_ATTENTION_H
#define SLEIGH_ATTENTION_H

#include "attention/attn_stats.h"
#include "base/error.h"
#include "kv/kv_extras.h"

#include <math.h>
#include <stdint.h>
#include <stdio.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef struct sl_attn_geom {
    int n_layers, n_heads, n_kv_heads, head_dim;
    // The model-wide index of query head 0. Random counters add it, so a shard of the heads uses the same random numbers as an
    // engine with all heads.
    int first_head;                   // 0: every engine holds all heads today
    const struct sl_buckets *buckets; // the model's (attention/extras/buckets.h), for methods with needs_buckets; NULL: none
} sl_attn_geom;

// log2(e) / sqrt(head_dim): q.k times this factor is a score in log2 units, so 2^score = e^(q.k / sqrt(head_dim)).
static inline float sl_score_scale(int head_dim) {
    return (float)(1.4426950408889634 / sqrt((double)head_dim));
}

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

// A specification: a method with the values of its parameters, parsed from `name[:k=v]*`. `first+value` has two methods: the
// first estimates the scores or takes a set of rows, the second draws rows of V.
typedef struct sl_attn_spec {
    const sl_attn_method *method;
    double value[SL_ATTN_MAX_PARAMS]; // parallel to method->params
    const sl_attn_method *plus;       // the method after '+'; NULL: none
    double plus_value[SL_ATTN_MAX_PARAMS];
} sl_attn_spec;

// ---- what a call reads and writes ----

// What one step of one query head did. Values of the KV head are equal for all query heads of its group.
typedef struct sl_attn_report {
    // of the KV head
    uint32_t k_rows; // rows of K that were read completely: all rows with an exact proposal; otherwise the refined rows and the
                     // newest page
    uint32_t v_distinct;  // distinct rows of V: a row that several heads of the group drew counts once
    float features;       // share of the key features that the proposal read
    uint64_t bytes;       // bytes read, page extras included
    uint64_t dense_bytes; // bytes that dense attention reads
    // of the query head
    uint32_t v_rows, samples, budget; // rows gathered; sum of counts; budget S of the draw
    float ess;                        // effective sample size of the coefficients x: (sum x)^2 / sum x^2
    float score_bound;                // largest distance of a proposed score from its exact score, in nats; 0: no bound
    float error_bound;                // b / |mu^| of methods with a stated error; NaN: the method states none
    uint32_t tries, fallback;         // draws until the stated error held; 1: every row was attended to exactly
    uint32_t exact;                   // 1: the sequence has fewer rows than sl_attn_decode_args.exact_below
    float kappa;                      // threshold of the head's draw; 0: it took every row; NaN: no carried threshold
    // Of random draws with known probabilities (saap-is); NaN: no such draws, or too few. The standard error of the output,
    // relative to its norm; the largest share of the normaliser that one draw has; the Pareto shape of the draws' coefficients.
    float standard_error, largest_draw, pareto_shape;
    // of the layer, equal for all query heads. b is the bound of the error of the heads side by side, mu^ their output;
    // error_bound has the same b and mu^.
    // epsilon' = b / (|mu^| - b), inf where b >= |mu^|; 0 after exact attention; NaN: the method states no error of a layer.
    float stated_error;
    uint32_t certified;  // 1: epsilon' <= epsilon, by draws, or because the head is `exact`
    float kurtosis;      // vattention: of the verified summands of the base sample (bernstein.h); NaN: no base sample
    uint32_t heavy_tail; // 1: the kurtosis is so large that the variance of the base sample, and so bound=clt, is unreliable
    // Comparison with dense attention on the same state; NaN without --stats-error. |out - mu| / |mu|; the cosine of out and
    // mu; the part of the error along mu, (out - mu).mu / |mu|^2. The mean of this part over seeds is the bias of the method.
    float error, cosine, bias;
    float layer_error; // |out - mu| / |mu| of the layer's heads side by side
    uint32_t tiles;    // fewest 256-row tiles that hold 90% of the mass of dense attention; 0 without --stats-error
} sl_attn_report;

// The fields that most methods leave without a value: `(sl_attn_report){SL_ATTN_NO_VALUES, .k_rows = n}`.
#define SL_ATTN_NO_VALUES                                                                                                      \
    .error_bound = NAN, .kappa = NAN, .standard_error = NAN, .largest_draw = NAN, .pareto_shape = NAN, .stated_error = NAN,    \
    .kurtosis = NAN, .error = NAN, .cosine = NAN, .bias = NAN, .layer_error = NAN

// One sequence's new token in one layer.
typedef struct sl_attn_query {
    const float *q;       // [n_heads][head_dim], after RoPE
    float *out;           // [n_heads][head_dim]
    sl_kv_view kv;        // n_kv rows, including the row of the new token
    uint32_t sequence;    // sequence id of the caller, never the batch index; it keys the random numbers
    uint32_t position;    // of the query token
    uint32_t seed;        // the sequence's seed, which is added to sl_attn_decode_args.seed
    void *state;          // ops->state bytes of this sequence and layer, or NULL
    sl_attn_stats *stats; // of this sequence, added to; NULL: not wanted
} sl_attn_query;

enum {
    SL_MAX_GROUP = 64, // query heads of one KV head
    SL_MAX_NEEDS = 4,  // page extras of one specification
};

// Scratch memory that only grows. The engine reserves ops->workspace bytes before a call, so a step allocates nothing.
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
    // Sequences of fewer rows attend to every row, with the bits of method dense (sl_attn_exact_below). 0: none does
    int exact_below;
    int n_seqs;
    const sl_attn_query *seqs; // [n_seqs], lengths may differ
    sl_workspace *ws;          // at least ops->workspace() bytes
    sl_attn_stats *stats;      // added to
    sl_attn_report *reports;   // [n_seqs][n_heads], filled; NULL: no reports
} sl_attn_decode_args;

struct sl_prefill_mask; // prefill_mask.h
struct sl_mask_args;    // prefill_mask.h

// Key blocks of one query head, summed over the query blocks of a call. A query block that two calls share counts twice.
typedef struct sl_prefill_count {
    uint64_t visited, causal; // softmax and V were computed; dense attention visits them
} sl_prefill_count;

// Consecutive tokens of one sequence. Token i has the position kv.n_kv - n_tokens + i and sees the rows up to this position.
typedef struct sl_attn_prefill_args {
    const sl_attn_geom *geom;
    const sl_attn_spec *spec;
    int layer;
    int n_tokens;
    const float *q; // [n_tokens][n_heads][head_dim], after RoPE
    float *out;     // [n_tokens][n_heads][head_dim]
    sl_kv_view kv;  // includes the rows of these tokens
    sl_workspace *ws;
    const struct sl_prefill_mask *mask; // key blocks to visit, of a segment that has these tokens (prefill_mask.h); NULL: all
    // sl_attn_ops.skip_distance of the method; 0: no block is skipped. Whether a block is skipped depends on all queries of a
    // query block. So a call must have all of them, or its bits depend on the split.
    float skip_distance;
    // D / (l + D) of each row, an upper bound of the share of the mass that the skipped blocks have. l is the sum of e^(s - m)
    // over the visited keys, and D the sum of 128 e^(m_B - m) over the skipped blocks. m_B: the row's largest score in block B.
    float *lost;              // [n_tokens][n_heads], overwritten; NULL: not wanted
    sl_prefill_count *counts; // [n_heads], added to; NULL: not wanted
} sl_attn_prefill_args;

// ---- a method ----

// The functions of a backend. decode and prefill may use all threads. Equal inputs give equal bits for every number of threads,
// batch size and batch index.
typedef struct sl_attn_ops {
    // Bytes of scratch for up to n_seqs sequences of n_kv rows: of decode (n_tokens == 1) or of a prefill of n_tokens.
    size_t (*workspace)(const sl_attn_geom *geom, const sl_attn_spec *spec, int n_seqs, int n_tokens, int n_kv);
    void (*decode)(const sl_attn_decode_args *args);
    void (*prefill)(const sl_attn_prefill_args *args);
    // Writes the page extras that decode reads (kv/kv_extras.h), at most SL_MAX_NEEDS, and returns their number. The
    // engine builds them before a step. NULL: none.
    int (*needs)(const sl_attn_spec *spec, sl_kv_need *out);
    // Bytes of state that decode keeps from step to step for a sequence and layer. They are zero at the start. NULL or 0: none.
    size_t (*state)(const sl_attn_geom *geom, const sl_attn_spec *spec);

    // ---- a method for prefill: `mask` or `skip_distance`. The prefill of method dense runs it ----
    // Adds key blocks to a mask that has the diagonal and the sink (prefill_mask.h). Only sl_mask_propose calls it.
    void (*mask)(const struct sl_mask_args *args);
    size_t (*mask_workspace)(const sl_attn_geom *geom, const sl_attn_spec *spec, int n_tokens, int n_kv); // NULL: 0 bytes
    // The rule of `threshold`: a block is skipped whose scores lie more than this distance, in log2 units, below the running
    // maximum of each row of its query block. Above 0.
    float (*skip_distance)(const sl_attn_spec *spec);
} sl_attn_ops;

// The mean of the output over seeds, up to rounding. tests/attention/test_means.c checks this statement of every method.
typedef enum {
    SL_MEAN_UNSTATED, // the method does not state its mean: sl_attn_parse refuses the method
    SL_MEAN_UNBIASED, // the mean is the output of dense attention
    SL_MEAN_BIASED,   // the mean differs from it
    SL_MEAN_EXACT,    // the output is that of dense attention: no random numbers, and every row counts
} sl_attn_mean;

// Where attention to every row takes less time than the method: for sequences of fewer rows than `ratio` times the rows that a
// head takes, or than `least` (results/cliffs.md). With a stated error, a step chooses its rows itself. Then `stated` counts in
// place of both. All 0: nowhere.
typedef struct sl_attn_crossover {
    int ratio, least, stated;
} sl_attn_crossover;

enum { SL_EXACT_AUTO = -1 }; // of sl_attn_exact_below: the rule decides

struct sl_attn_method {
    const char *name;                                  // as in --attn=NAME
    const char *summary;                               // one line for `sleigh methods`
    const char *source;                                // paper and section, or "ours"
    sl_attn_mean mean;                                 // with default parameters
    sl_attn_mean (*mean_of)(const sl_attn_spec *spec); // with these parameters; NULL: always `mean`
    const char *caution;         // limits that a user must know, with figures and the command that prints them; NULL: none
    const sl_attn_param *params; // ended by {0}; NULL: none
    // Returns 0, or SL_ERR_ARG with the reason if parameters exclude each other. NULL: no parameters exclude each other.
    int (*check)(const sl_attn_spec *spec, sl_error *err);
    // Returns 0, or SL_ERR_UNSUPPORTED with the reason. NULL: the method supports every shape that the engine loads.
    int (*supports)(const sl_attn_geom *geom, const sl_attn_spec *spec, sl_error *err);
    int needs_buckets; // 1: sl_attn_geom.buckets must be there. The engine opens the bucket file of the model for such a method
    sl_attn_crossover crossover[2];      // on the CPU; on a GPU
    const struct sl_composition *stages; // the composition that sl_stages_ops runs (stages.h); NULL: `cpu` composes no stages
    const sl_attn_ops *cpu;              // NULL: the CPU does not offer the method
    const struct sl_attn_cuda_ops *cuda; // NULL: CUDA does not offer the method (attention_cuda.h)
};

// ---- methods ----

extern const sl_attn_method sl_method_dense; // exact attention: prefill, and the reference of every other method

extern const sl_attn_method *const sl_attn_methods[]; // the registry, ended by NULL; dense is first

const sl_attn_method *sl_attn_find(const char *name); // by name, "auto" included (auto.h); NULL: unknown
// Parses `name[:k=v]*[+name[:k=v]*]` and calls sl_attn_check. A suffix k or K of a number means 1024. For an unknown name or
// parameter, the error suggests the nearest one.
int sl_attn_parse(const char *text, sl_attn_spec *spec, sl_error *err);
// SL_ERR_ARG when parameters exclude each other or a method does not state its mean. sl_engine_set_attention calls it too.
int sl_attn_check(const sl_attn_spec *spec, sl_error *err);
sl_attn_mean sl_attn_mean_of(const sl_attn_spec *spec);
const char *sl_attn_mean_name(sl_attn_mean mean); // "unbiased", "biased", "exact"
// Sets one parameter from text, as --S=128 does. The caller calls sl_attn_check.
int sl_attn_set(sl_attn_spec *spec, const char *name, const char *value, sl_error *err);
int sl_attn_param_index(const sl_attn_method *method, const char *name); // -1: it has no such parameter
double sl_attn_get(const sl_attn_spec *spec, const char *name);          // a method of the specification must have it
int sl_attn_has(const sl_attn_spec *spec, const char *name);
int sl_attn_chooses(const sl_attn_spec *spec, const char *name, const char *word); // 1: the choice `name` has this word
int sl_attn_same(const sl_attn_spec *a, const sl_attn_spec *b); // 1: the methods and all parameters are equal
int sl_attn_states_error(const sl_attn_spec *spec);    // 1: --epsilon sets the draws, and every head reports its error bound
int sl_attn_certifies_layer(const sl_attn_spec *spec); // 1: the stated error is that of a layer, not of each head
int sl_attn_carries_budget(const sl_attn_spec *spec);  // 1: --budget=carried, and no stated error
// --exact-below: sequences of fewer rows attend to every row, because this costs less than the draws of the method. setting:
// SL_EXACT_AUTO; 0: none does; or a number of rows for all methods that have a crossover. The automatic number is a power of
// 2. It follows from the parameters and from the kind of the device, never from a time, the length or the batch. So a sequence
// has equal bits in every batch, and in every run.
int sl_attn_exact_below(const sl_attn_spec *spec, int setting, int on_gpu);
// 0; SL_ERR_ARG for a method that only prefills; SL_ERR_UNSUPPORTED when the CPU does not decode with the method.
int sl_attn_check_decode(const sl_attn_spec *spec, sl_error *err);
const char *sl_attn_phases(const sl_attn_method *method); // "decode", "prefill" or "decode, prefill": what the CPU offers
int sl_attn_on_gpu(const sl_attn_spec *spec);             // 1: this build decodes with it on a GPU
int sl_attn_on_offloaded_rows(const sl_attn_spec *spec);  // 1: the same, with K and V in host memory
// SL_ERR_UNSUPPORTED with the reason why sl_attn_on_offloaded_rows returns 0. where: "layer 3"
int sl_attn_refuse_offloaded(const sl_attn_spec *spec, const char *where, sl_error *err);
int sl_attn_on_byte_rows(const sl_attn_spec *spec); // 1: this build decodes with it on a GPU, with a KV cache of fp8 or int8
// SL_ERR_UNSUPPORTED with the reason why sl_attn_on_byte_rows returns 0. format: of the cache, "fp8"
int sl_attn_refuse_byte_rows(const sl_attn_spec *spec, const char *format, const char *where, sl_error *err);
int sl_attn_prefills_on_gpu(const sl_attn_spec *spec); // 1: this build prefills with it on a GPU
int sl_attn_makes_mask(const sl_attn_spec *spec);      // 1: a prefill with it visits the blocks of a mask
// Writes `santa-prop:S=128` into buf: the first parameter, and every parameter that is not at its default.
void sl_attn_format(const sl_attn_spec *spec, char *buf, size_t size);
// Writes the value of a parameter as the command line takes it.
void sl_attn_param_format(const sl_attn_param *param, double value, char *buf, size_t size);
void sl_attn_list(FILE *out); // the table of `sleigh methods`

// The method that each layer decodes with, or prefills with.
typedef struct sl_attn_plan {
    int n_layers;
    sl_attn_spec *layer; // [n_layers]
} sl_attn_plan;

int sl_attn_plan_init(sl_attn_plan *plan, int n_layers, const sl_attn_spec *all, sl_error *err);
int sl_attn_plan_copy(sl_attn_plan *plan, const sl_attn_plan *from, sl_error *err); // *plan: not initialised
int sl_attn_plan_same(const sl_attn_plan *a, const sl_attn_plan *b);                // 1: both have n_layers equal layers
int sl_attn_plan_is_dense(const sl_attn_plan *plan);                                // 1: every layer is dense
// rule: `0=dense`, `2-5=santa:S=64`. option: the name in messages, attn_layer or attn_prefill_layer
int sl_attn_plan_set(sl_attn_plan *plan, const char *option, const char *rule, sl_error *err);
// Reads a file of lines `layer S`, and sets parameter S of each named layer. '#' starts a comment.
int sl_attn_plan_schedule(sl_attn_plan *plan, const char *path, sl_error *err);
void sl_attn_plan_free(sl_attn_plan *plan);

#ifdef __cplusplus
}
#endif

#endif
