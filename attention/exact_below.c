// attention/exact_below.c - below which number of rows a sequence attends to every row (sl_attn_exact_below).
#include "attention/attention.h"

#include <math.h>
#include <string.h>

// A method with the values of its parameters: the first or the second one of a specification.
typedef struct part {
    const sl_attn_method *method;
    const double *value;
} part;

static double value_of(part x, const char *name) { // 0: the method has no such parameter
    int i = sl_attn_param_index(x.method, name);
    return i < 0 ? 0 : x.value[i];
}

// The rows that a head takes with every length of the sequence. The `tokens` of quest include its sink. With a stated error, a
// step chooses the rows.
static double rows_of(part x) {
    double tokens = value_of(x, "tokens"), ends = tokens > 0 ? 0 : value_of(x, "sink") + value_of(x, "window");
    return value_of(x, "S") + value_of(x, "k") + tokens + ends;
}

// On a GPU one thread block draws all rows of a head of santa-pps. With one sequence, most multiprocessors then have no draws,
// and the rows from which on draws cost less grow with S^2 (results/cliffs.md).
static double rows_for_one_block(part x, int on_gpu) {
    double S = value_of(x, "S");
    return on_gpu && !strcmp(x.method->name, "santa-pps") ? S * S / 8 : 0;
}

static double crossover_of(part x, int states_error, int on_gpu) {
    const sl_attn_crossover *c = &x.method->crossover[on_gpu];
    return states_error ? c->stated : fmax(fmax(c->ratio * rows_of(x), c->least), rows_for_one_block(x, on_gpu));
}

int sl_attn_exact_below(const sl_attn_spec *spec, int setting, int on_gpu) {
    enum { LEAST = 256, MOST = 1 << 24 };
    int states_error = sl_attn_states_error(spec);
    double rows = crossover_of((part){spec->method, spec->value}, states_error, on_gpu);
    if (spec->plus) rows = fmax(rows, crossover_of((part){spec->plus, spec->plus_value}, states_error, on_gpu));
    if (rows == 0 || setting != SL_EXACT_AUTO) return rows > 0 ? setting : 0;
    int power = LEAST;
    while (power < rows && power < MOST) power *= 2;
    return power;
}
