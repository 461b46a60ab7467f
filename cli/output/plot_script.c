// cli/output/plot_script.c - see plot_script.h. The layout: rows of panels, below each panel its legend, or one legend
// below all panels if no panel has a curve that the panel with the most curves lacks. A panel is 480 pixels wide with text of
// 14 pixels, so that the text has 7 points where the panel is as wide as a column of a paper (3.4 inches).
#include "cli/output/plot_script.h"
#include "cli/output/plot_axes.h"
#include "cli/output/plot_numbers.h"
#include "cli/output/plot_style.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { // pixels
    PANEL = 480,
    WIDEST = 1200, // of a panel that grows with its legend
    LEFT = 78,     // tick labels and label of the y axis, at least
    RIGHT = 18,
    COLOURS = 96, // right of a heat map, at least: the bar of colours, its tick labels and its label
    BAR = 16,     // width of the bar of colours
    TITLE = 28,   // of the picture
    TOP = 34,     // title of a panel
    TICKS = 30,   // tick labels of the x axis
    X_LABEL = 22,
    GAP = 12, // above and below the legend
    LEGEND_ROW = 19,
    SAMPLE = 54, // line and marker in the legend
    HEIGHT = CLI_PLOT_HEIGHT,
    FONT = CLI_PLOT_FONT,
    SMALL = CLI_PLOT_SMALL,
};
enum { PIXELS_PER_INCH = 141 };

typedef struct place { // of a panel, in pixels from the upper left corner of the picture
    int from, to;      // of the panel
    int left, right;   // of its plot area
    int top;           // of its plot area
} place;

typedef struct layout {
    const cli_panel *panels;
    place at[CLI_PLOT_PANELS];
    int n, width, height;
    int shared; // the panel that has the legend of all panels; -1: each panel has a legend
    int legend; // top of the shared legend
    int svg;    // 1: gnuplot does not know the widths of characters
} layout;

// ---- text ----

static void put_quoted(FILE *f, const char *text) { // gnuplot: in single quotes only the quote is special; it is doubled
    fputc('\'', f);
    for (const char *p = text; *p; p++) fprintf(f, *p == '\'' ? "''" : "%c", *p == '\n' ? ' ' : *p);
    fputc('\'', f);
}

static void put_label(FILE *f, int tag, const char *text, const char *at, int angle) {
    fprintf(f, "set label %d ", tag);
    put_quoted(f, text);
    fprintf(f, " at %s center rotate by %d\n", at, angle);
}

// The entry of a curve in the legend.
static void entry_of(const cli_panel *p, const cli_curve *c, char buf[256]) {
    double slope = p->fit ? cli_plot_slope(c->points, c->n, NULL) : NAN;
    snprintf(buf, 256, "%.200s", c->name);
    if (isfinite(slope)) snprintf(buf + strlen(buf), 256 - strlen(buf), ", slope %.2f", slope);
}

// Marks the break of the axis between 0 and the smallest positive x.
static void put_break(FILE *f, const cli_axis *a, double smallest) {
    fprintf(f, "set label '//' at %.9g, graph 0 center front\n", sqrt(a->zero * smallest));
}

// ---- curves ----

static int same_method(const cli_panel *p, int i, int j) {
    int n = cli_plot_first_word(p->curves[i].name);
    return cli_plot_first_word(p->curves[j].name) == n && !memcmp(p->curves[i].name, p->curves[j].name, (size_t)n);
}

static int variation_of(const cli_panel *p, int i) {
    int variation = 0;
    for (int j = 0; j < i; j++) variation += same_method(p, i, j);
    return variation;
}

// The numbers of curve i: blocks $points, $bars and $fit.
static void put_numbers(FILE *f, const cli_panel *p, int i, const cli_axis *x) {
    const cli_curve *c = &p->curves[i];
    double scale, slope = p->fit ? cli_plot_slope(c->points, c->n, &scale) : NAN, low = INFINITY, high = 0;
    for (int bars = 0; bars < 2; bars++) {
        fprintf(f, "$%s%d << EOD\n", bars ? "bars" : "points", i);
        for (int j = 0; j < c->n; j++) {
            const cli_point *at = &c->points[j];
            if (bars ? !cli_plot_has_bar(p, at) : !cli_plot_drawable(p, at)) continue;
            fprintf(f, "%.9g %.9g", p->log_x && at->x == 0 ? x->zero : at->x, at->y);
            if (bars) fprintf(f, " %.9g %.9g", at->low, at->high);
            fputc('\n', f);
            if (at->x > 0) low = fmin(low, at->x), high = fmax(high, at->x);
        }
        fprintf(f, "EOD\n");
    }
    if (isfinite(slope)) // a straight line, because both axes are logarithmic
        fprintf(f, "$fit%d << EOD\n%.9g %.9g\n%.9g %.9g\nEOD\n", i, low, scale * pow(low, slope), high,
                scale * pow(high, slope));
}

