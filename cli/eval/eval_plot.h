// cli/eval/eval_plot.h - the plot of an evaluation.
#ifndef SLEIGH_EVAL_PLOT_H
#define SLEIGH_EVAL_PLOT_H

#include "cli/attn/attn_list.h"
#include "cli/eval/eval_table.h"

// Draws --plot: the mean score of all groups against the KV bytes read. Methods that differ only in their budget share a curve.
int eval_plot(const char *file, const char *title, const eval_scores *s, const cli_attn_list *attn, const eval_summary *summary,
              sl_error *err);

#endif
