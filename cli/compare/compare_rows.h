// cli/compare/compare_rows.h - the figures of sleigh compare as JSON.
#ifndef SLEIGH_COMPARE_ROWS_H
#define SLEIGH_COMPARE_ROWS_H

#include "cli/compare/compare.h"

json_t *compare_rows(const compare *c, sl_error *err);      // [attn.n] a flat object of figures per method; NULL: SL_ERR_MEMORY
json_t *compare_dense_row(const compare *c, sl_error *err); // the row of dense attention in tables; NULL: SL_ERR_MEMORY
json_t *compare_attention_row(const compare *c, int layer); // --attention: means over heads; _low, _high: least and most
json_t *compare_prompt_json(const compare *c, const compare_prompt *p, int index); // after the runs of the prompt
// Prints the document of -o json. methods: the rows of compare_rows; gets heads, layers and tiles.
int compare_print_json(compare *c, json_t *methods, sl_error *err);

#endif
