// cli/bench/cmd_cliffs.c - sleigh bench attn --cliffs: times every method that decodes over its size parameter, rows and
// sequences, and prints the cliffs (cliffs.h).
#include "base/number.h"
#include "cli/run/attn_flags.h"
#include "cli/bench/attn_states.h"
#include "cli/bench/calibrate_gpu.h"
#include "cli/bench/calibrate_host.h"
#include "cli/bench/cliffs.h"
#include "cli/io.h"
#include "cli/output/model_name.h"
#include "cli/output/progress_bar.h"
#include "cli/output/rows.h"
#include "cli/process.h"
#include "engine/engine.h"

#include <limits.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

enum { MOST_METHODS = 256, METHOD_TEXT = 96, GPU_REPETITIONS = 15, CPU_REPETITIONS = 5 };

// ---- what is timed ----

// Methods with a size parameter: S, and the parameter that plays its part in methods without S.
static const struct {
    const char *text; // of the method, for a value of the parameter
    int least, most;
} sized[] = {{"santa:S=%d", 1, INT_MAX},
             {"santa-strat:S=%d", 1, INT_MAX},
             {"santa-sys:S=%d", 1, INT_MAX},
             {"santa-prop:S=%d", 1, INT_MAX},
             {"santa-flash:S=%d", 1, INT_MAX},
             {"santa-pps:S=%d", 1, INT_MAX},
             {"santa-pps:S=%d:budget=even", 1, INT_MAX},
             {"santa-is:S=%d", 1, INT_MAX},
             {"random:S=%d", 1, INT_MAX},
             {"topk:k=%d", 1, INT_MAX},
             {"streaming:window=%d", 1, INT_MAX},
             {"quest:tokens=%d", 16, INT_MAX},
             {"saap:l=%d", 1, 1024},
             {"saap-is:S=%d", 1, INT_MAX},
             {"bernoulli:B=%d", 1, 1024},
             {"bernoulli-group:B=8+santa-prop:S=%d", 1, INT_MAX},
             {"magicpig:L=%d", 1, 64}};
static const char *const others[] = {"santa-pps:epsilon=0.05",
                                     "santa-pps:epsilon=0.2",
                                     "santa-pps:epsilon=0.5",
                                     "santa-is:proposal=int8:epsilon=0.05",
                                     "santa-is:proposal=int8:epsilon=0.2",
                                     "santa-is:proposal=int8:epsilon=0.5",
                                     "dense-q:bits=8",
                                     "dense-q:bits=4",
                                     "dense-q:bits=3",
                                     "topp",
                                     "vattention:epsilon=0.05",
                                     "vattention:epsilon=0.5"};
static const cli_ints gpu_values = {.at = {1, 4, 16, 64, 256, 1024, 4096, 8192}, .n = 8},
                      cpu_values = {.at = {1, 16, 256, 1024, 8192}, .n = 5};
static const cli_ints gpu_seqs = {.at = {1, 4, 16, 64}, .n = 4}, cpu_seqs = {.at = {1, 4}, .n = 2};
static const cli_ints gpu_rows = {.at = {256, 1024, 4096, 16384, 65536, 131072}, .n = 6},
                      cpu_rows = {.at = {256, 1024, 4096, 16384, 32768}, .n = 5};

typedef struct sweep {
    cli_cliffs cliffs;
    cli_attn_states states; // q NULL: no states
    sl_attn_geom geom;
    int on_gpu;
    int exact_below; // --exact-below
    char device[256], model[320];
} sweep;

// ---- flags ----

