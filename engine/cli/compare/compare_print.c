// engine/cli/compare/compare_print.c - the output of sleigh compare. md: the answers to each prompt as soon as they are
// complete, and three tables at the end. csv: the figures of the tables, one row per method. json: everything, with heads and
// tokens. It prints no times, so equal runs print equal bytes.
#include "engine/cli/compare/compare_print.h"
#include "engine/cli/commands.h"
#include "engine/cli/compare/compare.h"
#include "engine/cli/compare/compare_runs.h"
#include "engine/cli/io.h"
#include "engine/cli/output/print_json.h"
#include "engine/cli/output/rows.h"

#include <math.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

static int is(const compare *c, const char *format) {
    return !strcmp(c->o->format, format);
}

// ---- the figures of a method ----

enum { MEDIAN, P90, P99, N_SHARES };

typedef struct figures {
    cli_estimate agreement, prefix;
    double kv_bytes;
    cli_interval top1;
    cli_estimate kl, ppl[N_PARTS], more_nll; // more_nll: ln(perplexity / dense attention's)
    cli_interval kl_at[N_SHARES];
    double kl_max;
    cli_estimate error, cosine;
    cli_interval error_at[2], cosine_at[2]; // error: median and 90%; cosine: median and 10%
    compare_head heads;                     // sums over all heads
} figures;

// exp of the mean, with the standard error of its linear approximation.
static cli_estimate perplexity(const cli_values *nll) {
    cli_estimate mean = cli_values_mean(nll);
    return (cli_estimate){exp(mean.at), exp(mean.at) * mean.error};
}

static void add_head(compare_head *to, const compare_head *h) {
    to->n += h->n;
    to->error += h->error, to->cosine += h->cosine, to->bias += h->bias;
    to->k_rows += h->k_rows, to->v_rows += h->v_rows, to->v_distinct += h->v_distinct;
    to->samples += h->samples, to->ess += h->ess, to->spread += h->spread;
    to->bytes += h->bytes, to->dense_bytes += h->dense_bytes;
}

static int figures_of(const compare *c, const compare_method *m, figures *f, sl_error *err) {
    static const double at[N_SHARES] = {0.5, 0.9, 0.99}, low[2] = {0.5, 0.1};
    const sl_config *config = sl_model_config(c->run.model);
    *f = (figures){.agreement = cli_values_mean(&m->agreement),
                   .prefix = cli_values_mean(&m->prefix),
                   .kv_bytes = (double)m->read.bytes / (double)m->read.dense_bytes,
                   .kl = cli_values_mean(&m->kl),
                   .kl_max = cli_values_max(&m->kl),
                   .more_nll = cli_values_mean(&m->more_nll),
                   .error = cli_values_mean(&m->error),
                   .cosine = cli_values_mean(&m->cosine)};
    double same = 0;
    for (int i = 0; i < m->top1.n; i++) same += m->top1.x[i];
    f->top1 = cli_share(same, m->top1.n);
    for (int j = 0; j < N_PARTS; j++) f->ppl[j] = perplexity(&m->nll[j]);
    for (int i = 0; i < config->n_layers * config->n_heads; i++) add_head(&f->heads, &m->heads[i]);
    int rc = cli_values_quantiles(&m->kl, at, N_SHARES, f->kl_at, err);
    if (!rc) rc = cli_values_quantiles(&m->error, at, 2, f->error_at, err);
    return rc ? rc : cli_values_quantiles(&m->cosine, low, 2, f->cosine_at, err);
}

// ---- JSON ----

static void put(json_t *row, const char *name, double x) {
    json_object_set_new(row, name, cli_number(x));
}

static void put_count(json_t *row, const char *name, long long n) {
    json_object_set_new(row, name, json_integer(n));
}

static void put_estimate(json_t *row, const char *name, cli_estimate e) {
    char key[64];
    put(row, name, e.at);
    snprintf(key, sizeof key, "%s_se", name);
    put(row, key, e.error);
}

static void put_interval(json_t *row, const char *name, cli_interval i) {
    char key[64];
    put(row, name, i.at);
    snprintf(key, sizeof key, "%s_low", name);
    put(row, key, i.low);
    snprintf(key, sizeof key, "%s_high", name);
    put(row, key, i.high);
}

