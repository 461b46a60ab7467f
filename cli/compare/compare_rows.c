// cli/compare/compare_rows.c - the figures of sleigh compare as JSON: a row for each method, a document, and a row for
// each layer of dense attention. compare_print.c prints tables from the rows.
#include "cli/compare/compare_rows.h"
#include "cli/commands.h"
#include "cli/compare/compare_heads.h"
#include "cli/compare/compare_runs.h"
#include "cli/output/certificates.h"
#include "cli/output/prefill_fields.h"
#include "cli/output/print_json.h"
#include "cli/output/rows.h"

#include <math.h>
#include <stdio.h>

static void put(json_t *row, const char *name, double x) {
    json_object_set_new(row, name, cli_number(x));
}

static void put_count(json_t *row, const char *name, long long n) {
    json_object_set_new(row, name, json_integer(n));
}

static void put_as(json_t *row, const char *name, const char *suffix, double x) {
    char key[128];
    snprintf(key, sizeof key, "%s%s", name, suffix);
    put(row, key, x);
}

static void put_estimate(json_t *row, const char *name, cli_estimate e) {
    put(row, name, e.at);
    put_as(row, name, "_se", e.error);
}

static void put_interval(json_t *row, const char *name, cli_interval i) {
    put(row, name, i.at);
    put_as(row, name, "_low", i.low);
    put_as(row, name, "_high", i.high);
}

static void put_mean(json_t *row, const char *name, const cli_values *v) {
    cli_estimate mean = cli_values_mean(v);
    cli_interval i = cli_values_mean_interval(v, mean);
    put_estimate(row, name, mean);
    put_as(row, name, "_low", i.low);
    put_as(row, name, "_high", i.high);
}

// exp of the mean, with the standard error of its linear approximation.
static void put_perplexity(json_t *row, const char *name, const cli_values *nll) {
    cli_estimate mean = cli_values_mean(nll);
    cli_interval i = cli_values_mean_interval(nll, mean);
    put_estimate(row, name, (cli_estimate){exp(mean.at), exp(mean.at) * mean.error});
    put_as(row, name, "_low", exp(i.low));
    put_as(row, name, "_high", exp(i.high));
}

// The quantiles of v as NAME_10, ..., NAME_99.
enum { P10 = 1, P50 = 2, P90 = 4, P99 = 8, N_QUANTILES = 4 };
static int put_quantiles(json_t *row, const char *name, const cli_values *v, unsigned which, sl_error *err) {
    static const struct {
        double share;
        const char *suffix;
    } all[N_QUANTILES] = {{0.1, "_10"}, {0.5, "_median"}, {0.9, "_90"}, {0.99, "_99"}};
    double shares[N_QUANTILES];
    cli_interval at[N_QUANTILES];
    int n = 0;
    for (int i = 0; i < N_QUANTILES; i++)
        if (which >> i & 1) shares[n++] = all[i].share;
    int rc = cli_values_quantiles(v, shares, n, at, err);
    for (int i = N_QUANTILES - 1; !rc && i >= 0; i--) {
        char key[64];
        if (!(which >> i & 1)) continue;
        snprintf(key, sizeof key, "%s%s", name, all[i].suffix);
        put_interval(row, key, at[--n]);
    }
    return rc;
}

// ---- a row of a method ----