static int check_flags(const cli_bench_flags *o, sl_error *err) {
    static const char *const of_others[] = {"--steps",
                                            "--n-prompt",
                                            "--prompt-gen",
                                            "--ragged",
                                            "--copy",
                                            "--memory-rate",
                                            "--plot",
                                            "--phase",
                                            "--query-spread",
                                            "--seed",
                                            "--auto-calibrate",
                                            "--calibration",
                                            "--calibrate",
                                            "--mask-method",
                                            "--mask-density",
                                            "--fill",
                                            "--hot-hits",
                                            "--kv-cache",
                                            "--kv-tokens",
                                            "--cache-type-k",
                                            "--cache-type-v",
                                            "--kv-cache-dtype",
                                            NULL};
    static const char *const of_shape[] = {"--model", NULL};
    const char *other = cli_given_flag(o->given, of_others);
    if (other) return sl_fail(err, SL_ERR_ARG, "flag %s cannot be used with --cliffs", other);
    other = o->bench->states ? cli_given_flag(o->given, of_shape) : NULL;
    if (other) return sl_fail(err, SL_ERR_ARG, "flag %s cannot be used with --states, which has a shape of its own", other);
    return sl_device_check(o->run->device.name, err);
}

static int read_shape(sweep *s, const cli_bench_flags *o, sl_error *err) {
    const char *path = o->run->model.path;
    const sl_attn_geom *g = &s->geom;
    char name[256] = "shape of Llama-3.1-8B";
    int rc = o->bench->states ? cli_attn_states_read(&s->states, o->bench->states, err)
                              : cli_geometry_of(&o->run->model, &s->geom, err);
    if (rc) return rc;
    if (s->states.q) {
        s->geom = s->states.geom;
        snprintf(name, sizeof name, "%s", s->states.source);
    } else if (path) {
        cli_model_folder_name(path, name, sizeof name);
    }
    snprintf(s->model, sizeof s->model, "%s (%d query heads, %d KV heads, dimension %d)", name, g->n_heads, g->n_kv_heads,
             g->head_dim);
    return 0;
}

static void add_kinds(sweep *s, const cli_bench_flags *o) {
    static const char *const deviation[] = {"--query-deviation", NULL};
    cli_cliffs *c = &s->cliffs;
    char number[SL_NUMBER_TEXT];
    if (cli_given_flag(o->given, deviation)) {
        cli_cliff_kind *kind = &c->kinds[c->n_kinds++];
        kind->query_deviation = o->run->attention.query_deviation;
        snprintf(kind->name, sizeof kind->name, "deviation %s", sl_number_text(kind->query_deviation, number));
    } else {
        c->kinds[c->n_kinds++] = (cli_cliff_kind){"flat (deviation 1)", 1};
        c->kinds[c->n_kinds++] = (cli_cliff_kind){"peaked (deviation 4)", 4};
    }
    if (s->states.q) c->kinds[c->n_kinds++] = (cli_cliff_kind){"states of a model", NAN};
}

// ---- methods ----

// Adds a method that the device and the shape offer.
static void add_method(const sweep *s, const char *text, char (*texts)[METHOD_TEXT], const char **items, int *n) {
    sl_attn_spec spec;
    sl_error why;
    if (*n == MOST_METHODS || sl_attn_parse(text, &spec, &why)) return; // the value is outside of the parameter's range
    if (cli_decode_offered(&spec, &s->geom, s->on_gpu, &why)) return;
    snprintf(texts[*n], METHOD_TEXT, "%s", text);
    items[*n] = texts[*n];
    ++*n;
}

static int list_all_methods(sweep *s, sl_error *err) {
    char texts[MOST_METHODS][METHOD_TEXT]; // the list copies them
    const cli_ints *values = s->on_gpu ? &gpu_values : &cpu_values;
    const char *items[MOST_METHODS] = {"dense"};
    char text[METHOD_TEXT];
    int n = 1;
    for (size_t i = 0; i < sizeof others / sizeof *others; i++) add_method(s, others[i], texts, items, &n);
    for (size_t i = 0; i < sizeof sized / sizeof *sized; i++)
        for (int v = 0; v < values->n; v++) {
            if (values->at[v] < sized[i].least || values->at[v] > sized[i].most) continue;
            snprintf(text, sizeof text, sized[i].text, values->at[v]);
            add_method(s, text, texts, items, &n);
        }
    return cli_attn_list_parse("--attn", &(cli_list){.items = items, .n = n}, &s->cliffs.methods, err);
}

