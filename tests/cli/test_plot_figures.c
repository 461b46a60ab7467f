// tests/cli/test_plot_figures.c - pictures of random panels: the script and the data file hold what the rules of
// cli/output/plot*.h say. The rules are written here a second time. test_cli_plot.c has examples and gnuplot.
#include "cli/output/plot_axes.h"
#include "cli/output/plot_data.h"
#include "cli/output/plot_script.h"
#include "cli/output/plot_style.h"
#include "tests/support/run_cli.h"

#include <math.h>
#include <stdarg.h>
#include <stdlib.h>

enum { PANELS = 4, CURVES = 5, POINTS = 7, CELLS = 60, WIDTH = 480, LEFT = 78, RIGHT = 18 };

typedef struct picture {
    cli_panel panels[PANELS];
    cli_curve curves[PANELS][CURVES];
    cli_point points[PANELS][CURVES][POINTS];
    double cells[PANELS][CELLS];
    int n;
} picture;

// Two words of each: variations of one method, a spare style, a dotted line without a marker.
static const char *const names[] = {"santa-is:S=64",
                                    "dense",
                                    "santa-is:S=256, batch 4",
                                    "unknown",
                                    "bytes of K+V",
                                    "santa-is with a name that is so long that a legend of several columns has no room for it"};
static const char *const groups[] = {"topk:k=8", "it's", "santa"}, *const quoted[] = {"topk:k=8", "it''s", "santa"},
                         *const long_groups[] = {"santa-is with a name that is so long that it stands upright below its group"};

static double some(double least, double factor) { // with 4 digits, so that a data file holds it exactly
    char text[32];
    snprintf(text, sizeof text, "%.4g", least * pow(factor, test_draw()));
    return atof(text);
}

static cli_point some_point(double x, int k) {
    double y = test_below(9)   ? some(0.01, k % 3 ? 2000 : 1.5)
               : test_below(2) ? (double)NAN
                               : -1,
           low = y * (1 - 0.5 * test_draw());
    cli_point p = {x, y, NAN, NAN, test_below(2) ? 1 << test_below(12) : test_below(2) ? 0.0 : (double)NAN};
    if (test_below(2))
        p.low = test_below(6) ? low : (double)NAN,
        p.high = test_below(6) ? y * (1 + test_draw() * test_draw() * 9) : (double)INFINITY;
    return p;
}

static void make(picture *m, int k) {
    *m = (picture){.n = 1 + k % PANELS};
    for (int i = 0; i < m->n; i++) {
        cli_panel *p = &m->panels[i];
        *p = (cli_panel){.title = "a title", .x_label = "sizes", .y_label = "times", .z_label = "errors"};
        p->new_row = test_below(3) == 0;
        if (test_below(5) == 0) {
            p->n_names = 1 + test_below(3), p->n_x = p->n_names * (1 + test_below(3)), p->n_y = 1 + test_below(6),
            p->x_names = p->n_names == 1 && test_below(2) ? long_groups : groups;
            for (int c = 0; c < CELLS; c++)
                m->cells[i][c] = test_below(8) ? some(0.001, i % 2 ? 20 : 5e4) : test_below(2) ? 0.0 : (double)NAN;
            p->cells = m->cells[i];
            continue;
        }
        int *flags[] = {&p->log_x, &p->log_y, &p->lines, &p->ticks, &p->percent};
        for (int j = 0; j < 5; j++) *flags[j] = test_below(2);
        p->fit = p->log_x && p->log_y && test_below(3) == 0;
        p->curves = m->curves[i], p->n_curves = 1 + test_below(CURVES);
        for (int c = 0, first = test_below(2); c < p->n_curves; c++) {
            cli_curve *curve = &m->curves[i][c];
            double x = test_below(2) ? 0 : 1 << test_below(9);
            snprintf(curve->name, sizeof curve->name, "%s", names[first + c]);
            curve->points = m->points[i][c], curve->n = 1 + test_below(POINTS);
            for (int j = 0; j < curve->n; j++, x = x ? x * (1 + test_below(3)) + test_below(2) : 1 << test_below(7))
                curve->points[j] = some_point(x, k);
        }
    }
}

// ---- what is drawn ----