static int count_points(const cli_panel *p, int i, int bars) {
    int n = 0;
    for (int j = 0; j < p->curves[i].n; j++) {
        const cli_point *at = &p->curves[i].points[j];
        n += bars ? cli_plot_has_bar(p, at) : cli_plot_drawable(p, at);
    }
    return n;
}

// key: the panel whose legend tells the curves apart; it has all curves of p. So a curve has one style in all panels of a
// legend.
static cli_plot_style style_of(const cli_panel *p, int i, const cli_panel *key) {
    int at = 0;
    while (strcmp(key->curves[at].name, p->curves[i].name)) at++;
    return cli_plot_style_of(p->curves[i].name, variation_of(key, at));
}

static void put_curve(FILE *f, const cli_panel *p, int i, const cli_panel *key) {
    cli_plot_style s = style_of(p, i, key);
    char entry[256];
    entry_of(p, &p->curves[i], entry);
    if (count_points(p, i, 1)) fprintf(f, "$bars%d using 1:2:3:4 with yerrorbars lc rgb '#%06x' lw 1 pt 0 notitle, ", i, s.rgb);
    if (p->fit && isfinite(cli_plot_slope(p->curves[i].points, p->curves[i].n, NULL)))
        fprintf(f, "$fit%d using 1:2 with lines lc rgb '#%06x' lw 1 dt %d notitle, ", i, s.rgb, s.dash);
    fprintf(f, "$points%d using 1:2 with %s lc rgb '#%06x'", i,
            !p->lines  ? "points"
            : s.marker ? "linespoints"
                       : "lines",
            s.rgb);
    if (p->lines) fprintf(f, " lw 2 dt %d", s.dash);
    if (s.marker || !p->lines) fprintf(f, " pt %d ps 0.9", s.marker);
    fprintf(f, " title ");
    put_quoted(f, entry);
}

static int longest_entry(const cli_panel *p) {
    int longest = 0;
    for (int i = 0; i < p->n_curves; i++) {
        char entry[256];
        entry_of(p, &p->curves[i], entry);
        if ((int)strlen(entry) > longest) longest = (int)strlen(entry);
    }
    return longest;
}

static int entry_width(const cli_panel *p) {
    return (int)cli_plot_text_width((size_t)longest_entry(p), SMALL) + SAMPLE;
}

static int legend_rows(const cli_panel *p, int width) {
    int columns = width / entry_width(p);
    return columns > 1 ? (p->n_curves + columns - 1) / columns : p->n_curves;
}

// A legend with its top at `top` pixels from the upper edge, between left and right. gnuplot computes the width of a column
// from the font of the picture, which is larger than the font of the legend.
static void put_legend(FILE *f, const layout *l, const cli_panel *p, int left, int right, int top) {
    fprintf(f,
            "set key at screen %.6f, screen %.6f center top vertical maxrows %d Left reverse samplen 2.5 spacing 1.08 width %d "
            "font ',%d'\n",
            0.5 * (left + right) / l->width, 1 - (double)top / l->height, legend_rows(p, right - left),
            -longest_entry(p) / (l->svg ? 6 : 12), SMALL);
}

static void put_plots(FILE *f, const cli_panel *p, const cli_panel *key) {
    int drawn = 0;
    fprintf(f, "plot ");
    for (int first = 0; first < p->n_curves; first++) // curves of one method together
        for (int i = first; i < p->n_curves && !variation_of(p, first); i++) {
            if (!same_method(p, first, i) || !count_points(p, i, 0)) continue;
            fprintf(f, "%s", drawn++ ? ", \\\n  " : "");
            put_curve(f, p, i, key);
        }
    fprintf(f, "%s\n", drawn ? "" : "NaN notitle");
}

static void put_numbers_at_points(FILE *f, const cli_panel *p, const cli_axis *x, const cli_axis *y, int width,
                                  const cli_panel *key) {
    unsigned *colours = malloc((p->n_curves ? (size_t)p->n_curves : 1) * sizeof *colours);
    for (int i = 0; colours && i < p->n_curves; i++) colours[i] = style_of(p, i, key).rgb;
    if (colours) cli_plot_put_numbers(f, p, x, y, width, colours);
    free(colours);
}

