// attention/params.c - from `name[:k=v]*` to a checked specification, and the plan of which layer decodes with which.
#include "attention/stages.h"
#include "engine/base/number.h"

#include <ctype.h>
#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

// ---- suggestions ----

static int edit_distance(const char *a, const char *b) { // Levenshtein; names are short
    enum { MOST = 63 };
    int row[MOST + 1], n = (int)strnlen(b, MOST);
    for (int j = 0; j <= n; j++) row[j] = j;
    for (int i = 1; *a; a++, i++) {
        int diagonal = row[0];
        row[0] = i;
        for (int j = 1; j <= n; j++) {
            int best = diagonal + (*a != b[j - 1]);
            if (row[j] + 1 < best) best = row[j] + 1;
            if (row[j - 1] + 1 < best) best = row[j - 1] + 1;
            diagonal = row[j];
            row[j] = best;
        }
    }
    return row[n];
}

static int unknown_method(const char *name, sl_error *err) {
    const char *nearest = sl_attn_methods[0]->name;
    for (int i = 1; sl_attn_methods[i]; i++)
        if (edit_distance(name, sl_attn_methods[i]->name) < edit_distance(name, nearest)) nearest = sl_attn_methods[i]->name;
    return sl_fail(err, SL_ERR_ARG, "--attn %.64s: unknown method; the nearest is \"%s\" (`sleigh methods` lists all)", name,
                   nearest);
}

static int unknown_param(const sl_attn_method *m, const char *name, sl_error *err) {
    const char *nearest = NULL;
    for (const sl_attn_param *p = m->params; p && p->name; p++)
        if (!nearest || edit_distance(name, p->name) < edit_distance(name, nearest)) nearest = p->name;
    return nearest ? sl_fail(err, SL_ERR_ARG, "--attn %s: unknown parameter \"%.64s\"; the nearest is \"%s\"", m->name, name,
                             nearest)
                   : sl_fail(err, SL_ERR_ARG, "--attn %s: it has no parameters, found \"%.64s\"", m->name, name);
}

// ---- values ----

static int param_index(const sl_attn_method *m, const char *name) {
    for (int i = 0; m->params && m->params[i].name; i++)
        if (!strcmp(m->params[i].name, name)) return i;
    return -1;
}

// A number with an optional k or K: 1024.
static int parse_number(const char *text, double *out) {
    char *end;
    errno = 0;
    *out = strtod(text, &end);
    if (end == text || errno || isspace((unsigned char)*text)) return -1;
    if (*end == 'k' || *end == 'K') *out *= 1024, end++;
    return *end ? -1 : 0;
}

// The index of a word in "even,variance"; -1: it is not there.
static int choice_index(const char *choices, const char *word) {
    size_t n = strlen(word);
    for (int i = 0; *choices; i++) {
        size_t m = strcspn(choices, ",");
        if (m == n && !memcmp(choices, word, n)) return i;
        choices += m + (choices[m] == ',');
    }
    return -1;
}

void sl_attn_param_format(const sl_attn_param *p, double value, char *buf, size_t size) {
    const char *word = p->choices;
    char number[SL_NUMBER_TEXT];
    if (!word) {
        snprintf(buf, size, "%s", sl_number_text(value, number));
        return;
    }
    for (int i = (int)value; i > 0; i--) word += strcspn(word, ",") + 1;
    snprintf(buf, size, "%.*s", (int)strcspn(word, ","), word);
}

static int set_value(const sl_attn_method *m, double *value, const char *name, const char *text, sl_error *err) {
    int i = param_index(m, name);
    double x;
    if (i < 0) return unknown_param(m, name, err);
    const sl_attn_param *p = &m->params[i];
    if (p->type == SL_PARAM_CHOICE) {
        int choice = choice_index(p->choices, text);
        if (choice < 0)
            return sl_fail(err, SL_ERR_ARG, "--%s %.64s: expected one of %s (method %s)", name, text, p->choices, m->name);
        value[i] = choice;
        return 0;
    }
    int bad = parse_number(text, &x) || !(x >= p->min && x <= p->max) || (p->type == SL_PARAM_INT && x != floor(x));
    if (bad)
        return sl_fail(err, SL_ERR_ARG, "--%s %.64s: expected %s from %g to %g (method %s)", name, text,
                       p->type == SL_PARAM_INT ? "an integer" : "a number", p->min, p->max, m->name);
    value[i] = x;
    return 0;
}

int sl_attn_set(sl_attn_spec *spec, const char *name, const char *text, sl_error *err) {
    if (spec->plus && param_index(spec->plus, name) >= 0) return set_value(spec->plus, spec->plus_value, name, text, err);
    return set_value(spec->method, spec->value, name, text, err);
}

int sl_attn_has(const sl_attn_spec *spec, const char *name) {
    return param_index(spec->method, name) >= 0 || (spec->plus && param_index(spec->plus, name) >= 0);
}

