// engine/cli/generate/generate.h - sleigh generate with a file of many prompts: one by one, or in batches.
#ifndef SLEIGH_GENERATE_H
#define SLEIGH_GENERATE_H

#include "engine/base/error.h"
#include "engine/cli/options.h"

int cli_generate_jsonl(const cli_options *o, sl_error *err);    // --jsonl (jsonl.c)
int cli_generate_parallel(const cli_options *o, sl_error *err); // --prompts, or --jsonl with --parallel (parallel.c)

#endif
