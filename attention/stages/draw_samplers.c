// attention/stages/draw_samplers.c - the draws of the SANTA family: from running masses and uniform numbers to rows and counts.
//
// All arithmetic on masses is in integers, so equal masses give equal rows on every device. Draws follow from thresholds.
// Differences of floors of running masses would not add up to S in floating point.
#include "attention/stages/stages.h"

typedef unsigned __int128 u128;

static uint64_t philox_next(const void *ctx, uint32_t index) {
    return sl_draw_random(ctx, index);
}

sl_uniform sl_uniform_philox(const sl_rng_id *id) {
    return (sl_uniform){philox_next, id};
}

size_t sl_sampler_capacity(int S, int n) { // santa-flash makes at least one draw per tile, and rounding adds up to S / 2 draws
    size_t tiles = (size_t)(n + SL_LEAST_TILE - 1) / SL_LEAST_TILE, most = (size_t)S + S / 2 + tiles;
    return most < (size_t)n ? most : (size_t)n;
}

size_t sl_sampler_scratch(int S, int n) {
    size_t tiles = (size_t)(n + SL_LEAST_TILE - 1) / SL_LEAST_TILE;
    return (size_t)S > 3 * tiles ? (size_t)S : 3 * tiles;
}

// Threshold of draw m of S: the point (m + u / 2^64) / S of a mass.
static uint64_t threshold(uint64_t mass, int S, uint32_t m, uint64_t u) {
    return (uint64_t)(((u128)m * mass + (uint64_t)((u128)u * mass >> 64)) / (unsigned)S);
}

// ---- walking the running mass with ascending thresholds ----

typedef struct cursor {
    const sl_masses *masses;
    sl_draws *out;
    int block, row;    // the next row that a threshold may draw
    uint64_t in_block; // in-block mass before `row`
} cursor;

static cursor cursor_begin(const sl_masses *masses, sl_draws *out) {
    sl_draws_clear(out);
    return (cursor){.masses = masses, .out = out};
}

// The first row whose running mass exceeds t. t is below the total mass, so this row exists. Thresholds must not descend from
// call to call. *mass: mass of the row.
static int cursor_find(cursor *c, uint64_t t, uint64_t *mass) {
    const sl_masses *masses = c->masses;
    while (masses->cum[c->block + 1] + masses->uniform * SL_BLOCK * (uint64_t)(c->block + 1) <= t) {
        c->block++;
        c->row = c->block * SL_BLOCK;
        c->in_block = 0;
    }
    int shift = masses->top - masses->ref[c->block];
    uint64_t before = masses->cum[c->block] + masses->uniform * (uint64_t)c->row;
    if (shift < 64) before += c->in_block << 8 >> shift;
    for (int j = c->row;; j++) {
        uint64_t in_block = c->in_block + (uint32_t)(int32_t)(sl_bf16_to_f32(masses->stored[j]) * 0x1p30f);
        uint64_t running =
            masses->cum[c->block] + masses->uniform * ((uint64_t)j + 1) + (shift < 64 ? in_block << 8 >> shift : 0);
        if (running > t) {
            c->row = j; // the next threshold may draw this row again, so in_block stays the mass before this row
            *mass = running - before;
            return j;
        }
        c->in_block = in_block;
        before = running;
    }
}

void sl_draws_clear(sl_draws *out) {
    out->n = out->n_draws = 0;
}

void sl_draws_add(sl_draws *out, int row, float inv_pi) {
    out->n_draws++;
    if (out->n > 0 && out->row[out->n - 1] == row) {
        out->count[out->n - 1]++;
        return;
    }
    out->row[out->n] = row;
    out->count[out->n] = 1;
    out->inv_pi[out->n++] = inv_pi;
}

// Draws the row at threshold t. pi_j = S mass_j / W.
static void draw_at(cursor *c, uint64_t t, double W, int S) {
    uint64_t mass;
    int row = cursor_find(c, t, &mass);
    sl_draws_add(c->out, row, (float)(W / ((double)S * (double)mass)));
}

// S draws at the points (m + u) / S of the mass [from, from + mass). pi_j = S_all mass_j / W.
static void draw_systematic(cursor *c, uint64_t from, uint64_t mass, int S, uint64_t u, double W, int S_all) {
    for (int m = 0; m < S; m++) draw_at(c, from + threshold(mass, S, (uint32_t)m, u), W, S_all);
}

// ---- the five draws ----

