// cli/output/model_name.c - see model_name.h.
#include "cli/output/model_name.h"
#include "cli/hub.h"
#include "models/dequant.h"
#include "models/weights.h"

#include <ctype.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

// The name on the hub, or the last part of the path.
static void name_of(const char *path, char *out, size_t size) {
    size_t end = strlen(path);
    if (cli_hub_name(path, out, size)) return;
    while (end > 1 && path[end - 1] == '/') end--;
    size_t from = end;
    while (from > 0 && path[from - 1] != '/') from--;
    snprintf(out, size, "%.*s", (int)(end - from), path + from);
}

static void replace_odd_bytes(char *name) {
    json_t *utf8 = json_string(name); // NULL: the name is no UTF-8
    for (char *p = name; *p; p++)
        if ((unsigned char)*p < ' ' || *p == '|' || (!utf8 && (unsigned char)*p >= 0x80)) *p = '?';
    json_decref(utf8);
}

void cli_model_folder_name(const char *path, char *out, size_t size) {
    name_of(path, out, size);
    if (!strcmp(out, ".") || !strcmp(out, "..")) {
        char *real = realpath(path, NULL);
        if (real) name_of(real, out, size);
        free(real);
    }
    replace_odd_bytes(out);
}

// The type in the file; of the quantised weights of a folder the format in memory.
static const char *type_of(const sl_tensors *tensors, const sl_model_tensor *t) {
    if (t->recipe.making != SL_MADE_NOT && t->recipe.making != SL_MADE_BLOCKS) return sl_formats[t->weight->format].name;
    const sl_tensor *x = sl_tensors_find(tensors, t->shape.name);
    return x->packed.type ? x->packed.type->name : x->dtype_name;
}

static double count_values(const sl_model_tensor *t) { // of all ranks
    const sl_weight *w = sl_model_tensor_of_file(t);
    return (double)w->n_rows * w->n_cols;
}

// The name has the type of most parameters.
static void count_params(const sl_model *model, cli_model_name *out) {
    const sl_model_weights *w = sl_model_weight_list(model);
    const sl_tensors *tensors = sl_model_tensors(model);
    double most = 0;
    for (int i = 0; i < w->n_tensors; i++) {
        const sl_model_tensor *t = &w->tensors[i];
        double n = 0;
        if (t->same_as) continue;
        out->n_params += count_values(t);
        for (int j = 0; j < w->n_tensors; j++)
            if (!w->tensors[j].same_as && !strcmp(type_of(tensors, &w->tensors[j]), type_of(tensors, t)))
                n += count_values(&w->tensors[j]);
        if (n <= most) continue;
        most = n;
        snprintf(out->dtype, sizeof out->dtype, "%s", type_of(tensors, t));
    }
    for (char *p = out->dtype; *p; p++) *p = (char)tolower((unsigned char)*p);
}

void cli_model_name_of(const sl_model *model, const char *path, cli_model_name *out) {
    *out = (cli_model_name){.is_dummy = sl_model_is_dummy(model)};
    cli_model_folder_name(path, out->name, sizeof out->name);
    snprintf(out->type, sizeof out->type, "%s", sl_model_config(model)->model_type);
    if (sl_model_config(model)->is_rope_changed) sl_config_describe_rope(sl_model_config(model), out->rope, sizeof out->rope);
    count_params(model, out);
}

int cli_model_name_read(const char *path, const sl_model_options *options, cli_model_name *out, sl_error *err) {
    sl_model *model;
    int rc = sl_model_load(path, options, &model, err);
    if (rc) return rc;
    cli_model_name_of(model, path, out);
    sl_model_free(model);
    return 0;
}

const char *cli_model_name_text(const cli_model_name *m, char buf[CLI_MODEL_TEXT]) {
    int big = m->n_params >= 1e9;
    snprintf(buf, CLI_MODEL_TEXT, "%s (%s, %.2f %s parameters, %s%s%s%s)", m->name, m->type, m->n_params * (big ? 1e-9 : 1e-6),
             big ? "B" : "M", m->dtype, m->is_dummy ? ", random weights" : "", *m->rope ? ", RoPE: " : "", m->rope);
    return buf;
}

json_t *cli_model_name_json(const cli_model_name *m, json_t *object) {
    json_t *out = object ? json_pack("{s:s, s:s, s:I, s:s, s:b}", "model", m->name, "model_type", m->type, "n_params",
                                     (json_int_t)m->n_params, "dtype", m->dtype, "dummy", m->is_dummy)
                         : NULL;
    if (out && *m->rope) json_object_set_new(out, "rope", json_string(m->rope));
    if (out) json_object_update(out, object);
    json_decref(object);
    return out;
}
