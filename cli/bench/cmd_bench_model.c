// cli/bench/cmd_bench_model.c - sleigh bench without a subject: times a model with tests like llama-bench's. Also prints
// the table and draws the plot of `bench decode`.
#include "cli/bench/cmd_bench.h"
#include "cli/io.h"
#include "cli/output/plot.h"
#include "cli/output/rows.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

// ---- which tests ----

static int add_test(cli_bench_plan *plan, int n_prompt, int n_gen, sl_error *err) {
    if (!n_prompt && !n_gen) return 0;
    if (plan->n_tests == CLI_MAX_TESTS) return sl_fail(err, SL_ERR_ARG, "bench: expected at most %d tests", CLI_MAX_TESTS);
    plan->tests[plan->n_tests++] = (cli_bench_test){n_prompt, n_gen};
    return 0;
}

static int make_plan(cli_bench_plan *plan, const cli_bench_flags *o, sl_error *err) {
    static const cli_ints one = {.at = {1}, .n = 1}, zero = {.at = {0}, .n = 1};
    static const cli_ints prompts = {.at = {512}, .n = 1}, gens = {.at = {128}, .n = 1};
    const cli_ints *p = o->bench->n_prompts.n ? &o->bench->n_prompts : &prompts,
                   *n = o->bench->n_gens.n ? &o->bench->n_gens : &gens;
    int rc = 0;
    *plan = (cli_bench_plan){.batches = o->bench->batches.n ? o->bench->batches : one,
                             .depths = o->bench->depths.n ? o->bench->depths : zero,
                             .repetitions = o->bench->repetitions ? o->bench->repetitions : 5};
    for (int i = 0; !rc && i < p->n; i++) rc = add_test(plan, p->at[i], 0, err);
    for (int i = 0; !rc && i < n->n; i++) rc = add_test(plan, 0, n->at[i], err);
    for (int i = 0; !rc && i < o->bench->pairs.n; i += 2)
        rc = add_test(plan, o->bench->pairs.at[i], o->bench->pairs.at[i + 1], err);
    if (rc || plan->n_tests) return rc;
    return sl_fail(err, SL_ERR_ARG, "--n-prompt and --n-gen: expected a number above 0, found only 0");
}

// ---- the plot: rows of tests that only decode ----

typedef struct output {
    cli_bench bench;
    cli_rows rows;
    cli_curves *latency, *speedup; // [n_plots], against depth; the speedup of a single depth: [1], against the batch
    int n_plots;                   // batches
} output;

// Several depths and several batches: each batch has panels of its own. A legend of all lines would be too long to read.
static int against_depth(const output *out) {
    return out->bench.plan->depths.n > 1;
}

static int begin_plots(output *out, sl_error *err) {
    if (!out->bench.o->output->plot) return 0;
    out->n_plots = out->bench.plan->batches.n;
    out->latency = calloc((size_t)out->n_plots, sizeof *out->latency);
    out->speedup = calloc((size_t)out->n_plots, sizeof *out->speedup);
    return out->latency && out->speedup ? 0 : sl_fail(err, SL_ERR_MEMORY, "--plot: out of memory");
}

static void free_plots(output *out) {
    for (int i = 0; out->latency && i < out->n_plots; i++) cli_curves_free(&out->latency[i]);
    for (int i = 0; out->speedup && i < out->n_plots; i++) cli_curves_free(&out->speedup[i]);
    free(out->latency);
    free(out->speedup);
}

static void name_curve(const output *out, const cli_bench_row *r, char *buf, size_t size) {
    const cli_bench_plan *plan = out->bench.plan;
    int n = snprintf(buf, size, "%.100s", r->attn), n_tests = 0;
    for (int i = 0; i < plan->n_tests; i++) n_tests += !plan->tests[i].n_prompt;
    if (n_tests > 1) snprintf(buf + n, size - (size_t)n, ", %d steps", r->test.n_gen);
}

static int plot_row(output *out, const cli_bench_row *r, sl_error *err) {
    char name[192];
    int batch = 0;
    if (!out->n_plots || r->test.n_prompt) return 0;
    while (out->bench.plan->batches.at[batch] != r->batch) batch++;
    name_curve(out, r, name, sizeof name);
    int rc =
        cli_curves_add(&out->latency[batch], name, (cli_point){r->depth, r->step_ms, r->step_ms_low, r->step_ms_high, 0}, err);
    if (rc || !strcmp(r->attn, out->bench.attn.names[0])) return rc; // the speedup of the first method is always 1
    double x = against_depth(out) ? r->depth : r->batch;
    return cli_curves_add(&out->speedup[against_depth(out) ? batch : 0], name, (cli_point){x, r->speedup, NAN, NAN, 0}, err);
}

typedef struct picture {
    cli_panel panels[CLI_PLOT_PANELS];
    char titles[CLI_PLOT_PANELS][64];
    int n;
} picture;

static cli_panel *add_panel(picture *p, cli_panel panel, int batch, int n_batches) {
    if (n_batches > 1) {
        snprintf(p->titles[p->n], sizeof p->titles[p->n], "%s, %d sequence%s", panel.title, batch, batch == 1 ? "" : "s");
        panel.title = p->titles[p->n];
    }
    p->panels[p->n] = panel;
    return &p->panels[p->n++];
}

