// cli/tune/tune.h - the state of sleigh tune, which its files share: cmd_tune.c (flags, order of work, the profile),
// tune_log.c (the log and the table), tune_prompts.c (prompts, and one measurement on a prompt), tune_prefill.c (the method of
// each length), tune_budgets.c (the draws of each layer).
//
// Every measurement has a name. The log holds name and value of each one, so a run asks the log first, and an interrupted run
// continues. The order of the measurements and the choices depend on values without times only.
#ifndef SLEIGH_TUNE_H
#define SLEIGH_TUNE_H

#include "cli/attn/attn_list.h"
#include "cli/attn/attn_profile.h"
#include "cli/commands.h"
#include "cli/eval/eval_prompt.h"
#include "cli/eval/eval_records.h"
#include "cli/output/progress_line.h"
#include "cli/output/rows.h"
#include "cli/run/run.h"
#include "cli/timeline.h"

#include <jansson.h>
#include <stdio.h>

typedef struct tune_prompt {
    char name[96]; // task/length/number, or line/number
    int length;    // the --length that it belongs to
    int is_check;  // 1: of --check; 0: of --samples
    eval_text text;
    const eval_item *item; // the question; NULL: a text (--measure kl)
    sl_ids ids;
    int n_context;        // first ids; after them, a method for decoding begins
    float *logits;        // of a text: of dense attention after each decoded token, [ids.n - n_context][n_vocab]; NULL: not yet
    cli_timeline context; // holds the context, prefilled densely, once tune_decode has run
    int has_context;
} tune_prompt;

typedef struct tune {
    cli_tune_flags o; // run, tasks and tune point to the next fields, which have this command's choices
    cli_run_options run_options;
    cli_task_options task_options; // the lengths are ascending
    cli_tune_options tune_options;
    cli_attn_list candidates;
    sl_attn_spec method; // whose draws are split over the layers
    eval_records records;
    eval_maker maker;
    eval_prompter prompter;
    tune_prompt *prompts; // [n_prompts]
    int n_prompts, cap_prompts;
    const char *newline[1];
    char log_path[CLI_PROFILE_PATH];
    FILE *log_file;
    json_t *log, *settings; // log: name to value
    cli_run run;
    cli_timeline t;
    cli_progress progress;
    int n_done, n_planned;
    cli_model_name model;
    cli_rows rows;
    char device[256];
    cli_prefill_time times[CLI_PROFILE_RANGES];
    int n_times;
} tune;

// ---- cmd_tune.c ----

void tune_take_flags(tune *t, const cli_tune_flags *o); // makes an empty state with copies of these flags

// ---- tune_prompts.c ----

// Makes the prompts of --task or --jsonl. The run's model must be loaded.
int tune_make_prompts(tune *t, sl_error *err);
void tune_free_prompts(tune *t);
int tune_first_length(const tune *t); // the shortest --length that has prompts: that of the budgets
// The prompts of a length: those of --check or the others. Returns their number.
int tune_select(tune *t, int length, int is_check, tune_prompt **out);

// The shortest prompt of length i of an ascending list: from the middle between it and the one below; 3/4 of the first length.
int tune_range_from(const cli_ints *lengths, int i);

// What a measurement on a prompt gives. x: the score of the answer, or the KL divergence of a text.
typedef struct tune_value {
    double x, visited, causal, ms; // the last three only of tune_prefill
} tune_value;
// Prefills the prompt with `attn`, and decodes densely.
int tune_prefill(tune *t, tune_prompt *p, const char *attn, tune_value *out, sl_error *err);
// Prefills the context densely, and decodes with the plan. name: of the measurement; it also keys the draws with `draws`.
int tune_decode(tune *t, tune_prompt *p, const sl_attn_plan *plan, const char *name, const char *draws, double *x,
                sl_error *err);
// Mean squares of the relative error of each layer's output, when every layer decodes with t->method on the states of dense
// attention. [n_layers]
int tune_layer_errors(tune *t, tune_prompt *p, double *error, sl_error *err);

// A value in [0, 1] that is larger when x is better: the score, or exp(-KL).
double tune_reward(const tune *t, double x);
static inline int tune_is_kl(const tune *t) {
    return t->o.tune->measure[0] == 'k';
}

// ---- tune_log.c ----

int tune_open_log(tune *t, sl_error *err);                                // reads the measurements of an earlier run
json_t *tune_find(const tune *t, const char *name);                       // the value in the log; NULL: not measured yet
int tune_record(tune *t, const char *name, json_t *value, sl_error *err); // releases the value
// A row of the table. `row` has "part", "length", "setting" and any of the other keys.
int tune_print(tune *t, json_t *row, sl_error *err);
void tune_open_table(tune *t);

// ---- the parts: *out is the part of the profile, NULL without one ----

int tune_prefill_part(tune *t, json_t **out, sl_error *err);
int tune_budgets_part(tune *t, json_t **out, sl_error *err);
// The work of a prefill method that is not in the blocks of its mask, for a prompt of n tokens in segments: the scores that its
// estimator computes, in blocks of one head. A block has the work of its scores and of its sum of V. -1: unknown
double tune_estimator_blocks(const sl_attn_spec *spec, int n, int segment);
// All of its work, divided by that of dense prefill. visited, causal: of the engine's report.
double tune_work(const sl_attn_spec *spec, int n, int segment, double visited, double causal);

#endif
