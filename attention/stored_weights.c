// attention/stored_weights.c - stored weights as integers (stages.h): running masses, and the rows of largest weight.
#include "attention/stages.h"

#include <math.h>
#include <string.h>

static uint64_t to_global(uint64_t mass, int shift) {
    return shift < 64 ? mass << 8 >> shift : 0;
}

static uint32_t unit_mass(bf16 w) {
    return (uint32_t)(int32_t)(sl_bf16_to_f32(w) * 0x1p30f);
}

void sl_weights_finish(sl_weights *wt) {
    int top = SL_REF_EMPTY;
    for (int b = 0; b < wt->n_blocks; b++) top = wt->ref[b] > top ? wt->ref[b] : top;
    wt->top = top;
    wt->cum[0] = 0;
    for (int b = 0; b < wt->n_blocks; b++) wt->cum[b + 1] = wt->cum[b] + to_global(wt->cum[b + 1], top - wt->ref[b]);
}

void sl_weights_keep(sl_weights *wt, int n) {
    int top = SL_REF_EMPTY;
    wt->n = n;
    wt->n_blocks = n / SL_BLOCK;
    for (int b = 0; b < wt->n_blocks; b++) top = wt->ref[b] > top ? wt->ref[b] : top;
    if (wt->top - top <= 8) return; // enough bits are left
    for (int b = 0; b < wt->n_blocks; b++) {
        wt->cum[b + 1] = 0;
        for (int i = 0; i < SL_BLOCK; i++) wt->cum[b + 1] += unit_mass(wt->w[b * SL_BLOCK + i]);
    }
    sl_weights_finish(wt);
}

// In-block mass of the rows of j's block before j.
static uint64_t mass_before(const sl_weights *wt, int j) {
    uint64_t mass = 0;
    for (int i = j / SL_BLOCK * SL_BLOCK; i < j; i++) mass += unit_mass(wt->w[i]);
    return mass;
}

uint64_t sl_weights_running(const sl_weights *wt, int j) {
    if (j < 0) return 0;
    int b = j / SL_BLOCK;
    uint64_t mass = mass_before(wt, j) + unit_mass(wt->w[j]);
    return wt->cum[b] + to_global(mass, wt->top - wt->ref[b]) + wt->each * ((uint64_t)j + 1);
}

uint64_t sl_weights_mass(const sl_weights *wt, int j) {
    uint64_t before = mass_before(wt, j);
    int shift = wt->top - wt->ref[j / SL_BLOCK];
    return to_global(before + unit_mass(wt->w[j]), shift) - to_global(before, shift) + wt->each;
}

void sl_weights_masses(const sl_weights *wt, int b, uint64_t mass[SL_BLOCK]) {
    int shift = wt->top - wt->ref[b];
    uint64_t in_block = 0, before = 0;
    for (int i = 0; i < SL_BLOCK; i++) {
        in_block += unit_mass(wt->w[b * SL_BLOCK + i]);
        uint64_t running = to_global(in_block, shift);
        mass[i] = running - before + wt->each;
        before = running;
    }
}

uint64_t sl_weights_total(const sl_weights *wt) {
    return wt->cum[wt->n_blocks] + wt->each * (uint64_t)wt->n;
}

double sl_weights_share(const sl_weights *wt, uint64_t mass, const sl_weights *of) {
    return ldexp((double)mass / (double)sl_weights_total(of), wt->top - of->top);
}

int sl_weights_beyond(const sl_weights *wt) {
    return wt->top > SL_REF_MOST || wt->top < -SL_REF_MOST;
}

void sl_weights_mix(sl_weights *wt, double alpha) {
    wt->each = (uint64_t)(alpha / (1 - alpha) / wt->n * (double)wt->cum[wt->n_blocks]);
}

// ---- ranks ----
// A weight's rank is its distance below 2^top in steps of the bf16 number line, 128 to the octave: equal ranks are equal
// weights. Ranks past 64 octaves share the last bin.

enum { N_RANKS = 64 * 128 + 1 };

