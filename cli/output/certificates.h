// cli/output/certificates.h - what methods with a stated error did: lines on stderr, and fields of JSON rows.
#ifndef SLEIGH_CERTIFICATES_H
#define SLEIGH_CERTIFICATES_H

#include "attention/attention.h"
#include "cli/output/rows.h"

#include <jansson.h>
#include <stdio.h>

// Prints the lines of stated errors, of heads that went dense, and of heavy tails. Prints nothing if none occurred.
void cli_certificates_print(const sl_attn_stats *stats, const sl_attn_plan *plan, FILE *out);
// The fields layer_steps, certified_share, stated_error, stated_error_max and unbounded_share. Without a stated error of a
// layer, layer_steps is 0 and the others are null.
void cli_certificates_put(json_t *row, const sl_attn_stats *stats);
// Reads the fields back; a row without them has no layer-steps. 0: a field is out of range.
int cli_certificates_get(const json_t *row, sl_attn_stats *stats);

// Appends columns of these fields to a table of n columns, if a row of the list has layer-steps. Returns the number of columns.
enum { CLI_CERTIFICATE_COLUMNS = 2 };
int cli_certificates_columns(const json_t *rows, cli_column *columns, int n);

#endif
