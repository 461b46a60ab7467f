// models/quant_fields.c - see quant_fields.h.
#include "models/quant_fields.h"

#include <stdio.h>
#include <string.h>

static int is_in(const char *name, const char *const *list) {
    for (; *list; list++)
        if (!strcmp(name, *list)) return 1;
    return 0;
}

static int is_neutral(const json_t *v) {
    return !v || json_is_false(v) || (json_is_object(v) && !json_object_size(v)) || (json_is_array(v) && !json_array_size(v));
}

int sl_quant_check_fields(const sl_json_file *f, const char *const *known, const char *const *refused, sl_error *err) {
    const char *key;
    json_t *value;
    json_object_foreach(f->root, key, value) {
        char text[64];
        size_t n = json_dumpb(value, text, sizeof text - 1, JSON_ENCODE_ANY | JSON_COMPACT);
        text[n < sizeof text ? n : 0] = 0;
        if (is_in(key, known)) continue;
        if (is_in(key, refused) && is_neutral(json_is_null(value) ? NULL : value)) continue;
        if (!is_in(key, refused) && json_is_null(value)) continue;
        return sl_fail(err, SL_ERR_UNSUPPORTED, "%s: field %.100s is %s, which is not supported", f->path, key,
                       *text ? text : "something else");
    }
    return 0;
}

int sl_quant_add_rules(sl_quant *q, const sl_json_file *f, const char *field, sl_quant_match match, int scheme, sl_error *err) {
    const json_t *list = sl_json_get(f->root, field), *item;
    size_t i;
    if (list && !json_is_array(list))
        return sl_fail(err, SL_ERR_FORMAT, "%s: field %s is %s, expected a list", f->path, field, sl_json_type(list));
    json_array_foreach(list, i, item) {
        const char *text = json_string_value(item);
        if (!text)
            return sl_fail(err, SL_ERR_FORMAT, "%s: field %s has %s, expected strings", f->path, field, sl_json_type(item));
        int is_regex = !strncmp(text, "re:", 3);
        int is_class = match == SL_NAME_EXACT && !strcmp(text, "Linear");
        int rc = sl_quant_add_rule(q, f->path,
                                   is_regex   ? SL_NAME_REGEX
                                   : is_class ? SL_NAME_CLASS
                                              : match,
                                   is_regex ? text + 3 : text, scheme, err);
        if (rc) return rc;
    }
    return 0;
}

int sl_quant_check_string(const sl_json_file *f, const char *field, const char *const *allowed, sl_error *err) {
    const char *s;
    char list[200] = "";
    int rc = sl_json_string(f, field, &s, err);
    if (rc || !s || is_in(s, allowed)) return rc;
    for (int i = 0; allowed[i]; i++) {
        size_t n = strlen(list);
        snprintf(list + n, sizeof list - n, "%s\"%s\"", !i ? "" : allowed[i + 1] ? ", " : " and ", allowed[i]);
    }
    return sl_fail(err, SL_ERR_UNSUPPORTED, "%s: field %s is \"%.60s\", supported is %s", f->path, field, s, list);
}

int sl_quant_read_kv_scheme(const sl_json_file *f, int *has_scales, sl_error *err) {
    static const char *const known[] = {"num_bits",        "type",        "symmetric", "strategy", "dynamic", "observer",
                                        "observer_kwargs", "scale_dtype", NULL};
    static const char *const neutral[] = {"group_size", "block_structure", "actorder", "zp_dtype", NULL};
    static const char *const types[] = {"float", NULL}, *const strategies[] = {"tensor", "attn_head", NULL};
    const json_t *v = sl_json_get(f->root, "kv_cache_scheme");
    const long long most = 8;
    char path[4300];
    int bits, is_symmetric = 1, is_dynamic = 0;
    if (is_neutral(v) || json_is_null(v)) return 0;
    if (!json_is_object(v))
        return sl_fail(err, SL_ERR_FORMAT, "%s: field kv_cache_scheme is %s, expected an object", f->path, sl_json_type(v));
    snprintf(path, sizeof path, "%.4200s.kv_cache_scheme", f->path);
    const sl_json_file scheme = {path, (json_t *)v};
    int rc = sl_quant_check_fields(&scheme, known, neutral, err);
    if (!rc) rc = sl_json_int(&scheme, "num_bits", 1, 16, &most, &bits, err);
    if (!rc && !json_is_string(sl_json_get(v, "type")))
        rc = sl_fail(err, SL_ERR_FORMAT, "%s: field type is missing or no string", path);
    if (!rc) rc = sl_quant_check_string(&scheme, "type", types, err);
    if (!rc) rc = sl_quant_check_string(&scheme, "strategy", strategies, err);
    if (!rc) rc = sl_json_bool(&scheme, "symmetric", 1, &is_symmetric, err);
    if (!rc) rc = sl_json_bool(&scheme, "dynamic", 0, &is_dynamic, err);
    if (!rc && (bits != 8 || !is_symmetric))
        rc = sl_fail(err, SL_ERR_UNSUPPORTED, "%s: field %s is %d, supported is %d", path, bits != 8 ? "num_bits" : "symmetric",
                     bits != 8 ? bits : is_symmetric, bits != 8 ? 8 : 1);
    *has_scales = !is_dynamic;
    return rc;
}
