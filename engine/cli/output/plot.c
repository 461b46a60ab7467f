// engine/cli/output/plot.c - see plot.h.
#include "engine/cli/output/plot.h"
#include "engine/cli/grow.h"

#include <errno.h>
#include <math.h>
#include <spawn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

enum { MAX_PATH = 4096, WIDTH = 760, HEIGHT = 520 };
extern char **environ;

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
    c->points = points;
    c->points[c->n++] = point;
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
                       .y_label = "ms",
                       .log_x = 1,
                       .lines = 1,
                       .ticks = 1,
                       .curves = curves->at,
                       .n_curves = curves->n};
}

cli_panel cli_panel_speedup(const cli_curves *curves) {
    return (cli_panel){.title = "speedup of decoding",
                       .x_label = "sequences in the batch",
                       .y_label = "times as fast",
                       .lines = 1,
                       .ticks = 1,
                       .curves = curves->at,
                       .n_curves = curves->n};
}

cli_panel cli_panel_error(const cli_curves *curves) {
    return (cli_panel){.title = "error against dense attention",
                       .x_label = "S",
                       .y_label = "relative error",
                       .log_x = 1,
                       .log_y = 1,
                       .fit = 1,
                       .ticks = 1,
                       .curves = curves->at,
                       .n_curves = curves->n};
}

cli_panel cli_panel_accuracy(const cli_curves *curves) {
    return (cli_panel){.title = "accuracy against bytes read",
                       .x_label = "KV bytes read, % of dense attention",
                       .y_label = "right, %",
                       .log_x = 1,
                       .lines = 1,
                       .percent = 1,
                       .curves = curves->at,
                       .n_curves = curves->n};
}

