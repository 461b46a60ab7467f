// cli/output/progress_line.h - what a progress bar says: the time left, and the text of one line. These functions are
// pure: the caller gives the time and the width.
#ifndef SLEIGH_PROGRESS_LINE_H
#define SLEIGH_PROGRESS_LINE_H

#include "engine/engine.h"

#include <stddef.h>

// Work of one kind, in a unit of cost: flops, bytes, items.
typedef struct cli_work {
    double total, done;
    double ms;   // time that `done` took
    double rate; // cost per millisecond, known before any work is done; 0: unknown
} cli_work;

double cli_work_left(const cli_work *w); // milliseconds; NaN: unknown

enum { CLI_NO_WORK = -1 };

// One level of progress. A whole run is an outer level; a prefill of this run is an inner level.
typedef struct cli_progress cli_progress;
struct cli_progress {
    const char *label, *unit; // "prefill", "tokens"
    char item[64];            // what runs at the moment: "tg128 @ d8192"; "": not named
    int done, total;          // in units
    int is_run;               // 1: units differ too much for a speed
    // Cost of the first n units; NULL: every unit costs the same.
    double (*cost)(const cli_progress *p, int n);
    const sl_model *model; // of a prefill, with n_from tokens before it
    int n_from;
    // The prefills of a run and the rest of its work have different speeds. prefill.total 0: prefills are not counted apart.
    // rest.total 0: the rest is counted in units; CLI_NO_WORK: there is no other work.
    cli_work prefill, rest;
    double start; // milliseconds
    cli_progress *outer;
};

double cli_prefill_cost(const cli_progress *p, int n); // floating-point operations

// Time until the end of *p at time `now`, in milliseconds. inner: the level below it that runs; NULL: none. NaN: unknown.
double cli_progress_left(const cli_progress *p, const cli_progress *inner, double now);

enum { CLI_LINE = 512 };

// The bar for a terminal of so many columns, at most columns - 1 characters long.
void cli_progress_bar(const cli_progress *p, const cli_progress *inner, double now, int columns, char buf[CLI_LINE]);
// The same for a file, as one line: "prefill: 512 of 8192 tokens, 51/s, 40 s left".
void cli_progress_line(const cli_progress *p, const cli_progress *inner, double now, char buf[CLI_LINE]);

const char *cli_duration(double ms, char buf[32]); // "40 s", "12 min", "3.5 h"; NaN: "?"

#endif
