// cli/bench/bench_masks.c - sleigh bench attn --phase masks: times prefill attention with random masks of several
// densities, and the making of masks, against dense attention of the same tokens.
//
// The time of attention with a mask is compared with the density times the time of dense attention. The time of a mask is
// compared with the time of dense attention.
#include "cli/bench/cmd_bench.h"

#ifdef SLEIGH_CUDA
#include "attention/attention_cuda.h"
#include "cli/bench/attn_timing.h"
#include "cli/io.h"
#include "cli/process.h"
#include "cli/output/print_json.h"
#include "cli/output/progress_bar.h"

#include <math.h>
#include <string.h>

enum { REPETITIONS = 20 };

static const int lengths[] = {32 << 10, 128 << 10};
static const double densities[] = {0.05, 0.1, 0.2, 0.4, 0.7, 1};
static const char *const masks[] = {"sample", "sample:chunk_n=4", "vertical-slash", "streaming"};
enum { N_LENGTHS = 2, N_DENSITIES = 6, N_MASKS = 4, N_OF_LENGTH = 1 + N_DENSITIES + N_MASKS, N_ROWS = N_LENGTHS * N_OF_LENGTH };

typedef struct row {
    int n_tokens;
    char what[48]; // "dense", "attention with a mask", or the method of a mask
    double density, us, mean_us, dense_us;
} row;

static double of_dense(const row *r) {
    return r->us / r->dense_us;
}
static double of_work(const row *r) { // NaN: not a time of attention with a mask
    return of_dense(r) / r->density;
}

static int time_mask(sl_bench_attn *bench, const char *method, int repetitions, row *r, sl_error *err) {
    sl_attn_spec spec;
    sl_bench_attn_time time;
    int rc = sl_attn_parse(method, &spec, err);
    if (!rc) rc = sl_bench_attn_mask(bench, &spec, r->n_tokens, repetitions, &time, err);
    snprintf(r->what, sizeof r->what, "mask of %s", method);
    if (!rc) r->us = time.us, r->mean_us = time.mean_us;
    return rc;
}

// Row i of a length.
static int time_in_length(sl_bench_attn *bench, int i, int repetitions, row *r, sl_error *err) {
    const sl_attn_spec spec = {.method = &sl_method_dense};
    sl_bench_attn_time time = {0};
    r->density = NAN;
    if (i > N_DENSITIES) return time_mask(bench, masks[i - N_DENSITIES - 1], repetitions, r, err);
    snprintf(r->what, sizeof r->what, i ? "attention with a mask" : "dense");
    int rc = i ? sl_bench_attn_masked(bench, r->n_tokens, densities[i - 1], repetitions, &r->density, &time, err)
               : sl_bench_attn_prefill(bench, &spec, r->n_tokens, 0, repetitions, &time, err);
    r->us = time.us, r->mean_us = time.mean_us;
    return rc;
}

static int time_row(sl_bench_attn *bench, int i, int repetitions, row *rows, sl_error *err) {
    int length = i / N_OF_LENGTH;
    row *r = &rows[i];
    *r = (row){.n_tokens = lengths[length]};
    int rc = time_in_length(bench, i % N_OF_LENGTH, repetitions, r, err);
    r->dense_us = rows[length * N_OF_LENGTH].us;
    return rc;
}

static json_t *row_json(const row *r) {
    return json_pack("{s:s, s:i, s:s, s:o, s:f, s:f, s:f, s:o}", "phase", "masks", "tokens", r->n_tokens, "what", r->what,
                     "density", cli_number(r->density), "us", r->us, "mean_us", r->mean_us, "of_dense", of_dense(r), "of_work",
                     cli_number(of_work(r)));
}

static int print_md(const row *r, int is_first, sl_error *err) {
    char density[16] = "", work[16] = "";
    int rc = !is_first
                 ? 0
                 : cli_printf(err, "\n| tokens | what | density | ms | mean ms | time / dense | time / (density x dense) |\n"
                                   "|---|---|---|---|---|---|---|\n");
    if (!isnan(r->density)) {
        snprintf(density, sizeof density, "%.1f%%", 100 * r->density);
        snprintf(work, sizeof work, "%.3f", of_work(r));
    }
    if (!rc)
        rc = cli_printf(err, "| %dk | %s | %s | %.3f | %.3f | %.2f%% | %s |\n", r->n_tokens >> 10, r->what, density,
                        r->us * 1e-3, r->mean_us * 1e-3, 100 * of_dense(r), work);
    return rc ? rc : cli_flush(err);
}

static int add_row(cli_rows *table, const row *r, const sl_bench_attn_device *device, sl_error *err) { // csv, jsonl
    json_t *item = row_json(r);
    json_object_set_new(item, "device", json_string(device->name));
    return cli_rows_add(table, item, err);
}

// is_partial: the rows are those before an error or an interrupt.
static int print_json(const row *rows, int n, const sl_bench_attn_device *device, int is_partial, sl_error *err) {
    json_t *list = json_array();
    for (int i = 0; i < n; i++) json_array_append_new(list, row_json(&rows[i]));
    return cli_print_json(json_pack("{s:s, s:b, s:o}", "device", device->name, "interrupted", is_partial, "rows", list),
                          JSON_INDENT(1), err);
}

// Fills rows [N_ROWS]. Rows of md, csv and jsonl are printed as soon as they are known; json is printed at the end.
static int time_all(sl_bench_attn *bench, const char *format, int repetitions, row *rows, sl_error *err) {
    sl_bench_attn_device device;
    cli_rows table = {.format = format};
    cli_progress progress;
    sl_error why;
    int n = 0, is_md = !strcmp(format, "md"), is_json = !strcmp(format, "json");
    int rc = sl_bench_attn_device_of(bench, &device, err);
    if (!rc && is_md) rc = cli_printf(err, "%s\n", device.name);
    if (!rc) cli_catch_interrupt(1);
    cli_progress_begin(&progress, "bench attn", "times");
    while (!rc && n < N_ROWS) {
        cli_progress_update(&progress, n, N_ROWS);
        rc = cli_interrupted() ? sl_fail(err, SL_ERR_IO, "interrupted; the table has %d rows of %d", n, N_ROWS)
                               : time_row(bench, n, repetitions, rows, err);
        if (!rc && is_md) rc = print_md(&rows[n], n == 0, err);
        if (!rc && !is_md && !is_json) rc = add_row(&table, &rows[n], &device, err);
        n += !rc;
    }
    cli_progress_end(&progress);
    if (!is_json || n == 0) return rc;
    int failed = print_json(rows, n, &device, rc != 0, rc ? &why : err);
    return rc ? rc : failed; // the first error is the reason
}

int cli_bench_masks(const cli_bench_flags *o, const sl_attn_geom *geom, sl_error *err) {
    const int most = lengths[N_LENGTHS - 1];
    sl_bench_attn_limits limits = {most / SL_PAGE,         1, most, o->run->attention.query_deviation,
                                   o->bench->query_spread, 0, NULL, SL_BF16};
    sl_bench_attn *bench = NULL;
    row rows[N_ROWS];
    int rc = sl_bench_attn_open(geom, &limits, &bench, err);
    if (!rc) rc = time_all(bench, o->output->format, o->bench->repetitions ? o->bench->repetitions : REPETITIONS, rows, err);
    sl_bench_attn_close(bench);
    return rc;
}

#endif
