// tests/cuda/test_cuda_sparse.c - topk, topp, streaming, quest and random on a GPU. The CPU chooses rows from the masses that
// the kernel stored. The kernel's output must equal the output of these rows.
#include "tests/support/gpu.h"

#ifdef SLEIGH_CUDA
#include "tests/support/decode_check.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

static const char *const specs[] = {"topk:k=128", "topp:p=0.9", "streaming:sink=4:window=300", "quest:tokens=512",
                                    "random:S=100"};
enum { N_SPECS = sizeof specs / sizeof *specs };

// Scores that are equal, flat or peaked, and scores that give one row nearly all the mass.
static void all_lengths(void) {
    static const int all[] = {1, 31, 32, 33, 255, 256, 257, 1000, 8192, 32768, 32769};
    static const double scales[] = {0, 1, 4, 30};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++)
        for (int k = 0; k < N_SPECS; k++) fixture_try(specs[k], 8, 2, 128, 1, &all[i], scales[(i + k) % 4]);
    for (int k = 0; k < N_SPECS; k++)
        for (int i = 0; i < 4; i++) fixture_try(specs[k], 4, 1, 64, 1, &all[8], scales[i]);
}

static void shapes(void) {
    static const int dims[] = {64, 80, 96, 128}, groups[] = {1, 2, 3, 4, 5, 6, 7, 8}, lengths[] = {700, 1, 2049};
    for (int d = 0; d < 4; d++)
        for (int g = 0; g < 8; g++)
            for (int k = 0; k < N_SPECS; k++) fixture_try(specs[k], 2 * groups[g], 2, dims[d], 3, lengths, 2);
}

// Budgets from one row to more rows than there are.
static void budgets(void) {
    static const char *const all[] = {"topk:k=1",
                                      "topk:k=2",
                                      "topk:k=1000",
                                      "topk:k=2999",
                                      "topk:k=5000",
                                      "topp:p=0",
                                      "topp:p=0.3",
                                      "topp:p=0.999",
                                      "topp:p=1",
                                      "quest:tokens=16",
                                      "quest:tokens=31",
                                      "quest:tokens=32",
                                      "quest:tokens=2992",
                                      "quest:tokens=3008",
                                      "quest:tokens=9999",
                                      "quest:tokens=32:sink=16",
                                      "quest:tokens=320:sink=300",
                                      "quest:tokens=512:sink=40",
                                      "quest:tokens=2992:sink=1000",
                                      "random:S=1",
                                      "random:S=9999",
                                      "streaming:sink=0:window=1",
                                      "streaming:sink=1000:window=1",
                                      "streaming:sink=9:window=9999",
                                      "streaming:sink=9999:window=9",
                                      "streaming:sink=1500:window=1500"};
    static const int n = 3000;
    for (size_t i = 0; i < sizeof all / sizeof *all; i++)
        for (int scale = 0; scale < 2; scale++) fixture_try(all[i], 4, 1, 64, 1, &n, 1.5 * scale);
    static const int whole = 2048; // 128 units: the last word of their bits is full
    fixture_try("quest:tokens=2048", 4, 1, 64, 1, &whole, 1.5);
}

// quest must store the masses of the bounds.
static void bounds(void) {
    static const int lengths[] = {1, 255, 256, 257, 3000}, dims[] = {64, 80, 96, 128};
    for (int d = 0; d < 4; d++) {
        int dim = dims[d];
        ref_cache cache = ref_cache_new(6, 2, dim, 5, lengths, 2, test_seed);
        decode_fixture r = fixture_new(&cache, "quest", 1);
        fixture_launch(&r);
        for (int s = 0; s < 5; s++)
            for (int head = 0; head < 6; head++) {
                sl_masses wt = fixture_masses(&r, 0, s, head);
                for (int u = 0; u < wt.n; u++) {
                    double bound = 0;
                    for (int c = 0; c < dim; c++) {
                        double most = -INFINITY;
                        for (int j = 16 * u; j < 16 * u + 16 && j < lengths[s]; j++)
                            most = fmax(most, cache.q[((size_t)s * 6 + head) * dim + c] *
                                                  (double)sl_bf16_to_f32(ref_k_row(&cache, s, head / 3, j)[c]));
                        bound += most;
                    }
                    double want = exp2(bound * 1.4426950408889634 / sqrt(dim) - wt.ref[u / 32]);
                    CHECK_NEAR(sl_bf16_to_f32(wt.stored[u]), want, want * 0x1p-7 + 1e-30);
                }
                fixture_masses_free(&wt);
            }
        fixture_free(&r);
        ref_cache_free(&cache);
    }
}

// streaming reads a cache of fp8 or int8 with the kernel of dense attention: skipped rows within a tile, skipped tiles, none.
static void streaming_of_bytes(void) {
    static const char *const all[] = {"streaming:sink=4:window=300",     "streaming:sink=0:window=1",
                                      "streaming:sink=100:window=1000",  "streaming:sink=1000:window=1",
                                      "streaming:sink=1500:window=1500", "streaming:sink=9:window=9999"};
    static const int lengths[] = {3000, 1, 305, 2049, 700}, dims[] = {64, 80, 96, 128}, groups[] = {1, 3, 4, 8};
    static const sl_format formats[] = {SL_FP8, SL_INT8};
    for (int f = 0; f < 2; f++)
        for (int d = 0; d < 4; d++) {
            ref_cache c = ref_cache_new(2 * groups[(d + f) % 4], 2, dims[d], 5, lengths, 1.5, test_seed);
            ref_store_as(&c, formats[f]);
            for (size_t i = 0; i < sizeof all / sizeof *all; i++) fixture_try_on(&c, all[i]);
            ref_cache_free(&c);
        }
}

static void ragged_batch(void) {
    for (int k = 0; k < N_SPECS; k++) fixture_try(specs[k], 8, 2, 128, FIXTURE_SEQS, fixture_ragged, 2);
}
#endif

static const test_case cases[] = {
    GPU_CASE("lengths", all_lengths),
    GPU_CASE("shapes", shapes),
    GPU_CASE("budgets", budgets),
    GPU_CASE("bounds", bounds),
    GPU_CASE("ragged-batch", ragged_batch),
    GPU_CASE("streaming-of-bytes", streaming_of_bytes),
    {0},
};
const test_suite suite_cuda_sparse = {"cuda_sparse", cases};
