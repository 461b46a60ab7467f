// cli/output/rows.h - prints the rows of a table to standard output, each row as soon as it is known.
//
// A row is a JSON object. All rows of a table have the same keys in the same order. Formats: json, an array of the objects;
// jsonl, one object per line; csv, all values with the keys as header (texts and lists in quotes, missing values empty); md, a
// Markdown table of the given columns.
#ifndef SLEIGH_ROWS_H
#define SLEIGH_ROWS_H

#include "base/error.h"
#include "cli/output/model_name.h"

#include <jansson.h>

typedef struct cli_column {
    const char *title, *key; // heading in md; key in the object
    const char *spread;      // key of a number to print after a plus-minus sign; NULL: none
    const char *low, *high;  // keys of an interval to print as (low to high); NULL: none
    int digits;              // after the point; below 0: significant digits
    double scale;            // md shows value * scale; 0 means 1
    int sign;                // 1: print a plus before numbers that are not negative
    int hidden;
} cli_column;

typedef struct cli_rows {
    const char *format;        // "md", "csv", "json", "jsonl"
    const cli_column *columns; // [n_columns]
    int n_columns, n_rows;     // n_rows: rows printed so far
    // NULL: the output names the model elsewhere. md prints it above the table; each row of another format begins with its
    // fields.
    const cli_model_name *model;
} cli_rows;

int cli_rows_add(cli_rows *rows, json_t *row, sl_error *err); // releases the row; SL_ERR_MEMORY: row is NULL
int cli_rows_end(cli_rows *rows, sl_error *err); // completes the output; call it also after an error, so that JSON parses
int cli_print_model(const cli_model_name *model, sl_error *err); // the line above the tables in md, and a blank line
json_t *cli_number(double x);                                    // null if x is not finite

#endif
