// cli/output/rows.c - see rows.h.
#include "cli/output/rows.h"
#include "cli/io.h"
#include "cli/output/print_json.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

json_t *cli_number(double x) {
    return isfinite(x) ? json_real(x) : json_null();
}

// Prints a text in quotes, with quotes in it doubled (RFC 4180).
static int print_quoted(const char *text, sl_error *err) {
    int rc = cli_printf(err, "\"");
    for (const char *p = text; !rc && *p; p++) rc = cli_printf(err, *p == '"' ? "\"\"" : "%c", *p);
    return rc ? rc : cli_printf(err, "\"");
}

static int print_csv(json_t *row, int names, sl_error *err) {
    const char *key, *comma = "";
    json_t *value;
    int rc = 0;
    json_object_foreach(row, key, value) {
        if (!rc) rc = cli_printf(err, "%s", comma);
        comma = ",";
        if (rc || (!names && json_is_null(value))) continue;
        if (names) {
            rc = cli_printf(err, "%s", key);
        } else if (json_is_string(value)) {
            rc = print_quoted(json_string_value(value), err);
        } else {
            char *text = json_dumps(value, JSON_ENCODE_ANY | JSON_COMPACT | JSON_REAL_PRECISION(9));
            rc = !text                  ? sl_fail(err, SL_ERR_MEMORY, "a row: out of memory")
                 : json_is_array(value) ? print_quoted(text, err)
                                        : cli_printf(err, "%s", text);
            free(text);
        }
    }
    return rc ? rc : cli_printf(err, "\n");
}

static int print_number(const cli_column *c, const char *before, const json_t *value, sl_error *err) {
    double x = json_number_value(value) * (c->scale != 0 ? c->scale : 1) + 0.0; // turns -0 into 0
    int n = c->digits < 0 ? -c->digits : c->digits;
    if (c->sign) return cli_printf(err, c->digits < 0 ? "%s%+.*g" : "%s%+.*f", before, n, x);
    return cli_printf(err, c->digits < 0 ? "%s%.*g" : "%s%.*f", before, n, x);
}

static int print_cell(const cli_column *c, const json_t *row, sl_error *err) {
    const json_t *value = json_object_get(row, c->key), *spread = c->spread ? json_object_get(row, c->spread) : NULL;
    const json_t *low = c->low ? json_object_get(row, c->low) : NULL, *high = c->high ? json_object_get(row, c->high) : NULL;
    if (json_is_string(value)) return cli_printf(err, " %s |", json_string_value(value));
    if (json_is_integer(value)) return cli_printf(err, " %lld |", (long long)json_integer_value(value));
    if (!json_is_real(value)) return cli_printf(err, " - |");
    int rc = print_number(c, " ", value, err);
    if (!rc && json_is_number(spread)) rc = print_number(c, " ± ", spread, err);
    if (!rc && json_is_number(low) && json_is_number(high)) {
        rc = print_number(c, " (", low, err);
        if (!rc) rc = print_number(c, " to ", high, err);
        if (!rc) rc = cli_printf(err, ")");
    }
    return rc ? rc : cli_printf(err, " |");
}

static int print_md(const cli_rows *rows, const json_t *row, sl_error *err) {
    int rc = 0;
    for (int line = rows->n_rows ? 2 : 0; !rc && line < 3; line++) {
        rc = cli_printf(err, "|");
        for (int i = 0; !rc && i < rows->n_columns; i++) {
            const cli_column *c = &rows->columns[i];
            if (c->hidden) continue;
            rc = line == 0 ? cli_printf(err, " %s |", c->title) : line == 1 ? cli_printf(err, "---|") : print_cell(c, row, err);
        }
        if (!rc) rc = cli_printf(err, "\n");
    }
    return rc;
}

int cli_print_model(const cli_model_name *model, sl_error *err) {
    char text[CLI_MODEL_TEXT];
    return cli_printf(err, "model: %s\n\n", cli_model_name_text(model, text));
}

int cli_rows_add(cli_rows *rows, json_t *row, sl_error *err) {
    int first = rows->n_rows == 0, is_md = !strcmp(rows->format, "md"), rc = 0;
    if (rows->model && !is_md) row = cli_model_name_json(rows->model, row);
    if (!row) return sl_fail(err, SL_ERR_MEMORY, "a row: out of memory, or text that is not UTF-8");
    if (is_md) {
        if (first && rows->model) rc = cli_print_model(rows->model, err);
        if (!rc) rc = print_md(rows, row, err);
    } else if (!strcmp(rows->format, "csv")) {
        if (first) rc = print_csv(row, 1, err);
        if (!rc) rc = print_csv(row, 0, err);
    } else {
        if (!strcmp(rows->format, "json")) rc = cli_printf(err, first ? "[\n" : ",\n");
        if (!rc) rc = cli_print_json(json_incref(row), JSON_COMPACT, err);
    }
    rows->n_rows++;
    json_decref(row);
    return rc ? rc : cli_flush(err);
}

int cli_rows_end(cli_rows *rows, sl_error *err) {
    if (strcmp(rows->format, "json")) return 0;
    return cli_printf(err, rows->n_rows ? "]\n" : "[]\n");
}
