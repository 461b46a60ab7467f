// engine/cli/output/plot_script.c - see plot_script.h. The layout: panels side by side, below each one its legend, or one
// legend for all panels if they show the same curves. A panel is 480 pixels wide with text of 14 pixels, so that the text has 7
// points where the panel is as wide as a column of a paper (3.4 inches).
#include "engine/cli/output/plot_script.h"
#include "engine/cli/output/plot_style.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { // pixels
    PANEL = 480,
    WIDEST = 1200, // of a panel that grows with its legend
    LEFT = 78,     // tick labels and label of the y axis
    RIGHT = 18,
    COLOURS = 96, // right of a heat map: the bar of colours
    TITLE = 28,   // of the picture
    TOP = 34,     // title of a panel
    HEIGHT = 290, // of the plot area
    TICKS = 30,   // tick labels of the x axis
    X_LABEL = 22,
    GAP = 12, // above and below the legend
    LEGEND_ROW = 19,
    SAMPLE = 54, // line and marker in the legend
    FONT = 14,
    SMALL = 12, // legend
};
enum { PIXELS_PER_INCH = 141 };
static const double ADVANCE = 0.57; // width of a character in units of the font's size, at most, for wide fonts

typedef struct axis {
    double low, high; // NaN: gnuplot chooses
    double zero;      // logarithmic: where 0 is drawn; NaN: there is no 0
} axis;