static int is_drawn(const cli_panel *p, const cli_point *at) {
    return isfinite(at->x) && isfinite(at->y) && (at->x >= 0 || !p->log_x) && (at->y > 0 || !p->log_y);
}

static int has_bar(const cli_panel *p, const cli_point *at) {
    return is_drawn(p, at) && isfinite(at->low) && isfinite(at->high) && (at->low > 0 || !p->log_y);
}

static int by_size(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return x < y ? -1 : x > y;
}

static int different_x(const cli_panel *p, double *x) {
    int n = 0, kept = 0;
    for (int c = 0; c < p->n_curves; c++)
        for (int j = 0; j < p->curves[c].n; j++)
            if (is_drawn(p, &p->curves[c].points[j])) x[n++] = p->curves[c].points[j].x;
    qsort(x, (size_t)n, sizeof *x, by_size);
    for (int i = 0; i < n; i++)
        if (i == 0 || x[i] != x[i - 1]) x[kept++] = x[i];
    return kept;
}

static cli_axis log_range(double low, double high, double margin) {
    double k = low == high ? 1.5 : pow(high / low, margin);
    return (cli_axis){low / k, high * k, NAN, 1};
}

static cli_axis x_range(const cli_panel *p, const double *x, int n) {
    if (!n) return (cli_axis){NAN, NAN, NAN, p->log_x};
    double last = x[n - 1], margin = last > x[0] ? 0.06 * (last - x[0]) : 1, zero = NAN;
    if (!p->log_x) return (cli_axis){x[0] - margin, last + margin, NAN, 0};
    if (x[0] == 0) // a step left of the smallest size: as the next one, 1.5 to 4 times; at least a tenth of the axis
        zero = n == 1 ? 1 : x[1] / fmax(fmin(n == 2 ? 2 : x[2] / x[1], 4), fmax(1.5, pow(last / x[1], 0.1)));
    cli_axis a = log_range(x[0] == 0 ? zero : x[0], last == 0 ? zero : last, 0.05);
    a.zero = zero;
    return a;
}

static cli_axis y_range(const cli_panel *p) {
    double y[CURVES * POINTS], low = INFINITY, high = -INFINITY; // low, high: with bars
    int n = 0;
    for (int c = 0; c < p->n_curves; c++)
        for (int j = 0; j < p->curves[c].n; j++) {
            const cli_point *at = &p->curves[c].points[j];
            if (!is_drawn(p, at)) continue;
            y[n++] = at->y, low = fmin(low, at->y), high = fmax(high, at->y);
            if (has_bar(p, at)) low = fmin(low, at->low), high = fmax(high, at->high);
        }
    if (!n) return (cli_axis){NAN, NAN, NAN, p->log_y};
    qsort(y, (size_t)n, sizeof *y, by_size);
    if (p->log_y) { // bars may be half as long again as the range of the points, or three times as high
        double more = fmax(3, sqrt(y[n - 1] / y[0]));
        return log_range(fmax(low, y[0] / more), fmin(high, y[n - 1] * more), 0.06);
    }
    if (p->percent) {
        double from = fmax(0, 10 * floor((low - 1) / 10));
        return (cli_axis){from, 100 + 0.02 * (100 - from), NAN, 0};
    }
    double range = fmax(0, y[n - 1]) - fmin(0, y[0]);
    low = fmin(0, fmax(low, y[0] - range)), high = fmax(0, fmin(high, y[n - 1] + range));
    return low == high ? (cli_axis){-1, 1, NAN, 0} : (cli_axis){1.06 * low, 1.06 * high, NAN, 0};
}

static double place(const cli_axis *a, double v) {
    return a->log ? log((v == 0 ? a->zero : v) / a->low) / log(a->high / a->low) : (v - a->low) / (a->high - a->low);
}

// ---- the script ----

static double after(const char *text, const char *key) {
    const char *at = strstr(text, key);
    if (!at) FAIL("no %s", key);
    return atof(at + strlen(key));
}

static char expected[1 << 16];
static size_t length;

static void begin(void) {
    length = 0, *expected = 0;
}

static void check_has(const char *text) {
    if (!strstr(text, expected)) FAIL("no\n%s\nin\n%.6000s", expected, text);
}

