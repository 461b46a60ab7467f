// engine/cli/csv.h - flat JSON objects as lines of CSV (RFC 4180) on standard output.
#ifndef SLEIGH_CSV_H
#define SLEIGH_CSV_H

#include "engine/error.h"

#include <jansson.h>

// The names of the object's fields, or their values, in order. Texts are in quotes, null is empty.
int cli_csv_names(const json_t *row, sl_error *err);
int cli_csv_values(const json_t *row, sl_error *err);

// A number, or null where it is not finite.
json_t *cli_json_number(double x);

#endif
