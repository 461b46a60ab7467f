// cli/perplexity/perplexity_print.h - the output of sleigh perplexity.
//
// Without --history: a row for each window of --file, or for each text of --jsonl, as soon as it is complete, and the result of
// all. With --history: the same rows (md, json), and a table with a row for each history (all formats).
#ifndef SLEIGH_PERPLEXITY_PRINT_H
#define SLEIGH_PERPLEXITY_PRINT_H

#include "cli/perplexity/perplexity.h"

void perplexity_print_begin(perplexity *p); // call it when all fields of *p are set
// The row of the values that were added since the last row.
int perplexity_print_window(perplexity *p, int window, sl_error *err);
int perplexity_print_text(perplexity *p, int text, sl_error *err);
int perplexity_print_end(perplexity *p, sl_error *err); // the result of the complete rows

#endif
