// server/api/api_fields.c - see api_fields.h.
#include "server/api/api_fields.h"
#include "base/number.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

int api_wrong_type(const json_t *v, const char *name, const char *expected, api_error *err) {
    return api_fail(err, 400, name, "%s is %s, expected %s", name, sl_json_type(v), expected);
}

int api_string(const json_t *v, const char *name, const char **out, api_error *err) {
    *out = NULL;
    if (!v) return 0;
    if (!json_is_string(v)) return api_wrong_type(v, name, "a string", err);
    if (strlen(json_string_value(v)) != json_string_length(v))
        return api_fail(err, 400, name, "%s holds a NUL, expected none", name);
    *out = json_string_value(v);
    return 0;
}

// ---- values ----

static int check_range(const api_field *f, double x, const char *name, api_error *err) {
    char text[3][SL_NUMBER_TEXT];
    if (x >= f->min && x <= f->max) return 0;
    return api_fail(err, 400, name, "%s is %s, expected %s to %s", name, sl_number_text(x, text[0]),
                    sl_number_text(f->min, text[1]), sl_number_text(f->max, text[2]));
}

static int read_int(const api_field *f, const json_t *v, const char *name, int *out, api_error *err) {
    double x = json_number_value(v);
    if (!json_is_number(v) || x != floor(x)) return api_wrong_type(v, name, "an integer", err);
    int rc = check_range(f, x, name, err);
    if (!rc) *out = (int)x;
    return rc;
}

static int read_float(const api_field *f, const json_t *v, const char *name, float *out, api_error *err) {
    if (!json_is_number(v)) return api_wrong_type(v, name, "a number", err);
    int rc = check_range(f, json_number_value(v), name, err);
    if (!rc) *out = (float)json_number_value(v);
    return rc;
}

static int read_neutral(const api_field *f, const json_t *v, const char *name, api_error *err) {
    char text[SL_NUMBER_TEXT];
    if (!json_is_number(v) && !json_is_boolean(v)) return api_wrong_type(v, name, "a number, true or false", err);
    double x = json_is_boolean(v) ? json_is_true(v) : json_number_value(v);
    if (x == f->min) return 0;
    return api_fail(err, 400, name, "%s: expected %s or no such field, because this server supports no other value", name,
                    json_is_boolean(v) ? f->min != 0 ? "true" : "false" : sl_number_text(f->min, text));
}

static int read_table(const api_field *f, const json_t *v, const char *name, void *out, api_error *err) {
    char prefix[API_PARAM];
    if (!json_is_object(v)) return api_wrong_type(v, name, "an object", err);
    snprintf(prefix, sizeof prefix, "%.80s.", name);
    return api_fields_read((const api_field *const[]){f->table, NULL}, v, prefix, out, err);
}

static int read_field(const api_field *f, const json_t *v, const char *name, void *out, api_error *err) {
    void *member = (char *)out + f->at;
    switch (f->kind) {
    case API_BOOL:
        if (!json_is_boolean(v)) return api_wrong_type(v, name, "true or false", err);
        *(int *)member = json_is_true(v);
        return 0;
    case API_INT:
        return read_int(f, v, name, member, err);
    case API_FLOAT:
        return read_float(f, v, name, member, err);
    case API_STRING:
        return api_string(v, name, member, err);
    case API_LIST:
        if (!json_is_array(v)) return api_wrong_type(v, name, "a list", err);
        *(const json_t **)member = v;
        return 0;
    case API_TABLE:
        return read_table(f, v, name, out, err);
    case API_READ:
        return f->read(out, v, name, err);
    case API_NEUTRAL:
        return read_neutral(f, v, name, err);
    case API_REFUSED:
        return api_fail(err, 400, name, "%s: %s", name, f->hint);
    case API_IGNORED:
        return 0;
    }
    return 0;
}

// ---- tables ----

static const api_field *find(const api_field *const *tables, const char *name) {
    for (; *tables; tables++)
        for (const api_field *f = *tables; f->name; f++)
            if (!strcmp(f->name, name)) return f;
    return NULL;
}

static int is_value(const api_field *f) { // 1: the field has a member
    return f->kind <= API_LIST;
}

// Another name of the same member must not say something else.
static int check_names(const api_field *const *tables, const json_t *object, const api_field *f, const json_t *v,
                       api_error *err) {
    for (; is_value(f) && *tables; tables++)
        for (const api_field *g = *tables; g->name; g++) {
            const json_t *w = is_value(g) && g->at == f->at && g != f ? sl_json_get(object, g->name) : NULL;
            if (w && !json_equal((json_t *)v, (json_t *)w))
                return api_fail(err, 400, f->name, "%s and %s have the same meaning: expected one of them, or equal values",
                                f->name, g->name);
        }
    return 0;
}

int api_fields_read(const api_field *const *tables, const json_t *object, const char *prefix, void *out, api_error *err) {
    int rc = 0;
    for (void *at = json_object_iter((json_t *)object); !rc && at; at = json_object_iter_next((json_t *)object, at)) {
        const json_t *v = json_object_iter_value(at);
        char name[API_PARAM];
        snprintf(name, sizeof name, "%s%s", prefix, json_object_iter_key(at));
        if (json_is_null(v)) continue;
        const api_field *f = find(tables, json_object_iter_key(at));
        if (!f) return api_fail(err, 400, name, "%s: this server does not know the field", name);
        rc = check_names(tables, object, f, v, err);
        if (!rc) rc = read_field(f, v, name, out, err);
    }
    return rc;
}
