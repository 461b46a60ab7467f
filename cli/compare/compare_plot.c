// cli/compare/compare_plot.c - the plots of sleigh compare: errors of heads on identical states.
#include "cli/compare/compare_plot.h"
#include "cli/compare/compare.h"
#include "cli/io.h"
#include "cli/output/plot.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>

int compare_plot_check(const compare *c, sl_error *err) {
    if (!c->o->output->plot) return 0;
    if (!c->o->compare->heads) return sl_fail(err, SL_ERR_ARG, "--plot draws the errors of heads; --no-heads measures none");
    return cli_plot_check(c->o->output->plot, "--plot", err);
}

static double field(const json_t *row, const char *name) {
    const json_t *value = json_object_get(row, name);
    return json_is_number(value) ? json_number_value(value) : NAN;
}

// Curves of the methods with a budget.
static int error_curves(const compare *c, const json_t *rows, cli_curves *out, sl_error *err) {
    int rc = 0;
    for (int i = 0; !rc && i < c->n_decode; i++) {
        char name[CLI_ATTN_NAME];
        const json_t *row = json_array_get(rows, (size_t)i);
        double budget = cli_attn_curve(&c->attn, i, name), at = field(row, "l2"), error = field(row, "l2_se");
        if (!isnan(budget)) rc = cli_curves_add(out, name, (cli_point){budget, at, at - error, at + error, 0}, err);
    }
    return rc;
}

// [n_layers][methods][n_heads], mean errors over steps
static double *layer_cells(const compare *c, int n_layers, int n_heads) {
    double *cells = malloc((size_t)n_layers * (size_t)c->n_decode * (size_t)n_heads * sizeof *cells), *at = cells;
    for (int layer = 0; cells && layer < n_layers; layer++)
        for (int i = 0; i < c->n_decode; i++)
            for (int head = 0; head < n_heads; head++) {
                const compare_head *h = &c->methods[i].heads[layer * n_heads + head];
                *at++ = h->error / h->n;
            }
    return cells;
}

int compare_plot(const compare *c, const json_t *rows, sl_error *err) {
    const sl_config *config = sl_model_config(c->run.model);
    cli_curves curves = {0};
    cli_panel panels[2];
    char title[320];
    int n_panels = 0;
    if (!c->o->output->plot) return 0;
    double *cells = layer_cells(c, config->n_layers, config->n_heads);
    int rc = cells ? error_curves(c, rows, &curves, err) : sl_fail(err, SL_ERR_MEMORY, "--plot: out of memory");
    if (curves.n) panels[n_panels++] = cli_panel_error(&curves);
    panels[n_panels++] =
        cli_panel_layers(cells, config->n_layers, config->n_heads, (const char *const *)c->attn.names, c->n_decode);
    snprintf(title, sizeof title, "%.200s, %d prompt%s", c->name.name, c->n_prompts, cli_s(c->n_prompts));
    if (!rc) rc = cli_plot(c->o->output->plot, title, panels, n_panels, err);
    cli_curves_free(&curves);
    free(cells);
    return rc;
}
