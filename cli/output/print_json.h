// cli/output/print_json.h - JSON on standard output.
#ifndef SLEIGH_PRINT_JSON_H
#define SLEIGH_PRINT_JSON_H

#include "base/error.h"

#include <jansson.h>

// Writes value and a newline, and releases the value. flags: Jansson's, for example JSON_INDENT(1). SL_ERR_MEMORY: value is
// NULL.
int cli_print_json(json_t *value, size_t flags, sl_error *err);
// The name of a file as a string. If the name is not UTF-8, a ? replaces each byte above 0x7f. NULL: out of memory.
json_t *cli_file_json(const char *path);

#endif
