// cli/bench/calibrate.c - see calibrate.h.
#include "cli/bench/calibrate.h"
#include "base/number.h"
#include "cli/attn/attn_list.h"
#include "cli/bench/calibrate_gpu.h"
#include "cli/bench/calibrate_host.h"
#include "cli/error_text.h"
#include "cli/io.h"
#include "cli/output/model_name.h"
#include "cli/output/progress_bar.h"
#include "cli/process.h"
#include "engine/engine.h"
#include "models/source.h"

#include <limits.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

static const sl_attn_geom without_model = {.n_layers = 1, .n_heads = 32, .n_kv_heads = 8, .head_dim = 128}; // Llama-3.1-8B
static const cli_grid gpu_grid = {.n_seqs = {.at = {1, 2, 4, 8, 16, 32}, .n = 6},
                                  .n_kv = {.at = {1024, 2048, 4096, 8192, 16384, 32768, 65536, 131072}, .n = 8},
                                  .most_rows = 512 * 1024,
                                  .n_tokens = {.at = {1024, 2048, 4096, 8192, 16384, 32768}, .n = 6},
                                  .most_tokens = INT_MAX},
                      cpu_grid = {.n_seqs = {.at = {1, 4, 16}, .n = 3},
                                  .n_kv = {.at = {256, 512, 1024, 2048, 4096, 8192, 16384, 32768}, .n = 8},
                                  .most_rows = 64 * 1024,
                                  .n_tokens = {.at = {512, 1024, 2048, 4096, 8192}, .n = 5},
                                  .most_tokens = INT_MAX};
// Without epsilon, auto chooses among the candidates without a stated error.
static const char *const candidates[] = {
    "santa-pps:S=128",
    "santa-is:S=256",
    "santa-pps:epsilon={0.05,0.1,0.2,0.3,0.5}",
    "santa-is:proposal=int8:epsilon={0.05,0.1,0.2,0.3,0.5}",
};
enum { GPU_REPETITIONS = 15, CPU_REPETITIONS = 5 };

// With its default parameters, `sample` visits 36% of the blocks of books and 75% of those of the embedded model's questions at
// 32k tokens (results/sparse-prefill.md).
static const char mask_method[] = "sample";
#define MASK_DENSITY 0.5

// ---- the grid ----

static int fits(const cli_grid *g, int n_seqs, int n_kv) {
    return (long long)n_seqs * n_kv <= g->most_rows;
}

// Lists the sizes of the grid within most_rows, in rising order, each once.
static int list_points(const cli_grid *grid, sl_auto_table *t, sl_error *err) {
    cli_grid g = *grid;
    cli_sort_ints(&g.n_seqs);
    cli_sort_ints(&g.n_kv);
    t->n_points = 0;
    free(t->points);
    t->points = calloc(SL_AUTO_POINTS, sizeof *t->points);
    if (!t->points) return sl_fail(err, SL_ERR_MEMORY, "calibrate: out of memory");
    for (int i = 0; i < g.n_seqs.n; i++)
        for (int j = 0; j < g.n_kv.n; j++) {
            int again = (i && g.n_seqs.at[i] == g.n_seqs.at[i - 1]) || (j && g.n_kv.at[j] == g.n_kv.at[j - 1]);
            if (again || !fits(&g, g.n_seqs.at[i], g.n_kv.at[j])) continue;
            if (t->n_points == SL_AUTO_POINTS)
                return sl_fail(err, SL_ERR_ARG, "--batch and --depth: expected at most %d sizes", SL_AUTO_POINTS);
            t->points[t->n_points++] = (sl_auto_point){.n_seqs = g.n_seqs.at[i], .n_kv = g.n_kv.at[j]};
        }
    return t->n_points
               ? 0
               : sl_fail(err, SL_ERR_ARG, "--batch and --depth: expected a size of at most %d rows (batch x depth), found none",
                         g.most_rows);
}

