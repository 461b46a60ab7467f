// server/api/api_fields.h - reads the fields of a JSON object into a struct, by a table. A field that is null is not given.
#ifndef SLEIGH_API_FIELDS_H
#define SLEIGH_API_FIELDS_H

#include "base/json.h"
#include "server/api/api_error.h"

#include <stddef.h>

typedef enum api_kind {
    API_BOOL,    // int
    API_INT,     // int in [min, max]; 50.0 is an integer
    API_FLOAT,   // float in [min, max]
    API_STRING,  // const char *, without a NUL; it points into the object
    API_LIST,    // json_t *, borrowed from the object
    API_TABLE,   // an object that has a table of its own, for the same struct
    API_READ,    // a function reads the value
    API_IGNORED, // clients send the field, and it has no effect
    API_NEUTRAL, // true, false or a number: only the value `min`, which has no effect
    API_REFUSED  // clients send the field, and this server cannot do it: `hint` says what to do
} api_kind;

typedef struct api_field api_field;
typedef int (*api_read_fn)(void *out, const json_t *v, const char *name, api_error *err);

struct api_field {
    const char *name;
    api_kind kind;
    size_t at; // offset of the member. Two names of one member may both be given with equal values only
    double min, max;
    api_read_fn read;
    const api_field *table; // ended by a name of NULL
    const char *hint;
};

// Reads all fields of `object` into *out; fields that are not given leave *out as it is. tables: ended by NULL. prefix: what
// stands before a field's name in messages, "" or "thinking.". Status 400: a field is in no table, has another type or is out
// of bounds.
int api_fields_read(const api_field *const *tables, const json_t *object, const char *prefix, void *out, api_error *err);

// The error of a value of another type.
int api_wrong_type(const json_t *v, const char *name, const char *expected, api_error *err);
// Reads a string without a NUL. *out is NULL when v is NULL.
int api_string(const json_t *v, const char *name, const char **out, api_error *err);

#endif
