// cli/output/prefill_fields.h - the fields about sparse prefill of JSON objects, and their columns in md tables.
#ifndef SLEIGH_PREFILL_FIELDS_H
#define SLEIGH_PREFILL_FIELDS_H

#include "cli/output/rows.h"
#include "engine/engine.h"

#include <stdio.h>

// Adds prefill_density, prefill_kept, prefill_cra, prefill_error and prefill_error_max.
void cli_prefill_put(json_t *row, const sl_prefill_report *r);
// The field of every head: an object of the same figures without "prefill_", each [n_layers][n_heads]. null: no sparse prefill
json_t *cli_prefill_heads(const sl_prefill_report *heads, int n_layers, int n_heads);
// Lines for people: prefill_blocks, prefill_kept, prefill_cra and prefill_error, as far as they are known.
void cli_prefill_print(const sl_prefill_report *r, FILE *out);
// Adds the columns of the fields, and of `ttft_ms`, that a row has a value for. Returns the number of columns. The caller has
// room for CLI_PREFILL_COLUMNS more.
enum { CLI_PREFILL_COLUMNS = 5 };
int cli_prefill_columns(const json_t *rows, cli_column *columns, int n);

#endif
