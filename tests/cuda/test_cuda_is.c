// tests/cuda/test_cuda_is.c - santa-is and dense-q on a GPU. Stored masses agree with the CPU's scores of the same quantised
// pages. The CPU draws from the masses that the kernel stored, and the kernel's output must be the mean of these rows with
// their exact scores.
#include "tests/support/gpu.h"

#ifdef SLEIGH_CUDA
#include "tests/support/decode_check.h"

#include <math.h>
#include <stdlib.h>

static int n_compared, n_off_by_1; // in all steps of a case

static void check_step(decode_fixture *r) {
    fixture_launch(r);
    fixture_check_masses(r);
    fixture_check(r);
    n_compared += r->n_compared, n_off_by_1 += r->n_off_by_1;
}

static void check_on(ref_cache *c, const char *attn) {
    decode_fixture r = fixture_new(c, attn, 11);
    check_step(&r);
    fixture_free(&r);
}

// A score of quantised keys is an integer times a few factors: at most one mass in a thousand differs from the CPU's.
static void report_masses(void) {
    printf("      %d of %d stored masses differ from the CPU's in their last bit\n", n_off_by_1, n_compared);
    if (n_off_by_1 > n_compared / 1000 + 3) FAIL("%d of %d stored masses differ from the CPU's", n_off_by_1, n_compared);
    n_off_by_1 = n_compared = 0;
}

static void lengths(void) {
    static const int all[] = {1, 31, 255, 256, 257, 513, 1000, 8192, 32769};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) {
        double scale = i % 3 == 0 ? 0 : i % 3 == 1 ? 1 : 4;
        ref_cache c = ref_cache_new(8, 2, 128, 1, &all[i], scale, test_seed);
        check_on(&c, "santa-is:S=128:budget=even");
        check_on(&c, "santa-is:S=256:budget=even");
        check_on(&c, "dense-q");
        ref_cache_free(&c);
    }
    report_masses();
}

static void samples(void) {
    static const int n = 3000;
    static const char *const attn[] = {
        "santa-is:S=1:budget=even",   "santa-is:S=3:budget=even",    "santa-is:S=127:budget=even", "santa-is:S=129:budget=even",
        "santa-is:S=513:budget=even", "santa-is:S=2000:budget=even", "santa-is:S=4096:budget=even"};
    ref_cache c = ref_cache_new(4, 1, 128, 1, &n, 2, test_seed);
    for (size_t i = 0; i < sizeof attn / sizeof *attn; i++) check_on(&c, attn[i]);
    ref_cache_free(&c);
    report_masses();
}

static void shapes(void) {
    static const int dims[] = {64, 80, 96, 128}, groups[] = {1, 2, 3, 4, 5, 6, 7, 8}, lengths[] = {700, 1, 2049};
    static const char *const attn[] = {"santa-is:S=64:proposal=int8:budget=even",
                                       "santa-is:S=64:budget=even",
                                       "santa-is:S=64:proposal=int3:budget=even",
                                       "dense-q:bits=8",
                                       "dense-q:bits=4",
                                       "dense-q:bits=3"};
    for (int d = 0; d < 4; d++)
        for (int g = 0; g < 8; g++) {
            ref_cache c = ref_cache_new(2 * groups[g], 2, dims[d], 3, lengths, 2, test_seed);
            for (int i = 0; i < 6; i++) check_on(&c, attn[i]);
            ref_cache_free(&c);
        }
    report_masses();
}

// Keys of the newest page get the direction of head 0's query: the masses of these rows are 2^shift times as large as others.
static void a_heavy_newest_page(void) {
    static const int n = 1000;
    static const double shifts[] = {4, 8, 9, 12, 40, 2000};
    for (size_t i = 0; i < sizeof shifts / sizeof *shifts; i++) {
        ref_cache c = ref_cache_new(4, 1, 128, 1, &n, 1, test_seed);
        double square = 0, log2_e = 1.4426950408889634;
        for (int d = 0; d < 128; d++) square += (double)c.q[d] * c.q[d];
        for (int j = 768; j < n; j += 5)
            for (int d = 0; d < 128; d++)
                ((bf16 *)ref_k_row(&c, 0, 0, j))[d] =
                    sl_f32_to_bf16((float)(c.q[d] / square * sqrt(128) / log2_e * (shifts[i] + 4)));
        check_on(&c, "santa-is:S=64:budget=even");
        ref_cache_free(&c);
    }
    n_off_by_1 = n_compared = 0; // huge scores sometimes differ by more than the last bit
}

// When S covers all rows, the output is dense attention.
static void equals_dense(void) {
    static const int n = 1500;
    ref_cache c = ref_cache_new(8, 2, 128, 1, &n, 2, test_seed);
    decode_fixture r = fixture_new(&c, "santa-is:S=1500:budget=even", 5);
    fixture_launch(&r);
    for (int h = 0; h < 8; h++) {
        double mu[128];
        fixture_error(&r, 0, h, mu);
        for (int d = 0; d < 128; d++) CHECK_NEAR(sl_bf16_to_f32(r.out[h * 128 + d]), mu[d], 0.01 * fabs(mu[d]) + 2e-3);
    }
    fixture_free(&r);
    ref_cache_free(&c);
}

static void ragged_batch(void) {
    static const char *const attn[] = {"santa-is:S=256:budget=even", "dense-q", "santa-is:S=128:proposal=int8:budget=even"};
    ref_cache c = ref_cache_new(8, 2, 128, FIXTURE_SEQS, fixture_ragged, 3, test_seed);
    for (int i = 0; i < 3; i++) check_on(&c, attn[i]);
    ref_cache_free(&c);
    report_masses();
}
#endif

static const test_case cases[] = {
    GPU_CASE("lengths", lengths),
    GPU_CASE("samples", samples),
    GPU_CASE("shapes", shapes),
    GPU_CASE("a-heavy-newest-page", a_heavy_newest_page),
    GPU_CASE("equals-dense", equals_dense),
    GPU_CASE("ragged-batch", ragged_batch),
    {0},
};
const test_suite suite_cuda_is = {"cuda_is", cases};