// Dense attention comes first, also if --attn does not name it.
static int list_given_methods(sweep *s, const cli_list *given, sl_error *err) {
    const char *items[MOST_METHODS] = {"dense"};
    cli_attn_list list;
    int n = 1, rc = cli_attn_list_parse("--attn", given, &list, err);
    if (!rc && list.n >= MOST_METHODS) rc = sl_fail(err, SL_ERR_ARG, "--attn: expected at most %d methods", MOST_METHODS - 1);
    for (int i = 0; !rc && i < list.n; i++) {
        rc = cli_decode_offered(&list.specs[i], &s->geom, s->on_gpu, err);
        if (list.specs[i].method != &sl_method_dense) items[n++] = list.names[i];
    }
    if (!rc) rc = cli_attn_list_parse("--attn", &(cli_list){.items = items, .n = n}, &s->cliffs.methods, err);
    cli_attn_list_free(&list);
    return rc;
}

static void add_states_rows(sweep *s) { // a GPU times states with all their rows only
    cli_ints *rows = &s->cliffs.n_kv;
    if (s->states.q && rows->n < CLI_MAX_INTS) rows->at[rows->n++] = s->states.n_rows;
}

static int make_plan(sweep *s, const cli_bench_flags *o, sl_error *err) {
    const char *device = o->run->device.name;
    const cli_list *attns = &o->run->attention.attns;
    cli_cliffs *c = &s->cliffs;
    int rc = check_flags(o, err);
    if (!rc) rc = cli_exact_below(&o->run->attention, &s->exact_below, err);
    s->on_gpu = sl_device_is_gpu(device);
    if (!rc) rc = sl_device_name(device, s->device, sizeof s->device, err);
    if (!rc) rc = read_shape(s, o, err);
    if (!rc) rc = attns->n ? list_given_methods(s, attns, err) : list_all_methods(s, err);
    if (rc) return rc;
    add_kinds(s, o);
    c->n_seqs = o->bench->batches.n ? o->bench->batches : s->on_gpu ? gpu_seqs : cpu_seqs;
    c->n_kv = o->bench->depths.n ? o->bench->depths : s->on_gpu ? gpu_rows : cpu_rows;
    c->most_rows = s->on_gpu ? 8 << 20 : 128 << 10;
    add_states_rows(s);
    return cli_cliffs_open(c, err);
}

// ---- clocks ----

static void find_limits(const cli_cliffs *c, int *n_pages, int *n_seqs) {
    *n_pages = *n_seqs = 1;
    for (int i = 0; i < c->n_seqs.n; i++)
        for (int j = 0; j < c->n_kv.n; j++) {
            if (!cli_cliffs_fits(c, i, j)) continue;
            int n = c->n_seqs.at[i], pages = n * sl_kv_pages_of(c->n_kv.at[j]);
            if (pages > *n_pages) *n_pages = pages;
            if (n > *n_seqs) *n_seqs = n;
        }
}

// A clock over the rows of a model: the other numbers of rows have no times.
typedef struct states_clock {
    cli_clock of;
    int n_rows;
} states_clock;

static int time_states(void *ctx, const sl_attn_spec *spec, int n_seqs, int n_kv, double *us, sl_error *err) {
    const states_clock *c = ctx;
    *us = NAN;
    return n_kv == c->n_rows ? c->of.time(c->of.ctx, spec, n_seqs, n_kv, us, err) : 0;
}

// A clock that times dense attention where a step of the engine runs it in place of the method (sl_attn_exact_below).
typedef struct exact_clock {
    cli_clock of;
    const sweep *sweep;
} exact_clock;

static int is_exact(const sweep *s, const sl_attn_spec *spec, int n_kv) {
    return n_kv < sl_attn_exact_below(spec, s->exact_below, s->on_gpu);
}

