// cli/compare/compare_runs.h - the runs of one prompt of sleigh compare.
#ifndef SLEIGH_COMPARE_RUNS_H
#define SLEIGH_COMPARE_RUNS_H

#include "cli/compare/compare.h"

double compare_steps(const compare *c, const compare_prompt *p); // decode steps of all runs of a prompt, at most
// Runs n prompts: fills the values, and the answers (to the last prompt).
int compare_run_prompts(compare *c, compare_prompt *p, int n, sl_error *err);
int compare_differ_at(const sl_ids *a, const sl_ids *b); // index of the first difference; -1: equal

#endif
