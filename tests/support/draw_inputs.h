// tests/support/draw_inputs.h - masses to draw from, a value for each row, and uniform numbers to draw with. p, mu and E c_j
// are those of the stored masses: mass_j = C_j - C_{j-1}.
#ifndef SLEIGH_TEST_WEIGHTS_H
#define SLEIGH_TEST_WEIGHTS_H

#include "attention/stages/stages.h"
#include "tests/test.h"

enum { SCALE = SANITIZED ? 4 : 1 }; // divides the number of repetitions; the bounds depend on that number

typedef struct sample {
    sl_masses masses, sizes; // sizes: of p_j |v_j|
    sl_draws draws;
    double *p; // [n] mass_j / total
    double *v; // [n] one number per row
    double mu;
} sample;

typedef enum { FLAT, PEAKED, ONE_HOT, GAPS } shape; // GAPS: the scores of some tiles are far below the others
extern const shape shapes[];
extern const int lengths[];
enum { N_SHAPES = 4, N_LENGTHS = 8, MAX_S = 4096 };

sample sample_new(int n, shape kind, uint64_t seed);
void sample_free(sample *s);
double sample_estimate(const sample *s);                   // sum_j c_j p_j / pi_j v_j of the last draw
double sample_stratified_variance(const sample *s, int S); // of S draws from p, one in each of S equal strata

// Uniform numbers. ctx: of uniform_random the repetition (uint32_t), of uniform_fixed the number (uint64_t).
uint64_t uniform_random(const void *ctx, uint32_t index);
uint64_t uniform_fixed(const void *ctx, uint32_t index);
uint64_t uniform_grid(int i, int R); // (i + 1/2) / R, exact for R a power of two

// The upper end of the Clopper-Pearson 95% interval of a share, with k successes of n.
double upper_share(int k, int n);
// For steps without and with a step before: prints how many of the certified heads exceed the stated error. Checks that the
// upper end of the interval of this share is at most delta, and that there are at least `least` certified heads.
void check_certified(const int exceeded[2], const int certified[2], int least, double epsilon, double delta, const char *bound);

#endif