static void check_near(double got, double want, double close) {
    CHECK_NEAR(got, want, close);
}

static void put(const char *form, ...) __attribute__((format(printf, 1, 2)));
static void put(const char *form, ...) {
    va_list list;
    va_start(list, form);
    length += (size_t)vsnprintf(expected + length, sizeof expected - length, form, list);
    va_end(list);
    CHECK(length < sizeof expected);
}

static void check_range(const char *panel, const char *key, const cli_axis *a) {
    double low, high;
    const char *at = strstr(panel, key);
    CHECK(at != NULL);
    at += strlen(key);
    if (isnan(a->low)) {
        CHECK(!strncmp(at, "[*:*]\n", 6));
        return;
    }
    if (sscanf(at, "[%lf:%lf]", &low, &high) != 2) FAIL("%.80s", at);
    check_near(low, a->low, 1e-8 * fmax(fabs(a->low), a->high)), check_near(high, a->high, 1e-8 * fabs(a->high));
}

static void put_ticks_of(const cli_axis *a, const double *digits, int with_labels, int *n, double *widest) {
    for (int e = -12; e < 13; e++)
        for (int i = 0; digits[i]; i++) {
            double x = digits[i] * pow(10, e);
            char label[32];
            if (x < a->low || x > a->high) continue;
            if (with_labels >= 0)
                put("%s'%s' %.9g%s", *n ? ", " : "", with_labels ? (snprintf(label, 32, "%.6g", x), label) : "", x,
                    with_labels ? "" : " 1");
            if (with_labels)
                *widest = fmax(*widest, cli_plot_text_width((size_t)snprintf(label, 32, "%.6g", x), CLI_PLOT_FONT));
            ++*n;
        }
}

// "set ytics ('1' 1, '2' 2)\n" in `expected`. Returns the width of the widest label.
static double put_round_ticks(const char *name, const cli_axis *a, int room) {
    static const double sets[][10] = {{1}, {1, 2, 5}, {1, 1.5, 2, 3, 4, 5, 7}, {1, 1.5, 2, 3, 4, 5, 6, 7, 8}},
                        all[] = {1, 2, 3, 4, 5, 6, 7, 8, 9, 0};
    double widest = 0, ignored, number = cli_plot_text_width((size_t)snprintf(NULL, 0, "%.6g ", a->high), CLI_PLOT_FONT);
    int n[4] = {0}, set = 0, count = 0;
    begin();
    if (isnan(a->low)) return 0;
    put("set %s (", name);
    if (a->log) {
        for (int i = 0; i < 4; i++) put_ticks_of(a, sets[i], -1, &n[i], &ignored);
        while (set < 3 && n[set] < 4) set++;
        while (set > 0 && n[set] * number > room) set--;
        put_ticks_of(a, sets[set], 1, &count, &widest), put_ticks_of(a, all, 0, &count, &widest);
    } else {
        double step = 0;
        for (int e = -12; e < 13 && !step; e++)
            for (int i = 0; i < 3 && !step; i++)
                if (sets[1][i] * pow(10, e) >= (a->high - a->low) / 8 * (1 - 1e-12)) step = sets[1][i] * pow(10, e);
        for (long i = lround(ceil(a->low / step - 1e-9)); i <= floor(a->high / step + 1e-9); i++) {
            char label[32];
            widest = fmax(widest, cli_plot_text_width((size_t)snprintf(label, 32, "%.6g", (double)i * step), CLI_PLOT_FONT));
            put("%s'%s' %.9g", count++ ? ", " : "", label, (double)i * step);
        }
    }
    put(")\n");
    return widest;
}

// Ticks at all x. Labels of 0, of powers of two and of the last x come first, from the right to the left.
static void put_size_ticks(const cli_axis *a, const double *x, int n, int width) {
    double room[CURVES * POINTS] = {0};
    char label[32];
    for (int all = 0; all < 2; all++)
        for (int i = n - 1; i >= 0; i--) {
            double whole, mine = (cli_plot_text_width((size_t)cli_plot_number(x[i], label), CLI_PLOT_FONT) + 6) / 2;
            int is_first = i == n - 1 || x[i] == 0 || (x[i] > 0 && modf(log2(x[i]), &whole) == 0), is_free = !room[i];
            for (int j = 0; j < n; j++) is_free &= !room[j] || fabs(place(a, x[i]) - place(a, x[j])) * width >= mine + room[j];
            if ((all || is_first) && is_free) room[i] = mine;
        }
    begin();
    put("set xtics (");
    for (int i = 0; i < n; i++) {
        cli_plot_number(x[i], label);
        put("%s'%s' %.9g", i ? ", " : "", room[i] ? label : "", a->log && x[i] == 0 ? a->zero : x[i]);
    }
    put(")\n");
}

