// models/quant_scheme.c - see quant_scheme.h.
#define PCRE2_CODE_UNIT_WIDTH 8
#include "models/quant_scheme.h"

#include <pcre2.h>
#include <stdlib.h>
#include <string.h>

static int compile(const char *path, sl_quant_rule *rule, sl_error *err) {
    int code;
    size_t at;
    rule->regex = pcre2_compile((PCRE2_SPTR)rule->text, PCRE2_ZERO_TERMINATED, PCRE2_ANCHORED | PCRE2_UTF, &code, &at, NULL);
    if (rule->regex) return 0;
    PCRE2_UCHAR message[120];
    pcre2_get_error_message(code, message, sizeof message);
    return sl_fail(err, SL_ERR_FORMAT, "%s: pattern %.200s: %s at character %zu", path, rule->text, (char *)message, at);
}

int sl_quant_add_rule(sl_quant *q, const char *path, sl_quant_match match, const char *text, int scheme, sl_error *err) {
    sl_quant_rule *grown = realloc(q->rules, ((size_t)q->n_rules + 1) * sizeof *grown);
    if (!grown) return sl_fail(err, SL_ERR_MEMORY, "%s: out of memory", path);
    q->rules = grown;
    sl_quant_rule *rule = &grown[q->n_rules];
    *rule = (sl_quant_rule){.match = match, .text = strdup(text), .scheme = scheme};
    if (!rule->text) return sl_fail(err, SL_ERR_MEMORY, "%s: out of memory", path);
    q->n_rules++;
    return match == SL_NAME_REGEX ? compile(path, rule, err) : 0;
}

static int matches_regex(const sl_quant_rule *rule, const char *module) {
    pcre2_match_data *data = pcre2_match_data_create(1, NULL);
    int found = data ? pcre2_match(rule->regex, (PCRE2_SPTR)module, strlen(module), 0, 0, data, NULL) : -1;
    pcre2_match_data_free(data);
    return found >= 0;
}

// '*' stands for any text.
static int matches_wildcard(const char *pattern, const char *text) {
    const char *star = NULL, *after = NULL;
    while (*text) {
        if (*pattern == '*')
            star = pattern++, after = text;
        else if (*pattern == *text)
            pattern++, text++;
        else if (star)
            pattern = star + 1, text = ++after;
        else
            return 0;
    }
    while (*pattern == '*') pattern++;
    return !*pattern;
}

static int has_part(const char *module, const char *part) {
    size_t n = strlen(part);
    for (const char *p = module; (p = strstr(p, part)) != NULL; p++)
        if ((p == module || p[-1] == '.') && (!p[n] || p[n] == '.')) return 1;
    return 0;
}

static int matches(const sl_quant_rule *rule, const char *module) {
    switch (rule->match) {
    case SL_NAME_CLASS:
        return 1;
    case SL_NAME_EXACT:
        return !strcmp(rule->text, module);
    case SL_NAME_REGEX:
        return matches_regex(rule, module);
    case SL_NAME_WILDCARD:
        return matches_wildcard(rule->text, module);
    default:
        return has_part(module, rule->text);
    }
}

const sl_quant_scheme *sl_quant_find(const sl_quant *q, const char *module, int is_head) {
    if (is_head && !q->quantises_head) return NULL;
    for (int i = 0; i < q->n_rules; i++)
        if (matches(&q->rules[i], module)) return q->rules[i].scheme < 0 ? NULL : &q->schemes[q->rules[i].scheme];
    return NULL;
}

int sl_quant_add_scheme(sl_quant *q, const char *path, const sl_quant_scheme *scheme, sl_error *err) {
    sl_quant_scheme *grown = realloc(q->schemes, ((size_t)q->n_schemes + 1) * sizeof *grown);
    if (!grown) return sl_fail(err, SL_ERR_MEMORY, "%s: out of memory", path);
    q->schemes = grown;
    grown[q->n_schemes++] = *scheme;
    return 0;
}

void sl_quant_free(sl_quant *q) {
    for (int i = 0; i < q->n_rules; i++) {
        pcre2_code_free(q->rules[i].regex);
        free(q->rules[i].text);
    }
    free(q->rules);
    free(q->schemes);
    free(q->method);
    *q = (sl_quant){0};
}
