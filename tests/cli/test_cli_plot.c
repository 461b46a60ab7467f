// tests/cli/test_cli_plot.c - pictures (cli/output/plot*.h, sleigh plot): exact data files, fitted slopes, styles and,
// if gnuplot is installed, complete pictures: every curve with its name and the colour of its method, all formats, crisp heat
// maps.
#include "attention/attention.h"
#include "cli/output/plot.h"
#include "cli/output/plot_data.h"
#include "cli/output/plot_style.h"
#include "tests/support/run_cli.h"

#include <glob.h>
#include <math.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

enum { N = 4 };
static const double sizes[N] = {64, 128, 256, 1024}, depths[N] = {0, 512, 8192, 32768}, ms[N] = {0.25, 0.5, 2, NAN};

static void add(cli_curves *curves, const char *name, const double *x, const double *y, int n) {
    sl_error e;
    for (int i = 0; i < n; i++) CHECK_OK(cli_curves_add(curves, name, (cli_point){x[i], y[i], NAN, NAN, 0}, &e), e);
}

static int has_gnuplot(void) {
    return system("command -v gnuplot >/dev/null 2>&1") == 0;
}

// Checks that tags open and close in order; incomplete or mixed output breaks this. (No XML parser is linked.)
static void check_svg(const char *path, const char *const *names) {
    enum { DEPTH = 64 };
    size_t n, open[DEPTH][2];
    int depth = 0;
    const char *text = slurp(path, &n);
    CHECK(!strncmp(text, "<?xml", 5) && strlen(text) == n);
    for (const char *p = strchr(text, '<'); p; p = strchr(p, '<')) {
        const char *end = !strncmp(p, "<![CDATA[", 9) ? strstr(p, "]]>")
                          : !strncmp(p, "<!--", 4)    ? strstr(p, "-->")
                                                      : strchr(p, '>');
        if (!end) FAIL("%s: a tag without its end: %.40s", path, p);
        size_t at = (size_t)(p + 1 - text), length = strcspn(p + 1, " \t\r\n/>");
        if (p[1] == '/') {
            CHECK(depth > 0);
            depth--;
            length = strcspn(p + 2, " \t\r\n>");
            CHECK(length == open[depth][1] && !memcmp(text + open[depth][0], p + 2, length));
        } else if (p[1] != '?' && p[1] != '!' && end[-1] != '/') {
            CHECK(depth < DEPTH);
            open[depth][0] = at;
            open[depth++][1] = length;
        }
        p = end;
    }
    CHECK_INT(depth, 0);
    for (; *names; names++) CHECK_HAS(text, *names);
}

static void drawn(const char *name, const char *title, const cli_panel *panels, int n, cli_curves *curves, const char *want,
                  const char *const *names) {
    char svg[256], data[256];
    sl_error e;
    size_t size;
    snprintf(svg, sizeof svg, "%s/%s.svg", test_tmp(), name);
    snprintf(data, sizeof data, "%s/%s.dat", test_tmp(), name);
    CHECK_OK(cli_plot(svg, title, panels, n, &e), e);
    cli_curves_free(curves);
    CHECK(!curves->at && !curves->n);
    CHECK_STR(slurp(data, &size), want);
    if (!has_gnuplot()) TEST_SKIP("data files are right; the pictures need gnuplot");
    check_svg(svg, names);
}

static void latency(void) {
    const double santa[N] = {0.5, 0.5, 1, 3};
    cli_curves curves = {0};
    add(&curves, "dense, batch 1", depths, ms, 2);
    add(&curves, "santa-prop:S=128 <it's \"one\" & a_b>", depths, santa, N);
    add(&curves, "dense, batch 1", depths + 2, ms + 2, 2); // more points of the same curve
    const cli_panel panel = cli_panel_latency(&curves);
    drawn("latency", "embedded model", &panel, 1, &curves,
          "# title: embedded model\n# panel: decode step\n# x: tokens of context; y: time of a step, ms\n# axes: log-x lines "
          "ticks\n"
          "# curve: dense, batch 1\n0 0.25\n512 0.5\n8192 2\n32768 NaN\n\n\n"
          "# curve: santa-prop:S=128 <it's \"one\" & a_b>\n0 0.5\n512 0.5\n8192 1\n32768 3\n\n\n",
          (const char *const[]){"embedded model", "dense, batch 1", "santa-prop:S=128 &lt;it's \"one\" &amp; a_b>", ">8k<",
                                ">512<", NULL});
}

static void speedup(void) {
    static const cli_point points[] = {{1, 0.9, 0.89, 0.92, 0}, {4, 1.125, 1, 1.25, 0}, {6, 1.25, NAN, NAN, 0}};
    cli_curves curves = {0};
    sl_error e;
    for (int i = 0; i < 3; i++) CHECK_OK(cli_curves_add(&curves, "santa-flash:S=2048", points[i], &e), e);
    const cli_panel panel = cli_panel_speedup(&curves);
    drawn("speedup", "", &panel, 1, &curves,
          "# panel: speedup of decoding\n# x: sequences in the batch; y: speedup over the first method\n# axes: lines ticks\n"
          "# curve: santa-flash:S=2048\n1 0.9 0.89 0.92\n4 1.125 1 1.25\n6 1.25 NaN NaN\n\n\n",
          (const char *const[]){"santa-flash:S=2048", "sequences in the batch", NULL});
}

