// cli/eval/eval_scores.c - see eval_scores.h.
#include "cli/eval/eval_scores.h"
#include "base/json.h"
#include "cli/output/certificates.h"
#include "cli/output/prefill_fields.h"
#include "cli/resume_file.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { FORMAT = 1 };

int eval_scores_alloc(eval_scores *s, sl_error *err) {
    size_t n = (size_t)s->n_methods * (size_t)s->n_samples;
    s->score = malloc(n * sizeof *s->score);
    s->bytes = calloc(n, sizeof *s->bytes);
    s->dense = calloc(n, sizeof *s->dense);
    s->stated = calloc(n, sizeof *s->stated);
    s->prefill = calloc(n, sizeof *s->prefill);
    s->cluster = calloc((size_t)s->n_samples, sizeof *s->cluster);
    if (!s->score || !s->bytes || !s->dense || !s->stated || !s->prefill || !s->cluster)
        return sl_fail(err, SL_ERR_MEMORY, "scores: out of memory");
    for (size_t i = 0; i < n; i++) s->score[i] = NAN;
    return 0;
}

void eval_scores_free(eval_scores *s) {
    free(s->groups), free(s->cluster), free(s->score), free(s->bytes), free(s->dense), free(s->stated), free(s->prefill);
    free(s->heads), free(s->n_counted);
    *s = (eval_scores){0};
}

// ---- prefill ----

enum { N_PREFILL = sizeof(eval_prefill) / sizeof(double), KEPT = 2, CRA = 3, ERROR_MAX = 5 };
static const char *const prefill_names[N_PREFILL] = {"ttft_ms",     "prefill_density", "prefill_kept",
                                                     "prefill_cra", "prefill_error",   "prefill_error_max"};

static void prefill_fields(eval_prefill *p, double *out[N_PREFILL]) {
    double *const all[N_PREFILL] = {&p->ttft_ms, &p->density, &p->kept, &p->cra, &p->error, &p->error_max};
    memcpy(out, all, sizeof all);
}

const char *eval_prefill_of(const eval_scores *s, int method) {
    return s->n_prefills ? s->prefills[method / (s->n_methods / s->n_prefills)] : "dense";
}

eval_prefill eval_scores_prefill(const eval_scores *s, int method, int first, int n) {
    eval_prefill out;
    double *to[N_PREFILL];
    prefill_fields(&out, to);
    for (int f = 0; f < N_PREFILL; f++) {
        double sum = 0, least = INFINITY, most = -INFINITY;
        int count = 0;
        for (int i = first; i < first + n; i++) {
            double *of[N_PREFILL];
            prefill_fields(&s->prefill[eval_cell(s, method, i)], of);
            if (isnan(*of[f])) continue;
            sum += *of[f], least = fmin(least, *of[f]), most = fmax(most, *of[f]);
            count++;
        }
        *to[f] = !count ? NAN : f == KEPT || f == CRA ? least : f == ERROR_MAX ? most : sum / count;
    }
    return out;
}

void eval_prefill_put(const eval_scores *s, json_t *row, int method, const eval_prefill *p) {
    double *from[N_PREFILL];
    if (!s->lists_prefill) return;
    json_object_set_new(row, "attn_prefill", json_string(eval_prefill_of(s, method)));
    prefill_fields((eval_prefill *)p, from);
    for (int f = 0; f < N_PREFILL; f++) json_object_set_new(row, prefill_names[f], cli_number(*from[f]));
}

int eval_scores_alloc_heads(eval_scores *s, int n_layers, int n_heads, sl_error *err) {
    size_t n_rows = (size_t)s->n_methods * (size_t)s->n_groups, n = n_rows * (size_t)n_layers * (size_t)n_heads;
    s->n_layers = n_layers, s->n_heads = n_heads;
    s->heads = malloc(n * sizeof *s->heads);
    s->n_counted = calloc(n_rows, sizeof *s->n_counted);
    if (!s->heads || !s->n_counted) return sl_fail(err, SL_ERR_MEMORY, "figures of heads: out of memory");
    for (size_t i = 0; i < n; i++) s->heads[i] = sl_prefill_report_none();
    return 0;
}

