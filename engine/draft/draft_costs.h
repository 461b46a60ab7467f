// engine/draft/draft_costs.h - what passes cost, measured while they run: a line through the durations of the last passes over
// their numbers of rows, and the duration of a step of each draft method.
#ifndef SLEIGH_DRAFT_COSTS_H
#define SLEIGH_DRAFT_COSTS_H

#include <stdint.h>

enum {
    SL_DRAFT_COSTS = 8, // methods whose costs an engine keeps
    SL_DRAFT_SEEN = 16
};

typedef struct sl_draft_costs {              // of an engine; initialise with zeros
    double weight, rows, rows2, ms, rows_ms; // sums over passes, of which older ones count less
    struct {
        uint64_t key; // of the method; 0: none
        double ms;    // of a draft of one session
    } method[SL_DRAFT_COSTS];
    int next;                     // the entry that the next new method takes
    uint64_t seen[SL_DRAFT_SEEN]; // bit i: there was a pass of i rows, modulo 1,024
} sl_draft_costs;

// The first pass of a number of rows, and the first draft of a method, do not count: a GPU records them, and they may read
// memory that was not used before.
void sl_draft_costs_pass(sl_draft_costs *c, int n_rows, double ms);
void sl_draft_costs_method(sl_draft_costs *c, uint64_t key, double ms);
void sl_draft_costs_age(sl_draft_costs *c); // the next pass counts more than all before it
// The line: a pass of n rows takes *fixed + n *each milliseconds. Before the first pass *fixed is 1; before passes of different
// sizes a further row counts as 0.3 passes of one row.
void sl_draft_costs_line(const sl_draft_costs *c, double *fixed, double *each);
double sl_draft_costs_of_method(const sl_draft_costs *c, uint64_t key); // 0: not measured yet

#endif
