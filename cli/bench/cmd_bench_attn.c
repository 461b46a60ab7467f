// cli/bench/cmd_bench_attn.c - sleigh bench attn: times only attention kernels and compares them with the time that
// reading their bytes takes.
//
// Owns the sizes and the tables. attn_timing.cu owns the clock.
#include "cli/bench/cmd_bench.h"

#include <stdio.h>
#include <string.h>

#ifdef SLEIGH_CUDA
#include "cli/io.h"
#include "attention/attention.h"
#include "attention/attention_cuda.h"
#include "cli/attn/attn_list.h"
#include "cli/output/plot.h"
#include "cli/output/print_json.h"
#include "cli/output/progress_bar.h"
#include "cli/output/rows.h"
#include "cli/bench/attn_timing.h"
#include "cli/process.h"

#include <math.h>
#include <stdlib.h>

static const sl_attn_geom llama_geom = {.n_layers = 1, .n_heads = 32, .n_kv_heads = 8, .head_dim = 128}; // Llama-3.1-8B
#define SHAPE "shape of Llama-3.1-8B (32 query heads, 8 KV heads, dimension 128, %s)" // the model's name in the tables
enum { MAX_SIZES = 64, MAX_SEQS = 1024, MAX_METHODS = 16, REPETITIONS = 40 };

// ---- sizes and methods ----

typedef struct size {
    char name[48];
    int n_tokens, first; // prefill of n_tokens from position `first`; n_tokens 0: decode
    int n_seqs;
    int n_kv;          // rows of each sequence
    const int *ragged; // [n_seqs] rows, instead of n_kv
} size;

typedef struct plan {
    size sizes[MAX_SIZES];
    cli_attn_list methods;
    int n_sizes;
    cli_attn_states states; // --states; q is NULL without it
    sl_attn_geom geom;
    sl_format format; // of the cache
    char model[320];  // shape or states, for the tables
} plan;

typedef struct row { // one line of the result
    const size *size;
    const sl_attn_spec *spec;
    sl_bench_attn_time time;
    double bytes, features, flops; // decode: bytes and share of key features read; prefill: flops
} row;

static const int ragged[] = {1000, 60001, 8192, 300, 40007, 15000, 131072, 22222};
enum { N_RAGGED = sizeof ragged / sizeof *ragged };

static void count_name(char *buf, size_t n_buf, int n) {
    snprintf(buf, n_buf, n % 1024 ? "%d" : "%dk", n % 1024 ? n : n / 1024);
}

static void add_decode(plan *p, int n_seqs, int n_kv) {
    char count[16];
    size *s = &p->sizes[p->n_sizes++];
    *s = (size){.n_seqs = n_seqs, .n_kv = n_kv};
    count_name(count, sizeof count, n_kv);
    snprintf(s->name, sizeof s->name, "%d x %s", n_seqs, count);
}

static void add_prefill(plan *p, int n_tokens, int first) {
    char count[16], before[16];
    size *s = &p->sizes[p->n_sizes++];
    *s = (size){.n_tokens = n_tokens, .first = first, .n_seqs = 1, .n_kv = first + n_tokens};
    count_name(count, sizeof count, n_tokens);
    count_name(before, sizeof before, first);
    snprintf(s->name, sizeof s->name, first ? "%s at %s" : "%s", count, before);
}

static void add_standard(plan *p) {
    static const int standard[][2] = {{1, 8192},   {1, 32768}, {1, 131072}, {6, 30720}, {8, 32768},
                                      {16, 32768}, {32, 8192}, {1, 20001},  {6, 30001}};
    for (size_t i = 0; i < sizeof standard / sizeof *standard; i++) add_decode(p, standard[i][0], standard[i][1]);
    size *s = &p->sizes[p->n_sizes++];
    *s = (size){.name = "8 ragged", .n_seqs = N_RAGGED, .ragged = ragged};
}

