// tests/test.h - the table runner behind build/sleigh-test: `sleigh-test [--list] [--seed N] [--gpu] [--fail-fast]
// [-j N] [NAME-PREFIX...]`. With -j, N processes share the cases and run the cases on a GPU first.
//
// A suite is one array of cases in a file test_*.c below tests/, and tests/main.c lists it. A failed check prints file, line
// and values, and ends the case. A case that cannot run on this machine calls TEST_SKIP and counts as skipped.
#ifndef SLEIGH_TEST_H
#define SLEIGH_TEST_H

#include "base/error.h"

#include <stdint.h>
#include <stdio.h>

// NEEDS_SHARED: ../shared (or $SLEIGH_SHARED) must exist. NEEDS_WHOLE_GPU: no other case may use the GPU's memory or time.
// NEEDS_TWO_GPUS: at least two GPUs. NEEDS_SPEED: takes tens of seconds with sanitizers, which skip it, because shorter cases
// run the same code.
enum { NEEDS_NOTHING = 0, NEEDS_GPU = 1, NEEDS_SHARED = 2, NEEDS_WHOLE_GPU = 4, NEEDS_TWO_GPUS = 8, NEEDS_SPEED = 16 };

#ifdef __SANITIZE_ADDRESS__
enum { SANITIZED = 1 }; // code runs several times as long, so cases repeat less
#else
enum { SANITIZED = 0 };
#endif

typedef struct test_case {
    const char *name;
    int needs;
    void (*fn)(void);
} test_case;

typedef struct test_suite {
    const char *name;
    const test_case *cases; // ended by {0}
} test_suite;

extern uint64_t test_seed;            // printed at the start; --seed sets it
const char *test_shared(void);        // path of ../shared
const char *test_tmp(void);           // an empty folder for this case; the runner removes it
double test_uniform(uint64_t *state); // splitmix64, [0, 1)
// The same from one state for the running case.
void test_draw_from(uint64_t seed);
double test_draw(void); // [0, 1)
int test_below(int n);  // 0 to n - 1
double test_normal(uint64_t *state);

_Noreturn void test_fail(const char *file, int line, const char *fmt, ...) __attribute__((format(printf, 3, 4)));
_Noreturn void test_skip(const char *fmt, ...) __attribute__((format(printf, 1, 2)));

#define TEST_SKIP(...) test_skip(__VA_ARGS__)
#define FAIL(...) test_fail(__FILE__, __LINE__, __VA_ARGS__)
#define CHECK(c) ((c) ? (void)0 : FAIL("%s", #c))
#define CHECK_INT(got, want)                                                                                                   \
    do {                                                                                                                       \
        long long g_ = (got), w_ = (want);                                                                                     \
        if (g_ != w_) FAIL("%s: got %lld, expected %lld", #got, g_, w_);                                                       \
    } while (0)
#define CHECK_STR(got, want)                                                                                                   \
    do {                                                                                                                       \
        const char *g_ = (got), *w_ = (want);                                                                                  \
        if (strcmp(g_, w_)) FAIL("%s: got \"%s\", expected \"%s\"", #got, g_, w_);                                             \
    } while (0)
#define CHECK_NEAR(got, want, tol)                                                                                             \
    do {                                                                                                                       \
        double g_ = (got), w_ = (want), t_ = (tol);                                                                            \
        double d_ = g_ > w_ ? g_ - w_ : w_ - g_;                                                                               \
        if (!(d_ <= t_)) FAIL("%s: got %.9g, expected %.9g +- %.3g", #got, g_, w_, t_);                                        \
    } while (0)
// CHECK_OK: the call must succeed. CHECK_ERR: it must fail with this code and a message that contains this text.
#define CHECK_OK(call, e)                                                                                                      \
    do {                                                                                                                       \
        int rc_ = (call);                                                                                                      \
        if (rc_) FAIL("%s: %s", #call, (e).message);                                                                           \
    } while (0)
#define CHECK_ERR(call, e, want_code, text)                                                                                    \
    do {                                                                                                                       \
        int rc_ = (call);                                                                                                      \
        if (rc_ != (want_code)) FAIL("%s: returned %d, expected %d", #call, rc_, (int)(want_code));                            \
        if (!strstr((e).message, (text))) FAIL("%s: message \"%s\" lacks \"%s\"", #call, (e).message, (text));                 \
    } while (0)

#endif
