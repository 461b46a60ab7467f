// base/json.c - see json.h.
#include "base/json.h"
#include "base/number.h"
#include "base/git_lfs.h"
#include "base/json_lenient.h"

#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

// Reads the file at path to *out. *out is empty with `optional` when there is no such file.
static int read_file(const char *path, int optional, sl_text *out, sl_error *err) {
    char part[65536];
    FILE *f = fopen(path, "rb");
    if (!f && optional && errno == ENOENT) return 0;
    if (!f) return sl_fail(err, SL_ERR_IO, "%s: %s", path, strerror(errno));
    int rc = sl_text_append(out, "", 0, err);
    for (size_t n; !rc && (n = fread(part, 1, sizeof part, f)) > 0;) rc = sl_text_append(out, part, n, err);
    if (!rc && ferror(f)) rc = sl_fail(err, SL_ERR_IO, "%s: %s", path, strerror(errno));
    fclose(f);
    return rc;
}

int sl_json_load(const char *dir, const char *name, int optional, json_t **out, sl_error *err) {
    char path[4096];
    sl_text text = {0};
    *out = NULL;
    if (snprintf(path, sizeof path, "%s/%s", dir, name) >= (int)sizeof path)
        return sl_fail(err, SL_ERR_ARG, "%.200s...: the path is too long", dir);
    int rc = read_file(path, optional, &text, err);
    if (!rc && text.data) rc = sl_json_parse(path, text.data, text.n, out, err);
    sl_text_free(&text);
    return rc;
}

int sl_json_parse(const char *path, const char *text, size_t n, json_t **out, sl_error *err) {
    static const char bom[] = "\xef\xbb\xbf";
    json_error_t e;
    sl_text rewritten = {0};
    *out = NULL;
    int rc = sl_git_lfs_check(path, text, n, err);
    if (n >= 3 && !memcmp(text, bom, 3)) text += 3, n -= 3;
    if (!rc) rc = sl_json_rewrite(text, n, &rewritten, err);
    if (!rc) {
        *out = rewritten.data ? json_loadb(rewritten.data, rewritten.n, JSON_ALLOW_NUL, &e)
                              : json_loadb(text, n, JSON_ALLOW_NUL, &e);
        if (!*out) rc = sl_fail(err, SL_ERR_FORMAT, "%s: line %d: %s", path, e.line, e.text);
    }
    sl_text_free(&rewritten);
    if (rc || json_is_object(*out)) return rc;
    json_decref(*out);
    *out = NULL;
    return sl_fail(err, SL_ERR_FORMAT, "%s: expected a JSON object", path);
}

json_t *sl_json_get(const json_t *object, const char *field) {
    json_t *v = json_object_get(object, field);
    return json_is_null(v) ? NULL : v;
}

// The text of a value that Jansson cannot hold; NULL: v is another value.
static const char *marked_text(const json_t *v) {
    const char *s = json_string_value(v);
    int is_marked = s && json_string_length(v) >= SL_JSON_MARK_SIZE && !memcmp(s, SL_JSON_MARK, SL_JSON_MARK_SIZE);
    return is_marked ? s + SL_JSON_MARK_SIZE : NULL;
}

const char *sl_json_type(const json_t *v) {
    static const char *const names[] = {"an object", "a list", "a string", "an integer", "a number", "true", "false", "null"};
    if (marked_text(v)) return "a value that no double and no text can hold";
    return v ? names[json_typeof(v)] : "missing";
}

const char *sl_json_found(const json_t *v, char buf[SL_JSON_FOUND]) {
    const char *text = marked_text(v);
    snprintf(buf, SL_JSON_FOUND, "%.*s", SL_JSON_FOUND - 4, text ? text : sl_json_type(v));
    if (text && strlen(text) > SL_JSON_FOUND - 4) strcat(buf, "...");
    return buf;
}

static int wrong_type(const sl_json_file *f, const char *field, const json_t *v, const char *expected, sl_error *err) {
    char found[SL_JSON_FOUND];
    return sl_fail(err, SL_ERR_FORMAT, "%s: field %s is %s, expected %s", f->path, field, sl_json_found(v, found), expected);
}

int sl_json_int(const sl_json_file *f, const char *field, long long min, long long max, const long long *def, int *out,
                sl_error *err) {
    const json_t *v = sl_json_get(f->root, field);
    if (!v && def) {
        *out = (int)*def;
        return 0;
    }
    double real = json_real_value(v);
    int is_whole = json_is_real(v) && real == floor(real) && fabs(real) < 0x1p53; // 50.0
    if (!json_is_integer(v) && !is_whole) return wrong_type(f, field, v, "an integer", err);
    long long x = is_whole ? (long long)real : json_integer_value(v);
    if (x < min || x > max)
        return sl_fail(err, SL_ERR_FORMAT, "%s: field %s is %lld, expected %lld to %lld", f->path, field, x, min, max);
    *out = (int)x;
    return 0;
}

// *out: the number of v. 0: v is no finite number. An integer of more than 64 bits is read as a double.
static int read_number(const json_t *v, double *out) {
    const char *text = marked_text(v);
    if (!text || !*text || text[strspn(text, "-0123456789")]) {
        *out = json_number_value(v);
        return json_is_number(v);
    }
    *out = sl_strtod(text, NULL);
    return isfinite(*out);
}

static int out_of_range(const sl_json_file *f, const char *field, double x, double min, double max, sl_error *err) {
    char text[3][SL_NUMBER_TEXT];
    return sl_fail(err, SL_ERR_FORMAT, "%s: field %s is %s, expected %s to %s", f->path, field, sl_number_text(x, text[0]),
                   sl_number_text(min, text[1]), sl_number_text(max, text[2]));
}

int sl_json_float(const sl_json_file *f, const char *field, double min, double max, const double *def, float *out,
                  sl_error *err) {
    const json_t *v = sl_json_get(f->root, field);
    double x;
    if (!v && def) {
        *out = (float)*def;
        return 0;
    }
    if (!read_number(v, &x)) return wrong_type(f, field, v, "a number", err);
    if (!(x >= min && x <= max)) return out_of_range(f, field, x, min, max, err);
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
    if (v && (!json_is_string(v) || marked_text(v))) return wrong_type(f, field, v, "a string", err);
    *out = json_string_value(v);
    if (v && strlen(*out) != json_string_length(v))
        return sl_fail(err, SL_ERR_FORMAT, "%s: field %s holds a NUL, expected none", f->path, field);
    return 0;
}