static void put_curves(FILE *f, const cli_panel *p, int width, const cli_panel *key) {
    int n;
    double *x = cli_plot_all_x(p, &n);
    cli_axis ax = cli_plot_x_axis(p, x, n), ay = cli_plot_y_axis(p);
    if (p->log_x) fprintf(f, "set logscale x\n");
    if (p->log_y) fprintf(f, "set logscale y\n");
    cli_plot_put_range(f, 'x', &ax);
    cli_plot_put_range(f, 'y', &ay);
    if (p->ticks && n)
        cli_plot_put_data_ticks(f, &ax, x, n, width);
    else if (p->log_x)
        cli_plot_put_ticks(f, "xtics", &ax, width);
    if (!isnan(ax.zero) && n > 1) put_break(f, &ax, x[1]);
    cli_plot_put_ticks(f, "ytics", &ay, CLI_PLOT_UPRIGHT);
    put_numbers_at_points(f, p, &ax, &ay, width, key);
    for (int i = 0; i < p->n_curves; i++) put_numbers(f, p, i, &ax);
    put_plots(f, p, key);
    free(x);
}

// ---- heat maps ----

static size_t longest_name(const cli_panel *p) {
    size_t longest = 0;
    for (int i = 0; i < p->n_names; i++)
        if (strlen(p->x_names[i]) > longest) longest = strlen(p->x_names[i]);
    return longest;
}

// Angle of the names of columns: 35 degrees, or 90 if the first name would begin left of the panel.
static int name_angle(const cli_panel *p) {
    double half_group = 0.5 * (PANEL - LEFT - COLOURS) / (p->n_names ? p->n_names : 1);
    return 0.82 * cli_plot_text_width(longest_name(p), SMALL) > LEFT + half_group ? 90 : 35;
}

// Puts the name of each group of columns below its middle, and a line between groups.
static void put_groups(FILE *f, const cli_panel *p) {
    double width = (double)p->n_x / p->n_names;
    fprintf(f, "set xtics rotate by %d right offset 0,0 scale 0 font ',%d' (", name_angle(p), SMALL);
    for (int i = 0; i < p->n_names; i++) {
        if (i) fprintf(f, ", ");
        put_quoted(f, p->x_names[i]);
        fprintf(f, " %.9g", (i + 0.5) * width - 0.5);
    }
    fprintf(f, ")\n");
    for (int i = 1; i < p->n_names; i++)
        fprintf(f, "set arrow from %.9g, graph 0 to %.9g, graph 1 nohead front lc rgb 'white' lw 2\n", i * width - 0.5,
                i * width - 0.5);
}

// The scale of the colours. It is logarithmic if the cells differ by more than a factor of 30, over at most three decades.
static cli_axis colour_axis(const cli_panel *p) {
    double low = INFINITY, high = 0;
    for (int i = 0; i < p->n_x * p->n_y; i++) {
        double z = p->cells[i];
        if (isfinite(z) && z > 0) low = fmin(low, z), high = fmax(high, z);
    }
    if (high > 30 * low) return (cli_axis){fmax(low, high / 1000), high, NAN, 1};
    return (cli_axis){0, high > 0 ? high : 1, NAN, 0};
}

// Pixels right of a heat map.
static int colours_width(const cli_panel *p) {
    cli_axis z = colour_axis(p);
    int width = (int)cli_plot_ticks_width(&z, CLI_PLOT_UPRIGHT) + 8 + BAR + 12 + 2 * FONT;
    return width > COLOURS ? width : COLOURS;
}

