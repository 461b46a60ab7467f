// engine/cli/csv.c - see csv.h.
#include "engine/cli/csv.h"
#include "engine/cli/cli.h"

#include <math.h>
#include <stdlib.h>

json_t *cli_json_number(double x) {
    return isfinite(x) ? json_real(x) : json_null();
}

int cli_csv_names(const json_t *row, sl_error *err) {
    const char *key, *comma = "";
    json_t *value;
    int rc = 0;
    json_object_foreach((json_t *)row, key, value) {
        if (!rc) rc = cli_printf(err, "%s%s", comma, key);
        comma = ",";
    }
    return rc ? rc : cli_printf(err, "\n");
}

static int print_text(const char *text, sl_error *err) { // a quote is doubled
    int rc = cli_printf(err, "\"");
    for (const char *p = text; !rc && *p; p++) rc = cli_printf(err, *p == '"' ? "\"\"" : "%c", *p);
    return rc ? rc : cli_printf(err, "\"");
}

int cli_csv_values(const json_t *row, sl_error *err) {
    const char *key, *comma = "";
    json_t *value;
    int rc = 0;
    json_object_foreach((json_t *)row, key, value) {
        if (!rc) rc = cli_printf(err, "%s", comma);
        comma = ",";
        if (rc || json_is_null(value)) continue;
        if (json_is_string(value)) {
            rc = print_text(json_string_value(value), err);
            continue;
        }
        char *text = json_dumps(value, JSON_ENCODE_ANY | JSON_REAL_PRECISION(9));
        rc = text ? cli_printf(err, "%s", text) : sl_fail(err, SL_ERR_MEMORY, "CSV output: out of memory");
        free(text);
    }
    return rc ? rc : cli_printf(err, "\n");
}
