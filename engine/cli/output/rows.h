// engine/cli/output/rows.h - rows of a table on standard output, as JSON objects or as a Markdown table, each as soon as it is
// known.
//
// A row is a JSON object; every row of a table has the same keys in the same order. json is an array of them, jsonl one a line,
// csv their values under their keys (texts in quotes, absent values empty), md the columns that are named.
#ifndef SLEIGH_ROWS_H
#define SLEIGH_ROWS_H

#include "engine/base/error.h"

#include <jansson.h>

typedef struct cli_column {
    const char *title, *key; // in md; in the object
    const char *spread;      // key of a number that is printed behind it, after a plus-minus sign; NULL: none
    const char *low, *high;  // keys of its interval, printed behind it as (low to high); NULL: none
    int digits;              // after the point; below 0: so many significant ones
    double scale;            // md shows value * scale; 0: 1
    int sign;                // a plus before what is not negative
    int hidden;
} cli_column;

typedef struct cli_rows {
    const char *format;        // "md", "csv", "json", "jsonl"
    const cli_column *columns; // [n_columns]
    int n_columns, n_rows;     // n_rows: written
} cli_rows;

int cli_rows_add(cli_rows *rows, json_t *row, sl_error *err); // takes over the reference; NULL is SL_ERR_MEMORY
int cli_rows_end(cli_rows *rows, sl_error *err);              // completes the output; after an error too, so that it parses
json_t *cli_number(double x);                                 // null where x is no finite number

#endif
