// models/quant_compressed.c - see quant_compressed.h.
#include "models/quant_compressed.h"
#include "models/quant_fields.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static int bad_value(const sl_json_file *f, const char *field, const char *found, const char *supported, sl_error *err) {
    return sl_fail(err, SL_ERR_UNSUPPORTED, "%s: field %s is %s, supported is %s", f->path, field, found, supported);
}

// ---- the arguments of weights ----

static int read_strategy(const sl_json_file *f, sl_quant_scheme *s, sl_error *err) {
    static const char *const names[] = {
        [SL_QUANT_TENSOR] = "tensor", [SL_QUANT_CHANNEL] = "channel", [SL_QUANT_GROUP] = "group", [SL_QUANT_BLOCK] = "block"};
    const long long none = 0;
    const char *name;
    int rc = sl_json_int(f, "group_size", -1, 1 << 20, &none, &s->group, err);
    if (!rc) rc = sl_json_string(f, "strategy", &name, err);
    if (rc) return rc;
    s->strategy = s->group > 0 ? SL_QUANT_GROUP : s->group < 0 ? SL_QUANT_CHANNEL : SL_QUANT_TENSOR;
    s->global = name && !strcmp(name, "tensor_group") ? SL_GLOBAL_DIVISOR : SL_GLOBAL_NONE;
    if (!name || (s->global && s->strategy == SL_QUANT_GROUP)) return 0;
    for (int i = 0; i < 4; i++) {
        if (strcmp(name, names[i])) continue;
        if ((i == SL_QUANT_GROUP) != (s->group > 0))
            return sl_fail(err, SL_ERR_FORMAT, "%s: field strategy is %s, and group_size is %d", f->path, name, s->group);
        s->strategy = (sl_quant_strategy)i;
        return 0;
    }
    return bad_value(f, "strategy", name, "tensor, channel, group, block, and tensor_group with a group_size", err);
}

static int read_block(const sl_json_file *f, sl_quant_scheme *s, sl_error *err) {
    const json_t *v = sl_json_get(f->root, "block_structure");
    int end = 0;
    if (s->strategy != SL_QUANT_BLOCK) return 0;
    for (size_t i = 0; i < 2 && json_is_array(v); i++) s->block[i] = (int)json_integer_value(json_array_get(v, i));
    if (json_is_string(v) &&
        (sscanf(json_string_value(v), "%7dx%7d%n", &s->block[0], &s->block[1], &end) != 2 || json_string_value(v)[end]))
        s->block[0] = 0;
    if (json_is_array(v) && json_array_size(v) != 2) s->block[0] = 0;
    if (s->block[0] > 0 && s->block[1] > 0 && s->block[1] % SL_WEIGHT_GROUP == 0) return 0;
    return bad_value(f, "block_structure", "something else", "two numbers such as [128, 128], with multiples of 16 columns",
                     err);
}

// actorder: "group" (true) has an index of the groups; "weight" has none.
static int read_order(const sl_json_file *f, sl_quant_scheme *s, sl_error *err) {
    const json_t *v = sl_json_get(f->root, "actorder");
    const char *name = json_string_value(v);
    s->has_index = json_is_true(v) || (name && !strcmp(name, "group"));
    if (!v || s->has_index || json_is_false(v) || (name && (!strcmp(name, "weight") || !strcmp(name, "static")))) return 0;
    return bad_value(f, "actorder", name ? name : sl_json_type(v), "group and weight", err);
}

