// attention/auto_table.c - the calibration table (auto.h) as a file: its path, the reader and the writer.
//
//   {"format": "sleigh attention calibration 1", "device": "...", "date": "2026-11-21",
//    "n_heads": 32, "n_kv_heads": 8, "head_dim": 128, "automatic": true, "query_deviation": 4.0,
//    "attn": ["dense", "santa-pps:S=128", ...],
//    "points": [{"n_seqs": 1, "n_kv": 1024, "us": [9.1, 8.7, null]}, ...],
//    "prefill": {"attn": "sample", "density": 0.5,
//                "lengths": [{"n_tokens": 1024, "dense_us": 31.2, "mask_us": 40.5, "attention_us": 22.8}, ...]}}
//
// "prefill" is optional.
#include "attention/auto.h"
#include "base/json.h"
#include "base/make_folders.h"
#include "base/whole_file.h"

#include <ctype.h>
#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static const char format[] = "sleigh attention calibration 1";

// ---- the path ----

int sl_auto_path(const char *device, const sl_attn_geom *g, char *buf, size_t size, sl_error *err) {
    const char *cache = getenv("XDG_CACHE_HOME"), *home = getenv("HOME");
    char name[256];
    size_t n = 0;
    for (const char *p = device; *p && n + 1 < sizeof name; p++) name[n++] = isalnum((unsigned char)*p) ? *p : '-';
    name[n] = 0;
    int is_cache = cache && *cache == '/'; // the XDG specification ignores relative ones
    if (!is_cache && (!home || *home != '/'))
        return sl_fail(err, SL_ERR_ARG, "neither XDG_CACHE_HOME nor HOME is an absolute path: pass {calibration} FILE");
    int length = snprintf(buf, size, "%s%s/sleigh/attn-%s-h%d-kv%d-d%d.json", is_cache ? cache : home,
                          is_cache ? "" : "/.cache", name, g->n_heads, g->n_kv_heads, g->head_dim);
    if ((size_t)length >= size)
        return sl_fail(err, SL_ERR_ARG, "%.200s...: the path is too long; pass {calibration} FILE", buf);
    return 0;
}

// ---- reading ----

static int bad(const char *path, sl_error *err, const char *what) {
    return sl_fail(err, SL_ERR_FORMAT, "%s: %s; {calibrate} makes a new table", path, what);
}

static int read_text(const char *path, const json_t *root, const char *field, char *out, size_t size, sl_error *err) {
    const char *text = json_string_value(sl_json_get(root, field));
    char what[96];
    size_t n = 0; // the text is printed on a terminal, so control characters are refused
    while (text && (unsigned char)text[n] >= 0x20 && text[n] < 0x7f) n++;
    if (n > 0 && !text[n] && n < size) {
        strcpy(out, text);
        return 0;
    }
    snprintf(what, sizeof what, "field %s: expected a text of 1 to %zu printable ASCII characters", field, size - 1);
    return bad(path, err, what);
}

static int read_specs(const char *path, const json_t *list, sl_auto_table *t, sl_error *err) {
    size_t n = json_array_size(list);
    char what[640];
    sl_error why;
    if (n < 1 || n > SL_AUTO_SPECS) return bad(path, err, "field attn: expected a list of 1 to 16 methods");
    for (size_t i = 0; i < n; i++) {
        const char *text = json_string_value(json_array_get(list, i));
        int rc = sl_attn_parse(text ? text : "", &t->specs[i], &why);
        snprintf(what, sizeof what, "field attn: %.500s", rc ? why.message : "found auto, expected a method");
        if (rc || t->specs[i].method == &sl_method_auto) return bad(path, err, what);
    }
    if (t->specs[0].method != &sl_method_dense) return bad(path, err, "field attn: the first is not dense");
    t->n_specs = (int)n;
    return 0;
}

static int is_whole(const json_t *x) {
    return json_is_integer(x) && json_integer_value(x) >= 1 && json_integer_value(x) <= 1 << 30;
}

static int read_point(const json_t *item, const sl_auto_table *t, sl_auto_point *p) { // -1: not a point
    const json_t *n_seqs = sl_json_get(item, "n_seqs"), *n_kv = sl_json_get(item, "n_kv"), *us = sl_json_get(item, "us");
    if (!is_whole(n_seqs) || !is_whole(n_kv) || json_array_size(us) != (size_t)t->n_specs) return -1;
    p->n_seqs = (int)json_integer_value(n_seqs), p->n_kv = (int)json_integer_value(n_kv);
    for (int s = 0; s < t->n_specs; s++) {
        const json_t *x = json_array_get(us, s);
        p->us[s] = json_is_number(x) ? json_number_value(x) : NAN;
        if ((!json_is_number(x) && (s == 0 || !json_is_null(x))) || p->us[s] <= 0) return -1;
    }
    return 0;
}

