// attention/methods_json.h - the registry of methods as JSON: `sleigh methods -o json`, and /props of the server.
#ifndef SLEIGH_METHODS_JSON_H
#define SLEIGH_METHODS_JSON_H

#include <jansson.h>

// A list of methods, a new reference. docs/output.md has the fields. NULL: out of memory.
json_t *sl_attn_methods_json(void);

#endif
