// cli/run/grammar_flags.h - the grammar of answers from flags: --grammar, --json-schema, --regex, --choice.
#ifndef SLEIGH_GRAMMAR_FLAGS_H
#define SLEIGH_GRAMMAR_FLAGS_H

#include "cli/options/options.h"

// *out: NULL without these flags. SL_ERR_ARG: more than one of them, or --grammar-after alone. Errors of sl_grammar_new begin
// with the name of the file; those of a text in a flag with the flag, and are SL_ERR_ARG.
int cli_make_grammar(const cli_grammar_options *o, sl_grammar **out, sl_error *err);

#endif
