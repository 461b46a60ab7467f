// engine/cli/bench/calibrate.h - sleigh bench attn --calibrate: measures the table from which --attn=auto chooses
// (attention/auto.h).
//
// calibrate.c owns the sizes, the methods and the output. A clock measures the time: attn_timing.h on a GPU, calibrate_host.h
// on the CPU. Both clocks call the functions that the engine calls, for one layer.
#ifndef SLEIGH_CALIBRATE_H
#define SLEIGH_CALIBRATE_H

#include "attention/attention.h"
#include "attention/auto.h"
#include "engine/cli/options.h"

typedef struct cli_clock {
    // Median microseconds of a decode step of one layer, with n_seqs sequences of n_kv rows. NaN: not possible with this
    // method.
    int (*time)(void *ctx, const sl_attn_spec *spec, int n_seqs, int n_kv, double *us, sl_error *err);
    void *ctx;
} cli_clock;

// Every number of sequences with every number of rows, up to most_rows rows of all sequences together.
typedef struct cli_grid {
    cli_ints n_seqs, n_kv;
    int most_rows;
} cli_grid;

// Times table->specs over the grid and fills table->points. SL_ERR_ARG: the grid has no points or too many.
int cli_calibrate(const cli_clock *clock, const cli_grid *grid, sl_auto_table *table, sl_error *err);

int cmd_calibrate(const cli_options *o, sl_error *err);

#endif
