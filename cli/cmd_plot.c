// cli/cmd_plot.c - sleigh plot: draws a picture again from the data file that --plot wrote.
#include "cli/commands.h"
#include "cli/output/plot.h"
#include "cli/output/plot_data.h"

#include <stdio.h>
#include <string.h>

enum { MAX_PATH = 4096 };

// The picture has the name of the data file, if the command line names no other.
static int name_picture(const char *data, const char *picture, char path[MAX_PATH], sl_error *err) {
    size_t n = strlen(data), stem = n > 4 && !strcmp(data + n - 4, ".dat") ? n - 4 : n;
    if (snprintf(path, MAX_PATH, "%.*s.svg", (int)stem, data) >= MAX_PATH)
        return sl_fail(err, SL_ERR_ARG, "%.200s...: expected a path of at most %d characters", data, MAX_PATH - 8);
    return cli_plot_check(picture ? picture : path, "--output", err);
}

int cmd_plot(const char *data, const char *picture, sl_error *err) {
    char path[MAX_PATH];
    cli_plot_data d;
    if (!data) return sl_fail(err, SL_ERR_ARG, "plot: expected the data file of a picture, for example bench.dat");
    int rc = name_picture(data, picture, path, err);
    if (rc) return rc;
    rc = cli_plot_read(data, &d, err);
    if (!rc) rc = cli_plot_draw(picture ? picture : path, d.title, d.panels, d.n, err);
    cli_plot_data_free(&d);
    return rc;
}
