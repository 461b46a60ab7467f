// cli/attn/attn_list.c - see attn_list.h.
#include "cli/attn/attn_list.h"
#include "attention/auto.h"
#include "cli/error_text.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

int cli_attn_parse(const char *flag, const char *text, sl_attn_spec *spec, sl_error *err) {
    sl_error why;
    int rc = sl_attn_parse(text, spec, &why);
    if (!rc) return 0;
    const char *message = cli_error_text(&why);
    if (!strncmp(message, "--attn ", 7)) return sl_fail(err, (sl_err)rc, "%s %.900s", flag, message + 7);
    return sl_fail(err, (sl_err)rc, "%s %.200s: %.700s", flag, text, message); // it names only a parameter: add the method
}

static int append(const char *flag, cli_attn_list *list, const sl_attn_spec *spec, const char *name, sl_error *err) {
    if (list->n == list->cap) {
        int cap = list->cap ? 2 * list->cap : 8;
        char **names = realloc(list->names, cap * sizeof *names);
        if (names) list->names = names;
        sl_attn_spec *specs = realloc(list->specs, cap * sizeof *specs);
        if (specs) list->specs = specs;
        if (!names || !specs) return sl_fail(err, SL_ERR_MEMORY, "%s: out of memory", flag);
        list->cap = cap;
    }
    list->specs[list->n] = *spec;
    if (!(list->names[list->n] = strdup(name))) return sl_fail(err, SL_ERR_MEMORY, "%s: out of memory", flag);
    list->n++;
    return 0;
}

static int add(const char *flag, cli_attn_list *list, const char *word, sl_error *err) {
    sl_attn_spec spec;
    char name[CLI_ATTN_NAME];
    int rc = cli_attn_parse(flag, word, &spec, err);
    if (rc) return rc;
    sl_attn_format(&spec, name, sizeof name);
    for (int i = 0; i < list->n; i++)
        if (!strcmp(list->names[i], name)) return sl_fail(err, SL_ERR_ARG, "%s: %s is named twice", flag, name);
    return append(flag, list, &spec, name, err);
}

int cli_attn_list_repeat(cli_attn_list *list, int times, sl_error *err) {
    int n = list->n, rc = 0;
    for (int i = n; !rc && i < n * times; i++) {
        const sl_attn_spec spec = list->specs[i % n];
        rc = append("--attn", list, &spec, list->names[i % n], err);
    }
    return rc;
}

// Adds one method for each alternative in the braces of `word`, from left to right.
static int expand(const char *flag, cli_attn_list *list, const char *word, sl_error *err) {
    const char *open = strchr(word, '{'), *close = open ? strchr(open, '}') : NULL;
    if (!open && !strchr(word, '}')) return add(flag, list, word, err);
    if (!close || (strchr(open + 1, '{') && strchr(open + 1, '{') < close))
        return sl_fail(err, SL_ERR_ARG,
                       "%s %.200s: expected braces around alternatives, for example S={64,128}, without braces inside", flag,
                       word);
    int rc = 0;
    for (const char *p = open + 1; !rc && p <= close; p += strcspn(p, ",}") + 1) {
        char one[CLI_ATTN_NAME];
        int n = snprintf(one, sizeof one, "%.*s%.*s%s", (int)(open - word), word, (int)strcspn(p, ",}"), p, close + 1);
        if (n >= CLI_ATTN_NAME)
            return sl_fail(err, SL_ERR_ARG, "%s %.100s...: expected at most %d characters", flag, word, CLI_ATTN_NAME - 1);
        rc = expand(flag, list, one, err);
    }
    return rc;
}

// Length up to the next comma outside braces.
static size_t word_length(const char *p) {
    int depth = 0;
    size_t n = 0;
    for (; p[n] && (p[n] != ',' || depth > 0); n++) depth += (p[n] == '{') - (p[n] == '}');
    return n;
}

int cli_attn_list_parse(const char *flag, const cli_list *items, cli_attn_list *out, sl_error *err) {
    *out = (cli_attn_list){0};
    int rc = items->n ? 0 : add(flag, out, "dense", err);
    for (int i = 0; !rc && i < items->n; i++) {
        for (const char *p = items->items[i]; !rc && p;) {
            size_t n = word_length(p);
            char *word = strndup(p, n);
            rc = word ? expand(flag, out, word, err) : sl_fail(err, SL_ERR_MEMORY, "%s: out of memory", flag);
            free(word);
            p = p[n] ? p + n + 1 : NULL;
        }
    }
    return rc;
}

int cli_check_auto(const cli_attention_options *o, const char *flag, const sl_attn_spec *spec, sl_error *err) {
    if (spec->method != &sl_method_auto || o->attn_profile || o->has_plan) return 0;
    return sl_fail(err, SL_ERR_ARG, "%s auto: expected --attn-profile FILE, whose methods auto chooses from", flag);
}

int cli_prefill_list_parse(const cli_attention_options *o, cli_attn_list *out, sl_error *err) {
    int rc = cli_attn_list_parse("--attn-prefill", &o->attn_prefills, out, err);
    for (int i = 0; !rc && i < out->n; i++) rc = cli_check_auto(o, "--attn-prefill", &out->specs[i], err);
    return rc;
}

double cli_attn_curve(const cli_attn_list *list, int i, char name[CLI_ATTN_NAME]) {
    const sl_attn_spec *spec = &list->specs[i];
    const sl_attn_param *first = spec->method->params;
    const char *text = list->names[i], *rest = text + strlen(text);
    int swept = first && first->name && (!strcmp(first->name, "S") || !strcmp(first->name, "k"));
    size_t n = swept ? strcspn(text, ":") : strlen(text);
    if (swept) rest = text + n + 1 + strcspn(text + n + 1, ":+");
    snprintf(name, CLI_ATTN_NAME, "%.*s%s", (int)n, text, rest);
    return swept ? spec->value[0] : NAN;
}

void cli_attn_list_free(cli_attn_list *list) {
    for (int i = 0; i < list->n; i++) free(list->names[i]);
    free(list->names);
    free(list->specs);
}