static sl_prefill_report *heads_of(const eval_scores *s, int method, int group) { // [n_layers][n_heads]
    return s->heads + ((size_t)method * (size_t)s->n_groups + (size_t)group) * (size_t)(s->n_layers * s->n_heads);
}

void eval_scores_add_heads(eval_scores *s, int method, int group, const sl_prefill_report *heads) {
    if (!s->heads) return;
    s->n_counted[method * s->n_groups + group]++;
    for (int i = 0; heads && i < s->n_layers * s->n_heads; i++)
        sl_prefill_report_add(&heads_of(s, method, group)[i], &heads[i]);
}

json_t *eval_scores_heads_json(const eval_scores *s, int method, int group) {
    int first = group < s->n_groups ? group : 0, end = group < s->n_groups ? group + 1 : s->n_groups,
        n = s->n_layers * s->n_heads;
    sl_prefill_report *sum = s->heads ? malloc((size_t)n * sizeof *sum) : NULL;
    int ok = sum != NULL;
    for (int i = 0; ok && i < n; i++) sum[i] = sl_prefill_report_none();
    for (int g = first; ok && g < end; g++) {
        ok = s->n_counted[method * s->n_groups + g] == s->groups[g].n;
        for (int i = 0; ok && i < n; i++) sl_prefill_report_add(&sum[i], &heads_of(s, method, g)[i]);
    }
    json_t *out = ok ? cli_prefill_heads(sum, s->n_layers, s->n_heads) : json_null();
    free(sum);
    return out;
}

// The fields of a line; 0: one is not a number of 0 or more.
static int read_prefill(const json_t *line, eval_prefill *out) {
    double *to[N_PREFILL];
    prefill_fields(out, to);
    for (int f = 0; f < N_PREFILL; f++) {
        const json_t *value = sl_json_get(line, prefill_names[f]);
        *to[f] = json_is_number(value) ? json_number_value(value) : NAN;
        if (*to[f] < 0 || (value && !json_is_number(value) && !json_is_null(value))) return 0;
    }
    return 1;
}

// ---- stated errors ----

void eval_scores_set_stated(eval_scores *s, int cell, const sl_attn_stats *a) {
    s->stated[cell] = (eval_stated){a->stated, a->certified, a->unbounded, a->stated_units, a->stated_most};
}

void eval_scores_sum_stated(const eval_scores *s, int method, int first, int n, sl_attn_stats *out) {
    *out = (sl_attn_stats){0};
    for (int i = first; i < first + n; i++) {
        const eval_stated *x = &s->stated[eval_cell(s, method, i)];
        const sl_attn_stats of_cell = {.stated = x->stated,
                                       .certified = x->certified,
                                       .unbounded = x->unbounded,
                                       .stated_units = x->stated_units,
                                       .stated_most = x->stated_most};
        sl_attn_stats_add(out, &of_cell);
    }
}

int eval_scores_missing(const eval_scores *s) {
    int n = 0;
    for (int i = 0; i < s->n_methods * s->n_samples; i++) n += isnan(s->score[i]);
    return n;
}

static int is_complete(const eval_scores *s, int sample) {
    for (int m = 0; m < s->n_methods; m++)
        if (isnan(s->score[eval_cell(s, m, sample)])) return 0;
    return 1;
}

