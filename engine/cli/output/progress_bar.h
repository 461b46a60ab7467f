// engine/cli/output/progress_bar.h - the progress of long work on stderr: a bar on a terminal, else a line from time to time.
//
// Shows nothing in the first second on a terminal, or in the first 10 seconds elsewhere.
#ifndef SLEIGH_PROGRESS_H
#define SLEIGH_PROGRESS_H

typedef struct cli_progress {
    const char *label, *unit; // "prefill", "tokens"
    int on_terminal, shown;
    double start, last; // milliseconds: start of the work; last output
} cli_progress;

void cli_progress_begin(cli_progress *p, const char *label, const char *unit);
void cli_progress_update(void *progress, int done, int total); // an sl_progress_fn
void cli_progress_end(cli_progress *p);                        // clears the bar

#endif
