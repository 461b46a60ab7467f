// cli/bench/cliffs.c - see cliffs.h.
#include "cli/bench/cliffs.h"
#include "cli/output/progress_bar.h"
#include "cli/process.h"
#include "base/clock.h"

#include <math.h>
#include <stdlib.h>

static void sort_once(cli_ints *list) {
    int n = 0;
    cli_sort_ints(list);
    for (int i = 0; i < list->n; i++)
        if (n == 0 || list->at[i] != list->at[n - 1]) list->at[n++] = list->at[i];
    list->n = n;
}

int cli_cliffs_fits(const cli_cliffs *c, int seqs, int rows) {
    return (long long)c->n_seqs.at[seqs] * c->n_kv.at[rows] <= c->most_rows;
}

int cli_cliffs_open(cli_cliffs *c, sl_error *err) {
    sort_once(&c->n_seqs);
    sort_once(&c->n_kv);
    if (c->n_kv.at[0] == 0) return sl_fail(err, SL_ERR_ARG, "--depth 0: expected at least 1, a step needs rows to attend to");
    if (!cli_cliffs_fits(c, 0, 0))
        return sl_fail(err, SL_ERR_ARG, "--batch and --depth: expected a size of at most %d rows (batch x depth), found none",
                       c->most_rows);
    size_t n = (size_t)c->n_kinds * c->methods.n * c->n_seqs.n * c->n_kv.n;
    c->us = malloc(n * sizeof *c->us);
    if (!c->us) return sl_fail(err, SL_ERR_MEMORY, "bench attn --cliffs: out of memory");
    for (size_t i = 0; i < n; i++) c->us[i] = NAN;
    return 0;
}

void cli_cliffs_free(cli_cliffs *c) {
    cli_attn_list_free(&c->methods);
    free(c->us);
    c->us = NULL;
}

double *cli_cliffs_us(const cli_cliffs *c, cli_cliff_cell x) {
    size_t size = ((size_t)x.kind * c->methods.n + x.method) * c->n_seqs.n + x.seqs;
    return &c->us[size * c->n_kv.n + x.rows];
}

// ---- measurement ----

static int is_second(const cli_ints *axis, int i) { // neither an end of the axis nor every second value
    return i % 2 && i < axis->n - 1;
}

// 0: the cells of this size are timed first.
static int level_of(const cli_cliffs *c, int seqs, int rows) {
    return is_second(&c->n_seqs, seqs) || is_second(&c->n_kv, rows);
}

typedef struct turn {
    cli_cliffs *c;
    const cli_clock *clock;
    cli_progress bar;
    double end; // sl_now_ms
    int kind, n_done, n_all;
} turn;

static int time_cell(turn *t, cli_cliff_cell x, sl_error *err) {
    cli_cliffs *c = t->c;
    double us = NAN, *least = cli_cliffs_us(c, x);
    cli_progress_update(&t->bar, t->n_done++, t->n_all);
    int rc = t->clock->time(t->clock->ctx, &c->methods.specs[x.method], c->n_seqs.at[x.seqs], c->n_kv.at[x.rows], &us, err);
    if (!rc) *least = fmin(*least, us); // fmin drops NaN
    c->n_timed += !isnan(us);
    return rc;
}

// All methods at one size. Returns 1 when the time is over. The first cell is always timed.
static int time_size(turn *t, int seqs, int rows, int *rc, sl_error *err) {
    for (int m = 0; !*rc && m < t->c->methods.n; m++) {
        if (cli_interrupted()) *rc = sl_fail(err, SL_ERR_IO, "interrupted; the tables have %d measurements", t->c->n_timed);
        if (*rc || (t->n_done > 0 && sl_now_ms() >= t->end)) return 1;
        *rc = time_cell(t, (cli_cliff_cell){t->kind, m, seqs, rows}, err);
    }
    return *rc != 0;
}

int cli_cliffs_time(cli_cliffs *c, int kind, const cli_clock *clock, double seconds, sl_error *err) {
    turn t = {.c = c, .clock = clock, .end = sl_now_ms() + 1e3 * seconds, .kind = kind};
    int rc = 0, is_over = 0;
    for (int s = 0; s < c->n_seqs.n; s++)
        for (int r = 0; r < c->n_kv.n; r++) t.n_all += cli_cliffs_fits(c, s, r) * c->methods.n * CLI_CLIFF_PASSES;
    cli_progress_begin(&t.bar, "bench attn --cliffs", "times");
    cli_progress_item(&t.bar, c->kinds[kind].name);
    for (int part = 0; part < 2 * CLI_CLIFF_PASSES; part++)
        for (int s = 0; s < c->n_seqs.n; s++)
            for (int r = 0; !is_over && r < c->n_kv.n; r++)
                if (cli_cliffs_fits(c, s, r) && level_of(c, s, r) == part / CLI_CLIFF_PASSES)
                    is_over = time_size(&t, s, r, &rc, err);
    cli_progress_end(&t.bar);
    return rc;
}

// ---- rules ----

double cli_cliffs_of_dense(const cli_cliffs *c, cli_cliff_cell x) {
    cli_cliff_cell dense = x;
    dense.method = 0;
    return *cli_cliffs_us(c, x) / *cli_cliffs_us(c, dense);
}

double cli_cliffs_of_fewer_rows(const cli_cliffs *c, cli_cliff_cell x, cli_cliff_cell *smaller) {
    for (*smaller = x; --smaller->rows >= 0;) {
        double us = *cli_cliffs_us(c, *smaller);
        if (!isnan(us)) return *cli_cliffs_us(c, x) / us;
    }
    return NAN;
}

double cli_cliffs_of_fewer_seqs(const cli_cliffs *c, cli_cliff_cell x, cli_cliff_cell *smaller) {
    for (*smaller = x; --smaller->seqs >= 0;) {
        double us = *cli_cliffs_us(c, *smaller);
        if (!isnan(us)) return *cli_cliffs_us(c, x) / us;
    }
    return NAN;
}

int cli_cliffs_is_slow(double of_dense) {
    return of_dense > CLI_CLIFF_SLOW; // false for NaN
}

int cli_cliffs_is_drop(double of_fewer) {
    return of_fewer < CLI_CLIFF_LESS;
}
