// cli/bench/bench_cost.h - what a plan of `sleigh bench` costs before it runs: operations of its prefills, bytes of its
// decode steps, and the line that announces a long run.
#ifndef SLEIGH_BENCH_COST_H
#define SLEIGH_BENCH_COST_H

#include "cli/bench/bench.h"
#include "cli/output/progress_line.h"

// Depth of session j in a batch of n: `depth`, or with --ragged evenly spaced odd depths.
int cli_bench_depth(const cli_bench_options *o, int depth, int n, int j);
// Bytes that a dense step reads: the weights, and n_rows rows of the KV cache.
double cli_bench_step_bytes(const sl_model *model, sl_kv_formats formats, double n_rows);

typedef struct cli_bench_cost {
    double prefill, steps; // operations; bytes
    double fill;           // the part of `prefill` that fills the caches of sequences after the first: --copy avoids it
} cli_bench_cost;

// formats: of the KV cache. n_extra: passes of each test without a prefill, besides its repetitions (steps without parts).
// held: [largest batch], zeros.
void cli_bench_cost_of(const sl_model *model, sl_kv_formats formats, const cli_bench_options *o, const cli_bench_plan *plan,
                       int n_methods, int n_extra, int *held, cli_bench_cost *out);

// The line about a run of so many milliseconds; "": the run is short. copy_ms: the time that --copy saves.
void cli_bench_announce(double prefill_ms, double steps_ms, double copy_ms, int on_gpu, char *buf, size_t size);

#endif