// The blocks of a curve.
static void put_blocks(const cli_panel *p, int c, const cli_axis *x) {
    const cli_curve *curve = &p->curves[c];
    begin();
    for (int bars = 0; bars < 2; bars++) {
        put("$%s%d << EOD\n", bars ? "bars" : "points", c);
        for (int j = 0; j < curve->n; j++) {
            const cli_point *at = &curve->points[j];
            if (!(bars ? has_bar(p, at) : is_drawn(p, at))) continue;
            put("%.9g %.9g", at->x == 0 && p->log_x ? x->zero : at->x, at->y);
            if (bars) put(" %.9g %.9g", at->low, at->high);
            put("\n");
        }
        put("EOD\n");
    }
}

static int is_word(const char *a, const char *b) { // names with the same first word
    size_t n = strcspn(a, ":,+ ");
    return n == strcspn(b, ":,+ ") && !strncmp(a, b, n);
}

static cli_plot_style style_in(const cli_panel *key, const char *name) {
    int n = 0, i = 0;
    for (; strcmp(key->curves[i].name, name); i++) n += is_word(key->curves[i].name, name);
    return cli_plot_style_of(name, n);
}

static void entry_of(const cli_panel *p, int c, char entry[256]) {
    double slope = p->fit ? cli_plot_slope(p->curves[c].points, p->curves[c].n, NULL) : (double)NAN;
    snprintf(entry, 256, isfinite(slope) ? "%s, slope %.2f" : "%s", p->curves[c].name, slope);
}

// The command that draws the curves: those of a method together, in the order of their first curves.
static void put_plot(const cli_panel *p, const cli_panel *key) {
    int n = 0, is_put[CURVES] = {0};
    begin();
    put("\nplot ");
    for (int first = 0; first < p->n_curves; first++)
        for (int c = first; c < p->n_curves; c++) {
            const cli_curve *curve = &p->curves[c];
            int drawn = 0, bars = 0;
            char entry[256];
            if (is_put[c] || !is_word(p->curves[first].name, curve->name)) continue;
            is_put[c] = 1;
            for (int j = 0; j < curve->n; j++) drawn += is_drawn(p, &curve->points[j]), bars += has_bar(p, &curve->points[j]);
            if (!drawn) continue;
            cli_plot_style s = style_in(key, curve->name);
            put("%s", n++ ? ", \\\n  " : "");
            if (bars) put("$bars%d using 1:2:3:4 with yerrorbars lc rgb '#%06x' lw 1 pt 0 notitle, ", c, s.rgb);
            if (p->fit && isfinite(cli_plot_slope(curve->points, curve->n, NULL)))
                put("$fit%d using 1:2 with lines lc rgb '#%06x' lw 1 dt %d notitle, ", c, s.rgb, s.dash);
            entry_of(p, c, entry);
            put("$points%d using 1:2 with ", c);
            if (p->lines)
                put("%s lc rgb '#%06x' lw 2 dt %d", s.marker ? "linespoints" : "lines", s.rgb, s.dash);
            else
                put("points lc rgb '#%06x'", s.rgb);
            if (s.marker || !p->lines) put(" pt %d ps 0.9", s.marker);
            put(" title '%s'", entry);
        }
    put("%s\n", n ? "" : "NaN notitle");
}

typedef struct box {
    double x, y, width, height; // middle and size, pixels
} box;

