// cli/output/plot_script.h - the gnuplot script of a picture, which also holds the numbers.
#ifndef SLEIGH_PLOT_SCRIPT_H
#define SLEIGH_PLOT_SCRIPT_H

#include "cli/output/plot_panel.h"

#include <stdio.h>

// ".svg", ".pdf" or ".png"; NULL: the file has another ending.
const char *cli_plot_ending(const char *file);
// file: the picture; its ending chooses the format. n: 1 to CLI_PLOT_PANELS.
void cli_plot_script(FILE *f, const char *file, const char *title, const cli_panel *panels, int n);

#endif
