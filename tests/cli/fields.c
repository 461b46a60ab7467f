// tests/cli/fields.c - see fields.h.
#include "tests/cli/fields.h"

#include <ctype.h>
#include <fcntl.h>
#include <math.h>
#include <stdlib.h>
#include <unistd.h>

// ---- fields ----

static struct field *add(fields *f, const char *name) {
    CHECK(f->n < (int)(sizeof f->at / sizeof *f->at));
    struct field *at = &f->at[f->n++];
    *at = (struct field){.x = NAN};
    snprintf(at->name, sizeof at->name, "%.63s", name);
    return at;
}

void want(fields *f, const char *name, double x) {
    add(f, name)->x = isfinite(x) ? x : NAN;
}

void want_text(fields *f, const char *name, const char *text) {
    add(f, name)->text = text;
}

void want_list(fields *f, const char *name) {
    add(f, name)->is_list = 1;
}

static const struct field *find(const fields *f, const char *name) {
    for (int i = 0; i < f->n; i++)
        if (!strcmp(f->at[i].name, name)) return &f->at[i];
    FAIL("the test has no line for \"%s\"", name);
}

double wanted(const fields *f, const char *name) {
    return find(f, name)->x;
}

static void check_field(const json_t *value, const struct field *f, double close) {
    const char *name = f->name;
    if (f->is_list) {
        if (!json_is_array(value) && !json_is_object(value)) FAIL("\"%s\" is no list", name);
    } else if (f->text) {
        if (!json_is_string(value) || strcmp(json_string_value(value), f->text)) FAIL("\"%s\": expected \"%s\"", name, f->text);
    } else if (json_is_boolean(value)) {
        if (json_is_true(value) != f->x) FAIL("\"%s\": expected %g", name, f->x);
    } else if (isnan(f->x)) {
        if (!json_is_null(value)) FAIL("\"%s\": got %.17g, expected null", name, json_number_value(value));
    } else {
        double got = json_is_number(value) ? json_number_value(value) : NAN;
        if (!(fabs(got - f->x) <= close * fabs(f->x) + 1e-15)) FAIL("\"%s\": got %.17g, expected %.17g", name, got, f->x);
    }
}

void check_fields(const json_t *row, const fields *f, double close) {
    const char *key;
    json_t *value;
    json_object_foreach((json_t *)row, key, value) check_field(value, find(f, key), close);
    for (int i = 0; i < f->n; i++)
        if (!json_object_get(row, f->at[i].name)) FAIL("a row has no \"%s\"", f->at[i].name);
    CHECK_INT(json_object_size(row), f->n); // no line of the test is there twice
}

// ---- tables ----

// Writes a placeholder "key*100:%.1f" of n bytes. Returns 0 if the number is null.
static int put_part(const char *part, int n, const fields *row, char *out, size_t size) {
    char text[96], *form, *scale;
    snprintf(text, sizeof text, "%.*s", n, part);
    if ((form = strchr(text, ':'))) *form++ = 0;
    if ((scale = strchr(text, '*'))) *scale++ = 0;
    const struct field *f = find(row, text);
    if (f->text) return snprintf(out, size, "%s", f->text), 1;
    if (isnan(f->x)) return 0;
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wformat-nonliteral"
    snprintf(out, size, form ? form : "%.0f", f->x * (scale ? atof(scale) : 1));
#pragma GCC diagnostic pop
    return 1;
}

static void put_cell(const char *cell, const fields *row, char *out, size_t size) {
    size_t at = 0, first_end = 0;
    for (const char *p = cell; *p;) {
        if (*p != '{') {
            out[at++] = *p++, out[at] = 0;
            continue;
        }
        int n = (int)strcspn(p, "}") - 1;
        if (!put_part(p + 1, n, row, out + at, size - at)) {
            if (first_end)
                out[first_end] = 0;
            else
                snprintf(out, size, "-");
            return;
        }
        at += strlen(out + at), p += n + 2;
        if (!first_end) first_end = at;
    }
}

void check_table(const char *md, const column *columns, int n_columns, const fields *rows, int n_rows) {
    char line[4096] = "|", got[4096];
    for (int i = 0; i < n_columns; i++) snprintf(line + strlen(line), sizeof line - strlen(line), " %s |", columns[i].title);
    strcat(line, "\n|");
    for (int i = 0; i < n_columns; i++) strcat(line, "---|");
    const char *p = strstr(md, line);
    if (!p) FAIL("no table\n%s\nin\n%.2000s", line, md);
    p = strchr(strchr(p, '\n') + 1, '\n') + 1;
    for (int r = 0; r < n_rows; r++, p += strcspn(p, "\n") + 1) {
        snprintf(line, sizeof line, "|");
        for (int i = 0; i < n_columns; i++) {
            char cell[256] = "";
            put_cell(columns[i].cell, &rows[r], cell, sizeof cell);
            snprintf(line + strlen(line), sizeof line - strlen(line), " %s |", cell);
        }
        snprintf(got, sizeof got, "%.*s", (int)strcspn(p, "\n"), p);
        CHECK_STR(got, line);
    }
    if (*p == '|') FAIL("more than %d rows: %.200s", n_rows, p);
}

