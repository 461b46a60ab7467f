// engine/cli/output/plot.h - pictures of results: curves and heat maps as SVG or PNG, drawn by gnuplot where it is installed.
//
// A picture FILE.svg has its figures beside it in FILE.dat, written first and kept: per curve a comment with its name, then
// lines of `x y` or `x y low high`, two blank lines between curves (gnuplot's `index`). Without gnuplot its script lies there,
// too, as FILE.gp: `gnuplot FILE.gp` in that folder draws the picture elsewhere. A line on stderr says so; it is no error. A
// point that is not finite, or not positive on a logarithmic axis, is in the file and not in the picture.
//
//     rc = cli_curves_add(&curves, "santa", (cli_point){64, 0.02, NAN, NAN}, err);
//     cli_panel panel = cli_panel_error(&curves);
//     rc = cli_plot("error.svg", "error of a head, 8k tokens", &panel, 1, err);
#ifndef SLEIGH_PLOT_H
#define SLEIGH_PLOT_H

#include "engine/base/error.h"

typedef struct cli_point {
    double x, y;
    double low, high; // of its bar; NaN: none
} cli_point;

typedef struct cli_curve {
    char name[192];
    cli_point *points; // [n]
    int n, cap;
} cli_curve;

typedef struct cli_curves {
    cli_curve *at; // [n] in the order of their first points
    int n, cap;
} cli_curves;

// Adds a point to the curve of that name, which begins with its first point. *curves starts as {0}.
int cli_curves_add(cli_curves *curves, const char *name, cli_point point, sl_error *err);
void cli_curves_free(cli_curves *curves);

typedef struct cli_panel {
    const char *title, *x_label, *y_label;
    int log_x, log_y, fit, lines; // fit: a power law through each curve, its slope in the legend; lines: joins points
    int ticks, percent;           // ticks: at every x of a point, as 512 and 32k; percent: both axes are shares
    const cli_curve *curves;      // [n_curves], lent until cli_plot
    int n_curves;
    const double *cells; // a heat map instead: [n_y][n_x], row 0 at the top; NaN: left blank
    int n_x, n_y;
    const char *const *x_names; // [n_names] of a heat map whose columns are in n_names equal groups; NULL: numbered
    int n_names;
} cli_panel;

cli_panel cli_panel_latency(const cli_curves *curves);  // ms a step against tokens of context
cli_panel cli_panel_speedup(const cli_curves *curves);  // against the batch
cli_panel cli_panel_error(const cli_curves *curves);    // relative error against S, with fitted slopes
cli_panel cli_panel_accuracy(const cli_curves *curves); // % right against % of the KV bytes that dense attention reads
// error [n_layers][n_methods][n_heads]; names [n_methods].
cli_panel cli_panel_layers(const double *error, int n_layers, int n_heads, const char *const *names, int n_methods);

// Least squares of log y on log x over the points where both are positive: y = scale * x^slope. Returns the slope; NaN, as
// *scale then, where fewer than two different x are left. scale may be NULL.
double cli_plot_slope(const cli_point *points, int n, double *scale);

// SL_ERR_ARG when FILE ends in neither .svg nor .png, SL_ERR_IO when its folder cannot be written: to be asked before hours of
// work. flag: what the message names.
int cli_plot_check(const char *file, const char *flag, sl_error *err);
// Draws panels [n], side by side, under a title ("": none).
int cli_plot(const char *file, const char *title, const cli_panel *panels, int n, sl_error *err);

#endif