static void add_head(compare_head *to, const compare_head *h) {
    to->n += h->n;
    to->error += h->error, to->cosine += h->cosine, to->bias += h->bias;
    to->k_rows += h->k_rows, to->v_rows += h->v_rows, to->v_distinct += h->v_distinct;
    to->samples += h->samples, to->ess += h->ess, to->spread += h->spread;
    to->bytes += h->bytes, to->dense_bytes += h->dense_bytes;
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

// The figures of the errors and cosines of a layer's heads; layer -1: of all layers.
static int put_outputs(const compare *c, const compare_method *m, int layer, json_t *row, sl_error *err) {
    static const char *const names[] = {"l2", "cosine"};
    const sl_config *config = sl_model_config(c->run.model);
    compare_head sum = {0};
    int rc = 0, n = config->n_heads, first = layer < 0 ? 0 : layer, end = layer < 0 ? config->n_layers : layer + 1;
    for (int which = 0; !rc && which < 2; which++) {
        cli_values v;
        rc = compare_outputs_values(c, m, which, layer, &v, err);
        if (!rc && !which) put_count(row, "head_outputs", v.n);
        if (!rc) put_estimate(row, names[which], cli_values_mean(&v));
        if (!rc) rc = put_quantiles(row, names[which], &v, which ? P10 | P50 : P50 | P90, err);
        cli_values_free(&v);
    }
    for (int i = first * n; i < end * n; i++) add_head(&sum, &m->heads[i]);
    put_reads(row, &sum);
    return rc;
}

static int put_texts(const compare *c, const compare_method *m, json_t *row, sl_error *err) {
    put_count(row, "identical", m->n_identical);
    put_estimate(row, "agreement", cli_values_mean(&m->agreement));
    put_estimate(row, "common_prefix", cli_values_mean(&m->prefix));
    put(row, "kv_bytes_share", (double)m->read.bytes / (double)m->read.dense_bytes);
    put_mean(row, "text_nll", &m->text_nll);
    int rc = put_quantiles(row, "text_nll", &m->text_nll, P10 | P50 | P90, err);
    if (rc) return rc;
    put_mean(row, "text_nll_dense", &c->dense_text_nll);
    return put_quantiles(row, "text_nll_dense", &c->dense_text_nll, P10 | P50 | P90, err);
}

static int put_next_tokens(const compare *c, const compare_method *m, json_t *row, sl_error *err) {
    put_count(row, "positions", m->kl.n);
    put_interval(row, "top1", cli_values_share(&m->top1));
    put(row, "top1_se", cli_values_mean(&m->top1).error);
    put_mean(row, "kl", &m->kl);
    int rc = put_quantiles(row, "kl", &m->kl, P50 | P90 | P99, err);
    put(row, "kl_max", cli_values_max(&m->kl));
    put_count(row, "question_tokens", m->nll[QUESTION].n);
    put_perplexity(row, "ppl_question", &m->nll[QUESTION]);
    put_perplexity(row, "ppl_question_dense", &c->dense_nll[QUESTION]);
    put_count(row, "answer_tokens", m->nll[ANSWER].n);
    put_perplexity(row, "ppl_answer", &m->nll[ANSWER]);
    put_perplexity(row, "ppl_answer_dense", &c->dense_nll[ANSWER]);
    put_mean(row, "ln_ppl_ratio", &m->more_nll);
    put(row, "step_bytes", (double)m->forced.bytes / m->kl.n);
    put(row, "step_bytes_share", (double)m->forced.bytes / (double)m->forced.dense_bytes);
    cli_certificates_put(row, &m->forced);
    return rc;
}

static const sl_prefill_report *heads_of_prefill(const compare *c, const compare_method *m) { // [n_layers][n_heads]
    const sl_config *config = sl_model_config(c->run.model);
    return c->prefill_heads + (size_t)compare_prefill_of(c, (int)(m - c->methods)) * config->n_layers * config->n_heads;
}

static void put_prefill(const compare *c, const compare_method *m, json_t *row) {
    const sl_config *config = sl_model_config(c->run.model);
    sl_prefill_report total = sl_prefill_report_none();
    int k = compare_prefill_of(c, (int)(m - c->methods)), has_question = m->nll[QUESTION].n > 0;
    double feed = c->o->compare->texts ? m->feed_ms / c->n_prompts : has_question ? NAN : 0;
    for (int i = 0; i < config->n_layers * config->n_heads; i++) sl_prefill_report_add(&total, &heads_of_prefill(c, m)[i]);
    put(row, "ttft_ms", c->n_timed[k] ? c->prefill_ms[k] / c->n_timed[k] + feed : NAN);
    cli_prefill_put(row, &total);
}

// A flat object with the same fields in the same order for every method. NULL: SL_ERR_MEMORY
static json_t *row_of(const compare *c, const compare_method *m, sl_error *err) {
    json_t *row = json_pack("{s:s, s:s, s:i}", "attn", m->text, "attn_prefill", m->prefill, "prompts", c->n_prompts);
    int rc = row ? put_texts(c, m, row, err) : sl_fail(err, SL_ERR_MEMORY, "the tables: out of memory");
    if (!rc) rc = put_next_tokens(c, m, row, err);
    if (!rc) rc = put_outputs(c, m, -1, row, err);
    if (!rc && compare_lists_prefill(c)) put_prefill(c, m, row);
    if (!rc) return row;
    json_decref(row);
    return NULL;
}

json_t *compare_rows(const compare *c, sl_error *err) {
    json_t *rows = json_array(), *row = rows;
    if (!rows) sl_fail(err, SL_ERR_MEMORY, "the tables: out of memory");
    for (int i = 0; row && i < c->attn.n; i++) {
        row = row_of(c, &c->methods[i], err);
        if (row) json_array_append_new(rows, row);
    }
    if (row) return rows;
    json_decref(rows);
    return NULL;
}

json_t *compare_dense_row(const compare *c, sl_error *err) {
    json_t *row = json_pack("{s:s, s:s}", "attn", "(dense)", "attn_prefill", "dense");
    if (!row) {
        sl_fail(err, SL_ERR_MEMORY, "the tables: out of memory");
        return NULL;
    }
    put_mean(row, "text_nll", &c->dense_text_nll);
    put_perplexity(row, "ppl_question", &c->dense_nll[QUESTION]);
    put_perplexity(row, "ppl_answer", &c->dense_nll[ANSWER]);
    put(row, "step_bytes_share", 1);
    if (!put_quantiles(row, "text_nll", &c->dense_text_nll, P10 | P50 | P90, err)) return row;
    json_decref(row);
    return NULL;
}

// ---- heads, layers and tiles of a method ----

static json_t *heads_json(const compare *c, const compare_method *m) {
    const sl_config *config = sl_model_config(c->run.model);
    json_t *list = json_array();
    for (int i = 0; c->o->compare->heads && i < config->n_layers * config->n_heads; i++) {
        const compare_head *h = &m->heads[i];
        json_t *row = json_pack("{s:i, s:i}", "layer", i / config->n_heads, "head", i % config->n_heads);
        put(row, "l2", h->error / h->n);
        put(row, "cosine", h->cosine / h->n);
        put_reads(row, h);
        json_array_append_new(list, row);
    }
    return list;
}

static int add_layers(const compare *c, const compare_method *m, json_t *method, sl_error *err) {
    json_t *list = json_array();
    int rc = 0;
    for (int i = 0; !rc && c->o->compare->heads && i < sl_model_config(c->run.model)->n_layers; i++) {
        json_t *row = json_pack("{s:i}", "layer", i);
        rc = put_outputs(c, m, i, row, err);
        json_array_append_new(list, row);
    }
    json_object_set_new(method, "layers", list);
    return rc;
}

static json_t *tiles_json(const compare *c, const compare_method *m) {
    static const char *const names[N_TILES] = {"1", "2", "3-4", "5-8", "9+"};
    json_t *list = json_array();
    for (int i = 0; c->o->compare->heads && i < N_TILES; i++) {
        const compare_tiles *t = &m->tiles[i];
        json_t *row = json_pack("{s:s, s:I}", "tiles", names[i], "head_outputs", (json_int_t)t->n);
        put(row, "l2", t->error / t->n);
        put(row, "cosine", t->cosine / t->n);
        json_array_append_new(list, row);
    }
    return list;
}

// ---- the mass of dense attention ----

// Fields of a head, and its figures in the order of sl_attn_spread.
enum { N_FIGURES = sizeof(sl_attn_spread) / sizeof(double) };
static const char *const profile_names[N_FIGURES] = {"keys_entropy",  "keys_squares",    "sink",   "window",
                                                     "distance_mean", "distance_median", "rows_90"};

// The means over steps.
static void profile_of(const compare *c, int i, double out[N_FIGURES]) {
    const sl_attn_spread *p = &c->profiles[i];
    const double sums[N_FIGURES] = {p->keys_entropy,  p->keys_squares,    p->sink,   p->window,
                                    p->distance_mean, p->distance_median, p->rows_90};
    for (int j = 0; j < N_FIGURES; j++) out[j] = sums[j] / c->n_steps;
}

static json_t *attention_json(const compare *c) {
    const sl_config *config = sl_model_config(c->run.model);
    json_t *list = json_array();
    for (int i = 0; c->o->compare->attention && i < config->n_layers * config->n_heads; i++) {
        double figures[N_FIGURES];
        json_t *row = json_pack("{s:i, s:i}", "layer", i / config->n_heads, "head", i % config->n_heads);
        profile_of(c, i, figures);
        for (int j = 0; j < N_FIGURES; j++) put(row, profile_names[j], figures[j]);
        json_array_append_new(list, row);
    }
    return list;
}

json_t *compare_attention_row(const compare *c, int layer) {
    int n = sl_model_config(c->run.model)->n_heads;
    json_t *row = json_pack("{s:i}", "layer", layer);
    for (int j = 0; j < N_FIGURES; j++) {
        cli_interval range = {0, INFINITY, -INFINITY};
        for (int i = layer * n; i < (layer + 1) * n; i++) {
            double figures[N_FIGURES];
            profile_of(c, i, figures);
            range.at += figures[j] / n;
            range.low = fmin(range.low, figures[j]), range.high = fmax(range.high, figures[j]);
        }
        put_interval(row, profile_names[j], range);
    }
    return row;
}

// ---- prompts ----

static json_t *answer_json(const compare_answer *a) {
    json_t *ids = json_array(), *text = a->stopped ? json_stringn(a->text.data, a->text.n) : NULL;
    for (size_t i = 0; i < a->ids.n; i++) json_array_append_new(ids, json_integer(a->ids.data[i]));
    // the text is not UTF-8 only if a --stop text cuts a character in two
    return json_pack("{s:o, s:o, s:s?}", "text", text ? text : json_null(), "ids", ids, "stopped", a->stopped);
}

static double mean_of(const cli_values *v, int first, int end) { // NaN: there are no values
    double sum = 0;
    for (int i = first; i < end; i++) sum += v->x[i];
    return end > first ? sum / (end - first) : NAN;
}

// Mean error of the outputs on the steps of a prompt; NaN: none were observed.
static double prompt_error(const compare *c, const compare_method *m, int index) {
    const sl_config *config = sl_model_config(c->run.model);
    int n = config->n_layers * config->n_heads, end = c->o->compare->heads ? c->prompts[index].n_steps * n : 0;
    int first = index && end ? c->prompts[index - 1].n_steps * n : 0;
    double sum = 0;
    for (int i = first; i < end; i++) sum += m->outputs.x[i][0];
    return end > first ? sum / (end - first) : NAN;
}

static double last(const cli_values *v) {
    return v->n ? v->x[v->n - 1] : NAN;
}

static void put_nll(const compare_prompt *p, const cli_values nll[N_PARTS], json_t *row) {
    put(row, "ppl_question", exp(mean_of(&nll[QUESTION], p->first_of[QUESTION], p->end_of[QUESTION])));
    put(row, "ppl_answer", exp(mean_of(&nll[ANSWER], p->first_of[ANSWER], p->end_of[ANSWER])));
}

json_t *compare_prompt_json(const compare *c, const compare_prompt *p, int index) {
    json_t *row = json_pack("{s:o, s:I, s:i, s:i}", "id", p->id ? json_incref(p->id) : json_integer(index), "sequence",
                            (json_int_t)p->sequence, "n_prompt", (int)p->ids.n, "n_dense", p->n_dense);
    json_t *methods = json_array(), *dense = answer_json(&c->dense);
    int first = p->first_of[QUESTION] + p->first_of[ANSWER], end = p->end_of[QUESTION] + p->end_of[ANSWER];
    put(dense, "text_nll", last(&c->dense_text_nll));
    put_nll(p, c->dense_nll, dense);
    json_object_set_new(row, "dense", dense);
    for (int i = 0; i < c->attn.n; i++) {
        const compare_method *m = &c->methods[i];
        json_t *answer = answer_json(&m->answer);
        int differ = compare_differ_at(&c->dense.ids, &m->answer.ids);
        json_object_set_new(answer, "attn", json_string(m->text));
        json_object_set_new(answer, "attn_prefill", json_string(m->prefill));
        json_object_set_new(answer, "differs_at", differ < 0 ? json_null() : json_integer(differ));
        put(answer, "agreement", last(&m->agreement));
        put(answer, "text_nll", last(&m->text_nll));
        put(answer, "top1", mean_of(&m->top1, first, end));
        put(answer, "kl", mean_of(&m->kl, first, end));
        put_nll(p, m->nll, answer);
        put(answer, "ln_ppl_ratio", mean_of(&m->more_nll, first, end));
        put_count(answer, "positions", end - first);
        put(answer, "l2", prompt_error(c, m, index));
        json_array_append_new(methods, answer);
    }
    json_object_set_new(row, "methods", methods);
    return row;
}

// ---- the document ----

int compare_print_json(compare *c, json_t *methods, sl_error *err) {
    const cli_compare_flags *o = c->o;
    const sl_config *config = sl_model_config(c->run.model);
    char device[256];
    int rc = 0;
    sl_engine_describe(c->run.engine, device, sizeof device);
    for (int i = 0; !rc && i < c->attn.n; i++) {
        json_t *row = json_array_get(methods, (size_t)i);
        json_object_set_new(row, "heads", heads_json(c, &c->methods[i]));
        rc = add_layers(c, &c->methods[i], row, err);
        json_object_set_new(row, "tiles", tiles_json(c, &c->methods[i]));
        json_object_set_new(row, "prefill_heads",
                            cli_prefill_heads(heads_of_prefill(c, &c->methods[i]), config->n_layers, config->n_heads));
    }
    if (rc) return rc;
    json_t *out =
        json_pack("{s:s, s:s, s:s, s:I, s:f, s:i}", "version", SLEIGH_VERSION, "commit", cli_commit(), "device", device, "seed",
                  (json_int_t)o->run->sampling.seed, "temp", (double)c->run.sampling.temp, "n_predict", o->compare->n_predict);
    if (o->run->attention.attn_prefill_layers.n) {
        json_t *rules = json_array();
        for (int i = 0; i < o->run->attention.attn_prefill_layers.n; i++)
            json_array_append_new(rules, json_string(o->run->attention.attn_prefill_layers.items[i]));
        json_object_set_new(out, "attn_prefill_layer", rules);
    }
    json_object_set_new(out, "interrupted", json_boolean(c->is_partial));
    json_object_set_new(out, "steps", json_integer(c->n_steps));
    json_object_set_new(out, "attention", attention_json(c));
    json_object_set(out, "prompts", c->rows);
    json_object_set(out, "methods", methods);
    return cli_print_json(cli_model_name_json(&c->name, out), JSON_INDENT(1), err);
}
