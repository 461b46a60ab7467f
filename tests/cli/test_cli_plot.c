// tests/cli/test_cli_plot.c - engine/cli/output/plot.h: exact data files, fitted slopes and, if gnuplot is installed, complete
// plots that name every curve.
#include "engine/cli/output/plot.h"
#include "tests/support/run_cli.h"

#include <math.h>
#include <stdlib.h>
#include <unistd.h>

enum { N = 4 };
static const double sizes[N] = {64, 128, 256, 1024}, depths[N] = {0, 512, 8192, 32768}, ms[N] = {0.25, 0.5, 2, NAN};

static void add(cli_curves *curves, const char *name, const double *x, const double *y, int n) {
    sl_error e;
    for (int i = 0; i < n; i++) CHECK_OK(cli_curves_add(curves, name, (cli_point){x[i], y[i], NAN, NAN}, &e), e);
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
          "# title: embedded model\n# panel: decode step\n# x: tokens of context; y: ms\n"
          "# curve: dense, batch 1\n0 0.25\n512 0.5\n8192 2\n32768 NaN\n\n\n"
          "# curve: santa-prop:S=128 <it's \"one\" & a_b>\n0 0.5\n512 0.5\n8192 1\n32768 3\n\n\n",
          (const char *const[]){"embedded model", "dense, batch 1", "santa-prop:S=128 &lt;it's \"one\" &amp; a_b>", ">8k<",
                                ">512<", NULL});
}

static void speedup(void) {
    static const cli_point points[] = {{1, 0.9, 0.89, 0.92}, {4, 1.125, 1, 1.25}, {6, 1.25, NAN, NAN}};
    cli_curves curves = {0};
    sl_error e;
    for (int i = 0; i < 3; i++) CHECK_OK(cli_curves_add(&curves, "santa-flash:S=2048", points[i], &e), e);
    const cli_panel panel = cli_panel_speedup(&curves);
    drawn("speedup", "", &panel, 1, &curves,
          "# panel: speedup of decoding\n# x: sequences in the batch; y: times as fast\n"
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
          "# panel: error against dense attention\n# x: S; y: relative error\n"
          "# curve: santa\n# fit: 32 * x ** -1\n64 0.5\n128 0.25\n256 0.125\n1024 0.03125\n\n\n"
          "# curve: topk\n# fit: 0.125 * x ** 0\n64 0.125\n128 0.125\n256 0.125\n1024 0.125\n\n\n"
          "# curve: exact\n# fit: nan * x ** nan\n64 0\n128 0\n256 NaN\n1024 0.5\n\n\n",
          (const char *const[]){"santa, slope -1.00", "topk, slope ", ">exact<", NULL});
}

static void accuracy(void) {
    const double bytes[] = {14.8, 50.3, 100}, right[] = {98.6, 99.5, 99.6};
    cli_curves curves = {0};
    add(&curves, "santa-is", bytes, right, 3);
    const cli_panel panel = cli_panel_accuracy(&curves);
    drawn("accuracy", "", &panel, 1, &curves,
          "# panel: accuracy against bytes read\n# x: KV bytes read, % of dense attention; y: right, %\n"
          "# curve: santa-is\n14.8 98.6\n50.3 99.5\n100 99.6\n\n\n",
          (const char *const[]){"santa-is", "right, %", NULL});
}