// Numbers beside the points of all curves: at the first of eight places that touches no point, no number and no edge.
static void put_numbers(const cli_panel *p, const cli_panel *key, const cli_axis *x, const cli_axis *y, int width) {
    static const int places[8][2] = {{1, 1}, {1, -1}, {-1, 1}, {-1, -1}, {1, 0}, {-1, 0}, {0, 1}, {0, -1}};
    box taken[2 * CURVES * POINTS];
    int n = 0;
    begin();
    for (int c = 0; c < p->n_curves; c++)
        for (int j = 0; j < p->curves[c].n; j++) {
            const cli_point *at = &p->curves[c].points[j];
            if (is_drawn(p, at)) taken[n++] = (box){width * place(x, at->x), 290 * place(y, at->y), 10, 10};
        }
    for (int c = 0; c < p->n_curves; c++)
        for (int j = 0; j < p->curves[c].n; j++) {
            const cli_point *at = &p->curves[c].points[j];
            char text[32];
            if (!is_drawn(p, at) || !(at->number > 0)) continue;
            double wide = cli_plot_text_width((size_t)cli_plot_number(at->number, text), 11);
            for (int k = 0, is_free = 0; k < 8 && !is_free; k++) {
                int dx = places[k][0], dy = places[k][1];
                box b = {width * place(x, at->x) + dx * (wide / 2 + 6), 290 * place(y, at->y) + dy * (dx ? 8 : 14), wide, 11};
                is_free = b.x >= wide / 2 && b.x <= width - wide / 2 && b.y >= 5.5 && b.y <= 290 - 5.5;
                for (int i = 0; i < n; i++)
                    is_free &= fabs(b.x - taken[i].x) >= (wide + taken[i].width) / 2 ||
                               fabs(b.y - taken[i].y) >= (11 + taken[i].height) / 2;
                if (!is_free) continue;
                taken[n++] = b;
                put("set label '%s' at graph %.6f, graph %.6f center font ',11' tc rgb '#%06x' front\n", text, b.x / width,
                    b.y / 290, style_in(key, p->curves[c].name).rgb);
            }
        }
}

// ---- the layout ----

static int entry_width(const cli_panel *p) {
    size_t longest = 0;
    char entry[256];
    for (int c = 0; c < p->n_curves; c++) entry_of(p, c, entry), longest = strlen(entry) > longest ? strlen(entry) : longest;
    return (int)cli_plot_text_width(longest, 12) + 54;
}

static int legend_rows(const cli_panel *p, int width) {
    int columns = width / entry_width(p) < 1 ? 1 : width / entry_width(p);
    return (p->n_curves + columns - 1) / columns;
}

// The panel whose legend serves all panels, because it has all curves; -1: none.
static int shared_legend(const picture *m) {
    int most = 0;
    for (int i = 0; i < m->n; i++)
        if (m->panels[i].n_curves > m->panels[most].n_curves) most = i;
    for (int i = 0; i < m->n; i++) {
        const cli_panel *p = &m->panels[i], *key = &m->panels[most];
        if (m->n == 1 || p->cells || p->fit || key->fit) return -1;
        for (int c = 0; c < p->n_curves; c++) {
            int found = 0;
            for (int k = 0; k < key->n_curves; k++) found |= !strcmp(p->curves[c].name, key->curves[k].name);
            if (!found) return -1;
        }
    }
    return most;
}

static void check_curves(const cli_panel *p, const cli_panel *key, const char *text, int width) {
    double x[CURVES * POINTS];
    int n = different_x(p, x);
    cli_axis ax = x_range(p, x, n), ay = y_range(p);
    CHECK((strstr(text, "set logscale x\n") != NULL) == p->log_x && (strstr(text, "set logscale y\n") != NULL) == p->log_y);
    check_range(text, "set xrange ", &ax), check_range(text, "set yrange ", &ay);
    if (p->ticks && n)
        put_size_ticks(&ax, x, n, width), check_has(text);
    else if (p->log_x)
        put_round_ticks("xtics", &ax, width), check_has(text);
    else
        CHECK_LACKS(text, "set xtics (");
    put_round_ticks("ytics", &ay, 4 * 290), check_has(text);
    if (n > 1 && !isnan(ax.zero))
        check_near(after(text, "set label '//' at "), sqrt(ax.zero * x[1]), 1e-6 * x[1]);
    else
        CHECK_LACKS(text, "'//'");
    if (n) put_numbers(p, key, &ax, &ay, width), check_has(text);
    if (n && !*expected) CHECK_LACKS(text, "center font ',11'");
    for (int c = 0; c < p->n_curves; c++) put_blocks(p, c, &ax), check_has(text);
    for (int c = 0; c < p->n_curves; c++) {
        double scale, low = INFINITY, high = 0, slope = cli_plot_slope(p->curves[c].points, p->curves[c].n, &scale);
        if (!p->fit || !isfinite(slope)) continue;
        for (int j = 0; j < p->curves[c].n; j++) {
            const cli_point *at = &p->curves[c].points[j];
            if (is_drawn(p, at) && at->x > 0) low = fmin(low, at->x), high = fmax(high, at->x);
        }
        begin();
        put("$fit%d << EOD\n%.9g %.9g\n%.9g %.9g\nEOD\n", c, low, scale * pow(low, slope), high, scale * pow(high, slope));
        check_has(text);
    }
    put_plot(p, key), check_has(text);
}

