// tests/main.c - the runner of test.h. Each case runs in this process; a failed check jumps back here.
#define _GNU_SOURCE
#include "tests/gpu.h"
#include "tests/test.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

// clang-format off
#define SUITES(X)                                                                                    \
    X(kv) X(loader) X(backend) X(tokenizer) X(chat) X(sampler) X(kernels) X(attention) X(estimators) \
    X(pps) X(proposals) X(importance) X(sparse) X(bernoulli) X(vattention) X(model) X(dummy) X(step) \
    X(cli) X(cli_jsonl) X(cli_parallel) X(cli_bench) X(cli_compare) X(cli_eval) X(cli_meter)         \
    X(cli_perplexity) X(cli_plot) X(cli_reproduce) X(eval) X(auto)                                   \
    X(cuda_ops) X(cuda_linear) X(cuda_decode) X(cuda_prefill) X(cuda_sampler) X(cuda_engine)         \
    X(cuda_bernoulli) X(cuda_bits) X(cuda_extras) X(cuda_is) X(cuda_means) X(cuda_observe) X(cuda_pps) \
    X(cuda_santa) X(cuda_sparse) X(cuda_take_all) X(cuda_tiny) X(cuda_vattention)
// clang-format on
#define DECLARE(NAME) extern const test_suite suite_##NAME;
#define ADDRESS(NAME) &suite_##NAME,

SUITES(DECLARE)

static const test_suite *const suites[] = {SUITES(ADDRESS)};

uint64_t test_seed = 20261121;

static jmp_buf back;
static char reason[2048];
static char tmp_dir[64];
enum { PASSED = 1, FAILED, SKIPPED };

void test_fail(const char *file, int line, const char *fmt, ...) {
    int n = snprintf(reason, sizeof reason, "%s:%d: ", file, line);
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(reason + n, sizeof reason - n, fmt, ap);
    va_end(ap);
    longjmp(back, FAILED);
}

void test_skip(const char *fmt, ...) {
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(reason, sizeof reason, fmt, ap);
    va_end(ap);
    longjmp(back, SKIPPED);
}

const char *test_shared(void) {
    const char *dir = getenv("SLEIGH_SHARED");
    return dir ? dir : "../shared";
}

const char *test_tmp(void) {
    if (!tmp_dir[0]) {
        strcpy(tmp_dir, "/tmp/sleigh-test-XXXXXX");
        if (!mkdtemp(tmp_dir)) FAIL("cannot make a folder in /tmp");
    }
    return tmp_dir;
}

static void remove_tmp(void) {
    if (!tmp_dir[0]) return;
    char cmd[96];
    snprintf(cmd, sizeof cmd, "rm -rf '%s'", tmp_dir);
    if (system(cmd)) fprintf(stderr, "could not remove %s\n", tmp_dir);
    tmp_dir[0] = 0;
}

double test_uniform(uint64_t *state) {
    uint64_t z = (*state += 0x9E3779B97F4A7C15u);
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9u;
    z = (z ^ (z >> 27)) * 0x94D049BB133111EBu;
    return (double)((z ^ (z >> 31)) >> 11) * 0x1p-53;
}

double test_normal(uint64_t *state) { // Box and Muller
    double u = 1 - test_uniform(state), v = test_uniform(state);
    return sqrt(-2 * log(u)) * cos(2 * M_PI * v);
}

static int missing(int needs) { // 1: skipped, with the reason set
    if ((needs & NEEDS_GPU) && !gpu_present()) return snprintf(reason, sizeof reason, "needs a GPU build and a GPU");
    if ((needs & NEEDS_SHARED) && access(test_shared(), R_OK))
        return snprintf(reason, sizeof reason, "needs %s (set SLEIGH_SHARED)", test_shared());
    return 0;
}

static int run_case(const test_case *c) {
    if (missing(c->needs)) return SKIPPED;
    int result = setjmp(back);
    if (result == 0) {
        c->fn();
        result = PASSED;
    }
    remove_tmp();
    gpu_free_all();
    return result;
}

static int selected(const char *name, char **prefixes, int n) {
    for (int i = 0; i < n; i++)
        if (!strncmp(name, prefixes[i], strlen(prefixes[i]))) return 1;
    return n == 0;
}

int main(int argc, char **argv) {
    int list = 0, gpu_only = 0, n_prefixes = 0, count[4] = {0};
    char **prefixes = argv + 1;
    for (int i = 1; i < argc; i++) {
        if (!strcmp(argv[i], "--list"))
            list = 1;
        else if (!strcmp(argv[i], "--gpu"))
            gpu_only = 1;
        else if (!strcmp(argv[i], "--seed") && i + 1 < argc)
            test_seed = strtoull(argv[++i], NULL, 0);
        else if (argv[i][0] == '-')
            return fprintf(stderr, "usage: sleigh-test [--list] [--seed N] [--gpu] [PREFIX...]\n"), 2;
        else
            prefixes[n_prefixes++] = argv[i];
    }
    if (!list) printf("seed %llu\n", (unsigned long long)test_seed);
    for (size_t s = 0; s < sizeof suites / sizeof *suites; s++) {
        for (const test_case *c = suites[s]->cases; c->name; c++) {
            char name[256];
            snprintf(name, sizeof name, "%s/%s", suites[s]->name, c->name);
            if (!selected(name, prefixes, n_prefixes) || (gpu_only && !(c->needs & NEEDS_GPU))) continue;
            if (list) {
                puts(name);
                continue;
            }
            struct timespec t0, t1;
            clock_gettime(CLOCK_MONOTONIC, &t0);
            int result = run_case(c);
            clock_gettime(CLOCK_MONOTONIC, &t1);
            count[result]++;
            double seconds = t1.tv_sec - t0.tv_sec + 1e-9 * (t1.tv_nsec - t0.tv_nsec);
            if (result == PASSED)
                printf("ok    %-52s %6.2f s\n", name, seconds);
            else
                printf("%s  %-52s %s\n", result == FAILED ? "FAIL" : "skip", name, reason);
            fflush(stdout);
        }
    }
    if (!list) printf("%d passed, %d failed, %d skipped\n", count[PASSED], count[FAILED], count[SKIPPED]);
    return count[FAILED] > 0;
}
