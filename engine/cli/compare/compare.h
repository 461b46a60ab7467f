// engine/cli/compare/compare.h - sleigh compare, shared by its files: cmd_compare.c (prompts, the order of work),
// compare_runs.c (the runs of one prompt), compare_print.c (what is printed) and compare_plot.c (what is drawn).
#ifndef SLEIGH_COMPARE_H
#define SLEIGH_COMPARE_H

#include "engine/cli/attn_list.h"
#include "engine/cli/eval/eval_prompt.h"
#include "engine/cli/output/summary.h"
#include "engine/cli/run.h"
#include "engine/cli/timeline.h"

#include <jansson.h>

typedef struct compare_prompt {
    json_t *id; // NULL: its index
    uint32_t sequence;
    sl_ids ids;
    int n_dense;      // of ids: prefilled densely
    sl_ids reference; // the prompt and the text to score, as one text; empty: what dense attention answers
    int n_before;     // of reference: tokens that are the prompt's
} compare_prompt;

typedef struct compare_answer { // of one prompt
    sl_ids ids;                 // an end token included
    sl_text text;
    const char *stopped;
} compare_answer;

// Sums over the steps of the dense runs, of one layer and head; of its KV head: k_rows, v_distinct, bytes, dense_bytes.
typedef struct compare_head {
    double n, error, cosine, bias, k_rows, v_rows, v_distinct, samples, ess, spread, bytes, dense_bytes;
} compare_head;

// Sums over the heads of the last layer whose mass is held to 90% by 1, 2, 3 to 4, 5 to 8 or more tiles (the paper's Table 29).
typedef struct compare_tiles {
    double n, error, cosine;
} compare_tiles;

enum { QUESTION, ANSWER, N_PARTS, N_TILES = 5 };

typedef struct compare_method {
    const char *text;                  // as it was written
    compare_answer answer;             // to the prompt at work
    cli_values agreement;              // a value a prompt: share of equal tokens
    cli_values prefix;                 // likewise: tokens before the first that differs
    int n_identical;                   // prompts
    sl_attn_stats read;                // of all free runs
    cli_values kl, top1;               // a value a position of the dense path, a group a prompt
    cli_values nll[N_PARTS], more_nll; // more_nll: nll less that under dense, of both parts
    cli_values error, cosine;          // a value a layer and head, a group a step
    compare_head *heads;               // [n_layers][n_heads]
    compare_tiles tiles[N_TILES];
} compare_method;

typedef struct compare {
    const cli_options *o; // what the flags say, with the device chosen
    cli_run run;
    cli_timeline t;
    cli_attn_list attn;
    eval_prompter prompter;
    compare_prompt *prompts;     // [n_prompts]
    int n_prompts, n_references; // prompts with a reference
    int n_held;                  // tokens at the session's beginning that were prefilled densely
    compare_answer dense;
    cli_values dense_nll[N_PARTS];
    compare_method *methods;    // [attn.n]
    int n_observed, observe_rc; // records of the dense run so far; an error of the observer
    // what switching the engine's method costs: of setting the plan; of steps right after that, and of others
    int n_switches, n_first, n_other;
    double switch_ms, first_ms, other_ms;
    json_t *rows; // -o json: of the prompts
} compare;

// compare_runs.c: fills answers and values for one prompt.
int compare_run_prompt(compare *c, const compare_prompt *p, sl_error *err);
int compare_differ_at(const sl_ids *a, const sl_ids *b); // first differing place; -1: equal

// compare_print.c; the figures of a method are its row's fields
json_t *compare_rows(const compare *c, sl_error *err); // [attn.n] one flat object a method; NULL: SL_ERR_MEMORY
int compare_print_prompt(compare *c, const compare_prompt *p, int index, sl_error *err);
int compare_print_summary(compare *c, json_t *rows, sl_error *err);

// compare_plot.c: --plot, the errors of heads: against S, and of each layer and head.
int compare_plot_check(const compare *c, sl_error *err);
int compare_plot(const compare *c, const json_t *rows, sl_error *err);

#endif
