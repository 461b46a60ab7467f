// engine/cli/bench/bench_masks.c - sleigh bench attn --phase masks: times prefill attention with random masks of several
// densities, the making of masks, and attention with the rule of `threshold`, against dense attention of the same tokens.
//
// The time of attention with a mask is compared with the density times the time of dense attention. The time of a mask is
// compared with the time of dense attention. `threshold` computes all scores, so its rows are a list apart: its time is
// compared with (1 + density) / 2 times the time of dense attention.
#include "engine/cli/bench/cmd_bench.h"

#ifdef SLEIGH_CUDA
#include "attention/attention_cuda.h"
#include "engine/cli/bench/attn_timing.h"
#include "engine/cli/io.h"
#include "engine/cli/output/print_json.h"
#include "engine/cli/output/progress_bar.h"

#include <math.h>
#include <string.h>

enum { REPETITIONS = 20 };

static const int lengths[] = {32 << 10, 128 << 10};
static const double densities[] = {0.05, 0.1, 0.2, 0.4, 0.7, 1};
static const char *const masks[] = {"sample", "sample:chunk_n=4", "vertical-slash", "xattention", "streaming"};
enum {
    N_LENGTHS = 2,
    N_DENSITIES = 6,
    N_MASKS = 5,
    N_OF_LENGTH = 1 + 2 * N_DENSITIES + N_MASKS,
    N_ROWS = N_LENGTHS * N_OF_LENGTH
};

// Keys are normal numbers or 0. At the default deviation of queries, lambda lies between the two: blocks of zeros are skipped.
static const char rule[] = "threshold:lambda=0.0025";

typedef struct row {
    int n_tokens, is_rule;
    char what[48]; // "dense", "attention with a mask", the method of a mask, or `rule`
    double density, us, mean_us, dense_us;
} row;

static double of_dense(const row *r) {
    return r->us / r->dense_us;
}
static double of_work(const row *r) { // NaN: not a time of attention with a mask or a rule
    return of_dense(r) / (r->is_rule ? (1 + r->density) / 2 : r->density);
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

static int time_rule(sl_bench_attn *bench, double density, int repetitions, row *r, sl_error *err) {
    sl_attn_spec spec;
    sl_bench_attn_time time;
    int rc = sl_attn_parse(rule, &spec, err);
    if (!rc) rc = sl_bench_attn_threshold(bench, &spec, r->n_tokens, density, repetitions, &r->density, &time, err);
    snprintf(r->what, sizeof r->what, "%s", rule);
    r->is_rule = 1;
    if (!rc) r->us = time.us, r->mean_us = time.mean_us;
    return rc;
}

// Row i of the rows of a length. dense: row 0.
static int time_row(sl_bench_attn *bench, int i, int repetitions, const row *dense, row *r, sl_error *err) {
    const sl_attn_spec spec = {.method = &sl_method_dense};
    sl_bench_attn_time time = {0};
    int rc;
    r->density = NAN;
    if (i > N_DENSITIES + N_MASKS) {
        rc = time_rule(bench, densities[i - N_DENSITIES - N_MASKS - 1], repetitions, r, err);
    } else if (i > N_DENSITIES) {
        rc = time_mask(bench, masks[i - N_DENSITIES - 1], repetitions, r, err);
    } else {
        snprintf(r->what, sizeof r->what, i ? "attention with a mask" : "dense");
        rc = i ? sl_bench_attn_masked(bench, r->n_tokens, densities[i - 1], repetitions, &r->density, &time, err)
               : sl_bench_attn_prefill(bench, &spec, r->n_tokens, 0, repetitions, &time, err);
        r->us = time.us, r->mean_us = time.mean_us;
    }
    r->dense_us = dense->us;
    return rc;
}

static int time_all(sl_bench_attn *bench, int repetitions, row *rows, sl_error *err) {
    int rc = 0, n = N_OF_LENGTH;
    cli_progress progress;
    cli_progress_begin(&progress, "bench attn", "times");
    for (int i = 0; !rc && i < N_ROWS; i++) {
        cli_progress_update(&progress, i, N_ROWS);
        rows[i] = (row){.n_tokens = lengths[i / n]};
        rc = time_row(bench, i % n, repetitions, &rows[i / n * n], &rows[i], err);
    }
    cli_progress_end(&progress);
    return rc;
}

static json_t *row_json(const row *r) {
    return json_pack("{s:s, s:i, s:s, s:o, s:f, s:f, s:f, s:o}", "phase", "masks", "tokens", r->n_tokens, "what", r->what,
                     "density", cli_number(r->density), "us", r->us, "mean_us", r->mean_us, "of_dense", of_dense(r), "of_work",
                     cli_number(of_work(r)));
}

// The rows of attention with `threshold`, or the others.
static int print_table(const row *rows, int is_rule, sl_error *err) {
    int rc = cli_printf(err,
                        "\n| tokens | what | density | ms | mean ms | time / dense | time / (%s x dense) |\n"
                        "|---|---|---|---|---|---|---|\n",
                        is_rule ? "(1 + density) / 2" : "density");
    for (int i = 0; !rc && i < N_ROWS; i++) {
        const row *r = &rows[i];
        char density[16] = "", work[16] = "";
        if (r->is_rule != is_rule) continue;
        if (!isnan(r->density)) {
            snprintf(density, sizeof density, "%.1f%%", 100 * r->density);
            snprintf(work, sizeof work, "%.3f", of_work(r));
        }
        rc = cli_printf(err, "| %dk | %s | %s | %.3f | %.3f | %.2f%% | %s |\n", r->n_tokens >> 10, r->what, density,
                        r->us * 1e-3, r->mean_us * 1e-3, 100 * of_dense(r), work);
    }
    return rc;
}

static int print_md(const row *rows, const sl_bench_attn_device *device, sl_error *err) {
    int rc = cli_printf(err, "%s\n", device->name);
    if (!rc) rc = print_table(rows, 0, err);
    return rc ? rc : print_table(rows, 1, err);
}

static int print_rows(const char *format, const row *rows, const sl_bench_attn_device *device, sl_error *err) {
    cli_rows table = {.format = format};
    json_t *list = json_array();
    int rc = 0, is_json = !strcmp(format, "json");
    for (int i = 0; !rc && i < N_ROWS; i++) {
        json_t *item = row_json(&rows[i]);
        if (is_json) {
            json_array_append_new(list, item);
            continue;
        }
        json_object_set_new(item, "device", json_string(device->name));
        rc = cli_rows_add(&table, item, err);
    }
    if (is_json) return cli_print_json(json_pack("{s:s, s:o}", "device", device->name, "rows", list), JSON_INDENT(1), err);
    json_decref(list);
    return rc;
}

int cli_bench_masks(const cli_options *o, const sl_attn_geom *geom, sl_error *err) {
    const int most = lengths[N_LENGTHS - 1];
    sl_bench_attn_limits limits = {most / SL_PAGE, 1, most, o->query_deviation, o->query_spread, 0, NULL};
    sl_bench_attn *bench = NULL;
    sl_bench_attn_device device;
    row rows[N_ROWS];
    int rc = sl_bench_attn_open(geom, &limits, &bench, err);
    if (!rc) rc = sl_bench_attn_device_of(bench, &device, err);
    if (!rc) rc = time_all(bench, CLI_GIVEN(o, repetitions) ? o->repetitions : REPETITIONS, rows, err);
    sl_bench_attn_close(bench);
    if (rc) return rc;
    return strcmp(o->format, "md") ? print_rows(o->format, rows, &device, err) : print_md(rows, &device, err);
}

#endif