static void error(void) {
    const double santa[N] = {0.5, 0.25, 0.125, 0.03125}, flat[N] = {0.125, 0.125, 0.125, 0.125}, none[N] = {0, 0, NAN, 0.5};
    cli_curves curves = {0};
    add(&curves, "santa", sizes, santa, N);
    add(&curves, "topk", sizes, flat, N);
    add(&curves, "exact", sizes, none, N);
    const cli_panel panel = cli_panel_error(&curves);
    drawn("error", "", &panel, 1, &curves,
          "# panel: error against dense attention\n# x: S, draws of a query head; y: relative error\n"
          "# axes: log-x log-y fit ticks\n"
          "# curve: santa\n# fit: 32 * x ** -1\n64 0.5\n128 0.25\n256 0.125\n1024 0.03125\n\n\n"
          "# curve: topk\n# fit: 0.125 * x ** 0\n64 0.125\n128 0.125\n256 0.125\n1024 0.125\n\n\n"
          "# curve: exact\n# fit: nan * x ** nan\n64 0\n128 0\n256 NaN\n1024 0.5\n\n\n",
          (const char *const[]){"santa, slope -1.00", "topk, slope ", ">exact<", NULL});
}

static void accuracy(void) {
    const double bytes[] = {50.3, 100, 14.8}, right[] = {99.5, 99.6, 98.6}; // in any order
    cli_curves curves = {0};
    add(&curves, "santa-is", bytes, right, 3);
    const cli_panel panel = cli_panel_accuracy(&curves);
    drawn("accuracy", "", &panel, 1, &curves,
          "# panel: accuracy against bytes read\n# x: KV bytes read, % of dense attention; y: right answers, %\n# axes: log-x "
          "lines "
          "percent\n"
          "# curve: santa-is\n14.8 98.6\n50.3 99.5\n100 99.6\n\n\n",
          (const char *const[]){"santa-is", "right answers, %", NULL});
}

static void layers(void) {
    const double cells[] = {0.5, 0.25, 0.125, 1, NAN, 0, 0.5, 0.5};
    static const char *const names[] = {"santa_a:S=4", "it's topk"};
    const cli_panel panel = cli_panel_layers(cells, 2, 2, names, 2);
    drawn("layers", "", &panel, 1, &(cli_curves){0},
          "# panel: error of each query head\n# x: query heads of each method; y: layer\n# z: relative error\n"
          "# columns: santa_a:S=4\n# columns: it's topk\n"
          "0.5 0.25 0.125 1\nNaN 0 0.5 0.5\n\n\n",
          (const char *const[]){"santa_a:S=4", "it's topk", ">layer<", NULL});
}

// The index of a block in the data file counts over all panels.
static void panels(void) {
    const double cells[] = {1, 2};
    cli_curves curves = {0};
    add(&curves, "half", depths, ms, 2);
    add(&curves, "full", depths, sizes, N);
    const cli_panel latency = cli_panel_latency(&curves);
    cli_panel all[] = {latency,
                       {.title = "cells", .x_label = "x", .y_label = "y", .z_label = "z", .cells = cells, .n_x = 2, .n_y = 1},
                       latency};
    all[2].curves++, all[2].n_curves--;
    drawn("panels", "three", all, 3, &curves,
          "# title: three\n# panel: decode step\n# x: tokens of context; y: time of a step, ms\n# axes: log-x lines ticks\n"
          "# curve: half\n0 0.25\n512 0.5\n\n\n"
          "# curve: full\n0 64\n512 128\n8192 256\n32768 1024\n\n\n# panel: cells\n# x: x; y: y\n# z: z\n1 2\n\n\n"
          "# panel: decode step\n# x: tokens of context; y: time of a step, ms\n# axes: log-x lines ticks\n"
          "# curve: full\n0 64\n512 128\n8192 256\n32768 1024\n\n\n",
          (const char *const[]){">full<", "three", NULL});
}

static void slopes(void) {
    const double y[N] = {1, 0.7, 0.55, 0.2};
    double scale, sx = 0, sy = 0, sxy = 0, sxx = 0;
    for (int i = 0; i < N; i++) sx += log2(sizes[i]) / N, sy += log2(y[i]) / N;
    for (int i = 0; i < N; i++)
        sxy += (log2(sizes[i]) - sx) * (log2(y[i]) - sy), sxx += (log2(sizes[i]) - sx) * (log2(sizes[i]) - sx);
    cli_point points[N];
    for (int i = 0; i < N; i++) points[i] = (cli_point){.x = sizes[i], .y = y[i]};
    CHECK_NEAR(cli_plot_slope(points, N, &scale), sxy / sxx, 1e-12);
    CHECK_NEAR(log2(scale), sy - sxy / sxx * sx, 1e-12);
    CHECK(isnan(cli_plot_slope(points, 1, &scale)) && isnan(scale));
    CHECK(isnan(cli_plot_slope((const cli_point[]){{64, 1, 0, 0, 0}, {64, 2, 0, 0, 0}}, 2, NULL)));
    for (int i = 2; i < 200; i++) { // all x are equal, up to rounding
        const cli_point same[] = {{i, 1, 0, 0, 0}, {i, 2, 0, 0, 0}, {i, 4, 0, 0, 0}};
        CHECK(isnan(cli_plot_slope(same, 3, NULL)));
    }
    CHECK_NEAR(cli_plot_slope((const cli_point[]){{64, 4, 0, 0, 0}, {0, 7, 0, 0, 0}, {128, 2, 0, 0, 0}}, 3, NULL), -1, 1e-12);
}

// ---- scripts: what needs no gnuplot ----

// cli_plot where no gnuplot is installed but one in the folder of the case.
static int plot_alone(const char *file, const char *title, const cli_panel *panels, int n, sl_error *e) {
    char path[4096];
    snprintf(path, sizeof path, "%s", getenv("PATH"));
    setenv("PATH", test_tmp(), 1);
    int rc = cli_plot(in_tmp(file), title, panels, n, e);
    setenv("PATH", path, 1);
    return rc;
}

