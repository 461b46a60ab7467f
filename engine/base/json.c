// engine/base/json.c - see json.h.
#include "engine/base/json.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

int sl_json_load(const char *dir, const char *name, int optional, json_t **out, sl_error *err) {
    char path[4096];
    json_error_t e;
    *out = NULL;
    if (snprintf(path, sizeof path, "%s/%s", dir, name) >= (int)sizeof path)
        return sl_fail(err, SL_ERR_ARG, "%.200s...: the path is too long", dir);
    if (access(path, R_OK)) {
        if (optional && errno == ENOENT) return 0;
        return sl_fail(err, SL_ERR_IO, "%s: %s", path, strerror(errno));
    }
    *out = json_load_file(path, JSON_ALLOW_NUL | JSON_REJECT_DUPLICATES, &e);
    if (!*out) return sl_fail(err, SL_ERR_FORMAT, "%s: line %d: %s", path, e.line, e.text);
    if (!json_is_object(*out)) {
        json_decref(*out);
        *out = NULL;
        return sl_fail(err, SL_ERR_FORMAT, "%s: expected a JSON object", path);
    }
    return 0;
}

json_t *sl_json_get(const json_t *object, const char *field) {
    json_t *v = json_object_get(object, field);
    return json_is_null(v) ? NULL : v;
}

const char *sl_json_type(const json_t *v) {
    static const char *const names[] = {"an object", "a list", "a string", "an integer", "a number", "true", "false", "null"};
    return v ? names[json_typeof(v)] : "missing";
}

static int wrong_type(const sl_json_file *f, const char *field, const json_t *v, const char *expected, sl_error *err) {
    return sl_fail(err, SL_ERR_FORMAT, "%s: field %s is %s, expected %s", f->path, field, sl_json_type(v), expected);
}

int sl_json_int(const sl_json_file *f, const char *field, long long min, long long max, const long long *def, int *out,
                sl_error *err) {
    const json_t *v = sl_json_get(f->root, field);
    if (!v && def) {
        *out = (int)*def;
        return 0;
    }
    if (!json_is_integer(v)) return wrong_type(f, field, v, "an integer", err);
    long long x = json_integer_value(v);
    if (x < min || x > max)
        return sl_fail(err, SL_ERR_FORMAT, "%s: field %s is %lld, expected %lld to %lld", f->path, field, x, min, max);
    *out = (int)x;
    return 0;
}

int sl_json_float(const sl_json_file *f, const char *field, double min, double max, const double *def, float *out,
                  sl_error *err) {
    const json_t *v = sl_json_get(f->root, field);
    if (!v && def) {
        *out = (float)*def;
        return 0;
    }
    if (!json_is_number(v)) return wrong_type(f, field, v, "a number", err);
    double x = json_number_value(v);
    if (!(x >= min && x <= max))
        return sl_fail(err, SL_ERR_FORMAT, "%s: field %s is %g, expected %g to %g", f->path, field, x, min, max);
    *out = (float)x;
    return 0;
}

int sl_json_bool(const sl_json_file *f, const char *field, int def, int *out, sl_error *err) {
    const json_t *v = sl_json_get(f->root, field);
    if (v && !json_is_boolean(v)) return wrong_type(f, field, v, "true or false", err);
    *out = v ? json_is_true(v) : def;
    return 0;
}

int sl_json_string(const sl_json_file *f, const char *field, const char **out, sl_error *err) {
    const json_t *v = sl_json_get(f->root, field);
    if (v && !json_is_string(v)) return wrong_type(f, field, v, "a string", err);
    *out = json_string_value(v);
    if (v && strlen(*out) != json_string_length(v))
        return sl_fail(err, SL_ERR_FORMAT, "%s: field %s holds a NUL, expected none", f->path, field);
    return 0;
}
