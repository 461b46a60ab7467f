// cli/bench/cmd_bench_decode.c - sleigh bench decode: times the decoding of a batch with several methods, in the form of
// Table 3 of the SANTA paper. On a GPU it also times the parts of a step.
#include "cli/bench/cmd_bench.h"
#include "cli/output/rows.h"

#include <string.h>

static const cli_ints gpu_batches = {.at = {1, 4}, .n = 2}, gpu_depths = {.at = {512, 4096}, .n = 2};
static const cli_ints cpu_batches = {.at = {1}, .n = 1}, cpu_depths = {.at = {512}, .n = 1}; // a CPU prefills slowly
static const cli_ints n_gens = {.at = {32}, .n = 1};

static const cli_column all_columns[] = {
    {.title = "batch", .key = "batch"},
    {.title = "depth", .key = "depth"},
    {.title = "attention", .key = "attn"},
    {.title = "prefill s/batch", .key = "prefill_s", .digits = 2},
    {.title = "steps", .key = "n_gen"},
    {.title = "decode s/batch", .key = "decode_s", .digits = 3},
    {.title = "ms / output token", .key = "token_ms", .digits = 3},
    {.title = "speedup", .key = "speedup", .digits = 3},
    {.title = "step ms", .key = "step_ms", .digits = 3},
    {.title = "tok/s", .key = "tok_s", .digits = 1},
    {.title = "GB/s", .key = "gb_s", .digits = 1},
    {.title = "hot rows %", .key = "hot_hits", .digits = 1, .scale = 100},
    {.title = "rows over the bus", .key = "bus_rows", .digits = 0},
    {.title = "bytes over the bus", .key = "bus_bytes", .digits = 0},
    {.title = "% of peak", .key = "peak_share", .digits = 1, .scale = 100},
    {.title = "floor ms", .key = "floor_ms", .digits = 3},
    {.title = "scheduler %", .key = "scheduler_share", .digits = 2, .scale = 100},
    {.title = "linear ms", .key = "linear_ms", .digits = 3},
    {.title = "attention ms", .key = "attention_ms", .digits = 3},
    {.title = "rest ms", .key = "rest_ms", .digits = 3},
};

static int make_plan(cli_bench_plan *plan, const cli_bench_flags *o, sl_error *err) {
    const cli_ints *steps = o->bench->n_gens.n ? &o->bench->n_gens : &n_gens;
    int on_gpu = sl_device_is_gpu(o->run->device.name);
    *plan = (cli_bench_plan){.batches = o->bench->batches.n ? o->bench->batches
                                        : on_gpu            ? gpu_batches
                                                            : cpu_batches,
                             .depths = o->bench->depths.n ? o->bench->depths
                                       : on_gpu           ? gpu_depths
                                                          : cpu_depths,
                             .repetitions = o->bench->repetitions ? o->bench->repetitions : 1,
                             .parts = 1};
    if (o->bench->n_prompts.n || o->bench->pairs.n)
        return sl_fail(err, SL_ERR_ARG, "bench decode: flag %s belongs to `sleigh bench` without a subject",
                       o->bench->pairs.n ? "--prompt-gen" : "--n-prompt");
    for (int i = 0; i < steps->n; i++) {
        if (steps->at[i] == 0) return sl_fail(err, SL_ERR_ARG, "--steps 0: expected a whole number, 1 or more");
        plan->tests[plan->n_tests++].n_gen = steps->at[i];
    }
    return 0;
}

int cmd_bench_decode(const cli_bench_flags *o, sl_error *err) {
    cli_bench_plan plan;
    int rc = make_plan(&plan, o, err);
    cli_column columns[sizeof all_columns / sizeof *all_columns];
    memcpy(columns, all_columns, sizeof columns);
    for (size_t i = 0; i < sizeof columns / sizeof *columns; i++)
        columns[i].hidden = (!strncmp(columns[i].key, "bus_", 4) || !strcmp(columns[i].key, "hot_hits")) &&
                            !strcmp(o->run->device.kv_cache, "gpu");
    return rc ? rc : cli_bench_print(o, &plan, columns, sizeof columns / sizeof *columns, err);
}
