// cli/run/prompt_ids.h - prompts of token ids, from a file or random.
#ifndef SLEIGH_PROMPT_IDS_H
#define SLEIGH_PROMPT_IDS_H

#include "base/arrays.h"
#include "base/error.h"
#include "cli/options/options.h"
#include "models/config.h"

int cli_has_ids(const cli_ids_options *o); // 1: the prompt is ids, not text
// Reads the ids of --ids. SL_ERR_FORMAT: there are none, or one is not an id of this model.
int cli_read_ids(const cli_ids_options *o, const sl_config *config, sl_ids *ids, sl_error *err);
// Makes n random ids from a seed and a sequence number. The first ids do not depend on n.
int cli_random_ids(uint32_t seed, uint32_t sequence, int n, int n_vocab, sl_ids *ids, sl_error *err);

#endif
