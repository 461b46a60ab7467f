// cli/run/run_plan.h - the plans of a run that has a model and no engine yet. run.c calls these functions; run.h has the
// functions for later plans.
#ifndef SLEIGH_RUN_PLAN_H
#define SLEIGH_RUN_PLAN_H

#include "cli/run/run.h"

int cli_run_list_plans(cli_run *run, sl_error *err); // reads --attn-profile, and sets run->requested
// Lets auto choose for the longest context: if its method needs too much memory, the error is reported now. Reads or measures
// the tables of auto.
int cli_run_choose_first(cli_run *run, sl_error *err);

#endif
