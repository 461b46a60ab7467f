// cli/bench/calibrate_host.h - the CPU clock of the calibration: times a decode step of one layer's attention,
// and its prefill.
//
// Keys, values and queries are normal numbers, or those of a model (attn_states.h). All calls of a measurement use the same
// state.
#ifndef SLEIGH_CALIBRATE_HOST_H
#define SLEIGH_CALIBRATE_HOST_H

#include "attention/attention.h"
#include "attention/auto.h"
#include "cli/bench/attn_states.h"

typedef struct cli_host_clock cli_host_clock;

// n_pages: pages of the largest step or prefill.
int cli_host_clock_open(const sl_attn_geom *geom, int n_pages, double query_deviation, int n_threads, int repetitions,
                        cli_host_clock **out, sl_error *err);
// The clock takes the first rows of the states in place of normal numbers, and the last query. The states have the clock's
// shape, and as many rows as every step that is timed.
void cli_host_clock_use(cli_host_clock *clock, const cli_attn_states *states);
int cli_host_clock_time(void *host_clock, const sl_attn_spec *spec, int n_seqs, int n_kv, double *us, sl_error *err);
int cli_host_clock_prefill(void *host_clock, const sl_attn_spec *spec, double density, sl_auto_length *length, sl_error *err);
void cli_host_clock_close(cli_host_clock *clock);

#endif
