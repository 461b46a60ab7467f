// engine/cli/eval_table.c - bootstrap intervals and the tables of `sleigh eval`; see eval_scores.h.
#include "engine/cli/cli.h"
#include "engine/cli/eval_scores.h"
#include "engine/cli/print_json.h"
#include "engine/cli/rows.h"
#include "engine/cli/summary.h"
#include "engine/philox.h"
#include "engine/sleigh.h"

#include <stdlib.h>
#include <string.h>

// ---- bootstrap ----

typedef struct cluster {
    int first, n; // samples
} cluster;

typedef struct bootstrap {
    const eval_scores *s;
    int rounds;
    uint32_t seed;
    cluster *clusters; // of the group
    int *drawn;        // [n_samples] times that a sample was drawn in this round
    double *mean;      // [n_methods][n_groups + 1][rounds]
    double *sorted;    // [rounds]
} bootstrap;

static double *means(const bootstrap *b, int method, int group) {
    return b->mean + ((size_t)method * (size_t)(b->s->n_groups + 1) + (size_t)group) * (size_t)b->rounds;
}

static int find_clusters(const bootstrap *b, const eval_group *g) {
    int n = 0;
    for (int i = g->first; i < g->first + g->n; i++) {
        if (i == g->first || b->s->cluster[i] != b->s->cluster[i - 1]) b->clusters[n++] = (cluster){.first = i};
        b->clusters[n - 1].n++;
    }
    return n;
}

static double group_mean(const bootstrap *b, int method, const eval_group *g, const int *weight) {
    double sum = 0, n = 0;
    for (int i = g->first; i < g->first + g->n; i++) {
        int w = weight ? weight[i] : 1;
        if (w) sum += w * b->s->score[eval_cell(b->s, method, i)];
        n += w;
    }
    return sum / n;
}

static void draw_round(const bootstrap *b, int group, int n_clusters, int round) {
    const eval_group *g = &b->s->groups[group];
    const sl_rng_id id = {.seed = b->seed, .sequence = (uint32_t)group, .position = (uint32_t)round};
    memset(b->drawn + g->first, 0, (size_t)g->n * sizeof *b->drawn);
    for (int i = 0; i < n_clusters; i++) {
        uint64_t u = sl_rng_u64(&id, (uint32_t)i, SL_STREAM_BOOTSTRAP) >> 32;
        const cluster *c = &b->clusters[u * (uint64_t)n_clusters >> 32];
        for (int j = 0; j < c->n; j++) b->drawn[c->first + j]++;
    }
}

// The 2.5% and 97.5% percentiles of x - y (y NULL: of x).
static void interval(const bootstrap *b, const double *x, const double *y, eval_interval *out) {
    int n = b->rounds, low = (int)(0.025 * n);
    for (int r = 0; r < n; r++) b->sorted[r] = x[r] - (y ? y[r] : 0);
    cli_sort(b->sorted, n);
    out->low = b->sorted[low];
    out->high = b->sorted[n - 1 - low];
}

static void summarise_group(const bootstrap *b, int group, eval_summary *out) {
    const eval_scores *s = b->s;
    const eval_group *g = &s->groups[group];
    int n_clusters = find_clusters(b, g);
    for (int r = 0; r < b->rounds; r++) {
        draw_round(b, group, n_clusters, r);
        for (int m = 0; m < s->n_methods; m++) {
            double mean = group_mean(b, m, g, b->drawn);
            means(b, m, group)[r] = mean;
            means(b, m, s->n_groups)[r] += mean / s->n_groups;
        }
    }
    for (int m = 0; m < s->n_methods; m++) {
        eval_summary *row = &out[m * (s->n_groups + 1) + group], *all = &out[m * (s->n_groups + 1) + s->n_groups];
        row->n = g->n, row->n_clusters = n_clusters;
        row->score.mean = group_mean(b, m, g, NULL);
        all->n += g->n, all->n_clusters += n_clusters;
        all->score.mean += row->score.mean / s->n_groups;
    }
}

static double kv_share(const eval_scores *s, int method, int first, int n) {
    double bytes = 0, dense = 0;
    for (int i = first; i < first + n; i++)
        bytes += s->bytes[eval_cell(s, method, i)], dense += s->dense[eval_cell(s, method, i)];
    return dense > 0 ? bytes / dense : 0;
}

int eval_summarise(const eval_scores *s, int rounds, uint32_t seed, eval_summary *out, sl_error *err) {
    int n_columns = s->n_groups + 1, rc = 0;
    bootstrap b = {.s = s, .rounds = rounds, .seed = seed};
    SL_CHECK(!eval_scores_missing(s));
    b.clusters = malloc((size_t)s->n_samples * sizeof *b.clusters);
    b.drawn = malloc((size_t)s->n_samples * sizeof *b.drawn);
    b.mean = calloc((size_t)s->n_methods * (size_t)n_columns * (size_t)rounds, sizeof *b.mean);
    b.sorted = malloc((size_t)rounds * sizeof *b.sorted);
    if (!b.clusters || !b.drawn || !b.mean || !b.sorted) rc = sl_fail(err, SL_ERR_MEMORY, "--rounds %d: out of memory", rounds);
    if (!rc) {
        memset(out, 0, (size_t)s->n_methods * (size_t)n_columns * sizeof *out);
        for (int g = 0; g < s->n_groups; g++) summarise_group(&b, g, out);
        for (int m = 0; m < s->n_methods; m++)
            for (int g = 0; g < n_columns; g++) {
                eval_summary *row = &out[m * n_columns + g];
                interval(&b, means(&b, m, g), NULL, &row->score);
                interval(&b, means(&b, m, g), means(&b, 0, g), &row->difference);
                row->difference.mean = row->score.mean - out[g].score.mean;
                row->kv_share =
                    g < s->n_groups ? kv_share(s, m, s->groups[g].first, s->groups[g].n) : kv_share(s, m, 0, s->n_samples);
            }
    }
    free(b.clusters), free(b.drawn), free(b.mean), free(b.sorted);
    return rc;
}

