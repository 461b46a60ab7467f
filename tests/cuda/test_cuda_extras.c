// tests/cuda/test_cuda_extras.c - page extras that are built on a GPU have the CPU's bits, for a cache of every format.
#include "tests/support/gpu.h"

#ifdef SLEIGH_CUDA
#include "attention/stages/stages.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { HEADS = 2, PAGES = 5 };

// Channels of many kinds: wide, narrow, constant, far from zero, tiny, beyond the range of f16, zeros of both signs.
static bf16 *some_rows(int dim, uint64_t seed) {
    size_t n = (size_t)PAGES * HEADS * SL_PAGE * dim;
    bf16 *x = malloc(n * sizeof *x);
    for (size_t i = 0; i < n; i++) {
        int c = (int)(i % dim);
        double scale = c % 7 == 0 ? 0 : exp2(c % 11 - 5.0), offset = c % 5 == 0 ? 30 * exp2(c % 4) : 1;
        if (c == 9) scale = 1e-7, offset = 1e-6;
        if (c == 13) scale = 4e4;
        x[i] = sl_f32_to_bf16((float)(offset + scale * test_normal(&seed)));
        if (c >= 17 && c < 20) x[i] = c == 17 || (c == 18 && i / dim % 3) ? 0x8000 : 0; // -0, both, 0
        if (c == 20) x[i] = i / dim % 2 ? x[i] & 0x7fff : 0x8000;                       // numbers >= 0 and -0
        if (c == 22) x[i] = i / dim % 2 ? x[i] | 0x8000 : 0;                            // numbers <= 0 and 0
    }
    return x;
}

// The rows as blocks of a format.
static void *blocks_of(const bf16 *rows, int dim, sl_format f) {
    char *blocks = malloc(PAGES * HEADS * sl_kv_block_bytes(f, dim));
    for (int i = 0; i < PAGES * HEADS * SL_PAGE; i++) {
        float x[128];
        for (int d = 0; d < dim; d++) x[d] = sl_bf16_to_f32(rows[(size_t)i * dim + d]);
        sl_kv_store(blocks, f, dim, i / SL_PAGE, i % SL_PAGE, x, 0);
    }
    return blocks;
}

static void no_change(bf16 *rows, int dim) {
    (void)rows, (void)dim;
}

// Some rows get a number that is not finite, or so large that its square is not.
static void make_not_finite(bf16 *rows, int dim) {
    static const bf16 values[] = {0x7fc0, 0xffc0, 0x7f80, 0xff80, 0x7f7f};
    for (int i = 0; i < PAGES * HEADS * SL_PAGE; i += 7) rows[(size_t)i * dim + i % dim] = values[i % 5];
}

// change: of the rows before they are stored. Builds pages 3, 0 and 4 on both devices and compares their bits. The other pages
// must stay unchanged.
static void compare_format(const sl_kv_extra_kind *kind, int arg, int dim, sl_format f, void (*change)(bf16 *rows, int dim)) {
    static const int32_t pages[] = {3, 0, 4};
    size_t size = kind->size(arg, dim), all = (size_t)PAGES * HEADS * size;
    bf16 *rows = some_rows(dim, test_seed + dim);
    change(rows, dim);
    void *x = blocks_of(rows, dim, f);
    bf16 *gpu_x = gpu_copy(x, PAGES * HEADS * sl_kv_block_bytes(f, dim));
    unsigned char *out = gpu_new(all), *got = malloc(all), *want = malloc(all);
    memset(want, 0xFF, all);
    for (int i = 0; i < 3; i++)
        for (int h = 0; h < HEADS; h++) {
            size_t block = (size_t)pages[i] * HEADS + h;
            const sl_kv_run run = sl_kv_run_of(x, f, dim, block);
            kind->build(&(sl_kv_page){.arg = arg, .head_dim = dim, .k = run, .v = run}, want + block * size);
        }
    kind->build_device(&(sl_kv_device_build){.arg = arg,
                                             .head_dim = dim,
                                             .n_kv_heads = HEADS,
                                             .size = size,
                                             .n = 3,
                                             .pages = gpu_copy(pages, sizeof pages),
                                             .from = gpu_copy(pages, sizeof pages),
                                             .k = gpu_x,
                                             .v = gpu_x,
                                             .format = f,
                                             .data = out});
    gpu_read(got, out, all);
    for (size_t i = 0; i < all; i++)
        if (got[i] != want[i])
            FAIL("%s %d of %s, head_dim %d: byte %zu of block %zu is %02x, expected %02x", kind->name, arg, sl_formats[f].name,
                 dim, i % size, i / size, got[i], want[i]);
    free(rows), free(x), free(got), free(want);
}

static void compare(const sl_kv_extra_kind *kind, int arg, int dim, void (*change)(bf16 *rows, int dim)) {
    static const sl_format formats[] = {SL_BF16, SL_FP8, SL_INT8};
    for (int i = 0; i < 3; i++) compare_format(kind, arg, dim, formats[i], change);
}

static void quantised(void) {
    static const int dims[] = {64, 80, 96, 128}, bits[] = {8, 4, 3};
    for (int d = 0; d < 4; d++)
        for (int b = 0; b < 3; b++) compare(&sl_quantised_keys, bits[b], dims[d], no_change);
}

static void bounds(void) {
    static const int dims[] = {64, 80, 96, 128};
    for (int d = 0; d < 4; d++) compare(&sl_key_bounds, 0, dims[d], no_change);
}

static void by_feature(void) {
    static const int dims[] = {64, 80, 96, 128};
    for (int d = 0; d < 4; d++) compare_format(&sl_keys_by_feature, 0, dims[d], SL_BF16, no_change);
}

static void norms(void) {
    static const int dims[] = {64, 80, 96, 128};
    for (int d = 0; d < 4; d++) compare(&sl_page_norms, 0, dims[d], make_not_finite);
}
#endif

static const test_case cases[] = {
    GPU_CASE("quantised", quantised),
    GPU_CASE("by-feature", by_feature),
    GPU_CASE("norms", norms),
    GPU_CASE("bounds", bounds),
    {0},
};
const test_suite suite_cuda_extras = {"cuda_extras", cases};
