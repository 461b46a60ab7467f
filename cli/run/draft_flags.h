// cli/run/draft_flags.h - the drafts of --draft (docs/drafts.md).
#ifndef SLEIGH_DRAFT_FLAGS_H
#define SLEIGH_DRAFT_FLAGS_H

#include "cli/options/options.h"

const char *cli_draft(const cli_draft_options *o); // sl_generation.draft; NULL: no drafts, also for the word none
typedef struct cli_draft_needs {
    int n_draft;         // sl_engine_options.n_draft
    const char *weights; // sl_engine_options.draft_weights
} cli_draft_needs;
// What an engine needs: the most drafts that the flag asks for, and at least SL_DRAFT_MOST where requests may ask for
// drafts (on the CPU; a GPU has memory for drafts only if the flag asks for some). SL_ERR_ARG: the flag is malformed, --stats
// is given too, or --draft-model is given without a use for it or missing.
int cli_draft_need(const cli_draft_options *o, const cli_stats_options *stats, const char *device, cli_draft_needs *out,
                   sl_error *err);

#endif