// ---- tables ----

static json_t *row_json(const eval_scores *s, const eval_summary *r, int method, int group) {
    const eval_group *g = group < s->n_groups ? &s->groups[group] : NULL;
    return json_pack("{s:s, s:i, s:s, s:i, s:i, s:f, s:f, s:f, s:f, s:f, s:f, s:f}", "task", g ? g->task : "all", "length",
                     g ? g->length : 0, "attn", s->methods[method], "samples", r->n, "texts", r->n_clusters, "score",
                     r->score.mean, "score_low", r->score.low, "score_high", r->score.high, "difference", r->difference.mean,
                     "difference_low", r->difference.low, "difference_high", r->difference.high, "kv_bytes_share", r->kv_share);
}

// Of the md tables, in which a method is a row: a group's column, and its keys in that row.
typedef struct group_column {
    char title[128], key[16], low[24], high[24];
} group_column;

static void name_column(const eval_group *g, int index, group_column *out) { // g NULL: all
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
        const eval_interval *i = differences ? &r[g].difference : &r[g].score;
        json_object_set_new(row, names[g].key, json_real(i->mean));
        json_object_set_new(row, names[g].low, json_real(i->low));
        json_object_set_new(row, names[g].high, json_real(i->high));
    }
    if (row) json_object_set_new(row, "kv_bytes_share", json_real(r[s->n_groups].kv_share));
    return row;
}

static int print_methods(const eval_scores *s, const eval_summary *summary, int differences, sl_error *err) {
    int n_columns = s->n_groups + 3, rc = 0;
    cli_column *columns = calloc((size_t)n_columns, sizeof *columns);
    group_column *names = calloc((size_t)s->n_groups + 1, sizeof *names);
    cli_rows table = {.format = "md", .columns = columns, .n_columns = n_columns};
    if (!columns || !names) rc = sl_fail(err, SL_ERR_MEMORY, "the table: out of memory");
    if (!rc) columns[0] = (cli_column){.title = "method", .key = "attn"};
    for (int g = 0; !rc && g <= s->n_groups; g++) {
        name_column(g < s->n_groups ? &s->groups[g] : NULL, g, &names[g]);
        columns[g + 1] = (cli_column){.title = names[g].title,
                                      .key = names[g].key,
                                      .low = names[g].low,
                                      .high = names[g].high,
                                      .digits = differences ? 2 : 1,
                                      .scale = 100,
                                      .sign = differences,
                                      .hidden = g == s->n_groups && s->n_groups == 1}; // "all" would say the same
    }
    if (!rc)
        columns[n_columns - 1] =
            (cli_column){.title = "KV bytes %", .key = "kv_bytes_share", .digits = 1, .scale = 100, .hidden = differences};
    for (int m = differences; !rc && m < s->n_methods; m++)
        rc = cli_rows_add(&table, method_row(s, &summary[m * (s->n_groups + 1)], m, names, differences), err);
    free(columns), free(names);
    return rc;
}

static int print_md(const eval_scores *s, const eval_summary *summary, sl_error *err) {
    const eval_summary *all = &summary[s->n_groups];
    int rc = cli_printf(err, "Score in percent (95%% interval), %d samples of %d texts\n\n", all->n, all->n_clusters);
    if (!rc) rc = print_methods(s, summary, 0, err);
    if (rc || s->n_methods < 2) return rc;
    rc = cli_printf(err, "\nDifference to %s in points (95%% interval), on the same samples\n\n", s->methods[0]);
    return rc ? rc : print_methods(s, summary, 1, err);
}

static int print_json(const eval_scores *s, const eval_summary *summary, const json_t *settings, sl_error *err) {
    json_t *rows = json_array();
    for (int m = 0; m < s->n_methods; m++)
        for (int g = 0; g <= s->n_groups; g++)
            json_array_append_new(rows, row_json(s, &summary[m * (s->n_groups + 1) + g], m, g));
    return cli_print_json(json_pack("{s:s, s:s, s:O, s:o}", "version", SLEIGH_VERSION, "commit", cli_commit(), "settings",
                                    settings, "rows", rows),
                          JSON_INDENT(1), err);
}

static int print_csv(const eval_scores *s, const eval_summary *summary, sl_error *err) {
    cli_rows table = {.format = "csv"};
    int rc = 0;
    for (int m = 0; m < s->n_methods; m++)
        for (int g = 0; !rc && g <= s->n_groups; g++)
            rc = cli_rows_add(&table, row_json(s, &summary[m * (s->n_groups + 1) + g], m, g), err);
    return rc;
}

int eval_print(const eval_scores *s, const eval_summary *summary, const json_t *settings, const char *format, sl_error *err) {
    if (!strcmp(format, "json")) return print_json(s, summary, settings, err);
    return !strcmp(format, "csv") ? print_csv(s, summary, err) : print_md(s, summary, err);
}
