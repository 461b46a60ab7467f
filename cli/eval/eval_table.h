// cli/eval/eval_table.h - the summary of an evaluation: scores and differences with intervals, as a table.
#ifndef SLEIGH_EVAL_TABLE_H
#define SLEIGH_EVAL_TABLE_H

#include "cli/eval/eval_scores.h"
#include "cli/output/model_name.h"
#include "cli/output/summary.h"

typedef struct eval_summary {
    cli_interval score, difference; // mean score; difference to the first method on the same samples
    int n_better, n_worse;          // clusters with a sum of scores above, below that of the first method
    double p_value;                 // exact, two-sided test of equal chances (McNemar's if a cluster is one sample)
    double kv_share;                // bytes of the KV cache read / bytes of dense attention; 0: no step was taken
    sl_attn_stats stated;           // its fields about stated errors of layers
    eval_prefill prefill;
    int n, n_clusters;
} eval_summary;

// out: [n_methods][n_groups + 1]; the last entry of a method is the mean of the means of all groups. No cell may be missing.
// Intervals are Wilson's for a mean score and Tango's for a difference, with the effective number of independent samples that
// the spread between clusters shows.
void eval_summarise(const eval_scores *s, eval_summary *out);

// What a table says about its run. The caller owns the members.
typedef struct eval_source {
    const json_t *settings;
    const cli_model_name *model;
    int n_planned; // samples of the whole run; the scores hold all of them, or a part after an interruption
} eval_source;

// format: "md", "csv", "json" or "jsonl".
int eval_print(const eval_scores *s, const eval_summary *summary, const eval_source *source, const char *format, sl_error *err);

#endif