static int by_size(const void *x, const void *y) {
    const sl_auto_point *a = x, *b = y;
    return a->n_seqs != b->n_seqs ? (a->n_seqs > b->n_seqs) - (a->n_seqs < b->n_seqs)
                                  : (a->n_kv > b->n_kv) - (a->n_kv < b->n_kv);
}

static int read_points(const char *path, const json_t *list, sl_auto_table *t, sl_error *err) {
    size_t n = json_array_size(list);
    char what[96];
    if (n < 1 || n > SL_AUTO_POINTS) return bad(path, err, "field points: expected a list of 1 to 512 points");
    t->points = calloc(n, sizeof *t->points);
    if (!t->points) return sl_fail(err, SL_ERR_MEMORY, "%s: out of memory", path);
    for (; t->n_points < (int)n; t->n_points++) {
        if (!read_point(json_array_get(list, t->n_points), t, &t->points[t->n_points])) continue;
        snprintf(what, sizeof what, "field points: number %d: expected n_seqs, n_kv and a time us > 0 for each method",
                 t->n_points + 1);
        return bad(path, err, what);
    }
    qsort(t->points, n, sizeof *t->points, by_size);
    for (size_t i = 1; i < n; i++)
        if (!by_size(&t->points[i - 1], &t->points[i]))
            return bad(path, err, "field points: two points have the same n_seqs and n_kv");
    return 0;
}

static double time_of(const json_t *item, const char *field) { // NaN: not a time
    const json_t *x = sl_json_get(item, field);
    return json_is_number(x) && json_number_value(x) > 0 ? json_number_value(x) : NAN;
}

static int read_lengths(const char *path, const json_t *list, sl_auto_prefill *p, sl_error *err) {
    size_t n = json_array_size(list);
    char what[128];
    if (n < 1 || n > SL_AUTO_LENGTHS) return bad(path, err, "field prefill.lengths: expected a list of 1 to 16 lengths");
    for (int least = 1; p->n_lengths < (int)n; p->n_lengths++) {
        const json_t *item = json_array_get(list, p->n_lengths), *n_tokens = sl_json_get(item, "n_tokens");
        sl_auto_length *l = &p->lengths[p->n_lengths];
        l->dense_us = time_of(item, "dense_us"), l->mask_us = time_of(item, "mask_us");
        l->attention_us = time_of(item, "attention_us");
        int is_good = is_whole(n_tokens) && json_integer_value(n_tokens) >= least;
        if (!is_good || isnan(l->dense_us + l->mask_us + l->attention_us)) {
            snprintf(what, sizeof what,
                     "field prefill.lengths: number %d: expected n_tokens, ascending, and three times > 0: dense_us, "
                     "mask_us, attention_us",
                     p->n_lengths + 1);
            return bad(path, err, what);
        }
        l->n_tokens = (int)json_integer_value(n_tokens), least = l->n_tokens + 1;
    }
    return 0;
}

static int read_prefill(const char *path, const json_t *object, sl_auto_prefill *p, sl_error *err) {
    const char *text = json_string_value(sl_json_get(object, "attn"));
    const json_t *density = sl_json_get(object, "density");
    char what[640];
    sl_attn_spec spec;
    sl_error why;
    if (!object) return 0;
    if (!json_is_object(object)) return bad(path, err, "field prefill: expected an object");
    int rc = sl_attn_parse(text ? text : "", &spec, &why);
    snprintf(what, sizeof what, "field prefill.attn: %.500s", rc ? why.message : "expected a method with a mask");
    if (rc || !sl_attn_makes_mask(&spec)) return bad(path, err, what);
    if (!json_is_number(density) || !(json_number_value(density) > 0 && json_number_value(density) <= 1))
        return bad(path, err, "field prefill.density: expected a number above 0, at most 1");
    p->density = json_number_value(density);
    rc = read_lengths(path, sl_json_get(object, "lengths"), p, err);
    if (!rc) p->attn = spec;
    return rc;
}

static int read_table(const char *path, json_t *root, sl_auto_table *t, sl_error *err) {
    const sl_json_file f = {.path = path, .root = root};
    const char *found = json_string_value(sl_json_get(root, "format"));
    float deviation = 0;
    if (!found || strcmp(found, format)) return bad(path, err, "not a calibration table, or a table of another version");
    int rc = read_text(path, root, "device", t->device, sizeof t->device, err);
    if (!rc) rc = read_text(path, root, "date", t->date, sizeof t->date, err);
    if (!rc) rc = sl_json_int(&f, "n_heads", 1, 1 << 20, NULL, &t->n_heads, err);
    if (!rc) rc = sl_json_int(&f, "n_kv_heads", 1, 1 << 20, NULL, &t->n_kv_heads, err);
    if (!rc) rc = sl_json_int(&f, "head_dim", 1, 1 << 20, NULL, &t->head_dim, err);
    if (!rc) rc = sl_json_float(&f, "query_deviation", 0, 1e6, NULL, &deviation, err);
    t->query_deviation = deviation;
    t->automatic = json_is_true(sl_json_get(root, "automatic"));
    if (!rc) rc = read_specs(path, sl_json_get(root, "attn"), t, err);
    if (!rc) rc = read_points(path, sl_json_get(root, "points"), t, err);
    return rc ? rc : read_prefill(path, sl_json_get(root, "prefill"), &t->prefill, err);
}