cli_panel cli_panel_layers(const double *error, int n_layers, int n_heads, const char *const *names, int n_methods) {
    return (cli_panel){.title = "relative error",
                       .x_label = "query heads of each method",
                       .y_label = "layer",
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

// ---- the data file ----

static void put_number(FILE *f, double x, const char *before) {
    if (isfinite(x))
        fprintf(f, "%s%.9g", before, x);
    else
        fprintf(f, "%sNaN", before);
}

// Writes a comment; replaces line breaks, because a comment is one line.
static void put_comment(FILE *f, const char *key, const char *text) {
    fprintf(f, "# %s: ", key);
    for (const char *p = text; *p; p++) fputc(*p == '\n' ? ' ' : *p, f);
    fputc('\n', f);
}

static int has_bars(const cli_curve *c) {
    for (int i = 0; i < c->n; i++)
        if (isfinite(c->points[i].low) && isfinite(c->points[i].high)) return 1;
    return 0;
}

static void put_points(FILE *f, const cli_panel *p, const cli_curve *c) {
    int bars = has_bars(c);
    put_comment(f, "curve", c->name);
    if (p->fit) {
        double scale, slope = cli_plot_slope(c->points, c->n, &scale);
        fprintf(f, "# fit: %.9g * x ** %.9g\n", scale, slope);
    }
    for (int i = 0; i < c->n; i++) {
        put_number(f, c->points[i].x, "");
        put_number(f, c->points[i].y, " ");
        if (bars) put_number(f, c->points[i].low, " ");
        if (bars) put_number(f, c->points[i].high, " ");
        fputc('\n', f);
    }
    fprintf(f, "\n\n");
}

static void put_cells(FILE *f, const cli_panel *p) {
    for (int i = 0; i < p->n_names; i++) put_comment(f, "columns", p->x_names[i]);
    for (int y = 0; y < p->n_y; y++) {
        for (int x = 0; x < p->n_x; x++) put_number(f, p->cells[y * p->n_x + x], x ? " " : "");
        fputc('\n', f);
    }
    fprintf(f, "\n\n");
}

static int close_written(FILE *f, const char *path, sl_error *err) {
    int failed = ferror(f);
    if (fclose(f) || failed) return sl_fail(err, SL_ERR_IO, "cannot write %s: %s", path, strerror(errno));
    return 0;
}

static int write_data(const char *path, const char *title, const cli_panel *panels, int n, sl_error *err) {
    FILE *f = fopen(path, "w");
    if (!f) return sl_fail(err, SL_ERR_IO, "cannot write %s: %s", path, strerror(errno));
    if (*title) put_comment(f, "title", title);
    for (int i = 0; i < n; i++) {
        const cli_panel *p = &panels[i];
        put_comment(f, "panel", p->title);
        fprintf(f, "# x: %s; y: %s\n", p->x_label, p->y_label);
        for (int j = 0; j < p->n_curves; j++) put_points(f, p, &p->curves[j]);
        if (p->cells) put_cells(f, p);
    }
    return close_written(f, path, err);
}

// ---- gnuplot's script ----

static void put_quoted(FILE *f, const char *text) { // gnuplot: in single quotes only the quote is special; it is doubled
    fputc('\'', f);
    for (const char *p = text; *p; p++) fprintf(f, *p == '\'' ? "''" : "%c", *p == '\n' ? ' ' : *p);
    fputc('\'', f);
}

static void put_setting(FILE *f, const char *what, const char *text) {
    fprintf(f, "set %s ", what);
    put_quoted(f, text);
    fprintf(f, " noenhanced\n");
}

// Puts a tick at the x of each point.
static void put_ticks(FILE *f, const cli_panel *p) {
    const char *comma = "";
    fprintf(f, "set xtics (");
    for (int i = 0; i < p->n_curves; i++) {
        for (int j = 0; j < p->curves[i].n; j++) {
            double x = p->curves[i].points[j].x;
            if (!isfinite(x) || (p->log_x && x <= 0)) continue;
            int thousands = x >= 1024 && fmod(x, 1024) == 0;
            fprintf(f, "%s'%.6g%s' %.9g", comma, thousands ? x / 1024 : x, thousands ? "k" : "", x);
            comma = ", ";
        }
    }
    fprintf(f, ")\n");
}

static void put_axes(FILE *f, const cli_panel *p) {
    fprintf(f, "reset\nset grid\nset key outside below noenhanced\n");
    put_setting(f, "title", p->title);
    put_setting(f, "xlabel", p->x_label);
    put_setting(f, "ylabel", p->y_label);
    if (p->log_x) fprintf(f, "set logscale x\n");
    if (p->log_y) fprintf(f, "set logscale y\n");
    if (p->percent)
        fprintf(f, "set xtics (0.5, 1, 2, 5, 10, 20, 50, 100)\nset yrange [0:105]\n");
    else if (!p->log_y)
        fprintf(f, "set yrange [0:*]\n");
    if (p->ticks) put_ticks(f, p);
}

static void put_curve(FILE *f, const char *data, const cli_panel *p, int i, int index) {
    const cli_curve *c = &p->curves[i];
    char name[256];
    int bars = has_bars(c);
    double scale, slope = p->fit ? cli_plot_slope(c->points, c->n, &scale) : NAN;
    snprintf(name, sizeof name, "%.200s", c->name);
    if (isfinite(slope)) snprintf(name + strlen(name), sizeof name - strlen(name), ", slope %.2f", slope);
    put_quoted(f, data);
    fprintf(f, " index %d using %s with %s lc %d pt %d title ", index, bars ? "1:2:3:4" : "1:2",
            bars ? (p->lines ? "yerrorlines" : "yerrorbars") : (p->lines ? "linespoints" : "points"), i + 1, i % 15 + 4);
    put_quoted(f, name);
    if (isfinite(slope)) fprintf(f, ", %.9g * x ** %.9g lc %d notitle", scale, slope, i + 1);
}

// Puts the name of each group of columns below its middle, and a line between groups.
static void put_groups(FILE *f, const cli_panel *p) {
    double width = (double)p->n_x / p->n_names;
    fprintf(f, "set xtics noenhanced rotate by 45 right (");
    for (int i = 0; i < p->n_names; i++) {
        if (i) fprintf(f, ", ");
        put_quoted(f, p->x_names[i]);
        fprintf(f, " %.9g", (i + 0.5) * width - 0.5);
    }
    fprintf(f, ")\n");
    for (int i = 1; i < p->n_names; i++)
        fprintf(f, "set arrow from %.9g,graph 0 to %.9g,graph 1 nohead front lc rgb 'white'\n", i * width - 0.5,
                i * width - 0.5);
}

static void put_heat_map(FILE *f, const char *data, const cli_panel *p, int index) {
    fprintf(f,
            "set yrange [%d.5:-0.5]\nset xrange [-0.5:%d.5]\nset xtics auto\nset ytics 0,%d\nunset grid\n"
            "set palette defined (0 '#440154', 1 '#31688e', 2 '#35b779', 3 '#fde725')\n",
            p->n_y - 1, p->n_x - 1, (p->n_y + 15) / 16);
    if (p->n_names) put_groups(f, p);
    fprintf(f, "plot ");
    put_quoted(f, data);
    fprintf(f, " index %d matrix with image notitle\n", index);
}

// Writes a panel. *index: its first block in the data file; moves to the next panel's.
static void put_panel(FILE *f, const char *data, const cli_panel *p, int *index) {
    put_axes(f, p);
    if (p->cells) {
        put_heat_map(f, data, p, (*index)++);
        return;
    }
    fprintf(f, "plot ");
    for (int i = 0; i < p->n_curves; i++) {
        fprintf(f, "%s", i ? ", " : "");
        put_curve(f, data, p, i, (*index)++);
    }
    fprintf(f, "\n");
}

static int has_extension(const char *file, const char *extension) {
    size_t n = strlen(file), m = strlen(extension);
    return n > m && !strcmp(file + n - m, extension);
}

static void put_script(FILE *f, const char *file, const char *data, const char *title, const cli_panel *panels, int n) {
    int index = 0;
    if (has_extension(file, ".svg"))
        fprintf(f, "set terminal svg size %d,%d background 'white'\n", n * WIDTH, HEIGHT);
    else
        fprintf(f,
                "if (strstrt(GPVAL_TERMINALS, 'pngcairo')) { set terminal pngcairo size %d,%d } else { set terminal png size "
                "%d,%d }\n",
                n * WIDTH, HEIGHT, n * WIDTH, HEIGHT);
    fprintf(f, "set output ");
    put_quoted(f, file);
    fprintf(f, "\nset multiplot layout 1,%d", n);
    if (*title) {
        fprintf(f, " title ");
        put_quoted(f, title);
        fprintf(f, " noenhanced");
    }
    fprintf(f, "\n");
    for (int i = 0; i < n; i++) put_panel(f, data, &panels[i], &index);
    fprintf(f, "unset multiplot\nset output\n");
}

// ---- gnuplot itself ----

// Runs gnuplot on the script; its messages go to a file. *status: as from waitpid. Returns 0 or an errno; ENOENT: no gnuplot.
static int run_gnuplot(FILE *script, FILE *complaints, int *status) {
    char *const args[] = {"gnuplot", NULL};
    posix_spawn_file_actions_t actions;
    pid_t pid;
    fflush(script);
    lseek(fileno(script), 0, SEEK_SET);
    posix_spawn_file_actions_init(&actions);
    posix_spawn_file_actions_adddup2(&actions, fileno(script), STDIN_FILENO);
    posix_spawn_file_actions_adddup2(&actions, fileno(complaints), STDOUT_FILENO);
    posix_spawn_file_actions_adddup2(&actions, fileno(complaints), STDERR_FILENO);
    int rc = posix_spawnp(&pid, "gnuplot", &actions, NULL, args, environ);
    posix_spawn_file_actions_destroy(&actions);
    while (!rc && waitpid(pid, status, 0) < 0)
        if (errno != EINTR) rc = errno;
    return rc;
}

// The first line that holds a message.
static void first_complaint(FILE *complaints, char *buf, int size) {
    rewind(complaints);
    *buf = 0;
    while (fgets(buf, size, complaints))
        if (buf[strspn(buf, " \t\r\n^")]) break;
    buf[strcspn(buf, "\n")] = 0;
}

// *missing: 1 if gnuplot is not installed.
static int draw(const char *file, const char *data, FILE *script, FILE *complaints, int *missing, sl_error *err) {
    char why[256];
    int status = 0, rc = run_gnuplot(script, complaints, &status);
    *missing = rc == ENOENT;
    if (*missing) return 0;
    if (rc) return sl_fail(err, SL_ERR_IO, "cannot run gnuplot: %s", strerror(rc));
    if (WIFEXITED(status) && WEXITSTATUS(status) == 0) return 0;
    first_complaint(complaints, why, sizeof why);
    return sl_fail(err, SL_ERR_IO, "gnuplot could not draw %s (the data is in %s): %s", file, data, why);
}

int cli_plot_check(const char *file, const char *flag, sl_error *err) {
    char folder[MAX_PATH];
    if (!has_extension(file, ".svg") && !has_extension(file, ".png"))
        return sl_fail(err, SL_ERR_ARG, "%s %.200s: expected a file name that ends in .svg or .png", flag, file);
    if (snprintf(folder, sizeof folder, "%s", file) >= MAX_PATH - 8)
        return sl_fail(err, SL_ERR_ARG, "%s: expected a path of at most %d characters", flag, MAX_PATH - 8);
    char *slash = strrchr(folder, '/');
    if (slash) slash[slash == folder] = 0;
    if (!access(slash ? folder : ".", W_OK)) return 0;
    return sl_fail(err, SL_ERR_IO, "%s %.200s: cannot write to its folder: %s", flag, file, strerror(errno));
}

static const char *name_of(const char *path) {
    const char *slash = strrchr(path, '/');
    return slash ? slash + 1 : path;
}

// Writes the script for a machine with gnuplot. The script names plot and data file without folders.
static int keep_script(const char *path, const char *file, const char *data, const char *title, const cli_panel *panels, int n,
                       sl_error *err) {
    FILE *f = fopen(path, "w");
    if (!f) return sl_fail(err, SL_ERR_IO, "cannot write %s: %s", path, strerror(errno));
    put_script(f, name_of(file), name_of(data), title, panels, n);
    int rc = close_written(f, path, err);
    if (rc) return rc;
    fprintf(stderr, "plot: %s was not drawn, because gnuplot is not installed; `gnuplot %s` in its folder draws it from %s\n",
            file, name_of(path), name_of(data));
    return 0;
}

int cli_plot(const char *file, const char *title, const cli_panel *panels, int n, sl_error *err) {
    char data[MAX_PATH], path[MAX_PATH];
    int rc = cli_plot_check(file, "plot", err), stem, missing = 0;
    if (rc) return rc;
    stem = (int)(strrchr(file, '.') - file);
    snprintf(data, sizeof data, "%.*s.dat", stem, file);
    snprintf(path, sizeof path, "%.*s.gp", stem, file);
    rc = write_data(data, title, panels, n, err);
    if (rc) return rc;
    FILE *script = tmpfile(), *complaints = tmpfile();
    if (script && complaints) {
        put_script(script, file, data, title, panels, n);
        rc = draw(file, data, script, complaints, &missing, err);
    } else {
        rc = sl_fail(err, SL_ERR_IO, "cannot create a temporary file for the gnuplot script: %s", strerror(errno));
    }
    if (script) fclose(script);
    if (complaints) fclose(complaints);
    return missing ? keep_script(path, file, data, title, panels, n, err) : rc;
}