char *capture(int (*fn)(void *ctx, sl_error *err), void *ctx) {
    sl_error err;
    size_t n;
    char path[256];
    snprintf(path, sizeof path, "%s", in_tmp("captured"));
    fflush(stdout);
    int out = dup(STDOUT_FILENO), messages = dup(STDERR_FILENO), file = open(path, O_WRONLY | O_CREAT | O_TRUNC, 0600),
        null = open("/dev/null", O_WRONLY);
    CHECK(out >= 0 && messages >= 0 && file >= 0 && null >= 0);
    dup2(file, STDOUT_FILENO), dup2(null, STDERR_FILENO);
    int rc = fn(ctx, &err);
    fflush(stdout);
    dup2(out, STDOUT_FILENO), dup2(messages, STDERR_FILENO);
    close(out), close(messages), close(file), close(null);
    if (rc) FAIL("%s", err.message);
    return slurp(path, &n);
}

// ---- statistics ----

double mean_of_values(const double *x, int n) {
    long double sum = 0;
    for (int i = 0; i < n; i++) sum += x[i];
    return n ? (double)(sum / n) : (double)NAN;
}

double deviation_of(const double *x, int n) {
    double mean = mean_of_values(x, n), squares = 0;
    for (int i = 0; i < n; i++) squares += pow(x[i] - mean, 2);
    return n < 2 ? (double)NAN : sqrt(squares / (n - 1));
}

// The value with `rank` values below it, or equal and before it.
static double at_rank(const double *x, int n, int rank) {
    for (int i = 0; i < n; i++) {
        int below = 0;
        for (int j = 0; j < n; j++) below += x[j] < x[i] || (x[j] == x[i] && j < i);
        if (below == rank) return x[i];
    }
    return NAN;
}

double quantile_of(const double *x, int n, double share) {
    int rank = 0;
    while (rank + 1 < n * share - 1e-9) rank++;
    return at_rank(x, n, rank);
}

double median_of(const double *x, int n) {
    return (at_rank(x, n, (n - 1) / 2) + at_rank(x, n, n / 2)) / 2;
}

static sl_error no_memory;

void add_value(cli_values *v, double x) {
    CHECK_OK(cli_values_add(v, x, &no_memory), no_memory);
}

void end_group(cli_values *v) {
    CHECK_OK(cli_values_end_group(v, &no_memory), no_memory);
}

double error_of(const cli_values *v) {
    double mean = mean_of_values(v->x, v->n), squares = 0;
    if (v->n_groups < 8) return deviation_of(v->x, v->n) / sqrt(v->n);
    for (int g = 0, i = 0; g < v->n_groups; g++) { // a group's sum against its size times the mean
        double sum = 0, size = v->ends[g] - i;
        for (; i < v->ends[g]; i++) sum += v->x[i];
        squares += pow(sum - size * mean, 2);
    }
    return sqrt(squares * v->n_groups / (v->n_groups - 1)) / v->n;
}

static void want_as(fields *f, const char *name, const char *suffix, double x) {
    char key[64];
    snprintf(key, sizeof key, "%.40s%.20s", name, suffix);
    want(f, key, x);
}

// The suite `intervals` checks cli_values_mean_interval.
void want_mean(fields *f, const char *name, const cli_values *v, int with_interval) {
    double mean = mean_of_values(v->x, v->n), error = error_of(v);
    cli_interval i = cli_values_mean_interval(v, (cli_estimate){mean, error});
    want(f, name, mean), want_as(f, name, "_se", error);
    if (with_interval) want_as(f, name, "_low", i.low), want_as(f, name, "_high", i.high);
}

void want_perplexity(fields *f, const char *name, const cli_values *v) {
    double mean = mean_of_values(v->x, v->n), error = error_of(v);
    cli_interval i = cli_values_mean_interval(v, (cli_estimate){mean, error});
    want(f, name, exp(mean)), want_as(f, name, "_se", exp(mean) * error);
    want_as(f, name, "_low", exp(i.low)), want_as(f, name, "_high", exp(i.high));
}

// The suite `intervals` checks the ends of the interval.
void want_quantile(fields *f, const char *name, const char *suffix, const cli_values *v, double share) {
    char key[64];
    cli_interval i;
    CHECK_OK(cli_values_quantiles(v, &share, 1, &i, &no_memory), no_memory);
    snprintf(key, sizeof key, "%.40s%.20s", name, suffix);
    want(f, key, quantile_of(v->x, v->n, share)), want_as(f, key, "_low", i.low), want_as(f, key, "_high", i.high);
}