// Adds every batch with every depth if one of the flags is given, else the standard sizes.
static int add_sizes(plan *p, const cli_bench_options *o, sl_error *err) {
    static const cli_ints some_batches = {.at = {1, 4}, .n = 2}, some_depths = {.at = {512, 4096}, .n = 2};
    const cli_ints *batches = o->batches.n ? &o->batches : &some_batches;
    const cli_ints *depths = o->depths.n ? &o->depths : &some_depths;
    int n_sizes = batches->n * (p->states.q ? 1 : depths->n);
    if (n_sizes > MAX_SIZES / 2)
        return sl_fail(err, SL_ERR_ARG, "--batch and --depth: expected at most %d sizes, found %d", MAX_SIZES / 2, n_sizes);
    if (p->states.q) { // every sequence has the rows of the states
        for (int b = 0; b < batches->n; b++) add_decode(p, batches->at[b], p->states.n_rows);
        return 0;
    }
    if (!o->batches.n && !o->depths.n) return add_standard(p), 0;
    for (int d = 0; d < depths->n; d++) {
        if (depths->at[d] == 0)
            return sl_fail(err, SL_ERR_ARG, "--depth 0: expected at least 1, a kernel needs rows to attend to");
        for (int b = 0; b < batches->n; b++) add_decode(p, batches->at[b], depths->at[d]);
    }
    return 0;
}

static int add_methods(plan *p, const cli_list *attns, sl_error *err) {
    cli_attn_list *list = &p->methods;
    int rc = cli_attn_list_parse("--attn", attns, list, err);
    if (!rc && list->n > MAX_METHODS) rc = sl_fail(err, SL_ERR_ARG, "--attn: expected at most %d methods", MAX_METHODS);
    for (int i = 0; !rc && i < list->n; i++)
        if (!sl_attn_on_gpu(&list->specs[i]))
            rc = sl_fail(err, SL_ERR_UNSUPPORTED, "--attn %.100s: not offered on a GPU", list->names[i]);
        else if (p->format != SL_BF16 && !sl_attn_on_byte_rows(&list->specs[i]))
            rc = sl_attn_refuse_byte_rows(&list->specs[i], sl_formats[p->format].name, "bench attn", err);
    return rc;
}

static int read_format(plan *p, const cli_device_options *o, sl_error *err) {
    sl_kv_formats formats;
    int rc = sl_kv_formats_parse(o->kv_cache_dtype, NULL, NULL, &formats, err);
    p->format = formats.k;
    return rc;
}

// Refuses flags that concern the steps of a model.
static int check_flags(const cli_bench_flags *o, sl_error *err) {
    static const char *const of_models[] = {"--model",    "--steps",    "--n-prompt",     "--prompt-gen",   "--ragged",
                                            "--copy",     "--kv-cache", "--cache-type-k", "--cache-type-v", "--fill",
                                            "--hot-hits", "--device",   "--memory-rate",  "--exact-below",  NULL};
    static const char *const of_normal[] = {"--depth", "--query-deviation", "--query-spread", NULL};
    const char *states = o->bench->states, *phase = o->bench->phase, *plot = o->output->plot;
    const char *other = cli_given_flag(o->given, of_models);
    if (other)
        return sl_fail(err, SL_ERR_ARG, "flag %s does not belong to `sleigh bench attn`; it concerns the steps of a model",
                       other);
    other = states ? cli_given_flag(o->given, of_normal) : NULL;
    if (other) return sl_fail(err, SL_ERR_ARG, "flag %s cannot be used with --states, which has the rows and queries", other);
    if (states && !strcmp(phase, "prefill"))
        return sl_fail(err, SL_ERR_ARG, "--phase prefill: expected decode with --states, whose queries are of decode steps");
    if (plot && !strcmp(phase, "prefill"))
        return sl_fail(err, SL_ERR_ARG, "--plot draws decode times; --phase prefill measures none");
    return plot ? cli_plot_check(plot, "--plot", err) : 0;
}

// --phase masks has sizes and methods of its own.
static int check_masks_flags(const cli_given *given, sl_error *err) {
    static const char *const others[] = {"--attn", "--batch", "--depth", "--states", "--plot", "--kv-cache-dtype", NULL};
    const char *other = cli_given_flag(given, others);
    return other ? sl_fail(err, SL_ERR_ARG, "flag %s cannot be used with --phase masks, which has its own sizes and methods",
                           other)
                 : 0;
}

static int read_states(plan *p, const char *folder, sl_error *err) {
    int rc = folder ? cli_attn_states_read(&p->states, folder, err) : 0;
    const sl_attn_geom *g = &p->states.geom;
    p->geom = folder ? *g : llama_geom;
    if (folder)
        snprintf(p->model, sizeof p->model, "%s (%d query heads, %d KV heads, dimension %d, %s, %d steps)", p->states.source,
                 g->n_heads, g->n_kv_heads, g->head_dim, sl_formats[p->format].name, p->states.n_steps);
    else
        snprintf(p->model, sizeof p->model, SHAPE, sl_formats[p->format].name);
    return rc;
}