// Lists the lengths of prefill, in rising order, each once.
static int list_lengths(const cli_grid *grid, sl_auto_prefill *p, sl_error *err) {
    cli_ints n = grid->n_tokens;
    cli_sort_ints(&n);
    p->n_lengths = 0;
    for (int i = 0; p->attn.method && i < n.n; i++) {
        if (n.at[i] == 0 || n.at[i] > grid->most_tokens || (i && n.at[i] == n.at[i - 1])) continue;
        if (p->n_lengths == SL_AUTO_LENGTHS)
            return sl_fail(err, SL_ERR_ARG, "--n-prompt: expected at most %d lengths with --calibrate", SL_AUTO_LENGTHS);
        p->lengths[p->n_lengths++] = (sl_auto_length){.n_tokens = n.at[i]};
    }
    if (!p->n_lengths) *p = (sl_auto_prefill){.density = p->density};
    return 0;
}

static int list_sizes(const cli_grid *grid, sl_auto_table *t, sl_error *err) {
    int rc = list_points(grid, t, err);
    return rc ? rc : list_lengths(grid, &t->prefill, err);
}

static int time_length(const cli_clock *clock, sl_auto_prefill *p, int i, sl_error *err) {
    return clock->prefill(clock->ctx, &p->attn, p->density, &p->lengths[i], err);
}

int cli_calibrate(const cli_clock *clock, const cli_grid *grid, sl_auto_table *t, sl_error *err) {
    cli_progress bar;
    int rc = list_sizes(grid, t, err), n = t->n_points * t->n_specs, total = n + t->prefill.n_lengths;
    cli_progress_begin(&bar, "calibrate", "times");
    for (int i = 0; !rc && i < total; i++) {
        sl_auto_point *p = i < n ? &t->points[i / t->n_specs] : NULL;
        cli_progress_update(&bar, i, total);
        rc = p ? clock->time(clock->ctx, &t->specs[i % t->n_specs], p->n_seqs, p->n_kv, &p->us[i % t->n_specs], err)
               : time_length(clock, &t->prefill, i - n, err);
        if (!rc && cli_interrupted()) rc = sl_fail(err, SL_ERR_IO, "interrupted; the table was not written");
    }
    cli_progress_end(&bar);
    return rc;
}

// Adds the seconds of all lengths. The time of a length grows with its square. The first measurement also loads kernels, so the
// second one counts.
static int estimate_prefill(const cli_clock *clock, sl_auto_prefill *p, double *seconds, sl_error *err) {
    double start = 0, most = p->n_lengths ? p->lengths[p->n_lengths - 1].n_tokens : 0, lengths = 0;
    int rc = 0;
    for (int i = 0; i < p->n_lengths; i++) lengths += p->lengths[i].n_tokens / most * (p->lengths[i].n_tokens / most);
    for (int i = 0; !rc && p->n_lengths && i < 2; i++) {
        start = sl_now_ms();
        rc = time_length(clock, p, p->n_lengths - 1, err);
    }
    if (p->n_lengths) *seconds += 1e-3 * (sl_now_ms() - start) * lengths;
    return rc;
}

// Seconds of cli_calibrate, if each measurement of decoding takes as long as that of dense attention at the largest size. The
// first measurement also loads kernels, so the second one counts.
static int estimate(const cli_clock *clock, const cli_grid *grid, sl_auto_table *t, double *seconds, sl_error *err) {
    int rc = list_sizes(grid, t, err), largest = 0;
    double us, start = 0;
    for (int i = 1; !rc && i < t->n_points; i++) {
        const sl_auto_point *p = &t->points[i], *most = &t->points[largest];
        if ((long long)p->n_seqs * p->n_kv >= (long long)most->n_seqs * most->n_kv) largest = i;
    }
    for (int i = 0; !rc && i < 2; i++) {
        start = sl_now_ms();
        rc = clock->time(clock->ctx, &t->specs[0], t->points[largest].n_seqs, t->points[largest].n_kv, &us, err);
    }
    *seconds = 1e-3 * (sl_now_ms() - start) * t->n_points * t->n_specs;
    return rc ? rc : estimate_prefill(clock, &t->prefill, seconds, err);
}

