// cli/generate/jsonl.h - sleigh generate --jsonl.
#ifndef SLEIGH_JSONL_H
#define SLEIGH_JSONL_H

#include "cli/commands.h"

int cli_generate_jsonl(const cli_generate_flags *o, sl_error *err);

#endif
