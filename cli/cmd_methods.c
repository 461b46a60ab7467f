// cli/cmd_methods.c - sleigh methods: prints the registry of attention methods.
#include "attention/attention.h"
#include "attention/methods_json.h"
#include "cli/commands.h"
#include "cli/io.h"
#include "cli/output/print_json.h"
#include "cli/output/rows.h"

#include <stdio.h>
#include <string.h>

int cmd_methods(const char *format, sl_error *err) {
    if (!strcmp(format, "md")) {
        sl_attn_list(stdout);
        return cli_flush(err);
    }
    cli_rows table = {.format = format};
    json_t *list = sl_attn_methods_json();
    int rc = 0;
    if (!strcmp(format, "json")) return cli_print_json(list, JSON_INDENT(1), err);
    for (size_t i = 0; !rc && i < json_array_size(list); i++)
        rc = cli_rows_add(&table, json_incref(json_array_get(list, i)), err);
    json_decref(list);
    return rc;
}
