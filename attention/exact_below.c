// attention/exact_below.c - below which number of rows a sequence attends to every row (sl_attn_exact_below).
#include "attention/attention.h"

#include <string.h>

// The rows that a head takes with every length of the sequence. With a stated error, a step chooses them.
static double rows_of(const sl_attn_spec *spec) {
    static const char *const names[] = {"S", "k", "tokens", "sink", "window"};
    double rows = 0;
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        if (sl_attn_has(spec, names[i])) rows += sl_attn_get(spec, names[i]);
    return rows;
}

static double crossover_of(const sl_attn_spec *spec, const sl_attn_crossover *c) {
    if (sl_attn_states_error(spec)) return c->stated;
    double by_rows = c->ratio * rows_of(spec);
    return by_rows > c->least ? by_rows : c->least;
}

int sl_attn_exact_below(const sl_attn_spec *spec, int setting, int on_gpu) {
    enum { LEAST = 256, MOST = 1 << 24 };
    double rows = crossover_of(spec, &spec->method->crossover[on_gpu]);
    if (spec->plus) rows = fmax(rows, crossover_of(spec, &spec->plus->crossover[on_gpu]));
    if (rows == 0 || setting != SL_EXACT_AUTO) return rows > 0 ? setting : 0;
    int power = LEAST;
    while (power < rows && power < MOST) power *= 2;
    return power;
}
