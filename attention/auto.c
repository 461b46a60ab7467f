// attention/auto.c - chooses a method for the request `auto` (auto.h). auto_table.c reads and writes the table.
#include "attention/auto.h"
#include "base/number.h"

#include <limits.h>
#include <math.h>
#include <string.h>

// A candidate must be 5% faster than dense attention: clocks differ by 5% from day to day, and dense attention has no error.
#define FASTER 0.95

// ---- candidates ----

int sl_auto_counts(const sl_attn_spec *spec) {
    static const char *const names[] = {"santa-pps", "santa-is"};
    int is_named = 0;
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) is_named |= !strcmp(spec->method->name, names[i]);
    return is_named && !spec->plus && sl_attn_states_error(spec);
}

static int is_candidate(const sl_attn_spec *request, const sl_attn_spec *spec) {
    double epsilon = sl_attn_get(request, "epsilon"), delta = sl_attn_get(request, "delta");
    if (epsilon == 0) return !sl_auto_counts(spec);
    return sl_auto_counts(spec) && sl_attn_get(spec, "epsilon") <= epsilon && sl_attn_get(spec, "delta") <= delta;
}

static void set(sl_attn_spec *spec, const char *name, double value) {
    for (int i = 0; spec->method->params[i].name; i++)
        if (!strcmp(spec->method->params[i].name, name)) spec->value[i] = value;
}

// ---- the choice ----

// The fastest candidate at a point; 0: no candidate is faster than dense.
static int fastest(const sl_auto_table *t, const sl_attn_spec *request, const sl_auto_point *p) {
    int best = 0;
    for (int s = 1; s < t->n_specs; s++) // a comparison with NaN is false: specifications without a time are skipped
        if (is_candidate(request, &t->specs[s]) && p->us[s] <= FASTER * p->us[0] && (!best || p->us[s] < p->us[best])) best = s;
    return best;
}

// The n_seqs of the points that decide for an engine of n_seqs sequences.
static int seqs_of_points(const sl_auto_table *t, int n_seqs) {
    int found = t->points[0].n_seqs;
    for (int i = 0; i < t->n_points && t->points[i].n_seqs <= n_seqs; i++) found = t->points[i].n_seqs;
    return found;
}

void sl_auto_choose(const sl_auto_table *t, const sl_attn_spec *request, int n_seqs, int n_kv, sl_auto_choice *out) {
    const sl_auto_point *at = NULL;
    SL_CHECK(request->method == &sl_method_auto);
    *out = (sl_auto_choice){.spec = {.method = &sl_method_dense}, .us = NAN, .dense_us = NAN};
    if (!t) return;
    out->n_seqs = seqs_of_points(t, n_seqs);
    for (int s = 1; s < t->n_specs; s++) out->n_candidates += is_candidate(request, &t->specs[s]);
    for (int i = 0; i < t->n_points; i++) {
        const sl_auto_point *p = &t->points[i];
        if (p->n_seqs != out->n_seqs) continue;
        if (p->n_kv <= n_kv) at = p;
        if (!fastest(t, request, p)) // the crossover lies above every point without a faster candidate
            out->crossover = 0;
        else if (!out->crossover)
            out->crossover = p->n_kv;
    }
    if (!at) return;
    int best = out->crossover && n_kv >= out->crossover ? fastest(t, request, at) : 0;
    out->spec = t->specs[best], out->us = at->us[best], out->dense_us = at->us[0];
    if (!best || sl_attn_get(request, "epsilon") == 0) return;
    set(&out->spec, "epsilon", sl_attn_get(request, "epsilon"));
    set(&out->spec, "delta", sl_attn_get(request, "delta"));
}

void sl_auto_choice_format(const sl_auto_table *t, const sl_attn_spec *request, const sl_auto_choice *c, char *buf,
                           size_t size) {
    char text[256], allowed[128] = "of the table", number[2][SL_NUMBER_TEXT];
    double epsilon = sl_attn_get(request, "epsilon");
    if (!t) {
        snprintf(buf, size, "dense: nothing was measured");
        return;
    }
    if (epsilon > 0)
        snprintf(allowed, sizeof allowed, "that states epsilon %s, delta %s or less", sl_number_text(epsilon, number[0]),
                 sl_number_text(sl_attn_get(request, "delta"), number[1]));
    sl_attn_format(&c->spec, text, sizeof text);
    int n = c->spec.method != &sl_method_dense ? snprintf(buf, size, "%s, dense below %d rows", text, c->crossover)
            : c->crossover                     ? snprintf(buf, size, "dense below %d rows", c->crossover)
            : c->n_candidates == 0             ? snprintf(buf, size, "dense: no method %s was measured", allowed)
                                   : snprintf(buf, size, "dense: no method %s is faster on the longest contexts", allowed);
    if ((size_t)n < size)
        snprintf(buf + n, size - n, " (%d sequence%s, %.128s, table of %s)", c->n_seqs, c->n_seqs == 1 ? "" : "s", t->device,
                 t->date);
}

// ---- prefill ----

int sl_auto_prefill_crossover(const sl_auto_prefill *p) {
    int crossover = INT_MAX;
    for (int i = p->attn.method ? p->n_lengths - 1 : -1; i >= 0; i--) {
        const sl_auto_length *l = &p->lengths[i];
        if (!(l->mask_us + l->attention_us <= FASTER * l->dense_us)) break;
        crossover = l->n_tokens;
    }
    return crossover;
}

void sl_auto_prefill_format(const sl_auto_table *t, char *buf, size_t size) {
    const sl_auto_prefill *p = &t->prefill;
    char text[256], density[SL_NUMBER_TEXT];
    int crossover = sl_auto_prefill_crossover(p), n;
    sl_attn_format(&p->attn, text, sizeof text);
    sl_number_text(p->density, density);
    n = crossover < INT_MAX
            ? snprintf(buf, size, "%s, dense below %d tokens", text, crossover)
            : snprintf(buf, size, "dense: %s is not faster at %d tokens", text, p->lengths[p->n_lengths - 1].n_tokens);
    if (n >= 0 && (size_t)n < size)
        snprintf(buf + n, size - n, " (timed with %s of the blocks, %.128s, table of %s)", density, t->device, t->date);
}

// ---- plans ----

int sl_auto_in_plan(const sl_attn_plan *plan) {
    int wanted = 0;
    for (int i = 0; i < plan->n_layers; i++) wanted |= plan->layer[i].method == &sl_method_auto;
    return wanted;
}

int sl_auto_choose_plan(const sl_auto_table *t, const sl_attn_plan *plan, int n_seqs, int n_kv, sl_attn_plan *out,
                        sl_error *err) {
    const sl_attn_spec dense = {.method = &sl_method_dense};
    int rc = sl_attn_plan_init(out, plan->n_layers, &dense, err);
    for (int i = 0; !rc && i < plan->n_layers; i++) {
        sl_auto_choice choice;
        out->layer[i] = plan->layer[i];
        if (plan->layer[i].method != &sl_method_auto) continue;
        sl_auto_choose(t, &plan->layer[i], n_seqs, n_kv, &choice);
        out->layer[i] = choice.spec;
    }
    return rc;
}