static int time_or_exact(void *ctx, const sl_attn_spec *spec, int n_seqs, int n_kv, double *us, sl_error *err) {
    static const sl_attn_spec dense = {.method = &sl_method_dense};
    const exact_clock *c = ctx;
    return c->of.time(c->of.ctx, is_exact(c->sweep, spec, n_kv) ? &dense : spec, n_seqs, n_kv, us, err);
}

static int time_on(sweep *s, int kind, cli_clock of, double seconds, sl_error *err) {
    exact_clock exact = {of, s};
    cli_clock clock = {.time = time_or_exact, .ctx = &exact};
    states_clock states = {clock, s->states.n_rows};
    if (isnan(s->cliffs.kinds[kind].query_deviation)) clock = (cli_clock){.time = time_states, .ctx = &states};
    return cli_cliffs_time(&s->cliffs, kind, &clock, seconds, err);
}

// With less memory than the largest sizes need, the sweep leaves them out.
static int time_on_gpu(sweep *s, int kind, const cli_bench_flags *o, double seconds, sl_error *err) {
    enum { LEAST_ROWS = 128 << 10 };
    double deviation = s->cliffs.kinds[kind].query_deviation;
    cli_gpu_sizes sizes = {.n_tokens = 1,
                           .query_deviation = deviation,
                           .states = isnan(deviation) ? &s->states : NULL,
                           .repetitions = o->bench->repetitions ? o->bench->repetitions : GPU_REPETITIONS};
    cli_gpu_clock *c;
    int rc;
    for (;; s->cliffs.most_rows /= 2) {
        find_limits(&s->cliffs, &sizes.n_pages, &sizes.n_seqs);
        rc = cli_gpu_clock_open(o->run->device.name, &s->geom, &sizes, &c, err);
        if (rc != SL_ERR_MEMORY || s->cliffs.most_rows <= LEAST_ROWS) break;
    }
    if (!rc) rc = time_on(s, kind, (cli_clock){.time = cli_gpu_clock_time, .ctx = c}, seconds, err);
    cli_gpu_clock_close(c);
    return rc;
}

static int time_on_cpu(sweep *s, int kind, const cli_bench_flags *o, double seconds, sl_error *err) {
    double deviation = s->cliffs.kinds[kind].query_deviation;
    int n_pages, n_seqs, repetitions = o->bench->repetitions ? o->bench->repetitions : CPU_REPETITIONS;
    cli_host_clock *c = NULL;
    find_limits(&s->cliffs, &n_pages, &n_seqs);
    int rc =
        cli_host_clock_open(&s->geom, n_pages, isnan(deviation) ? 1 : deviation, o->run->device.threads, repetitions, &c, err);
    if (!rc && isnan(deviation)) cli_host_clock_use(c, &s->states);
    if (!rc) rc = time_on(s, kind, (cli_clock){.time = cli_host_clock_time, .ctx = c}, seconds, err);
    cli_host_clock_close(c);
    return rc;
}

// The kinds share the seconds. What one kind leaves, the next ones get.
static int time_all(sweep *s, const cli_bench_flags *o, sl_error *err) {
    double end = sl_now_ms() + 1e3 * o->bench->cliffs_seconds;
    int rc = 0;
    for (int kind = 0; !rc && kind < s->cliffs.n_kinds; kind++) {
        double seconds = fmax(1e-3 * (end - sl_now_ms()), 0) / (s->cliffs.n_kinds - kind);
        rc = s->on_gpu ? time_on_gpu(s, kind, o, seconds, err) : time_on_cpu(s, kind, o, seconds, err);
    }
    return rc;
}

// ---- tables ----

typedef int (*visit_cell)(void *ctx, const sweep *s, cli_cliff_cell x, sl_error *err);

