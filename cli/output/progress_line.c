// cli/output/progress_line.c - see progress_line.h.
#include "cli/output/progress_line.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

enum { WIDE = 30, NARROW = 6 }; // cells of a bar: at most, at least

// ---- time ----

const char *cli_duration(double ms, char buf[32]) {
    double s = ms * 1e-3;
    if (!isfinite(s))
        snprintf(buf, 32, "?");
    else
        snprintf(buf, 32, s < 90 ? "%.0f s" : s < 5400 ? "%.0f min" : "%.1f h", s < 90 ? s : s < 5400 ? s / 60 : s / 3600);
    return buf;
}

double cli_work_left(const cli_work *w) {
    double speed = w->done > 0 && w->ms > 0 ? w->done / w->ms : w->rate;
    if (w->done >= w->total) return 0;
    return speed > 0 ? (w->total - w->done) / speed : NAN;
}

double cli_prefill_cost(const cli_progress *p, int n) {
    return n ? sl_model_prefill_flops(p->model, p->n_from, n) : 0;
}

static double cost_of(const cli_progress *p, int n) {
    return p->cost ? p->cost(p, n) : n;
}

double cli_progress_left(const cli_progress *p, const cli_progress *inner, double now) {
    cli_work prefill = p->prefill, rest = p->rest;
    if (!p->total) return NAN; // lines of a pipe
    if (prefill.total > 0 && inner && inner->cost) {
        prefill.done += inner->cost(inner, inner->done);
        prefill.ms += now - inner->start;
    }
    if (rest.total == 0) rest.total = cost_of(p, p->total), rest.done = cost_of(p, p->done);
    rest.ms = now - p->start - prefill.ms;
    return cli_work_left(&prefill) + cli_work_left(&rest);
}

// The share of the run's time that has passed. Without an estimate, the share of the units that are done.
static double share_of(const cli_progress *p, double left, double now) {
    double passed = now - p->start;
    if (!isfinite(left)) return p->total ? (double)p->done / p->total : 0;
    return passed + left > 0 ? passed / (passed + left) : 0;
}

// ---- text ----

enum { COUNT = 1, RATE = 2, LEFT = 4, INNER = 8, ALL = 15 }; // parts of the text

// Appends ", part" to a text, without the comma after the beginning.
static void add(char *buf, size_t size, const char *separator, const char *part) {
    size_t n = strlen(buf);
    snprintf(buf + n, size - n, "%s%s", n ? separator : "", part);
}

// Appends units per second, or seconds per unit if these are more than one.
static void add_rate(const cli_progress *p, double now, char *buf, size_t size) {
    double rate = 1e3 * p->done / (now - p->start);
    char text[32];
    if (p->is_run || !(rate > 0) || !isfinite(rate)) return;
    snprintf(text, sizeof text, rate < 1 ? "%.1f s each" : rate < 10 ? "%.1f/s" : "%.0f/s", rate < 1 ? 1 / rate : rate);
    add(buf, size, ", ", text);
}

// "pp8192: prefill 41%, 2 min left". The time appears if the outer level has none.
static void add_inner(const cli_progress *p, const cli_progress *inner, double left, double now, char *buf, size_t size) {
    char text[160], time[32];
    double own = inner ? cli_progress_left(inner, NULL, now) : NAN;
    if (p->item[0]) add(buf, size, "; ", p->item);
    if (!inner) return;
    int n = snprintf(text, sizeof text, "%.60s %.0f%%", inner->label, floor(100 * share_of(inner, own, now)));
    if (!isfinite(left) && isfinite(own)) snprintf(text + n, sizeof text - n, ", %s left", cli_duration(own, time));
    add(buf, size, p->item[0] ? ": " : "; ", text);
}

// Writes the chosen parts of the text after the label. of: what separates the two counts.
static void describe(const cli_progress *p, const cli_progress *inner, double now, int parts, const char *of, char *buf,
                     size_t size) {
    char text[96], time[32];
    double left = cli_progress_left(p, inner, now);
    buf[0] = 0;
    if (p->total)
        snprintf(text, sizeof text, "%d%s%d %.40s", p->done, of, p->total, p->unit);
    else
        snprintf(text, sizeof text, "%d %.40s", p->done, p->unit);
    if (parts & COUNT)
        add(buf, size, ", ", text);
    else
        snprintf(buf, size, "%.0f%%", floor(100 * share_of(p, left, now)));
    if (parts & RATE) add_rate(p, now, buf, size);
    snprintf(text, sizeof text, "%s left", cli_duration(left, time));
    if (parts & LEFT) add(buf, size, ", ", text);
    if (parts & INNER) add_inner(p, inner, left, now, buf, size);
}

void cli_progress_line(const cli_progress *p, const cli_progress *inner, double now, char buf[CLI_LINE]) {
    char text[CLI_LINE - 64];
    describe(p, inner, now, ALL, " of ", text, sizeof text);
    snprintf(buf, CLI_LINE, "%.60s: %s", p->label, text);
}

// Leaves out parts until the line fits; the bar and the time left are the last parts to go. A label that is too long is cut.
void cli_progress_bar(const cli_progress *p, const cli_progress *inner, double now, int columns, char buf[CLI_LINE]) {
    static const struct {
        int parts, has_bar;
    } tries[] = {{ALL, 1}, {COUNT | RATE | LEFT, 1}, {COUNT | LEFT, 1}, {LEFT, 1}, {LEFT, 0}, {0, 0}};
    static const char cells[] = "##############################"; // WIDE cells
    enum { N_TRIES = sizeof tries / sizeof *tries };
    char text[CLI_LINE - 128];
    int most = (columns < CLI_LINE ? columns : CLI_LINE) - 1, width = 0, i = 0;
    for (; i < N_TRIES; i++) {
        int has_bar = tries[i].has_bar;
        describe(p, inner, now, tries[i].parts, "/", text, sizeof text);
        width = most - (int)strlen(p->label) - (int)strlen(text) - (has_bar ? 4 : 1); // brackets and blanks
        if (width >= (has_bar ? NARROW : 0)) break;
    }
    if (width > WIDE) width = WIDE;
    int filled = (int)(share_of(p, cli_progress_left(p, inner, now), now) * width);
    if (i < N_TRIES && tries[i].has_bar)
        snprintf(buf, CLI_LINE, "%s [%.*s%*s] %s", p->label, filled, cells, width - filled, "", text);
    else
        snprintf(buf, CLI_LINE, "%s %s", p->label, text);
    if (most >= 0 && (int)strlen(buf) > most) buf[most] = 0;
}
