// cli/output/plot_data.c - see plot_data.h.
#include "cli/output/plot_data.h"
#include "base/whole_file.h"
#include "cli/grow.h"
#include "cli/io.h"

#include <math.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

// The words of `# axes:` and their fields.
static const struct {
    const char *word;
    size_t field;
} words[] = {
    {"log-x", offsetof(cli_panel, log_x)},     {"log-y", offsetof(cli_panel, log_y)}, {"lines", offsetof(cli_panel, lines)},
    {"fit", offsetof(cli_panel, fit)},         {"ticks", offsetof(cli_panel, ticks)}, {"percent", offsetof(cli_panel, percent)},
    {"new-row", offsetof(cli_panel, new_row)},
};
enum { N_WORDS = sizeof words / sizeof *words };

static int *flag_of(cli_panel *p, int i) {
    return (int *)(void *)((char *)p + words[i].field);
}

// ---- writing ----

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

static void put_points(FILE *f, const cli_panel *p, const cli_curve *c) {
    int numbers = 0, bars = 0;
    for (int i = 0; i < c->n; i++) {
        numbers |= c->points[i].number > 0;
        bars |= numbers || (isfinite(c->points[i].low) && isfinite(c->points[i].high));
    }
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
        if (numbers) put_number(f, c->points[i].number > 0 ? c->points[i].number : NAN, " ");
        fputc('\n', f);
    }
    fprintf(f, "\n\n");
}

static void put_cells(FILE *f, const cli_panel *p) {
    put_comment(f, "z", p->z_label);
    for (int i = 0; i < p->n_names; i++) put_comment(f, "columns", p->x_names[i]);
    for (int y = 0; y < p->n_y; y++) {
        for (int x = 0; x < p->n_x; x++) put_number(f, p->cells[y * p->n_x + x], x ? " " : "");
        fputc('\n', f);
    }
    fprintf(f, "\n\n");
}

static void put_panel(FILE *f, cli_panel p) {
    put_comment(f, "panel", p.title);
    fprintf(f, "# x: %s; y: %s\n", p.x_label, p.y_label);
    if (!p.cells) {
        fprintf(f, "# axes:");
        for (int i = 0; i < N_WORDS; i++)
            if (*flag_of(&p, i)) fprintf(f, " %s", words[i].word);
        fputc('\n', f);
    }
    for (int i = 0; i < p.n_curves; i++) put_points(f, &p, &p.curves[i]);
    if (p.cells) put_cells(f, &p);
}

int cli_plot_write(const char *path, const char *title, const cli_panel *panels, int n, sl_error *err) {
    sl_whole_file w;
    FILE *f = sl_whole_file_open(&w, path, 0666);
    if (f && *title) put_comment(f, "title", title);
    for (int i = 0; f && i < n; i++) put_panel(f, panels[i]);
    return sl_whole_file_close(&w, f != NULL, err);
}

// ---- reading ----

typedef struct reader {
    const char *path;
    int line;
    cli_plot_data *data;
    cli_panel *panel;           // NULL: before the first panel
    const char *curve;          // name of the current curve; NULL: before the first curve of the panel
    struct cli_plot_cells *map; // of the panel
} reader;

static int bad(const reader *r, const char *what, sl_error *err) {
    return sl_fail(err, SL_ERR_FORMAT, "%s:%d: expected %s", r->path, r->line, what);
}

// The text after "# KEY: "; NULL: the line has another key.
static char *after(char *line, const char *key) {
    size_t n = strlen(key);
    return !strncmp(line, "# ", 2) && !strncmp(line + 2, key, n) && !strncmp(line + 2 + n, ":", 1)
               ? line + 3 + n + strspn(line + 3 + n, " ")
               : NULL;
}

static int begin_panel(reader *r, const char *title, sl_error *err) {
    cli_plot_data *d = r->data;
    if (d->n == CLI_PLOT_PANELS)
        return sl_fail(err, SL_ERR_FORMAT, "%s:%d: expected at most %d panels", r->path, r->line, CLI_PLOT_PANELS);
    r->map = &d->maps[d->n];
    r->panel = &d->panels[d->n++];
    r->curve = NULL;
    *r->panel = (cli_panel){.title = title, .x_label = "", .y_label = "", .z_label = ""};
    return 0;
}

static void read_labels(cli_panel *p, char *text) {
    char *y = strstr(text, "; y: ");
    p->x_label = text;
    if (y) *y = 0, p->y_label = y + 5;
}

static int read_axes(const reader *r, char *text, sl_error *err) {
    for (char *word = strtok(text, " "); word; word = strtok(NULL, " ")) {
        int i = 0;
        while (i < N_WORDS && strcmp(word, words[i].word)) i++;
        if (i == N_WORDS) return bad(r, "words of log-x, log-y, lines, fit, ticks, percent and new-row after \"# axes:\"", err);
        *flag_of(r->panel, i) = 1;
    }
    return 0;
}