int cli_calibrate_announced(const cli_clock *clock, const cli_grid *grid, const char *reason, sl_auto_table *t, sl_error *err) {
    double seconds;
    int rc = estimate(clock, grid, t, &seconds, err);
    if (rc) return rc;
    cli_say("attn auto: %s, measuring %d methods%s, about %.0f s", reason, t->n_specs,
            t->prefill.n_lengths ? " and sparse prefill" : "", fmax(ceil(seconds), 1));
    return cli_calibrate(clock, grid, t, err);
}

// ---- flags ----

static int check_flags(const cli_bench_flags *o, sl_error *err) {
    static const char *const others[] = {
        "--exact-below", "--steps",          "--prompt-gen",   "--ragged",       "--copy", "--memory-rate",
        "--plot",        "--query-spread",   "--phase",        "--output",       "--seed", "--auto-calibrate",
        "--states",      "--kv-cache-dtype", "--cache-type-k", "--cache-type-v", NULL};
    const char *other = cli_given_flag(o->given, others);
    if (other) return sl_fail(err, SL_ERR_ARG, "flag %s cannot be used with --calibrate", other);
    for (int i = 0; i < o->bench->depths.n; i++)
        if (o->bench->depths.at[i] == 0)
            return sl_fail(err, SL_ERR_ARG, "--depth 0: expected at least 1, a step needs rows to attend to");
    return sl_device_check(o->run->device.name, err);
}

int cli_decode_offered(const sl_attn_spec *spec, const sl_attn_geom *geom, int on_gpu, sl_error *err) {
    char text[512];
    sl_attn_format(spec, text, sizeof text);
    if (on_gpu ? !sl_attn_on_gpu(spec) : sl_attn_check_decode(spec, NULL))
        return sl_fail(err, SL_ERR_UNSUPPORTED, "--attn %.200s: not offered on this device", text);
    return spec->method->supports ? spec->method->supports(geom, spec, err) : 0;
}

static const cli_list all_candidates = {.items = (const char **)candidates, .n = sizeof candidates / sizeof *candidates};

typedef enum { IS_ERROR, LEAVE_OUT, LEAVE_OUT_AND_SAY } if_not_offered;

// Lists dense and these methods, as far as this device and shape offer them.
static int list_specs(const cli_list *methods, if_not_offered rule, const sl_attn_geom *geom, int on_gpu, sl_auto_table *t,
                      sl_error *err) {
    cli_attn_list list;
    int rc = cli_attn_list_parse("--attn", methods, &list, err);
    t->specs[t->n_specs++] = (sl_attn_spec){.method = &sl_method_dense};
    for (int i = 0; !rc && i < list.n; i++) {
        sl_error why;
        if (list.specs[i].method == &sl_method_dense) continue;
        rc = cli_decode_offered(&list.specs[i], geom, on_gpu, &why);
        if (rc && rule == LEAVE_OUT_AND_SAY) cli_say("calibrate: left out: %s", cli_error_text(&why));
        if (rc && rule != IS_ERROR)
            rc = 0;
        else if (rc)
            sl_fail(err, (sl_err)rc, "%s", cli_error_text(&why));
        else if (t->n_specs == SL_AUTO_SPECS)
            rc = sl_fail(err, SL_ERR_ARG, "--attn: expected at most %d methods", SL_AUTO_SPECS);
        else
            t->specs[t->n_specs++] = list.specs[i];
    }
    cli_attn_list_free(&list);
    return rc;
}

// Sets the method of prefill. `text` is that of --mask-method.
static int set_mask_method(const char *text, double density, const sl_attn_geom *geom, int on_gpu, sl_auto_prefill *p,
                           sl_error *err) {
    sl_attn_spec spec;
    int rc = cli_attn_parse("--mask-method", text, &spec, err);
    if (!rc && !sl_attn_makes_mask(&spec))
        return sl_fail(err, SL_ERR_ARG, "--mask-method %.200s: expected a method that makes a mask, as sample or streaming",
                       text);
    if (!rc && on_gpu && !sl_attn_prefills_on_gpu(&spec))
        return sl_fail(err, SL_ERR_UNSUPPORTED, "--mask-method %.200s: not offered on this device", text);
    if (!rc && spec.method->supports) rc = spec.method->supports(geom, &spec, err);
    *p = (sl_auto_prefill){.density = density};
    if (!rc) p->attn = spec;
    return rc;
}

