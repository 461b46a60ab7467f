// cli/output/stats.h - the file of --stats: one JSON line per decode step, layer and query head, for the method that
// decodes and for each shadow method (--stats-attn); and one line per segment, layer and query head of a sparse prefill.
#ifndef SLEIGH_STATS_H
#define SLEIGH_STATS_H

#include "cli/options/options.h"
#include "engine/engine.h"

#include <stdio.h>

typedef struct cli_stats {
    const char *path;
    FILE *file;            // NULL: no --stats
    int error;             // errno of the first failed write
    sl_attn_spec *shadows; // --stats-attn
    int n_shadows, n_seeds, with_error;
} cli_stats;

// Opens the file of --stats; without --stats, *stats is empty. SL_ERR_ARG: another --stats-* flag is given without --stats.
int cli_stats_open(cli_stats *stats, const cli_stats_options *o, sl_error *err);
int cli_stats_observe(cli_stats *stats, sl_engine *engine, sl_error *err); // the engine keeps a pointer to *stats
void cli_stats_prefill(cli_stats *stats, const sl_prefill_record *record); // nothing without --stats
int cli_stats_check(const cli_stats *stats, sl_error *err);                // SL_ERR_IO: a write failed
int cli_stats_close(cli_stats *stats, sl_error *err);                      // SL_ERR_IO: a write failed

#endif
