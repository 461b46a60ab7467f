// cli/perplexity/perplexity_print.c - see perplexity_print.h.
#include "cli/perplexity/perplexity_print.h"
#include "cli/commands.h"
#include "cli/io.h"
#include "cli/output/print_json.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static int is(const perplexity *p, const char *format) {
    return !strcmp(p->o->output->format, format);
}

static void put(json_t *row, const char *name, double x) {
    json_object_set_new(row, name, cli_number(x));
}

// Fields nll, nll_se, ppl and ppl_se. The error of the perplexity is that of its linear approximation.
static void put_mean(json_t *row, const cli_values *nll) {
    cli_estimate mean = cli_values_mean(nll);
    put(row, "nll", mean.at);
    put(row, "nll_se", mean.error);
    put(row, "ppl", exp(mean.at));
    put(row, "ppl_se", exp(mean.at) * mean.error);
}

// ---- rows of windows or texts ----

static const cli_column window_columns[] = {{.title = "window", .key = "window"},
                                            {.title = "first token", .key = "first_token"},
                                            {.title = "scored", .key = "scored"}},
                        text_columns[] = {{.title = "text", .key = "text"},
                                          {.title = "id", .key = "id"},
                                          {.title = "windows", .key = "windows"},
                                          {.title = "scored", .key = "scored"}};

static void add_column(perplexity *p, cli_column column) {
    p->columns[p->table.n_columns++] = column;
}

void perplexity_print_begin(perplexity *p) {
    const cli_column *first = p->o->input->jsonl ? text_columns : window_columns;
    int n = p->o->input->jsonl ? sizeof text_columns / sizeof *text_columns : sizeof window_columns / sizeof *window_columns;
    p->table = (cli_rows){.format = p->o->output->format, .columns = p->columns, .model = &p->name};
    for (int i = 0; i < n; i++) add_column(p, first[i]);
    for (int i = 0; i < p->n_histories && p->o->perplexity->histories.n; i++) {
        perplexity_history *h = &p->histories[i];
        snprintf(h->title, sizeof h->title, "perplexity after %s", h->name);
        add_column(p, (cli_column){.title = h->title, .key = h->title, .digits = 4});
    }
    if (p->o->perplexity->histories.n) return;
    const char *title = p->o->input->jsonl ? "perplexity of the text" : "perplexity of the window";
    add_column(p, (cli_column){.title = title, .key = "ppl", .digits = 4});
    add_column(p, (cli_column){.title = "perplexity so far", .key = "ppl_so_far", .spread = "ppl_so_far_se", .digits = 4});
}

// The mean of the values since the last row.
static double row_mean(const perplexity *p, const perplexity_history *h) {
    double sum = 0;
    for (int i = p->n_scored; i < h->nll.n; i++) sum += h->nll.x[i];
    return sum / (h->nll.n - p->n_scored);
}

static void put_row(const perplexity *p, json_t *row) {
    const cli_values *nll = &p->histories[0].nll;
    cli_estimate mean = cli_values_mean(nll);
    put(row, "nll", row_mean(p, &p->histories[0]));
    put(row, "ppl", exp(row_mean(p, &p->histories[0])));
    json_object_set_new(row, "scored_so_far", json_integer(nll->n));
    put(row, "nll_so_far", mean.at);
    put(row, "nll_so_far_se", mean.error);
    put(row, "ppl_so_far", exp(mean.at));
    put(row, "ppl_so_far_se", exp(mean.at) * mean.error);
}

// The perplexities after all histories: a list in json, columns in md.
static void put_histories(const perplexity *p, json_t *row) {
    json_t *list = json_array();
    for (int i = 0; i < p->n_histories; i++) {
        const perplexity_history *h = &p->histories[i];
        double mean = row_mean(p, h);
        json_t *entry = json_pack("{s:s}", "history", h->name);
        put(entry, "nll", mean);
        put(entry, "ppl", exp(mean));
        json_array_append_new(list, entry);
        if (is(p, "md")) put(row, h->title, exp(mean));
    }
    json_object_set_new(row, "histories", list);
}

