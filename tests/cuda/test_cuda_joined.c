// tests/cuda/test_cuda_joined.c - `first+value` on a GPU where the first method takes a set of rows (joined.cu). The CPU takes
// the set from the masses that the first method stores alone on the GPU. The join must store the masses of exactly these rows,
// and count their keys. The CPU draws from the stored masses, and the kernel's output must be the mean of these rows.
#include "tests/support/gpu.h"

#ifdef SLEIGH_CUDA
#include "tests/support/decode_check.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

static const char *const specs[] = {
    "quest:tokens=512+santa-prop:S=128",
    "topk:k=300+santa-sys:S=64",
    "topp:p=0.8+santa:S=50",
    "streaming:sink=4:window=300+santa-flash:S=200",
    "dense-q:bits=4+santa-prop:S=128",
    "quest:tokens=96:sink=40+santa-strat:S=600", // in parts; more draws than rows
};
enum { N_SPECS = sizeof specs / sizeof *specs };

static void lengths(void) {
    // Borders of units, blocks, pages and spans
    static const int all[] = {1, 15, 16, 17, 31, 32, 33, 255, 256, 257, 1000, 1024, 1025, 8192, 32769};
    static const double scales[] = {0, 1, 4};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++)
        for (int k = 0; k < N_SPECS; k++)
            if (all[i] < 30000 || k < N_SPECS - 1) fixture_try(specs[k], 8, 2, 128, 1, &all[i], scales[(i + k) % 3]);
}

static void shapes(void) {
    static const int dims[] = {64, 80, 96, 128}, groups[] = {1, 3, 4, 8}, lengths[] = {700, 1, 2049};
    for (int d = 0; d < 4; d++)
        for (int i = 0; i < 4; i++)
            for (int k = 0; k < N_SPECS - 1; k++) fixture_try(specs[k], 2 * groups[i], 2, dims[d], 3, lengths, 2);
}

// Sets of one row up to more rows than there are, and more draws than a set has rows.
static void budgets(void) {
    static const char *const sets[] = {"topk:k=1",
                                       "topk:k=2999",
                                       "topk:k=5000",
                                       "topp:p=0.0001",
                                       "topp:p=1",
                                       "quest:tokens=16",
                                       "quest:tokens=31",
                                       "quest:tokens=2992",
                                       "quest:tokens=9999",
                                       "streaming:sink=0:window=1",
                                       "streaming:sink=1000:window=1",
                                       "streaming:sink=9999:window=9",
                                       "streaming:sink=1500:window=1500"};
    static const char *const draws[] = {"santa:S=1", "santa-strat:S=4096", "santa-sys:S=129", "santa-prop:S=1000",
                                        "santa-flash:S=1"};
    static const int n = 3000;
    for (size_t i = 0; i < sizeof sets / sizeof *sets; i++) {
        char attn[80];
        snprintf(attn, sizeof attn, "%s+%s", sets[i], draws[i % 5]);
        fixture_try(attn, 4, 1, 64, 1, &n, i % 2 ? 1.5 : 0);
        snprintf(attn, sizeof attn, "%s+santa-prop:S=128", sets[i]);
        fixture_try(attn, 4, 1, 64, 1, &n, 3);
    }
}

static void ragged_batch(void) {
    for (int k = 0; k < N_SPECS; k++) fixture_try(specs[k], 8, 2, 128, FIXTURE_SEQS, fixture_ragged, 2);
}

// A set of all rows has the stored masses of the second method alone, so the same bits.
static void whole_set(void) {
    static const char *const whole[] = {"topk:k=5000", "topp:p=1", "streaming:window=5000", "quest:tokens=9999"};
    static const char *const draws[] = {"santa:S=128", "santa-strat:S=128", "santa-sys:S=600", "santa-prop:S=128",
                                        "santa-flash:S=128"};
    static const int lengths[] = {5000, 1, 257};
    enum { HEADS = 8, DIM = 80, N = 3, SIZE = N * HEADS * DIM };
    ref_cache c = ref_cache_new(HEADS, 2, DIM, N, lengths, 2, test_seed);
    for (int k = 0; k < 5; k++) {
        bf16 want[SIZE];
        decode_fixture alone = fixture_new(&c, draws[k], 5);
        fixture_launch(&alone);
        memcpy(want, alone.out, sizeof want);
        fixture_free(&alone);
        for (int i = 0; i < 4; i++) {
            char attn[80];
            snprintf(attn, sizeof attn, "%s+%s", whole[i], draws[k]);
            decode_fixture r = fixture_new(&c, attn, 5);
            fixture_launch(&r);
            if (memcmp(want, r.out, sizeof want)) FAIL("%s: other bits than %s", attn, draws[k]);
            fixture_free(&r);
        }
    }
    ref_cache_free(&c);
}

