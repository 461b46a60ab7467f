// tests/kv/test_kv_rows.c - how the KV cache rounds and stores a row, against the definition of each format in double
// precision, and the names of the formats.
#include "kv/kv.h"
#include "tests/support/reference.h"
#include "tests/test.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { MOST_DIM = 256, BLOCKS = 3 };
static const sl_format scaled[] = {SL_FP8, SL_INT8};

static sl_error err;

// The distance of x from the nearest number that the row can hold: one of 256 codes times the scale.
static double nearest(sl_format f, float scale, float x) {
    double best = INFINITY;
    for (int code = 0; code < 256; code++) {
        uint8_t byte = (uint8_t)code;
        sl_kv_run one = {&byte, &scale, f};
        if ((f == SL_FP8 && (code & 127) == 127) || (f == SL_INT8 && code == 128)) continue; // NaN; -128 is not used
        best = fmin(best, fabs(ref_number(one, 1, 0, 0) - x));
    }
    return best;
}

static void check_row(sl_format f, const float *x, int dim, sl_kv_run run, int j) {
    double most = 0, limit = f == SL_FP8 ? 448 : 127;
    for (int d = 0; d < dim; d++) most = fmax(most, fabs((double)x[d]));
    double scale = most > 0 ? most / limit : 1;
    CHECK(run.scale[j] == (float)scale);
    for (int d = 0; d < dim; d++) {
        double got = ref_number(run, dim, j, d), error = fabs(got - x[d]);
        // x is rounded to the nearest code of x / scale. The division and the product with the scale round once each.
        double bound = f == SL_INT8 ? scale / 2 : fmax(fabs((double)x[d]) / 16, scale * 0x1p-10);
        CHECK(error <= bound + 0x1p-22 * fabs((double)x[d]));
        CHECK(error <= nearest(f, run.scale[j], x[d]) + 0x1p-22 * fabs((double)x[d]));
    }
}

// Rows of normal numbers of very different sizes, in the last of several blocks.
static void rounds_to_nearest(void) {
    static const int dims[] = {16, 80, 128, 256};
    uint64_t seed = test_seed;
    for (int f = 0; f < 2; f++)
        for (int i = 0; i < 4; i++) {
            int dim = dims[i];
            char *blocks = calloc(BLOCKS, sl_kv_block_bytes(scaled[f], dim));
            sl_kv_run run = sl_kv_run_of(blocks, scaled[f], dim, BLOCKS - 1);
            for (int j = 0; j < SL_PAGE; j += j < 4 ? 1 : 83) {
                float x[MOST_DIM];
                for (int d = 0; d < dim; d++) x[d] = (float)ldexp(test_normal(&seed), j % 5 * 20 - 40);
                sl_kv_store(blocks, scaled[f], dim, BLOCKS - 1, j, x, 0);
                check_row(scaled[f], x, dim, run, j);
            }
            free(blocks);
        }
}

// Ties go to the even code. int8 with scale 1: 0.5 to 0, 1.5 to 2; fp8 with scale 1: 17 to 16, 19 to 20, 2^-10 to 0.
static void ties_to_even(void) {
    const float x[2][16] = {{448, 17, 19, -17, -19, 0x1p-10f, 3 * 0x1p-10f, 25},
                            {127, 0.5f, 1.5f, 2.5f, -0.5f, -1.5f, -126.5f}};
    const double want[2][16] = {{448, 16, 20, -16, -20, 0, 0x1p-8, 24}, {127, 0, 2, 2, 0, -2, -126}};
    for (int f = 0; f < 2; f++) {
        char block[SL_PAGE * 20];
        sl_kv_store(block, scaled[f], 16, 0, 255, x[f], 0);
        sl_kv_run run = sl_kv_run_of(block, scaled[f], 16, 0);
        CHECK(run.scale[255] == 1);
        for (int d = 0; d < 16; d++) CHECK(ref_number(run, 16, 255, d) == want[f][d]);
    }
}

static void extremes(void) {
    for (int f = 0; f < 2; f++) {
        char block[SL_PAGE * 20];
        sl_kv_run run = sl_kv_run_of(block, scaled[f], 16, 0);
        float x[16] = {0};
        memset(block, 0x55, sizeof block);
        sl_kv_store(block, scaled[f], 16, 0, 0, x, 0);
        CHECK(run.scale[0] == 1);
        for (int d = 0; d < 16; d++) CHECK(ref_number(run, 16, 0, d) == 0);
        for (int i = 0; i < 3; i++) { // a number that is not finite makes the row NaN
            const float bad[] = {NAN, INFINITY, -INFINITY};
            x[5] = bad[i], x[6] = 1;
            sl_kv_store(block, scaled[f], 16, 0, 1, x, 0);
            for (int d = 0; d < 16; d++) CHECK(isnan(sl_kv_number(sl_kv_row_at(run, 16, 1), scaled[f], d)));
        }
        const float tiny[] = {0x1p-149f, 0x1p-140f, 0x1p-130f, 0x1p-126f, 3.4e38f};
        for (int i = 0; i < 5; i++) { // the scale may be a subnormal number or 0; errors are below half a step of the scale
            for (int d = 0; d < 16; d++) x[d] = d % 2 ? tiny[i] : -tiny[i] / 2;
            sl_kv_store(block, scaled[f], 16, 0, 2, x, 0);
            for (int d = 0; d < 16; d++) {
                double got = ref_number(run, 16, 2, d);
                CHECK(isfinite(got) && fabs(got) <= 1.01 * tiny[i] && fabs(got - x[d]) <= fmax(0x1p-142, 0.07 * tiny[i]));
            }
        }
    }
}

