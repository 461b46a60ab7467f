// cli/compare/compare_print.h - the output of sleigh compare.
#ifndef SLEIGH_COMPARE_PRINT_H
#define SLEIGH_COMPARE_PRINT_H

#include "cli/compare/compare.h"

int compare_print_prompt(compare *c, const compare_prompt *p, int index, sl_error *err);
// rows: the rows of compare_rows
int compare_print_summary(compare *c, json_t *rows, sl_error *err);

#endif
