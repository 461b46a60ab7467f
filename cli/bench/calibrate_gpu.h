// cli/bench/calibrate_gpu.h - the GPU clock of the calibration: times a decode step of one layer's attention, and its prefill,
// with the functions of attn_timing.h. In a build without CUDA, only cli_gpu_clock_open does something: it fails.
#ifndef SLEIGH_CALIBRATE_GPU_H
#define SLEIGH_CALIBRATE_GPU_H

#include "attention/auto.h"
#include "cli/bench/attn_states.h"

typedef struct cli_gpu_clock cli_gpu_clock;

typedef struct cli_gpu_sizes {
    int n_pages, n_seqs, n_tokens; // pages and sequences of the largest step, tokens of the largest prefill
    double query_deviation;
    const cli_attn_states *states; // NULL: normal numbers. Otherwise every sequence has its rows
    int repetitions;
} cli_gpu_sizes;

// device: a value of --device. SL_ERR_DEVICE: there is no such GPU. SL_ERR_MEMORY: its memory is too small.
int cli_gpu_clock_open(const char *device, const sl_attn_geom *geom, const cli_gpu_sizes *sizes, cli_gpu_clock **out,
                       sl_error *err);
// The two functions of a cli_clock (calibrate.h). us: NaN where the method does not offer so many rows.
int cli_gpu_clock_time(void *gpu_clock, const sl_attn_spec *spec, int n_seqs, int n_kv, double *us, sl_error *err);
int cli_gpu_clock_prefill(void *gpu_clock, const sl_attn_spec *spec, double density, sl_auto_length *length, sl_error *err);
void cli_gpu_clock_close(cli_gpu_clock *clock);

#endif