static void check_map(const cli_panel *p, const char *text) {
    double least = INFINITY, most = 0, low, high;
    for (int i = 0; i < p->n_x * p->n_y; i++)
        if (p->cells[i] > 0) least = fmin(least, p->cells[i]), most = fmax(most, p->cells[i]);
    int is_log = most > 30 * least; // at most three decades
    cli_axis z = {is_log ? fmax(least, most / 1000) : 0, most > 0 ? most : 1, NAN, is_log};
    check_range(text, "set cbrange ", &z);
    CHECK((strstr(text, "set logscale cb\n") != NULL) == is_log);
    put_round_ticks("cbtics", &z, 4 * 290), check_has(text);
    begin();
    put("$cells << EOD\n");
    for (int i = 0; i < p->n_x * p->n_y; i++) {
        low = p->cells[i], high = fmax(low, z.low);
        put(isnan(low) ? "NaN%s" : "%2$.9g%1$s", (i + 1) % p->n_x ? " " : "\n", high);
    }
    put("EOD\nplot $cells matrix with image pixels notitle\n");
    check_has(text);
    begin();
    for (int i = 0; i < p->n_names; i++)
        put("%s'%s' %.9g", i ? ", " : "(", p->x_names == groups ? quoted[i] : *p->x_names,
            (i + 0.5) * p->n_x / p->n_names - 0.5);
    put(")\n");
    for (int i = 1; i < p->n_names; i++)
        put("set arrow from %.9g, graph 0 to %.9g, graph 1 nohead front lc rgb 'white' lw 2\n",
            (double)i * p->n_x / p->n_names - 0.5, (double)i * p->n_x / p->n_names - 0.5);
    check_has(text);
}

typedef struct frame { // pixels; y from the upper edge
    double from, left, right, top, to;
} frame;

