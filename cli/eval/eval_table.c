// cli/eval/eval_table.c - see eval_table.h.
#include "cli/eval/eval_table.h"
#include "cli/commands.h"
#include "cli/eval/eval_scores.h"
#include "cli/io.h"
#include "cli/output/certificates.h"
#include "cli/output/prefill_fields.h"
#include "cli/output/print_json.h"
#include "cli/output/rows.h"
#include "engine/engine.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

// ---- intervals ----

enum { MIN_CLUSTERS = 8 }; // the spread of fewer clusters is unreliable

// The scores of a method in a group, minus those of another method.
typedef struct paired {
    const eval_scores *s;
    const eval_group *g;
    int method, against; // against -1: subtract nothing
} paired;

static double value(const paired *p, int i) {
    return p->s->score[eval_cell(p->s, p->method, i)] - (p->against < 0 ? 0 : p->s->score[eval_cell(p->s, p->against, i)]);
}

static int cluster_end(const paired *p, int from) {
    int end = from + 1;
    while (end < p->g->first + p->g->n && p->s->cluster[end] == p->s->cluster[from]) end++;
    return end;
}

// Effective number of independent samples in the group: `coin`, the variance of one value if values were whole, divided by the
// variance of the mean, estimated from the sums of clusters. Upper bound: n if values are whole (a score that is a share of
// several references counts as more than one sample). Lower bound: the number if all samples of a cluster were equal. The lower
// bound is also used if all values are equal, because dependence is not visible then.
static double effective_n(const paired *p, double mean, double coin) {
    double squares = 0, sizes = 0, n = p->g->n;
    int n_clusters = 0, whole = 1, end;
    for (int i = p->g->first; i < p->g->first + p->g->n; i = end, n_clusters++) {
        double off = 0;
        end = cluster_end(p, i);
        for (int j = i; j < end; j++) off += value(p, j) - mean, whole &= value(p, j) == trunc(value(p, j));
        squares += off * off, sizes += (double)(end - i) * (end - i);
    }
    double least = n * n / sizes;
    if (n_clusters < MIN_CLUSTERS || squares < 1e-9) return least; // 1e-9: rounding
    double worth = coin * n * n / (squares * n_clusters / (n_clusters - 1));
    return fmax(least, whole ? fmin(worth, n) : worth);
}

static cli_interval score_interval(const paired *p) {
    double sum = 0;
    for (int i = p->g->first; i < p->g->first + p->g->n; i++) sum += value(p, i);
    double mean = sum / p->g->n, n = effective_n(p, mean, mean * (1 - mean));
    cli_interval out = cli_share(mean * n, n);
    out.at = mean;
    return out;
}

static cli_interval difference_interval(const paired *p) {
    double gain = 0, loss = 0;
    if (p->method == p->against) return (cli_interval){0, 0, 0};
    for (int i = p->g->first; i < p->g->first + p->g->n; i++) gain += fmax(value(p, i), 0), loss += fmax(-value(p, i), 0);
    gain /= p->g->n, loss /= p->g->n;
    double mean = gain - loss, n = effective_n(p, mean, gain + loss - mean * mean);
    return cli_paired_shares(gain * n, loss * n, n);
}

static void count_clusters(const paired *p, eval_summary *out) {
    for (int i = p->g->first, end; i < p->g->first + p->g->n; i = end) {
        double sum = 0;
        end = cluster_end(p, i);
        for (int j = i; j < end; j++) sum += value(p, j);
        out->n_better += sum > 1e-9, out->n_worse += sum < -1e-9; // 1e-9: rounding
        out->n_clusters++;
    }
    out->n += p->g->n;
}

// Adds a part to a mean of n_parts independent parts. The distances to the ends of the intervals add up like standard errors
// (MOVER: Zou and Donner, Statistics in Medicine 27, 2008). The ends hold squares until end_mean.
static void add_part(cli_interval *mean, const cli_interval *part, int n_parts) {
    double low = (part->at - part->low) / n_parts, high = (part->high - part->at) / n_parts;
    mean->at += part->at / n_parts, mean->low += low * low, mean->high += high * high;
}

static void end_mean(cli_interval *mean) {
    mean->low = mean->at - sqrt(mean->low), mean->high = mean->at + sqrt(mean->high);
}

static double kv_share(const eval_scores *s, int method, int first, int n) {
    double bytes = 0, dense = 0;
    for (int i = first; i < first + n; i++)
        bytes += s->bytes[eval_cell(s, method, i)], dense += s->dense[eval_cell(s, method, i)];
    return dense > 0 ? bytes / dense : 0;
}