void sl_draw_independent(const sl_masses *masses, int S, sl_uniform u, sl_draws *out) {
    cursor c = cursor_begin(masses, out);
    uint64_t mass = sl_masses_total(masses);
    if (mass == 0) return;
    for (int m = 0; m < S; m++) out->scratch[m] = threshold(mass, 1, 0, u.next(u.ctx, (uint32_t)m));
    sl_sort(out->scratch, S);
    for (int m = 0; m < S; m++) draw_at(&c, out->scratch[m], (double)mass, S);
}

void sl_draw_stratified(const sl_masses *masses, int S, sl_uniform u, sl_draws *out) {
    cursor c = cursor_begin(masses, out);
    uint64_t mass = sl_masses_total(masses);
    if (mass == 0) return;
    for (int m = 0; m < S; m++) draw_at(&c, threshold(mass, S, (uint32_t)m, u.next(u.ctx, (uint32_t)m)), (double)mass, S);
}

void sl_draw_systematic(const sl_masses *masses, int S, sl_uniform u, sl_draws *out) {
    cursor c = cursor_begin(masses, out);
    uint64_t mass = sl_masses_total(masses);
    if (mass > 0) draw_systematic(&c, 0, mass, S, u.next(u.ctx, 0), (double)mass, S);
}

static int tile_blocks(const sl_masses *masses) {
    return (masses->tile ? masses->tile : SL_TILE) / SL_BLOCK;
}

static int n_tiles(const sl_masses *masses) {
    return (masses->n_blocks + tile_blocks(masses) - 1) / tile_blocks(masses);
}

static uint64_t tile_begin(const sl_masses *masses, int t) {
    int b = t * tile_blocks(masses);
    return b < masses->n_blocks ? masses->cum[b] + masses->uniform * SL_BLOCK * (uint64_t)b : sl_masses_total(masses);
}

static uint64_t tile_mass(const sl_masses *masses, int t) {
    return tile_begin(masses, t + 1) - tile_begin(masses, t);
}

// Finds which of T tiles get one of `left` more draws: the tiles with a remainder above *cut, and the first *at_cut tiles with
// a remainder equal to *cut. sorted: [T] scratch.
static void find_cut(const uint64_t *remainder, uint64_t *sorted, int T, int left, uint64_t *cut, int *at_cut) {
    *cut = UINT64_MAX, *at_cut = 0;
    if (left == 0) return;
    for (int t = 0; t < T; t++) sorted[t] = remainder[t];
    sl_sort(sorted, T);
    *cut = sorted[T - left];
    *at_cut = left;
    for (int t = T - 1; sorted[t] > *cut; t--) --*at_cut; // sorted[T - left] ends it
}

void sl_draw_tiles_proportional(const sl_masses *masses, int S, sl_uniform u, sl_draws *out) {
    cursor c = cursor_begin(masses, out);
    uint64_t mass = sl_masses_total(masses), cut;
    if (mass == 0) return;
    int T = n_tiles(masses), left = S, at_cut;
    uint64_t *budget = out->scratch, *remainder = budget + T, *sorted = remainder + T;
    for (int t = 0; t < T; t++) {
        u128 quota = (u128)tile_mass(masses, t) * (unsigned)S;
        budget[t] = (uint64_t)(quota / mass);
        remainder[t] = (uint64_t)(quota % mass);
        left -= (int)budget[t];
    }
    find_cut(remainder, sorted, T, left, &cut, &at_cut);
    for (int t = 0; t < T; t++) {
        int more = remainder[t] > cut || (remainder[t] == cut && at_cut > 0);
        if (more && remainder[t] == cut) at_cut--;
        int S_t = (int)budget[t] + more;
        uint64_t from = tile_begin(masses, t);
        if (S_t > 0) draw_systematic(&c, from, tile_mass(masses, t), S_t, u.next(u.ctx, (uint32_t)t), (double)mass, S);
    }
}

void sl_draw_tiles_uniform(const sl_masses *masses, int S, sl_uniform u, sl_draws *out) {
    cursor c = cursor_begin(masses, out);
    uint64_t mass = sl_masses_total(masses);
    if (mass == 0) return;
    int T = n_tiles(masses), S_t = (2 * S + T) / (2 * T);
    if (S_t < 1) S_t = 1;
    for (int t = 0; t < T; t++) {
        uint64_t W = tile_mass(masses, t);
        if (W > 0) draw_systematic(&c, tile_begin(masses, t), W, S_t, u.next(u.ctx, (uint32_t)t), (double)W, S_t);
    }
}
