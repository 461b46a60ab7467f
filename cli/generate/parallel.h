// cli/generate/parallel.h - sleigh generate --prompts, or --jsonl with --parallel: many prompts on the scheduler.
#ifndef SLEIGH_PARALLEL_H
#define SLEIGH_PARALLEL_H

#include "cli/commands.h"

int cli_generate_parallel(const cli_generate_flags *o, sl_error *err);

#endif
