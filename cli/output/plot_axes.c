// cli/output/plot_axes.c - see plot_axes.h.
#include "cli/output/plot_axes.h"

#include <math.h>
#include <stdlib.h>

double cli_plot_text_width(size_t n_characters, int font) {
    static const double advance = 0.57; // width of a character in units of the font's size, at most, for wide fonts
    return advance * font * (double)n_characters;
}

// ---- ranges ----

int cli_plot_drawable(const cli_panel *p, const cli_point *at) {
    return isfinite(at->x) && isfinite(at->y) && (!p->log_x || at->x >= 0) && (!p->log_y || at->y > 0);
}

int cli_plot_has_bar(const cli_panel *p, const cli_point *at) {
    return cli_plot_drawable(p, at) && isfinite(at->low) && isfinite(at->high) && (!p->log_y || at->low > 0);
}

static int by_value(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

double *cli_plot_all_x(const cli_panel *p, int *n) {
    int total = 0;
    for (int i = 0; i < p->n_curves; i++) total += p->curves[i].n;
    double *x = malloc((total ? total : 1) * sizeof *x);
    *n = 0;
    for (int i = 0; x && i < p->n_curves; i++)
        for (int j = 0; j < p->curves[i].n; j++)
            if (cli_plot_drawable(p, &p->curves[i].points[j])) x[(*n)++] = p->curves[i].points[j].x;
    int kept = 0;
    if (x) qsort(x, *n, sizeof *x, by_value);
    for (int i = 0; i < *n; i++)
        if (!kept || x[i] > x[kept - 1]) x[kept++] = x[i];
    *n = kept;
    return x;
}

static cli_axis log_axis(double low, double high, double margin) {
    double k = low < high ? pow(high / low, margin) : 1.5;
    return (cli_axis){low / k, high * k, NAN, 1};
}

cli_axis cli_plot_x_axis(const cli_panel *p, const double *x, int n) {
    cli_axis a = {NAN, NAN, NAN, p->log_x};
    if (!n) return a;
    if (!p->log_x) {
        double margin = x[n - 1] > x[0] ? 0.06 * (x[n - 1] - x[0]) : 1;
        return (cli_axis){x[0] - margin, x[n - 1] + margin, NAN, 0};
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

typedef struct extent { // of the points, and of the points with their error bars
    double low, high, bar_low, bar_high;
} extent;

static extent extent_of(const cli_panel *p) {
    extent e = {INFINITY, -INFINITY, INFINITY, -INFINITY};
    for (int i = 0; i < p->n_curves; i++)
        for (int j = 0; j < p->curves[i].n; j++) {
            const cli_point *at = &p->curves[i].points[j];
            if (!cli_plot_drawable(p, at)) continue;
            int bar = cli_plot_has_bar(p, at);
            e.low = fmin(e.low, at->y), e.high = fmax(e.high, at->y);
            e.bar_low = fmin(e.bar_low, bar ? fmin(at->low, at->y) : at->y);
            e.bar_high = fmax(e.bar_high, bar ? fmax(at->high, at->y) : at->y);
        }
    return e;
}

cli_axis cli_plot_y_axis(const cli_panel *p) {
    extent e = extent_of(p);
    if (e.low > e.high) return (cli_axis){NAN, NAN, NAN, p->log_y};
    if (p->log_y) { // bars may add half of the points' range on each side, and a factor of 3
        double most = fmax(3, sqrt(e.high / e.low));
        return log_axis(fmax(e.bar_low, e.low / most), fmin(e.bar_high, e.high * most), 0.06);
    }
    if (p->percent) { // the curves lie close to 100
        double low = fmax(0, 10 * floor((e.bar_low - 1) / 10));
        return (cli_axis){low, 100 + 0.02 * (100 - low), NAN, 0};
    }
    double range = fmax(e.high, 0) - fmin(e.low, 0), low = fmin(fmax(e.bar_low, e.low - range), 0),
           high = fmax(fmin(e.bar_high, e.high + range), 0);
    if (low == high) return (cli_axis){-1, 1, NAN, 0};
    return (cli_axis){1.06 * low, 1.06 * high, NAN, 0};
}

double cli_plot_place(const cli_axis *a, double v) {
    if (!a->log) return (v - a->low) / (a->high - a->low);
    return log((v == 0 ? a->zero : v) / a->low) / log(a->high / a->low);
}

void cli_plot_put_range(FILE *f, char which, const cli_axis *a) {
    char low[32] = "*", high[32] = "*";
    if (isfinite(a->low)) snprintf(low, sizeof low, "%.9g", a->low);
    if (isfinite(a->high)) snprintf(high, sizeof high, "%.9g", a->high);
    fprintf(f, "set %crange [%s:%s]\n", which, low, high);
}

// ---- ticks at points ----

int cli_plot_number(double x, char buf[32]) {
    int thousands = x >= 1024 && fmod(x, 1024) == 0;
    return snprintf(buf, 32, "%.6g%s", thousands ? x / 1024 : x, thousands ? "k" : "");
}

static int is_power_of_two(double x) {
    int exponent;
    return x > 0 && frexp(x, &exponent) == 0.5;
}

// Puts a tick at each x, and a label where the labels do not overlap; 0, the last x and powers of two come first.
void cli_plot_put_data_ticks(FILE *f, const cli_axis *a, const double *x, int n, int width) {
    double *at = malloc((n ? n : 1) * sizeof *at), *half = calloc(n ? n : 1, sizeof *half); // middle and half width of labels
    char label[32];
    for (int i = 0; at && half && i < n; i++) at[i] = width * cli_plot_place(a, x[i]);
    for (int round = 0; at && half && round < 2; round++)
        for (int i = n - 1; i >= 0; i--) {
            if (half[i] || (round == 0 && !is_power_of_two(x[i]) && x[i] && i < n - 1)) continue;
            double mine = 0.5 * (cli_plot_text_width((size_t)cli_plot_number(x[i], label), CLI_PLOT_FONT) + 6);
            int free_place = 1;
            for (int j = 0; j < n; j++) free_place &= !half[j] || fabs(at[i] - at[j]) >= mine + half[j];
            if (free_place) half[i] = mine;
        }
    fprintf(f, "set xtics (");
    for (int i = 0; half && i < n; i++) {
        cli_plot_number(x[i], label);
        fprintf(f, "%s'%s' %.9g", i ? ", " : "", half[i] ? label : "", a->log && x[i] == 0 ? a->zero : x[i]);
    }
    fprintf(f, ")\n");
    free(at);
    free(half);
}

// ---- ticks at round numbers ----

static const double digits[][10] = {{1}, {1, 2, 5}, {1, 1.5, 2, 3, 4, 5, 7}, {1, 1.5, 2, 3, 4, 5, 6, 7, 8}},
                    all_digits[] = {1, 2, 3, 4, 5, 6, 7, 8, 9, 0};

static int count_ticks(const cli_axis *a, const double *set) {
    int n = 0;
    for (int e = (int)floor(log10(a->low)); pow(10, e) <= a->high; e++)
        for (int i = 0; set[i]; i++) n += set[i] * pow(10, e) >= a->low && set[i] * pow(10, e) <= a->high;
    return n;
}

// The labels of a logarithmic axis: 1, 10, 100, or also 2 and 5, or more digits, so that there are at least four labels, unless
// they do not fit into `room` pixels.
static const double *digits_of(const cli_axis *a, int room) {
    int set = 0;
    while (set < 3 && count_ticks(a, digits[set]) < 4) set++;
    double widest = cli_plot_text_width((size_t)snprintf(NULL, 0, "%.6g ", a->high), CLI_PLOT_FONT);
    while (set > 0 && count_ticks(a, digits[set]) * widest > room) set--;
    return digits[set];
}

// The distance of the labels of a linear axis: 1, 2 or 5 times a power of ten, for at most eight labels.
static double step_of(const cli_axis *a) {
    double least = (a->high - a->low) / 8, unit = pow(10, floor(log10(least))), part = least / unit;
    return unit * (part <= 1 ? 1 : part <= 2 ? 2 : part <= 5 ? 5 : 10);
}

static int has_ticks(const cli_axis *a) { // 0: gnuplot chooses
    return isfinite(a->low) && isfinite(a->high) && a->low < a->high && (!a->log || a->low > 0);
}

// Calls `put` for each tick. label: 0 is a short tick between labels.
static void for_ticks(const cli_axis *a, int room, void (*put)(void *ctx, double at, int label), void *ctx) {
    if (!a->log) {
        double step = step_of(a);
        if (!(step > 0)) return; // below the smallest number
        for (int i = (int)ceil(a->low / step - 1e-9), last = (int)floor(a->high / step + 1e-9); i <= last; i++)
            put(ctx, i * step, 1);
        return;
    }
    const double *labels = digits_of(a, room);
    for (int label = 1; label >= 0; label--)
        for (int e = (int)floor(log10(a->low)); pow(10, e) <= a->high; e++)
            for (const double *digit = label ? labels : all_digits; *digit; digit++) {
                double x = *digit * pow(10, e);
                if (x >= a->low && x <= a->high) put(ctx, x, label);
            }
}

typedef struct tick_list {
    FILE *f;
    int n;
    double widest;
} tick_list;

static void put_tick(void *ctx, double at, int label) {
    tick_list *list = ctx;
    fprintf(list->f, "%s", list->n++ ? ", " : "");
    if (label)
        fprintf(list->f, "'%.6g' %.9g", at, at);
    else
        fprintf(list->f, "'' %.9g 1", at);
}

static void measure_tick(void *ctx, double at, int label) {
    tick_list *list = ctx;
    if (label) list->widest = fmax(list->widest, cli_plot_text_width((size_t)snprintf(NULL, 0, "%.6g", at), CLI_PLOT_FONT));
}

void cli_plot_put_ticks(FILE *f, const char *name, const cli_axis *a, int room) {
    tick_list list = {.f = f};
    if (!has_ticks(a)) return;
    fprintf(f, "set %s (", name);
    for_ticks(a, room, put_tick, &list);
    fprintf(f, ")\n");
}

double cli_plot_ticks_width(const cli_axis *a, int room) {
    tick_list list = {0};
    if (has_ticks(a)) for_ticks(a, room, measure_tick, &list);
    return list.widest;
}