void eval_summarise(const eval_scores *s, eval_summary *out) {
    SL_CHECK(!eval_scores_missing(s));
    for (int m = 0; m < s->n_methods; m++) {
        eval_summary *rows = &out[m * (s->n_groups + 1)], *all = &rows[s->n_groups];
        *all =
            (eval_summary){.kv_share = kv_share(s, m, 0, s->n_samples), .prefill = eval_scores_prefill(s, m, 0, s->n_samples)};
        eval_scores_sum_stated(s, m, 0, s->n_samples, &all->stated);
        for (int g = 0; g < s->n_groups; g++) {
            const eval_group *group = &s->groups[g];
            const paired alone = {s, group, m, -1}, to_first = {s, group, m, 0};
            rows[g] = (eval_summary){.score = score_interval(&alone),
                                     .difference = difference_interval(&to_first),
                                     .kv_share = kv_share(s, m, group->first, group->n),
                                     .prefill = eval_scores_prefill(s, m, group->first, group->n)};
            eval_scores_sum_stated(s, m, group->first, group->n, &rows[g].stated);
            count_clusters(&to_first, &rows[g]);
            rows[g].p_value = cli_mcnemar(rows[g].n_better, rows[g].n_worse);
            count_clusters(&to_first, all);
            add_part(&all->score, &rows[g].score, s->n_groups), add_part(&all->difference, &rows[g].difference, s->n_groups);
        }
        end_mean(&all->score), end_mean(&all->difference);
        all->p_value = cli_mcnemar(all->n_better, all->n_worse);
    }
}

// ---- tables ----

static json_t *row_json(const eval_scores *s, const eval_summary *r, int method, int group) {
    const eval_group *g = group < s->n_groups ? &s->groups[group] : NULL;
    json_t *row =
        json_pack("{s:s, s:i, s:s, s:i, s:i, s:f, s:f, s:f, s:f, s:f, s:f, s:f, s:i, s:i, s:f}", "task", g ? g->task : "all",
                  "length", g ? g->length : 0, "attn", s->methods[method], "samples", r->n, "texts", r->n_clusters, "score",
                  r->score.at, "score_low", r->score.low, "score_high", r->score.high, "difference", r->difference.at,
                  "difference_low", r->difference.low, "difference_high", r->difference.high, "kv_bytes_share", r->kv_share,
                  "better", r->n_better, "worse", r->n_worse, "p_value", r->p_value);
    if (row) eval_prefill_put(s, row, method, &r->prefill);
    if (row) cli_certificates_put(row, &r->stated);
    return row;
}

// The column of a group in the md tables, and its keys in the row of a method.
typedef struct group_column {
    char title[128], key[16], low[24], high[24];
} group_column;

static void name_column(const eval_group *g, int index, group_column *out) { // g NULL: all groups
    int k = g && g->length % 1024 == 0;
    if (!g || !g->length)
        snprintf(out->title, sizeof out->title, "%.100s", g ? g->task : "all");
    else
        snprintf(out->title, sizeof out->title, "%.100s %d%s", g->task, k ? g->length / 1024 : g->length, k ? "k" : "");
    snprintf(out->key, sizeof out->key, "%d", index);
    snprintf(out->low, sizeof out->low, "%d_low", index);
    snprintf(out->high, sizeof out->high, "%d_high", index);
}

static json_t *method_row(const eval_scores *s, const eval_summary *r, int method, const group_column *names, int differences) {
    json_t *row = json_pack("{s:s}", "attn", s->methods[method]);
    for (int g = 0; row && g <= s->n_groups; g++) {
        const cli_interval *i = differences ? &r[g].difference : &r[g].score;
        json_object_set_new(row, names[g].key, json_real(i->at));
        json_object_set_new(row, names[g].low, json_real(i->low));
        json_object_set_new(row, names[g].high, json_real(i->high));
    }
    if (row) json_object_set_new(row, "kv_bytes_share", json_real(r[s->n_groups].kv_share));
    if (row) json_object_set_new(row, "p_value", json_real(r[s->n_groups].p_value));
    if (row) eval_prefill_put(s, row, method, &r[s->n_groups].prefill);
    if (row) cli_certificates_put(row, &r[s->n_groups].stated);
    return row;
}

