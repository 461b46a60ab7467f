// engine/base/json.h - reads JSON files with Jansson. Errors name the file, the field, the type or value found, and the
// expected one.
#ifndef SLEIGH_JSON_H
#define SLEIGH_JSON_H

#include "engine/base/error.h"

#include <jansson.h>

// Loads dir/name. The file must hold a JSON object. A missing file is SL_ERR_IO; with `optional`, *out is NULL instead.
int sl_json_load(const char *dir, const char *name, int optional, json_t **out, sl_error *err);

typedef struct sl_json_file {
    const char *path; // for messages
    json_t *root;
} sl_json_file;

// The value of a field. NULL: the field is missing or null, or object is NULL. In all files, null means "not given".
json_t *sl_json_get(const json_t *object, const char *field);
const char *sl_json_type(const json_t *v); // the type, for messages: "a string"; "missing" when v is NULL

// Typed getters. A field with another type, or a number outside [min, max], is SL_ERR_FORMAT. When the field is not given, *out
// gets the default *def; if def is NULL, a field that is not given is SL_ERR_FORMAT.
int sl_json_int(const sl_json_file *f, const char *field, long long min, long long max, const long long *def, int *out,
                sl_error *err);
int sl_json_float(const sl_json_file *f, const char *field, double min, double max, const double *def, float *out,
                  sl_error *err);
int sl_json_bool(const sl_json_file *f, const char *field, int def, int *out, sl_error *err);
// *out is NULL when the field is not given. It points into f->root. A NUL within the text is SL_ERR_FORMAT.
int sl_json_string(const sl_json_file *f, const char *field, const char **out, sl_error *err);

#endif
