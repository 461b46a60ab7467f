// cli/generate/jsonl.h - sleigh generate --jsonl.
#ifndef SLEIGH_JSONL_H
#define SLEIGH_JSONL_H

#include "base/error.h"
#include "cli/options/options.h"

int cli_generate_jsonl(const cli_options *o, sl_error *err);

#endif