static int each_timed(const sweep *s, visit_cell visit, void *ctx, sl_error *err) {
    const cli_cliffs *c = &s->cliffs;
    int rc = 0;
    for (int k = 0; k < c->n_kinds; k++)
        for (int m = 0; m < c->methods.n; m++)
            for (int i = 0; i < c->n_seqs.n; i++)
                for (int j = 0; !rc && j < c->n_kv.n; j++) {
                    cli_cliff_cell x = {k, m, i, j};
                    if (!isnan(*cli_cliffs_us(c, x))) rc = visit(ctx, s, x, err);
                }
    return rc;
}

typedef struct counts {
    int timed, slow, drops, sizes; // cells; slow ones; places with less time; cells that fit
} counts;

static int count_cell(void *ctx, const sweep *s, cli_cliff_cell x, sl_error *err) {
    (void)err;
    counts *n = ctx;
    cli_cliff_cell smaller;
    n->timed++;
    n->slow += cli_cliffs_is_slow(cli_cliffs_of_dense(&s->cliffs, x));
    n->drops += cli_cliffs_is_drop(cli_cliffs_of_fewer_rows(&s->cliffs, x, &smaller));
    n->drops += cli_cliffs_is_drop(cli_cliffs_of_fewer_seqs(&s->cliffs, x, &smaller));
    return 0;
}

static counts count_all(const sweep *s) {
    const cli_cliffs *c = &s->cliffs;
    counts n = {0};
    sl_error none;
    for (int i = 0; i < c->n_seqs.n; i++)
        for (int j = 0; j < c->n_kv.n; j++) n.sizes += cli_cliffs_fits(c, i, j) * c->methods.n * c->n_kinds;
    each_timed(s, count_cell, &n, &none);
    return n;
}

static int has_slow(const cli_cliffs *c, int kind, int method, int seqs) {
    for (int j = 0; j < c->n_kv.n; j++)
        if (cli_cliffs_is_slow(cli_cliffs_of_dense(c, (cli_cliff_cell){kind, method, seqs, j}))) return 1;
    return 0;
}

// The slow cells of a kind and a number of sequences: a line for each method that has one.
static int print_slow(const cli_cliffs *c, int kind, int seqs, sl_error *err) {
    int n = 0;
    for (int m = 1; m < c->methods.n; m++) n += has_slow(c, kind, m, seqs);
    if (n == 0) return 0;
    int rc = cli_printf(err, "\n%s, %d sequence%s: time / dense of the cells above %g\n\n| attn |", c->kinds[kind].name,
                        c->n_seqs.at[seqs], c->n_seqs.at[seqs] == 1 ? "" : "s", CLI_CLIFF_SLOW);
    for (int j = 0; !rc && j < c->n_kv.n; j++) rc = cli_printf(err, " %d rows |", c->n_kv.at[j]);
    for (int j = -1; !rc && j < c->n_kv.n; j++) rc = cli_printf(err, j < 0 ? "\n|---|" : "---|");
    for (int m = 1; !rc && m < c->methods.n; m++) {
        if (!has_slow(c, kind, m, seqs)) continue;
        rc = cli_printf(err, "\n| %s |", c->methods.names[m]);
        for (int j = 0; !rc && j < c->n_kv.n; j++) {
            double x = cli_cliffs_of_dense(c, (cli_cliff_cell){kind, m, seqs, j});
            rc = isnan(x)                ? cli_printf(err, " - |")
                 : cli_cliffs_is_slow(x) ? cli_printf(err, " %.2f |", x)
                                         : cli_printf(err, " |");
        }
    }
    return rc ? rc : cli_printf(err, "\n");
}

static int print_drop(const cli_cliffs *c, cli_cliff_cell x, double share, cli_cliff_cell smaller, sl_error *err) {
    if (!cli_cliffs_is_drop(share)) return 0;
    return cli_printf(err, "| %s | %s | %d x %d | %.1f | %d x %d | %.1f | %.2f |\n", c->kinds[x.kind].name,
                      c->methods.names[x.method], c->n_seqs.at[smaller.seqs], c->n_kv.at[smaller.rows],
                      *cli_cliffs_us(c, smaller), c->n_seqs.at[x.seqs], c->n_kv.at[x.rows], *cli_cliffs_us(c, x), share);
}

