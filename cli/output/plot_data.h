// cli/output/plot_data.h - the data file of a picture: its numbers, and all that `sleigh plot` needs to draw it again.
//
//     # title: models/tiny, 2 threads
//     # panel: decode step                        a panel begins
//     # x: tokens of context; y: ms of a step
//     # axes: log-x lines ticks                   words of the table in plot_data.c
//     # curve: dense, batch 1
//     0 0.43 0.41 0.46                            x y, or x y low high with the ends of an error bar, or also the number that
//                                                 stands at the point; NaN: none
//                                                 two blank lines end a curve (gnuplot's `index`)
//
// A heat map has a line `# z: LABEL`, for each group of columns a line `# columns: NAME`, and a line of numbers for each row.
// Other lines that begin with # are comments.
#ifndef SLEIGH_PLOT_DATA_H
#define SLEIGH_PLOT_DATA_H

#include "base/arrays.h"
#include "cli/output/plot_panel.h"

// Writes the file at once: after an error, the file of before is unchanged.
int cli_plot_write(const char *path, const char *title, const cli_panel *panels, int n, sl_error *err);

typedef struct cli_plot_data {
    const char *title;
    cli_panel panels[CLI_PLOT_PANELS];
    int n;
    // What the panels point to:
    sl_text text;
    cli_curves curves[CLI_PLOT_PANELS];
    struct cli_plot_cells {
        double *cells;
        const char **names;
        int n_cells, cap_cells, cap_names;
    } maps[CLI_PLOT_PANELS];
} cli_plot_data;

// SL_ERR_FORMAT names the file and the line. Free *data also after an error.
int cli_plot_read(const char *path, cli_plot_data *data, sl_error *err);
void cli_plot_data_free(cli_plot_data *data);

#endif
