// cli/compare/compare_prefix.h - the prefix of a prompt in the session of sleigh compare.
#ifndef SLEIGH_COMPARE_PREFIX_H
#define SLEIGH_COMPARE_PREFIX_H

#include "cli/compare/compare.h"

// Makes the session hold ids[0, n_prefill), prefilled with a method of c->prefills (which -1: densely). n: tokens of the
// prompt.
int compare_hold_prefix(compare *c, int which, const int32_t *ids, int n_prefill, int n, sl_error *err);

#endif
