// attention/stages/masses.c - running masses, and the rows of largest mass (masses.h).
#include "attention/stages/stages.h"

#include <math.h>
#include <string.h>

static uint64_t to_global(uint64_t mass, int shift) {
    return shift < 64 ? mass << 8 >> shift : 0;
}

static uint32_t unit_mass(bf16 w) {
    return (uint32_t)(int32_t)(sl_bf16_to_f32(w) * 0x1p30f);
}

void sl_masses_finish(sl_masses *masses) {
    int top = SL_REF_EMPTY;
    for (int b = 0; b < masses->n_blocks; b++) top = masses->ref[b] > top ? masses->ref[b] : top;
    masses->top = top;
    masses->cum[0] = 0;
    for (int b = 0; b < masses->n_blocks; b++)
        masses->cum[b + 1] = masses->cum[b] + to_global(masses->cum[b + 1], top - masses->ref[b]);
}

void sl_masses_truncate(sl_masses *masses, int n) {
    int top = SL_REF_EMPTY;
    masses->n = n;
    masses->n_blocks = n / SL_BLOCK;
    for (int b = 0; b < masses->n_blocks; b++) top = masses->ref[b] > top ? masses->ref[b] : top;
    if (masses->top - top <= 8) return; // masses are multiplied by 2^8, so a shift by at most 8 loses no bits
    for (int b = 0; b < masses->n_blocks; b++) {
        masses->cum[b + 1] = 0;
        for (int i = 0; i < SL_BLOCK; i++) masses->cum[b + 1] += unit_mass(masses->stored[b * SL_BLOCK + i]);
    }
    sl_masses_finish(masses);
}

void sl_masses_keep(sl_masses *masses, const int32_t *rows, int n) {
    for (int b = 0, i = 0; b < masses->n_blocks; b++) {
        bf16 kept[SL_BLOCK] = {0}, *stored = masses->stored + (size_t)b * SL_BLOCK;
        uint64_t mass = 0;
        int is_empty = 1;
        for (; i < n && rows[i] / SL_BLOCK == b; i++) {
            bf16 own = stored[rows[i] % SL_BLOCK];
            kept[rows[i] % SL_BLOCK] = own;
            mass += unit_mass(own);
            is_empty &= own == 0;
        }
        memcpy(stored, kept, sizeof kept);
        if (is_empty) masses->ref[b] = SL_REF_EMPTY;
        masses->cum[b + 1] = mass;
    }
    sl_masses_finish(masses);
}

// In-block mass of the rows before j in the block of j.
static uint64_t mass_before(const sl_masses *masses, int j) {
    uint64_t mass = 0;
    for (int i = j / SL_BLOCK * SL_BLOCK; i < j; i++) mass += unit_mass(masses->stored[i]);
    return mass;
}

uint64_t sl_masses_running(const sl_masses *masses, int j) {
    if (j < 0) return 0;
    int b = j / SL_BLOCK;
    uint64_t mass = mass_before(masses, j) + unit_mass(masses->stored[j]);
    return masses->cum[b] + to_global(mass, masses->top - masses->ref[b]) + masses->uniform * ((uint64_t)j + 1);
}

uint64_t sl_masses_of_row(const sl_masses *masses, int j) {
    uint64_t before = mass_before(masses, j);
    int shift = masses->top - masses->ref[j / SL_BLOCK];
    return to_global(before + unit_mass(masses->stored[j]), shift) - to_global(before, shift) + masses->uniform;
}

double sl_masses_probability(const sl_masses *masses, int j) {
    int octaves = masses->ref[j / SL_BLOCK] - masses->top;
    double mass = ldexp(sl_bf16_to_f32(masses->stored[j]), 38 + octaves) + (double)masses->uniform; // 2^top is 2^30 << 8
    return mass / (double)sl_masses_total(masses);
}