typedef struct layout {
    int left[CLI_PLOT_PANELS + 1]; // of each panel; the last one: the width of the picture
    int width, height, below;      // below: height under the plot areas
    int shared;                    // one legend for all panels
    int svg;                       // 1: gnuplot does not know the widths of characters
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

static double text_width(size_t n, int font) {
    return ADVANCE * font * (double)n;
}

// The entry of a curve in the legend.
static void entry_of(const cli_panel *p, const cli_curve *c, char buf[256]) {
    double slope = p->fit ? cli_plot_slope(c->points, c->n, NULL) : NAN;
    snprintf(buf, 256, "%.200s", c->name);
    if (isfinite(slope)) snprintf(buf + strlen(buf), 256 - strlen(buf), ", slope %.2f", slope);
}

// ---- ranges ----

static int drawable(const cli_panel *p, const cli_point *at) {
    return isfinite(at->x) && isfinite(at->y) && (!p->log_x || at->x >= 0) && (!p->log_y || at->y > 0);
}

static int has_bar(const cli_panel *p, const cli_point *at) {
    return drawable(p, at) && isfinite(at->low) && isfinite(at->high) && (!p->log_y || at->low > 0);
}

static int by_value(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

// The different x of all points that are drawn, ascending; the caller frees the array. *n: their number. NULL: none, or no
// memory.
static double *all_x(const cli_panel *p, int *n) {
    int total = 0;
    for (int i = 0; i < p->n_curves; i++) total += p->curves[i].n;
    double *x = malloc((total ? total : 1) * sizeof *x);
    *n = 0;
    for (int i = 0; x && i < p->n_curves; i++)
        for (int j = 0; j < p->curves[i].n; j++)
            if (drawable(p, &p->curves[i].points[j])) x[(*n)++] = p->curves[i].points[j].x;
    int kept = 0;
    if (x) qsort(x, *n, sizeof *x, by_value);
    for (int i = 0; i < *n; i++)
        if (!kept || x[i] > x[kept - 1]) x[kept++] = x[i];
    *n = kept;
    return x;
}

static axis log_axis(double low, double high, double margin) {
    double k = low < high ? pow(high / low, margin) : 1.5;
    return (axis){low / k, high * k, NAN};
}

static axis x_axis(const cli_panel *p, const double *x, int n) {
    axis a = {NAN, NAN, NAN};
    if (!n) return a;
    if (!p->log_x) {
        double margin = x[n - 1] > x[0] ? 0.06 * (x[n - 1] - x[0]) : 1;
        return (axis){x[0] - margin, x[n - 1] + margin, NAN};
    }
    double zero = NAN;
    if (x[0] == 0 && n > 1) { // one step left of the smallest depth, but far enough for the label
        double step = n > 2 ? x[2] / x[1] : 2, least = pow(x[n - 1] / x[1], 0.1);
        zero = x[1] / fmax(fmin(step, 4), fmax(least, 1.5));
    } else if (x[0] == 0) {
        zero = 1;
    }
    a = log_axis(isnan(zero) ? x[0] : zero, n > 1 ? x[n - 1] : isnan(zero) ? x[0] : zero, 0.05);
    a.zero = zero;
    return a;
}

static axis y_axis(const cli_panel *p) {
    double low = INFINITY, high = -INFINITY;
    for (int i = 0; i < p->n_curves; i++)
        for (int j = 0; j < p->curves[i].n; j++) {
            const cli_point *at = &p->curves[i].points[j];
            if (!drawable(p, at)) continue;
            int bar = has_bar(p, at);
            low = fmin(low, bar ? fmin(at->low, at->y) : at->y);
            high = fmax(high, bar ? fmax(at->high, at->y) : at->y);
        }
    if (low > high) return (axis){NAN, NAN, NAN};
    if (p->log_y) return log_axis(low, high, 0.06);
    if (p->percent) { // the curves lie close to 100
        low = fmax(0, 10 * floor((low - 1) / 10));
        return (axis){low, 100 + 0.02 * (100 - low), NAN};
    }
    return (axis){low < 0 ? NAN : 0, high > 0 ? 1.06 * high : NAN, NAN};
}

static void put_range(FILE *f, char which, const axis *a) {
    char low[32] = "*", high[32] = "*";
    if (isfinite(a->low)) snprintf(low, sizeof low, "%.9g", a->low);
    if (isfinite(a->high)) snprintf(high, sizeof high, "%.9g", a->high);
    fprintf(f, "set %crange [%s:%s]\n", which, low, high);
}

// ---- ticks ----

static int tick_label(double x, char buf[32]) {
    int thousands = x >= 1024 && fmod(x, 1024) == 0;
    return snprintf(buf, 32, "%.6g%s", thousands ? x / 1024 : x, thousands ? "k" : "");
}

static int is_power_of_two(double x) {
    int exponent;
    return x > 0 && frexp(x, &exponent) == 0.5;
}

// Puts a tick at each x, and a label where the labels do not overlap; 0, the last x and powers of two come first.
static void put_data_ticks(FILE *f, const cli_panel *p, const axis *a, const double *x, int n, int width) {
    double *at = malloc((n ? n : 1) * sizeof *at), *half = calloc(n ? n : 1, sizeof *half); // middle and half width of labels
    char label[32];
    for (int i = 0; at && half && i < n; i++) {
        double v = p->log_x && x[i] == 0 ? a->zero : x[i];
        at[i] = width * (p->log_x ? log(v / a->low) / log(a->high / a->low) : (v - a->low) / (a->high - a->low));
    }
    for (int round = 0; at && half && round < 2; round++)
        for (int i = n - 1; i >= 0; i--) {
            if (half[i] || (round == 0 && !is_power_of_two(x[i]) && x[i] && i < n - 1)) continue;
            double mine = 0.5 * (text_width(tick_label(x[i], label), FONT) + 6);
            int free_place = 1;
            for (int j = 0; j < n; j++) free_place &= !half[j] || fabs(at[i] - at[j]) >= mine + half[j];
            if (free_place) half[i] = mine;
        }
    fprintf(f, "set xtics (");
    for (int i = 0; half && i < n; i++) {
        tick_label(x[i], label);
        fprintf(f, "%s'%s' %.9g", i ? ", " : "", half[i] ? label : "", p->log_x && x[i] == 0 ? a->zero : x[i]);
    }
    fprintf(f, ")\n");
    free(at);
    free(half);
}

static int count_ticks(const axis *a, const double *digits) {
    int n = 0;
    for (int e = (int)floor(log10(a->low)); pow(10, e) <= a->high; e++)
        for (int i = 0; digits[i]; i++) n += digits[i] * pow(10, e) >= a->low && digits[i] * pow(10, e) <= a->high;
    return n;
}

// Ticks of a logarithmic axis at 1, 10, 100, or also at 2 and 5, or at more digits, so that there are at least four labels,
// unless they do not fit into `room` pixels; short ticks without label in between.
static void put_log_ticks(FILE *f, const char *which, const axis *a, int room) {
    static const double sets[][10] = {{1}, {1, 2, 5}, {1, 1.5, 2, 3, 4, 5, 7}, {1, 1.5, 2, 3, 4, 5, 6, 7, 8}},
                        minor[] = {1, 2, 3, 4, 5, 6, 7, 8, 9, 0};
    int set = 0;
    const char *comma = "";
    if (!(a->low > 0 && isfinite(a->high))) return;
    while (set < 3 && count_ticks(a, sets[set]) < 4) set++;
    double widest = text_width((size_t)snprintf(NULL, 0, "%.6g ", a->high), FONT);
    while (set > 0 && count_ticks(a, sets[set]) * widest > room) set--;
    fprintf(f, "set %s (", which);
    for (int level = 0; level < 2; level++)
        for (int e = (int)floor(log10(a->low)); pow(10, e) <= a->high; e++)
            for (const double *digit = level ? minor : sets[set]; *digit; digit++) {
                double x = *digit * pow(10, e);
                if (x < a->low || x > a->high) continue;
                if (level)
                    fprintf(f, "%s'' %.9g 1", comma, x);
                else
                    fprintf(f, "%s'%.6g' %.9g", comma, x, x);
                comma = ", ";
            }
    fprintf(f, ")\n");
}

// Marks the break of the axis between 0 and the smallest positive x.
static void put_break(FILE *f, const axis *a, double smallest) {
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
static void put_numbers(FILE *f, const cli_panel *p, int i, const axis *x) {
    const cli_curve *c = &p->curves[i];
    double scale, slope = p->fit ? cli_plot_slope(c->points, c->n, &scale) : NAN, low = INFINITY, high = 0;
    for (int bars = 0; bars < 2; bars++) {
        fprintf(f, "$%s%d << EOD\n", bars ? "bars" : "points", i);
        for (int j = 0; j < c->n; j++) {
            const cli_point *at = &c->points[j];
            if (bars ? !has_bar(p, at) : !drawable(p, at)) continue;
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
        n += bars ? has_bar(p, at) : drawable(p, at);
    }
    return n;
}

static void put_curve(FILE *f, const cli_panel *p, int i) {
    cli_plot_style s = cli_plot_style_of(p->curves[i].name, variation_of(p, i));
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
    return (int)text_width((size_t)longest_entry(p), SMALL) + SAMPLE;
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

static void put_curves(FILE *f, const cli_panel *p, int width) {
    int n, drawn = 0;
    double *x = all_x(p, &n);
    axis ax = x_axis(p, x, n), ay = y_axis(p);
    if (p->log_x) fprintf(f, "set logscale x\n");
    if (p->log_y) fprintf(f, "set logscale y\n");
    put_range(f, 'x', &ax);
    put_range(f, 'y', &ay);
    if (p->ticks && n)
        put_data_ticks(f, p, &ax, x, n, width);
    else if (p->log_x)
        put_log_ticks(f, "xtics", &ax, width);
    if (p->log_y) put_log_ticks(f, "ytics", &ay, HEIGHT * 4); // labels are four times as wide as high
    if (!isnan(ax.zero) && n > 1) put_break(f, &ax, x[1]);
    for (int i = 0; i < p->n_curves; i++) put_numbers(f, p, i, &ax);
    fprintf(f, "plot ");
    for (int first = 0; first < p->n_curves; first++) // curves of one method together
        for (int i = first; i < p->n_curves && !variation_of(p, first); i++) {
            if (!same_method(p, first, i) || !count_points(p, i, 0)) continue;
            fprintf(f, "%s", drawn++ ? ", \\\n  " : "");
            put_curve(f, p, i);
        }
    fprintf(f, "%s\n", drawn ? "" : "NaN notitle");
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
    return 0.82 * text_width(longest_name(p), SMALL) > LEFT + half_group ? 90 : 35;
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
static axis colour_axis(const cli_panel *p, int *is_log) {
    double low = INFINITY, high = 0;
    for (int i = 0; i < p->n_x * p->n_y; i++) {
        double z = p->cells[i];
        if (isfinite(z) && z > 0) low = fmin(low, z), high = fmax(high, z);
    }
    *is_log = high > 30 * low;
    if (*is_log) return (axis){fmax(low, high / 1000), high, NAN};
    return (axis){0, high > 0 ? high : 1, NAN};
}

static void put_heat_map(FILE *f, const layout *l, const cli_panel *p, int right, int top) {
    int is_log;
    axis z = colour_axis(p, &is_log);
    fprintf(f, "set yrange [%d.5:-0.5]\nset xrange [-0.5:%d.5]\nset ytics 0,%d scale 0\nunset grid\nset border 15\n",
            p->n_y - 1, p->n_x - 1, (p->n_y + 15) / 16);
    fprintf(f, "set palette defined (");
    for (int i = 0; i < CLI_PLOT_SHADES; i++) fprintf(f, "%s%d '#%06x'", i ? ", " : "", i, cli_plot_shades[i]);
    fprintf(f, ")\nset cbrange [%.9g:%.9g]\n", z.low, z.high);
    fprintf(f, "set cblabel ");
    put_quoted(f, p->z_label);
    fputc('\n', f);
    fprintf(f, "set colorbox user origin screen %.6f, screen %.6f size screen %.6f, screen %.6f\n", (right + 8.0) / l->width,
            1 - (double)(top + HEIGHT) / l->height, 16.0 / l->width, (double)HEIGHT / l->height);
    if (is_log) {
        fprintf(f, "set logscale cb\n");
        put_log_ticks(f, "cbtics", &z, HEIGHT * 4);
    }
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

static int same_curves(const cli_panel *a, const cli_panel *b) {
    if (a->cells || b->cells || a->n_curves != b->n_curves || a->fit || b->fit) return 0;
    for (int i = 0; i < a->n_curves; i++)
        if (strcmp(a->curves[i].name, b->curves[i].name)) return 0;
    return 1;
}

// Height of the tick labels of the x axis.
static int x_label_top(const cli_panel *p) {
    double width = text_width(longest_name(p), SMALL);
    return !p->n_names ? TICKS : (int)(GAP + (name_angle(p) == 90 ? width : 0.6 * width));
}

// Height under a plot area: tick labels, label of the axis, legend.
static int below(const cli_panel *p, int width) {
    int rows = legend_rows(p, width);
    return x_label_top(p) + X_LABEL + GAP + (rows ? rows * LEGEND_ROW + GAP : 0);
}

// Width of a panel. A legend with a long name and a heat map with many columns or names make a panel wider.
static int width_of(const layout *l, const cli_panel *p, int n) {
    int entry = entry_width(p), frame = LEFT + COLOURS, width = PANEL;
    if (p->n_curves && entry > (l->shared ? n : 1) * width) width = l->shared ? entry / n : entry;
    if (2 * p->n_x + frame > width) width = 2 * p->n_x + frame;
    if (p->n_names * 16 + frame > width) width = p->n_names * 16 + frame;
    return width < WIDEST ? width : WIDEST;
}

static layout lay_out(const char *title, const cli_panel *panels, int n) {
    layout l = {.shared = n > 1};
    for (int i = 1; i < n; i++) l.shared &= same_curves(&panels[0], &panels[i]);
    for (int i = 0; i < n; i++) l.left[i + 1] = l.left[i] + width_of(&l, &panels[i], n);
    l.width = l.left[n];
    for (int i = 0; i < n; i++) {
        int height = below(&panels[i], l.shared ? l.width : l.left[i + 1] - l.left[i]);
        if (height > l.below) l.below = height;
    }
    l.height = (*title ? TITLE : 0) + TOP + HEIGHT + l.below;
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
static void put_texts(FILE *f, const layout *l, const cli_panel *p, int left, int top) {
    char at[64];
    snprintf(at, sizeof at, "graph 0.5, screen %.6f", 1 - (top - 0.8 * FONT) / l->height);
    put_label(f, 1, p->title, at, 0);
    snprintf(at, sizeof at, "graph 0.5, screen %.6f", 1 - (double)(top + HEIGHT + x_label_top(p) + 0.5 * X_LABEL) / l->height);
    put_label(f, 2, p->x_label, at, 0);
    snprintf(at, sizeof at, "screen %.6f, graph 0.5", (left - LEFT + 0.8 * FONT) / l->width);
    put_label(f, 3, p->y_label, at, 90);
}

static void put_panel(FILE *f, const layout *l, const cli_panel *p, int i, int top) {
    int left = l->left[i] + LEFT, right = l->left[i + 1] - (p->cells ? COLOURS : RIGHT);
    fprintf(f, "reset\nset border 3\nset tics out nomirror scale 0.7\nset xtics offset 0,0.3\nset grid lc rgb '#dddddd' lw 1 "
               "dt 1\nset errorbars 0.6\n");
    fprintf(
        f, "set lmargin at screen %.6f\nset rmargin at screen %.6f\nset tmargin at screen %.6f\nset bmargin at screen %.6f\n",
        (double)left / l->width, (double)right / l->width, 1 - (double)top / l->height, 1 - (double)(top + HEIGHT) / l->height);
    put_texts(f, l, p, left, top);
    if (p->cells) {
        put_heat_map(f, l, p, right, top);
        return;
    }
    int legend_top = top + HEIGHT + TICKS + X_LABEL + GAP / 2;
    if (!l->shared)
        put_legend(f, l, p, l->left[i], l->left[i + 1], legend_top);
    else if (i == 0)
        put_legend(f, l, p, 0, l->width, legend_top);
    else
        fprintf(f, "unset key\n");
    put_curves(f, p, right - left);
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
        fprintf(f, " font ',%.3g'", fmin(FONT, l.width / (ADVANCE * (double)strlen(title))));
    }
    fprintf(f, "\n");
    for (int i = 0; i < n; i++) put_panel(f, &l, &panels[i], i, (*title ? TITLE : 0) + TOP);
    fprintf(f, "unset multiplot\nset output\n");
}
