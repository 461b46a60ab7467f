// engine/draft/draft_costs.c - durations of passes.
#include "engine/draft/draft_costs.h"

#include <stddef.h>

#define FORGET 0.98 // the weight of a pass falls by this factor with each later pass

void sl_draft_costs_pass(sl_draft_costs *c, int n_rows, double ms) {
    double fixed, each;
    uint64_t *word = &c->seen[n_rows / 64 % SL_DRAFT_SEEN], bit = (uint64_t)1 << n_rows % 64, is_new = ~*word & bit;
    *word |= bit;
    if (is_new) return;
    sl_draft_costs_line(c, &fixed, &each);
    double most = 2 * (fixed + each * n_rows);
    if (c->weight > 0 && ms > most) ms = most; // another program took the processor
    c->weight = c->weight * FORGET + 1;
    c->rows = c->rows * FORGET + n_rows;
    c->rows2 = c->rows2 * FORGET + (double)n_rows * n_rows;
    c->ms = c->ms * FORGET + ms;
    c->rows_ms = c->rows_ms * FORGET + n_rows * ms;
}

void sl_draft_costs_age(sl_draft_costs *c) {
    const double left = 0.05;
    c->weight *= left, c->rows *= left, c->rows2 *= left, c->ms *= left, c->rows_ms *= left;
}

static double *entry(const sl_draft_costs *c, uint64_t key) {
    for (int i = 0; i < SL_DRAFT_COSTS; i++)
        if (c->method[i].key == key) return (double *)&c->method[i].ms;
    return NULL;
}

void sl_draft_costs_method(sl_draft_costs *c, uint64_t key, double ms) {
    double *mean = entry(c, key), fixed, each;
    if (mean && *mean > 0) {
        if (ms > 2 * *mean) ms = 2 * *mean;
        *mean = 0.8 * *mean + 0.2 * ms;
        return;
    }
    sl_draft_costs_line(c, &fixed, &each);
    if (mean) {
        *mean = c->weight > 0 && ms > fixed + each ? fixed + each : ms;
        return;
    }
    c->method[c->next].key = key, c->method[c->next].ms = 0;
    c->next = (c->next + 1) % SL_DRAFT_COSTS;
}

void sl_draft_costs_line(const sl_draft_costs *c, double *fixed, double *each) {
    const double guess = 0.3; // of a row, relative to a pass of one row: what rows cost on a CPU
    if (c->weight <= 0) {
        *fixed = 1, *each = guess;
        return;
    }
    double rows = c->rows / c->weight, ms = c->ms / c->weight;
    double variance = c->rows2 / c->weight - rows * rows, covariance = c->rows_ms / c->weight - rows * ms;
    *each = variance > 0.01 ? covariance / variance : guess * ms / (1 + guess * (rows - 1));
    if (*each < 0.01 * ms / rows) *each = 0.01 * ms / rows; // noise
    if (*each > 0.95 * ms / rows) *each = 0.95 * ms / rows;
    *fixed = ms - *each * rows;
}

double sl_draft_costs_of_method(const sl_draft_costs *c, uint64_t key) {
    const double *ms = entry(c, key);
    return ms ? *ms : 0;
}
