// cli/output/plot_panel.c - see plot_panel.h.
#include "cli/output/plot_panel.h"
#include "cli/grow.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

// ---- curves ----

static cli_curve *find_curve(cli_curves *curves, const char *name) { // NULL: out of memory
    for (int i = 0; i < curves->n; i++)
        if (!strcmp(curves->at[i].name, name)) return &curves->at[i];
    cli_curve *at = cli_grow(curves->at, curves->n, &curves->cap, sizeof *at);
    if (!at) return NULL;
    curves->at = at;
    cli_curve *c = &curves->at[curves->n++];
    *c = (cli_curve){0};
    snprintf(c->name, sizeof c->name, "%s", name);
    return c;
}

int cli_curves_add(cli_curves *curves, const char *name, cli_point point, sl_error *err) {
    cli_curve *c = find_curve(curves, name);
    if (!c) return sl_fail(err, SL_ERR_MEMORY, "--plot: out of memory");
    cli_point *points = cli_grow(c->points, c->n, &c->cap, sizeof *points);
    if (!points) return sl_fail(err, SL_ERR_MEMORY, "--plot: out of memory");
    int at = c->n++;
    for (; at > 0 && points[at - 1].x > point.x; at--) points[at] = points[at - 1];
    points[at] = point;
    c->points = points;
    return 0;
}

void cli_curves_free(cli_curves *curves) {
    for (int i = 0; i < curves->n; i++) free(curves->at[i].points);
    free(curves->at);
    *curves = (cli_curves){0};
}

// ---- kinds of panels ----

cli_panel cli_panel_latency(const cli_curves *curves) {
    return (cli_panel){.title = "decode step",
                       .x_label = "tokens of context",
                       .y_label = "time of a step, ms",
                       .log_x = 1,
                       .lines = 1,
                       .ticks = 1,
                       .curves = curves->at,
                       .n_curves = curves->n};
}

cli_panel cli_panel_speedup(const cli_curves *curves) {
    return (cli_panel){.title = "speedup of decoding",
                       .x_label = "sequences in the batch",
                       .y_label = "speedup over the first method",
                       .lines = 1,
                       .ticks = 1,
                       .curves = curves->at,
                       .n_curves = curves->n};
}

cli_panel cli_panel_error(const cli_curves *curves) {
    return (cli_panel){.title = "error against dense attention",
                       .x_label = "S, draws of a query head",
                       .y_label = "relative error",
                       .log_x = 1,
                       .log_y = 1,
                       .fit = 1,
                       .ticks = 1,
                       .curves = curves->at,
                       .n_curves = curves->n};
}

static int has_numbers(const cli_curves *curves) {
    for (int i = 0; i < curves->n; i++)
        for (int j = 0; j < curves->at[i].n; j++)
            if (curves->at[i].points[j].number > 0) return 1;
    return 0;
}

cli_panel cli_panel_accuracy(const cli_curves *curves) {
    return (cli_panel){.title = has_numbers(curves) ? "accuracy against bytes read; at points: S or k"
                                                    : "accuracy against bytes read",
                       .x_label = "KV bytes read, % of dense attention",
                       .y_label = "right answers, %",
                       .log_x = 1,
                       .lines = 1,
                       .percent = 1,
                       .curves = curves->at,
                       .n_curves = curves->n};
}

cli_panel cli_panel_layers(const double *error, int n_layers, int n_heads, const char *const *names, int n_methods) {
    return (cli_panel){.title = "error of each query head",
                       .x_label = "query heads of each method",
                       .y_label = "layer",
                       .z_label = "relative error",
                       .cells = error,
                       .n_x = n_heads * n_methods,
                       .n_y = n_layers,
                       .x_names = names,
                       .n_names = n_methods};
}

double cli_plot_slope(const cli_point *points, int n, double *scale) {
    double n_used = 0, sx = 0, sy = 0, sxx = 0, sxy = 0;
    for (int i = 0; i < n; i++) {
        double x = points[i].x, y = points[i].y;
        if (!(x > 0 && y > 0 && isfinite(x) && isfinite(y))) continue;
        double a = log(x), b = log(y);
        n_used++, sx += a, sy += b, sxx += a * a, sxy += a * b;
    }
    double spread = n_used * sxx - sx * sx, slope = NAN;
    if (n_used > 1 && spread > 1e-9 * n_used * sxx) slope = (n_used * sxy - sx * sy) / spread;
    if (scale) *scale = exp((sy - slope * sx) / n_used);
    return slope;
}
