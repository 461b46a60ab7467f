// cli/generate/parallel.h - sleigh generate --prompts, or --jsonl with --parallel: static batches.
#ifndef SLEIGH_PARALLEL_H
#define SLEIGH_PARALLEL_H

#include "base/error.h"
#include "cli/options/options.h"

int cli_generate_parallel(const cli_options *o, sl_error *err);

#endif