static int make_plan(plan *p, const cli_bench_flags *o, sl_error *err) {
    int rc = check_flags(o, err);
    if (!rc) rc = read_format(p, &o->run->device, err);
    if (!rc) rc = read_states(p, o->bench->states, err);
    if (!rc) rc = add_methods(p, &o->run->attention.attns, err);
    if (!rc && strcmp(o->bench->phase, "prefill")) rc = add_sizes(p, o->bench, err);
    if (rc || !strcmp(o->bench->phase, "decode") || p->states.q) return rc;
    add_prefill(p, 4096, 0);
    add_prefill(p, 8192, 0);
    add_prefill(p, 32768, 0);
    add_prefill(p, 2048, 30 * 1024);
    return 0;
}

static int rows_of(const size *s, int i) {
    return s->ragged ? s->ragged[i] : s->n_kv;
}

static sl_bench_attn_limits limits_of(const plan *p, const cli_bench_flags *o) {
    sl_bench_attn_limits most = {
        1, 1, 1, o->run->attention.query_deviation, o->bench->query_spread, 0, p->states.q ? &p->states : NULL, p->format};
    for (int i = 0; i < p->n_sizes; i++) {
        const size *s = &p->sizes[i];
        int pages = 0;
        for (int j = 0; j < s->n_seqs; j++) pages += sl_kv_pages_of(rows_of(s, j));
        if (pages > most.n_pages) most.n_pages = pages;
        if (s->n_seqs > most.n_seqs) most.n_seqs = s->n_seqs;
        if (s->n_tokens > most.n_tokens) most.n_tokens = s->n_tokens;
    }
    return most;
}

// ---- timing ----

static int time_row(sl_bench_attn *bench, const sl_attn_geom *g, row *r, int repetitions, sl_error *err) {
    const size *s = r->size;
    int n_kv[MAX_SEQS];
    if (s->n_tokens) {
        double pairs = (double)s->n_tokens * s->first + 0.5 * s->n_tokens * (s->n_tokens + 1.0);
        r->flops = 4 * pairs * g->n_heads * g->head_dim; // two matrix products, each a multiplication and an addition
        return sl_bench_attn_prefill(bench, r->spec, s->n_tokens, s->first, repetitions, &r->time, err);
    }
    for (int i = 0; i < s->n_seqs; i++) n_kv[i] = rows_of(s, i);
    sl_bench_attn_result result = {0};
    int rc = sl_bench_attn_decode(bench, r->spec, s->n_seqs, n_kv, repetitions, &result, err);
    r->time = result.time, r->bytes = result.bytes, r->features = result.features;
    return rc;
}

// ---- tables ----

static double floor_us(const row *r, const sl_bench_attn_device *device) {
    return r->bytes / device->read_gb_s * 1e-3;
}

static const char *attn_name(const row *r, char buf[256]) {
    sl_attn_format(r->spec, buf, 256);
    return buf;
}

// Rows of md, csv and jsonl are printed as soon as they are known: a run that is stopped has printed the rows so far. json is
// printed at the end.
typedef struct output {
    const plan *p;
    sl_bench_attn_device device;
    cli_rows table;      // csv, jsonl
    const char *md_head; // of the last table; NULL: none
} output;

static int print_head(const output *out, sl_error *err) {
    if (strcmp(out->table.format, "md")) return 0;
    return cli_printf(err, "model: %s\n\n%s: a read-only kernel reaches %.0f GB/s, an empty graph takes %.1f us\n",
                      out->p->model, out->device.name, out->device.read_gb_s, out->device.empty_us);
}

static int print_md(output *out, const row *r, sl_error *err) {
    char attn[256];
    int prefill = r->size->n_tokens > 0, rc = 0;
    const char *head =
        prefill ? "\n| prefill, tokens | attn | ms | mean ms | TFLOP/s |\n|---|---|---|---|---|\n"
                : "\n| decode, B x rows | attn | us | mean us | GB/s | floor, us | floor / time | key features read |\n"
                  "|---|---|---|---|---|---|---|---|\n";
    if (!out->md_head || strcmp(head, out->md_head)) rc = cli_printf(err, "%s", head);
    out->md_head = head;
    double floor = floor_us(r, &out->device);
    if (!rc && prefill)
        rc = cli_printf(err, "| %s | %s | %.3f | %.3f | %.0f |\n", r->size->name, attn_name(r, attn), r->time.us * 1e-3,
                        r->time.mean_us * 1e-3, r->flops / r->time.us * 1e-6);
    else if (!rc)
        rc = cli_printf(err, "| %s | %s | %.1f | %.1f | %.0f | %.1f | %.1f%% | %.1f%% |\n", r->size->name, attn_name(r, attn),
                        r->time.us, r->time.mean_us, r->bytes / r->time.us * 1e-3, floor, 100 * floor / r->time.us,
                        100 * r->features);
    return rc ? rc : cli_flush(err);
}

