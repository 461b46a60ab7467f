// cli/options/help.h - the help of a command; the man page shows its entries too.
#ifndef SLEIGH_HELP_H
#define SLEIGH_HELP_H

#include "cli/options/option_table.h"

#include <stdio.h>

typedef struct cli_help_entry {
    char left[96];   // "-m, --model DIR"
    char text[1024]; // help, default and environment variable
} cli_help_entry;

void cli_help_command(const cli_command *c, FILE *out); // the whole help of a command
void cli_help_flag(const cli_option *opt, cli_help_entry *out);
// Calls fn for each parameter of the methods of --attn, once for each name. The text names the methods that have it.
void cli_help_params(void (*fn)(const cli_help_entry *entry, FILE *out), FILE *out);

#endif
