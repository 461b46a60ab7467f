// attention/plan.c - the specification that each layer decodes with: --attn-layer and --S-schedule.
#include "attention/attention.h"

#include <ctype.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

int sl_attn_plan_init(sl_attn_plan *plan, int n_layers, const sl_attn_spec *all, sl_error *err) {
    *plan = (sl_attn_plan){.n_layers = n_layers, .layer = malloc(n_layers * sizeof *plan->layer)};
    if (!plan->layer) return sl_fail(err, SL_ERR_MEMORY, "attention plan of %d layers: out of memory", n_layers);
    for (int i = 0; i < n_layers; i++) plan->layer[i] = *all;
    return 0;
}

int sl_attn_plan_copy(sl_attn_plan *plan, const sl_attn_plan *from, sl_error *err) {
    int rc = sl_attn_plan_init(plan, from->n_layers, &from->layer[0], err);
    if (!rc) memcpy(plan->layer, from->layer, from->n_layers * sizeof *plan->layer);
    return rc;
}

int sl_attn_plan_same(const sl_attn_plan *a, const sl_attn_plan *b) {
    int same = a->n_layers == b->n_layers;
    for (int i = 0; same && i < a->n_layers; i++) same = sl_attn_same(&a->layer[i], &b->layer[i]);
    return same;
}

int sl_attn_plan_is_dense(const sl_attn_plan *plan) {
    int n = 0;
    while (n < plan->n_layers && plan->layer[n].method == &sl_method_dense) n++;
    return n == plan->n_layers;
}

void sl_attn_plan_free(sl_attn_plan *plan) {
    free(plan->layer);
    *plan = (sl_attn_plan){0};
}

int sl_attn_plan_set(sl_attn_plan *plan, const char *option, const char *rule, sl_error *err) {
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
        return sl_fail(err, SL_ERR_ARG, "{%s} %.64s: expected LAYER=METHOD or FIRST-LAST=METHOD", option, rule);
    if (first > last || last >= plan->n_layers)
        return sl_fail(err, SL_ERR_ARG, "{%s} %.64s: expected layers from 0 to %d, in order", option, rule, plan->n_layers - 1);
    int rc = sl_attn_parse(end + 1, &spec, err);
    if (rc) return rc;
    for (long i = first; i <= last; i++) plan->layer[i] = spec;
    return 0;
}

// Reads one line of n bytes. Writes into text.
static int schedule_line(sl_attn_plan *plan, const char *path, int line, char *text, size_t n, char *seen, sl_error *err) {
    if (strlen(text) != n) return sl_fail(err, SL_ERR_ARG, "{S_schedule} %s: line %d: found a NUL byte", path, line);
    char *end, *rest, *layer_text = strtok_r(text, " \t\r\n", &rest), *value = strtok_r(NULL, " \t\r\n", &rest),
                      *after = strtok_r(NULL, " \t\r\n", &rest);
    if (!layer_text || *layer_text == '#') return 0;
    long layer = strtol(layer_text, &end, 10);
    if (!value || (after && *after != '#') || *end || layer < 0 || layer >= plan->n_layers)
        return sl_fail(err, SL_ERR_ARG, "{S_schedule} %s: line %d: expected \"LAYER S\" with a layer from 0 to %d", path, line,
                       plan->n_layers - 1);
    if (seen[layer]++) return sl_fail(err, SL_ERR_ARG, "{S_schedule} %s: line %d: layer %ld occurs twice", path, line, layer);
    sl_error why;
    int rc = sl_attn_set(&plan->layer[layer], "S", value, &why);
    return rc ? sl_fail(err, rc, "{S_schedule} %s: line %d: %s", path, line, why.message) : 0;
}

int sl_attn_plan_schedule(sl_attn_plan *plan, const char *path, sl_error *err) {
    char *text = NULL; // a complete line: with a fixed buffer, the rest of a long line would look like the next line
    size_t size = 0;
    ssize_t n;
    FILE *f = fopen(path, "r");
    if (!f) return sl_fail(err, SL_ERR_IO, "{S_schedule} %s: %s", path, strerror(errno));
    char *seen = calloc(plan->n_layers, 1);
    int rc = seen ? 0 : sl_fail(err, SL_ERR_MEMORY, "{S_schedule} %s: out of memory", path);
    for (int line = 1; !rc && (n = getline(&text, &size, f)) >= 0; line++)
        rc = schedule_line(plan, path, line, text, (size_t)n, seen, err);
    if (!rc && ferror(f)) rc = sl_fail(err, SL_ERR_IO, "{S_schedule} %s: %s", path, strerror(errno));
    free(text);
    free(seen);
    fclose(f);
    return rc;
}