// Panels of time and speedup against depth, a row of them for each batch. If only batches vary, speedup against the batch.
static void make_panels(const output *out, const char *speedup_over, picture *p) {
    const cli_ints *batches = &out->bench.plan->batches;
    _Static_assert(2 * CLI_MAX_INTS <= CLI_PLOT_PANELS, "each batch has two panels");
    if (!against_depth(out) && batches->n > 1 && out->speedup[0].n) {
        add_panel(p, cli_panel_speedup(&out->speedup[0]), 0, 1)->y_label = speedup_over;
        return;
    }
    for (int i = 0; i < batches->n; i++) {
        add_panel(p, cli_panel_latency(&out->latency[i]), batches->at[i], batches->n)->new_row = i > 0;
        if (!out->speedup[i].n || batches->n < 2) continue;
        cli_panel *speedup = add_panel(p, cli_panel_speedup(&out->speedup[i]), batches->at[i], batches->n);
        speedup->x_label = p->panels[0].x_label;
        speedup->log_x = 1;
        speedup->y_label = speedup_over;
    }
}

static int draw(const output *out, sl_error *err) {
    char title[320], speedup_over[CLI_ATTN_NAME + 16];
    if (!out->n_plots) return 0;
    picture *p = calloc(1, sizeof *p);
    if (!p) return sl_fail(err, SL_ERR_MEMORY, "--plot: out of memory");
    snprintf(speedup_over, sizeof speedup_over, "speedup over %s", out->bench.attn.names[0]);
    make_panels(out, speedup_over, p);
    snprintf(title, sizeof title, "%.100s, %.200s", out->bench.name.name, out->bench.backend);
    int rc = cli_plot(out->bench.o->output->plot, title, p->panels, p->n, err);
    free(p);
    return rc;
}

// ---- the table ----

static int add_row(void *ctx, const cli_bench_row *r, sl_error *err) {
    output *out = ctx;
    int rc = cli_rows_add(&out->rows, cli_bench_json(&out->bench, r), err);
    return rc ? rc : plot_row(out, r, err);
}

static int check_flags(const cli_bench_flags *o, const cli_bench_plan *plan, sl_error *err) {
    int decodes = 0;
    for (int i = 0; i < plan->n_tests; i++) decodes |= !plan->tests[i].n_prompt;
    if (cli_given_by(o->given, "--phase") == CLI_BY_FLAG)
        return sl_fail(err, SL_ERR_ARG, "flag --phase belongs to `sleigh bench attn`");
    if (o->output->plot && !decodes)
        return sl_fail(err, SL_ERR_ARG, "--plot draws tests that only decode, and there is none; give --n-gen");
    return o->output->plot ? cli_plot_check(o->output->plot, "--plot", err) : 0;
}

int cli_bench_print(const cli_bench_flags *o, const cli_bench_plan *plan, const cli_column *columns, int n_columns,
                    sl_error *err) {
    output out = {.rows = {.format = o->output->format, .columns = columns, .n_columns = n_columns}};
    int rc = check_flags(o, plan, err);
    if (rc) return rc;
    rc = cli_bench_open(&out.bench, o, plan, err);
    if (!rc) rc = begin_plots(&out, err);
    out.rows.model = &out.bench.name;
    if (!rc) {
        rc = cli_bench_run(&out.bench, add_row, &out, err);
        int ended = cli_rows_end(&out.rows, rc ? NULL : err); // also after an error, so that the JSON parses
        if (!rc) rc = ended ? ended : cli_flush(err);
        if (!rc) rc = draw(&out, err);
    }
    cli_bench_close(&out.bench);
    free_plots(&out);
    return rc;
}

// 1: all rows use dense attention, so the table needs no attention column.
static int is_dense(const cli_bench_flags *o) {
    return o->run->attention.attns.n == 0 ||
           (o->run->attention.attns.n == 1 && !strcmp(o->run->attention.attns.items[0], "dense"));
}

int cmd_bench_model(const cli_bench_flags *o, sl_error *err) {
    cli_bench_plan plan;
    int rc = make_plan(&plan, o, err);
    if (rc) return rc;
    const cli_column columns[] = {
        {.title = "batch", .key = "batch", .hidden = plan.batches.n == 1 && plan.batches.at[0] == 1},
        {.title = "attention", .key = "attn", .hidden = is_dense(o)},
        {.title = "test", .key = "test"},
        {.title = "tok/s", .key = "tok_s", .spread = "tok_s_sd", .digits = 2},
        {.title = "median", .key = "tok_s_median", .digits = 2},
        {.title = "step ms", .key = "step_ms", .digits = 3},
        {.title = "ms / output token", .key = "token_ms", .digits = 3},
        {.title = "GB/s", .key = "gb_s", .digits = 1},
        {.title = "% of peak", .key = "peak_share", .digits = 1, .scale = 100},
        {.title = "J / token", .key = "joules_token", .digits = 3},
    };
    return cli_bench_print(o, &plan, columns, sizeof columns / sizeof *columns, err);
}
