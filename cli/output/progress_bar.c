// cli/output/progress_bar.c - see progress_bar.h.
#include "cli/output/progress_bar.h"
#include "cli/process.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <unistd.h>

enum { TERMINAL_FIRST_MS = 1000, TERMINAL_EVERY_MS = 100, LINE_FIRST_MS = 10000, LINE_EVERY_MS = 15000, COLUMNS = 80 };

#define ERASE "\r\033[K"

// Mutable static state: the process has one terminal.
static struct {
    cli_progress *inner;   // the innermost level; NULL: none
    double last;           // time of the last output
    volatile int is_shown; // the bar is on the screen
    int is_hidden;         // the bar was on the screen and comes back
    int is_mid_line;       // the last text on stdout has no line break at its end, so a bar would clear it
} screen;

void (*cli_progress_watch)(const cli_progress *outermost);

// 1: stderr is a terminal that can clear a line.
static int on_terminal(void) {
    const char *term = getenv("TERM");
    return isatty(STDERR_FILENO) && term && *term && strcmp(term, "dumb");
}

static int columns(void) {
    struct winsize size;
    return !ioctl(STDERR_FILENO, TIOCGWINSZ, &size) && size.ws_col ? size.ws_col : COLUMNS;
}

static const cli_progress *outermost(void) {
    const cli_progress *p = screen.inner;
    while (p && p->outer) p = p->outer;
    return p;
}

static void erase(void) {
    if (screen.is_shown) fputs(ERASE, stderr);
    screen.is_shown = 0;
}

static void draw(double now, int is_terminal) {
    const cli_progress *p = outermost(), *inner = screen.inner == p ? NULL : screen.inner;
    char text[CLI_LINE];
    if (is_terminal) {
        cli_progress_bar(p, inner, now, columns(), text);
        fprintf(stderr, ERASE "%s", text);
        screen.is_shown = 1;
    } else {
        cli_progress_line(p, inner, now, text);
        fprintf(stderr, "progress: %s\n", text);
    }
    fflush(stderr);
    screen.last = now;
    screen.is_hidden = 0;
}

static void draw_if_due(void) {
    const cli_progress *p = outermost();
    if (cli_progress_watch && p) cli_progress_watch(p);
    int is_terminal = on_terminal();
    double now = sl_now_ms(), first = is_terminal ? TERMINAL_FIRST_MS : LINE_FIRST_MS;
    double every = is_terminal ? TERMINAL_EVERY_MS : LINE_EVERY_MS;
    if (!p || now - p->start < first || (screen.last > p->start && now - screen.last < every)) return;
    if ((p == screen.inner && p->done >= p->total) || (is_terminal && screen.is_mid_line)) return;
    draw(now, is_terminal);
}

// ---- levels ----

void cli_progress_begin(cli_progress *p, const char *label, const char *unit) {
    *p = (cli_progress){.label = label, .unit = unit, .start = sl_now_ms(), .outer = screen.inner};
    screen.inner = p;
}

void cli_progress_begin_prefill(cli_progress *p, const sl_model *model, int n_from) {
    cli_progress_begin(p, "prefill", "tokens");
    p->cost = cli_prefill_cost, p->model = model, p->n_from = n_from;
}

void cli_progress_begin_run(cli_progress *p, const char *label, const char *unit, int total, double prefill, double rest) {
    cli_progress_begin(p, label, unit);
    p->is_run = 1, p->total = total, p->prefill.total = prefill, p->rest.total = rest;
}

void cli_progress_end(cli_progress *p) {
    cli_progress *outer = p->outer;
    screen.inner = outer;
    for (; outer && p->cost; outer = outer->outer) {
        if (!(outer->prefill.total > 0)) continue;
        outer->prefill.done += p->cost(p, p->done);
        outer->prefill.ms += sl_now_ms() - p->start;
    }
    if (screen.inner) return;
    erase();
    screen.is_hidden = 0;
}

// ---- reports ----

void cli_progress_update(void *progress, int done, int total) {
    cli_progress *p = progress;
    p->done = done, p->total = total;
    draw_if_due();
}

void cli_progress_item(cli_progress *p, const char *name) {
    snprintf(p->item, sizeof p->item, "%s", name);
    draw_if_due();
}

void cli_progress_work(cli_progress *p, double cost) {
    p->rest.done += cost;
    draw_if_due();
}

// ---- other text on the terminal ----

void cli_progress_hide(void) {
    if (!screen.is_shown) return;
    erase();
    fflush(stderr);
    screen.is_hidden = 1;
}

void cli_progress_show(void) {
    if (screen.is_hidden && screen.inner && !screen.is_mid_line) draw(sl_now_ms(), 1);
}

void cli_say(const char *fmt, ...) {
    va_list args;
    cli_progress_hide();
    if (screen.is_mid_line && isatty(STDERR_FILENO)) {
        fputc('\n', stderr);
        screen.is_mid_line = 0;
    }
    va_start(args, fmt);
    vfprintf(stderr, fmt, args);
    va_end(args);
    fputc('\n', stderr);
    cli_progress_show();
}

void cli_progress_before_output(const char *text, size_t n) {
    if (!n || !isatty(STDOUT_FILENO)) return;
    cli_progress_hide();
    screen.is_mid_line = text[n - 1] != '\n';
}

const char *cli_progress_erase(void) {
    return screen.is_shown ? ERASE : "";
}