// The script of panels[n]; frees the curves.
static const char *script_of(const char *title, const cli_panel *panels, int n, cli_curves *curves) {
    sl_error e;
    size_t size;
    int rc = plot_alone("s.svg", title, panels, n, &e);
    cli_curves_free(curves);
    CHECK_OK(rc, e);
    return slurp(in_tmp("s.gp"), &size);
}

// Ticks at every x, groups of the columns of a heat map.
static void scripts(void) {
    const double x[] = {64, 1024, 1500, 131072}, y[] = {1, 2, 3, 4};
    static double cells[16 * 8];
    static const char *const names[] = {"a", "it's"};
    cli_curves curves = {0};
    add(&curves, "dense", x, y, 4);
    const cli_panel panels[] = {cli_panel_latency(&curves), cli_panel_layers(cells, 16, 4, names, 2)};
    const char *text = script_of("both", panels, 2, &curves);
    CHECK_HAS(text, "set terminal svg size 960,");
    CHECK_HAS(text, "background 'white'\n");
    CHECK_HAS(text, "set multiplot title 'both' ");
    CHECK_HAS(text, "set logscale x\n");
    CHECK_HAS(text, "set xtics ('64' 64, '1k' 1024, '' 1500, '128k' 131072)\n"); // 1500 has no room
    CHECK_HAS(text, "$points0 << EOD\n64 1\n1024 2\n1500 3\n131072 4\nEOD\n");
    CHECK_HAS(text, "$points0 using 1:2 with linespoints lc rgb '#000000' lw 2 dt 1 pt 5 ps 0.9 title 'dense'\n");
    CHECK_LACKS(text, "yerrorbars");
    CHECK_HAS(text, "set yrange [15.5:-0.5]\nset xrange [-0.5:7.5]\nset ytics 0,1 scale 0\n"); // 16 layers
    CHECK_HAS(text, "('a' 1.5, 'it''s' 5.5)\nset arrow from 3.5, graph 0 to 3.5, graph 1 ");
    CHECK_HAS(text, "plot $cells matrix with image pixels notitle\n");
}

// On a logarithmic axis, 0 stands one step left of the smallest depth, with a break of the axis between them.
static void depth_zero(void) {
    static const struct {
        int n;
        double x[4];
        const char *ticks, *first;
    } rows[] = {
        {4,
         {0, 512, 1024, 2048},
         "set xtics ('0' 256, '512' 512, '1k' 1024, '2k' 2048)\nset label '//' at 362.038672, graph 0 ",
         "256 1\n512 2\n"},
        {2, {0, 8192}, "set xtics ('0' 4096, '8k' 8192)\nset label '//' at 5792.61875,", "4096 1\n8192 2\n"},
        {1, {0}, "set xtics ('0' 1)\n", "1 1\nEOD"},
        {3, {0, 1, 131072}, "set xtics ('0' 0.25, '1' 1, '128k' 131072)\nset label '//' at 0.5,", "0.25 1\n1 2\n"},
    };
    static const double y[] = {1, 2, 3, 4};
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        cli_curves curves = {0};
        add(&curves, "dense", rows[i].x, y, rows[i].n);
        cli_panel panel = cli_panel_latency(&curves);
        const char *text = script_of("", &panel, 1, &curves);
        CHECK_HAS(text, rows[i].ticks);
        CHECK_HAS(text, rows[i].first);
    }
    cli_curves none = {0};
    add(&none, "dense", (const double[]){512, 1024}, y, 2);
    cli_panel panel = cli_panel_latency(&none);
    CHECK_LACKS(script_of("", &panel, 1, &none), "'//'");
}

// Labels of ticks that would overlap are left out; those of powers of two stay. On a logarithmic axis there are at least 3
// labels.
static void tick_labels(void) {
    const double x[] = {30720, 32768, 61440, 65536, 130048}, flat[] = {0.31, 0.4, 0.5, 0.6, 0.69},
                 steep[] = {0.002, 1, 5, 60, 700};
    cli_curves curves[2] = {{0}, {0}};
    add(&curves[0], "santa", x, flat, 5);
    add(&curves[1], "santa", x, steep, 5);
    cli_panel panels[] = {cli_panel_error(&curves[0]), cli_panel_error(&curves[1])};
    const char *text = script_of("", panels, 2, &curves[0]);
    CHECK_HAS(text, "set xtics ('' 30720, '32k' 32768, '' 61440, '64k' 65536, '127k' 130048)\n");
    CHECK_HAS(text, "set ytics ('0.3' 0.3, '0.4' 0.4, '0.5' 0.5, '0.7' 0.7, '' ");
    CHECK_HAS(text, "set ytics ('0.001' 0.001, '0.01' 0.01, '0.1' 0.1, '1' 1, '10' 10, '100' 100, '1000' 1000, '' 0.001 1, ");
    cli_curves_free(&curves[1]);
}

