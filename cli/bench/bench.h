// cli/bench/bench.h - the measurements of `sleigh bench` and `bench decode`: tests of a model at depths of its KV cache.
//
// A test is a prefill of n_prompt tokens (pp512), n_gen decode steps (tg128), or both in a row (pp512+tg128), for a batch of
// sequences at a depth. Each sequence has different random ids, from --seed. Its cache is filled once: depths rise, each depth
// continues the previous one, and each test ends with a cut back to its depth. A test that decodes runs with each method. A
// test that only prefills runs once, because prefill is always dense. Methods take turns in each repetition, so that a change
// of the machine's speed affects all methods equally.
//
// Prefills and decode steps run on the scheduler, as those of the server do: a sequence is a job that continues a session. What
// fills the caches before a test runs on the engine. Decoding is greedy and never generates an end token. The first step is not
// timed. The time of a step is the time between two returns of sl_scheduler_step. On a GPU, this function returns while its
// step still runs, but this time is that of a whole step too.
#ifndef SLEIGH_BENCH_H
#define SLEIGH_BENCH_H

#include "cli/attn/attn_list.h"
#include "cli/bench/meter.h"
#include "cli/commands.h"
#include "cli/output/progress_bar.h"
#include "cli/output/rows.h"
#include "cli/run/run.h"
#include "engine/schedule/scheduler.h"
#include "models/config.h"

#include <jansson.h>

enum { CLI_MAX_TESTS = 512 };

typedef struct cli_bench_test {
    int n_prompt, n_gen; // one of them may be 0
} cli_bench_test;

typedef struct cli_bench_plan {
    cli_ints batches, depths;
    cli_bench_test tests[CLI_MAX_TESTS];
    int n_tests, repetitions;
    int parts; // 1: on a GPU, also time steps without attention and without the rest
} cli_bench_plan;

typedef struct cli_bench_row {
    cli_bench_test test;
    int batch, depth;
    const char *attn;
    // NaN: the figure does not apply or is not available
    double ms, ms_sd, ms_median;             // time of a whole test, over repetitions
    double tok_s, tok_s_sd, tok_s_median;    // tokens of the whole batch per second, over repetitions
    double prefill_ms, decode_ms;            // prefill of all sequences to the depth; all timed steps, mean over repetitions
    double step_ms;                          // time between two tokens of one sequence, median over steps
    double step_ms_low, step_ms_high;        // 10% and 90% of the steps are below
    double token_ms;                         // decode time / (steps x batch); tpot_ms of the SANTA authors
    double speedup;                          // token_ms of the first method / token_ms
    double kv_bytes, gb_s, peak_share;       // bytes of K, V and page extras per step; GB/s with the weights; gb_s / peak
    double joules;                           // per token
    double scheduler_ms, scheduler_share;    // of a step: the scheduler's own time; this time / the time of the step
    double linear_ms, attention_ms, rest_ms; // parts of a step; they overlap, so their sum is not step_ms
    int sm_mhz, memory_mhz;                  // clocks of a GPU at the end of a test; 0: unknown
    sl_attn_stats read;                      // of the timed steps of one repetition
    uint64_t logits;                         // hash of the last logits of the first sequence
} cli_bench_row;

typedef struct cli_bench_job {
    struct cli_bench *bench;
    sl_job *job; // NULL: none runs
    int n_done;  // tokens whose prefill the progress shows
    double ms;   // time of their prefill
} cli_bench_job;

typedef struct cli_bench {
    const cli_bench_flags *o;
    const cli_bench_plan *plan;
    const char *device;
    sl_model *model;
    sl_engine *engine;
    cli_attn_list attn;
    cli_auto attn_auto;
    cli_meter meter;
    double (*now)(void); // sl_now_ms, or the clock of a test; the warm-up uses sl_now_ms
    cli_model_name name;
    char backend[256];       // description of the backend
    sl_kv_formats formats;   // of the KV cache
    double peak_gb_s;        // memory rate; NaN: unknown
    cli_work prefill, steps; // of the whole run: operations of prefills, bytes that decode steps read
    cli_progress progress;
    int max_batch;
    sl_ids *prompts;       // [max_batch] ids, enough for the longest test
    sl_session **sessions; // [max_batch], the deepest first; NULL: not open
    int *held;             // [max_batch] prompt tokens in a session at the start of a test
    double *fill_ms;       // [max_batch] prefill time of these tokens
    sl_session **batch;    // [max_batch] sessions of the timed batch, the deepest last
    sl_scheduler *scheduler;
    cli_bench_job *jobs; // [max_batch]
    sl_logit_bias no_end[SL_MAX_EOS];
    sl_sampling greedy; // without end tokens
    double *step_ms;    // [methods][repetitions][n_gen]
    double *run_ms;     // [methods][repetitions]
} cli_bench;

// Loads the model, opens an engine for the plan, and measures the memory rate if --memory-rate does not give it. `plan` must
// outlive *b. Close *b also after an error.
int cli_bench_open(cli_bench *b, const cli_bench_flags *o, const cli_bench_plan *plan, sl_error *err);
void cli_bench_close(cli_bench *b);
// Runs every combination, nested in the order depth, batch, test, method. A non-zero return of fn stops the run.
typedef int (*cli_bench_fn)(void *ctx, const cli_bench_row *row, sl_error *err);
int cli_bench_run(cli_bench *b, cli_bench_fn fn, void *ctx, sl_error *err);
// All fields of a row, with the settings of the measurement, but without the model's.
json_t *cli_bench_json(const cli_bench *b, const cli_bench_row *row);
// Its first fields: the program and the device, with the clocks of a GPU (0: unknown).
json_t *cli_bench_source_json(const cli_bench *b, int sm_mhz, int memory_mhz);

#endif