static void check_script(const picture *m, char *text) {
    double width = after(text, "svg size "), height = atof(strchr(strstr(text, "svg size "), ',') + 1), widest = 0, end = 28,
           row_top = 28, used = 0; // end: of the row above
    int shared = shared_legend(m);
    frame before = {0};
    text = strstr(text, "reset\n");
    for (int i = 0, n_row = 0; i < m->n; i++) {
        const cli_panel *p = &m->panels[i], *key = shared < 0 ? p : &m->panels[shared];
        char *next = strstr(text + 1, "\nreset\n");
        if (next) *++next = 0;
        if (i && p->new_row) row_top = end, before.to = 0;
        if (i == 0 || p->new_row)
            for (n_row = 1; i + n_row < m->n && !m->panels[i + n_row].new_row;) n_row++;
        frame f = {.left = width * after(text, "set lmargin at screen "),
                   .right = width * after(text, "set rmargin at screen "),
                   .top = height * (1 - after(text, "set tmargin at screen "))};
        f.from = width * after(text, "set label 3 'times' at screen ") - 11.2; // 0.8 letters right of the edge
        cli_axis ay = y_range(p);
        double ticks = p->cells ? 0 : put_round_ticks("ytics", &ay, 4 * 290), left = fmax(LEFT, floor(ticks) + 12 + 28);
        check_near(f.from, before.to, 0.01), check_near(f.left - f.from, left, 0.01), check_near(f.top, row_top + 34, 0.01);
        check_near(height * (1 - after(text, "set bmargin at screen ")), f.top + 290, 0.01);
        check_near(height * (1 - after(text, "set label 1 'a title' at graph 0.5, screen ")), f.top - 11.2, 0.01);
        double under = p->cells ? 0 : 30, last; // tick labels
        if (!p->cells) {
            int entry = entry_width(p), room = shared < 0 ? 1 : n_row, most = (int)(WIDTH + left - LEFT);
            if (entry > room * most) most = entry / room;
            f.to = f.right + RIGHT;
            check_near(f.to - f.from, fmin(most, 1200), 0.01);
            check_near(height * (1 - after(text, "set label 2 'sizes' at graph 0.5, screen ")), f.top + 290 + 30 + 11, 0.01);
            check_curves(p, key, text, (int)lround(f.right - f.left));
        } else {
            f.to = width * after(text, "set label 4 'errors' at screen ") + 11.2;
            check_map(p, text);
            check_near(width * after(text, "set colorbox user origin screen "), f.right + 8, 0.01);
            under = height * (1 - after(text, "set label 2 'sizes' at graph 0.5, screen ")) - f.top - 290 - 11;
            double name = 0; // upright if it does not fit at 35 degrees; then all of its width lies below the cells
            for (int j = 0; j < p->n_names; j++) name = fmax(name, cli_plot_text_width(strlen(p->x_names[j]), 12));
            check_near(under, floor(12 + (p->x_names == groups ? 0.6 : 1) * name), 0.01);
            CHECK_INT(after(text, "set xtics rotate by "), p->x_names == groups ? 35 : 90);
        }
        last = f.top + 290 + under + 22 + 12;
        if (!p->cells && (shared < 0 || i == shared)) {
            int rows = legend_rows(p, (int)lround(shared < 0 ? f.to - f.from : width));
            double at[2];
            const char *legend = strstr(text, "set key at screen ");
            CHECK(legend && sscanf(legend, "set key at screen %lf, screen %lf center", &at[0], &at[1]) == 2);
            CHECK_INT(after(legend, " maxrows "), rows);
            check_near(width * at[0], shared < 0 ? (f.from + f.to) / 2 : width / 2, 0.01);
            if (shared < 0) check_near(height * (1 - at[1]), f.top + 290 + 30 + 22 + 6, 0.01);
            if (shared >= 0) check_near(height * (1 - at[1]) + rows * 19 + 12 + 6, height, 0.01);
            if (shared < 0) last += rows * 19 + 12;
        } else if (!p->cells) {
            CHECK_HAS(text, "\nunset key\n");
        }
        used = shared < 0 ? fmax(last, used) : 0;
        end = fmax(i && !p->new_row ? end : 0, last);
        widest = fmax(widest, f.to), before = f;
        if (next) text = next, *next = 'r';
    }
    check_near(widest, width, 0.01);
    if (shared < 0) check_near(end, height, 0.01);
}

static void script(void) {
    test_draw_from(test_seed);
    for (int k = 0; k < 80; k++) {
        static picture m;
        char *text = NULL;
        size_t size;
        make(&m, k);
        FILE *f = open_memstream(&text, &size);
        CHECK(f != NULL);
        cli_plot_script(f, "x.svg", "pictures", m.panels, m.n);
        fclose(f);
        check_script(&m, text);
        free(text);
    }
}

// ---- the data file ----

static void put_number(double x, const char *before) {
    put(isfinite(x) ? "%s%.9g" : "%sNaN", before, x);
}

