// tests/cuda/test_cuda_vattention.c - vAttention on a GPU. From equal stored masses, the CPU must choose the same fixed rows,
// base sample and budget. The share of cases that exceed the stated error must be at most the stated share.
#include "tests/support/gpu.h"

#ifdef SLEIGH_CUDA
#include "tests/support/decode_check.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

// Values have a mean that is not 0. With mean 0, the output of a flat head is almost 0, and even a few missing rows give a
// large relative error.
static ref_cache new_cache(int n_heads, int n_kv_heads, int dim, int n_seqs, const int *lengths, double scale) {
    ref_cache c = ref_cache_new(n_heads, n_kv_heads, dim, n_seqs, lengths, scale, test_seed);
    ref_add_to_values(&c, 1);
    return c;
}

static void check(const char *attn, int n_heads, int n_kv_heads, int dim, int n_seqs, const int *lengths, double scale) {
    ref_cache c = new_cache(n_heads, n_kv_heads, dim, n_seqs, lengths, scale);
    decode_fixture r = fixture_new(&c, attn, 23);
    fixture_launch(&r);
    fixture_check_masses(&r);
    fixture_check(&r);
    CHECK_INT(r.stats.tries, (uint64_t)n_heads * n_seqs);
    fixture_free(&r);
    ref_cache_free(&c);
}

static void lengths_and_shapes(void) {
    static const int all[] = {1, 31, 255, 256, 257, 258, 400, 8192, 32769}, some[] = {700, 1, 2049};
    static const int dims[] = {64, 80, 96, 128}, groups[] = {1, 2, 3, 4, 5, 6, 7, 8};
    static const char *const specs[] = {"vattention", "vattention:predictor=quest",
                                        "vattention:epsilon=1:verify=denominator:sink=3:window=2", "vattention:predictor=int4",
                                        "vattention:epsilon=0.5:sink=3:window=2:predictor=int4"};
    for (int i = 0; i < 9; i++)
        for (int k = 0; k < 5; k++) check(specs[k], 4, 1, 128, 1, &all[i], (i + k) % 3);
    for (int d = 0; d < 4; d++)
        for (int g = 0; g < 8; g++)
            for (int k = 1; k < 5; k++) check(specs[k], 2 * groups[g], 2, dims[d], 3, some, 1);
}

// Samples from the smallest base sample to all rows.
static void budgets(void) {
    static const char *const verify[] = {"denominator", "numerator", "output"},
                             *const predictor[] = {"oracle", "quest", "int4"},
                             *const bound[] = {"clt", "hoeffding", "bernstein"};
    static const double epsilons[] = {1, 0.3, 0.1, 0.03};
    static const int n = 3000;
    char attn[200];
    for (int i = 0; i < 108; i++) {
        snprintf(attn, sizeof attn,
                 "vattention:sink=32:window=32:top=%g:base=%g:epsilon=%g:delta=0.1:verify=%s:bound=%s:predictor=%s",
                 i % 5 ? 0.02 : 0, i % 7 ? 0.05 : 0, epsilons[i % 4], verify[i % 3], bound[i / 36], predictor[i / 12 % 3]);
        check(attn, 4, 2, 64, 1, &n, 0.3 + i % 2);
    }
}

