// cli/bench/cmd_bench.h - the subjects of `sleigh bench [SUBJECT]`; cmd_bench.c chooses among them.
#ifndef SLEIGH_CMD_BENCH_H
#define SLEIGH_CMD_BENCH_H

#include "cli/bench/bench.h"
#include "cli/output/rows.h"

int cmd_bench_model(const cli_bench_flags *o, sl_error *err);  // without a subject: the speed of a model
int cmd_bench_decode(const cli_bench_flags *o, sl_error *err); // decode steps of a batch
int cmd_bench_draft(const cli_bench_flags *o, sl_error *err);  // passes that verify drafts, and texts with drafts
int cmd_bench_attn(const cli_bench_flags *o, sl_error *err);   // attention kernels of a GPU
int cmd_bench_linear(const cli_bench_flags *o, sl_error *err); // the matrices of a decode step

// bench attn --phase masks: prefill with masks, for heads of this shape (bench_masks.c). Only in a build with CUDA.
struct sl_attn_geom;
int cli_bench_masks(const cli_bench_flags *o, const struct sl_attn_geom *geom, sl_error *err);

// Measures the plan, prints its rows with these columns and draws --plot (cmd_bench_model.c).
int cli_bench_print(const cli_bench_flags *o, const cli_bench_plan *plan, const cli_column *columns, int n_columns,
                    sl_error *err);

#endif