// A set without rows has no masses, so every head attends to all rows exactly, as on the CPU.
static void empty_set(void) {
    static const char attn[] = "topp:p=0+santa-prop:S=100";
    static const int lengths[] = {3000, 40};
    enum { HEADS = 4, DIM = 64, N = 2 };
    ref_cache c = ref_cache_new(HEADS, 2, DIM, N, lengths, 1.5, test_seed);
    decode_fixture r = fixture_new(&c, attn, 5);
    sl_attn_stats cpu = ref_decode(&c, attn, 0, N, 5, FIXTURE_LAYER);
    fixture_launch(&r);
    CHECK_INT(cpu.fallbacks, N * HEADS);
    CHECK_INT(r.stats.fallbacks, N * HEADS);
    for (int i = 0; i < N * HEADS * DIM; i++) CHECK_NEAR(sl_bf16_to_f32(r.out[i]), c.out[i], 0x1p-7 * fabs(c.out[i]) + 1e-4);
    fixture_free(&r);
    ref_cache_free(&c);
}

// Keys and values of rows outside of the set of every head have no effect, even if they are NaN. Streaming does not look at
// keys to take its set.
static void rows_outside(void) {
    enum { HEADS = 4, DIM = 64, N = 2, SINK = 20, WINDOW = 330 };
    static const int lengths[] = {2000, 301};
    ref_cache c = ref_cache_new(HEADS, 1, DIM, N, lengths, 1, test_seed);
    bf16 want[N * HEADS * DIM];
    for (int planted = 0; planted < 2; planted++) {
        for (int s = 0; planted && s < N; s++)
            for (int j = SINK; j < lengths[s] - WINDOW; j++)
                for (int d = 0; d < DIM; d++)
                    ((bf16 *)ref_k_row(&c, s, 0, j))[d] = ((bf16 *)ref_v_row(&c, s, 0, j))[d] = 0x7fc0;
        decode_fixture r = fixture_new(&c, "streaming:sink=20:window=330+santa-prop:S=64", 7);
        fixture_launch(&r);
        if (planted && memcmp(want, r.out, sizeof want)) FAIL("rows outside of the set change the output");
        memcpy(want, r.out, sizeof want);
        fixture_free(&r);
    }
    ref_cache_free(&c);
}

// dense-q counts no row of K: it scores codes, and of the newest page only the bytes are counted.
static void quantised_keys(void) {
    static const char *const attn[] = {"dense-q:bits=8+santa:S=128", "dense-q:bits=4+santa-sys:S=600",
                                       "dense-q:bits=3+santa-flash:S=64"};
    static const int lengths[] = {5000, 1, 257};
    ref_cache c = ref_cache_new(6, 2, 64, 3, lengths, 2, test_seed);
    for (int i = 0; i < 3; i++) {
        decode_fixture r = fixture_new(&c, attn[i], 5);
        sl_attn_stats cpu = ref_decode(&c, attn[i], 0, 3, 5, FIXTURE_LAYER);
        fixture_launch(&r);
        fixture_check_masses(&r);
        fixture_check(&r);
        CHECK_INT(r.stats.k_rows, cpu.k_rows);
        CHECK_INT(r.stats.samples, cpu.samples);
        fixture_free(&r);
    }
    ref_cache_free(&c);
}
#endif

static const test_case cases[] = {
    GPU_CASE("lengths", lengths),
    GPU_CASE("shapes", shapes),
    GPU_CASE("budgets", budgets),
    GPU_CASE("ragged-batch", ragged_batch),
    GPU_CASE("whole-set", whole_set),
    GPU_CASE("empty-set", empty_set),
    GPU_CASE("rows-outside", rows_outside),
    GPU_CASE("quantised-keys", quantised_keys),
    {0},
};
const test_suite suite_cuda_joined = {"cuda_joined", cases};
