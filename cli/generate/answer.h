// cli/generate/answer.h - the JSON object of an answer, and the totals of many answers. `generate -o json`, --jsonl and
// --prompts, with and without --parallel, print the same fields; docs/output.md explains them.
#ifndef SLEIGH_ANSWER_H
#define SLEIGH_ANSWER_H

#include "cli/output/model_name.h"
#include "cli/timeline.h"

#include <jansson.h>
#include <stdio.h>

// Sums over the answers of a group, or of all groups. The answers of --parallel are a group; any other answer is a group.
typedef struct cli_totals {
    int n_groups, n_prompts, n_prefill, n_feed, n_steps, n_decode, n_generated; // n_steps: of the group; n_decode: their tokens
    double prefill_ms, feed_ms, decode_ms;
    int n_more; // of n_decode: tokens that steps appended beyond one each
    sl_draft_counts drafts;
} cli_totals;

cli_totals cli_totals_of(const cli_timeline *t); // of an answer that is a group
void cli_totals_add(cli_totals *to, const cli_totals *from);
void cli_totals_print(const cli_totals *t, double load_ms, FILE *out); // lines load:, prefill:, ..., peak_rss:

typedef struct cli_answer {
    const cli_model_name *model;
    int index, group;     // from 0
    const json_t *id;     // NULL: the index
    const sl_ids *prompt; // its ids
    const sl_text *text;
    const cli_timeline *t;
    const char *attn, *attn_prefill; // NULL: the methods of the run
    const cli_totals *totals;        // of the group
    int with_prompt;                 // 1: the object has the text and the ids of the prompt
} cli_answer;

// Makes the object. The engine's statistics must be of the group. SL_ERR_FORMAT: the text is not UTF-8, because a --stop text
// cut a character in two. SL_ERR_MEMORY
int cli_answer_json(const cli_answer *a, json_t **out, sl_error *err);
int cli_answer_print(const cli_answer *a, sl_error *err); // on one line

// Sets the method of a line for prefill; if the line has none, the method of the flags.
int cli_answer_set_prefill(cli_run *run, const json_t *record, sl_error *err);
// The number of alternatives for which a line, or else --logprobs, asks; -1: no log-probabilities.
int cli_answer_logprobs(const cli_output_options *o, const json_t *record);

#endif
