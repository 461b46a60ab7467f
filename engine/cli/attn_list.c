// engine/cli/attn_list.c - see attn_list.h.
#include "engine/cli/attn_list.h"
#include "engine/cli/error_text.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static int add(cli_attn_list *list, const char *word, sl_error *err) {
    sl_attn_spec spec;
    char name[CLI_ATTN_NAME];
    sl_error why;
    int rc = sl_attn_parse(word, &spec, &why);
    if (rc && strncmp(cli_error_text(&why), "--attn", 6)) // the message names only a parameter: add the method
        return sl_fail(err, (sl_err)rc, "--attn %.200s: %.700s", word, why.message);
    if (rc) return sl_fail(err, (sl_err)rc, "%s", why.message);
    sl_attn_format(&spec, name, sizeof name);
    for (int i = 0; i < list->n; i++)
        if (!strcmp(list->names[i], name)) return sl_fail(err, SL_ERR_ARG, "--attn: %s is named twice", name);
    if (list->n == list->cap) {
        int cap = list->cap ? 2 * list->cap : 8;
        char **names = realloc(list->names, cap * sizeof *names);
        if (names) list->names = names;
        sl_attn_spec *specs = realloc(list->specs, cap * sizeof *specs);
        if (specs) list->specs = specs;
        if (!names || !specs) return sl_fail(err, SL_ERR_MEMORY, "--attn: out of memory");
        list->cap = cap;
    }
    list->specs[list->n] = spec;
    if (!(list->names[list->n] = strdup(name))) return sl_fail(err, SL_ERR_MEMORY, "--attn: out of memory");
    list->n++;
    return 0;
}

// Adds one method for each alternative in the braces of `word`, from left to right.
static int expand(cli_attn_list *list, const char *word, sl_error *err) {
    const char *open = strchr(word, '{'), *close = open ? strchr(open, '}') : NULL;
    if (!open && !strchr(word, '}')) return add(list, word, err);
    if (!close || (strchr(open + 1, '{') && strchr(open + 1, '{') < close))
        return sl_fail(err, SL_ERR_ARG,
                       "--attn %.200s: expected braces around alternatives, for example S={64,128}, without braces inside",
                       word);
    int rc = 0;
    for (const char *p = open + 1; !rc && p <= close; p += strcspn(p, ",}") + 1) {
        char one[CLI_ATTN_NAME];
        int n = snprintf(one, sizeof one, "%.*s%.*s%s", (int)(open - word), word, (int)strcspn(p, ",}"), p, close + 1);
        if (n >= CLI_ATTN_NAME)
            return sl_fail(err, SL_ERR_ARG, "--attn %.100s...: expected at most %d characters", word, CLI_ATTN_NAME - 1);
        rc = expand(list, one, err);
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

int cli_attn_list_parse(const cli_list *items, cli_attn_list *out, sl_error *err) {
    *out = (cli_attn_list){0};
    int rc = items->n ? 0 : add(out, "dense", err);
    for (int i = 0; !rc && i < items->n; i++) {
        for (const char *p = items->items[i]; !rc && p;) {
            size_t n = word_length(p);
            char *word = strndup(p, n);
            rc = word ? expand(out, word, err) : sl_fail(err, SL_ERR_MEMORY, "--attn: out of memory");
            free(word);
            p = p[n] ? p + n + 1 : NULL;
        }
    }
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
    *list = (cli_attn_list){0};
}
