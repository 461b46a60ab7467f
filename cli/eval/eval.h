// cli/eval/eval.h - the state of sleigh eval, which its files share: cmd_eval.c (flags, samples and order of work) and
// eval_settings.c (what an answer depends on).
#ifndef SLEIGH_EVAL_H
#define SLEIGH_EVAL_H

#include "cli/attn/attn_list.h"
#include "cli/commands.h"
#include "cli/eval/eval_prompt.h"
#include "cli/eval/eval_records.h"
#include "cli/eval/eval_scores.h"
#include "cli/output/model_name.h"
#include "cli/output/progress_bar.h"
#include "cli/run/run.h"
#include "cli/shards.h"
#include "cli/timeline.h"

#include <jansson.h>
#include <stdio.h>

typedef struct eval {
    cli_eval_flags o;             // its `run` is run_options
    cli_run_options run_options;  // with this command's choice of device, context and stop texts
    cli_attn_list attn, prefills; // attn: the methods of --attn, once for each method of --attn-prefill
    eval_records records;         // of --jsonl
    int *tasks;                   // [scores.n_groups] task of each generated group
    eval_scores scores;
    cli_model_name name;
    sl_kv_formats formats; // of the KV cache
    json_t *settings;
    eval_maker maker;
    eval_prompter prompter;
    FILE *out; // --out, or NULL; open in rank 0
    const char *newline[1];
    // state of the run
    cli_run run;
    cli_timeline t;
    sl_ids *ids; // [questions of a text]
    int *n_shared;
    sl_text answer;
    cli_shards shards; // the texts that are left
    int *unit;         // [scores.n_samples] number of the sample's text in `shards`; -1: every method has answered
    sl_text part;      // an answer for rank 0
    cli_progress progress;
    int n_done, n_todo;
} eval;

// Sets e->settings and e->name: everything that an answer depends on, under the names of the flags. A run with other settings
// does not continue the file of --out.
int eval_make_settings(eval *e, sl_error *err);

#endif