double sl_attn_get(const sl_attn_spec *spec, const char *name) {
    int i = param_index(spec->method, name);
    if (i >= 0) return spec->value[i];
    i = spec->plus ? param_index(spec->plus, name) : -1;
    SL_CHECK(i >= 0);
    return spec->plus_value[i];
}

// ---- name[:k=v]* ----

static int parse_method(char *text, const sl_attn_method **m, double *value, sl_error *err) {
    char *colon = strchr(text, ':'), *params = colon ? colon + 1 : text + strlen(text), *rest = NULL;
    if (colon) *colon = 0;
    *m = sl_attn_find(text);
    if (!*m) return unknown_method(text, err);
    for (int i = 0; (*m)->params && (*m)->params[i].name; i++) value[i] = (*m)->params[i].def;
    for (char *item = strtok_r(params, ":", &rest); item; item = strtok_r(NULL, ":", &rest)) {
        char *equals = strchr(item, '=');
        if (!equals) return sl_fail(err, SL_ERR_ARG, "--attn %s: found \"%.64s\", expected NAME=VALUE", (*m)->name, item);
        *equals = 0;
        int rc = set_value(*m, value, item, equals + 1, err);
        if (rc) return rc;
    }
    return 0;
}

// `score+value`: the first must leave the values to another method, the second must take scores from another.
static int check_parts(const sl_attn_spec *spec, sl_error *err) {
    const sl_composition *score = spec->method->stages, *value = spec->plus->stages;
    if (!score || score->draw || score->propose->exact)
        return sl_fail(err, SL_ERR_UNSUPPORTED, "--attn %s+%s: %s is no score method, so \"+%s\" cannot follow it",
                       spec->method->name, spec->plus->name, spec->method->name, spec->plus->name);
    if (!value || !value->draw || !value->propose->exact || value->normaliser != SL_BY_TOTAL)
        return sl_fail(err, SL_ERR_UNSUPPORTED,
                       "--attn %s+%s: %s does not sample values from given scores, as the santa methods do", spec->method->name,
                       spec->plus->name, spec->plus->name);
    return 0;
}

int sl_attn_parse(const char *text, sl_attn_spec *spec, sl_error *err) {
    char copy[512];
    if (strlen(text) >= sizeof copy)
        return sl_fail(err, SL_ERR_ARG, "--attn: %zu characters, expected at most %zu", strlen(text), sizeof copy - 1);
    strcpy(copy, text);
    char *plus = strchr(copy, '+');
    if (plus) *plus = 0;
    *spec = (sl_attn_spec){0};
    int rc = parse_method(copy, &spec->method, spec->value, err);
    if (!rc && plus) rc = parse_method(plus + 1, &spec->plus, spec->plus_value, err);
    if (!rc && plus) rc = check_parts(spec, err);
    return rc ? rc : sl_attn_check(spec, err);
}

static size_t format_method(const sl_attn_method *m, const double *value, char *buf, size_t size) {
    size_t n = (size_t)snprintf(buf, size, "%s", m->name);
    for (int i = 0; m->params && m->params[i].name && n < size; i++) {
        char text[64];
        if ((i > 0 || !m->cpu) && value[i] == m->params[i].def) continue; // auto alone says what it is asked
        sl_attn_param_format(&m->params[i], value[i], text, sizeof text);
        n += (size_t)snprintf(buf + n, size - n, ":%s=%s", m->params[i].name, text);
    }
    return n < size ? n : size;
}

void sl_attn_format(const sl_attn_spec *spec, char *buf, size_t size) {
    size_t n = format_method(spec->method, spec->value, buf, size);
    if (!spec->plus || n + 1 >= size) return;
    buf[n] = '+';
    format_method(spec->plus, spec->plus_value, buf + n + 1, size - n - 1);
}

static void list_param(const sl_attn_param *p, FILE *out) {
    char def[64];
    sl_attn_param_format(p, p->def, def, sizeof def);
    if (p->choices)
        fprintf(out, "--%s (%s, default %s): %s", p->name, p->choices, def, p->help);
    else
        fprintf(out, "--%s (%g to %g, default %s): %s", p->name, p->min, p->max, def, p->help);
}

void sl_attn_list(FILE *out) {
    fprintf(out, "| method | mean | what it does | parameters | source | caution |\n|---|---|---|---|---|---|\n");
    for (int i = 0; sl_attn_methods[i]; i++) {
        const sl_attn_method *m = sl_attn_methods[i];
        fprintf(out, "| %s | %s%s | %s | ", m->name, sl_attn_mean_name(m->mean), m->mean_of ? " (see caution)" : "",
                m->summary);
        for (const sl_attn_param *p = m->params; p && p->name; p++) {
            if (p > m->params) fprintf(out, "; ");
            list_param(p, out);
        }
        fprintf(out, " | %s | %s |\n", m->source, m->caution ? m->caution : "");
    }
}

// ---- plan ----