// Error bars are drawn with full lines in the colour of the curve, and the range of the axis includes them, except bars that
// are much longer than the range of the points.
static void error_bars(void) {
    static const struct {
        double high, low;
        const char *range[2]; // linear, logarithmic
    } rows[] = {
        {2.5, 1.5, {"[0:3.18]", "[1.43"}}, // points at 2 and 3
        {5, 1, {"[0:5.3]", "[0.9"}},
        {1000, 1e-3, {"[0:6.36]", "[0.57"}}, // twice the highest point; a third of the lowest one
        {1000, -1000, {"[-1.06:6.36]", "[1.9"}},
    };
    sl_error e;
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++)
        for (int log_y = 0; log_y < 2; log_y++) {
            cli_curves curves = {0};
            CHECK_OK(cli_curves_add(&curves, "santa-is", (cli_point){1, 2, rows[i].low, rows[i].high, 0}, &e), e);
            CHECK_OK(cli_curves_add(&curves, "santa-is", (cli_point){2, 3, NAN, NAN, 0}, &e), e);
            cli_panel panel = cli_panel_speedup(&curves);
            panel.log_y = log_y;
            const char *text = script_of("", &panel, 1, &curves);
            char bar[100];
            snprintf(bar, sizeof bar, "set yrange %s", rows[i].range[log_y]);
            CHECK_HAS(text, bar);
            snprintf(bar, sizeof bar, "$bars0 << EOD\n1 2 %.9g %.9g\nEOD\n", rows[i].low, rows[i].high);
            if (rows[i].low > 0) CHECK_HAS(text, bar);
            if (rows[i].low > 0)
                CHECK_HAS(text, "plot $bars0 using 1:2:3:4 with yerrorbars lc rgb '#009e73' lw 1 pt 0 notitle, ");
        }
}

// Labels of the y axis and of the bar of colours lie outside of the labels of the ticks, and inside the picture.
static void room_for_labels(void) {
    static const double cells[] = {1e-5, 3, 0.02, 2, 1e-5, 0.5}, x[] = {1, 2}, y[] = {1.5e-4, 0.01};
    static const char *const names[] = {"topk"};
    cli_curves curves = {0};
    add(&curves, "dense", x, y, 2);
    cli_panel panels[] = {cli_panel_error(&curves), cli_panel_layers(cells, 2, 3, names, 1)};
    panels[0].fit = 0;
    const char *text = script_of("", panels, 2, &curves), *size = strstr(text, "svg size "),
               *left = strstr(text, "lmargin at screen "), *label = strstr(text, "set label 3 'relative error' at screen "),
               *colours = strstr(text, "set colorbox user origin screen "),
               *z = strstr(text, "set label 4 'relative error' at screen ");
    CHECK(size && left && label && colours && z);
    double width = atof(size + 9);
    CHECK_HAS(text, "set ytics ('0.0002' 0.0002, ");
    CHECK_HAS(text, "set cbtics ('0.005' 0.005, ");
    double text_end = width * atof(label + 39) + 0.6 * 14, ticks = width * atof(left + 18) - 9 - 0.57 * 14 * strlen("0.0005");
    if (text_end > ticks) FAIL("the label of y ends at %.1f, and the labels of the ticks begin at %.1f", text_end, ticks);
    double bar_end = width * atof(colours + 32) + 16 + 9 + 0.57 * 14 * strlen("0.005"), at = width * atof(z + 39);
    if (at - 8 < bar_end || at > width - 8)
        FAIL("the label of the colours at %.1f of %.0f, ticks until %.1f", at, width, bar_end);
}

// Numbers stand beside their points, apart from each other and from the points.
static void numbers_at_points(void) {
    const double x[] = {10, 10.4, 90};
    cli_curves curves = {0};
    sl_error e;
    for (int i = 0; i < 3; i++) CHECK_OK(cli_curves_add(&curves, "santa-is", (cli_point){x[i], 90, NAN, NAN, 512 << i}, &e), e);
    CHECK_OK(cli_curves_add(&curves, "dense", (cli_point){100, 99, NAN, NAN, 0}, &e), e);
    cli_panel panel = cli_panel_accuracy(&curves);
    CHECK_STR(panel.title, "accuracy against bytes read; at points: S or k");
    const char *text = script_of("", &panel, 1, &curves);
    double at[3][2], width = 480 - 78 - 18;
    for (int i = 0; i < 3; i++) {
        char key[64];
        snprintf(key, sizeof key, "set label '%s' at graph ", i == 0 ? "512" : i == 1 ? "1k" : "2k");
        const char *label = strstr(text, key);
        CHECK(label && sscanf(label + strlen(key), "%lf, graph %lf center", &at[i][0], &at[i][1]) == 2);
        CHECK_HAS(label, "font ',11' tc rgb '#009e73' front\n");
        for (int j = 0; j < i; j++) CHECK(fabs(at[i][0] - at[j][0]) * width >= 16 || fabs(at[i][1] - at[j][1]) * 290 >= 11);
    }
    CHECK(at[2][0] * width < width - 7); // left of the edge
    const char *dense = strstr(text, "set label 'nan'");
    CHECK(!dense);
}

// A row of panels begins where a panel says so. The curves of all panels have the styles of the legend.
static void rows_of_panels(void) {
    cli_curves all = {0}, some = {0};
    add(&all, "santa-prop:S=64", depths, ms, 2);
    add(&all, "santa-prop:S=128", depths, ms, 2);
    add(&some, "santa-prop:S=128", depths, ms, 2);
    cli_panel panels[] = {cli_panel_latency(&some), cli_panel_latency(&all), cli_panel_latency(&all)};
    panels[2].new_row = 1;
    const char *text = script_of("rows", panels, 3, &some);
    int width, height, n = 0;
    CHECK(sscanf(strstr(text, "svg size "), "svg size %d,%d", &width, &height) == 2);
    CHECK_INT(width, 2 * 480);
    CHECK(height > 2 * 290 + 100);
    char style[100];
    cli_plot_style second = cli_plot_style_of("santa-prop", 1);
    snprintf(style, sizeof style, "lc rgb '#%06x' lw 2 dt %d pt %d ps 0.9 title 'santa-prop:S=128'", second.rgb, second.dash,
             second.marker);
    for (const char *p = text; (p = strstr(p, style)); p++) n++;
    CHECK_INT(n, 3);
    const char *key = strstr(text, "\nset key");
    CHECK(key && !strstr(key + 1, "\nset key"));
    double first = atof(strstr(text, "bmargin at screen ") + 18), last = 0;
    for (const char *p = text; (p = strstr(p, "bmargin at screen ")); p++) last = atof(p + 18);
    CHECK(first > 0.5 && last < 0.3);
    cli_curves_free(&all);
}

