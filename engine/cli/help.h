// engine/cli/help.h - the entries of the help, which the man page shows too.
#ifndef SLEIGH_HELP_H
#define SLEIGH_HELP_H

#include "engine/cli/option_table.h"

typedef struct cli_help_entry {
    char left[96];   // "-m, --model DIR"
    char text[1024]; // help, default and environment variable
} cli_help_entry;

void cli_help_flag(const cli_option *opt, cli_help_entry *out);
// Calls fn for each parameter of the methods of --attn, once for each name. The text names the methods that have it.
void cli_help_params(void (*fn)(const cli_help_entry *entry, FILE *out), FILE *out);

#endif
