// engine/cli/output/stats.h - --stats: one JSON line per decode step, layer and query head, of the method that decodes and
// its shadows.
#ifndef SLEIGH_STATS_H
#define SLEIGH_STATS_H

#include "engine/cli/options.h"
#include "engine/sleigh.h"

#include <stdio.h>

typedef struct cli_stats {
    const char *path;
    FILE *file;            // NULL: not wanted
    int error;             // errno of the first write that failed
    sl_attn_spec *shadows; // --stats-attn
    int n_shadows, n_seeds, with_error;
} cli_stats;

// Opens what the flags ask for; *stats is empty without --stats. SL_ERR_ARG when another --stats-* flag stands alone.
int cli_stats_open(cli_stats *stats, const cli_options *o, sl_error *err);
int cli_stats_observe(cli_stats *stats, sl_engine *engine, sl_error *err); // stats must stay where it is
int cli_stats_check(const cli_stats *stats, sl_error *err);                // SL_ERR_IO when a write has failed
int cli_stats_close(cli_stats *stats, sl_error *err);                      // SL_ERR_IO when not all could be written

#endif