// The share of outputs, over queries and draws, that differ from dense attention by more than epsilon. It must be at most 3
// standard errors above delta (test_vattention.c says what such a test can show). Rounding the output to bf16 adds about 2^-9
// of its norm.
static void coverage(void) {
    enum { SEQS = 8, HEADS = 8, DIM = 64, SEEDS = 10 };
    static const int lengths[SEQS] = {2000, 2500, 3000, 3500, 4000, 5000, 6000, 8000};
    const double epsilon = 0.15, delta = 0.1;
    int exceeded = 0, sampled = 0, runs = 0;
    for (int scale = 0; scale < 2; scale++) {
        char attn[120];
        snprintf(attn, sizeof attn, "vattention:sink=32:window=32:epsilon=%g:delta=%g", epsilon, delta);
        ref_cache c = new_cache(HEADS, 2, DIM, SEQS, lengths, 0.5 + scale);
        decode_fixture r = fixture_new(&c, attn, 1);
        for (uint32_t seed = 0; seed < SEEDS; seed++) {
            fixture_seed(&r, (uint32_t)test_seed + seed);
            fixture_launch(&r);
            sampled += r.stats.v_rows < (uint64_t)HEADS * 34000;
            for (int i = 0; i < SEQS * HEADS; i++, runs++)
                exceeded += fixture_error(&r, i / HEADS, i % HEADS, NULL) > epsilon * (1 + 0x1p-7);
        }
        fixture_free(&r);
        ref_cache_free(&c);
    }
    printf("      epsilon %g, delta %g: %d of %d exceed it\n", epsilon, delta, exceeded, runs);
    CHECK_INT(sampled, 2 * SEEDS); // no launch reads every row
    CHECK(exceeded <= delta * runs + 3 * sqrt(delta * (1 - delta) * runs));
}

// Compares the number of heads whose base sample has a heavy tail, and the largest kurtosis, with the CPU's. A stored mass in
// ten thousand differs by its last bit, so one head at the limit may count on one device only. A kurtosis is a sum of fourth
// powers, divided by the square of a sum of squares: masses that are off by 2^-9 (RMS of the rounding to bf16) change it by at
// most 8 2^-9.
static void heavy_tails(void) {
    enum { HEADS = 8, SEQS = 4 };
    static const int lengths[SEQS] = {1000, 2000, 3000, 5000};
    static const double scales[] = {0.1, 1, 2, 4};
    static const char *const verified[] = {"denominator", "numerator", "output"};
    int n_heavy = 0;
    for (int i = 0; i < 4 * 3; i++) {
        char attn[120];
        snprintf(attn, sizeof attn, "vattention:sink=32:window=32:top=0:base=0.05:epsilon=0.2:verify=%s", verified[i / 4]);
        ref_cache c = new_cache(HEADS, 2, 64, SEQS, lengths, scales[i % 4]);
        decode_fixture r = fixture_new(&c, attn, 23); // rounds the queries to bf16, so it comes before the CPU's decode
        fixture_launch(&r);
        sl_attn_stats cpu = ref_decode(&c, attn, 0, SEQS, 23, FIXTURE_LAYER);
        printf("      %s, query scale %g: %llu heavy tails, kurtosis %.4g; on the CPU %llu, %.4g\n", verified[i / 4],
               scales[i % 4], (unsigned long long)r.stats.heavy_tails, r.stats.kurtosis, (unsigned long long)cpu.heavy_tails,
               cpu.kurtosis);
        CHECK_NEAR((double)r.stats.heavy_tails, (double)cpu.heavy_tails, 1);
        CHECK_NEAR(r.stats.kurtosis, cpu.kurtosis, 0x1p-6 * cpu.kurtosis);
        n_heavy += (int)cpu.heavy_tails;
        fixture_free(&r);
        ref_cache_free(&c);
    }
    CHECK(n_heavy > 0 && n_heavy < 3 * 4 * HEADS * SEQS); // some, not all
}

static void ragged_batch(void) {
    check("vattention:epsilon=0.2", 8, 2, 128, FIXTURE_SEQS, fixture_ragged, 1);
    check("vattention:epsilon=0.2:predictor=quest", 8, 2, 128, FIXTURE_SEQS, fixture_ragged, 1);
    check("vattention:epsilon=0.2:predictor=int4", 8, 2, 128, FIXTURE_SEQS, fixture_ragged, 1);
}
#endif

static const test_case cases[] = {
    GPU_CASE("lengths-and-shapes", lengths_and_shapes),
    GPU_CASE("budgets", budgets),
    GPU_CASE("coverage", coverage),
    GPU_CASE("heavy-tails", heavy_tails),
    GPU_CASE("ragged-batch", ragged_batch),
    {0},
};
const test_suite suite_cuda_vattention = {"cuda_vattention", cases};
