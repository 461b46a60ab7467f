// engine/cli/eval/eval_scores.h - the scores of an evaluation: kept in a file that an interrupted run goes on from, and
// summarised with intervals.
//
// Samples lie in groups of one task and length, in clusters that share a text. A cell is a sample and a method.
#ifndef SLEIGH_EVAL_SCORES_H
#define SLEIGH_EVAL_SCORES_H

#include "engine/cli/attn_list.h"
#include "engine/cli/output/summary.h"
#include "engine/base/error.h"

#include <jansson.h>
#include <stdint.h>
#include <stdio.h>

typedef struct eval_group {
    const char *task;
    int length; // tokens; 0: as the file has them
    int first, n;
} eval_group;

typedef struct eval_scores {
    eval_group *groups; // [n_groups]
    int n_groups, n_samples;
    int *cluster;   // [n_samples], not falling within a group
    char **methods; // [n_methods], lent; the first is the one to compare with
    int n_methods;
    double *score;         // [n_methods][n_samples]; NaN: not yet
    double *bytes, *dense; // of the KV cache: read, and what dense attention reads
} eval_scores;

int eval_scores_alloc(eval_scores *s, sl_error *err); // n_samples, n_methods and groups are set
void eval_scores_free(eval_scores *s);                // not the methods
static inline int eval_cell(const eval_scores *s, int method, int sample) {
    return method * s->n_samples + sample;
}
int eval_scores_missing(const eval_scores *s);

// ---- the file: a line {"sleigh_eval", "settings"}, then one a cell ----

// Opens `path` to append to, or makes it. Of a file that is there: half a line at its end is cut off; SL_ERR_ARG when its
// settings differ, with the name of one that does; its cells are taken into *s, those of other tasks, lengths, samples and
// methods left alone. Another run that writes to it is SL_ERR_IO.
int eval_file_open(const char *path, const json_t *settings, eval_scores *s, FILE **out, sl_error *err);
// Adds a line and writes it through. flag: what named the file, for messages.
int eval_file_add(FILE *f, const char *flag, const char *path, const json_t *line, sl_error *err);

// ---- the summary (eval_table.c) ----

typedef struct eval_summary {
    cli_interval score, difference; // to the first method, on the same samples
    int n_better, n_worse;          // clusters whose sum of scores is above, below that of the first method
    double p_value;                 // exact, two-sided: that both are as likely (McNemar's where a cluster is one sample)
    double kv_share;                // bytes of the KV cache read, to dense; 0: no step was taken
    int n, n_clusters;
} eval_summary;

// out: [n_methods][n_groups + 1], the last of a method over all groups: the mean of their means. Every cell must be there.
// Wilson's interval of a mean score and Tango's of a difference, at the number of independent samples that the spread between
// clusters shows.
void eval_summarise(const eval_scores *s, eval_summary *out);

// format: "md", "csv" or "json". settings: lent.
int eval_print(const eval_scores *s, const eval_summary *summary, const json_t *settings, const char *format, sl_error *err);

// --plot (eval_plot.c): the mean of all groups against the KV bytes read, methods that differ in their budget on one curve.
int eval_plot(const char *file, const char *title, const eval_scores *s, const cli_attn_list *attn, const eval_summary *summary,
              sl_error *err);

#endif