static void put_reads(json_t *row, const compare_head *h) { // means over steps
    put(row, "bias", h->bias / h->n);
    put(row, "v_rows", h->v_rows / h->n);
    put(row, "v_distinct", h->v_distinct > 0 || h->v_rows == 0 ? h->v_distinct / h->n : NAN);
    put(row, "samples", h->samples / h->n);
    put(row, "ess", h->ess / h->n);
    put(row, "coefficient_spread", h->spread / h->n);
    put(row, "k_rows", h->k_rows / h->n);
    put(row, "bytes", h->bytes / h->n);
    put(row, "bytes_share", h->bytes / h->dense_bytes);
}

// A flat object with the same fields in the same order for every method.
static json_t *row_of(const compare *c, const compare_method *m, const figures *f) {
    static const char *const kl_names[N_SHARES] = {"kl_median", "kl_90", "kl_99"};
    json_t *row = json_pack("{s:s, s:i, s:i}", "attn", m->text, "prompts", c->n_prompts, "identical", m->n_identical);
    put_estimate(row, "agreement", f->agreement);
    put_estimate(row, "common_prefix", f->prefix);
    put(row, "kv_bytes_share", f->kv_bytes);
    put_count(row, "positions", m->kl.n);
    put_interval(row, "top1", f->top1);
    put_estimate(row, "kl", f->kl);
    for (int i = 0; i < N_SHARES; i++) put_interval(row, kl_names[i], f->kl_at[i]);
    put(row, "kl_max", f->kl_max);
    put_count(row, "question_tokens", m->nll[QUESTION].n);
    put_estimate(row, "ppl_question", f->ppl[QUESTION]);
    put_estimate(row, "ppl_question_dense", perplexity(&c->dense_nll[QUESTION]));
    put_count(row, "answer_tokens", m->nll[ANSWER].n);
    put_estimate(row, "ppl_answer", f->ppl[ANSWER]);
    put_estimate(row, "ppl_answer_dense", perplexity(&c->dense_nll[ANSWER]));
    put_estimate(row, "ln_ppl_ratio", f->more_nll);
    put_count(row, "head_outputs", m->error.n);
    put_estimate(row, "l2", f->error);
    put_interval(row, "l2_median", f->error_at[0]);
    put_interval(row, "l2_90", f->error_at[1]);
    put_estimate(row, "cosine", f->cosine);
    put_interval(row, "cosine_median", f->cosine_at[0]);
    put_interval(row, "cosine_10", f->cosine_at[1]);
    put_reads(row, &f->heads);
    return row;
}

static json_t *heads_json(const compare *c, const compare_method *m) {
    const sl_config *config = sl_model_config(c->run.model);
    json_t *list = json_array();
    for (int i = 0; c->o->heads && i < config->n_layers * config->n_heads; i++) {
        const compare_head *h = &m->heads[i];
        json_t *row = json_pack("{s:i, s:i}", "layer", i / config->n_heads, "head", i % config->n_heads);
        put(row, "l2", h->error / h->n);
        put(row, "cosine", h->cosine / h->n);
        put_reads(row, h);
        json_array_append_new(list, row);
    }
    return list;
}

static json_t *tiles_json(const compare *c, const compare_method *m) {
    static const char *const names[N_TILES] = {"1", "2", "3-4", "5-8", "9+"};
    json_t *list = json_array();
    for (int i = 0; c->o->heads && i < N_TILES; i++) {
        const compare_tiles *t = &m->tiles[i];
        json_t *row = json_pack("{s:s, s:I}", "tiles", names[i], "head_outputs", (json_int_t)t->n);
        put(row, "l2", t->error / t->n);
        put(row, "cosine", t->cosine / t->n);
        json_array_append_new(list, row);
    }
    return list;
}