static int read_name(const reader *r, const char *name, sl_error *err) {
    const char **names = cli_grow(r->map->names, r->panel->n_names, &r->map->cap_names, sizeof *names);
    if (!names) return sl_fail(err, SL_ERR_MEMORY, "%s: out of memory", r->path);
    r->map->names = names;
    names[r->panel->n_names++] = name;
    return 0;
}

static int read_point(const reader *r, const char *line, sl_error *err) {
    double x[6];
    int n = 0;
    char *end;
    for (const char *p = line; n < 6; p = end) {
        x[n] = strtod(p, &end);
        if (end == p) break;
        n++;
    }
    if ((n != 2 && n != 4 && n != 5) || end[strspn(end, " \t\r")])
        return bad(r, "a point of two, four or five numbers: x, y, the ends of an error bar, and the number at the point", err);
    cli_point point = {x[0], x[1], n > 2 ? x[2] : NAN, n > 2 ? x[3] : NAN, n > 4 ? x[4] : NAN};
    return cli_curves_add(&r->data->curves[r->data->n - 1], r->curve, point, err);
}

static int read_row(const reader *r, const char *line, sl_error *err) {
    int n = 0;
    char *end;
    for (const char *p = line;; p = end, n++) {
        double x = strtod(p, &end);
        if (end == p) break;
        double *cells = cli_grow(r->map->cells, r->map->n_cells, &r->map->cap_cells, sizeof *cells);
        if (!cells) return sl_fail(err, SL_ERR_MEMORY, "%s: out of memory", r->path);
        r->map->cells = cells;
        cells[r->map->n_cells++] = x;
    }
    if (end[strspn(end, " \t\r")]) return bad(r, "numbers", err);
    if (r->panel->n_y && n != r->panel->n_x)
        return sl_fail(err, SL_ERR_FORMAT, "%s:%d: expected %d numbers, as in the row before, found %d", r->path, r->line,
                       r->panel->n_x, n);
    r->panel->n_x = n;
    r->panel->n_y++;
    return 0;
}

static int read_line(reader *r, char *line, sl_error *err) {
    char *text;
    if ((text = after(line, "panel"))) return begin_panel(r, text, err);
    if (!r->panel && (text = after(line, "title"))) {
        r->data->title = text;
        return 0;
    }
    if (!line[strspn(line, " \t\r")]) return 0;
    if (!r->panel) return *line == '#' ? 0 : bad(r, "a line \"# panel: TITLE\" before the first numbers", err);
    if ((text = after(line, "x"))) return read_labels(r->panel, text), 0;
    if ((text = after(line, "axes"))) return read_axes(r, text, err);
    if ((text = after(line, "z"))) return r->panel->z_label = text, 0;
    if ((text = after(line, "columns"))) return read_name(r, text, err);
    if ((text = after(line, "curve"))) return r->curve = text, 0;
    if (*line == '#') return 0;
    return r->curve ? read_point(r, line, err) : read_row(r, line, err);
}

// Points the panels to what was read.
static int join_panels(reader *r, sl_error *err) {
    cli_plot_data *d = r->data;
    if (!d->n) return bad(r, "a line \"# panel: TITLE\"; `sleigh plot` reads the data files that --plot writes", err);
    for (int i = 0; i < d->n; i++) {
        cli_panel *p = &d->panels[i];
        p->curves = d->curves[i].at;
        p->n_curves = d->curves[i].n;
        p->cells = d->maps[i].cells;
        p->x_names = (const char *const *)d->maps[i].names;
        if (!p->cells == !p->curves)
            return sl_fail(err, SL_ERR_FORMAT, "%s: panel \"%.200s\": expected curves or the rows of a heat map, found %s",
                           r->path, p->title, p->cells ? "both" : "neither");
        if (p->cells && p->n_names && p->n_x % p->n_names)
            return sl_fail(err, SL_ERR_FORMAT,
                           "%s: panel \"%.200s\": expected groups of equal size, found %d columns of %d names", r->path,
                           p->title, p->n_x, p->n_names);
    }
    return 0;
}

int cli_plot_read(const char *path, cli_plot_data *data, sl_error *err) {
    reader r = {.path = path, .data = data};
    *data = (cli_plot_data){.title = ""};
    int rc = cli_read_file(path, &data->text, err);
    if (!rc && strlen(data->text.data) != data->text.n)
        rc = sl_fail(err, SL_ERR_FORMAT, "%s: expected text, found a NUL", path);
    for (char *line = data->text.data, *next; !rc && line; line = next) {
        next = strchr(line, '\n');
        if (next) *next++ = 0;
        r.line++;
        rc = read_line(&r, line, err);
    }
    return rc ? rc : join_panels(&r, err);
}

void cli_plot_data_free(cli_plot_data *data) {
    for (int i = 0; i < data->n; i++) {
        cli_curves_free(&data->curves[i]);
        free(data->maps[i].cells);
        free(data->maps[i].names);
    }
    sl_text_free(&data->text);
}