// Panels with the same curves share one legend.
static void legends(void) {
    cli_curves curves = {0}, other = {0};
    add(&curves, "dense", depths, ms, 2);
    add(&other, "santa", depths, ms, 2);
    const cli_panel a = cli_panel_latency(&curves), b = cli_panel_latency(&other);
    const char *text = script_of("", (const cli_panel[]){a, a}, 2, &(cli_curves){0});
    const char *key = strstr(text, "set key at screen 0.5");
    CHECK(key && !strstr(key + 1, "\nset key"));
    CHECK_HAS(text, "unset key\n");
    text = script_of("", (const cli_panel[]){a, b}, 2, &curves);
    CHECK_HAS(text, "set key at screen 0.25");
    CHECK_HAS(text, "set key at screen 0.75");
    cli_curves_free(&other);
    cli_curves both = {0};
    add(&both, "dense", depths, ms, 2), add(&both, "santa", depths, ms, 2);
    cli_panel one = cli_panel_latency(&both), two = one;
    one.n_curves = 1, two.n_curves = 1, two.curves++; // one.curves[1] is no curve of the first panel
    CHECK_HAS(script_of("", (const cli_panel[]){one, two}, 2, &both), "set key at screen 0.75");
}

// ---- styles ----

static void styles(void) {
    for (const cli_plot_style *a = cli_plot_styles; a->name; a++)
        for (const cli_plot_style *b = cli_plot_styles; b < a; b++) {
            if (!strcmp(a->name, b->name) || a->rgb == b->rgb) FAIL("%s and %s: the same name or colour", a->name, b->name);
            int distance = 0; // two methods of one marker and line must have clearly different colours
            for (int shift = 0; shift < 24; shift += 8)
                distance += abs((int)(a->rgb >> shift & 255) - (int)(b->rgb >> shift & 255));
            if (a->marker == b->marker && a->dash == b->dash && distance < 100) FAIL("%s and %s look alike", a->name, b->name);
        }
    // A style belongs to a method or a peer. Every method has one. Another curve gets a spare style.
    static const char *const others[] = {"cuDNN", "FlashAttention-3", "FlashAttention-2", "FlashInfer", "vLLM", "llama.cpp",
                                         "bytes"};
    for (const cli_plot_style *a = cli_plot_styles; a->name; a++) {
        int known = sl_attn_find(a->name) != NULL;
        for (size_t i = 0; i < sizeof others / sizeof *others; i++) known |= !strcmp(a->name, others[i]);
        if (!known) FAIL("%s is not a method", a->name);
        CHECK_STR(cli_plot_style_of(a->name, 0).name, a->name);
    }
    for (int i = 0; sl_attn_methods[i]; i++)
        CHECK_STR(cli_plot_style_of(sl_attn_methods[i]->name, 0).name, sl_attn_methods[i]->name);
    static const char *const names[] = {"santa-is:S=64", "santa-is, batch 4", "santa-is+santa", "santa-is"};
    for (int i = 0; i < 4; i++) CHECK_STR(cli_plot_style_of(names[i], 0).name, "santa-is");
    cli_plot_style first = cli_plot_style_of("dense", 0), second = cli_plot_style_of("dense", 1),
                   fifth = cli_plot_style_of("dense", 9);
    for (int i = 0; i < 40; i++) // no two variations of a method look alike
        for (int j = 0; j < i; j++) {
            cli_plot_style x = cli_plot_style_of("santa-is", i), y = cli_plot_style_of("santa-is", j);
            if (x.rgb == y.rgb && x.marker == y.marker && x.dash == y.dash) FAIL("variations %d and %d look alike", i, j);
        }
    CHECK(second.rgb > first.rgb && fifth.rgb > second.rgb && second.marker == first.marker && second.dash != first.dash);
    cli_plot_style a = cli_plot_style_of("unknown:a=1", 0), b = cli_plot_style_of("unknown", 0);
    CHECK(a.rgb == b.rgb && a.marker == b.marker && a.rgb);
}

// The colour that an SVG gives to the curve of this name: the first colour after its entry in the legend.
static unsigned colour_in(const char *svg, const char *name) {
    char entry[128];
    int r, g, b;
    snprintf(entry, sizeof entry, "<text>%s</text>", name);
    const char *at = strstr(svg, entry);
    CHECK(at != NULL);
    at = strstr(at, "rgb(");
    CHECK(at && sscanf(at, "rgb(%d, %d, %d)", &r, &g, &b) == 3);
    return (unsigned)(r << 16 | g << 8 | b);
}

// A method has its colour in every kind of picture and at every place in the list of curves.
static void one_colour(void) {
    static const char *const names[] = {"santa-prop", "dense", "topk", "santa-is"};
    const double y[] = {1, 2, 3, 4};
    cli_panel (*kinds[])(const cli_curves *) = {cli_panel_latency, cli_panel_speedup, cli_panel_error, cli_panel_accuracy};
    sl_error e;
    size_t n;
    if (!has_gnuplot()) TEST_SKIP("needs gnuplot");
    for (int kind = 0; kind < 4; kind++) {
        cli_curves curves = {0};
        for (int i = 0; i < 4; i++) add(&curves, names[(i + kind) % 4], sizes, y, kind == 2 ? 1 : 4); // one point: no slope
        cli_panel panel = kinds[kind](&curves);
        CHECK_OK(cli_plot(in_tmp("c.svg"), "", &panel, 1, &e), e);
        cli_curves_free(&curves);
        const char *svg = slurp(in_tmp("c.svg"), &n);
        for (int i = 0; i < 4; i++) CHECK_INT(colour_in(svg, names[i]), cli_plot_style_of(names[i], 0).rgb);
    }
}

