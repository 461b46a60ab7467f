// attention/stages/draw_take_all.c - take-all + PPS (probability proportional to size): every heavy row once, light rows in
// proportion to size (docs/methods-theory.md, santa-pps).
//
// The estimate is unbiased for every heavy set that does not depend on the uniform numbers. With this heavy set there are S
// draws in total, and no light row has an expected count above 1.
#include "attention/stages/stages.h"

#include <math.h>

typedef unsigned __int128 u128;

static void sort_descending(uint64_t *x, int n) {
    sl_sort(x, n);
    for (int i = 0, j = n - 1; i < j; i++, j--) {
        uint64_t t = x[i];
        x[i] = x[j], x[j] = t;
    }
}

// Finds the n <= most largest rows of positive size: the rows, ascending, into out->row; their sizes, in this order, into
// out->scratch[most..); the sizes in descending order into out->scratch[0..). Returns n.
static int largest_sizes(const sl_masses *size, int most, sl_draws *out) {
    int found = sl_masses_largest(size, most, out->row), n = 0;
    for (int i = 0; i < found; i++) {
        uint64_t mass = sl_masses_of_row(size, out->row[i]);
        if (mass == 0) continue; // the stored size is positive, but its integer is 0
        out->row[n] = out->row[i];
        out->scratch[n] = out->scratch[most + n] = mass;
        n++;
    }
    sort_descending(out->scratch, n);
    return n;
}

// ---- draws of light rows ----

typedef struct walk {
    const sl_masses *size;
    sl_draws *out;
    const uint64_t *heavy, *heavy_size; // [n_heavy] rows, ascending, and their sizes
    int n_heavy, next;                  // heavy rows before number `next` are passed, that is drawn
    uint64_t passed;                    // total size of the passed heavy rows
    int row;                            // the next row that a threshold may draw
    uint64_t running;                   // total size of the rows before `row`, heavy rows included
    uint64_t mass[SL_BLOCK];            // of the rows of block `block`
    int block;                          // -1: none
} walk;

static void pass_heavy(walk *w) {
    w->passed += w->heavy_size[w->next];
    sl_draws_add(w->out, (int)w->heavy[w->next++], 1);
}

static uint64_t running_at_block(const sl_masses *size, int b) { // total size of the rows before block b
    return b < size->n_blocks ? size->cum[b] + size->uniform * SL_BLOCK * (uint64_t)b : sl_masses_total(size);
}

// Skips blocks while the running light size at the end of the block is at most t.
static void skip_blocks(walk *w, uint64_t t) {
    for (int b = w->row / SL_BLOCK;; b++) {
        int next = w->next;
        uint64_t heavy = w->passed, end = running_at_block(w->size, b + 1);
        for (; next < w->n_heavy && (int)w->heavy[next] < (b + 1) * SL_BLOCK; next++) heavy += w->heavy_size[next];
        if (end - heavy > t) return;
        while (w->next < next) pass_heavy(w);
        w->row = (b + 1) * SL_BLOCK;
        w->running = end;
    }
}

// Draws the light row at t. t is below the total light size, and does not descend from call to call.
static void draw_light(walk *w, uint64_t t, double kappa) {
    skip_blocks(w, t);
    for (;; w->row++) {
        if (w->row / SL_BLOCK != w->block) sl_masses_of_block(w->size, w->block = w->row / SL_BLOCK, w->mass);
        if (w->next < w->n_heavy && (int)w->heavy[w->next] == w->row) {
            w->running += w->heavy_size[w->next];
            pass_heavy(w);
            continue;
        }
        uint64_t mass = w->mass[w->row % SL_BLOCK];
        if (w->running + mass - w->passed > t) { // the next threshold may draw this row again, so the walk stays here
            sl_draws_add(w->out, w->row, (float)(kappa / (double)mass));
            return;
        }
        w->running += mass;
    }
}

// Draws heavy and light rows in ascending order. Heavy rows: out->scratch[0, n_heavy). heavy_size lies in out->scratch too.
static void draw_both(const sl_masses *size, const uint64_t *heavy_size, int n_heavy, uint64_t light, int k, int shared,
                      sl_uniform u, sl_draws *out) {
    walk w = {.size = size, .out = out, .heavy = out->scratch, .heavy_size = heavy_size, .n_heavy = n_heavy, .block = -1};
    sl_draws_clear(out);
    uint64_t number = shared && k ? u.next(u.ctx, 0) : 0;
    for (int m = 0; m < k; m++) {
        if (!shared) number = u.next(u.ctx, (uint32_t)m);
        uint64_t t = (uint64_t)(((u128)(unsigned)m * light + (uint64_t)((u128)number * light >> 64)) / (unsigned)k);
        draw_light(&w, t, (double)light / k);
    }
    while (w.next < n_heavy) pass_heavy(&w);
}

