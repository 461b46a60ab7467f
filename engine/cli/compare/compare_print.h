// engine/cli/compare/compare_print.h - the output of sleigh compare.
#ifndef SLEIGH_COMPARE_PRINT_H
#define SLEIGH_COMPARE_PRINT_H

#include "engine/cli/compare/compare.h"

json_t *compare_rows(const compare *c, sl_error *err); // [attn.n] a flat object of figures per method; NULL: SL_ERR_MEMORY
int compare_print_prompt(compare *c, const compare_prompt *p, int index, sl_error *err);
int compare_print_summary(compare *c, json_t *rows, sl_error *err);

#endif