int sl_auto_read(const char *path, int optional, sl_auto_table *out, sl_error *err) {
    json_error_t e;
    char what[256];
    *out = (sl_auto_table){0};
    if (access(path, R_OK)) {
        if (optional && (errno == ENOENT || errno == ENOTDIR)) return 0;
        return sl_fail(err, SL_ERR_IO, "%s: %s", path, strerror(errno));
    }
    json_t *root = json_load_file(path, JSON_REJECT_DUPLICATES, &e);
    snprintf(what, sizeof what, "line %d: %s", root ? 0 : e.line, root ? "" : e.text);
    int rc = root ? read_table(path, root, out, err) : bad(path, err, what);
    json_decref(root);
    return rc;
}

void sl_auto_free(sl_auto_table *t) {
    free(t->points);
    *t = (sl_auto_table){0};
}

int sl_auto_check(const sl_auto_table *t, const char *path, const char *device, const sl_attn_geom *g, sl_error *err) {
    if (t->n_heads != g->n_heads || t->n_kv_heads != g->n_kv_heads || t->head_dim != g->head_dim)
        return sl_fail(err, SL_ERR_UNSUPPORTED,
                       "%s: measured for %d heads, %d KV heads, head_dim %d; this model has %d, %d, %d: {calibrate} with "
                       "this model measures for it",
                       path, t->n_heads, t->n_kv_heads, t->head_dim, g->n_heads, g->n_kv_heads, g->head_dim);
    if (strcmp(t->device, device))
        return sl_fail(err, SL_ERR_UNSUPPORTED, "%s: measured on %s, this device is %s: {calibrate} measures here", path,
                       t->device, device);
    return 0;
}

// ---- writing ----

static json_t *points_json(const sl_auto_table *t) {
    json_t *points = json_array();
    for (int i = 0; i < t->n_points; i++) {
        const sl_auto_point *p = &t->points[i];
        json_t *us = json_array();
        for (int s = 0; s < t->n_specs; s++) json_array_append_new(us, isnan(p->us[s]) ? json_null() : json_real(p->us[s]));
        json_array_append_new(points, json_pack("{s:i, s:i, s:o}", "n_seqs", p->n_seqs, "n_kv", p->n_kv, "us", us));
    }
    return points;
}

static json_t *prefill_json(const sl_auto_prefill *p) {
    char text[512];
    json_t *lengths = json_array();
    for (int i = 0; i < p->n_lengths; i++) {
        const sl_auto_length *l = &p->lengths[i];
        json_array_append_new(lengths, json_pack("{s:i, s:f, s:f, s:f}", "n_tokens", l->n_tokens, "dense_us", l->dense_us,
                                                 "mask_us", l->mask_us, "attention_us", l->attention_us));
    }
    sl_attn_format(&p->attn, text, sizeof text);
    return json_pack("{s:s, s:f, s:o}", "attn", text, "density", p->density, "lengths", lengths);
}

static json_t *table_json(const sl_auto_table *t) {
    json_t *attn = json_array();
    for (int s = 0; s < t->n_specs; s++) {
        char text[512];
        sl_attn_format(&t->specs[s], text, sizeof text);
        json_array_append_new(attn, json_string(text));
    }
    json_t *root =
        json_pack("{s:s, s:s, s:s, s:i, s:i, s:i, s:b, s:f, s:o, s:o}", "format", format, "device", t->device, "date", t->date,
                  "n_heads", t->n_heads, "n_kv_heads", t->n_kv_heads, "head_dim", t->head_dim, "automatic", t->automatic,
                  "query_deviation", t->query_deviation, "attn", attn, "points", points_json(t));
    if (!root || !t->prefill.attn.method || !json_object_set_new(root, "prefill", prefill_json(&t->prefill))) return root;
    json_decref(root);
    return NULL;
}

int sl_auto_write(const sl_auto_table *t, const char *path, sl_error *err) {
    sl_whole_file w;
    json_t *root = table_json(t);
    if (!root) return sl_fail(err, SL_ERR_MEMORY, "%s: out of memory", path);
    sl_make_folders(path, 0777);
    FILE *f = sl_whole_file_open(&w, path, 0666);
    int ok = f && !json_dumpf(root, f, JSON_INDENT(1) | JSON_REAL_PRECISION(6)) && fputc('\n', f) != EOF;
    json_decref(root);
    return sl_whole_file_close(&w, ok, err);
}