// The number of heavy rows for S draws in total. z[0..n): sizes, descending. Size h is heavy while it exceeds
// kappa = light / (S - h). *light: in, the total size; out, the total light size.
static int count_heavy(const uint64_t *z, int n, int S, uint64_t *light) {
    int h = 0;
    while (h < n && h < S - 1 && (u128)z[h] * (unsigned)(S - h) > *light) *light -= z[h++];
    return h;
}

// Selects the n_heavy largest of the rows out->row[0..n) with sizes[0..n). On ties it selects the lower row. Writes the rows
// into out->scratch[0..), over the sorted sizes z, and their sizes into sizes[0..).
static void select_heavy(int n, int n_heavy, uint64_t *sizes, sl_draws *out) {
    uint64_t *z = out->scratch, least = n_heavy ? z[n_heavy - 1] : 0;
    int ties = n_heavy, n_found = 0;
    while (ties > 0 && z[n_heavy - ties] > least) ties--;
    for (int i = 0; i < n && n_found < n_heavy; i++)
        if (sizes[i] > least || (sizes[i] == least && ties-- > 0)) {
            z[n_found] = (uint64_t)out->row[i];
            sizes[n_found++] = sizes[i];
        }
}

sl_take_all sl_draw_take_all(const sl_masses *size, int S, int shared, sl_uniform u, sl_draws *out) {
    sl_take_all r = {.light = sl_masses_total(size)};
    sl_draws_clear(out);
    if (r.light == 0) return r;
    if (size->uniform && S >= size->n) { // every row is positive
        for (int j = 0; j < size->n; j++) sl_draws_add(out, j, 1);
        return (sl_take_all){.n_heavy = size->n};
    }
    int n = largest_sizes(size, S, out);
    if (n < S && !size->uniform)
        r = (sl_take_all){.n_heavy = n};
    else
        r.n_heavy = count_heavy(out->scratch, n, S, &r.light);
    select_heavy(n, r.n_heavy, out->scratch + S, out);
    r.k = r.light ? S - r.n_heavy : 0;
    draw_both(size, out->scratch + S, r.n_heavy, r.light, r.k, shared, u, out);
    return r;
}

int sl_plan_take_all(const sl_masses *size, int most, double target, sl_bound_fn bound, const void *ctx, sl_draws *out) {
    int n = largest_sizes(size, most, out), low = 0, high = most + 1; // the answer lies in (low, high]
    if (n < most) return n;                                           // every row of positive size once
    while (high - low > 1) {
        int S = low + (high - low) / 2;
        uint64_t light = sl_masses_total(size);
        int n_heavy = count_heavy(out->scratch, n, S, &light);
        if (bound(ctx, (double)light, S - n_heavy) <= target)
            high = S;
        else
            low = S;
    }
    return high <= most ? high : 0;
}

// ---- draws with a known threshold ----

// 1: no row of block b can be heavy, because all its rows together are below kappa. *all: their size.
static int is_below(const sl_masses *size, int b, uint64_t kappa, uint64_t *all) {
    *all = running_at_block(size, b + 1) - running_at_block(size, b);
    return *all < kappa;
}

sl_take_all sl_split_sizes(const sl_masses *size, uint64_t kappa) {
    sl_take_all r = {0};
    uint64_t mass[SL_BLOCK], all;
    for (int b = 0; b < size->n_blocks; b++) {
        if (is_below(size, b, kappa, &all)) {
            r.light += all;
            continue;
        }
        sl_masses_of_block(size, b, mass);
        for (int i = 0; i < SL_BLOCK && b * SL_BLOCK + i < size->n; i++)
            if (mass[i] >= kappa)
                r.n_heavy++;
            else
                r.light += mass[i];
    }
    r.k = (int)(r.light / kappa);
    return r;
}

void sl_draw_at(const sl_masses *size, uint64_t kappa, int shared, sl_uniform u, sl_draws *out) {
    uint64_t mass[SL_BLOCK], all, running = 0; // total size of the light rows so far
    uint32_t m = 0;                            // the next step of kappa, and its point
    uint64_t point = (uint64_t)((u128)u.next(u.ctx, 0) * kappa >> 64);
    sl_draws_clear(out);
    for (int b = 0; b < size->n_blocks; b++) {
        if (is_below(size, b, kappa, &all) && running + all <= point) {
            running += all;
            continue;
        }
        sl_masses_of_block(size, b, mass);
        for (int i = 0; i < SL_BLOCK && b * SL_BLOCK + i < size->n; i++) {
            if (mass[i] >= kappa) {
                sl_draws_add(out, b * SL_BLOCK + i, 1);
                continue;
            }
            for (running += mass[i]; point < running;) {
                sl_draws_add(out, b * SL_BLOCK + i, (float)((double)kappa / (double)mass[i]));
                m++;
                point = m * kappa + (uint64_t)((u128)u.next(u.ctx, shared ? 0 : m) * kappa >> 64);
            }
        }
    }
}
