// tests/support/extremes.h - what every method does with scores that stored weights cannot hold, and with keys that are NaN.
#ifndef SLEIGH_TEST_EXTREMES_H
#define SLEIGH_TEST_EXTREMES_H

typedef struct extreme_subject {
    const char *attn;
    int falls_back;        // on the CPU: a head with huge scores attends to every row exactly
    int falls_back_on_gpu; // there dense-q draws on stored weights too
    int sees_rows;         // every row of K has a part in its scores
} extreme_subject;

enum { N_EXTREMES = 31 };
extern const extreme_subject extremes[N_EXTREMES];

#endif