static int begin_table(const char *device, const sl_attn_geom *geom, double query_deviation, const cli_list *methods,
                       if_not_offered rule, sl_auto_table *t, sl_error *err) {
    time_t now = time(NULL);
    struct tm day;
    *t = (sl_auto_table){.query_deviation = query_deviation};
    t->n_heads = geom->n_heads, t->n_kv_heads = geom->n_kv_heads, t->head_dim = geom->head_dim;
    if (!gmtime_r(&now, &day) || !strftime(t->date, sizeof t->date, "%Y-%m-%d", &day)) strcpy(t->date, "unknown");
    int rc = sl_device_name(device, t->device, sizeof t->device, err);
    return rc ? rc : list_specs(methods, rule, geom, sl_device_is_gpu(device), t, err);
}

int cli_calibration_begin(const char *device, const sl_attn_geom *geom, double query_deviation, sl_auto_table *t,
                          sl_error *err) {
    int rc = begin_table(device, geom, query_deviation, &all_candidates, LEAVE_OUT, t, err);
    return rc ? rc : set_mask_method(mask_method, MASK_DENSITY, geom, sl_device_is_gpu(device), &t->prefill, err);
}

static sl_attn_geom geometry_of(const sl_auto_table *t) {
    return (sl_attn_geom){.n_layers = 1, .n_heads = t->n_heads, .n_kv_heads = t->n_kv_heads, .head_dim = t->head_dim};
}

int cli_geometry_of(const cli_model_options *o, sl_attn_geom *geom, sl_error *err) {
    sl_config c;
    *geom = without_model;
    int rc = o->path ? sl_config_load(sl_source_documents(o->source), &c, err) : 0;
    if (!rc && o->path)
        *geom = (sl_attn_geom){.n_layers = 1, .n_heads = c.n_heads, .n_kv_heads = c.n_kv_heads, .head_dim = c.head_dim};
    return rc;
}

static cli_grid find_grid(const cli_bench_options *o, int on_gpu) {
    cli_grid g = on_gpu ? gpu_grid : cpu_grid;
    if (o->batches.n) g.n_seqs = o->batches;
    if (o->depths.n) g.n_kv = o->depths;
    if (o->n_prompts.n) g.n_tokens = o->n_prompts;
    return g;
}

// Pages and sequences of the largest step, and tokens of the largest prefill of the grid, which is one sequence.
static void find_limits(const cli_grid *g, int *n_pages, int *n_seqs, int *n_tokens) {
    *n_pages = *n_seqs = *n_tokens = 1;
    for (int i = 0; i < g->n_tokens.n; i++)
        if (g->n_tokens.at[i] <= g->most_tokens && g->n_tokens.at[i] > *n_tokens) *n_tokens = g->n_tokens.at[i];
    *n_pages = sl_kv_pages_of(*n_tokens);
    for (int i = 0; i < g->n_seqs.n; i++)
        for (int j = 0; j < g->n_kv.n; j++) {
            int n = g->n_seqs.at[i], n_kv = g->n_kv.at[j];
            if (!fits(g, n, n_kv)) continue;
            int pages = sl_kv_pages_of(n_kv);
            if (n * pages > *n_pages) *n_pages = n * pages;
            if (n > *n_seqs) *n_seqs = n;
        }
}

// ---- clocks ----

static int open_gpu(const char *device, const cli_grid *g, const sl_auto_table *t, int repetitions, cli_gpu_clock **c,
                    sl_error *err) {
    const sl_attn_geom geom = geometry_of(t);
    cli_gpu_sizes sizes = {.query_deviation = t->query_deviation, .repetitions = repetitions};
    find_limits(g, &sizes.n_pages, &sizes.n_seqs, &sizes.n_tokens);
    return cli_gpu_clock_open(device, &geom, &sizes, c, err);
}

static int calibrate_gpu(const cli_bench_flags *o, const cli_grid *g, sl_auto_table *t, sl_error *err) {
    cli_gpu_clock *c;
    int repetitions = o->bench->repetitions ? o->bench->repetitions : GPU_REPETITIONS;
    int rc = open_gpu(o->run->device.name, g, t, repetitions, &c, err);
    const cli_clock clock = {.time = cli_gpu_clock_time, .prefill = cli_gpu_clock_prefill, .ctx = c};
    if (!rc) rc = cli_calibrate(&clock, g, t, err);
    cli_gpu_clock_close(c);
    return rc;
}