static void layers(void) {
    const double cells[] = {0.5, 0.25, 0.125, 1, NAN, 0, 0.5, 0.5};
    static const char *const names[] = {"santa_a:S=4", "it's topk"};
    const cli_panel panel = cli_panel_layers(cells, 2, 2, names, 2);
    drawn("layers", "", &panel, 1, &(cli_curves){0},
          "# panel: relative error\n# x: query heads of each method; y: layer\n# columns: santa_a:S=4\n# columns: it's topk\n"
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
    cli_panel all[] = {
        latency, {.title = "cells", .x_label = "x", .y_label = "y", .cells = cells, .n_x = 2, .n_y = 1}, latency};
    all[2].curves++, all[2].n_curves--;
    drawn("panels", "three", all, 3, &curves,
          "# title: three\n# panel: decode step\n# x: tokens of context; y: ms\n# curve: half\n0 0.25\n512 0.5\n\n\n"
          "# curve: full\n0 64\n512 128\n8192 256\n32768 1024\n\n\n# panel: cells\n# x: x; y: y\n1 2\n\n\n"
          "# panel: decode step\n# x: tokens of context; y: ms\n# curve: full\n0 64\n512 128\n8192 256\n32768 1024\n\n\n",
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
    CHECK(isnan(cli_plot_slope((const cli_point[]){{64, 1, 0, 0}, {64, 2, 0, 0}}, 2, NULL)));
    for (int i = 2; i < 200; i++) { // all x are equal, up to rounding
        const cli_point same[] = {{i, 1, 0, 0}, {i, 2, 0, 0}, {i, 4, 0, 0}};
        CHECK(isnan(cli_plot_slope(same, 3, NULL)));
    }
    CHECK_NEAR(cli_plot_slope((const cli_point[]){{64, 4, 0, 0}, {0, 7, 0, 0}, {128, 2, 0, 0}}, 3, NULL), -1, 1e-12);
}

// The script without gnuplot: ticks at every x, groups of the columns of a heat map.
static void scripts(void) {
    const double x[] = {64, 1024, 1500, 131072}, y[] = {1, 2, 3, 4};
    static double cells[16 * 8];
    static const char *const names[] = {"a", "it's"};
    cli_curves curves = {0};
    char path[4096];
    sl_error e;
    size_t n;
    add(&curves, "dense", x, y, 4);
    const cli_panel panels[] = {cli_panel_latency(&curves), cli_panel_layers(cells, 16, 4, names, 2)};
    snprintf(path, sizeof path, "%s", getenv("PATH"));
    setenv("PATH", test_tmp(), 1);
    int rc = cli_plot(in_tmp("s.svg"), "both", panels, 2, &e);
    setenv("PATH", path, 1);
    cli_curves_free(&curves);
    CHECK_OK(rc, e);
    const char *text = slurp(in_tmp("s.gp"), &n);
    CHECK_HAS(text, "set terminal svg size 1520,520 ");
    CHECK_HAS(text, "set multiplot layout 1,2 title 'both' noenhanced\n");
    CHECK_HAS(text, "set logscale x\nset yrange [0:*]\nset xtics ('64' 64, '1k' 1024, '1500' 1500, '128k' 131072)\n");
    CHECK_HAS(text, "'s.dat' index 0 using 1:2 with linespoints lc 1 pt 4 title 'dense'\n");
    CHECK_HAS(text, "set yrange [15.5:-0.5]\nset xrange [-0.5:7.5]\nset xtics auto\nset ytics 0,1\n"); // 16 layers
    CHECK_HAS(text, "right ('a' 1.5, 'it''s' 5.5)\nset arrow from 3.5,graph 0 to 3.5,graph 1 ");
    CHECK_HAS(text, "'s.dat' index 1 matrix with image notitle\n");
}

// Without gnuplot there are a data file and a script, and no error. With gnuplot the script draws the plot.
static void absent(void) {
    cli_curves curves = {0};
    add(&curves, "dense", sizes, ms, N);
    const cli_panel panel = cli_panel_latency(&curves);
    char path[4096], command[4096];
    sl_error e;
    size_t n;
    snprintf(path, sizeof path, "%s", getenv("PATH"));
    setenv("PATH", test_tmp(), 1);
    int rc = cli_plot(in_tmp("x.svg"), "", &panel, 1, &e);
    setenv("PATH", path, 1);
    CHECK_OK(rc, e);
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
    CHECK_ERR(cli_plot("x.jpg", "", &panel, 1, &e), e, SL_ERR_ARG, "x.jpg: expected a file name that ends in .svg or .png");
    CHECK_ERR(cli_plot(".svg", "", &panel, 1, &e), e, SL_ERR_ARG, "expected a file name");
    CHECK_ERR(cli_plot_check("/nowhere/x.svg", "--plot", &e), e, SL_ERR_IO,
              "--plot /nowhere/x.svg: cannot write to its folder");
    CHECK_OK(cli_plot_check("x.svg", "--plot", &e), e);
    if (!has_gnuplot()) TEST_SKIP("what gnuplot refuses needs gnuplot");
    const double zero[] = {0};
    cli_curves nothing = {0};
    add(&nothing, "nothing", zero, zero, 1); // on logarithmic axes
    const cli_panel blank = cli_panel_error(&nothing);
    CHECK_ERR(cli_plot(in_tmp("blank.svg"), "", &blank, 1, &e), e, SL_ERR_IO, "gnuplot could not draw ");
    cli_curves_free(&nothing);
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
    {"absent", 0, absent},
    {"errors", 0, errors},
    {0},
};
extern const test_suite suite_cli_plot;
const test_suite suite_cli_plot = {"cli_plot", cases};
