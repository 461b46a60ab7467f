// models/quant_config.c - finds the description of a quantised checkpoint, and applies its names. See quant_config.h. The
// readers of the methods are in quant_methods.c.
#define PCRE2_CODE_UNIT_WIDTH 8
#include "models/quant_config.h"
#include "base/json.h"
#include "models/quant_methods.h"

#include <pcre2.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

// ---- names ----

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

// ---- the description ----

static int is_empty(const json_t *v) {
    return !v || (json_is_object(v) && !json_object_size(v));
}

static int read_method(const sl_json_file *f, const char *missing, sl_quant *out, sl_error *err) {
    const char *method;
    int rc = sl_json_string(f, "quant_method", &method, err);
    if (rc) return rc;
    if (!method) method = missing;
    if (!method) return sl_fail(err, SL_ERR_FORMAT, "%s: field quant_method is missing", f->path);
    out->method = strdup(method);
    if (!out->method) return sl_fail(err, SL_ERR_MEMORY, "%s: out of memory", f->path);
    return sl_quant_read_method(f, out, err);
}

// An object of a document: `name` of config.json, or the whole document.
static int read_document(const sl_documents *d, const char *document, const char *name, const char *missing, sl_quant *out,
                         sl_error *err) {
    char path[SL_DOCUMENT_PATH], where[SL_DOCUMENT_PATH + 64];
    json_t *root;
    int rc = sl_documents_json(d, document, 1, &root, err);
    if (rc || !root) return rc;
    json_t *object = name ? sl_json_get(root, name) : root;
    sl_documents_path(d, document, path);
    snprintf(where, sizeof where, "%s%s%s", path, name ? ": " : "", name ? name : "");
    if (object && !json_is_object(object))
        rc = sl_fail(err, SL_ERR_FORMAT, "%s: field %s is %s, expected an object", path, name, sl_json_type(object));
    else if (!is_empty(object))
        rc = read_method(&(sl_json_file){where, object}, missing, out, err);
    json_decref(root);
    return rc;
}

// {"producer": ..., "quantization": {...}}
static int read_modelopt(const sl_documents *d, sl_quant *out, sl_error *err) {
    return read_document(d, "hf_quant_config.json", "quantization", "modelopt", out, err);
}

int sl_quant_load(const sl_documents *d, const char *weights, sl_quant *out, sl_error *err) {
    *out = (sl_quant){0};
    int rc = sl_quantise_parse(weights, &out->round, err);
    if (!rc) rc = read_document(d, "config.json", "quantization_config", NULL, out, err);
    if (!rc && !out->method) rc = read_document(d, "config.json", "compression_config", "compressed-tensors", out, err);
    if (!rc && !out->method) rc = read_modelopt(d, out, err);
    if (!rc && !out->method) rc = read_document(d, "quantize_config.json", NULL, "gptq", out, err);
    if (!rc && out->method && weights)
        rc = sl_fail(err, SL_ERR_ARG, "{weights} %.40s: the weights of %.300s are quantised already (%.40s)", weights, d->path,
                     out->method);
    if (rc) sl_quant_free(out);
    return rc;
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
