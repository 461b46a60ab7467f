// cli/output/print_json.c - see print_json.h.
#include "cli/output/print_json.h"
#include "cli/io.h"

#include <stdlib.h>
#include <string.h>

int cli_print_json(json_t *value, size_t flags, sl_error *err) {
    char *text = value ? json_dumps(value, flags | JSON_REAL_PRECISION(9)) : NULL;
    json_decref(value);
    if (!text) return sl_fail(err, SL_ERR_MEMORY, "JSON output: out of memory, or text that is not UTF-8");
    int rc = cli_printf(err, "%s\n", text);
    free(text);
    return rc;
}

json_t *cli_file_json(const char *path) {
    json_t *out = json_string(path); // NULL: not UTF-8
    char *ascii = out ? NULL : strdup(path);
    for (char *p = ascii; p && *p; p++)
        if ((unsigned char)*p > 0x7f) *p = '?';
    if (ascii) out = json_string(ascii);
    free(ascii);
    return out;
}