void sl_masses_of_block(const sl_masses *masses, int b, uint64_t mass[SL_BLOCK]) {
    int shift = masses->top - masses->ref[b];
    uint64_t in_block = 0, before = 0;
    for (int i = 0; i < SL_BLOCK; i++) {
        in_block += unit_mass(masses->stored[b * SL_BLOCK + i]);
        uint64_t running = to_global(in_block, shift);
        mass[i] = running - before + masses->uniform;
        before = running;
    }
}

uint64_t sl_masses_total(const sl_masses *masses) {
    return masses->cum[masses->n_blocks] + masses->uniform * (uint64_t)masses->n;
}

double sl_masses_log2_total(const sl_masses *masses) {
    return log2((double)sl_masses_total(masses)) + masses->top - 38; // a mass of 2^top is the integer 2^30 << 8
}

double sl_masses_share(const sl_masses *masses, uint64_t mass, const sl_masses *of) {
    return ldexp((double)mass / (double)sl_masses_total(of), masses->top - of->top);
}

double sl_masses_units(const sl_masses *masses, const sl_masses *of) {
    return ldexp((double)sl_masses_total(of), of->top - masses->top);
}

int sl_masses_out_of_range(const sl_masses *masses) {
    return masses->top > SL_REF_MOST || masses->top < -SL_REF_MOST;
}

int sl_sizes_out_of_range(const sl_masses *sizes, const sl_masses *masses) {
    for (int b = 0; b < sizes->n_blocks; b++)
        if (sizes->ref[b] != SL_REF_EMPTY && sizes->ref[b] - masses->ref[b] >= SL_SIZE_UNIT_MOST) return 1;
    return 0;
}

void sl_masses_mix(sl_masses *masses, double alpha) {
    masses->uniform = (uint64_t)(alpha / (1 - alpha) / masses->n * (double)masses->cum[masses->n_blocks]);
}

// ---- ranks ----
// The rank of a row is the distance of its mass below 2^top in steps of bf16, 128 steps to the octave. Equal ranks are equal
// masses. Masses more than 64 octaves below 2^top share the last rank.

enum { N_RANKS = 64 * 128 + 1 };

// An upper bound of the ranks of the k largest rows. Reason: each of the k blocks with the largest refs has a mass above 2^(ref
// - 1).
static int lowest_rank(const sl_masses *masses, int k) {
    int count[65] = {0}, n = 0;
    for (int b = 0; b < masses->n_blocks; b++) {
        int octaves = masses->top - masses->ref[b];
        if (masses->ref[b] != SL_REF_EMPTY) count[octaves < 64 ? octaves : 64]++;
    }
    for (int octaves = 0; octaves < 64; octaves++)
        if ((n += count[octaves]) >= k) return (octaves + 1) * 128 < N_RANKS - 1 ? (octaves + 1) * 128 : N_RANKS - 1;
    return N_RANKS - 1;
}

// A stored mass of block b has the rank *base - stored, as integers. Stored masses >= *least have a rank <= last. The last
// rank, N_RANKS - 1, is the rank of every smaller mass. Returns 0 if the block has no such mass.
static int block_ranks(const sl_masses *masses, int b, int last, int *base, int *least) {
    int octaves = masses->top - masses->ref[b];
    *base = octaves * 128 + 0x3f80;
    *least = last == N_RANKS - 1 || *base <= last ? 1 : *base - last;
    return masses->ref[b] != SL_REF_EMPTY && *least <= 0x3f80;
}

static void count_ranks(const sl_masses *masses, int last, int32_t count[N_RANKS]) {
    const sl_attn_kernels *kernels = sl_attn_kernels_best();
    memset(count, 0, (size_t)(last + 1) * sizeof *count);
    for (int b = 0, base, least; b < masses->n_blocks; b++) {
        if (!block_ranks(masses, b, last, &base, &least)) continue;
        const bf16 *w = masses->stored + (size_t)b * SL_BLOCK;
        for (uint32_t mask = kernels->at_least(w, (bf16)least); mask; mask &= mask - 1) {
            int rank = base - w[__builtin_ctz(mask)];
            count[rank < last ? rank : last]++;
        }
    }
}

