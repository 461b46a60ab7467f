// tests/test_cli_plot.c - engine/cli/plot.h: the data files to the letter, fitted slopes, and, where gnuplot is installed, that
// its pictures are whole and name every curve.
#include "engine/cli/plot.h"
#include "tests/cli.h"

#include <math.h>
#include <stdlib.h>
#include <unistd.h>

enum { N = 4 };
static const double sizes[N] = {64, 128, 256, 1024}, depths[N] = {0, 512, 8192, 32768}, ms[N] = {0.25, 0.5, 2, NAN};

static int has_gnuplot(void) {
    return system("command -v gnuplot >/dev/null 2>&1") == 0;
}

// No XML parser is linked: tags must open and close in turn, which is what cut or mixed output breaks.
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

static void drawn(const char *name, const char *title, const cli_panel *panels, int n, const char *want,
                  const char *const *names) {
    char svg[256], data[256];
    sl_error e;
    size_t size;
    snprintf(svg, sizeof svg, "%s/%s.svg", test_tmp(), name);
    snprintf(data, sizeof data, "%s/%s.dat", test_tmp(), name);
    CHECK_OK(cli_plot(svg, title, panels, n, &e), e);
    CHECK_STR(slurp(data, &size), want);
    if (!has_gnuplot()) TEST_SKIP("data files are right; the pictures need gnuplot");
    check_svg(svg, names);
}

static void latency(void) {
    const double santa[N] = {0.5, 0.5, 1, 3};
    const cli_series series[] = {{.name = "dense, batch 1", .x = depths, .y = ms, .n = N},
                                 {.name = "santa-prop:S=128 <it's \"one\" & a_b>", .x = depths, .y = santa, .n = N}};
    const cli_panel panel = cli_panel_latency(series, 2);
    drawn("latency", "embedded model", &panel, 1,
          "# title: embedded model\n# panel: decode step\n# x: tokens of context; y: ms\n"
          "# curve: dense, batch 1\n0 0.25\n512 0.5\n8192 2\n32768 NaN\n\n\n"
          "# curve: santa-prop:S=128 <it's \"one\" & a_b>\n0 0.5\n512 0.5\n8192 1\n32768 3\n\n\n",
          (const char *const[]){"embedded model", "dense, batch 1", "santa-prop:S=128 &lt;it's \"one\" &amp; a_b>", ">8k<",
                                ">512<", NULL});
}

static void speedup(void) {
    const double batches[] = {1, 4, 6}, times[] = {0.9, 1.125, 1.25}, bars[] = {0.01, 0.02, NAN};
    const cli_series series = {.name = "santa-flash:S=2048", .x = batches, .y = times, .error = bars, .n = 3};
    const cli_panel panel = cli_panel_speedup(&series, 1);
    drawn("speedup", "", &panel, 1,
          "# panel: speedup of decoding\n# x: sequences in the batch; y: times as fast\n"
          "# curve: santa-flash:S=2048\n1 0.9 0.01\n4 1.125 0.02\n6 1.25 NaN\n\n\n",
          (const char *const[]){"santa-flash:S=2048", "sequences in the batch", NULL});
}

static void error(void) {
    const double santa[N] = {0.5, 0.25, 0.125, 0.03125}, flat[N] = {0.125, 0.125, 0.125, 0.125}, none[N] = {0, 0, NAN, 0.5};
    const cli_series series[] = {{.name = "santa", .x = sizes, .y = santa, .n = N},
                                 {.name = "topk", .x = sizes, .y = flat, .n = N},
                                 {.name = "exact", .x = sizes, .y = none, .n = N}};
    const cli_panel panel = cli_panel_error(series, 3);
    drawn("error", "", &panel, 1,
          "# panel: error against dense attention\n# x: S; y: relative error\n"
          "# curve: santa\n# fit: 32 * x ** -1\n64 0.5\n128 0.25\n256 0.125\n1024 0.03125\n\n\n"
          "# curve: topk\n# fit: 0.125 * x ** 0\n64 0.125\n128 0.125\n256 0.125\n1024 0.125\n\n\n"
          "# curve: exact\n# fit: nan * x ** nan\n64 0\n128 0\n256 NaN\n1024 0.5\n\n\n",
          (const char *const[]){"santa, slope -1.00", "topk, slope ", ">exact<", NULL});
}

static void accuracy(void) {
    const double bytes[] = {14.8, 50.3, 100}, right[] = {98.6, 99.5, 99.6};
    const cli_series series = {.name = "santa-is", .x = bytes, .y = right, .n = 3};
    const cli_panel panel = cli_panel_accuracy(&series, 1);
    drawn("accuracy", "", &panel, 1,
          "# panel: accuracy against bytes read\n# x: KV bytes read, % of dense attention; y: right, %\n"
          "# curve: santa-is\n14.8 98.6\n50.3 99.5\n100 99.6\n\n\n",
          (const char *const[]){"santa-is", "right, %", NULL});
}

