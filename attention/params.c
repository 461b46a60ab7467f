// attention/params.c - parses `name[:k=v]*` into a checked specification, prints specifications, says why one is not offered
// with K and V in host memory, and lists the methods.
#include "attention/stages/stages.h"
#include "base/nearest.h"
#include "base/number.h"

#include <ctype.h>
#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

// ---- suggestions ----

enum { MOST_NAMES = 64 };

static int unknown_method(const char *name, sl_error *err) {
    if (strchr(name, ',')) return sl_fail(err, SL_ERR_ARG, "{attn} %.64s: found a list, expected one method", name);
    const char *names[MOST_NAMES];
    int n = 0;
    for (; sl_attn_methods[n]; n++) {
        SL_CHECK(n < MOST_NAMES);
        names[n] = sl_attn_methods[n]->name;
    }
    const char *nearest = sl_nearest(name, names, n);
    if (nearest) return sl_fail(err, SL_ERR_ARG, "{attn} %.64s: unknown method; did you mean %s?", name, nearest);
    return sl_fail(err, SL_ERR_ARG, "{attn} %.64s: unknown method; `sleigh methods` lists all", name);
}

static int unknown_param(const sl_attn_method *m, const char *name, sl_error *err) {
    const char *names[MOST_NAMES];
    char list[512] = "";
    int n = 0;
    for (const sl_attn_param *p = m->params; p && p->name; p++) {
        SL_CHECK(n < MOST_NAMES);
        names[n++] = p->name;
        size_t at = strlen(list);
        snprintf(list + at, sizeof list - at, "%s%s", at ? ", " : "", p->name);
    }
    if (!n) return sl_fail(err, SL_ERR_ARG, "{attn} %s: it has no parameters, found \"%.64s\"", m->name, name);
    const char *nearest = sl_nearest(name, names, n);
    if (nearest)
        return sl_fail(err, SL_ERR_ARG, "{attn} %s: unknown parameter \"%.64s\"; did you mean %s?", m->name, name, nearest);
    return sl_fail(err, SL_ERR_ARG, "{attn} %s: unknown parameter \"%.64s\"; expected one of %s", m->name, name, list);
}

// ---- values ----

// Parses a number. A suffix k or K means 1024.
static int parse_number(const char *text, double *out) {
    char *end;
    errno = 0;
    *out = sl_strtod(text, &end);
    if (end == text || errno || isspace((unsigned char)*text)) return -1;
    if (*end == 'k' || *end == 'K') *out *= 1024, end++;
    return *end ? -1 : 0;
}

// The index of a word in a list such as "even,variance"; -1: not in the list.
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
    int i = sl_attn_param_index(m, name);
    double x;
    if (i < 0) return unknown_param(m, name, err);
    const sl_attn_param *p = &m->params[i];
    if (p->type == SL_PARAM_CHOICE) {
        int choice = choice_index(p->choices, text);
        if (choice < 0)
            return sl_fail(err, SL_ERR_ARG, "{%s} %.64s: expected one of %s (method %s)", name, text, p->choices, m->name);
        value[i] = choice;
        return 0;
    }
    int bad = parse_number(text, &x) || !(x >= p->min && x <= p->max) || (p->type == SL_PARAM_INT && x != floor(x));
    if (bad) {
        char least[SL_NUMBER_TEXT], most[SL_NUMBER_TEXT];
        return sl_fail(err, SL_ERR_ARG, "{%s} %.64s: expected %s from %s to %s (method %s)", name, text,
                       p->type == SL_PARAM_INT ? "an integer" : "a number", sl_number_text(p->min, least),
                       sl_number_text(p->max, most), m->name);
    }
    value[i] = x;
    return 0;
}

int sl_attn_set(sl_attn_spec *spec, const char *name, const char *text, sl_error *err) {
    if (spec->plus && sl_attn_param_index(spec->plus, name) >= 0)
        return set_value(spec->plus, spec->plus_value, name, text, err);
    return set_value(spec->method, spec->value, name, text, err);
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
        if (!equals) return sl_fail(err, SL_ERR_ARG, "{attn} %s: found \"%.64s\", expected NAME=VALUE", (*m)->name, item);
        *equals = 0;
        int rc = set_value(*m, value, item, equals + 1, err);
        if (rc) return rc;
    }
    return 0;
}

// 1: the method gives scores that are not exact, or takes a set of rows, so another method can draw from them.
static int can_be_first(const sl_attn_method *m) {
    const sl_composition *c = m->stages;
    return c && (c->draw ? c->draw->takes_set : !c->propose->exact);
}

// `first+value`: the second method must draw rows of V from exact scores.
static int check_parts(const sl_attn_spec *spec, sl_error *err) {
    const sl_composition *value = spec->plus->stages;
    char list[512] = "";
    for (int i = 0; sl_attn_methods[i]; i++) {
        size_t at = strlen(list);
        if (can_be_first(sl_attn_methods[i]))
            snprintf(list + at, sizeof list - at, "%s%s", at ? ", " : "", sl_attn_methods[i]->name);
    }
    if (!can_be_first(spec->method))
        return sl_fail(
            err, SL_ERR_UNSUPPORTED,
            "{attn} %s+%s: %s neither estimates scores nor takes a set of rows, so \"+%s\" cannot follow it; expected "
            "one of %s",
            spec->method->name, spec->plus->name, spec->method->name, spec->plus->name, list);
    if (!value || !value->draw || !value->propose->exact || value->normaliser != SL_BY_TOTAL)
        return sl_fail(err, SL_ERR_UNSUPPORTED,
                       "{attn} %s+%s: %s does not draw rows of V from given scores, as the santa methods do",
                       spec->method->name, spec->plus->name, spec->plus->name);
    return 0;
}

