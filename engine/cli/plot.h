// engine/cli/plot.h - pictures of results: curves and heat maps as SVG or PNG, drawn by gnuplot where it is installed.
//
// A picture FILE.svg has its figures beside it in FILE.dat, written first and kept: per curve a comment with its name, then
// lines of `x y` or `x y error`, two blank lines between curves (gnuplot's `index`). Without gnuplot that file is all there is,
// which a line on stderr says; it is no error. A point that is not finite, or not positive on a logarithmic axis, is in the
// file and not in the picture.
//
//     cli_panel panel = cli_panel_error(series, n_series);
//     rc = cli_plot("error.svg", "error of a head, 8k tokens", &panel, 1, err);
#ifndef SLEIGH_PLOT_H
#define SLEIGH_PLOT_H

#include "engine/error.h"

typedef struct cli_series {
    const char *name;
    const double *x, *y; // [n]
    const double *error; // [n] half the height of each point's bar; NULL: none
    int n;
} cli_series;

typedef struct cli_panel {
    const char *title, *x_label, *y_label;
    int log_x, log_y, fit, lines; // fit: a power law through each curve, its slope in the legend; lines: joins points
    int ticks;                    // at every x of a point, as 512 and 32k
    const cli_series *series;     // [n_series], lent until cli_plot
    int n_series;
    const double *cells; // a heat map instead: [n_y][n_x], row 0 at the top; NaN: left blank
    int n_x, n_y;
} cli_panel;

cli_panel cli_panel_latency(const cli_series *series, int n);  // ms a step against tokens of context
cli_panel cli_panel_speedup(const cli_series *series, int n);  // against the batch
cli_panel cli_panel_error(const cli_series *series, int n);    // relative error against S, with fitted slopes
cli_panel cli_panel_accuracy(const cli_series *series, int n); // % right against % of the KV bytes that dense attention reads
cli_panel cli_panel_layers(const double *error, int n_layers, int n_heads); // error [n_layers][n_heads]

// Least squares of log y on log x over the points where both are positive: y = scale * x^slope. Returns the slope; NaN, as
// *scale then, where fewer than two different x are left. scale may be NULL.
double cli_plot_slope(const double *x, const double *y, int n, double *scale);

// SL_ERR_ARG when FILE ends in neither .svg nor .png, SL_ERR_IO when its folder cannot be written: to be asked before hours of
// work. flag: what the message names.
int cli_plot_check(const char *file, const char *flag, sl_error *err);
// Draws panels [n], side by side, under a title ("": none).
int cli_plot(const char *file, const char *title, const cli_panel *panels, int n, sl_error *err);

#endif
