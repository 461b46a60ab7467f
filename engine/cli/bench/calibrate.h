// engine/cli/bench/calibrate.h - sleigh bench attn --calibrate: the table that --attn=auto chooses by (attention/auto.h).
//
// calibrate.c owns what is timed and what is written; a clock owns the time: the GPU's is engine/cli/bench/attn_timing.h, the
// host's calibrate_host.c. Both call the very functions that the engine calls, for one layer.
#ifndef SLEIGH_CALIBRATE_H
#define SLEIGH_CALIBRATE_H

#include "attention/attention.h"
#include "attention/auto.h"
#include "engine/cli/options.h"

typedef struct cli_clock {
    // Median microseconds of one layer's decode step of n_seqs sequences of n_kv rows; NaN: the method has no such size.
    int (*time)(void *ctx, const sl_attn_spec *spec, int n_seqs, int n_kv, double *us, sl_error *err);
    void *ctx;
} cli_clock;

// Every number of sequences with every number of rows, but for those of more than most_rows together.
typedef struct cli_grid {
    cli_ints n_seqs, n_kv;
    int most_rows;
} cli_grid;

// Times table->specs over the grid, into table->points. SL_ERR_ARG for a grid of no or too many points.
int cli_calibrate(const cli_clock *clock, const cli_grid *grid, sl_auto_table *table, sl_error *err);

int cmd_calibrate(const cli_options *o, sl_error *err);

#endif
