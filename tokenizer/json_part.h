// tokenizer/json_part.h - an object of tokenizer.json: a step of its normaliser, pre-tokenizer, decoder or post-processor. The
// readers of these parts take fields from it, and refuse by name what they do not implement.
#ifndef SLEIGH_JSON_PART_H
#define SLEIGH_JSON_PART_H

#include "base/json.h"
#include "tokenizer/tokenizer_internal.h"

typedef struct sl_part {
    const char *path;  // of the file, for messages
    const char *field; // of the file, for messages: "pre_tokenizer"
    const json_t *v;   // NULL: not given
    sl_error *err;
} sl_part;

const char *sl_part_type(const sl_part *p); // its field "type", or "(none)"
int sl_part_is(const sl_part *p, const char *type);
int sl_part_refuse(const sl_part *p, const char *why); // "PATH: field FIELD: TYPE: why"; returns SL_ERR_UNSUPPORTED

int sl_part_flag(const sl_part *p, const char *name, int def, int *out);
int sl_part_list(const sl_part *p, const char *name, const json_t **out); // *out NULL: not given
// A string without a NUL. *out NULL: not given
int sl_part_string(const sl_part *p, const char *name, const char **out);

// Calls fn for the part, or for each part of its list if it is a Sequence. A Sequence may hold a Sequence.
typedef int (*sl_part_fn)(void *ctx, const sl_part *step);
int sl_part_each(const sl_part *p, const char *list, sl_part_fn fn, void *ctx);

// Reads the field `pattern`: {"String": "..."} or {"Regex": "..."}. The caller frees *out.
int sl_part_finder(const sl_part *p, sl_finder *out);

// Reads the flags of an object with an added token. special: where the object does not say it
int sl_added_flags(const char *path, const json_t *v, int special, sl_added *token, sl_error *err);

#endif