int sl_attn_parse(const char *text, sl_attn_spec *spec, sl_error *err) {
    char copy[512];
    if (strlen(text) >= sizeof copy)
        return sl_fail(err, SL_ERR_ARG, "{attn}: %zu characters, expected at most %zu", strlen(text), sizeof copy - 1);
    strcpy(copy, text);
    char *plus = strchr(copy, '+');
    if (plus) *plus = 0;
    *spec = (sl_attn_spec){0};
    int rc = parse_method(copy, &spec->method, spec->value, err);
    if (!rc && plus) rc = parse_method(plus + 1, &spec->plus, spec->plus_value, err);
    if (!rc && plus) rc = check_parts(spec, err);
    return rc ? rc : sl_attn_check(spec, err);
}

// 1: a method with {epsilon} above 0 draws as many rows as this error needs, and does not read {S}.
static int is_unused(const sl_attn_method *m, const double *value, int i) {
    int epsilon = sl_attn_param_index(m, "epsilon");
    return !strcmp(m->params[i].name, "S") && epsilon >= 0 && value[epsilon] > 0;
}

static size_t format_method(const sl_attn_method *m, const double *value, char *buf, size_t size) {
    size_t n = (size_t)snprintf(buf, size, "%s", m->name);
    for (int i = 0; m->params && m->params[i].name && n < size; i++) {
        char text[64];
        if ((i > 0 || !m->cpu) && value[i] == m->params[i].def) continue; // auto shows no parameter at its default
        if (is_unused(m, value, i)) continue;
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
    char def[64], least[SL_NUMBER_TEXT], most[SL_NUMBER_TEXT];
    sl_attn_param_format(p, p->def, def, sizeof def);
    if (p->choices)
        fprintf(out, "--%s (%s, default %s): %s", p->name, p->choices, def, p->help);
    else
        fprintf(out, "--%s (%s to %s, default %s): %s", p->name, sl_number_text(p->min, least), sl_number_text(p->max, most),
                def, p->help);
}

// Prints a text as part of a Markdown table, where "|" would end the cell.
static void put_cell(const char *text, FILE *out) {
    for (; *text; text++) fprintf(out, *text == '|' ? "\\|" : "%c", *text);
}

void sl_attn_list(FILE *out) {
    fprintf(out, "| method | phase | mean | what it does | parameters | source | caution |\n|---|---|---|---|---|---|---|\n");
    for (int i = 0; sl_attn_methods[i]; i++) {
        const sl_attn_method *m = sl_attn_methods[i];
        fprintf(out, "| %s | %s | %s%s | ", m->name, sl_attn_phases(m), sl_attn_mean_name(m->mean),
                m->mean_of ? " (see caution)" : "");
        put_cell(m->summary, out);
        fprintf(out, " | ");
        for (const sl_attn_param *p = m->params; p && p->name; p++) {
            if (p > m->params) fprintf(out, "; ");
            list_param(p, out);
        }
        fprintf(out, " | %s | %s |\n", m->source, m->caution ? m->caution : "");
    }
}

int sl_attn_refuse_offloaded(const sl_attn_spec *spec, const char *where, sl_error *err) {
    char text[256];
    sl_attn_format(spec, text, sizeof text);
#ifdef SLEIGH_CUDA
    const sl_attn_cuda_ops *host = sl_attn_on_gpu(spec) && !spec->plus ? spec->method->cuda->offloaded : NULL;
    if (host && host->supports && host->supports(spec, err)) return SL_ERR_UNSUPPORTED;
#endif
    return sl_fail(err, SL_ERR_UNSUPPORTED,
                   "{attn} %s: not offered with {kv_cache} host (%s), because a step would read too many rows over the bus; "
                   "expected a method that reads few rows of K and V: santa-is, quest, vattention, saap or saap-is",
                   text, where);
}

int sl_attn_refuse_byte_rows(const sl_attn_spec *spec, const char *format, const char *where, sl_error *err) {
    char text[256], offered[512] = "";
    sl_attn_format(spec, text, sizeof text);
#ifdef SLEIGH_CUDA
    const sl_attn_cuda_ops *bytes = sl_attn_on_gpu(spec) && !spec->plus ? spec->method->cuda->bytes : NULL;
    if (bytes && bytes->supports && bytes->supports(spec, err)) return SL_ERR_UNSUPPORTED;
    for (int i = 0, n = 0; sl_attn_methods[i]; i++) {
        const sl_attn_cuda_ops *ops = sl_attn_methods[i]->cuda;
        if (ops && ops->bytes && (size_t)n < sizeof offered)
            n += snprintf(offered + n, sizeof offered - (size_t)n, "%s%s", n ? ", " : "", sl_attn_methods[i]->name);
    }
#endif
    return sl_fail(err, SL_ERR_UNSUPPORTED,
                   "{attn} %s: not offered on a GPU with a KV cache of %s (%s); expected one of %s, or a cache of bf16 "
                   "({kv_cache_dtype}), or {device} cpu",
                   text, format, where, offered);
}
