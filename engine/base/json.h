// engine/base/json.h - JSON files through Jansson, with errors that name file, field, found and expected.
#ifndef SLEIGH_JSON_H
#define SLEIGH_JSON_H

#include "engine/base/error.h"

#include <jansson.h>

// Loads `dir/name`. A missing file is SL_ERR_IO, or 0 with *out = NULL if `optional`.
int sl_json_load(const char *dir, const char *name, int optional, json_t **out, sl_error *err);

typedef struct sl_json_file {
    const char *path; // for messages
    json_t *root;
} sl_json_file;

// The value of a field; NULL where the object (which may be NULL) has no such field, or null: null means "not given"
// everywhere.
json_t *sl_json_get(const json_t *object, const char *field);
const char *sl_json_type(const json_t *v); // for messages: "a string"; NULL: "missing"

// Typed getters: a field of another type or out of range is SL_ERR_FORMAT. `def` is taken where the field is not given; without
// `def` that is an error too.
int sl_json_int(const sl_json_file *f, const char *field, long long min, long long max, const long long *def, int *out,
                sl_error *err);
int sl_json_float(const sl_json_file *f, const char *field, double min, double max, const double *def, float *out,
                  sl_error *err);
int sl_json_bool(const sl_json_file *f, const char *field, int def, int *out, sl_error *err);
// *out is NULL where the field is not given. The text lives as long as the file. A NUL inside it is SL_ERR_FORMAT.
int sl_json_string(const sl_json_file *f, const char *field, const char **out, sl_error *err);

#endif
