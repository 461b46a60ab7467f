// cli/output/plot_axes.h - ranges and ticks of the axes of a panel, in gnuplot's words.
//
// All labels of ticks are chosen here, so that their widths are known and leave room for the labels of the axes.
#ifndef SLEIGH_PLOT_AXES_H
#define SLEIGH_PLOT_AXES_H

#include "cli/output/plot_panel.h"

#include <stddef.h>
#include <stdio.h>

enum {                     // pixels
    CLI_PLOT_HEIGHT = 290, // of the plot area
    CLI_PLOT_FONT = 14,
    CLI_PLOT_SMALL = 12,  // legend
    CLI_PLOT_NUMBER = 11, // number at a point
};

typedef struct cli_axis {
    double low, high; // NaN: there is no point to draw
    double zero;      // logarithmic: where 0 is drawn; NaN: there is no 0
    int log;
} cli_axis;

// At most; `font` is its size in pixels.
double cli_plot_text_width(size_t n_characters, int font);

int cli_plot_drawable(const cli_panel *p, const cli_point *at);
int cli_plot_has_bar(const cli_panel *p, const cli_point *at);

// The different x of all points that are drawn, ascending; the caller frees the array. *n: their number. NULL: none, or no
// memory.
double *cli_plot_all_x(const cli_panel *p, int *n);
cli_axis cli_plot_x_axis(const cli_panel *p, const double *x, int n); // x: from cli_plot_all_x
// An error bar that is much longer than the range of the points does not fit: it ends at the edge of the panel.
cli_axis cli_plot_y_axis(const cli_panel *p);
// The place of v on the axis: 0 at its low end, 1 at its high end.
double cli_plot_place(const cli_axis *a, double v);

void cli_plot_put_range(FILE *f, char which, const cli_axis *a);
// Ticks at the x of the points, with labels where there is room on `width` pixels.
void cli_plot_put_data_ticks(FILE *f, const cli_axis *a, const double *x, int n, int width);
// Ticks at round numbers. name: gnuplot's name of the ticks, "ytics". room: pixels along the axis.
void cli_plot_put_ticks(FILE *f, const char *name, const cli_axis *a, int room);
double cli_plot_ticks_width(const cli_axis *a, int room); // width of their widest label

enum { CLI_PLOT_UPRIGHT = 4 * CLI_PLOT_HEIGHT }; // `room` of a vertical axis: labels are four times as wide as high

// A number as a label: 512, 32k. Returns its length.
int cli_plot_number(double x, char buf[32]);

#endif
