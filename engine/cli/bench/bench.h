// engine/cli/bench/bench.h - the measuring core of `sleigh bench` and `bench decode`: tests of a model at depths of its KV
// cache.
//
// A test is a prefill of n_prompt tokens (pp512), n_gen decode steps (tg128), or one after the other (pp512+tg128), of a batch
// whose sequences begin at a depth. Every sequence has its own random ids, from --seed. Its cache is filled once: depths go
// upwards, each continues the one before, and after a test the sequence is cut back to its depth. Tests that decode are made
// with every method, those that only prefill once: prefill is dense whatever decodes. Methods take turns, repetition by
// repetition, so that a machine whose speed drifts treats them alike.
//
// Decoding is greedy, never to an end token. One step that is not timed comes before those that are. A step's time is that
// between two returns of sl_step: on a GPU, where it returns while its step still runs, that is a whole step as well.
#ifndef SLEIGH_BENCH_H
#define SLEIGH_BENCH_H

#include "engine/cli/attn_list.h"
#include "engine/cli/bench/meter.h"
#include "engine/cli/output/rows.h"
#include "engine/cli/run.h"

#include <jansson.h>

enum { CLI_MAX_TESTS = 512 };

typedef struct cli_bench_test {
    int n_prompt, n_gen; // one of them may be 0
} cli_bench_test;

typedef struct cli_bench_plan {
    cli_ints batches, depths;
    cli_bench_test tests[CLI_MAX_TESTS];
    int n_tests, repetitions;
    int parts; // on a GPU also time steps without their linear layers, without attention, without the rest
} cli_bench_plan;

typedef struct cli_bench_row {
    cli_bench_test test;
    int batch, depth;
    const char *attn;
    // NaN where a figure does not apply or is not to be had
    double ms, ms_sd, ms_median;             // a whole test, over repetitions
    double tok_s, tok_s_sd, tok_s_median;    // tokens of the whole batch, over repetitions
    double prefill_ms, decode_ms;            // means: of the sequences' prefills to the depth; of all timed steps together
    double step_ms;                          // median over steps: the time between two tokens of one sequence
    double token_ms;                         // decode time / (steps x batch): the SANTA authors' tpot_ms
    double speedup;                          // the first method's token_ms to this one's
    double kv_bytes, gb_s, peak_share;       // K, V and page extras a step; with the weights, per second; of the peak
    double joules;                           // per token
    double linear_ms, attention_ms, rest_ms; // parts; they overlap: their sum is not step_ms
    int sm_mhz, memory_mhz;                  // of a GPU, at the end; 0: absent
    uint64_t logits;                         // hash of the first sequence's last logits
} cli_bench_row;

typedef struct cli_bench {
    const cli_options *o;
    const cli_bench_plan *plan;
    const char *device;
    sl_model *model;
    sl_engine *engine;
    cli_attn_list attn;
    cli_auto choose;
    cli_meter meter;
    char backend[256]; // what runs
    double peak_gb_s;  // of memory; NaN: not measured
    int max_batch;
    sl_ids *prompts;       // [max_batch] each of the deepest test's tokens
    sl_session **sessions; // [max_batch], the deepest first; NULL: not there yet
    int *held;             // [max_batch] tokens of its prompt that a session began a test with
    double *fill_ms;       // [max_batch] what prefilling these took
    sl_session **batch;    // [max_batch] the batch that is timed, the deepest last
    sl_sampler **samplers; // [max_batch]
    int32_t *ids;          // [max_batch]
    double *step_ms;       // [methods][repetitions][n_gen]
    double *run_ms;        // [methods][repetitions]
} cli_bench;

// The name of a test as llama-bench has it: "pp512", "tg128 @ d32768".
void cli_bench_name(const cli_bench_row *row, char buf[64]);

// Loads the model, opens an engine that holds the plan, and measures its memory's rate if --memory-rate does not say it.
// plan must outlive *b. Close it after an error too.
int cli_bench_open(cli_bench *b, const cli_options *o, const cli_bench_plan *plan, sl_error *err);
void cli_bench_close(cli_bench *b);
// Every combination: depth by depth, within it batch by batch, test by test, method by method. A non-zero return of fn stops.
typedef int (*cli_bench_fn)(void *ctx, const cli_bench_row *row, sl_error *err);
int cli_bench_run(cli_bench *b, cli_bench_fn fn, void *ctx, sl_error *err);
// All that is known of a row, what it was measured with included.
json_t *cli_bench_json(const cli_bench *b, const cli_bench_row *row);

#endif