static int read_weights(const sl_json_file *f, sl_quant_scheme *s, int *bits, int *is_float, sl_error *err) {
    static const char *const known[] = {"num_bits", "type",     "symmetric",       "group_size",  "strategy", "block_structure",
                                        "actorder", "observer", "observer_kwargs", "scale_dtype", "zp_dtype", NULL};
    static const char *const refused[] = {"dynamic", NULL};
    const char *type;
    int is_symmetric, rc = sl_quant_check_fields(f, known, refused, err);
    if (!rc) rc = sl_json_int(f, "num_bits", 1, 16, NULL, bits, err);
    if (!rc) rc = sl_json_string(f, "type", &type, err);
    if (!rc) rc = sl_json_bool(f, "symmetric", 1, &is_symmetric, err);
    if (!rc) rc = read_strategy(f, s, err);
    if (!rc) rc = read_block(f, s, err);
    if (!rc) rc = read_order(f, s, err);
    if (rc) return rc;
    if (s->strategy == SL_QUANT_GROUP && s->group % SL_WEIGHT_GROUP) {
        char text[16];
        snprintf(text, sizeof text, "%d", s->group);
        return bad_value(f, "group_size", text, "a multiple of 16", err);
    }
    *is_float = type && !strcmp(type, "float");
    if (type && !*is_float && strcmp(type, "int")) return bad_value(f, "type", type, "int and float", err);
    s->has_zero = !is_symmetric;
    return 0;
}

// ---- a group ----

// nvfp4-pack-quantized, mxfp4-pack-quantized: 4 bits of type float, with a scale of the tensor or without.
static int set_fp4(const sl_json_file *f, const char *format, const char *type, int is_fp4, sl_quant_scheme *s, sl_error *err) {
    int is_nv = *format == 'n', group = is_nv ? 16 : 32;
    char text[120];
    s->layout = SL_QUANT_FP4, s->format = SL_FP4, s->q_name = "weight_packed";
    if (is_fp4 && s->group == group && s->strategy == SL_QUANT_GROUP && !s->global == !is_nv && !s->has_zero && !s->has_index)
        return 0;
    snprintf(text, sizeof text, "%s with group_size %d", type, s->group);
    return bad_value(f, "num_bits", text,
                     is_nv ? "4 bits of type float, symmetric, of strategy tensor_group with group_size 16"
                           : "4 bits of type float, symmetric, of strategy group with group_size 32",
                     err);
}

// The layout that a format and the type of its numbers have.
static int set_layout(const sl_json_file *f, const char *format, int bits, int is_float, sl_quant_scheme *s, sl_error *err) {
    int is_bytes = !strcmp(format, "naive-quantized");
    char text[80];
    s->scale_name = "weight_scale";
    s->layout = SL_QUANT_BYTES;
    snprintf(text, sizeof text, "%d bits of type %s", bits, is_float ? "float" : "int");
    if (!strcmp(format, "nvfp4-pack-quantized") || !strcmp(format, "mxfp4-pack-quantized"))
        return set_fp4(f, format, text, bits == 4 && is_float, s, err);
    if (s->global) return bad_value(f, "strategy", "tensor_group", "another one where format is not nvfp4-pack-quantized", err);
    if (!strcmp(format, "pack-quantized")) {
        s->layout = SL_QUANT_PACKED, s->format = bits == 4 ? SL_INT4 : SL_INT8;
        if (is_float || (bits != 4 && bits != 8) || s->strategy == SL_QUANT_BLOCK)
            return bad_value(f, "num_bits", text, "4 or 8 bits of type int in pack-quantized", err);
    } else if (is_bytes || !strcmp(format, "float-quantized") || !strcmp(format, "int-quantized")) {
        int want_float = is_bytes ? is_float : *format == 'f';
        s->format = want_float ? SL_FP8 : SL_INT8;
        if (bits != 8 || is_float != want_float || (is_float && (s->has_zero || s->strategy == SL_QUANT_GROUP)))
            return bad_value(f, "num_bits", text,
                             want_float ? "8 bits of type float, symmetric, without groups" : "8 bits of type int", err);
    } else
        return bad_value(f, "format", format,
                         "float-quantized, int-quantized, naive-quantized, pack-quantized, nvfp4-pack-quantized and "
                         "mxfp4-pack-quantized",
                         err);
    if (s->has_index && (s->layout != SL_QUANT_PACKED || s->strategy != SL_QUANT_GROUP))
        return bad_value(f, "actorder", "group", "null where pack-quantized has no groups", err);
    return 0;
}

