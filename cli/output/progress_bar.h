// cli/output/progress_bar.h - the progress of long work on stderr: one bar on a terminal, else a line from time to time.
//
// Shows nothing in the first second on a terminal, or in the first 10 seconds elsewhere. The levels of work are nested: the bar
// of an outer level (a run of many tests) says what the innermost level (a prefill) does. The bar must not be on the screen
// when other text is written to the same terminal: write to stderr with cli_say, and to stdout with the functions of io.h.
#ifndef SLEIGH_PROGRESS_H
#define SLEIGH_PROGRESS_H

#include "cli/output/progress_line.h"

// ---- levels: each begin needs an end, in the opposite order ----

void cli_progress_begin(cli_progress *p, const char *label, const char *unit);
// A prefill in a session of n_from tokens. Its time left follows from the operations of its tokens, which become more.
void cli_progress_begin_prefill(cli_progress *p, const sl_model *model, int n_from);
// A run of `total` units. prefill: cost of its prefills as cli_prefill_cost; 0: unknown. rest: cost of the other work, which
// cli_progress_work counts; 0: each unit costs the same; CLI_NO_WORK: none.
void cli_progress_begin_run(cli_progress *p, const char *label, const char *unit, int total, double prefill, double rest);
void cli_progress_end(cli_progress *p);

// ---- reports ----

void cli_progress_update(void *progress, int done, int total); // an sl_progress_fn
void cli_progress_item(cli_progress *p, const char *name);     // what runs now
void cli_progress_work(cli_progress *p, double cost);          // `cost` more of the rest is done

// ---- other text on the terminal ----

// Writes a line to stderr; the format has no line break at its end.
__attribute__((format(printf, 1, 2))) void cli_say(const char *fmt, ...);
void cli_progress_hide(void); // before text to stderr without cli_say
void cli_progress_show(void); // after this text: draws the hidden bar again
// io.h calls these functions before text goes to stdout, and after it was flushed.
void cli_progress_before_output(const char *text, size_t n);
const char *cli_progress_erase(void); // what clears the bar, for a signal handler: "" if there is no bar

// ---- tests ----

extern void (*cli_progress_watch)(const cli_progress *outermost); // a test receives each report here; NULL: no test does

#endif
