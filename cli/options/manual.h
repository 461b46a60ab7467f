// cli/options/manual.h - the man page and the completion of bash, from the tables of commands, flags and methods.
// `sleigh help --man` and `sleigh help --bash` print them; `make` writes them to files, which `make install` installs.
#ifndef SLEIGH_MANUAL_H
#define SLEIGH_MANUAL_H

#include "cli/options/command.h"

#include <stdio.h>

void cli_manual_man(const cli_command *commands, int n, FILE *out);  // in man's macros for roff
void cli_manual_bash(const cli_command *commands, int n, FILE *out); // a script that bash sources

#endif