// input_activations of weights of fp8: numbers of fp8 with a scale for each row (token), a static scale (tensor), or a scale
// for 128 columns (group). A dynamic scale of a tensor would make rows depend on each other, so each row has its own scale.
static int read_inputs(const sl_json_file *f, sl_quant_scheme *s, sl_error *err) {
    static const char *const known[] = {"num_bits",        "type",        "symmetric", "strategy",   "dynamic", "observer",
                                        "observer_kwargs", "scale_dtype", "zp_dtype",  "group_size", NULL};
    static const char *const refused[] = {"actorder", "block_structure", NULL}, *const types[] = {"float", NULL};
    static const char *const strategies[] = {"token", "tensor", "group", NULL};
    const long long most = 8, none = 0;
    const char *strategy;
    char found[80];
    int bits, group, is_symmetric, is_dynamic, rc = sl_quant_check_fields(f, known, refused, err);
    if (!rc) rc = sl_json_int(f, "num_bits", 1, 16, &most, &bits, err);
    if (!rc) rc = sl_quant_check_string(f, "type", types, err);
    if (!rc && !sl_json_get(f->root, "type")) rc = sl_fail(err, SL_ERR_FORMAT, "%s: field type is missing", f->path);
    if (!rc) rc = sl_json_bool(f, "symmetric", 1, &is_symmetric, err);
    if (!rc) rc = sl_json_bool(f, "dynamic", 0, &is_dynamic, err);
    if (!rc) rc = sl_json_int(f, "group_size", -1, 1 << 20, &none, &group, err);
    if (!rc) rc = sl_quant_check_string(f, "strategy", strategies, err);
    if (!rc) rc = sl_json_string(f, "strategy", &strategy, err);
    if (rc) return rc;
    snprintf(found, sizeof found, "%d", bits);
    if (bits != 8) return bad_value(f, "num_bits", found, "8", err);
    if (!is_symmetric) return bad_value(f, "symmetric", "false", "true", err);
    if (!strategy) strategy = group > 0 ? "group" : group < 0 ? "token" : "tensor";
    snprintf(found, sizeof found, "%s with dynamic %s and group_size %d", strategy, is_dynamic ? "true" : "false", group);
    if (!strcmp(strategy, "group")) {
        s->inputs = SL_INPUTS_GROUPS;
        return is_dynamic && group == 128 ? 0
                                          : bad_value(f, "strategy", found, "group with dynamic true and group_size 128", err);
    }
    s->inputs = is_dynamic ? SL_INPUTS_ROWS : SL_INPUTS_STATIC;
    if (!is_dynamic && !strcmp(strategy, "token")) return bad_value(f, "strategy", found, "token with dynamic true", err);
    return 0;
}

// Other weights keep plain inputs, whatever the description asks for.
static int read_activations(const sl_json_file *f, sl_quant_scheme *s, sl_error *err) {
    char path[4300];
    json_t *v = sl_json_get(f->root, "input_activations");
    if (!v || s->format != SL_FP8) return 0;
    if (!json_is_object(v))
        return sl_fail(err, SL_ERR_FORMAT, "%s: field input_activations is %s, expected an object", f->path, sl_json_type(v));
    snprintf(path, sizeof path, "%s.input_activations", f->path);
    return read_inputs(&(sl_json_file){path, v}, s, err);
}

