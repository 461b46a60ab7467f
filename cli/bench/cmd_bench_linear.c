// cli/bench/cmd_bench_linear.c - sleigh bench linear: times only the matrices of a decode step, and compares them with the time
// that reading their bytes takes.
//
// The engine runs the matrices (sl_run_linear), so that they are the operations of a step. This file owns the clock and the
// table. On a GPU the clock is that of events in the stream of the steps, otherwise sl_now_ms.
#include "cli/bench/cmd_bench.h"
#include "cli/io.h"
#include "cli/output/progress_bar.h"
#include "cli/output/summary.h"
#include "cli/process.h"
#include "cli/watch.h"
#include "backend/backend.h"

#ifdef SLEIGH_CUDA
#include "backend/cuda/cuda_error.h"
#endif

enum { LAYERS, HEAD, N_PARTS, REPETITIONS = 20, UNTIMED = 3 }; // the first passes load kernels and make recordings

static const char *const part_names[N_PARTS] = {"layers", "output head"};

// ---- the clock: marks before, between and after the parts ----

typedef struct stopwatch {
    int n; // marks of this pass
    double at_ms[N_PARTS + 1];
#ifdef SLEIGH_CUDA
    cudaEvent_t events[N_PARTS + 1]; // made at their first mark, when the device of the stream is the current one
    cudaError_t failed;
#endif
} stopwatch;

static void mark(void *ctx, void *stream) {
    stopwatch *w = ctx;
    int i = w->n++;
#ifdef SLEIGH_CUDA
    if (stream && !w->failed && !w->events[i]) w->failed = cudaEventCreate(&w->events[i]);
    if (stream && !w->failed) w->failed = cudaEventRecord(w->events[i], stream);
#endif
    if (!stream) w->at_ms[i] = sl_now_ms();
}

// The milliseconds of each part. Call it after the device has finished.
static int read_clock(stopwatch *w, int on_gpu, double ms[N_PARTS], sl_error *err) {
    for (int i = 0; i < N_PARTS; i++) ms[i] = w->at_ms[i + 1] - w->at_ms[i];
    w->n = 0;
#ifdef SLEIGH_CUDA
    for (int i = 0; on_gpu && i < N_PARTS; i++) {
        float part = 0;
        if (!w->failed) w->failed = cudaEventElapsedTime(&part, w->events[i], w->events[i + 1]);
        ms[i] = part;
    }
    return sl_cuda_check(w->failed, "the times of matrices", err);
#else
    (void)on_gpu, (void)err;
    return 0;
#endif
}

static void free_clock(stopwatch *w) {
#ifdef SLEIGH_CUDA
    for (int i = 0; i <= N_PARTS; i++)
        if (w->events[i]) cudaEventDestroy(w->events[i]);
#else
    (void)w;
#endif
}

// ---- one number of rows ----

// Median milliseconds of each part of a step of n rows.
static int time_parts(cli_bench *b, int n, stopwatch *w, double ms[N_PARTS], sl_error *err) {
    int runs = b->plan->repetitions, rc = 0;
    double all[N_PARTS][runs], pass[N_PARTS];
    for (int run = -UNTIMED; !rc && run < runs; run++) {
        rc = sl_run_linear(b->sessions, n, mark, w, err);
        if (!rc) rc = read_clock(w, sl_device_is_gpu(b->device), pass, err);
        for (int i = 0; !rc && run >= 0 && i < N_PARTS; i++) all[i][run] = pass[i];
        if (!rc && cli_interrupted()) rc = sl_fail(err, SL_ERR_IO, "interrupted");
    }
    for (int i = 0; !rc && i < N_PARTS; i++) ms[i] = cli_median(all[i], runs);
    return rc;
}