// ---- pictures ----

// The place of a text's baseline.
static void place_of(const char *svg, const char *text, double *x, double *y) {
    char entry[128];
    snprintf(entry, sizeof entry, "<text>%s</text>", text);
    const char *end = strstr(svg, entry), *at = NULL;
    CHECK(end != NULL);
    for (const char *p = svg; (p = strstr(p, "translate(")) && p < end; p++) at = p;
    CHECK(at && sscanf(at, "translate(%lf,%lf)", x, y) == 2);
}

static double y_of(const char *svg, const char *text) {
    double x, y;
    place_of(svg, text, &x, &y);
    return y;
}

static unsigned big_endian(const char *p) {
    const unsigned char *u = (const unsigned char *)p;
    return (unsigned)u[0] << 24 | (unsigned)u[1] << 16 | (unsigned)u[2] << 8 | u[3];
}

// Every format has a white ground and the same layout. The legend lies below the plot area and inside the picture.
static void formats(void) {
    cli_curves curves = {0};
    sl_error e;
    size_t n;
    int width, height, points[2];
    if (!has_gnuplot()) TEST_SKIP("needs gnuplot");
    add(&curves, "dense", sizes, sizes, N);
    add(&curves, "santa-is:S=128", sizes, depths, N);
    const cli_panel panel = cli_panel_latency(&curves);
    CHECK_OK(cli_plot(in_tmp("f.svg"), "title", &panel, 1, &e), e);
    CHECK_OK(cli_plot(in_tmp("f.png"), "title", &panel, 1, &e), e);
    CHECK_OK(cli_plot(in_tmp("f.pdf"), "title", &panel, 1, &e), e);
    cli_curves_free(&curves);

    char white[96];
    const char *svg = slurp(in_tmp("f.svg"), &n), *size = strstr(svg, "viewBox=\"0 0 ");
    CHECK(size && sscanf(size, "viewBox=\"0 0 %d %d\"", &width, &height) == 2);
    snprintf(white, sizeof white, "<rect x=\"0\" y=\"0\" width=\"%d\" height=\"%d\" fill=\"#ffffff\"/>", width, height);
    CHECK_HAS(svg, white);
    double label = y_of(svg, "tokens of context"), first = y_of(svg, "dense"), last = y_of(svg, "santa-is:S=128");
    CHECK(first > label + 10 && last >= first && last < height - 3);
    CHECK(y_of(svg, "title") < y_of(svg, "decode step") && y_of(svg, "decode step") < y_of(svg, "64"));

    const char *png = slurp(in_tmp("f.png"), &n);
    CHECK(n > 24 && !memcmp(png, "\x89PNG\r\n\x1a\n", 8));
    CHECK_INT(big_endian(png + 16), 2 * width);
    CHECK_INT(big_endian(png + 20), 2 * height);

    const char *pdf = slurp(in_tmp("f.pdf"), &n), *box = memmem(pdf, n, "/MediaBox [ 0 0 ", 16);
    CHECK(!strncmp(pdf, "%PDF-", 5) && box && sscanf(box, "/MediaBox [ 0 0 %d %d", &points[0], &points[1]) == 2);
    CHECK_NEAR(points[0], 72 * 3.4, 2); // a column of a paper
    CHECK_NEAR((double)points[1] / points[0], (double)height / width, 0.02);
}

// The cells of a heat map are rectangles with sharp edges, not an interpolated image.
static void crisp(void) {
    static double cells[6 * 8];
    static const char *const names[] = {"dense", "topk"};
    sl_error e;
    size_t n;
    int polygons = 0;
    if (!has_gnuplot()) TEST_SKIP("needs gnuplot");
    for (int i = 0; i < 48; i++) cells[i] = i == 7 ? NAN : 0.1 + 0.01 * i;
    const cli_panel panel = cli_panel_layers(cells, 6, 4, names, 2);
    CHECK_OK(cli_plot(in_tmp("h.svg"), "", &panel, 1, &e), e);
    const char *svg = slurp(in_tmp("h.svg"), &n), *at = strstr(svg, "gnuplot_plot_1");
    CHECK_LACKS(svg, "<image");
    CHECK(at != NULL);
    const char *end = strstr(at, "\n\t</g>\n<g"); // of the cells; the colour bar follows
    CHECK(end && strstr(at, "shape-rendering='crispEdges'"));
    for (const char *p = at; (p = strstr(p, "<polygon")) && p < end; p++) polygons++;
    CHECK_INT(polygons, 47);
    CHECK_HAS(svg, ">relative error<");
    CHECK_HAS(svg, "rgb(253, 231,  37)"); // the last colour of viridis
}

// ---- sleigh plot ----

