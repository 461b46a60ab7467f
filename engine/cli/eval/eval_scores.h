// engine/cli/eval/eval_scores.h - the scores of an evaluation: kept in a file that an interrupted run goes on from, and
// summarised with intervals.
//
// Samples lie in groups of one task and length, in clusters that share a text. A cell is a sample and a method.
#ifndef SLEIGH_EVAL_SCORES_H
#define SLEIGH_EVAL_SCORES_H

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

#endif
