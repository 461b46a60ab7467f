// tests/cuda/test_cuda_santa.c - the SANTA family on a GPU. Stored masses agree with double precision. The CPU draws from the
// masses that the kernel stored, and the kernel's output must be the mean of these rows.
#include "tests/support/gpu.h"

#ifdef SLEIGH_CUDA
#include "tests/support/decode_check.h"

#include <stdlib.h>
#include <string.h>

static const char *const methods[] = {"santa", "santa-strat", "santa-sys", "santa-prop", "santa-flash"};
enum { N_METHODS = sizeof methods / sizeof *methods };

static void check(int n_heads, int n_kv_heads, int dim, int n_seqs, const int *lengths, double scale, int S) {
    ref_cache c = ref_cache_new(n_heads, n_kv_heads, dim, n_seqs, lengths, scale, test_seed);
    for (int k = 0; k < N_METHODS; k++) {
        char attn[32];
        snprintf(attn, sizeof attn, "%s:S=%d", methods[k], S);
        fixture_try_on(&c, attn);
    }
    ref_cache_free(&c);
}

static void lengths(void) {
    // Borders of tiles (64 rows) and pages (256); as many pages as a GPU has multiprocessors, twice as many, and more
    static const int all[] = {1,   31,  32,  33,  63,  64,   65,   127,  128,   129,   191,   192,
                              193, 255, 256, 257, 320, 1000, 4097, 8192, 32768, 32769, 40000, 65536};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++)
        check(8, 2, 128, 1, &all[i], i % 3 == 0 ? 0 : i % 3 == 1 ? 1 : 4, 128);
}

static void samples(void) {
    static const int n = 3000, S[] = {1, 3, 127, 128, 129, 1000, 4096};
    for (size_t i = 0; i < sizeof S / sizeof *S; i++) check(4, 1, 128, 1, &n, 2, S[i]);
    static const int ties = 40000, few[] = {3, 127, 130}; // tiles of equal mass have equal remainders in santa-prop
    for (int i = 0; i < 3; i++) check(4, 1, 128, 1, &ties, 0, few[i]);
}

static void shapes(void) {
    static const int dims[] = {64, 80, 96, 128}, groups[] = {1, 2, 3, 4, 5, 6, 7, 8}, lengths[] = {700, 1, 2049};
    for (int d = 0; d < 4; d++)
        for (int g = 0; g < 8; g++) check(2 * groups[g], 2, dims[d], 3, lengths, 2, 64);
}

// K and V of the second and third batch are larger than several L2 caches, so the kernels choose long tiles.
static void ragged_batch(void) {
    check(8, 2, 128, FIXTURE_SEQS, fixture_ragged, 3, 128);
    check(8, 4, 128, FIXTURE_SEQS, fixture_ragged, 3, 128);
    check(8, 8, 80, FIXTURE_SEQS, fixture_ragged, 2, 100);
}

// A race between copies and their readers changes only a few of many runs. So this case compares the bits of stored masses and
// outputs of 200 runs.
static void stored_again_by(int n_kv_heads) {
    ref_cache c = ref_cache_new(8, n_kv_heads, 128, FIXTURE_SEQS, fixture_ragged, 3, test_seed);
    decode_fixture r = fixture_new(&c, "santa-sys:S=128", 5);
    size_t n_mass = (size_t)r.n_pairs * r.group * r.max_blocks, out_bytes = (size_t)FIXTURE_SEQS * 8 * 128 * sizeof(bf16);
    fixture_launch(&r);
    uint64_t *mass = malloc(n_mass * sizeof *mass);
    bf16 *w = malloc(n_mass * SL_BLOCK * sizeof *w), *out = malloc(out_bytes);
    memcpy(mass, r.mass[0], n_mass * sizeof *mass), memcpy(w, r.stored, n_mass * SL_BLOCK * sizeof *w);
    memcpy(out, r.out, out_bytes);
    for (int i = 0; i < 200; i++) {
        fixture_launch(&r);
        CHECK(!memcmp(mass, r.mass[0], n_mass * sizeof *mass));
        CHECK(!memcmp(w, r.stored, n_mass * SL_BLOCK * sizeof *w));
        CHECK(!memcmp(out, r.out, out_bytes));
    }
    free(mass), free(w), free(out);
    fixture_free(&r);
    ref_cache_free(&c);
}
static void stored_again(void) {
    stored_again_by(2);
    stored_again_by(4); // long tiles
}
#endif

static const test_case cases[] = {
    GPU_CASE("lengths", lengths),           GPU_CASE("samples", samples),           GPU_CASE("shapes", shapes),
    GPU_CASE("ragged-batch", ragged_batch), GPU_CASE("stored-again", stored_again), {0},
};
const test_suite suite_cuda_santa = {"cuda_santa", cases};
