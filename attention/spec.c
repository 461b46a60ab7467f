// attention/spec.c - the values of the parameters of a specification, and their check. This file names no method: it reads the
// tables that the specification points to.
#include "attention/extras/buckets.h"
#include "attention/stages/stages.h"

#include <string.h>

int sl_attn_param_index(const sl_attn_method *m, const char *name) {
    for (int i = 0; m->params && m->params[i].name; i++)
        if (!strcmp(m->params[i].name, name)) return i;
    return -1;
}

int sl_attn_has(const sl_attn_spec *spec, const char *name) {
    return sl_attn_param_index(spec->method, name) >= 0 || (spec->plus && sl_attn_param_index(spec->plus, name) >= 0);
}

int sl_attn_chooses(const sl_attn_spec *spec, const char *name, const char *word) {
    int i = sl_attn_param_index(spec->method, name), own = i >= 0;
    if (!own) i = sl_attn_param_index(spec->plus, name);
    const char *at = (own ? spec->method : spec->plus)->params[i].choices;
    for (int skip = (int)sl_attn_get(spec, name); skip > 0; skip--) at += strcspn(at, ",") + 1;
    return strcspn(at, ",") == strlen(word) && !strncmp(at, word, strlen(word));
}

int sl_attn_same(const sl_attn_spec *a, const sl_attn_spec *b) {
    if (a->method != b->method || a->plus != b->plus) return 0;
    return !memcmp(a->value, b->value, sizeof a->value) && !memcmp(a->plus_value, b->plus_value, sizeof a->plus_value);
}

double sl_attn_get(const sl_attn_spec *spec, const char *name) {
    int i = sl_attn_param_index(spec->method, name);
    if (i >= 0) return spec->value[i];
    i = spec->plus ? sl_attn_param_index(spec->plus, name) : -1;
    SL_CHECK(i >= 0);
    return spec->plus_value[i];
}

static int check_method(const sl_attn_spec *spec, const sl_attn_method *m, sl_error *err) {
    if (m->mean == SL_MEAN_UNSTATED)
        return sl_fail(err, SL_ERR_ARG, "{attn} %s: the method does not state the mean of its output (sl_attn_method.mean)",
                       m->name);
    return m->check ? m->check(spec, err) : 0;
}

int sl_attn_check(const sl_attn_spec *spec, sl_error *err) {
    int rc = check_method(spec, spec->method, err);
    if (rc || !spec->plus) return rc;
    int selects = spec->method->stages && spec->method->stages->draw;
    if (sl_attn_states_error(spec)) // the stated error is that of the draws alone
        return sl_fail(err, SL_ERR_ARG,
                       "{attn} %s+%s: found {epsilon} %g, expected 0: the %s %s%s have an error without a bound",
                       spec->method->name, spec->plus->name, sl_attn_get(spec, "epsilon"),
                       selects ? "rows that" : "approximate scores of", spec->method->name, selects ? " leaves out" : "");
    return check_method(spec, spec->plus, err);
}

sl_attn_mean sl_attn_mean_of(const sl_attn_spec *spec) {
    const sl_attn_method *m = spec->method;
    return m->mean_of ? m->mean_of(spec) : m->mean; // the bias of `first+value` is that of its scores, or of its set
}

const char *sl_attn_mean_name(sl_attn_mean mean) {
    static const char *const names[] = {"unstated", "unbiased", "biased", "exact"};
    return names[mean];
}

int sl_attn_states_error(const sl_attn_spec *spec) {
    return sl_attn_has(spec, "epsilon") && sl_attn_get(spec, "epsilon") > 0;
}

int sl_attn_certifies_layer(const sl_attn_spec *spec) {
    if (!sl_attn_states_error(spec) || !sl_attn_has(spec, "aim")) return 0;
    return !sl_attn_has(spec, "certify") || sl_attn_chooses(spec, "certify", "layer");
}

int sl_attn_carries_budget(const sl_attn_spec *spec) {
    return !sl_attn_states_error(spec) && sl_attn_has(spec, "budget") && sl_attn_chooses(spec, "budget", "carried");
}

static int predicts_by(const sl_attn_spec *spec, const char *word) {
    return sl_attn_has(spec, "predictor") && sl_attn_chooses(spec, "predictor", word);
}

int sl_attn_reads_buckets(const sl_attn_spec *spec) {
    return spec->method->needs_buckets || predicts_by(spec, "buckets");
}

int sl_attn_reads_key_bits(const sl_attn_spec *spec) {
    return predicts_by(spec, "hash");
}

const char *sl_attn_phases(const sl_attn_method *m) {
    int decode = m->cpu && m->cpu->decode, prefill = m->cpu && (m->cpu->prefill || m->cpu->mask || m->cpu->skip_distance);
    return decode && prefill ? "decode, prefill" : prefill ? "prefill" : "decode";
}

int sl_attn_check_decode(const sl_attn_spec *spec, sl_error *err) {
    const sl_attn_method *m = spec->method;
    if (m->cpu && m->cpu->decode) return 0;
    if (!strcmp(sl_attn_phases(m), "prefill"))
        return sl_fail(err, SL_ERR_ARG, "{attn} %s: a method for prefill, which does not decode; use {attn_prefill}", m->name);
    return sl_fail(err, SL_ERR_UNSUPPORTED, "{attn} %s: not offered for decoding on this device", m->name);
}
