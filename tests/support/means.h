// tests/support/means.h - is the mean of a method's output dense attention's? Problems on which a wrong estimator shows, and
// the test of the mean, for methods on the CPU (test_means.c) and on a GPU (test_cuda_means.c).
//
// Every score is a whole number of octaves, so stored weights (bf16) are exact and the double-precision mu is the mean that an
// unbiased method must have: no rounding hides a bias. All query heads of a problem ask the same: each is a replicate with
// random numbers of its own.
#ifndef SLEIGH_TEST_MEANS_H
#define SLEIGH_TEST_MEANS_H

#include "attention/attention.h"
#include "tests/support/reference.h"

enum { MEANS_DIM = 64, MEANS_PROBLEMS = 7 };
extern const char *const means_problems[MEANS_PROBLEMS];
int means_rows(int problem);

// Writes problem number `problem` to all sequences and heads of a cache of head_dim MEANS_DIM, whose sequences have
// means_rows(problem) rows. mu: [MEANS_DIM] dense attention in double precision.
void means_fill(ref_cache *c, int problem, uint64_t seed, double mu[MEANS_DIM]);

// How each method of the registry is tried: its specification, with few enough draws for an error to remain. NULL: the method
// is not in the list.
const char *means_spec(const char *method);

typedef struct means {
    double mu[MEANS_DIM];
    int n;                                    // outputs that were added
    double sum[MEANS_DIM], square[MEANS_DIM]; // of (out - mu), by channel
    double along, along_square;               // of (out - mu).mu / |mu|^2
} means;

means means_of(const double mu[MEANS_DIM]);
void means_add(means *m, const float out[MEANS_DIM]);

typedef struct means_verdict {
    double bias, error; // along mu, relative to |mu|, and its standard error
    double worst;       // largest |mean - mu| of a channel, in standard errors, what rounding explains taken off
    int is_biased;      // the mean along mu is off by more than 5 standard errors and rounding, or a channel's by more than 6
} means_verdict;

// rounding: relative to |mu|, what the outputs' own format may add to a mean.
means_verdict means_judge(const means *m, double rounding);

// Compares a verdict with a label and prints the line of the table; a wrong label fails the case. An unbiased or exact method
// must not be found biased and, if is_sharp, a bias of 1% of mu must have shown. Returns whether the method was found biased.
int means_check(const char *attn, sl_attn_mean label, int problem, int is_sharp, const means_verdict *v);

#endif