// Bytes, alignment and neighbours: a store changes its row and scale only.
static void layout(void) {
    CHECK_INT(sl_kv_row_bytes(SL_BF16, 80), 160);
    for (int f = 0; f < 2; f++)
        for (int dim = 16; dim <= MOST_DIM; dim += 16) {
            size_t size = sl_kv_block_bytes(scaled[f], dim);
            CHECK(size == (size_t)256 * dim + 1024 && sl_kv_row_bytes(scaled[f], dim) == (size_t)dim + 4);
            char *blocks = aligned_alloc(256, 2 * size), *before = malloc(2 * size);
            float x[MOST_DIM] = {[3] = 2};
            sl_kv_run run = sl_kv_run_of(blocks, scaled[f], dim, 1);
            CHECK((const char *)run.data == blocks + size && (const char *)run.scale == blocks + size + 256 * dim);
            memset(blocks, 0x33, 2 * size), memcpy(before, blocks, 2 * size);
            sl_kv_store(blocks, scaled[f], dim, 1, 77, x, 0);
            sl_kv_row row = sl_kv_row_at(run, dim, 77), same = sl_kv_row_at(sl_kv_run_from(run, dim, 70), dim, 7);
            CHECK(row.data == same.data && row.scale == same.scale && (uintptr_t)row.data % 16 == 0);
            CHECK((const char *)row.data == blocks + size + 77 * dim);
            for (size_t i = 0; i < 2 * size; i++) {
                size_t at = i - size, first_scale = (size_t)256 * dim + 77 * 4;
                int own = i >= size && (at / dim == 77 || (at >= first_scale && at < first_scale + 4));
                if (!own) CHECK(blocks[i] == before[i]);
            }
            free(blocks), free(before);
        }
    CHECK_INT(sl_kv_bytes_per_token(32, 8, 128, (sl_kv_formats){0}), 131072);
    CHECK_INT(sl_kv_bytes_per_token(32, 8, 128, (sl_kv_formats){SL_FP8, SL_INT8}), 32 * 8 * 2 * 132);
    CHECK_INT(sl_kv_bytes_per_token(32, 8, 128, (sl_kv_formats){SL_BF16, SL_INT8}), 32 * 8 * (256 + 132));
}

static void names(void) {
    static const struct {
        const char *dtype, *k, *v;
        sl_format want_k, want_v;
    } good[] = {{NULL, NULL, NULL, SL_BF16, SL_BF16},       {"auto", NULL, NULL, SL_BF16, SL_BF16},
                {"bfloat16", NULL, NULL, SL_BF16, SL_BF16}, {"fp8_e4m3", NULL, NULL, SL_FP8, SL_FP8},
                {"fp8", NULL, "bf16", SL_FP8, SL_BF16},     {"int8", "fp8", NULL, SL_FP8, SL_INT8},
                {NULL, "q8_0", NULL, SL_INT8, SL_BF16},     {"q8_0", "auto", "bf16", SL_INT8, SL_BF16}};
    static const struct {
        const char *dtype, *k, *v, *message;
    } bad[] = {{"fp8_e5m2", NULL, NULL, "kv_cache_dtype fp8_e5m2: expected auto, bf16, fp8, int8 or q8_0"},
               {"fp8", "f16", NULL, "cache_type_k f16: expected auto, bf16, fp8, int8 or q8_0"},
               {"fp8", "fp8", "q4_0", "cache_type_v q4_0: expected auto, bf16, fp8, int8 or q8_0"}};
    sl_kv_formats f;
    for (size_t i = 0; i < sizeof good / sizeof *good; i++) {
        CHECK_OK(sl_kv_formats_parse(good[i].dtype, good[i].k, good[i].v, &f, &err), err);
        CHECK(f.k == good[i].want_k && f.v == good[i].want_v);
    }
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++)
        CHECK_ERR(sl_kv_formats_parse(bad[i].dtype, bad[i].k, bad[i].v, &f, &err), err, SL_ERR_ARG, bad[i].message);
}

static const test_case cases[] = {
    {"rounds-to-nearest", 0, rounds_to_nearest},
    {"ties-to-even", 0, ties_to_even},
    {"extremes", 0, extremes},
    {"layout", 0, layout},
    {"names", 0, names},
    {0},
};
const test_suite suite_kv_rows = {"kv_rows", cases};
