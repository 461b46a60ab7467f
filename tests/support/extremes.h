// tests/support/extremes.h - the behaviour of every method for scores that stored masses cannot hold, and for keys that are
// NaN.
#ifndef SLEIGH_TEST_EXTREMES_H
#define SLEIGH_TEST_EXTREMES_H

typedef struct extreme_subject {
    const char *attn;
    int falls_back;        // on the CPU: a head with huge scores attends to every row exactly
    int falls_back_on_gpu; // on a GPU: here dense-q computes stored masses too
    int sees_rows;         // every row of K affects the scores
} extreme_subject;

enum { N_EXTREMES = 31 };
extern const extreme_subject extremes[N_EXTREMES];

#endif