static json_t *answer_json(const compare_answer *a) {
    json_t *ids = json_array(), *text = json_stringn(a->text.data, a->text.n);
    for (size_t i = 0; i < a->ids.n; i++) json_array_append_new(ids, json_integer(a->ids.data[i]));
    // the text is not UTF-8 only if a --stop text cuts a character in two
    return json_pack("{s:o, s:o, s:s}", "text", text ? text : json_null(), "ids", ids, "stopped", a->stopped);
}

// Mean of the values of the last prompt; *n: their number.
static double last_group(const cli_values *v, int *n) {
    int from = v->n_groups > 1 ? v->ends[v->n_groups - 2] : 0;
    double sum = 0;
    for (int i = from; i < v->n; i++) sum += v->x[i];
    *n = v->n - from;
    return sum / *n;
}

static json_t *prompt_json(const compare *c, const compare_prompt *p, json_t *id) {
    json_t *row = json_pack("{s:O, s:I, s:i, s:i}", "id", id, "sequence", (json_int_t)p->sequence, "n_prompt", (int)p->ids.n,
                            "n_dense", p->n_dense);
    json_t *methods = json_array();
    json_object_set_new(row, "dense", answer_json(&c->dense));
    for (int i = 0; i < c->attn.n; i++) {
        const compare_method *m = &c->methods[i];
        json_t *answer = answer_json(&m->answer);
        int differ = compare_differ_at(&c->dense.ids, &m->answer.ids), n;
        json_object_set_new(answer, "attn", json_string(m->text));
        json_object_set_new(answer, "differs_at", differ < 0 ? json_null() : json_integer(differ));
        put(answer, "agreement", m->agreement.x[m->agreement.n - 1]);
        put(answer, "top1", last_group(&m->top1, &n));
        put(answer, "kl", last_group(&m->kl, &n));
        put_count(answer, "positions", n);
        json_array_append_new(methods, answer);
    }
    json_object_set_new(row, "methods", methods);
    return row;
}

// methods: one row per method; this adds the heads to the rows and does not take over the reference.
static int print_json(compare *c, json_t *methods, sl_error *err) {
    const cli_options *o = c->o;
    char device[256];
    sl_engine_describe(c->run.engine, device, sizeof device);
    for (int i = 0; i < c->attn.n; i++) {
        json_t *row = json_array_get(methods, (size_t)i);
        json_object_set_new(row, "heads", heads_json(c, &c->methods[i]));
        json_object_set_new(row, "tiles", tiles_json(c, &c->methods[i]));
    }
    json_t *out =
        json_pack("{s:s, s:s, s:s, s:I, s:f, s:i}", "version", SLEIGH_VERSION, "commit", cli_commit(), "device", device, "seed",
                  (json_int_t)o->seed, "temp", (double)c->run.sampling.temp, "n_predict", o->n_predict);
    json_object_set_new(out, "interrupted", json_boolean(c->is_partial));
    json_object_set(out, "prompts", c->rows);
    json_object_set(out, "methods", methods);
    return cli_print_json(cli_model_name_json(&c->name, out), JSON_INDENT(1), err);
}

// ---- the texts of a prompt ----

// Prints text as a cell of a Markdown table.
static int print_cell(const char *text, size_t n, sl_error *err) {
    int rc = 0;
    for (size_t i = 0; !rc && i < n; i++) {
        unsigned char ch = (unsigned char)text[i];
        rc = ch == '\n'  ? cli_printf(err, "\\n")
             : ch == '|' ? cli_printf(err, "\\|")
             : ch < ' '  ? cli_printf(err, " ")
                         : cli_write(text + i, 1, err);
    }
    return rc;
}

// Length in bytes of the text of the first n tokens of an answer.
static int text_before(const compare *c, const compare_answer *a, int n, size_t *bytes, sl_error *err) {
    sl_text text = {0};
    sl_detok_stream detok = sl_detok_begin(sl_model_tokenizer(c->run.model), 0, 0);
    int rc = 0, n_vocab = sl_tokenizer_n_vocab(detok.tok);
    for (int i = 0; !rc && i < n; i++) // ids above the tokenizer's are padding of the vocabulary and have no text
        if (a->ids.data[i] < n_vocab) rc = sl_detok_next(&detok, a->ids.data[i], &text, err);
    *bytes = text.n < a->text.n ? text.n : a->text.n;
    sl_text_free(&text);
    return rc;
}

