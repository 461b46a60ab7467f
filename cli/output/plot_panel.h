// cli/output/plot_panel.h - what a picture shows: panels of curves, or of a heat map.
#ifndef SLEIGH_PLOT_PANEL_H
#define SLEIGH_PLOT_PANEL_H

#include "base/error.h"

typedef struct cli_point {
    double x, y;
    double low, high; // error bar; NaN: none
    double number;    // stands at the point; not above 0: none
} cli_point;

typedef struct cli_curve {
    char name[192];    // its first word gives colour and marker (plot_style.h)
    cli_point *points; // [n], x ascends, because lines connect neighbours
    int n, cap;
} cli_curve;

typedef struct cli_curves {
    cli_curve *at; // [n], in the order of their first points
    int n, cap;
} cli_curves;

// Adds a point to the curve of this name at its place, or starts the curve. *curves starts as {0}.
int cli_curves_add(cli_curves *curves, const char *name, cli_point point, sl_error *err);
void cli_curves_free(cli_curves *curves);

typedef struct cli_panel {
    const char *title, *x_label, *y_label;
    int log_x, log_y, fit, lines; // fit: draw a power law for each curve, its slope in the legend; lines: connect points
    int ticks, percent;           // ticks: one at the x of each point, as 512 or 32k; percent: both axes are shares
    int new_row;                  // the panel begins a row of panels
    const cli_curve *curves;      // [n_curves], not owned; must exist until cli_plot
    int n_curves;
    const char *z_label;
    const double *cells; // heat map instead of curves: [n_y][n_x], row 0 at the top; NaN: blank
    int n_x, n_y;
    const char *const *x_names; // heat map: [n_names] names of equal groups of columns; NULL: numbered columns
    int n_names;
} cli_panel;

enum { CLI_PLOT_PANELS = 256 }; // of a picture, at most

cli_panel cli_panel_latency(const cli_curves *curves);  // ms per step against tokens of context
cli_panel cli_panel_speedup(const cli_curves *curves);  // speedup against batch size
cli_panel cli_panel_error(const cli_curves *curves);    // relative error against S, with fitted power laws
cli_panel cli_panel_accuracy(const cli_curves *curves); // score in % against KV bytes in % of dense attention
// Heat map. error: [n_layers][n_methods][n_heads]; names: [n_methods].
cli_panel cli_panel_layers(const double *error, int n_layers, int n_heads, const char *const *names, int n_methods);

// Fits y = scale * x^slope by least squares of log y on log x, over points with positive x and y. Returns the slope. Slope and
// *scale are NaN if fewer than two different x remain. scale may be NULL.
double cli_plot_slope(const cli_point *points, int n, double *scale);

#endif