int eval_scores_complete(const eval_scores *s, eval_scores *out, sl_error *err) {
    int n = 0, *from = malloc((size_t)s->n_samples * sizeof *from); // [out->n_samples] sample of *s
    *out = (eval_scores){.methods = s->methods,
                         .n_methods = s->n_methods,
                         .prefills = s->prefills,
                         .n_prefills = s->n_prefills,
                         .lists_prefill = s->lists_prefill};
    out->groups = calloc((size_t)s->n_groups, sizeof *out->groups);
    for (int g = 0; from && out->groups && g < s->n_groups; g++) {
        eval_group *group = &out->groups[out->n_groups];
        *group = s->groups[g], group->first = n;
        for (int i = s->groups[g].first; i < s->groups[g].first + s->groups[g].n; i++)
            if (is_complete(s, i)) from[n++] = i;
        group->n = n - group->first;
        out->n_groups += group->n > 0;
    }
    out->n_samples = n;
    int rc = from && out->groups ? eval_scores_alloc(out, err) : sl_fail(err, SL_ERR_MEMORY, "scores: out of memory");
    for (int i = 0; !rc && i < n; i++) {
        out->cluster[i] = s->cluster[from[i]];
        for (int m = 0; m < s->n_methods; m++) {
            int to = eval_cell(out, m, i), cell = eval_cell(s, m, from[i]);
            out->score[to] = s->score[cell], out->bytes[to] = s->bytes[cell], out->dense[to] = s->dense[cell];
            out->stated[to] = s->stated[cell], out->prefill[to] = s->prefill[cell];
        }
    }
    free(from);
    if (rc) eval_scores_free(out);
    return rc;
}

// ---- reading an existing file ----

static int bad_line(const char *path, int n, const char *what, sl_error *err) {
    return sl_fail(err, SL_ERR_FORMAT, "--out %s: line %d: %s", path, n, what);
}

static int find_sample(const eval_scores *s, const char *task, int length, json_int_t sample) {
    for (int g = 0; g < s->n_groups; g++)
        if (!strcmp(s->groups[g].task, task) && s->groups[g].length == length)
            return sample >= 0 && sample < s->groups[g].n ? s->groups[g].first + (int)sample : -1;
    return -1;
}

static int take_line(const char *path, int n, const json_t *line, eval_scores *s, sl_error *err) {
    const char *task, *attn, *prefill = "dense";
    eval_prefill of_prefill;
    int length;
    json_int_t sample, bytes, dense;
    double score;
    sl_attn_stats stated;
    if (json_unpack((json_t *)line, "{s:s, s:i, s:I, s:s, s?s, s:F, s:I, s:I}", "task", &task, "length", &length, "sample",
                    &sample, "attn", &attn, "attn_prefill", &prefill, "score", &score, "kv_bytes", &bytes, "kv_dense_bytes",
                    &dense))
        return bad_line(path, n, "expected a line with a sample", err);
    if (!(score >= 0 && score <= 1) || bytes < 0 || dense < 0)
        return bad_line(path, n, "expected a score from 0 to 1 and bytes of 0 or more", err);
    if (!cli_certificates_get(line, &stated))
        return bad_line(path, n, "expected shares from 0 to 1 and errors of 0 or more", err);
    if (!read_prefill(line, &of_prefill)) return bad_line(path, n, "expected figures of the prefill of 0 or more", err);
    int i = find_sample(s, task, length, sample);
    for (int m = 0; i >= 0 && m < s->n_methods; m++) {
        int cell = eval_cell(s, m, i);
        if (strcmp(s->methods[m], attn) || strcmp(eval_prefill_of(s, m), prefill)) continue;
        if (!isnan(s->score[cell])) return bad_line(path, n, "this sample and method occur twice", err);
        s->score[cell] = score, s->bytes[cell] = (double)bytes, s->dense[cell] = (double)dense;
        s->prefill[cell] = of_prefill;
        eval_scores_set_stated(s, cell, &stated);
    }
    return 0;
}

typedef struct reader {
    const char *path;
    eval_scores *scores;
} reader;

static int take(void *ctx, int n, const json_t *line, sl_error *err) {
    const reader *r = ctx;
    return take_line(r->path, n, line, r->scores, err);
}

int eval_file_open(const char *path, const json_t *settings, eval_scores *s, FILE **out, sl_error *err) {
    reader r = {.path = path, .scores = s};
    const cli_resume file = {.flag = "--out", .path = path, .command = "eval", .version = FORMAT, .take = take, .ctx = &r};
    return cli_resume_open(&file, settings, out, err);
}