static json_t *row_json(const cli_bench *b, int n, int part, double ms, size_t bytes) {
    int sm_mhz = 0, memory_mhz = 0;
    double floor_ms = (double)bytes / b->peak_gb_s * 1e-6;
    cli_meter_clocks(&b->meter, &sm_mhz, &memory_mhz);
    json_t *row = cli_bench_source_json(b, sm_mhz, memory_mhz),
           *figures = json_pack("{s:i, s:s, s:i, s:o, s:f, s:o, s:o, s:o}", "rows", n, "part", part_names[part], "repetitions",
                                b->plan->repetitions, "ms", cli_number(ms), "bytes", (double)bytes, "peak_gb_s",
                                cli_number(b->peak_gb_s), "floor_ms", cli_number(floor_ms), "ratio", cli_number(ms / floor_ms));
    if (row) json_object_update(row, figures);
    json_decref(figures);
    return row;
}

// ---- all rows ----

static int run_all(cli_bench *b, cli_rows *rows, sl_error *err) {
    const cli_ints *batches = &b->plan->batches;
    stopwatch w = {0};
    size_t bytes[N_PARTS];
    int rc = 0;
    cli_progress progress;
    sl_engine_linear_bytes(b->engine, &bytes[LAYERS], &bytes[HEAD]);
    for (int j = 0; !rc && j < b->max_batch; j++) rc = sl_session_new(b->engine, (uint32_t)j, &b->sessions[j], err);
    if (!rc && sl_device_is_gpu(b->device)) rc = sl_engine_skip_parts(b->engine, SL_PART_REST, err);
    cli_progress_begin(&progress, "bench linear", "numbers of rows");
    for (int k = 0; !rc && k < batches->n; k++) {
        double ms[N_PARTS];
        rc = time_parts(b, batches->at[k], &w, ms, err);
        for (int i = 0; !rc && i < N_PARTS; i++) rc = cli_rows_add(rows, row_json(b, batches->at[k], i, ms[i], bytes[i]), err);
        cli_progress_update(&progress, k + 1, batches->n);
    }
    cli_progress_end(&progress);
    free_clock(&w);
    return rc;
}

static int check_flags(const cli_bench_flags *o, sl_error *err) {
    static const char *const others[] = {"--attn", "--n-prompt", "--steps", "--prompt-gen", "--depth",    "--ragged", "--copy",
                                         "--fill", "--phase",    "--plot",  "--hot-hits",   "--kv-cache", "--states", NULL};
    const char *other = cli_given_flag(o->given, others);
    return other ? sl_fail(err, SL_ERR_ARG, "bench linear: expected no flag %s", other) : 0;
}

int cmd_bench_linear(const cli_bench_flags *o, sl_error *err) {
    static const cli_column columns[] = {
        {.title = "rows", .key = "rows"},
        {.title = "part", .key = "part"},
        {.title = "ms", .key = "ms", .digits = 3},
        {.title = "GB", .key = "bytes", .digits = 3, .scale = 1e-9},
        {.title = "floor ms", .key = "floor_ms", .digits = 3},
        {.title = "time / floor", .key = "ratio", .digits = 2},
    };
    const cli_bench_plan plan = {.batches = o->bench->batches.n ? o->bench->batches : (cli_ints){.at = {1}, .n = 1},
                                 .depths = {.at = {0}, .n = 1},
                                 .tests = {{.n_gen = 1}},
                                 .n_tests = 1,
                                 .repetitions = o->bench->repetitions ? o->bench->repetitions : REPETITIONS};
    cli_bench b;
    cli_rows rows = {
        .format = o->output->format, .columns = columns, .n_columns = sizeof columns / sizeof *columns, .model = &b.name};
    int rc = check_flags(o, err);
    if (rc) return rc;
    rc = cli_bench_open(&b, o, &plan, err);
    if (!rc) {
        rc = run_all(&b, &rows, err);
        int ended = cli_rows_end(&rows, rc ? NULL : err); // also after an error, so that the JSON parses
        if (!rc) rc = ended ? ended : cli_flush(err);
    }
    cli_bench_close(&b);
    return rc;
}
