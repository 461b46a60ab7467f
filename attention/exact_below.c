// attention/exact_below.c - below which number of rows a sequence attends to every row (sl_attn_exact_below).
#include "attention/attention.h"

#include <math.h>
#include <string.h>

// The rows that a head takes with every length of the sequence. With a stated error, a step chooses them.
static double rows_of(const sl_attn_spec *spec) {
    static const char *const names[] = {"S", "k", "tokens", "sink", "window"};
    double rows = 0;
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        if (sl_attn_has(spec, names[i])) rows += sl_attn_get(spec, names[i]);
    return rows;
}

// santa-pps and santa-is on a GPU keep the heavy rows of a head in lists. Heads with more heavy rows take turns, so the rows
// from which on draws cost less grow with S^2 (results/cliffs.md).
static double rows_for_lists(const sl_attn_spec *spec, int on_gpu) {
    if (!on_gpu || !sl_attn_has(spec, "S") || !sl_attn_has(spec, "epsilon")) return 0;
    double S = sl_attn_get(spec, "S");
    return S * S / 8;
}

static double crossover_of(const sl_attn_spec *spec, const sl_attn_method *m, int on_gpu) {
    const sl_attn_crossover *c = &m->crossover[on_gpu];
    if (sl_attn_states_error(spec)) return c->stated;
    return fmax(fmax(c->ratio * rows_of(spec), c->least), c->ratio ? rows_for_lists(spec, on_gpu) : 0);
}

int sl_attn_exact_below(const sl_attn_spec *spec, int setting, int on_gpu) {
    enum { LEAST = 256, MOST = 1 << 24 };
    double rows = crossover_of(spec, spec->method, on_gpu);
    if (spec->plus) rows = fmax(rows, crossover_of(spec, spec->plus, on_gpu));
    if (rows == 0 || setting != SL_EXACT_AUTO) return rows > 0 ? setting : 0;
    int power = LEAST;
    while (power < rows && power < MOST) power *= 2;
    return power;
}
