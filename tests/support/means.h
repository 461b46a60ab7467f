// tests/support/means.h - compares the mean of a method's output with dense attention. Problems that show a wrong estimator,
// and the test of the mean, for methods on the CPU (test_means.c) and on a GPU (test_cuda_means.c).
//
// Every score is an integer number of octaves, so stored masses (bf16) are exact, and no rounding hides a bias. The mean of an
// unbiased method must be mu, computed in double precision. All query heads of a problem have the same query, but other random
// numbers: each head is a replicate.
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

// The specification that tests a method of the registry, with few enough draws that an error remains. NULL: not in the list.
const char *means_spec(const char *method);

typedef struct means {
    double mu[MEANS_DIM];
    int n;                                    // number of outputs
    double sum[MEANS_DIM], square[MEANS_DIM]; // sums of (out - mu) and of its square, by channel
    double along, along_square;               // sums of (out - mu).mu / |mu|^2 and of its square
} means;

means means_of(const double mu[MEANS_DIM]);
void means_add(means *m, const float out[MEANS_DIM]);

typedef struct means_verdict {
    double bias, error; // along mu, relative to |mu|; its standard error
    double worst;       // largest |mean - mu| of a channel in standard errors, without the part that rounding explains
    int is_biased; // 1: the mean along mu is off by more than 5 standard errors plus rounding, or that of a channel by more
                   // than 6
} means_verdict;

// rounding: relative to |mu|, the largest effect of the output format on a mean.
means_verdict means_judge(const means *m, double rounding);

// Compares a verdict with a label and prints the line of the table. A wrong label fails the case: the test must not find an
// unbiased or exact method biased. With is_sharp, the standard error must be small enough to show a bias of 1% of mu. Returns 1
// if the test finds the method biased.
int means_check(const char *attn, sl_attn_mean label, int problem, int is_sharp, const means_verdict *v);

#endif