// Prints the text from the first different token on in red on a terminal, else in {+ +}.
static int print_answer(const compare *c, const compare_method *m, sl_error *err) {
    const compare_answer *a = &m->answer;
    int differ = compare_differ_at(&c->dense.ids, &a->ids), colour = isatty(STDOUT_FILENO);
    size_t same = a->text.n;
    int rc = differ < 0 ? 0 : text_before(c, a, differ, &same, err);
    if (!rc) rc = cli_printf(err, "| %s | ", m->text);
    if (!rc) rc = differ < 0 ? cli_printf(err, "-") : cli_printf(err, "%d of %zu", differ, c->dense.ids.n);
    if (!rc) rc = cli_printf(err, " | %.1f%% | ", 100 * m->agreement.x[m->agreement.n - 1]);
    if (!rc) rc = print_cell(a->text.data, same, err);
    if (!rc && differ >= 0) rc = cli_printf(err, colour ? "\033[31m" : "{+");
    if (!rc) rc = print_cell(a->text.data + same, a->text.n - same, err);
    if (!rc && differ >= 0) rc = cli_printf(err, colour ? "\033[0m" : "+}");
    return rc ? rc : cli_printf(err, " |\n");
}

static int print_texts(const compare *c, const compare_prompt *p, int index, sl_error *err) {
    const char *id = json_string_value(p->id);
    int rc = index ? 0 : cli_print_model(&c->name, err);
    if (!rc)
        rc = cli_printf(err, "prompt %d%s%s: %zu tokens, %d of them prefilled densely\n\n", index, id ? ": " : "", id ? id : "",
                        p->ids.n, p->n_dense);
    if (!rc) rc = cli_printf(err, "| method | differs at token | agreement | text |\n|---|---|---|---|\n| (dense) | | | ");
    if (!rc) rc = print_cell(c->dense.text.data, c->dense.text.n, err);
    if (!rc) rc = cli_printf(err, " |\n");
    for (int i = 0; !rc && i < c->attn.n; i++) rc = print_answer(c, &c->methods[i], err);
    if (!rc) rc = cli_printf(err, "\n");
    return rc ? rc : cli_flush(err);
}

int compare_print_prompt(compare *c, const compare_prompt *p, int index, sl_error *err) {
    if (is(c, "md")) return print_texts(c, p, index, err);
    if (!is(c, "json")) return 0;
    if (!c->rows) c->rows = json_array();
    json_t *id = p->id ? json_incref(p->id) : json_integer(index);
    json_array_append_new(c->rows, prompt_json(c, p, id));
    json_decref(id);
    return 0;
}

// ---- the tables ----

#define TABLE(COLUMNS)                                                                                                         \
    { .format = "md", .columns = COLUMNS, .n_columns = sizeof COLUMNS / sizeof *(COLUMNS) }

static const cli_column free_columns[] = {
    {.title = "method", .key = "attn"},
    {.title = "identical", .key = "identical"},
    {.title = "equal tokens before the first difference", .key = "common_prefix", .spread = "common_prefix_se", .digits = 1},
    {.title = "agreement %", .key = "agreement", .spread = "agreement_se", .digits = 1, .scale = 100},
    {.title = "KV bytes %", .key = "kv_bytes_share", .digits = 2, .scale = 100},
};

static const cli_column forced_columns[] = {
    {.title = "method", .key = "attn"},
    {.title = "top-1 agreement %", .key = "top1", .low = "top1_low", .high = "top1_high", .digits = 1, .scale = 100},
    {.title = "KL mean", .key = "kl", .spread = "kl_se", .digits = -3},
    {.title = "KL median", .key = "kl_median", .low = "kl_median_low", .high = "kl_median_high", .digits = -3},
    {.title = "KL 90%", .key = "kl_90", .low = "kl_90_low", .high = "kl_90_high", .digits = -3},
    {.title = "KL 99%", .key = "kl_99", .low = "kl_99_low", .high = "kl_99_high", .digits = -3},
    {.title = "KL max", .key = "kl_max", .digits = -3},
    {.title = "perplexity, question", .key = "ppl_question", .spread = "ppl_question_se", .digits = 4},
    {.title = "perplexity, answer", .key = "ppl_answer", .spread = "ppl_answer_se", .digits = 4},
    {.title = "ln(perplexity / dense)", .key = "ln_ppl_ratio", .spread = "ln_ppl_ratio_se", .digits = 5},
};

