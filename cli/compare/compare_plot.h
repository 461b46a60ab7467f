// cli/compare/compare_plot.h - the plots of sleigh compare: errors of heads against S, and of each layer and head.
#ifndef SLEIGH_COMPARE_PLOT_H
#define SLEIGH_COMPARE_PLOT_H

#include "cli/compare/compare.h"

int compare_plot_check(const compare *c, sl_error *err); // checks --plot before the work
int compare_plot(const compare *c, const json_t *rows, sl_error *err);

#endif