static void redrawn(void) {
    static const cli_point points[] = {{0, 0.9, 0.89, 0.92, 64}, {512, 1.125, 1, 1.25, 0}, {8192, 1.25, NAN, NAN, 0.5}};
    const double cells[] = {0.5, 0.25, 0.125, 1, NAN, 0, 0.5, 0.5};
    static const char *const names[] = {"santa_a:S=4", "it's topk"};
    cli_curves curves = {0};
    sl_error e;
    size_t n;
    for (int i = 0; i < 3; i++) CHECK_OK(cli_curves_add(&curves, "santa-flash:S=2048", points[i], &e), e);
    add(&curves, "dense", sizes, ms, N);
    cli_panel panels[] = {cli_panel_latency(&curves), cli_panel_layers(cells, 2, 2, names, 2), cli_panel_error(&curves)};
    panels[2].new_row = 1;
    CHECK_OK(cli_plot_write(in_tmp("a.dat"), "a title", panels, 3, &e), e);
    cli_plot_data data;
    CHECK_OK(cli_plot_read(in_tmp("a.dat"), &data, &e), e);
    CHECK_OK(cli_plot_write(in_tmp("b.dat"), data.title, data.panels, data.n, &e), e);
    cli_plot_data_free(&data);
    CHECK_STR(slurp(in_tmp("b.dat"), &n), slurp(in_tmp("a.dat"), &n));
    if (!has_gnuplot()) TEST_SKIP("the data file is read completely; the pictures need gnuplot");
    CHECK_OK(cli_plot(in_tmp("p.svg"), "a title", panels, 3, &e), e);
    cli_curves_free(&curves);
    const char *before = slurp(in_tmp("p.svg"), &n);
    unlink(in_tmp("p.svg"));
    result r = RUN("plot", in_tmp("p.dat")), pdf = RUN("plot", in_tmp("p.dat"), "-o", in_tmp("q.pdf"));
    CHECK_GOOD(r);
    CHECK_GOOD(pdf);
    CHECK_STR(slurp(in_tmp("p.svg"), &n), before);
    CHECK(!strncmp(slurp(in_tmp("q.pdf"), &n), "%PDF-", 5));
    CHECK(!rename(in_tmp("p.dat"), in_tmp("p.data"))); // another ending stays in the name of the picture
    r = RUN("plot", in_tmp("p.data"));
    CHECK_GOOD(r);
    CHECK_STR(slurp(in_tmp("p.data.svg"), &n), before);
}

// A data file that cannot be written leaves the one of before, and no other file.
static void whole_data(void) {
    cli_curves curves = {0};
    struct rlimit before, few;
    sl_error e;
    size_t n;
    glob_t found;
    add(&curves, "dense", sizes, ms, N);
    const cli_panel panel = cli_panel_latency(&curves);
    CHECK_OK(cli_plot_write(in_tmp("a.dat"), "first", &panel, 1, &e), e);
    CHECK(!getrlimit(RLIMIT_FSIZE, &before));
    few = (struct rlimit){.rlim_cur = 40, .rlim_max = before.rlim_max};
    signal(SIGXFSZ, SIG_IGN);
    CHECK(!setrlimit(RLIMIT_FSIZE, &few));
    int rc = cli_plot_write(in_tmp("a.dat"), "second", &panel, 1, &e);
    CHECK(!setrlimit(RLIMIT_FSIZE, &before));
    signal(SIGXFSZ, SIG_DFL);
    CHECK_ERR(rc, e, SL_ERR_IO, "a.dat: File too large");
    CHECK_HAS(slurp(in_tmp("a.dat"), &n), "# title: first\n");
    CHECK_INT(glob(in_tmp("a.dat.*"), 0, NULL, &found), GLOB_NOMATCH);
    cli_curves_free(&curves);
}

// Every data file of docs/ can be drawn again, and its picture shows its panels and curves on white.
static void committed(void) {
    glob_t found;
    sl_error e;
    size_t n;
    if (glob("docs/*.dat", 0, NULL, &found)) TEST_SKIP("needs docs/");
    CHECK_INT(glob("results/*.dat", GLOB_APPEND, NULL, &found) | glob("results/*/*.dat", GLOB_APPEND, NULL, &found), 0);
    for (size_t i = 0; i < found.gl_pathc; i++) {
        char picture[256];
        cli_plot_data data;
        CHECK_OK(cli_plot_read(found.gl_pathv[i], &data, &e), e);
        snprintf(picture, sizeof picture, "%.*s.svg", (int)strlen(found.gl_pathv[i]) - 4, found.gl_pathv[i]);
        const char *svg = slurp(picture, &n);
        CHECK_HAS(svg, "fill=\"#ffffff\"/>\n<defs>");
        double width = atof(strstr(svg, "viewBox=\"0 0 ") + 13), x, y;
        for (int j = 0; j < data.n; j++) {
            if (data.panels[j].cells) { // its last label is that of the colours, at the right edge
                place_of(svg + (strstr(svg, "gnuplot_plot_1") - svg), data.panels[j].z_label, &x, &y);
                if (x > width - 4) FAIL("%s: the label of the colours at %.1f of %.0f", picture, x, width);
            }
            if (!strstr(svg, data.panels[j].title)) FAIL("%s lacks %s", picture, data.panels[j].title);
            for (int k = 0; k < data.panels[j].n_curves; k++)
                if (!strstr(svg, data.panels[j].curves[k].name)) FAIL("%s lacks %s", picture, data.panels[j].curves[k].name);
        }
        cli_plot_data_free(&data);
    }
    globfree(&found);
}

