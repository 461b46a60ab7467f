// engine/cli/output/progress_bar.c - see progress_bar.h.
#include "engine/cli/output/progress_bar.h"
#include "engine/cli/process.h"

#include <stdio.h>
#include <unistd.h>

enum { BAR = 30, TERMINAL_FIRST_MS = 1000, TERMINAL_EVERY_MS = 100, LINE_FIRST_MS = 10000, LINE_EVERY_MS = 15000 };

// "40 s", "12 min" or "3.5 h".
static const char *duration(double s, char buf[32]) {
    snprintf(buf, 32, s < 90 ? "%.0f s" : s < 5400 ? "%.0f min" : "%.1f h", s < 90 ? s : s < 5400 ? s / 60 : s / 3600);
    return buf;
}

void cli_progress_begin(cli_progress *p, const char *label, const char *unit) {
    *p = (cli_progress){.label = label, .unit = unit, .on_terminal = isatty(STDERR_FILENO), .start = cli_now()};
}

void cli_progress_update(void *progress, int done, int total) {
    cli_progress *p = progress;
    double now = cli_now(), first = p->on_terminal ? TERMINAL_FIRST_MS : LINE_FIRST_MS;
    double every = p->on_terminal ? TERMINAL_EVERY_MS : LINE_EVERY_MS;
    if (now - p->start < first || (p->shown && now - p->last < every) || done >= total) return;
    double rate = 1e3 * done / (now - p->start);
    char left[32];
    duration(done ? (total - done) / rate : 0, left);
    if (p->on_terminal) {
        int filled = (int)((double)done / total * BAR);
        fprintf(stderr, "\r\033[K%s [%.*s%*s] %d/%d %s, %.0f/s, %s left", p->label, filled, "##############################",
                BAR - filled, "", done, total, p->unit, rate, done ? left : "?");
    } else {
        fprintf(stderr, "progress: %s: %d of %d %s, %.1f/s, %s left\n", p->label, done, total, p->unit, rate,
                done ? left : "?");
    }
    fflush(stderr);
    p->shown = 1;
    p->last = now;
}

void cli_progress_end(cli_progress *p) {
    if (p->shown && p->on_terminal) fprintf(stderr, "\r\033[K");
    p->shown = 0;
}