static void put_heat_map(FILE *f, const layout *l, const cli_panel *p, const place *at) {
    cli_axis z = colour_axis(p);
    char where[64];
    fprintf(f, "set yrange [%d.5:-0.5]\nset xrange [-0.5:%d.5]\nset ytics 0,%d scale 0\nunset grid\nset border 15\n",
            p->n_y - 1, p->n_x - 1, (p->n_y + 15) / 16);
    fprintf(f, "set palette defined (");
    for (int i = 0; i < CLI_PLOT_SHADES; i++) fprintf(f, "%s%d '#%06x'", i ? ", " : "", i, cli_plot_shades[i]);
    fprintf(f, ")\nset cbrange [%.9g:%.9g]\n", z.low, z.high);
    fprintf(f, "set colorbox user origin screen %.6f, screen %.6f size screen %.6f, screen %.6f\n",
            (at->right + 8.0) / l->width, 1 - (double)(at->top + HEIGHT) / l->height, (double)BAR / l->width,
            (double)HEIGHT / l->height);
    snprintf(where, sizeof where, "screen %.6f, graph 0.5", (at->to - 0.8 * FONT) / l->width);
    put_label(f, 4, p->z_label, where, 90);
    if (z.log) fprintf(f, "set logscale cb\n");
    cli_plot_put_ticks(f, "cbtics", &z, CLI_PLOT_UPRIGHT);
    // A cell that was not measured shows this ground.
    fprintf(f, "set object rectangle from graph 0, graph 0 to graph 1, graph 1 behind fc rgb '#dddddd' fs solid noborder\n");
    if (p->n_names) put_groups(f, p);
    fprintf(f, "$cells << EOD\n");
    for (int y = 0; y < p->n_y; y++)
        for (int x = 0; x < p->n_x; x++) {
            double cell = p->cells[y * p->n_x + x];
            const char *after = x + 1 < p->n_x ? " " : "\n";
            if (isfinite(cell))
                fprintf(f, "%.9g%s", fmax(cell, z.low), after);
            else
                fprintf(f, "NaN%s", after);
        }
    fprintf(f, "EOD\nplot $cells matrix with image pixels notitle\n");
}

// ---- the picture ----

static int has_curves_of(const cli_panel *key, const cli_panel *p) {
    if (key->cells || p->cells || key->fit || p->fit || key->n_curves < p->n_curves) return 0;
    for (int i = 0; i < p->n_curves; i++) {
        int found = 0;
        for (int j = 0; j < key->n_curves; j++) found |= !strcmp(key->curves[j].name, p->curves[i].name);
        if (!found) return 0;
    }
    return 1;
}

// The panel whose legend serves all panels; -1: none.
static int shared_legend(const cli_panel *panels, int n) {
    int most = 0;
    for (int i = 1; i < n; i++)
        if (panels[i].n_curves > panels[most].n_curves) most = i;
    for (int i = 0; i < n; i++)
        if (n == 1 || !has_curves_of(&panels[most], &panels[i])) return -1;
    return most;
}

static int legend_height(const cli_panel *p, int width) {
    int rows = legend_rows(p, width);
    return rows ? rows * LEGEND_ROW + GAP : 0;
}

// Height of the tick labels of the x axis.
static int x_label_top(const cli_panel *p) {
    double width = cli_plot_text_width(longest_name(p), SMALL);
    return !p->n_names ? TICKS : (int)(GAP + (name_angle(p) == 90 ? width : 0.6 * width));
}

// Pixels left of the plot area.
static int left_width(const cli_panel *p) {
    cli_axis y = cli_plot_y_axis(p);
    int width = (int)cli_plot_ticks_width(&y, CLI_PLOT_UPRIGHT) + 12 + 2 * FONT;
    return !p->cells && width > LEFT ? width : LEFT;
}

// Width of a panel. A legend with a long name and a heat map with many columns or names make a panel wider. n: the panels of
// its row
static int width_of(const layout *l, const cli_panel *p, int n) {
    int entry = entry_width(p), shared = l->shared >= 0, left = left_width(p), right = p->cells ? colours_width(p) : RIGHT,
        width = PANEL + left - LEFT + right - (p->cells ? COLOURS : RIGHT);
    if (p->n_curves && entry > (shared ? n : 1) * width) width = shared ? entry / n : entry;
    if (2 * p->n_x + left + right > width) width = 2 * p->n_x + left + right;
    if (p->n_names * 16 + left + right > width) width = p->n_names * 16 + left + right;
    return width < WIDEST ? width : WIDEST;
}

static int row_end(const layout *l, int i) { // of the row that begins with panel i
    do i++;
    while (i < l->n && !l->panels[i].new_row);
    return i;
}

// Places the panels from..to-1 side by side, from `top` on. Returns the end of the row.
static int lay_out_row(layout *l, int from, int to, int top) {
    int x = 0, height = 0;
    for (int i = from; i < to; i++) {
        const cli_panel *p = &l->panels[i];
        int width = width_of(l, p, to - from), under = x_label_top(p) + X_LABEL + GAP;
        if (l->shared < 0) under += legend_height(p, width);
        if (under > height) height = under;
        l->at[i] = (place){.from = x, .to = x + width, .left = x + left_width(p), .top = top + TOP};
        l->at[i].right = x + width - (p->cells ? colours_width(p) : RIGHT);
        x += width;
    }
    if (x > l->width) l->width = x;
    return top + TOP + HEIGHT + height;
}