static void layers(void) {
    const double cells[] = {0.5, 0.25, 0.125, 1, NAN, 0};
    const cli_panel panel = cli_panel_layers(cells, 2, 3);
    drawn("layers", "", &panel, 1, "# panel: relative error\n# x: query head; y: layer\n0.5 0.25 0.125\n1 NaN 0\n\n\n",
          (const char *const[]){"query head", ">layer<", NULL});
}

// Blocks of the data file are counted over all panels; an empty curve holds its place.
static void panels(void) {
    const cli_series series[] = {{.name = "empty", .x = depths, .y = ms, .n = 0},
                                 {.name = "full", .x = depths, .y = sizes, .n = N}};
    const double cells[] = {1, 2};
    const cli_panel all[] = {cli_panel_latency(series, 2), cli_panel_layers(cells, 1, 2), cli_panel_latency(series + 1, 1)};
    drawn(
        "panels", "three", all, 3,
        "# title: three\n# panel: decode step\n# x: tokens of context; y: ms\n# curve: empty\nNaN NaN\n\n\n"
        "# curve: full\n0 64\n512 128\n8192 256\n32768 1024\n\n\n# panel: relative error\n# x: query head; y: layer\n1 2\n\n\n"
        "# panel: decode step\n# x: tokens of context; y: ms\n# curve: full\n0 64\n512 128\n8192 256\n32768 1024\n\n\n",
        (const char *const[]){">full<", "three", NULL});
}

static void slopes(void) {
    const double y[N] = {1, 0.7, 0.55, 0.2};
    double scale, sx = 0, sy = 0, sxy = 0, sxx = 0;
    for (int i = 0; i < N; i++) sx += log2(sizes[i]) / N, sy += log2(y[i]) / N;
    for (int i = 0; i < N; i++)
        sxy += (log2(sizes[i]) - sx) * (log2(y[i]) - sy), sxx += (log2(sizes[i]) - sx) * (log2(sizes[i]) - sx);
    CHECK_NEAR(cli_plot_slope(sizes, y, N, &scale), sxy / sxx, 1e-12);
    CHECK_NEAR(log2(scale), sy - sxy / sxx * sx, 1e-12);
    CHECK(isnan(cli_plot_slope(sizes, y, 1, &scale)) && isnan(scale));
    CHECK(isnan(cli_plot_slope((const double[]){64, 64}, y, 2, NULL)));
    CHECK_NEAR(cli_plot_slope((const double[]){64, 0, 128}, (const double[]){4, 7, 2}, 3, NULL), -1, 1e-12);
}

// Without gnuplot there is the data file, and nothing fails.
static void absent(void) {
    const cli_series series = {.name = "dense", .x = sizes, .y = ms, .n = N};
    const cli_panel panel = cli_panel_latency(&series, 1);
    char path[4096];
    sl_error e;
    size_t n;
    snprintf(path, sizeof path, "%s", getenv("PATH"));
    setenv("PATH", test_tmp(), 1);
    int rc = cli_plot(in_tmp("x.png"), "", &panel, 1, &e);
    setenv("PATH", path, 1);
    CHECK_OK(rc, e);
    CHECK(access(in_tmp("x.png"), F_OK) != 0);
    CHECK_HAS(slurp(in_tmp("x.dat"), &n), "# curve: dense\n64 0.25\n");
}

static void errors(void) {
    const cli_panel panel = cli_panel_latency(NULL, 0);
    sl_error e;
    CHECK_ERR(cli_plot("x.jpg", "", &panel, 1, &e), e, SL_ERR_ARG, "x.jpg: expected a file name that ends in .svg or .png");
    CHECK_ERR(cli_plot(".svg", "", &panel, 1, &e), e, SL_ERR_ARG, "expected a file name");
    CHECK_ERR(cli_plot_check("/nowhere/x.svg", "--plot", &e), e, SL_ERR_IO, "--plot /nowhere/x.svg: its folder");
    CHECK_OK(cli_plot_check("x.svg", "--plot", &e), e);
    if (!has_gnuplot()) TEST_SKIP("what gnuplot refuses needs gnuplot");
    const double zero[] = {0};
    const cli_series nothing = {.name = "nothing", .x = zero, .y = zero, .n = 1}; // on logarithmic axes
    const cli_panel blank = cli_panel_error(&nothing, 1);
    CHECK_ERR(cli_plot(in_tmp("blank.svg"), "", &blank, 1, &e), e, SL_ERR_IO, "gnuplot did not draw ");
}

static const test_case cases[] = {
    {"latency", 0, latency}, {"speedup", 0, speedup}, {"error", 0, error},   {"accuracy", 0, accuracy}, {"layers", 0, layers},
    {"panels", 0, panels},   {"slopes", 0, slopes},   {"absent", 0, absent}, {"errors", 0, errors},     {0},
};
extern const test_suite suite_cli_plot;
const test_suite suite_cli_plot = {"cli_plot", cases};