// No row below this rank is among the k largest: each of the k blocks of largest ref holds a weight above 2^(ref - 1).
static int lowest_rank(const sl_weights *wt, int k) {
    int count[65] = {0}, n = 0;
    for (int b = 0; b < wt->n_blocks; b++) {
        int octaves = wt->top - wt->ref[b];
        if (wt->ref[b] != SL_REF_EMPTY) count[octaves < 64 ? octaves : 64]++;
    }
    for (int octaves = 0; octaves < 64; octaves++)
        if ((n += count[octaves]) >= k) return (octaves + 1) * 128 < N_RANKS - 1 ? (octaves + 1) * 128 : N_RANKS - 1;
    return N_RANKS - 1;
}

// Of block b: the rank of a weight is base - w; weights from *least on have a rank up to `last`, the last bin holding all
// others. 0: the block has none.
static int block_ranks(const sl_weights *wt, int b, int last, int *base, int *least) {
    int octaves = wt->top - wt->ref[b];
    *base = octaves * 128 + 0x3f80;
    *least = last == N_RANKS - 1 || *base <= last ? 1 : *base - last;
    return wt->ref[b] != SL_REF_EMPTY && *least <= 0x3f80;
}

static void count_ranks(const sl_weights *wt, int last, int32_t count[N_RANKS]) {
    const sl_attn_kernels *kernels = sl_attn_kernels_best();
    memset(count, 0, (size_t)(last + 1) * sizeof *count);
    for (int b = 0, base, least; b < wt->n_blocks; b++) {
        if (!block_ranks(wt, b, last, &base, &least)) continue;
        const bf16 *w = wt->w + (size_t)b * SL_BLOCK;
        for (uint32_t mask = kernels->at_least(w, (bf16)least); mask; mask &= mask - 1) {
            int rank = base - w[__builtin_ctz(mask)];
            count[rank < last ? rank : last]++;
        }
    }
}

// Rows above rank `cut`, and the first `at_cut` of it.
static int collect(const sl_weights *wt, int cut, int at_cut, int32_t *rows) {
    const sl_attn_kernels *kernels = sl_attn_kernels_best();
    int n = 0;
    for (int b = 0, base, least; b < wt->n_blocks; b++) {
        if (!block_ranks(wt, b, cut, &base, &least)) continue;
        const bf16 *w = wt->w + (size_t)b * SL_BLOCK;
        for (uint32_t mask = kernels->at_least(w, (bf16)least); mask; mask &= mask - 1) {
            int i = __builtin_ctz(mask);
            if (base - w[i] < cut || at_cut-- > 0) rows[n++] = b * SL_BLOCK + i;
        }
    }
    return n;
}

int sl_weights_largest(const sl_weights *wt, int k, int32_t *rows) {
    int32_t count[N_RANKS];
    int last = lowest_rank(wt, k), cut = 0;
    count_ranks(wt, last, count);
    while (cut < last && k > count[cut]) k -= count[cut++];
    return collect(wt, cut, k, rows);
}

int sl_weights_reaching(const sl_weights *wt, double p, int32_t *rows) {
    int32_t count[N_RANKS];
    double total = 0, sum = 0;
    int cut = 0;
    count_ranks(wt, N_RANKS - 1, count);
    for (int r = 0; r < N_RANKS; r++) total += count[r] * (double)sl_bf16_to_f32((bf16)(0x3f80 - r));
    while (cut < N_RANKS - 1) {
        double mass = count[cut] * (double)sl_bf16_to_f32((bf16)(0x3f80 - cut));
        if (sum + mass >= p * total) break;
        sum += mass, cut++;
    }
    double each = sl_bf16_to_f32((bf16)(0x3f80 - cut)), more = ceil((p * total - sum) / each);
    return collect(wt, cut, more < count[cut] ? (int)more : count[cut], rows);
}

// ---- heap sort ----

static void sift_down(uint64_t *x, int i, int n) {
    for (int child; (child = 2 * i + 1) < n; i = child) {
        if (child + 1 < n && x[child + 1] > x[child]) child++;
        if (x[i] >= x[child]) return;
        uint64_t t = x[i];
        x[i] = x[child], x[child] = t;
    }
}

void sl_sort(uint64_t *x, int n) {
    for (int i = n / 2 - 1; i >= 0; i--) sift_down(x, i, n);
    for (int i = n - 1; i > 0; i--) {
        uint64_t t = x[0];
        x[0] = x[i], x[i] = t;
        sift_down(x, 0, i);
    }
}
