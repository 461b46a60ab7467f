// cli/options/option_values.h - the value of a flag: from text into the field of its row.
#ifndef SLEIGH_OPTION_VALUES_H
#define SLEIGH_OPTION_VALUES_H

#include "base/error.h"
#include "cli/options/option_table.h"
#include "cli/options/options.h"

// Sets *field, of the type of the row. flag: its name in messages. is_fresh: the value replaces a list, which came from
// elsewhere (the environment, before a flag).
int cli_option_set(const cli_option *opt, void *field, const char *flag, const char *value, int is_fresh, sl_error *err);
int cli_list_add(cli_list *list, const char *item, sl_error *err);

#endif