static json_t *row_json(const row *r, const sl_bench_attn_device *device) {
    char attn[256];
    int prefill = r->size->n_tokens > 0;
    return json_pack("{s:s, s:s, s:s, s:f, s:f, s:o, s:o, s:o, s:o}", "phase", prefill ? "prefill" : "decode", "size",
                     r->size->name, "attn", attn_name(r, attn), "us", r->time.us, "mean_us", r->time.mean_us, "gb_s",
                     cli_number(prefill ? NAN : r->bytes / r->time.us * 1e-3), "floor_us",
                     cli_number(prefill ? NAN : floor_us(r, device)), "features", cli_number(prefill ? NAN : r->features),
                     "tflop_s", cli_number(prefill ? r->flops / r->time.us * 1e-6 : NAN));
}

// is_partial: the rows are those before an error or an interrupt.
static int print_json(const output *out, const row *rows, int n, int is_partial, sl_error *err) {
    const sl_bench_attn_device *device = &out->device;
    json_t *list = json_array();
    for (int i = 0; i < n; i++) json_array_append_new(list, row_json(&rows[i], device));
    return cli_print_json(json_pack("{s:s, s:s, s:f, s:f, s:b, s:o}", "model", out->p->model, "device", device->name,
                                    "read_gb_s", device->read_gb_s, "empty_us", device->empty_us, "interrupted", is_partial,
                                    "rows", list),
                          JSON_INDENT(1), err);
}

// A row of csv or jsonl.
static int add_row(output *out, const row *r, sl_error *err) {
    const sl_bench_attn_device *device = &out->device;
    json_t *flat = json_pack("{s:s, s:s}", "model", out->p->model, "device", device->name), *item = row_json(r, device);
    json_object_update(flat, item);
    json_decref(item);
    return cli_rows_add(&out->table, flat, err);
}

static int print_row(output *out, const row *r, sl_error *err) {
    if (!strcmp(out->table.format, "json")) return 0;
    return strcmp(out->table.format, "md") ? add_row(out, r, err) : print_md(out, r, err);
}

// Fills rows[0..*n_rows), size by size, and prints them. A method without a kernel for the phase gets no row.
static int time_all(sl_bench_attn *bench, output *out, int repetitions, row *rows, int *n_rows, sl_error *err) {
    const plan *p = out->p;
    int rc = 0, n_methods = p->methods.n, total = p->n_sizes * n_methods;
    cli_progress progress;
    cli_progress_begin(&progress, "bench attn", "times"); // of each size and method
    for (int i = 0; !rc && i < total; i++) {
        row *r = &rows[*n_rows];
        *r = (row){.size = &p->sizes[i / n_methods], .spec = &p->methods.specs[i % n_methods]};
        cli_progress_update(&progress, i, total);
        if (r->size->n_tokens ? !r->spec->method->cuda->prefill : !r->spec->method->cuda->decode) continue;
        rc = cli_interrupted() ? sl_fail(err, SL_ERR_IO, "interrupted; the table has %d rows of at most %d", *n_rows, total)
                               : time_row(bench, &p->geom, r, repetitions, err);
        if (!rc) rc = print_row(out, r, err);
        if (!rc) ++*n_rows;
    }
    cli_progress_end(&progress);
    return rc;
}

// Only decodes, and not of a ragged batch, which has no single length.
static int on_curve(const row *r) {
    return !r->size->n_tokens && !r->size->ragged;
}

// The numbers of sequences that are drawn, in the order of the rows. Returns how many.
static int batches_of(const row *rows, int n, int batches[MAX_SIZES]) {
    int n_batches = 0;
    for (int i = 0; i < n; i++) {
        int at = 0;
        while (at < n_batches && batches[at] != rows[i].size->n_seqs) at++;
        if (on_curve(&rows[i]) && at == n_batches) batches[n_batches++] = rows[i].size->n_seqs;
    }
    return n_batches;
}

