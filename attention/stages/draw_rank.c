// attention/stages/draw_rank.c - deterministic draws: the rows of largest mass; the fewest rows with a share of the mass; a
// fixed set; the units of largest bound. Each row is taken once (pi = 1). The rows that are left out bias the output.
#include "attention/stages/stages.h"

#include <math.h>
#include <string.h>

static void take_rows(sl_head *x, int n) { // draws.row[0..n) once each
    x->draws.n = x->draws.n_draws = n;
    for (int i = 0; i < n; i++) x->draws.count[i] = 1, x->draws.inv_pi[i] = 1;
}

// ---- the k largest ----

static size_t k_of(const sl_attn_spec *spec, int n_kv) {
    int k = (int)sl_attn_get(spec, "k");
    return k < n_kv ? k : n_kv;
}
static int k_budget(const sl_attn_spec *spec, int n_kv) {
    return (int)k_of(spec, n_kv);
}
static void run_top_k(sl_head *x) {
    take_rows(x, sl_masses_largest(&x->masses, x->S, x->draws.row));
}
const sl_draw sl_draw_top_k = {.budget = k_budget, .capacity = k_of, .run = run_top_k, .takes_set = 1};

// ---- the fewest rows with the share p of the mass ----

static size_t every_row(const sl_attn_spec *spec, int n_kv) {
    (void)spec;
    return n_kv;
}
static int no_budget(const sl_attn_spec *spec, int n_kv) { // the number of rows follows from the masses
    (void)spec, (void)n_kv;
    return 0;
}
static void run_top_p(sl_head *x) {
    take_rows(x, sl_masses_reaching(&x->masses, sl_attn_get(x->group->args->spec, "p"), x->draws.row));
}
const sl_draw sl_draw_top_p = {.budget = no_budget, .capacity = every_row, .run = run_top_p, .takes_set = 1};

// ---- the first `sink` rows and the last `window` ----

static size_t window_capacity(const sl_attn_spec *spec, int n_kv) {
    size_t most = (size_t)(sl_attn_get(spec, "sink") + sl_attn_get(spec, "window"));
    return most < (size_t)n_kv ? most : (size_t)n_kv;
}
static int window_budget(const sl_attn_spec *spec, int n_kv) {
    return (int)window_capacity(spec, n_kv);
}
static void run_window(sl_head *x) {
    int n = x->group->kv->n_kv, sink = (int)sl_attn_get(x->group->args->spec, "sink"), tail = x->S - sink;
    for (int i = 0; i < x->S; i++) x->draws.row[i] = i < sink ? i : n - tail + (i - sink);
    take_rows(x, x->S);
}
static sl_row_ranges window_ranges(const sl_attn_spec *spec, int n_kv) {
    int sink = (int)sl_attn_get(spec, "sink"), n = (int)window_capacity(spec, n_kv);
    if (n == n_kv) sink = n_kv; // one range: the bits of dense attention
    return (sl_row_ranges){{0, n_kv - (n - sink)}, {sink, n_kv}};
}
const sl_draw sl_draw_window = {
    .budget = window_budget, .capacity = window_capacity, .run = run_window, .takes_set = 1, .ranges = window_ranges};

// ---- the newest unit, and the units of largest bound (Quest) ----

static int unit_budget(const sl_attn_spec *spec, int n_kv) {
    int unit = sl_composition_of(spec).propose->unit, k = (int)sl_attn_get(spec, "tokens") / unit, n = (n_kv + unit - 1) / unit;
    return k < n ? k : n;
}
static size_t unit_capacity(const sl_attn_spec *spec, int n_kv) {
    size_t most = (size_t)unit_budget(spec, n_kv) * sl_composition_of(spec).propose->unit;
    return most < (size_t)n_kv ? most : (size_t)n_kv;
}
static size_t unit_scratch(const sl_attn_spec *spec, int n_kv) {
    return (size_t)unit_budget(spec, n_kv);
}

// The first n_sink units, the newest unit, and as many units of largest bound as the budget S leaves. A unit whose bound is
// 2^-133 of another bound of its block has a stored mass of 0. Such a unit is drawn only when the budget allows every unit.
static int top_units(sl_head *x, int n_sink, int32_t *units) {
    int newest = x->masses.n - 1, n = 0, n_first = 0, found = 0;
    if (x->S > newest) {
        while (n <= newest) units[n] = n, n++;
        return n;
    }
    if (n_sink > x->S - 1) n_sink = x->S - 1;
    for (int k = x->S, excess = 1; excess > 0; k = found - excess) { // fixed units replace the smallest of the k largest units
        n = found = k > 0 ? sl_masses_largest(&x->masses, k, units) : 0;
        if (n > 0 && units[n - 1] == newest) n--;
        for (n_first = 0; n_first < n && units[n_first] < n_sink;) n_first++;
        excess = n - n_first + n_sink + 1 - x->S;
    }
    memmove(units + n_sink, units + n_first, (n - n_first) * sizeof *units);
    for (int i = 0; i < n_sink; i++) units[i] = i;
    n += n_sink - n_first;
    units[n++] = newest;
    return n;
}

static void run_top_units(sl_head *x) {
    int unit = sl_composition_of(x->group->args->spec).propose->unit, n_kv = x->group->kv->n_kv;
    int32_t *units = (int32_t *)x->draws.scratch;
    int sink = (int)sl_attn_get(x->group->args->spec, "sink"), n_units = top_units(x, (sink + unit - 1) / unit, units), n = 0;
    for (int i = 0; i < n_units; i++)
        for (int j = units[i] * unit; j < (units[i] + 1) * unit && j < n_kv; j++) x->draws.row[n++] = j;
    take_rows(x, n);
}
const sl_draw sl_draw_top_units = {
    .budget = unit_budget, .capacity = unit_capacity, .scratch = unit_scratch, .run = run_top_units, .takes_set = 1};