int sl_attn_plan_init(sl_attn_plan *plan, int n_layers, const sl_attn_spec *all, sl_error *err) {
    *plan = (sl_attn_plan){.n_layers = n_layers, .layer = malloc(n_layers * sizeof *plan->layer)};
    if (!plan->layer) return sl_fail(err, SL_ERR_MEMORY, "attention plan of %d layers: out of memory", n_layers);
    for (int i = 0; i < n_layers; i++) plan->layer[i] = *all;
    return 0;
}

void sl_attn_plan_free(sl_attn_plan *plan) {
    free(plan->layer);
    *plan = (sl_attn_plan){0};
}

int sl_attn_plan_set(sl_attn_plan *plan, const char *rule, sl_error *err) {
    char *end;
    sl_attn_spec spec;
    long first = strtol(rule, &end, 10), last = first;
    int ok = end != rule && isdigit((unsigned char)*rule);
    if (ok && *end == '-') {
        const char *from = end + 1;
        last = strtol(from, &end, 10);
        ok = end != from && isdigit((unsigned char)*from);
    }
    if (!ok || *end != '=')
        return sl_fail(err, SL_ERR_ARG, "--attn-layer %.64s: expected LAYER=METHOD or FIRST-LAST=METHOD", rule);
    if (first > last || last >= plan->n_layers)
        return sl_fail(err, SL_ERR_ARG, "--attn-layer %.64s: expected layers from 0 to %d, in order", rule, plan->n_layers - 1);
    int rc = sl_attn_parse(end + 1, &spec, err);
    if (rc) return rc;
    for (long i = first; i <= last; i++) plan->layer[i] = spec;
    return 0;
}

// text: n bytes, taken apart.
static int schedule_line(sl_attn_plan *plan, const char *path, int line, char *text, size_t n, char *seen, sl_error *err) {
    if (strlen(text) != n) return sl_fail(err, SL_ERR_ARG, "--S-schedule %s: line %d: found a NUL byte", path, line);
    char *end, *rest, *layer_text = strtok_r(text, " \t\r\n", &rest), *value = strtok_r(NULL, " \t\r\n", &rest),
                      *after = strtok_r(NULL, " \t\r\n", &rest);
    if (!layer_text || *layer_text == '#') return 0;
    long layer = strtol(layer_text, &end, 10);
    if (!value || (after && *after != '#') || *end || layer < 0 || layer >= plan->n_layers)
        return sl_fail(err, SL_ERR_ARG, "--S-schedule %s: line %d: expected \"LAYER S\" with a layer from 0 to %d", path, line,
                       plan->n_layers - 1);
    if (seen[layer]++) return sl_fail(err, SL_ERR_ARG, "--S-schedule %s: line %d: layer %ld is there twice", path, line, layer);
    sl_error why;
    int rc = sl_attn_set(&plan->layer[layer], "S", value, &why);
    return rc ? sl_fail(err, rc, "--S-schedule %s: line %d: %s", path, line, why.message) : 0;
}

int sl_attn_plan_schedule(sl_attn_plan *plan, const char *path, sl_error *err) {
    char *text = NULL; // a whole line: a part of one would be taken for a line of its own
    size_t size = 0;
    ssize_t n;
    FILE *f = fopen(path, "r");
    if (!f) return sl_fail(err, SL_ERR_IO, "--S-schedule %s: %s", path, strerror(errno));
    char *seen = calloc(plan->n_layers, 1);
    int rc = seen ? 0 : sl_fail(err, SL_ERR_MEMORY, "--S-schedule %s: out of memory", path);
    for (int line = 1; !rc && (n = getline(&text, &size, f)) >= 0; line++)
        rc = schedule_line(plan, path, line, text, (size_t)n, seen, err);
    if (!rc && ferror(f)) rc = sl_fail(err, SL_ERR_IO, "--S-schedule %s: %s", path, strerror(errno));
    free(text);
    free(seen);
    fclose(f);
    return rc;
}

// ---- small shared parts of the contract ----

void sl_attn_stats_add(sl_attn_stats *to, const sl_attn_stats *from) {
    to->steps += from->steps;
    to->k_rows += from->k_rows;
    to->v_rows += from->v_rows;
    to->v_distinct += from->v_distinct;
    to->samples += from->samples;
    to->bytes += from->bytes;
    to->tries += from->tries;
    to->fallbacks += from->fallbacks;
    to->heavy_tails += from->heavy_tails;
    to->kurtosis = fmax(to->kurtosis, from->kurtosis);
    to->features += from->features;
    to->dense_k_rows += from->dense_k_rows;
    to->dense_v_rows += from->dense_v_rows;
    to->dense_bytes += from->dense_bytes;
}

int sl_workspace_reserve(sl_workspace *ws, size_t size, sl_error *err) {
    if (size <= ws->size) return 0;
    size = (size + 63) / 64 * 64;
    void *data = aligned_alloc(64, size);
    if (!data) return sl_fail(err, SL_ERR_MEMORY, "attention scratch memory of %zu MiB cannot be allocated", size >> 20);
    free(ws->data);
    *ws = (sl_workspace){data, size};
    return 0;
}

void sl_workspace_free(sl_workspace *ws) {
    free(ws->data);
    *ws = (sl_workspace){0};
}