static const cli_column head_columns[] = {
    {.title = "method", .key = "attn"},
    {.title = "L2 mean", .key = "l2", .spread = "l2_se", .digits = 4},
    {.title = "L2 median", .key = "l2_median", .digits = 4},
    {.title = "L2 90%", .key = "l2_90", .digits = 4},
    {.title = "cosine mean", .key = "cosine", .spread = "cosine_se", .digits = 4},
    {.title = "cosine median", .key = "cosine_median", .digits = 4},
    {.title = "cosine 10%", .key = "cosine_10", .digits = 4},
    {.title = "bias", .key = "bias", .digits = 5, .sign = 1},
    {.title = "K rows", .key = "k_rows", .digits = 1},
    {.title = "V rows", .key = "v_rows", .digits = 1},
    {.title = "distinct V rows of a KV head", .key = "v_distinct", .digits = 1},
    {.title = "effective samples", .key = "ess", .digits = 1},
    {.title = "coefficient spread", .key = "coefficient_spread", .digits = 2},
    {.title = "bytes %", .key = "bytes_share", .digits = 2, .scale = 100},
};

static json_t *dense_row(const compare *c) {
    json_t *row = json_pack("{s:s}", "attn", "(dense)");
    put_estimate(row, "ppl_question", perplexity(&c->dense_nll[QUESTION]));
    put_estimate(row, "ppl_answer", perplexity(&c->dense_nll[ANSWER]));
    return row;
}

static int print_rows(cli_rows *table, json_t *rows, sl_error *err) {
    size_t i;
    json_t *row;
    int rc = 0;
    json_array_foreach(rows, i, row) if (!rc) rc = cli_rows_add(table, json_incref(row), err);
    return rc;
}

static int print_md(const compare *c, json_t *rows, sl_error *err) {
    cli_rows free_runs = TABLE(free_columns), forced = TABLE(forced_columns), heads = TABLE(head_columns);
    int n = c->dense_nll[QUESTION].n + c->dense_nll[ANSWER].n;
    int rc = cli_printf(err, "texts: %d prompts, seed %u, temperature %g\n\n", c->n_prompts, c->o->seed,
                        (double)c->run.sampling.temp);
    if (!rc) rc = print_rows(&free_runs, rows, err);
    if (!rc)
        rc = cli_printf(err, "\nnext tokens on the path of %s: %d positions, KL divergence from dense attention in nats\n\n",
                        c->n_references ? "dense attention or the reference" : "dense attention", n);
    if (!rc) rc = cli_rows_add(&forced, dense_row(c), err);
    if (!rc) rc = print_rows(&forced, rows, err);
    if (rc || !c->o->heads) return rc;
    rc = cli_printf(err,
                    "\nheads on the states of the dense run: %d outputs; a row's figures are means over layers, heads and "
                    "steps\n\n",
                    c->methods[0].error.n);
    return rc ? rc : print_rows(&heads, rows, err);
}

json_t *compare_rows(const compare *c, sl_error *err) {
    json_t *rows = json_array();
    int rc = rows ? 0 : sl_fail(err, SL_ERR_MEMORY, "the tables: out of memory");
    for (int i = 0; !rc && i < c->attn.n; i++) {
        figures f;
        rc = figures_of(c, &c->methods[i], &f, err);
        if (!rc) json_array_append_new(rows, row_of(c, &c->methods[i], &f));
    }
    if (!rc) return rows;
    json_decref(rows);
    return NULL;
}

int compare_print_summary(compare *c, json_t *rows, sl_error *err) {
    cli_rows flat = {.format = c->o->format, .model = &c->name};
    if (is(c, "json")) return print_json(c, rows, err);
    return is(c, "md") ? print_md(c, rows, err) : print_rows(&flat, rows, err);
}
