// cli/compare/compare.h - the state of sleigh compare, which its files share: cmd_compare.c (prompts and order of work),
// compare_runs.c (runs of one prompt), compare_prefix.c (its prefix), compare_heads.c (heads and attention on the states of the
// dense run), compare_forced.c (next tokens), compare_rows.c (figures), compare_print.c (output) and compare_plot.c (plots).
#ifndef SLEIGH_COMPARE_H
#define SLEIGH_COMPARE_H

#include "cli/attn/attn_list.h"
#include "cli/commands.h"
#include "cli/eval/eval_prompt.h"
#include "cli/output/model_name.h"
#include "cli/output/progress_bar.h"
#include "cli/output/summary.h"
#include "cli/run/run.h"
#include "cli/timeline.h"

#include <jansson.h>
#include <string.h>

enum { QUESTION, ANSWER, N_PARTS, N_TILES = 5 };

typedef struct compare_prompt {
    json_t *id; // NULL: the index is the id
    uint32_t sequence;
    sl_ids ids;
    int n_dense;                            // first ids, prefilled with dense attention
    sl_ids reference;                       // prompt and text to score, as one text; empty: score the answer of dense attention
    int n_before;                           // first tokens of `reference` that are the prompt
    int first_of[N_PARTS], end_of[N_PARTS]; // its values in dense_nll
    int n_steps;                            // observed steps up to the end of this prompt
} compare_prompt;

typedef struct compare_answer { // answer to one prompt; with --no-texts it is empty
    sl_ids ids;                 // with the end token
    sl_text text;
    const char *stopped;
} compare_answer;

// Sums over the steps of the dense runs for one layer and query head. k_rows, v_distinct, bytes and dense_bytes are those of
// its KV head.
typedef struct compare_head {
    double n, error, cosine, bias, k_rows, v_rows, v_distinct, samples, ess, spread, bytes, dense_bytes;
} compare_head;

// Sums over the heads of the last layer that hold 90% of their mass in 1, 2, 3 to 4, 5 to 8 or more tiles (Table 29 of the
// SANTA paper).
typedef struct compare_tiles {
    double n, error, cosine;
} compare_tiles;

// The error and the cosine of each output: [steps][n_layers][n_heads].
typedef struct compare_outputs {
    float (*x)[2]; // [n]
    int n, cap;
} compare_outputs;

typedef struct compare_method {
    const char *text;                  // specification
    const char *prefill;               // specification of its prefill
    double feed_ms;                    // of all free runs: decode steps of the prompts' tokens after the prefix
    compare_answer answer;             // to the current prompt
    cli_values agreement;              // per prompt: share of equal tokens
    cli_values prefix;                 // per prompt: tokens before the first different one
    cli_values text_nll;               // per prompt: see compare.dense_text_nll
    int n_identical;                   // prompts with identical answers
    sl_attn_stats read;                // totals of all free runs
    sl_attn_stats forced;              // totals of all teacher-forced runs
    cli_values kl, top1;               // per position of the dense path, one group per prompt
    cli_values nll[N_PARTS], more_nll; // more_nll: nll minus the nll of dense attention, for both parts
    compare_outputs outputs;
    compare_head *heads; // [n_layers][n_heads]
    compare_tiles tiles[N_TILES];
} compare_method;

typedef struct compare {
    const cli_compare_flags *o;
    cli_run_options run_options; // the flags of the run, with a device that is not auto
    cli_run run;
    cli_timeline t;
    cli_model_name name;
    cli_attn_list attn; // the n_decode methods of --attn, once for each method of --attn-prefill
    cli_attn_list prefills;
    int n_decode;
    eval_prompter prompter;
    compare_prompt *prompts;     // [n_prompts]
    int n_prompts, n_references; // prompts with a reference
    int is_partial;              // 1: an interruption left out the last prompts
    cli_progress progress;
    sl_session *dense_prefix;         // the prefix of the current prompt, prefilled densely
    sl_prefill_report *prefill_heads; // [prefills.n][n_layers][n_heads]
    double *prefill_ms;               // [prefills.n] of all prefills that began with the first token
    int *n_timed;                     // [prefills.n] their number
    compare_answer dense;
    cli_values dense_nll[N_PARTS];
    cli_values dense_text_nll; // per prompt: mean negative log-likelihood of the answer's tokens under dense attention
    compare_method *methods;   // [attn.n]
    // records of the current dense run so far; steps that all prompts observed; error of the observer
    int n_observed, n_steps, observe_rc;
    sl_attn_spread *profiles; // [n_layers][n_heads] sums over the observed steps
    // cost of a switch to another method: time to set the plan, time of the first step after it, time of other steps
    int n_switches, n_first, n_other;
    double switch_ms, first_ms, other_ms;
    json_t *rows; // -o json: one object per prompt
} compare;

static inline int compare_prefill_of(const compare *c, int method) { // index in c->prefills
    return method / c->n_decode;
}
static inline int compare_lists_prefill(const compare *c) { // 1: the tables show the prefill
    return c->o->run->attention.attn_prefills.n > 0 || c->o->run->attention.attn_prefill_layers.n > 0;
}
// 1: a method of c->prefills is the dense prefill that all methods are compared with. --attn-prefill-layer changes every method
// of the list, so `dense` is then another prefill.
static inline int compare_is_dense_prefill(const compare *c, int prefill) {
    return !c->o->run->attention.attn_prefill_layers.n && !strcmp(c->prefills.names[prefill], "dense");
}

#endif
