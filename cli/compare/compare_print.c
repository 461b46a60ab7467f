// cli/compare/compare_print.c - the output of sleigh compare. md: the answers to each prompt as soon as they are
// complete, and up to four tables at the end. csv: the figures of the tables, one row per method. json: everything, with heads
// and tokens. It prints no times, so equal runs print equal bytes
// (with --attn-prefill: but for TTFT).
#include "cli/compare/compare_print.h"
#include "cli/compare/compare_rows.h"
#include "cli/compare/compare_runs.h"
#include "cli/io.h"
#include "cli/output/certificates.h"
#include "cli/output/prefill_fields.h"
#include "cli/output/rows.h"

#include <string.h>
#include <unistd.h>

static int is(const compare *c, const char *format) {
    return !strcmp(c->o->output->format, format);
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
    if (!rc && compare_lists_prefill(c))
        rc = cli_printf(err, "| %s, prefill %s | ", m->text, m->prefill);
    else if (!rc)
        rc = cli_printf(err, "| %s | ", m->text);
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
        rc = cli_printf(err, "prompt %d%s%s: %zu token%s, %d of them prefilled%s\n\n", index, id ? ": " : "", id ? id : "",
                        p->ids.n, cli_s((long long)p->ids.n), p->n_dense, compare_lists_prefill(c) ? "" : " densely");
    if (!rc) rc = cli_printf(err, "| method | differs at token | agreement | text |\n|---|---|---|---|\n| (dense) | | | ");
    if (!rc) rc = print_cell(c->dense.text.data, c->dense.text.n, err);
    if (!rc) rc = cli_printf(err, " |\n");
    for (int i = 0; !rc && i < c->attn.n; i++) rc = print_answer(c, &c->methods[i], err);
    if (!rc) rc = cli_printf(err, "\n");
    return rc ? rc : cli_flush(err);
}

int compare_print_prompt(compare *c, const compare_prompt *p, int index, sl_error *err) {
    if (is(c, "md")) return c->o->compare->texts ? print_texts(c, p, index, err) : 0;
    if (!is(c, "json")) return 0;
    if (!c->rows) c->rows = json_array();
    json_array_append_new(c->rows, compare_prompt_json(c, p, index));
    return 0;
}

// ---- the tables ----

// Copies the columns of a table. After the first one, inserts the method for prefill, if --attn-prefill lists methods. Returns
// the number of columns. out: room for n + 1
static int copy_columns(const compare *c, const cli_column *columns, int n, cli_column *out) {
    int more = compare_lists_prefill(c);
    out[0] = columns[0], out[1] = (cli_column){.title = "prefill", .key = "attn_prefill"};
    memcpy(out + 1 + more, columns + 1, (size_t)(n - 1) * sizeof *columns);
    return n + more;
}

#define TABLE(COLUMNS)                                                                                                         \
    { .format = "md", .columns = COLUMNS, .n_columns = sizeof COLUMNS / sizeof *(COLUMNS) }

static const cli_column free_columns[] = {
    {.title = "method", .key = "attn"},
    {.title = "identical", .key = "identical"},
    {.title = "equal tokens before the first difference", .key = "common_prefix", .spread = "common_prefix_se", .digits = 1},
    {.title = "agreement %", .key = "agreement", .spread = "agreement_se", .digits = 1, .scale = 100},
    {.title = "KV bytes %", .key = "kv_bytes_share", .digits = 2, .scale = 100},
    {.title = "texts: ln(perplexity) with dense attention", .key = "text_nll", .spread = "text_nll_se", .digits = 4},
    {.title = "texts: 10%", .key = "text_nll_10", .digits = 4},
    {.title = "texts: median", .key = "text_nll_median", .digits = 4},
    {.title = "texts: 90%", .key = "text_nll_90", .digits = 4},
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
    {.title = "KV bytes %", .key = "step_bytes_share", .digits = 2, .scale = 100},
};