// Points have bars if one of them has a bar or a number, and numbers if one of them has a number.
static void put_data(const cli_panel *p) {
    static const char *const words[] = {"log-x", "log-y", "lines", "fit", "ticks", "percent", "new-row"};
    const int flags[] = {p->log_x, p->log_y, p->lines, p->fit, p->ticks, p->percent, p->new_row};
    put("# panel: a title\n# x: sizes; y: times\n");
    if (!p->cells) put("# axes:");
    for (int i = 0; i < 7 && !p->cells; i++)
        if (flags[i]) put(" %s", words[i]);
    put("%s", p->cells ? "# z: errors\n" : "\n");
    for (int c = 0; c < p->n_curves; c++) {
        const cli_curve *curve = &p->curves[c];
        int bars = 0, numbers = 0;
        double scale, slope = cli_plot_slope(curve->points, curve->n, &scale);
        for (int j = 0; j < curve->n; j++) {
            numbers |= curve->points[j].number > 0;
            bars |= isfinite(curve->points[j].low) && isfinite(curve->points[j].high);
        }
        put("# curve: %s\n", curve->name);
        if (p->fit) put("# fit: %.9g * x ** %.9g\n", scale, slope);
        for (int j = 0; j < curve->n; j++) {
            const cli_point *at = &curve->points[j];
            put_number(at->x, ""), put_number(at->y, " ");
            if (bars || numbers) put_number(at->low, " "), put_number(at->high, " ");
            if (numbers) put_number(at->number > 0 ? at->number : (double)NAN, " ");
            put("\n");
        }
        put("\n\n");
    }
    for (int i = 0; i < p->n_names && p->cells; i++) put("# columns: %s\n", p->x_names[i]);
    for (int i = 0; i < p->n_x * p->n_y; i++) put_number(p->cells[i], i % p->n_x ? " " : i ? "\n" : "");
    if (p->cells) put("\n\n\n");
}

static void data(void) {
    test_draw_from(test_seed);
    for (int k = 0; k < 40; k++) {
        static picture m;
        sl_error e;
        size_t n;
        cli_plot_data read;
        make(&m, k);
        CHECK_OK(cli_plot_write(in_tmp("a.dat"), "pictures", m.panels, m.n, &e), e);
        begin();
        put("# title: pictures\n");
        for (int i = 0; i < m.n; i++) {
            put_data(&m.panels[i]);
            if (m.panels[i].cells) m.panels[i].new_row = 0; // a heat map's file has no word for it
        }
        CHECK_STR(slurp(in_tmp("a.dat"), &n), expected);
        CHECK_OK(cli_plot_read(in_tmp("a.dat"), &read, &e), e);
        CHECK_OK(cli_plot_write(in_tmp("b.dat"), read.title, read.panels, read.n, &e), e);
        CHECK_STR(slurp(in_tmp("b.dat"), &n), expected);
        cli_plot_data_free(&read);
    }
}

// A title stands before the first panel; other comments have no effect.
static void comments(void) {
    static const char text[] = "# words\n# title: first\n# panel: p\n# title: second\n# words\n1 2\n";
    sl_error e;
    cli_plot_data read;
    spill(in_tmp("a.dat"), text, sizeof text - 1);
    CHECK_OK(cli_plot_read(in_tmp("a.dat"), &read, &e), e);
    CHECK_STR(read.title, "first");
    CHECK(read.n == 1 && read.panels[0].n_x == 2 && read.panels[0].n_y == 1 && read.panels[0].cells[1] == 2);
    cli_plot_data_free(&read);
}

// A method's name is no prefix: "sant" has a spare style.
static void prefixes(void) {
    for (const cli_plot_style *a = cli_plot_styles; a->name; a++)
        for (int n = 1; n < (int)strlen(a->name); n++) {
            char part[64];
            int is_name = 0;
            snprintf(part, sizeof part, "%.*s", n, a->name);
            for (const cli_plot_style *b = cli_plot_styles; b->name; b++) is_name |= is_word(b->name, part);
            CHECK_STR(cli_plot_style_of(part, 0).name, is_name ? part : "");
        }
}

// One point with a number, in any curve, is enough for the words in the title.
static void numbers(void) {
    for (int i = 0; i < 4; i++) {
        static const char *const kinds[] = {"a", "b", "c"};
        cli_curves curves = {0};
        sl_error e;
        for (int j = 0; j < 6; j++)
            CHECK_OK(cli_curves_add(&curves, kinds[j / 2], (cli_point){j, 1, NAN, NAN, j == 2 * i + 1}, &e), e);
        CHECK((strstr(cli_panel_accuracy(&curves).title, "at points") != NULL) == (i < 3));
        cli_curves_free(&curves);
    }
}

static const test_case cases[] = {{"numbers", 0, numbers},   {"script", 0, script},     {"data", 0, data},
                                  {"comments", 0, comments}, {"prefixes", 0, prefixes}, {0}};
extern const test_suite suite_plot_figures;
const test_suite suite_plot_figures = {"plot_figures", cases};