// Completes a row of the values since the last row, and prints it or keeps it. n_windows: of the row.
static int add_row(perplexity *p, json_t *row, int n_windows, sl_error *err) {
    int n = p->histories[0].nll.n, rc = 0;
    json_object_set_new(row, "scored", json_integer(n - p->n_scored));
    json_object_set_new(row, "attn", json_string(p->attn));
    if (p->o->perplexity->histories.n)
        put_histories(p, row);
    else
        put_row(p, row);
    p->n_scored = n, p->n_windows += n_windows, p->n_rows++;
    if (is(p, "json")) {
        if (!p->rows) p->rows = json_array();
        json_array_append_new(p->rows, row);
    } else if (is(p, "md") || !p->o->perplexity->histories.n) {
        rc = cli_rows_add(&p->table, row, err);
    } else {
        json_decref(row);
    }
    return rc;
}

int perplexity_print_window(perplexity *p, int window, sl_error *err) {
    return add_row(p, json_pack("{s:i, s:i}", "window", window, "first_token", window * p->stride), 1, err);
}

int perplexity_print_text(perplexity *p, int text, sl_error *err) {
    const perplexity_text *t = &p->texts[text];
    json_t *row =
        json_pack("{s:i, s:O, s:I, s:i}", "text", text, "id", t->id, "tokens", (json_int_t)t->ids.n, "windows", t->n_windows);
    return add_row(p, row, t->n_windows, err);
}

// ---- the table of histories ----

static const cli_column history_columns[] = {
    {.title = "history", .key = "history"},
    {.title = "tokens before a scored token: fewest", .key = "history_fewest"},
    {.title = "most", .key = "history_most"},
    {.title = "scored", .key = "scored"},
    {.title = "perplexity", .key = "ppl", .spread = "ppl_se", .digits = 4},
    {.title = "ln(perplexity / row above)",
     .key = "ln_ppl_ratio",
     .spread = "ln_ppl_ratio_se",
     .low = "ln_ppl_ratio_low",
     .high = "ln_ppl_ratio_high",
     .digits = 5},
};

// ln(perplexity / that of the history before), from the differences of the same tokens.
static int put_ratio(const perplexity *p, int i, json_t *row, sl_error *err) {
    cli_estimate mean = {NAN, NAN};
    cli_interval interval = {NAN, NAN, NAN};
    const cli_values *nll = &p->histories[i].nll;
    if (i) {
        cli_values more = *nll; // with the same groups
        more.x = malloc(nll->n * sizeof *more.x);
        if (!more.x) return sl_fail(err, SL_ERR_MEMORY, "differences of histories: out of memory");
        for (int k = 0; k < nll->n; k++) more.x[k] = nll->x[k] - p->histories[i - 1].nll.x[k];
        mean = cli_values_mean(&more);
        interval = cli_values_mean_interval(&more, mean);
        free(more.x);
    }
    put(row, "ln_ppl_ratio", mean.at);
    put(row, "ln_ppl_ratio_se", mean.error);
    put(row, "ln_ppl_ratio_low", interval.low);
    put(row, "ln_ppl_ratio_high", interval.high);
    return 0;
}

static int add_history(const perplexity *p, int i, cli_rows *table, json_t *list, sl_error *err) {
    const perplexity_history *h = &p->histories[i];
    int is_all = h->n_tokens == CLI_ALL, fewest = is_all ? p->first + 1 : h->n_tokens;
    int most = is_all ? p->n_ctx - 1 : h->n_tokens + p->segment - 1;
    json_t *row =
        json_pack("{s:s, s:i, s:i, s:i, s:i, s:i, s:s}", "history", h->name, "history_fewest", fewest, "history_most", most,
                  "texts", p->o->input->jsonl ? p->n_rows : 1, "windows", p->n_windows, "scored", h->nll.n, "attn", p->attn);
    put_mean(row, &h->nll);
    int rc = put_ratio(p, i, row, err);
    if (!rc && !list) return cli_rows_add(table, row, err);
    if (!rc) json_array_append(list, row);
    json_decref(row);
    return rc;
}

