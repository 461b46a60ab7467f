// engine/cli/output/progress_bar.h - how far a long piece of work is, on stderr: a bar on a terminal, an occasional line
// elsewhere.
//
// Says nothing about work that ends within a second (terminal) or ten (elsewhere).
#ifndef SLEIGH_PROGRESS_H
#define SLEIGH_PROGRESS_H

typedef struct cli_progress {
    const char *label, *unit; // "prefill", "tokens"
    int on_terminal, shown;
    double start, last; // milliseconds: of the work, of the last time something was shown
} cli_progress;

void cli_progress_begin(cli_progress *p, const char *label, const char *unit);
void cli_progress_update(void *progress, int done, int total); // an sl_progress_fn
void cli_progress_end(cli_progress *p);                        // clears the bar

#endif
