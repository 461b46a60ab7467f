// cli/eval/eval_scores.h - the scores of an evaluation, and the file that stores the scores so that a run can be
// continued.
//
// A group holds the samples of one task and length. A cluster holds the samples of a group that share a text. A cell is a
// sample with a method.
#ifndef SLEIGH_EVAL_SCORES_H
#define SLEIGH_EVAL_SCORES_H

#include "attention/attention.h"
#include "base/error.h"
#include "engine/engine.h"

#include <jansson.h>
#include <stdint.h>
#include <stdio.h>

typedef struct eval_group {
    const char *task;
    int length; // tokens; 0: as in the file of --jsonl
    int first, n;
} eval_group;

// What a cell's answer has of sl_attn_stats, under the same names.
typedef struct eval_stated {
    uint64_t stated, certified, unbounded, stated_units;
    double stated_most;
} eval_stated;

// The prefill of a cell's answer. NaN: prefill was dense, or nothing was measured.
typedef struct eval_prefill {
    double ttft_ms; // of an answer whose whole prompt was prefilled: milliseconds of prefill and feed
    double density, kept, cra, error, error_max;
} eval_prefill;

typedef struct eval_scores {
    eval_group *groups; // [n_groups]
    int n_groups, n_samples;
    int *cluster;   // [n_samples], ascending within a group
    char **methods; // [n_methods], not owned; differences are to the first
    int n_methods;
    char **prefills; // [n_prefills], not owned; n_methods / n_prefills methods in a row have the same one
    int n_prefills,
        lists_prefill;        // n_prefills 0: dense; lists_prefill: 1: lines and tables show the prefill
    eval_prefill *prefill;    // [n_methods][n_samples]
    sl_prefill_report *heads; // [n_methods][n_groups][n_layers][n_heads] sums over the answers of this run; NULL: not counted
    int *n_counted;           // [n_methods][n_groups] number of these answers
    int n_layers, n_heads;
    double *score;         // [n_methods][n_samples]; NaN: missing
    double *bytes, *dense; // [n_methods][n_samples] bytes of the KV cache read; the same for dense attention
    eval_stated *stated;   // [n_methods][n_samples]
} eval_scores;

int eval_scores_alloc(eval_scores *s, sl_error *err); // n_samples, n_methods and groups must be set
void eval_scores_free(eval_scores *s);                // does not free the methods
static inline int eval_cell(const eval_scores *s, int method, int sample) {
    return method * s->n_samples + sample;
}
// Copies the samples that every method has answered, with their groups. Groups without such a sample are left out. The copy
// borrows names from *s.
int eval_scores_complete(const eval_scores *s, eval_scores *out, sl_error *err);
const char *eval_prefill_of(const eval_scores *s, int method); // its method for prefill
// Over n samples: means of ttft_ms, density and error, the least kept and cra, the greatest error_max.
eval_prefill eval_scores_prefill(const eval_scores *s, int method, int first, int n);
// Adds attn_prefill and the fields of *p to a row or a line of --out, if the scores list prefills.
void eval_prefill_put(const eval_scores *s, json_t *row, int method, const eval_prefill *p);
// The prefills of each layer and head. A file of --out does not hold them, because it would have 60 kB for each answer of an 8B
// model.
int eval_scores_alloc_heads(eval_scores *s, int n_layers, int n_heads, sl_error *err);
// heads: [n_layers][n_heads] of an answer; NULL: prefilled densely
void eval_scores_add_heads(eval_scores *s, int method, int group, const sl_prefill_report *heads);
// The field prefill_heads of a group (n_groups: of all groups). null: prefilled densely, or not all answers are of this run
json_t *eval_scores_heads_json(const eval_scores *s, int method, int group);
void eval_scores_set_stated(eval_scores *s, int cell, const sl_attn_stats *stats); // sets s->stated of the cell
void eval_scores_sum_stated(const eval_scores *s, int method, int first, int n, sl_attn_stats *out); // sums over samples
int eval_scores_missing(const eval_scores *s); // number of cells without a score

// ---- the file: a line {"sleigh_eval", "settings"}, then one line per cell (cli_resume_add) ----

// cli_resume_open (resume_file.h). Reads the cells of an existing file into *s, except those of other tasks, lengths, samples
// and methods.
int eval_file_open(const char *path, const json_t *settings, eval_scores *s, FILE **out, sl_error *err);

#endif