static int print_methods(const eval_scores *s, const eval_summary *summary, int differences, sl_error *err) {
    int n_columns = 0, rc = 0;
    cli_column *columns = calloc((size_t)s->n_groups + 4 + CLI_PREFILL_COLUMNS + CLI_CERTIFICATE_COLUMNS, sizeof *columns);
    group_column *names = calloc((size_t)s->n_groups + 1, sizeof *names);
    json_t *rows = json_array();
    if (!columns || !names || !rows) rc = sl_fail(err, SL_ERR_MEMORY, "the table: out of memory");
    if (!rc) columns[n_columns++] = (cli_column){.title = "method", .key = "attn"};
    if (!rc && s->lists_prefill) columns[n_columns++] = (cli_column){.title = "prefill", .key = "attn_prefill"};
    for (int g = 0; !rc && g <= s->n_groups; g++) {
        name_column(g < s->n_groups ? &s->groups[g] : NULL, g, &names[g]);
        columns[n_columns++] = (cli_column){.title = names[g].title,
                                            .key = names[g].key,
                                            .low = names[g].low,
                                            .high = names[g].high,
                                            .digits = differences ? 2 : 1,
                                            .scale = 100,
                                            .sign = differences,
                                            .hidden = g == s->n_groups && s->n_groups == 1}; // hides "all" beside one group
    }
    if (!rc)
        columns[n_columns++] = differences
                                   ? (cli_column){.title = "p (McNemar)", .key = "p_value", .digits = -2}
                                   : (cli_column){.title = "KV bytes %", .key = "kv_bytes_share", .digits = 1, .scale = 100};
    for (int m = differences; !rc && m < s->n_methods; m++)
        if (json_array_append_new(rows, method_row(s, &summary[m * (s->n_groups + 1)], m, names, differences)))
            rc = sl_fail(err, SL_ERR_MEMORY, "the table: out of memory");
    if (!rc && !differences) n_columns = cli_prefill_columns(rows, columns, n_columns);
    if (!rc && !differences) n_columns = cli_certificates_columns(rows, columns, n_columns);
    cli_rows table = {.format = "md", .columns = columns, .n_columns = n_columns};
    for (size_t i = 0; !rc && i < json_array_size(rows); i++)
        rc = cli_rows_add(&table, json_incref(json_array_get(rows, i)), err);
    json_decref(rows);
    free(columns), free(names);
    return rc;
}

static int print_md(const eval_scores *s, const eval_summary *summary, const eval_source *source, sl_error *err) {
    const eval_summary *all = &summary[s->n_groups];
    int rc = cli_print_model(source->model, err);
    if (!rc)
        rc = cli_printf(err, "Score in percent (95%% interval), %d sample%s of %d text%s", all->n, cli_s(all->n),
                        all->n_clusters, cli_s(all->n_clusters));
    if (!rc && all->n < source->n_planned)
        rc = cli_printf(err, "; interrupted, %d sample%s planned", source->n_planned,
                        source->n_planned == 1 ? " was" : "s were");
    if (!rc) rc = cli_printf(err, "\n\n");
    if (!rc) rc = print_methods(s, summary, 0, err);
    if (rc || s->n_methods < 2) return rc;
    rc = cli_printf(err, "\nDifference to %s%s%s in points (95%% interval), on the same samples\n\n", s->methods[0],
                    s->lists_prefill ? " with prefill " : "", s->lists_prefill ? s->prefills[0] : "");
    return rc ? rc : print_methods(s, summary, 1, err);
}

static int print_json(const eval_scores *s, const eval_summary *summary, const eval_source *source, sl_error *err) {
    json_t *rows = json_array(), *out = json_object();
    for (int m = 0; m < s->n_methods; m++)
        for (int g = 0; g <= s->n_groups; g++) {
            json_t *row = row_json(s, &summary[m * (s->n_groups + 1) + g], m, g);
            if (row && s->lists_prefill) json_object_set_new(row, "prefill_heads", eval_scores_heads_json(s, m, g));
            json_array_append_new(rows, row);
        }
    json_object_set_new(out, "version", json_string(SLEIGH_VERSION));
    json_object_set_new(out, "commit", json_string(cli_commit()));
    json_object_set(out, "settings", (json_t *)source->settings);
    json_object_set_new(out, "interrupted", json_boolean(s->n_samples < source->n_planned));
    json_object_set_new(out, "rows", rows);
    return cli_print_json(cli_model_name_json(source->model, out), JSON_INDENT(1), err);
}

static int print_flat(const eval_scores *s, const eval_summary *summary, const cli_model_name *model, const char *format,
                      sl_error *err) {
    cli_rows table = {.format = format, .model = model};
    int rc = 0;
    for (int m = 0; m < s->n_methods; m++)
        for (int g = 0; !rc && g <= s->n_groups; g++)
            rc = cli_rows_add(&table, row_json(s, &summary[m * (s->n_groups + 1) + g], m, g), err);
    return rc;
}

int eval_print(const eval_scores *s, const eval_summary *summary, const eval_source *source, const char *format,
               sl_error *err) {
    if (!strcmp(format, "json")) return print_json(s, summary, source, err);
    return strcmp(format, "md") ? print_flat(s, summary, source->model, format, err) : print_md(s, summary, source, err);
}