static int print_drops(void *ctx, const sweep *s, cli_cliff_cell x, sl_error *err) {
    (void)ctx;
    cli_cliff_cell smaller;
    double share = cli_cliffs_of_fewer_rows(&s->cliffs, x, &smaller);
    int rc = print_drop(&s->cliffs, x, share, smaller, err);
    share = cli_cliffs_of_fewer_seqs(&s->cliffs, x, &smaller);
    return rc ? rc : print_drop(&s->cliffs, x, share, smaller, err);
}

static int print_md(const sweep *s, sl_error *err) {
    const cli_cliffs *c = &s->cliffs;
    counts n = count_all(s);
    int rc = cli_printf(err,
                        "model: %s\n\n%s: %d of %d cells timed; %d of them take more than %g times dense attention's time; at "
                        "%d places more rows or sequences take less than %g of the time\n",
                        s->model, s->device, n.timed, n.sizes, n.slow, CLI_CLIFF_SLOW, n.drops, CLI_CLIFF_LESS);
    for (int k = 0; k < c->n_kinds; k++)
        for (int i = 0; !rc && i < c->n_seqs.n; i++) rc = print_slow(c, k, i, err);
    if (rc || !n.drops) return rc;
    rc = cli_printf(err, "\n| attention | attn | sequences x rows | us | sequences x rows | us | less |\n"
                         "|---|---|---|---|---|---|---|\n");
    return rc ? rc : each_timed(s, print_drops, NULL, err);
}

// A row of json, jsonl and csv: a timed cell.
static int add_row(void *ctx, const sweep *s, cli_cliff_cell x, sl_error *err) {
    const cli_cliffs *c = &s->cliffs;
    cli_cliff_cell smaller;
    double dense = cli_cliffs_of_dense(c, x), rows = cli_cliffs_of_fewer_rows(c, x, &smaller),
           seqs = cli_cliffs_of_fewer_seqs(c, x, &smaller);
    return cli_rows_add(ctx,
                        json_pack("{s:s, s:s, s:s, s:s, s:i, s:i, s:f, s:o, s:o, s:o, s:b, s:b, s:b}", "model", s->model,
                                  "device", s->device, "attention", c->kinds[x.kind].name, "attn", c->methods.names[x.method],
                                  "n_seqs", c->n_seqs.at[x.seqs], "n_kv", c->n_kv.at[x.rows], "us", *cli_cliffs_us(c, x),
                                  "of_dense", cli_number(dense), "of_fewer_rows", cli_number(rows), "of_fewer_seqs",
                                  cli_number(seqs), "exact", is_exact(s, &c->methods.specs[x.method], c->n_kv.at[x.rows]),
                                  "slow", cli_cliffs_is_slow(dense), "drop",
                                  cli_cliffs_is_drop(rows) || cli_cliffs_is_drop(seqs)),
                        err);
}

static int print_all(const sweep *s, const char *format, sl_error *err) {
    cli_rows rows = {.format = format};
    if (!strcmp(format, "md")) return print_md(s, err);
    int rc = each_timed(s, add_row, &rows, err), failed = cli_rows_end(&rows, rc ? NULL : err);
    return rc ? rc : failed;
}

int cmd_cliffs(const cli_bench_flags *o, sl_error *err) {
    sweep s = {0};
    sl_error why;
    int rc = make_plan(&s, o, err), failed;
    if (!rc) {
        if (!s.states.q) cli_say("bench attn --cliffs: left out: the states of a model; --states DIR has them (docs/bench.md)");
        cli_catch_interrupt(1);
        rc = time_all(&s, o, err);
        failed = s.cliffs.n_timed ? print_all(&s, o->output->format, rc ? &why : err) : 0;
        rc = rc ? rc : failed; // the first error is the reason
    }
    if (!rc) rc = cli_flush(err);
    cli_cliffs_free(&s.cliffs);
    cli_attn_states_free(&s.states);
    return rc;
}
