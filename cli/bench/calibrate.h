// cli/bench/calibrate.h - measures the table from which --attn=auto and --attn-prefill=auto choose (attention/auto.h):
// for `sleigh bench attn --calibrate`, and with fewer sizes at the first use of auto on a GPU (attn_auto.h).
//
// calibrate.c owns the sizes, the methods and the output. A clock measures the time: calibrate_gpu.h on a GPU, calibrate_host.h
// on the CPU. Both clocks call the functions that the engine calls, for one layer.
#ifndef SLEIGH_CALIBRATE_H
#define SLEIGH_CALIBRATE_H

#include "attention/attention.h"
#include "attention/auto.h"
#include "cli/commands.h"

typedef struct cli_clock {
    // Median microseconds of a decode step of one layer, with n_seqs sequences of n_kv rows. NaN: not possible with this
    // method.
    int (*time)(void *ctx, const sl_attn_spec *spec, int n_seqs, int n_kv, double *us, sl_error *err);
    void *ctx;
    // Fills the three times of *length: dense attention of its tokens, a mask of them by spec, and attention with a random mask
    // of this density.
    int (*prefill)(void *ctx, const sl_attn_spec *spec, double density, sl_auto_length *length, sl_error *err);
} cli_clock;

// Decoding: every number of sequences with every number of rows, up to most_rows rows of all sequences together. Prefill: every
// number of tokens up to most_tokens; 0 tokens are no size.
typedef struct cli_grid {
    cli_ints n_seqs, n_kv;
    int most_rows;
    cli_ints n_tokens;
    int most_tokens;
} cli_grid;

// Times table->specs and table->prefill.attn over the grid, and fills table->points and table->prefill.lengths. Without a size
// of prefill, table->prefill.attn.method becomes NULL. SL_ERR_ARG: the grid has no points or too many.
int cli_calibrate(const cli_clock *clock, const cli_grid *grid, sl_auto_table *table, sl_error *err);

// Fills everything but the times: the device that `device` (a value of --device, not auto) names, today's date, the candidates
// that this device and shape offer, and the method and density for prefill (both by default). The caller frees *out.
// SL_ERR_DEVICE: there is no such device.
int cli_calibration_begin(const char *device, const sl_attn_geom *geom, double query_deviation, sl_auto_table *out,
                          sl_error *err);
// Times table->specs and table->prefill.attn on the GPU `device` over some sizes. Announces the work in a line on stderr:
// `reason`, the number of methods, and about how many seconds it takes. If the memory of the GPU is small, the largest sizes
// are left out.
int cli_calibrate_gpu(const char *device, const char *reason, sl_auto_table *table, sl_error *err);
// The part of cli_calibrate_gpu after the clock was made. Measures the largest size twice first, to estimate the seconds.
int cli_calibrate_announced(const cli_clock *clock, const cli_grid *grid, const char *reason, sl_auto_table *table,
                            sl_error *err);

// The shape of one layer's attention in the model of --model; without a model, of Llama-3.1-8B.
int cli_geometry_of(const cli_model_options *o, sl_attn_geom *geom, sl_error *err);
// SL_ERR_UNSUPPORTED: the device does not offer decoding with this method for this shape.
int cli_decode_offered(const sl_attn_spec *spec, const sl_attn_geom *geom, int on_gpu, sl_error *err);

int cmd_calibrate(const cli_bench_flags *o, sl_error *err);

#endif
