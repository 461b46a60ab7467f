// engine/json.c - see json.h.
#include "engine/json.h"

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

static const char *type_name(const json_t *v) {
    static const char *const names[] = {"an object", "a list", "a string", "an integer", "a number", "true", "false", "null"};
    return names[json_typeof(v)];
}

int sl_json_int(const sl_json_file *f, const char *field, long long min, long long max, const long long *def, int *out,
                sl_error *err) {
    const json_t *v = json_object_get(f->root, field);
    if (!v || json_is_null(v)) {
        if (!def) return sl_fail(err, SL_ERR_FORMAT, "%s: field %s is missing", f->path, field);
        *out = (int)*def;
        return 0;
    }
    if (!json_is_integer(v))
        return sl_fail(err, SL_ERR_FORMAT, "%s: field %s is %s, expected an integer", f->path, field, type_name(v));
    long long x = json_integer_value(v);
    if (x < min || x > max)
        return sl_fail(err, SL_ERR_FORMAT, "%s: field %s is %lld, expected %lld to %lld", f->path, field, x, min, max);
    *out = (int)x;
    return 0;
}

int sl_json_float(const sl_json_file *f, const char *field, double min, double max, const double *def, float *out,
                  sl_error *err) {
    const json_t *v = json_object_get(f->root, field);
    if (!v || json_is_null(v)) {
        if (!def) return sl_fail(err, SL_ERR_FORMAT, "%s: field %s is missing", f->path, field);
        *out = (float)*def;
        return 0;
    }
    if (!json_is_number(v))
        return sl_fail(err, SL_ERR_FORMAT, "%s: field %s is %s, expected a number", f->path, field, type_name(v));
    double x = json_number_value(v);
    if (!(x >= min && x <= max))
        return sl_fail(err, SL_ERR_FORMAT, "%s: field %s is %g, expected %g to %g", f->path, field, x, min, max);
    *out = (float)x;
    return 0;
}
