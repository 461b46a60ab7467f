// base/json.h - reads JSON files with Jansson, as Python's json reads them. Errors name the file, the field, the type or
// value found, and the expected one.
//
// A file may hold a BOM, names that occur twice (the last one counts), and values that neither a double nor a text can hold:
// integers of any size, NaN, Infinity, -Infinity, 1e999, half a surrogate pair. Nothing happens as long as no one reads such a
// field. The getters below refuse such a value and print its text. json_is_string is true for the value, and its C string is
// empty.
#ifndef SLEIGH_JSON_H
#define SLEIGH_JSON_H

#include "base/error.h"

#include <jansson.h>

// Loads dir/name. The file must hold a JSON object. A missing file is SL_ERR_IO; with `optional`, *out is NULL instead. A
// pointer of Git LFS is SL_ERR_FORMAT.
int sl_json_load(const char *dir, const char *name, int optional, json_t **out, sl_error *err);
// The same for the text [n] of a file. path: for messages
int sl_json_parse(const char *path, const char *text, size_t n, json_t **out, sl_error *err);

typedef struct sl_json_file {
    const char *path; // for messages
    json_t *root;
} sl_json_file;

// The value of a field. NULL: the field is missing or null, or object is NULL. In all files, null means "not given".
json_t *sl_json_get(const json_t *object, const char *field);
const char *sl_json_type(const json_t *v); // the type, for messages: "a string"; "missing" when v is NULL

// What a message says about a value: its type, or the text of a value that no double and no text can hold.
enum { SL_JSON_FOUND = 64 };
const char *sl_json_found(const json_t *v, char buf[SL_JSON_FOUND]);

// Typed getters. An integer may be written as 50.0. A field with another type, or a number outside [min, max], is
// SL_ERR_FORMAT. When the field is not given, *out gets the default *def; if def is NULL, a field that is not given is
// SL_ERR_FORMAT.
int sl_json_int(const sl_json_file *f, const char *field, long long min, long long max, const long long *def, int *out,
                sl_error *err);
int sl_json_float(const sl_json_file *f, const char *field, double min, double max, const double *def, float *out,
                  sl_error *err);
int sl_json_bool(const sl_json_file *f, const char *field, int def, int *out, sl_error *err);
// *out is NULL when the field is not given. It points into f->root. A NUL within the text is SL_ERR_FORMAT.
int sl_json_string(const sl_json_file *f, const char *field, const char **out, sl_error *err);

#endif
