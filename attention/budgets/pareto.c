// attention/budgets/pareto.c - see pareto.h.
#include "attention/budgets/pareto.h"

#include <math.h>

enum { LEAST = 5 };

typedef struct tail {
    const double *w; // [n] ascending
    double from;
    int n;
} tail;

// The shape that belongs to b, as the maximum of the likelihood.
static double shape_of(const tail *t, double b) {
    double sum = 0;
    for (int i = 0; i < t->n; i++) sum += log1p(-b * (t->w[i] - t->from));
    return sum / t->n;
}

// Number j of the grid. Zhang and Stephens choose it from the prior of b: the quartile and the largest number scale it.
static double grid_point(const tail *t, int j, int n_grid) {
    double quartile = t->w[(int)(t->n / 4.0 + 0.5) - 1] - t->from, most = t->w[t->n - 1] - t->from;
    return 1 / most + (1 - sqrt(n_grid / (j + 0.5))) / (3 * quartile);
}

static double log_likelihood(const tail *t, double b) {
    double k = shape_of(t, b);
    return t->n * (log(-b / k) - k - 1);
}

double sl_pareto_shape(const double *w, int n) {
    int m = n / 5 < (int)ceil(3 * sqrt(n)) ? n / 5 : (int)ceil(3 * sqrt(n));
    double from = n > m ? w[n - m - 1] : 0, most = -INFINITY, sum = 0, mean = 0;
    while (m >= LEAST && !(w[n - m] > from)) m--; // a row that was drawn twice has two equal numbers
    if (m < LEAST || !isfinite(w[n - 1]) || !(w[n - 1] > w[n - m])) return NAN;
    tail t = {w + n - m, from, m};
    int n_grid = 30 + (int)sqrt(m);
    for (int j = 0; j < n_grid; j++) most = fmax(most, log_likelihood(&t, grid_point(&t, j, n_grid)));
    for (int j = 0; j < n_grid; j++) {
        double b = grid_point(&t, j, n_grid), p = exp(log_likelihood(&t, b) - most);
        if (!(p > 0)) continue; // b k >= 0 has no likelihood
        sum += p, mean += p * b;
    }
    double k = shape_of(&t, mean / sum);
    return (m * k + 10 * 0.5) / (m + 10);
}
