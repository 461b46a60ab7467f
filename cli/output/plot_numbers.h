// cli/output/plot_numbers.h - numbers at the points of curves, such as the S of each point.
#ifndef SLEIGH_PLOT_NUMBERS_H
#define SLEIGH_PLOT_NUMBERS_H

#include "cli/output/plot_axes.h"

// Puts each number beside its point, where no point and no other number lies, on a plot area of width x CLI_PLOT_HEIGHT pixels.
// colours: [n_curves] 0xRRGGBB
void cli_plot_put_numbers(FILE *f, const cli_panel *p, const cli_axis *x, const cli_axis *y, int width,
                          const unsigned *colours);

#endif