static void refused(void) {
    static const struct {
        const char *text, *part;
    } rows[] = {
        {"", "expected a line \"# panel: TITLE\""},
        {"1 2\n", ":1: expected a line \"# panel: TITLE\" before the first numbers"},
        {"# panel: p\n# axes: log-x log-z\n", ":2: expected words of log-x, log-y"},
        {"# panel: p\n# curve: c\n1\n", ":3: expected a point of two, four or five numbers"},
        {"# panel: p\n# curve: c\n1 2 3\n", ":3: expected a point of two, four or five numbers"},
        {"# panel: p\n# curve: c\n1 2 3 4 5 6\n", ":3: expected a point of two, four or five numbers"},
        {"# panel: p\n# curve: c\n1 x\n", ":3: expected a point"},
        {"# panel: p\n1 2\n1 x\n", ":3: expected numbers"},
        {"# panel: p\n1 2\n1\n", ":3: expected 2 numbers, as in the row before, found 1"},
        {"# panel: p\n# columns: a\n# columns: b\n1 2 3\n", "expected groups of equal size, found 3 columns of 2 names"},
        {"# panel: p\n", "panel \"p\": expected curves or the rows of a heat map, found neither"},
        {"# panel: p\n1 2\n# curve: c\n1 2\n", "found both"},
    };
    sl_error e;
    cli_plot_data data;
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        spill(in_tmp("bad.dat"), rows[i].text, strlen(rows[i].text));
        CHECK_ERR(cli_plot_read(in_tmp("bad.dat"), &data, &e), e, SL_ERR_FORMAT, rows[i].part);
        cli_plot_data_free(&data);
    }
    spill(in_tmp("bad.dat"), "# panel: p\n\0", 12);
    CHECK_ERR(cli_plot_read(in_tmp("bad.dat"), &data, &e), e, SL_ERR_FORMAT, "expected text, found a NUL");
    cli_plot_data_free(&data);
    char many[16 * CLI_PLOT_PANELS] = "";
    for (int i = 0; i <= CLI_PLOT_PANELS; i++) strcat(many, "# panel: p\n1\n");
    spill(in_tmp("bad.dat"), many, strlen(many));
    CHECK_ERR(cli_plot_read(in_tmp("bad.dat"), &data, &e), e, SL_ERR_FORMAT, "expected at most 256 panels");
    cli_plot_data_free(&data);

    result none = RUN("plot"), missing = RUN("plot", in_tmp("missing.dat")),
           ending = RUN("plot", in_tmp("bad.dat"), "-o", "x.jpg"), two = RUN("plot", "a.dat", "b.dat");
    check_error(&none, 2, "plot: expected the data file of a picture");
    check_error(&missing, 1, "cannot open ");
    check_error(&ending, 2, "--output x.jpg: expected a file name that ends in .svg, .pdf or .png");
    check_error(&two, 2, "unexpected argument \"b.dat\"");
}

// Without gnuplot there are a data file and a script, and no error. With gnuplot the script draws the plot.
static void absent(void) {
    cli_curves curves = {0};
    add(&curves, "dense", sizes, ms, N);
    const cli_panel panel = cli_panel_latency(&curves);
    char command[4096];
    sl_error e;
    size_t n;
    CHECK_OK(plot_alone("x.svg", "", &panel, 1, &e), e);
    cli_curves_free(&curves);
    CHECK(access(in_tmp("x.svg"), F_OK) != 0);
    CHECK_HAS(slurp(in_tmp("x.dat"), &n), "# curve: dense\n64 0.25\n");
    CHECK_HAS(slurp(in_tmp("x.gp"), &n), "set output 'x.svg'\n");
    if (!has_gnuplot()) TEST_SKIP("gnuplot is not installed, so the script cannot be run");
    snprintf(command, sizeof command, "cd %s && gnuplot x.gp", test_tmp());
    CHECK_INT(system(command), 0);
    check_svg(in_tmp("x.svg"), (const char *const[]){"decode step", "dense", NULL});
}

static void errors(void) {
    const cli_panel panel = cli_panel_latency(&(cli_curves){0});
    sl_error e;
    CHECK_ERR(cli_plot("x.jpg", "", &panel, 1, &e), e, SL_ERR_ARG,
              "x.jpg: expected a file name that ends in .svg, .pdf or .png");
    CHECK_ERR(cli_plot(".svg", "", &panel, 1, &e), e, SL_ERR_ARG, "expected a file name");
    CHECK_ERR(cli_plot_check("/nowhere/x.svg", "--plot", &e), e, SL_ERR_IO,
              "--plot /nowhere/x.svg: cannot write to its folder");
    CHECK_OK(cli_plot_check("x.svg", "--plot", &e), e);
    CHECK_ERR(cli_plot_write("/nowhere/x.dat", "title", &panel, 1, &e), e, SL_ERR_IO, "/nowhere/x.dat");
    // The first line with words, of standard output or of standard error.
    static const char gnuplot[] = "#!/bin/sh\nread line\necho '  ^'\necho \"got $line\"\necho more >&2\nexit 3\n";
    spill(in_tmp("gnuplot"), gnuplot, strlen(gnuplot));
    CHECK(!chmod(in_tmp("gnuplot"), 0700));
    CHECK_ERR(plot_alone("x.svg", "", &panel, 1, &e), e, SL_ERR_IO, "x.svg: got ");
    CHECK(!strpbrk(strstr(e.message, "got "), "\n") && !strstr(e.message, "more"));
}

static const test_case cases[] = {
    {"latency", 0, latency},
    {"speedup", 0, speedup},
    {"error", 0, error},
    {"accuracy", 0, accuracy},
    {"layers", 0, layers},
    {"panels", 0, panels},
    {"slopes", 0, slopes},
    {"scripts", 0, scripts},
    {"depth-zero", 0, depth_zero},
    {"tick-labels", 0, tick_labels},
    {"error-bars", 0, error_bars},
    {"room-for-labels", 0, room_for_labels},
    {"numbers-at-points", 0, numbers_at_points},
    {"rows-of-panels", 0, rows_of_panels},
    {"legends", 0, legends},
    {"styles", 0, styles},
    {"one-colour", 0, one_colour},
    {"formats", 0, formats},
    {"crisp", 0, crisp},
    {"redrawn", 0, redrawn},
    {"committed", 0, committed},
    {"whole-data", 0, whole_data},
    {"refused", 0, refused},
    {"absent", 0, absent},
    {"errors", 0, errors},
    {0},
};
extern const test_suite suite_cli_plot;
const test_suite suite_cli_plot = {"cli_plot", cases};
