// tests/cli/fields.h - checks of every figure of a command: the fields that a row must have, by name, and the cells of a table.
// A field that the test does not expect fails, so a new column needs a new line in the test.
#ifndef SLEIGH_TEST_FIELDS_H
#define SLEIGH_TEST_FIELDS_H

#include "cli/output/summary.h"
#include "tests/support/run_cli.h"

typedef struct fields {
    struct field {
        char name[64];
        double x;         // NaN: null
        const char *text; // not NULL: a text
        int is_list;      // a list or an object, which the test checks elsewhere
    } at[160];
    int n;
} fields;

void want(fields *f, const char *name, double x);
void want_text(fields *f, const char *name, const char *text); // NULL: null
void want_list(fields *f, const char *name);
double wanted(const fields *f, const char *name);
// The row has these fields and no other. Numbers are equal but for rounding: the relative tolerance is `close`.
void check_fields(const json_t *row, const fields *f, double close);

// A column: its title, and the form of its cell. {key:%.3f} is a number, {key*100:%.1f} is a number in percent, {key} is a text
// or a whole number. The cell is - if its first number is null; a part after the first number is left out if a number in it is
// null.
typedef struct column {
    const char *title, *cell;
} column;
// `md` has a table with these columns and rows.
void check_table(const char *md, const column *columns, int n_columns, const fields *rows, int n_rows);

// What fn writes to standard output; its messages are lost. fn must not check anything.
char *capture(int (*fn)(void *ctx, sl_error *err), void *ctx);

// ---- statistics, from their definitions ----

double mean_of_values(const double *x, int n);
double deviation_of(const double *x, int n);              // of a sample; NaN for n = 1
double quantile_of(const double *x, int n, double share); // the smallest value with at least this share at or below it
double median_of(const double *x, int n);                 // for an even n the mean of the middle two
// Values with groups. Below 8 groups, all values count as independent.
void add_value(cli_values *v, double x);
void end_group(cli_values *v);
double error_of(const cli_values *v);                                                // standard error of the mean
void want_mean(fields *f, const char *name, const cli_values *v, int with_interval); // NAME, NAME_se, NAME_low, NAME_high
void want_perplexity(fields *f, const char *name, const cli_values *v);
void want_quantile(fields *f, const char *name, const char *suffix, const cli_values *v, double share);

#endif
