// engine/cli/eval/eval_table.h - the summary of an evaluation: scores and differences with intervals, as a table.
#ifndef SLEIGH_EVAL_TABLE_H
#define SLEIGH_EVAL_TABLE_H

#include "engine/cli/eval/eval_scores.h"
#include "engine/cli/output/summary.h"

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

#endif
