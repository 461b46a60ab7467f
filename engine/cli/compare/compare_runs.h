// engine/cli/compare/compare_runs.h - the runs of one prompt of sleigh compare.
#ifndef SLEIGH_COMPARE_RUNS_H
#define SLEIGH_COMPARE_RUNS_H

#include "engine/cli/compare/compare.h"

double compare_steps(const compare *c, const compare_prompt *p);      // decode steps of all runs of a prompt, at most
int compare_run_prompt(compare *c, compare_prompt *p, sl_error *err); // fills answers and values
int compare_differ_at(const sl_ids *a, const sl_ids *b);              // index of the first difference; -1: equal

#endif
