// cli/output/plot.h - pictures of results: curves and heat maps as SVG, PDF or PNG, drawn by gnuplot if it is installed.
//
// The numbers of a picture FILE.svg are written to FILE.dat first (plot_data.h describes the format; `sleigh plot FILE.dat`
// draws the picture again, also as another format). Without gnuplot, the script FILE.gp is written too, and a line on stderr
// reports this; it is not an error. The script holds the numbers: `gnuplot FILE.gp` draws the picture on another machine.
//
// A point that is not finite is in the data file but not in the picture. On a logarithmic axis, an x of 0 stands left of a
// break of the axis, one step left of the smallest x; other points that are not positive are not drawn.
//
//     rc = cli_curves_add(&curves, "santa", (cli_point){64, 0.02, NAN, NAN, 0}, err);
//     cli_panel panel = cli_panel_error(&curves);
//     rc = cli_plot("error.svg", "error of a head, 8k tokens", &panel, 1, err);
#ifndef SLEIGH_PLOT_H
#define SLEIGH_PLOT_H

#include "cli/output/plot_panel.h"

// Checks `file` before hours of work. SL_ERR_ARG: it does not end in .svg, .pdf or .png. SL_ERR_IO: its folder is not writable.
// flag: the name in messages.
int cli_plot_check(const char *file, const char *flag, sl_error *err);
// Writes the data file and draws panels[n] side by side under a title ("": no title).
int cli_plot(const char *file, const char *title, const cli_panel *panels, int n, sl_error *err);
// Only draws.
int cli_plot_draw(const char *file, const char *title, const cli_panel *panels, int n, sl_error *err);

#endif
