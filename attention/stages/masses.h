// attention/stages/masses.h - the masses of the rows of one query head. A proposal writes them, and a draw reads them.
//
// Scores are in log2 units. The stored mass of row j is bf16(2^(s_j - ref)). ref is the smallest integer that is not below the
// largest score of the row's block of 32 rows. The in-block mass is the integer floor(stored_j * 2^30). The mass of the row is
// in-block mass << 8 >> (top - ref), where top is the largest ref of the head. So masses add in 64-bit integers, and the same
// rows are drawn for every tile, split, thread and device. p_j = mass_j / total.
//
// Sizes p_j |v_j| have the same format. The kernel `sizes` (cpu_kernels.h) computes them only from stored masses and norms, so
// a caller that has both need not store sizes.
//
// ref is a 16-bit integer. A head cannot be drawn from stored masses when its largest ref lies outside +-SL_REF_MOST (22,180
// nats) or when one of its scores is NaN. Every method then attends to all rows of the head exactly and counts a fallback.
#ifndef SLEIGH_MASSES_H
#define SLEIGH_MASSES_H

#include "attention/cpu/cpu_kernels.h"

#include <stdint.h>

typedef struct sl_masses {
    int n;            // rows, or units of several rows (sl_proposal.unit)
    int n_blocks;     // ceil(n / 32)
    bf16 *stored;     // [n_blocks * 32], zero past n
    int16_t *ref;     // [n_blocks]
    uint64_t *cum;    // [n_blocks + 1] mass before each block; cum[n_blocks] is the mass of all blocks
    int top;          // largest ref
    uint64_t uniform; // added to the mass of every row
    int tile;         // rows of a tile of santa-prop and santa-flash, a multiple of 32; 0: 256
} sl_masses;

// Expects the in-block mass of block b in cum[b + 1]. Computes the running masses (cum) and top.
void sl_masses_finish(sl_masses *masses);
// Drops all rows but the first n, a multiple of 32. Computes cum and top again if the largest ref of the dropped rows is more
// than 8 above the others: masses of the others could be 0.
void sl_masses_truncate(sl_masses *masses, int n);
// Sets the masses of all rows but rows[0..n), ascending, to 0. Computes cum and top again.
void sl_masses_keep(sl_masses *masses, const int32_t *rows, int n);
uint64_t sl_masses_running(const sl_masses *masses, int j); // C_j: mass up to and including row j; C_{-1} = 0
uint64_t sl_masses_of_row(const sl_masses *masses, int j);  // C_j - C_{j-1}
// p_j from the stored mass. An integer mass is 0 below 2^-30 of the largest mass of its block, and such a row can have a large
// p |v|.
double sl_masses_probability(const sl_masses *masses, int j);
void sl_masses_of_block(const sl_masses *masses, int b, uint64_t mass[SL_BLOCK]);
uint64_t sl_masses_total(const sl_masses *masses);    // C_{n-1}
double sl_masses_log2_total(const sl_masses *masses); // of sum_j 2^(s_j), up to the rounding of stored masses
// `mass` of `masses` as a share of the total of `of`.
double sl_masses_share(const sl_masses *masses, uint64_t mass, const sl_masses *of);
// The total of `of` in units of mass of `masses`: sl_masses_share of this mass is 1.
double sl_masses_units(const sl_masses *masses, const sl_masses *of);
int sl_masses_out_of_range(const sl_masses *masses); // 1: a score is NaN, too large or too small for stored masses
// 1: a size is infinite or NaN, because |v| is, or because the square of v exceeds fp32. Then the sizes of the other rows are
// about 0. `masses`: from which the kernel `sizes` has computed them.
int sl_sizes_out_of_range(const sl_masses *sizes, const sl_masses *masses);
void sl_masses_mix(sl_masses *masses, double alpha); // p <- (1 - alpha) p + alpha / n
// Writes the k rows of largest mass, ascending in row. On ties the lower row comes first. Rows of zero mass do not count.
// Returns the number of rows, at most k.
int sl_masses_largest(const sl_masses *masses, int k, int32_t *rows);
// Writes the fewest rows of largest mass that reach the share p of the total, ascending in row. rows: [n]. Returns their
// number.
int sl_masses_reaching(const sl_masses *masses, double p, int32_t *rows);

void sl_sort(uint64_t *x, int n); // ascending; allocates nothing

#endif
