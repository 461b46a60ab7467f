// attention/draw_take_all.c - take-all + PPS: heavy rows once, light rows in proportion to size (METHODS: santa-pps).
//
// Unbiased for every heavy set that does not depend on the uniform numbers; this one is solved exactly, so that no light row
// has an expected count above 1 and the draws are S in all.
#include "attention/stages.h"

#include <math.h>

typedef unsigned __int128 u128;

static void sort_descending(uint64_t *x, int n) {
    sl_sort(x, n);
    for (int i = 0, j = n - 1; i < j; i++, j--) {
        uint64_t t = x[i];
        x[i] = x[j], x[j] = t;
    }
}

// The largest `most` rows: the rows, ascending, into out->row, their sizes into out->scratch[most..), and sorted, descending,
// into out->scratch[0..).
static int largest_sizes(const sl_masses *size, int most, sl_draws *out) {
    int found = sl_masses_largest(size, most, out->row), n = 0;
    for (int i = 0; i < found; i++) {
        uint64_t mass = sl_masses_of_row(size, out->row[i]);
        if (mass == 0) continue; // too small to be drawn
        out->row[n] = out->row[i];
        out->scratch[n] = out->scratch[most + n] = mass;
        n++;
    }
    sort_descending(out->scratch, n);
    return n;
}

// ---- the light rows' draws ----

typedef struct walk {
    const sl_masses *size;
    sl_draws *out;
    const uint64_t *heavy, *heavy_size; // [n_heavy] rows, ascending, and their sizes
    int n_heavy, next;                  // heavy rows before `next` are passed, and drawn
    uint64_t passed;                    // their size
    int row;                            // next row to look at
    uint64_t running;                   // of the rows before it, heavy ones included
    uint64_t mass[SL_BLOCK];            // of its block's rows
    int block;                          // whose masses those are; -1: none
} walk;

static void pass_heavy(walk *w) {
    w->passed += w->heavy_size[w->next];
    sl_draws_add(w->out, (int)w->heavy[w->next++], 1);
}

static uint64_t running_at_block(const sl_masses *size, int b) { // of the rows before block b
    return b < size->n_blocks ? size->cum[b] + size->uniform * SL_BLOCK * (uint64_t)b : sl_masses_total(size);
}

// Passes whole blocks whose light rows end at or before t.
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

// Draws the light row at t; t is below the light total and does not descend.
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
        if (w->running + mass - w->passed > t) { // it may be drawn again: the walk stays before it
            sl_draws_add(w->out, w->row, (float)(kappa / (double)mass));
            return;
        }
        w->running += mass;
    }
}

// heavy and its sizes: in out->scratch[0..) and from [n_scratch] on.
static void draw_both(const sl_masses *size, const uint64_t *heavy_size, int n_heavy, uint64_t light, int k, int shared,
                      sl_uniform u, sl_draws *out) {
    walk w = {.size = size, .out = out, .heavy = out->scratch, .heavy_size = heavy_size, .n_heavy = n_heavy, .block = -1};
    sl_draws_clear(out);
    uint64_t own = shared && k ? u.next(u.ctx, 0) : 0;
    for (int m = 0; m < k; m++) {
        if (!shared) own = u.next(u.ctx, (uint32_t)m);
        uint64_t t = (uint64_t)(((u128)(unsigned)m * light + (uint64_t)((u128)own * light >> 64)) / (unsigned)k);
        draw_light(&w, t, (double)light / k);
    }
    while (w.next < n_heavy) pass_heavy(&w);
}

// How many of the sizes z[0..n), descending, are heavy with S draws in all: row h is, while it exceeds kappa = light / (S - h).
static int count_heavy(const uint64_t *z, int n, int S, uint64_t *light) {
    int h = 0;
    while (h < n && h < S - 1 && (u128)z[h] * (unsigned)(S - h) > *light) *light -= z[h++];
    return h;
}

// Of the candidates out->row[0..n) with their sizes, the n_heavy largest; z: all sizes, descending. Heavy rows replace z, their
// sizes the candidates'.
static void keep_heavy(int n, int n_heavy, uint64_t *sizes, sl_draws *out) {
    uint64_t *z = out->scratch, least = n_heavy ? z[n_heavy - 1] : 0;
    int ties = n_heavy, kept = 0;
    while (ties > 0 && z[n_heavy - ties] > least) ties--;
    for (int i = 0; i < n && kept < n_heavy; i++)
        if (sizes[i] > least || (sizes[i] == least && ties-- > 0)) {
            z[kept] = (uint64_t)out->row[i];
            sizes[kept++] = sizes[i];
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
    keep_heavy(n, r.n_heavy, out->scratch + S, out);
    r.k = r.light ? S - r.n_heavy : 0;
    draw_both(size, out->scratch + S, r.n_heavy, r.light, r.k, shared, u, out);
    return r;
}

int sl_plan_take_all(const sl_masses *size, int most, double target, sl_bound_fn bound, const void *ctx, sl_draws *out) {
    int n = largest_sizes(size, most, out), low = 0, high = most + 1; // the answer is in (low, high]
    if (n < most) return n;                                           // every row, exactly
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