static int add_curves(cli_curves *curves, const row *rows, int n, int n_seqs, sl_error *err) {
    char attn[256], name[192];
    int rc = 0;
    for (int i = 0; !rc && i < n; i++) {
        const row *r = &rows[i];
        if (!on_curve(r) || r->size->n_seqs != n_seqs) continue;
        snprintf(name, sizeof name, "%.191s", attn_name(r, attn));
        rc = cli_curves_add(curves, name, (cli_point){r->size->n_kv, r->time.us, NAN, NAN, 0}, err);
    }
    return rc;
}

// Draws latency against context, one curve for each method, and one panel for each number of sequences.
static int draw(const plan *p, const char *file, const row *rows, int n, const sl_bench_attn_device *device, sl_error *err) {
    cli_curves curves[MAX_SIZES] = {{0}};
    cli_panel panels[MAX_SIZES];
    char titles[MAX_SIZES][64], title[320];
    int rc = 0, batches[MAX_SIZES] = {0}, n_batches = batches_of(rows, n, batches);
    if (!n_batches) n_batches = 1; // a panel without points
    for (int i = 0; i < n_batches; i++) {
        if (!rc) rc = add_curves(&curves[i], rows, n, batches[i], err);
        panels[i] = cli_panel_latency(&curves[i]);
        snprintf(titles[i], sizeof titles[i], "attention of a decode step, %d sequence%s", batches[i],
                 batches[i] == 1 ? "" : "s");
        panels[i].title = n_batches > 1 ? titles[i] : "attention of a decode step";
        panels[i].y_label = "time of a step, us";
        panels[i].log_y = 1;
        panels[i].new_row = i > 0 && i % 2 == 0;
    }
    snprintf(title, sizeof title, "%s, %d query heads, %d KV heads", device->name, p->geom.n_heads, p->geom.n_kv_heads);
    if (!rc) rc = cli_plot(file, title, panels, n_batches, err);
    for (int i = 0; i < n_batches; i++) cli_curves_free(&curves[i]);
    return rc;
}

int cmd_bench_attn(const cli_bench_flags *o, sl_error *err) {
    plan p = {0};
    row rows[MAX_SIZES * MAX_METHODS];
    output out = {.p = &p, .table = {.format = o->output->format}};
    sl_bench_attn *bench = NULL;
    sl_error why;
    if (!strcmp(o->bench->phase, "masks")) {
        int failed = check_flags(o, err);
        if (!failed) failed = check_masks_flags(o->given, err);
        if (!failed && !sl_device_is_gpu("auto"))
            failed = sl_fail(err, SL_ERR_DEVICE, "bench attn --phase masks times kernels of a GPU, and no GPU was found");
        return failed ? failed : cli_bench_masks(o, &llama_geom, err);
    }
    int n_rows = 0, rc = make_plan(&p, o, err);
    if (!rc && !sl_device_is_gpu("auto"))
        rc = sl_fail(
            err, SL_ERR_DEVICE,
            "bench attn times kernels of a GPU, and no GPU was found; `sleigh bench` times the steps of a model on the CPU");
    sl_bench_attn_limits limits = limits_of(&p, o);
    if (!rc) rc = sl_bench_attn_open(&p.geom, &limits, &bench, err);
    if (!rc) rc = sl_bench_attn_device_of(bench, &out.device, err);
    int repetitions = o->bench->repetitions ? o->bench->repetitions : REPETITIONS;
    if (!rc) rc = print_head(&out, err);
    if (!rc) cli_catch_interrupt(1);
    if (!rc) rc = time_all(bench, &out, repetitions, rows, &n_rows, err);
    sl_bench_attn_close(bench);
    if (!strcmp(o->output->format, "json") && (!rc || n_rows)) {
        int failed = print_json(&out, rows, n_rows, rc != 0, rc ? &why : err);
        rc = rc ? rc : failed; // the first error is the reason
    }
    if (!rc && o->output->plot) rc = draw(&p, o->output->plot, rows, n_rows, &out.device, err);
    cli_attn_list_free(&p.methods);
    cli_attn_states_free(&p.states);
    return rc;
}

#else

int cmd_bench_attn(const cli_bench_flags *o, sl_error *err) {
    (void)o;
    return sl_fail(
        err, SL_ERR_UNSUPPORTED,
        "bench attn times kernels of a GPU, and this build has no CUDA; `sleigh bench` times the steps of a model on the CPU");
}

#endif