// Writes the rows of a rank below `cut` (larger masses), and the first `at_cut` rows of rank `cut`.
static int collect(const sl_masses *masses, int cut, int at_cut, int32_t *rows) {
    const sl_attn_kernels *kernels = sl_attn_kernels_best();
    int n = 0;
    for (int b = 0, base, least; b < masses->n_blocks; b++) {
        if (!block_ranks(masses, b, cut, &base, &least)) continue;
        const bf16 *w = masses->stored + (size_t)b * SL_BLOCK;
        for (uint32_t mask = kernels->at_least(w, (bf16)least); mask; mask &= mask - 1) {
            int i = __builtin_ctz(mask);
            if (base - w[i] < cut || at_cut-- > 0) rows[n++] = b * SL_BLOCK + i;
        }
    }
    return n;
}

int sl_masses_largest(const sl_masses *masses, int k, int32_t *rows) {
    int32_t count[N_RANKS];
    int last = lowest_rank(masses, k), cut = 0;
    count_ranks(masses, last, count);
    while (cut < last && k > count[cut]) k -= count[cut++];
    return collect(masses, cut, k, rows);
}

int sl_masses_reaching(const sl_masses *masses, double p, int32_t *rows) {
    int32_t count[N_RANKS];
    double total = 0, sum = 0;
    int cut = 0;
    count_ranks(masses, N_RANKS - 1, count);
    for (int r = 0; r < N_RANKS; r++) total += count[r] * (double)sl_bf16_to_f32((bf16)(0x3f80 - r));
    while (cut < N_RANKS - 1) {
        double mass = count[cut] * (double)sl_bf16_to_f32((bf16)(0x3f80 - cut));
        if (sum + mass >= p * total) break;
        sum += mass, cut++;
    }
    double each = sl_bf16_to_f32((bf16)(0x3f80 - cut)), more = ceil((p * total - sum) / each);
    return collect(masses, cut, more < count[cut] ? (int)more : count[cut], rows);
}

// ---- radix sort ----

enum { DIGITS = 256, FEW = 48 };

static void insertion_sort(uint64_t *x, int n) {
    for (int i = 1; i < n; i++) {
        uint64_t value = x[i];
        int at = i;
        for (; at > 0 && x[at - 1] > value; at--) x[at] = x[at - 1];
        x[at] = value;
    }
}

// Moves each number to the part of its digit, the 8 bits from `shift` on. end: [DIGITS] where the parts end.
static void split_by_digit(uint64_t *x, int n, int shift, int *end) {
    int next[DIGITS] = {0};
    for (int i = 0; i < n; i++) next[x[i] >> shift & (DIGITS - 1)]++;
    for (int d = 0, at = 0; d < DIGITS; d++) {
        int count = next[d];
        next[d] = at, end[d] = at += count;
    }
    for (int d = 0; d < DIGITS; d++)
        while (next[d] < end[d]) {
            uint64_t *from = &x[next[d]], value = *from;
            int digit = value >> shift & (DIGITS - 1);
            if (digit == d) {
                next[d]++;
                continue;
            }
            *from = x[next[digit]];
            x[next[digit]++] = value;
        }
}

// The digit begins at the highest bit in which the numbers differ. So a call splits them, and calls nest at most 8 deep. The
// thresholds of draws are nearly uniform: one split leaves parts that insertion sort finishes, in time proportional to n.
void sl_sort(uint64_t *x, int n) {
    uint64_t differ = 0;
    int end[DIGITS];
    for (int i = 1; i < n; i++) differ |= x[i] ^ x[0];
    if (!differ) return;
    if (n <= FEW) {
        insertion_sort(x, n);
        return;
    }
    int top = 63 - __builtin_clzll(differ), shift = top > 7 ? top - 7 : 0;
    split_by_digit(x, n, shift, end);
    for (int d = 0, first = 0; shift && d < DIGITS; first = end[d++])
        if (end[d] - first > 1) sl_sort(x + first, end[d] - first);
}