int cli_calibrate_gpu(const char *device, const char *reason, sl_auto_table *t, sl_error *err) {
    enum { FEW = 9, LEAST_ROWS = 16 * 1024 };
    cli_gpu_clock *c;
    cli_grid g = {.n_seqs = {.at = {1, 4, 16}, .n = 3},
                  .n_kv = {.at = {2048, 4096, 8192, 16384, 32768, 65536, 131072}, .n = 7},
                  .most_rows = 256 * 1024,
                  .n_tokens = gpu_grid.n_tokens,
                  .most_tokens = 32 * 1024};
    int rc = open_gpu(device, &g, t, FEW, &c, err);
    for (; rc == SL_ERR_MEMORY && g.most_rows > LEAST_ROWS; rc = open_gpu(device, &g, t, FEW, &c, err))
        g.most_rows /= 2, g.most_tokens /= 2;
    const cli_clock clock = {.time = cli_gpu_clock_time, .prefill = cli_gpu_clock_prefill, .ctx = c};
    if (!rc) rc = cli_calibrate_announced(&clock, &g, reason, t, err);
    cli_gpu_clock_close(c);
    return rc;
}

static int calibrate_cpu(const cli_bench_flags *o, const cli_grid *g, sl_auto_table *t, sl_error *err) {
    const sl_attn_geom geom = geometry_of(t);
    cli_host_clock *host = NULL;
    int n_pages, n_seqs, n_tokens, repetitions = o->bench->repetitions ? o->bench->repetitions : CPU_REPETITIONS;
    find_limits(g, &n_pages, &n_seqs, &n_tokens);
    int rc = cli_host_clock_open(&geom, n_pages, t->query_deviation, o->run->device.threads, repetitions, &host, err);
    const cli_clock clock = {.time = cli_host_clock_time, .prefill = cli_host_clock_prefill, .ctx = host};
    if (!rc) rc = cli_calibrate(&clock, g, t, err);
    cli_host_clock_close(host);
    return rc;
}

// ---- output ----

static int print_times(const char *model, const sl_auto_table *t, sl_error *err) {
    char text[512] = "shape of Llama-3.1-8B";
    if (model) cli_model_folder_name(model, text, sizeof text);
    int rc =
        cli_printf(err, "model: %s\n\n%s, %d heads, %d KV heads, head_dim %d: microseconds of a layer's decode attention\n\n",
                   text, t->device, t->n_heads, t->n_kv_heads, t->head_dim);
    if (!rc) rc = cli_printf(err, "| sequences | rows |");
    for (int s = 0; !rc && s < t->n_specs; s++) {
        sl_attn_format(&t->specs[s], text, sizeof text);
        rc = cli_printf(err, " %s |", text);
    }
    for (int s = -2; !rc && s < t->n_specs; s++) rc = cli_printf(err, s == -2 ? "\n|---|" : "---|");
    for (int i = 0; !rc && i < t->n_points; i++) {
        const sl_auto_point *p = &t->points[i];
        rc = cli_printf(err, "\n| %d | %d |", p->n_seqs, p->n_kv);
        for (int s = 0; !rc && s < t->n_specs; s++)
            rc = isnan(p->us[s]) ? cli_printf(err, " - |") : cli_printf(err, " %.1f |", p->us[s]);
    }
    return rc ? rc : cli_printf(err, "\n\n");
}

static int print_prefill(const sl_auto_table *t, sl_error *err) {
    const sl_auto_prefill *p = &t->prefill;
    char text[512], line[768], density[SL_NUMBER_TEXT];
    if (!p->attn.method) return 0;
    sl_attn_format(&p->attn, text, sizeof text);
    int rc = cli_printf(err,
                        "microseconds of a layer's prefill attention\n\n| tokens | dense | mask of %s | attention with %s of "
                        "the blocks | both / dense |\n|---|---|---|---|---|\n",
                        text, sl_number_text(p->density, density));
    for (int i = 0; !rc && i < p->n_lengths; i++) {
        const sl_auto_length *l = &p->lengths[i];
        rc = cli_printf(err, "| %d | %.1f | %.1f | %.1f | %.3f |\n", l->n_tokens, l->dense_us, l->mask_us, l->attention_us,
                        (l->mask_us + l->attention_us) / l->dense_us);
    }
    sl_auto_prefill_format(t, line, sizeof line);
    return rc ? rc : cli_printf(err, "\nprefill auto: %s\n", line);
}

