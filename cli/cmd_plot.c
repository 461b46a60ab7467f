// cli/cmd_plot.c - sleigh plot: draws a picture again from the data file that --plot wrote.
#include "cli/commands.h"
#include "cli/output/plot.h"
#include "cli/output/plot_data.h"

#include <stdio.h>
#include <string.h>

enum { MAX_PATH = 4096 };

// The picture has the name of the data file, if the command line names no other.
static int name_picture(const cli_options *o, char path[MAX_PATH], sl_error *err) {
    size_t n = strlen(o->what), stem = n > 4 && !strcmp(o->what + n - 4, ".dat") ? n - 4 : n;
    if (snprintf(path, MAX_PATH, "%.*s.svg", (int)stem, o->what) >= MAX_PATH)
        return sl_fail(err, SL_ERR_ARG, "%.200s...: expected a path of at most %d characters", o->what, MAX_PATH - 8);
    return cli_plot_check(o->out ? o->out : path, "--output", err);
}

int cmd_plot(const cli_options *o, sl_error *err) {
    char path[MAX_PATH];
    cli_plot_data data;
    if (!o->what) return sl_fail(err, SL_ERR_ARG, "plot: expected the data file of a picture, for example bench.dat");
    int rc = name_picture(o, path, err);
    if (rc) return rc;
    rc = cli_plot_read(o->what, &data, err);
    if (!rc) rc = cli_plot_draw(o->out ? o->out : path, data.title, data.panels, data.n, err);
    cli_plot_data_free(&data);
    return rc;
}