static layout lay_out(const char *title, const cli_panel *panels, int n) {
    layout l = {.panels = panels, .n = n, .shared = shared_legend(panels, n), .height = *title ? TITLE : 0};
    for (int i = 0; i < n; i = row_end(&l, i)) l.height = lay_out_row(&l, i, row_end(&l, i), l.height);
    l.legend = l.height - GAP / 2;
    if (l.shared >= 0) l.height += legend_height(&panels[l.shared], l.width);
    return l;
}

const char *cli_plot_ending(const char *file) {
    static const char *const endings[] = {".svg", ".pdf", ".png"};
    size_t n = strlen(file);
    for (int i = 0; i < 3; i++)
        if (n > 4 && !strcmp(file + n - 4, endings[i])) return endings[i];
    return NULL;
}

static void put_terminal(FILE *f, const char *file, const layout *l) {
    if (l->svg)
        fprintf(f, "set terminal svg size %d,%d font 'sans-serif,%d' background 'white'\n", l->width, l->height, FONT);
    else if (!strcmp(cli_plot_ending(file), ".pdf"))
        fprintf(f, "set terminal pdfcairo size %.3fin,%.3fin font 'sans,%d' fontscale %.4f background 'white'\n",
                (double)l->width / PIXELS_PER_INCH, (double)l->height / PIXELS_PER_INCH, FONT, 72.0 / PIXELS_PER_INCH * 0.75);
    else
        fprintf(f,
                "if (strstrt(GPVAL_TERMINALS, 'pngcairo')) { set terminal pngcairo size %d,%d font 'sans,%d' fontscale 1.5 "
                "linewidth 2 pointscale 3.3 dashlength 0.6 background 'white' } else { set terminal png size %d,%d }\n",
                2 * l->width, 2 * l->height, FONT, l->width, l->height);
}

// Titles and labels stand at fixed places, so that they never meet the tick labels.
static void put_texts(FILE *f, const layout *l, const cli_panel *p, const place *place) {
    char at[64];
    snprintf(at, sizeof at, "graph 0.5, screen %.6f", 1 - (place->top - 0.8 * FONT) / l->height);
    put_label(f, 1, p->title, at, 0);
    snprintf(at, sizeof at, "graph 0.5, screen %.6f",
             1 - (double)(place->top + HEIGHT + x_label_top(p) + 0.5 * X_LABEL) / l->height);
    put_label(f, 2, p->x_label, at, 0);
    snprintf(at, sizeof at, "screen %.6f, graph 0.5", (place->from + 0.8 * FONT) / l->width);
    put_label(f, 3, p->y_label, at, 90);
}

static void put_panel(FILE *f, const layout *l, int i) {
    const cli_panel *p = &l->panels[i];
    const place *at = &l->at[i];
    fprintf(f, "reset\nset border 3\nset tics out nomirror scale 0.7\nset xtics offset 0,0.3\nset grid lc rgb '#dddddd' lw 1 "
               "dt 1\nset errorbars 0.6\n");
    fprintf(f,
            "set lmargin at screen %.6f\nset rmargin at screen %.6f\nset tmargin at screen %.6f\nset bmargin at screen %.6f\n",
            (double)at->left / l->width, (double)at->right / l->width, 1 - (double)at->top / l->height,
            1 - (double)(at->top + HEIGHT) / l->height);
    put_texts(f, l, p, at);
    if (p->cells) {
        put_heat_map(f, l, p, at);
        return;
    }
    if (l->shared < 0)
        put_legend(f, l, p, at->from, at->to, at->top + HEIGHT + TICKS + X_LABEL + GAP / 2);
    else if (i == l->shared)
        put_legend(f, l, p, 0, l->width, l->legend);
    else
        fprintf(f, "unset key\n");
    put_curves(f, p, at->right - at->left, l->shared < 0 ? p : &l->panels[l->shared]);
}

void cli_plot_script(FILE *f, const char *file, const char *title, const cli_panel *panels, int n) {
    SL_CHECK(n > 0 && n <= CLI_PLOT_PANELS);
    layout l = lay_out(title, panels, n);
    l.svg = !strcmp(cli_plot_ending(file), ".svg");
    put_terminal(f, file, &l);
    fprintf(f, "set termoption noenhanced\nset output ");
    put_quoted(f, file);
    fprintf(f, "\nset multiplot");
    if (*title) {
        fprintf(f, " title ");
        put_quoted(f, title);
        fprintf(f, " font ',%.3g'", fmin(FONT, l.width / cli_plot_text_width(strlen(title), 1)));
    }
    fprintf(f, "\n");
    for (int i = 0; i < n; i++) put_panel(f, &l, i);
    fprintf(f, "unset multiplot\nset output\n");
}