static const cli_column head_columns[] = {
    {.title = "method", .key = "attn"},
    {.title = "L2 mean", .key = "l2", .spread = "l2_se", .digits = 4},
    {.title = "L2 median", .key = "l2_median", .low = "l2_median_low", .high = "l2_median_high", .digits = 4},
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

static const cli_column attention_columns[] = {
    {.title = "layer", .key = "layer"},
    {.title = "effective keys, exp(entropy)",
     .key = "keys_entropy",
     .low = "keys_entropy_low",
     .high = "keys_entropy_high",
     .digits = 1},
    {.title = "effective keys, 1 / sum p^2",
     .key = "keys_squares",
     .low = "keys_squares_low",
     .high = "keys_squares_high",
     .digits = 1},
    {.title = "mass of the first 4 tokens %", .key = "sink", .low = "sink_low", .high = "sink_high", .digits = 1, .scale = 100},
    {.title = "mass of the last 256 tokens %",
     .key = "window",
     .low = "window_low",
     .high = "window_high",
     .digits = 1,
     .scale = 100},
    {.title = "mean distance", .key = "distance_mean", .low = "distance_mean_low", .high = "distance_mean_high", .digits = 0},
    {.title = "median distance",
     .key = "distance_median",
     .low = "distance_median_low",
     .high = "distance_median_high",
     .digits = 0},
    {.title = "rows with 90% of the mass", .key = "rows_90", .low = "rows_90_low", .high = "rows_90_high", .digits = 0},
};

static int print_rows(cli_rows *table, json_t *rows, sl_error *err) {
    size_t i;
    json_t *row;
    int rc = 0;
    json_array_foreach(rows, i, row) if (!rc) rc = cli_rows_add(table, json_incref(row), err);
    return rc;
}

static int print_free_runs(const compare *c, json_t *dense, json_t *rows, sl_error *err) {
    enum { N_COLUMNS = sizeof free_columns / sizeof *free_columns };
    cli_column columns[N_COLUMNS + 1];
    cli_rows table = {.format = "md", .columns = columns, .n_columns = copy_columns(c, free_columns, N_COLUMNS, columns)};
    int rc = cli_printf(err, "texts: %d prompt%s, seed %u, temperature %g\n\n", c->n_prompts, cli_s(c->n_prompts),
                        c->o->run->sampling.seed, (double)c->run.sampling.temp);
    if (!rc) rc = cli_rows_add(&table, json_incref(dense), err);
    if (!rc) rc = print_rows(&table, rows, err);
    return rc ? rc : cli_printf(err, "\n");
}

static int print_forced(const compare *c, json_t *dense, json_t *rows, sl_error *err) {
    enum { N_COLUMNS = sizeof forced_columns / sizeof *forced_columns };
    cli_column columns[N_COLUMNS + 1 + CLI_PREFILL_COLUMNS + CLI_CERTIFICATE_COLUMNS];
    int n_columns = cli_prefill_columns(rows, columns, copy_columns(c, forced_columns, N_COLUMNS, columns));
    cli_rows table = {.format = "md", .columns = columns, .n_columns = cli_certificates_columns(rows, columns, n_columns)};
    const char *path = !c->o->compare->texts ? "the reference"
                       : c->n_references     ? "dense attention or the reference"
                                             : "dense attention";
    int n = c->dense_nll[QUESTION].n + c->dense_nll[ANSWER].n, rc = 0;
    if (!c->o->compare->texts) rc = cli_print_model(&c->name, err);
    if (!rc)
        rc = cli_printf(err,
                        "next tokens on the path of %s: %d prompt%s, seed %u, %d position%s, KL divergence from dense "
                        "attention in nats\n\n",
                        path, c->n_prompts, cli_s(c->n_prompts), c->o->run->sampling.seed, n, cli_s(n));
    if (!rc) rc = cli_rows_add(&table, json_incref(dense), err);
    return rc ? rc : print_rows(&table, rows, err);
}

// One row for each method of --attn: the states are those of dense prefill.
static int print_heads(const compare *c, json_t *rows, sl_error *err) {
    cli_rows table = TABLE(head_columns);
    int rc = cli_printf(err,
                        "\nheads on the states of the dense run: %d outputs; a row's figures are means over layers, heads and "
                        "steps\n\n",
                        c->methods[0].outputs.n);
    for (int i = 0; !rc && i < c->n_decode; i++) rc = cli_rows_add(&table, json_incref(json_array_get(rows, (size_t)i)), err);
    return rc;
}

static int print_attention(const compare *c, sl_error *err) {
    cli_rows table = TABLE(attention_columns);
    int rc = cli_printf(err,
                        "\nattention of the dense run: %d step%s; a row's figures are means over steps and heads (of the least "
                        "head to of the greatest)\n\n",
                        c->n_steps, cli_s(c->n_steps));
    for (int i = 0; !rc && i < sl_model_config(c->run.model)->n_layers; i++)
        rc = cli_rows_add(&table, compare_attention_row(c, i), err);
    return rc;
}

static int print_md(const compare *c, json_t *rows, sl_error *err) {
    json_t *dense = compare_dense_row(c, err);
    int rc = dense ? 0 : SL_ERR_MEMORY;
    if (!rc && c->o->compare->texts) rc = print_free_runs(c, dense, rows, err);
    if (!rc) rc = print_forced(c, dense, rows, err);
    if (!rc && c->o->compare->heads) rc = print_heads(c, rows, err);
    if (!rc && c->o->compare->attention) rc = print_attention(c, err);
    json_decref(dense);
    return rc;
}

int compare_print_summary(compare *c, json_t *rows, sl_error *err) {
    cli_rows flat = {.format = c->o->output->format, .model = &c->name};
    if (is(c, "json")) return compare_print_json(c, rows, err);
    return is(c, "md") ? print_md(c, rows, err) : print_rows(&flat, rows, err);
}