static int is_stated_before(const sl_auto_table *t, int s, double epsilon) {
    double delta = sl_attn_get(&t->specs[s], "delta");
    for (int i = 0; i < s; i++)
        if (sl_attn_states_error(&t->specs[i]) && sl_attn_get(&t->specs[i], "epsilon") == epsilon &&
            sl_attn_get(&t->specs[i], "delta") == delta)
            return 1;
    return 0;
}

// Prints the choices of auto on the longest contexts, without epsilon and with each measured epsilon.
static int print_choices(const sl_auto_table *t, sl_error *err) {
    char line[512], text[512], number[2][SL_NUMBER_TEXT];
    int rc = 0;
    for (int s = 0; !rc && s < t->n_specs; s++) {
        const sl_attn_spec *spec = &t->specs[s];
        double epsilon = sl_attn_states_error(spec) ? sl_attn_get(spec, "epsilon") : 0;
        if (s > 0 && epsilon == 0) continue; // auto without epsilon was printed with dense
        if (s && is_stated_before(t, s, epsilon)) continue;
        if (s)
            snprintf(text, sizeof text, "auto:epsilon=%s:delta=%s", sl_number_text(epsilon, number[0]),
                     sl_number_text(sl_attn_get(spec, "delta"), number[1]));
        else
            snprintf(text, sizeof text, "auto");
        for (int i = 0; !rc && i < t->n_points; i++) {
            sl_attn_spec request;
            sl_auto_choice choice;
            if (i && t->points[i].n_seqs == t->points[i - 1].n_seqs) continue;
            rc = sl_attn_parse(text, &request, err);
            if (rc) return rc;
            sl_auto_choose(t, &request, t->points[i].n_seqs, INT_MAX, &choice);
            sl_auto_choice_format(t, &request, &choice, line, sizeof line);
            rc = cli_printf(err, "%s: %s\n", text, line);
        }
    }
    return rc;
}

int cmd_calibrate(const cli_bench_flags *o, sl_error *err) {
    const cli_attention_options *attention = &o->run->attention;
    const char *device = o->run->device.name;
    int is_given = attention->attns.n > 0;
    sl_auto_table t;
    sl_attn_geom geom;
    char path[4096];
    int rc = check_flags(o, err), on_gpu = sl_device_is_gpu(device);
    if (!rc) rc = cli_geometry_of(&o->run->model, &geom, err);
    if (!rc)
        rc = begin_table(device, &geom, attention->query_deviation, is_given ? &attention->attns : &all_candidates,
                         is_given ? IS_ERROR : LEAVE_OUT_AND_SAY, &t, err);
    if (!rc) rc = set_mask_method(o->bench->mask_method, o->bench->mask_density, &geom, on_gpu, &t.prefill, err);
    if (!rc && attention->calibration) snprintf(path, sizeof path, "%s", attention->calibration);
    if (!rc && !attention->calibration) rc = sl_auto_path(t.device, &geom, path, sizeof path, err);
    if (rc) return rc;
    cli_grid grid = find_grid(o->bench, on_gpu);
    cli_catch_interrupt(1);
    rc = on_gpu ? calibrate_gpu(o, &grid, &t, err) : calibrate_cpu(o, &grid, &t, err);
    if (!rc) rc = sl_auto_write(&t, path, err);
    if (!rc) rc = print_times(o->run->model.path, &t, err);
    if (!rc) rc = print_choices(&t, err);
    if (!rc) rc = print_prefill(&t, err);
    if (!rc) rc = cli_flush(err);
    if (!rc) fprintf(stderr, "calibration: written to %s\n", path);
    sl_auto_free(&t);
    return rc;
}