// format: of the whole description
static int read_group(const sl_json_file *f, const char *format, sl_quant *q, sl_error *err) {
    static const char *const known[] = {"targets", "weights", "input_activations", "format", NULL};
    static const char *const refused[] = {"output_activations", NULL};
    char path[4300];
    sl_quant_scheme s = {0};
    json_t *weights = sl_json_get(f->root, "weights"), *targets = sl_json_get(f->root, "targets");
    const char *own;
    int bits, is_float, rc = sl_quant_check_fields(f, known, refused, err);
    if (!rc && !json_is_object(weights))
        rc = sl_fail(err, SL_ERR_UNSUPPORTED, "%s: field weights is %s, expected an object", f->path, sl_json_type(weights));
    if (!rc && !json_array_size(targets))
        rc = sl_fail(err, SL_ERR_FORMAT, "%s: field targets is %s, expected a list of names", f->path, sl_json_type(targets));
    if (!rc) rc = sl_json_string(f, "format", &own, err);
    if (rc) return rc;
    snprintf(path, sizeof path, "%s.weights", f->path);
    sl_json_file w = {path, weights};
    rc = read_weights(&w, &s, &bits, &is_float, err);
    if (!rc) rc = set_layout(strcmp(format, "mixed-precision") ? f : &w, own ? own : format, bits, is_float, &s, err);
    if (!rc) rc = read_activations(f, &s, err);
    if (!rc) rc = sl_quant_add_scheme(q, f->path, &s, err);
    if (!rc) rc = sl_quant_add_rules(q, f, "targets", SL_NAME_EXACT, q->n_schemes - 1, err);
    if (sl_json_get(f->root, "input_activations")) q->has_activations = 1;
    return rc;
}

static int by_rank(const void *a, const void *b) {
    const sl_quant_rule *x = a, *y = b;
    int rank_x = x->scheme < 0 ? 0 : x->match == SL_NAME_CLASS ? 2 : 1;
    int rank_y = y->scheme < 0 ? 0 : y->match == SL_NAME_CLASS ? 2 : 1;
    return rank_x != rank_y ? rank_x - rank_y : x->scheme - y->scheme;
}

// {"format": "dense", ...} changes nothing.
static int check_sparsity(const sl_json_file *f, sl_error *err) {
    const json_t *v = sl_json_get(f->root, "sparsity_config");
    const char *format = json_string_value(sl_json_get(v, "format"));
    if (!v || (json_is_object(v) && (!json_object_size(v) || (format && !strcmp(format, "dense"))))) return 0;
    return bad_value(f, "sparsity_config", format ? format : sl_json_type(v), "the format dense", err);
}

int sl_quant_read_compressed(const sl_json_file *f, sl_quant *q, sl_error *err) {
    static const char *const known[] = {"quant_method",    "config_groups",
                                        "format",          "ignore",
                                        "kv_cache_scheme", "quantization_status",
                                        "sparsity_config", "global_compression_ratio",
                                        "version",         NULL};
    static const char *const refused[] = {"transform_config", NULL};
    const char *format, *status, *name;
    json_t *groups = sl_json_get(f->root, "config_groups"), *group;
    int rc = sl_quant_check_fields(f, known, refused, err);
    if (!rc) rc = check_sparsity(f, err);
    if (!rc) rc = sl_quant_read_kv_scheme(f, &q->has_kv_scales, err);
    if (!rc) rc = sl_json_string(f, "format", &format, err);
    if (!rc) rc = sl_json_string(f, "quantization_status", &status, err);
    if (!rc && status && strcmp(status, "compressed")) rc = bad_value(f, "quantization_status", status, "compressed", err);
    if (!rc && (!format || !json_object_size(groups)))
        rc = sl_fail(err, SL_ERR_FORMAT, "%s: field %s is missing or empty", f->path, format ? "config_groups" : "format");
    if (!rc) rc = sl_quant_add_rules(q, f, "ignore", SL_NAME_EXACT, -1, err);
    if (rc) return rc;
    json_object_foreach(groups, name, group) {
        char path[4300];
        snprintf(path, sizeof path, "%.4000s.config_groups.%.100s", f->path, name);
        if (!json_is_object(group))
            return sl_fail(err, SL_ERR_UNSUPPORTED, "%s: found %s, expected an object", path, sl_json_type(group));
        rc = read_group(&(sl_json_file){path, group}, format, q, err);
        if (rc) return rc;
    }
    q->quantises_head = 1;
    qsort(q->rules, (size_t)q->n_rules, sizeof *q->rules, by_rank);
    return 0;
}
