// attention/methods_json.c - see methods_json.h.
#include "attention/methods_json.h"
#include "attention/attention.h"

static json_t *params_json(const sl_attn_method *m) {
    static const char *const types[] = {"int", "float", "choice"};
    json_t *list = json_array();
    for (const sl_attn_param *p = m->params; p && p->name; p++) {
        char word[64];
        sl_attn_param_format(p, p->def, word, sizeof word);
        json_t *param = json_pack("{s:s, s:s, s:s}", "name", p->name, "type", types[p->type], "help", p->help);
        json_object_set_new(param, "default", p->choices ? json_string(word) : json_real(p->def));
        if (p->choices) {
            json_object_set_new(param, "choices", json_string(p->choices));
        } else {
            json_object_set_new(param, "min", json_real(p->min));
            json_object_set_new(param, "max", json_real(p->max));
        }
        json_array_append_new(list, param);
    }
    return list;
}

static json_t *method_json(const sl_attn_method *m) {
    return json_pack("{s:s, s:s, s:s?, s:s?, s:s, s:s?, s:b, s:b, s:o}", "name", m->name, "phase", sl_attn_phases(m), "summary",
                     m->summary, "source", m->source, "mean", sl_attn_mean_name(m->mean), "caution", m->caution, "cpu",
                     m->cpu != NULL, "cuda", m->cuda != NULL, "params", params_json(m));
}

json_t *sl_attn_methods_json(void) {
    json_t *list = json_array();
    for (const sl_attn_method *const *m = sl_attn_methods; *m; m++) json_array_append_new(list, method_json(*m));
    return list;
}
