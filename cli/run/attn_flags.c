// cli/run/attn_flags.c - see attn_flags.h.
#include "cli/run/attn_flags.h"
#include "attention/auto.h"
#include "base/arrays.h"
#include "cli/attn/attn_list.h"

#include <ctype.h>
#include <errno.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>

static int has_param(const sl_attn_method *m, const char *name) {
    for (const sl_attn_param *p = m->params; p && p->name; p++)
        if (!strcmp(p->name, name)) return 1;
    return 0;
}

// Parses the method of a flag and applies the --PARAM flags that it has.
static int parse_attn(const cli_attention_options *o, const char *flag, const char *text, sl_attn_spec *spec,
                      unsigned char *used, sl_error *err) {
    int rc = cli_attn_parse(flag, text, spec, err);
    for (int i = 0; !rc && i < o->n_params; i++) {
        if (!has_param(spec->method, o->params[i].name)) continue;
        used[i] = 1;
        rc = sl_attn_set(spec, o->params[i].name, o->params[i].value, err);
    }
    return rc;
}

// 1: the text `method[:k=v]*` sets parameter `name`.
static int spec_sets(const char *spec, const char *name) {
    size_t n = strlen(name);
    for (const char *p = strchr(spec, ':'); p; p = strchr(p + 1, ':'))
        if (!strncmp(p + 1, name, n) && p[1 + n] == '=') return 1;
    return 0;
}

// Appends to a layer rule the --PARAM flags that its method has and that the rule does not set. sl_attn_plan_set reports errors
// in the rule.
static int complete_rule(const cli_attention_options *o, const char *rule, sl_text *out, unsigned char *used, sl_error *err) {
    const char *spec_text = strchr(rule, '=');
    sl_attn_spec spec;
    int rc = sl_text_append(out, rule, strlen(rule), err);
    if (rc || !spec_text || sl_attn_parse(spec_text + 1, &spec, NULL)) return rc;
    for (int i = 0; !rc && i < o->n_params; i++) {
        const cli_param *p = &o->params[i];
        if (!has_param(spec.method, p->name)) continue;
        used[i] = 1;
        if (spec_sets(spec_text, p->name)) continue;
        rc = sl_text_append(out, ":", 1, err);
        if (!rc) rc = sl_text_append(out, p->name, strlen(p->name), err);
        if (!rc) rc = sl_text_append(out, "=", 1, err);
        if (!rc) rc = sl_text_append(out, p->value, strlen(p->value), err);
    }
    return rc;
}

int cli_exact_below(const cli_attention_options *o, int *rows, sl_error *err) {
    const char *text = o->exact_below;
    char *end;
    if (!strcmp(text, "auto") || !strcmp(text, "off")) return *rows = *text == 'a' ? SL_EXACT_AUTO : 0, 0;
    errno = 0;
    long long n = strtoll(text, &end, 10);
    int kilo = *end == 'k' || *end == 'K';
    if (!isdigit((unsigned char)*text) || end[kilo] || errno || n > INT_MAX / (kilo ? 1024 : 1))
        return sl_fail(err, SL_ERR_ARG, "--exact-below %.100s: expected a number of rows, auto or off", text);
    *rows = (int)(n * (kilo ? 1024 : 1));
    return 0;
}

int cli_check_prefill_rule(const cli_attention_options *o, const char *rule, sl_error *err) {
    const char *text = strchr(rule, '=');
    sl_attn_spec spec;
    int rc = text ? cli_attn_parse("--attn-prefill-layer", text + 1, &spec, err) : 0;
    if (!rc && text) rc = cli_check_auto(o, "--attn-prefill-layer", &spec, err);
    if (rc || !text || spec.method == &sl_method_auto || strstr(sl_attn_phases(spec.method), "prefill")) return rc;
    return sl_fail(err, SL_ERR_ARG, "--attn-prefill-layer %.64s: a method for decoding, which does not prefill", rule);
}

// Applies a rule of --attn-layer or --attn-prefill-layer; option: its name in messages. plan: NULL, or the plan to change.
static int apply_rule(const cli_attention_options *o, const char *option, const char *text, sl_attn_plan *plan,
                      unsigned char *used, sl_error *err) {
    sl_text rule = {0};
    int rc = strcmp(option, "attn_prefill_layer") ? 0 : cli_check_prefill_rule(o, text, err);
    if (!rc) rc = complete_rule(o, text, &rule, used, err);
    if (!rc && plan) rc = sl_attn_plan_set(plan, option, rule.data, err);
    sl_text_free(&rule);
    return rc;
}

// A flag for all layers, and the rules of its flag for layers.
typedef struct attn_flags {
    const char *flag, *text, *option; // option: the name of the rules in messages
    const cli_list *rules;
    const sl_attn_plan *profiled; // the plan of --attn-profile, in place of `text`; NULL: none
} attn_flags;

// plan: NULL, or the plan to fill, whose n_layers is set.
static int apply_flags(const cli_attention_options *o, const attn_flags *f, sl_attn_spec *spec, sl_attn_plan *plan,
                       unsigned char *used, sl_error *err) {
    int rc = parse_attn(o, f->flag, f->text, spec, used, err);
    if (!rc && plan) {
        int n_layers = plan->n_layers;
        *plan = (sl_attn_plan){0};
        rc = f->profiled ? sl_attn_plan_copy(plan, f->profiled, err) : sl_attn_plan_init(plan, n_layers, spec, err);
    }
    for (int i = 0; !rc && i < f->rules->n; i++) rc = apply_rule(o, f->option, f->rules->items[i], plan, used, err);
    return rc;
}

static int apply_prefill(const cli_attention_options *o, const cli_attn_profile *profile, sl_attn_plan *plan,
                         unsigned char *used, sl_error *err) {
    int by_profile = profile && profile->n_ranges && o->has_plan && !o->attn_prefill_given;
    const attn_flags flags = {.flag = "--attn-prefill",
                              .text = by_profile ? "auto" : o->attn_prefill,
                              .option = "attn_prefill_layer",
                              .rules = &o->attn_prefill_layers};
    sl_attn_spec spec;
    return apply_flags(o, &flags, &spec, plan, used, err);
}

int cli_plan_prefill(const cli_attention_options *o, const cli_attn_profile *profile, sl_attn_plan *plan, sl_error *err) {
    unsigned char used[CLI_MAX_PARAMS];
    return apply_prefill(o, profile, plan, used, err);
}

int cli_plan_decode(const cli_attention_options *o, const cli_attn_profile *profile, sl_attn_spec *spec, sl_attn_plan *plan,
                    sl_error *err) {
    int is_profiled = profile && profile->decode.n_layers && o->has_plan && !o->attn_given;
    const attn_flags flags = {.flag = "--attn",
                              .text = o->attn,
                              .option = "attn_layer",
                              .rules = &o->attn_layers,
                              .profiled = is_profiled ? &profile->decode : NULL};
    unsigned char used[CLI_MAX_PARAMS] = {0};
    int rc = apply_flags(o, &flags, spec, plan, used, err);
    if (!rc) rc = apply_prefill(o, NULL, NULL, used, err);
    for (int i = 0; !rc && i < o->n_params; i++)
        if (!used[i])
            rc = sl_fail(err, SL_ERR_ARG, "flag --%s: the chosen attention method (%s) has no such parameter",
                         o->params[i].name, spec->method->name);
    if (!rc && plan && o->schedule) rc = sl_attn_plan_schedule(plan, o->schedule, err);
    return rc;
}
