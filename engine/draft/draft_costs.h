// engine/draft/draft_costs.h - what passes cost, measured while they run: a line through the durations of the last passes over
// their numbers of rows, and the duration of a step of each draft method.
#ifndef SLEIGH_DRAFT_COSTS_H
#define SLEIGH_DRAFT_COSTS_H

enum { SL_DRAFT_METHODS = 2 }; // of a drafter, that draft by decode steps

typedef struct sl_draft_costs {              // of an engine; initialise with zeros
    double weight, rows, rows2, ms, rows_ms; // sums over passes, of which older ones count less
    double method_ms[SL_DRAFT_METHODS];      // of a step of one session; 0: not measured yet
} sl_draft_costs;

void sl_draft_costs_pass(sl_draft_costs *c, int n_rows, double ms);
void sl_draft_costs_method(sl_draft_costs *c, int which, double ms);
// The line: a pass of n rows takes *fixed + n *each milliseconds. Before the first pass *fixed is 1; before passes of different
// sizes a further row counts as 0.3 passes of one row.
void sl_draft_costs_line(const sl_draft_costs *c, double *fixed, double *each);
double sl_draft_costs_of_method(const sl_draft_costs *c, int which); // not measured yet: half of a pass of one row

#endif
