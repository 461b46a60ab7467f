// tests/support/extremes.h - the behaviour of every method for scores that stored masses cannot hold, and for keys that are
// NaN.
#ifndef SLEIGH_TEST_EXTREMES_H
#define SLEIGH_TEST_EXTREMES_H

typedef struct extreme_subject {
    const char *attn;
    int falls_back;        // on the CPU: a head with huge scores attends to every row exactly
    int falls_back_on_gpu; // the same on a GPU, where dense-q also stores masses
    int sees_rows;         // 1: every row of K affects the scores; 0: not every row; -1: no row, but every row may be drawn
} extreme_subject;

extern const extreme_subject extremes[];
extern const int n_extremes;

#endif