// list: NULL: prints the rows.
static int add_histories(const perplexity *p, json_t *list, sl_error *err) {
    cli_rows table = {.format = p->o->output->format,
                      .columns = history_columns,
                      .n_columns = sizeof history_columns / sizeof *history_columns};
    int rc = is(p, "md") ? cli_printf(err, "\n") : 0;
    if (!is(p, "md")) table.model = &p->name;
    for (int i = 0; !rc && i < p->n_histories; i++) rc = add_history(p, i, &table, list, err);
    return rc;
}

// ---- the result ----

// Tokens of the texts of the complete rows.
static long long n_tokens(const perplexity *p) {
    long long sum = 0;
    for (int i = 0; i < (p->o->input->jsonl ? p->n_rows : p->n_texts); i++) sum += (long long)p->texts[i].ids.n;
    return sum;
}

static int print_md_end(const perplexity *p, sl_error *err) {
    cli_estimate mean = cli_values_mean(&p->histories[0].nll);
    const char *s = p->n_windows == 1 ? "" : "s";
    int rc = cli_printf(err, "\n");
    if (!rc && !p->o->perplexity->histories.n)
        rc = cli_printf(err, "perplexity: %.4f ± %.4f, ", exp(mean.at), exp(mean.at) * mean.error);
    if (!rc)
        rc = cli_printf(err, "%d of %lld tokens scored in %d window%s of %d", p->n_scored, n_tokens(p), p->n_windows, s,
                        p->n_ctx);
    if (!rc && p->o->input->jsonl) rc = cli_printf(err, " from %d text%s", p->n_rows, p->n_rows == 1 ? "" : "s");
    if (!rc) rc = cli_printf(err, ", attention %s\n", p->attn);
    return rc || !p->o->perplexity->histories.n ? rc : add_histories(p, NULL, err);
}

static int print_json_end(perplexity *p, sl_error *err) {
    const cli_perplexity_flags *o = p->o;
    char device[256];
    sl_engine_describe(p->run.engine, device, sizeof device);
    json_t *out = json_pack("{s:s, s:s, s:s, s:o, s:I, s:s, s:i, s:i, s:i, s:i, s:I, s:i, s:O}", "version", SLEIGH_VERSION,
                            "commit", cli_commit(), "device", device, "file",
                            cli_file_json(o->input->jsonl  ? o->input->jsonl
                                          : o->input->file ? o->input->file
                                                           : "-"),
                            "seed", (json_int_t)o->run->sampling.seed, "attn", p->attn, "n_ctx", p->n_ctx, "stride", p->stride,
                            "n_score", p->n_ctx - 1 - p->first, "n_dense", p->n_dense, "tokens", (json_int_t)n_tokens(p),
                            "scored", p->n_scored, o->input->jsonl ? "texts" : "windows", p->rows);
    json_object_set_new(out, "interrupted", json_boolean(p->n_windows < p->n_planned));
    int rc = 0;
    if (o->perplexity->histories.n) {
        json_t *list = json_array();
        json_object_set_new(out, "segment", json_integer(p->segment));
        json_object_set_new(out, "histories", list);
        rc = add_histories(p, list, err);
    } else {
        put_mean(out, &p->histories[0].nll);
    }
    if (!rc) return cli_print_json(cli_model_name_json(&p->name, out), JSON_INDENT(1), err);
    json_decref(out);
    return rc;
}

int perplexity_print_end(perplexity *p, sl_error *err) {
    if (is(p, "json")) return print_json_end(p, err);
    if (is(p, "md")) return print_md_end(p, err);
    return p->o->perplexity->histories.n ? add_histories(p, NULL, err) : 0;
}
