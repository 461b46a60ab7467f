// cli/bench/cliffs.h - finds cliffs in the times of a decode step of one layer's attention: cells where a method takes clearly
// longer than dense attention, and places where more rows or more sequences take less time.
//
// A cell is a method with a value of its size parameter, at a number of sequences and of rows, on one kind of attention.
// cliffs.c owns the order of the measurements and the rules. cmd_cliffs.c owns the methods, the clocks and the tables.
#ifndef SLEIGH_CLIFFS_H
#define SLEIGH_CLIFFS_H

#include "cli/attn/attn_list.h"
#include "cli/bench/calibrate.h"

#define CLI_CLIFF_SLOW 1.1  // a cell is slow above so many times dense attention
#define CLI_CLIFF_LESS 0.95 // more rows or sequences take less time below this share: medians vary by a few percent
enum { CLI_CLIFF_KINDS = 3, CLI_CLIFF_PASSES = 2 };

typedef struct cli_cliff_kind {
    char name[48];
    double query_deviation; // NaN: the states of a model
} cli_cliff_kind;

typedef struct cli_cliffs {
    cli_cliff_kind kinds[CLI_CLIFF_KINDS];
    int n_kinds;
    cli_attn_list methods; // the first one is dense
    cli_ints n_seqs, n_kv; // ascending, each once
    int most_rows;         // of all sequences of a cell together
    double *us;            // [n_kinds][methods.n][n_seqs.n][n_kv.n]; NaN: not measured
    int n_timed;           // measurements
} cli_cliffs;

typedef struct cli_cliff_cell {
    int kind, method, seqs, rows; // indices
} cli_cliff_cell;

// Sorts the axes, and makes room for the times. SL_ERR_ARG: a cell has no rows, or no cell fits into most_rows.
int cli_cliffs_open(cli_cliffs *c, sl_error *err);
void cli_cliffs_free(cli_cliffs *c); // with the methods
int cli_cliffs_fits(const cli_cliffs *c, int seqs, int rows);
double *cli_cliffs_us(const cli_cliffs *c, cli_cliff_cell x);

// Times the cells of a kind until the seconds have passed: first every second value of each axis (with the ends), then the
// others. Each part is timed CLI_CLIFF_PASSES times, and a cell keeps the smallest of its medians, because other work on the
// machine only adds time. The dense cell of each size comes first.
int cli_cliffs_time(cli_cliffs *c, int kind, const cli_clock *clock, double seconds, sl_error *err);

// The time of a cell as a share of another one; NaN: one of them was not measured.
double cli_cliffs_of_dense(const cli_cliffs *c, cli_cliff_cell x);
// Against the next smaller number of rows or sequences that was measured; NaN also: there is none. *smaller: that cell
double cli_cliffs_of_fewer_rows(const cli_cliffs *c, cli_cliff_cell x, cli_cliff_cell *smaller);
double cli_cliffs_of_fewer_seqs(const cli_cliffs *c, cli_cliff_cell x, cli_cliff_cell *smaller);
int cli_cliffs_is_slow(double of_dense);
int cli_cliffs_is_drop(double of_fewer);

int cmd_cliffs(const cli_bench_flags *o, sl_error *err); // bench attn --cliffs (cmd_cliffs.c)

#endif
