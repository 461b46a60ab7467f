// tests/backend/test_formats.c - quantised weights: the numbers of each format against the definition of the format, and the
// linear layers of the CPU on them. Every instruction set must give the bits that the same numbers give in fp32.
#include "backend/backend.h"
#include "engine/engine.h"
#include "tests/support/threads.h"
#include "tests/test.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

static sl_error err;

// ---- one number ----

// The value of an e4m3 number from its fields.
static double fp8_value(int x) {
    int exponent = x >> 3 & 15, mantissa = x & 7;
    if ((x & 127) == 127) return NAN;
    double size = exponent ? ldexp(8 + mantissa, exponent - 10) : ldexp(mantissa, -9);
    return x & 128 ? -size : size;
}

static void fp8_numbers(void) {
    for (int i = 0; i < 256; i++) {
        float got = sl_fp8_to_f32((uint8_t)i);
        if ((i & 127) == 127)
            CHECK(got != got);
        else {
            CHECK(got == (float)fp8_value(i) && !signbit(got) == (i < 128));
            CHECK_INT(sl_f32_to_fp8(got), i);
        }
    }
    CHECK_INT(sl_f32_to_fp8(1e9f), 126);
    CHECK_INT(sl_f32_to_fp8(-INFINITY), 254);
    CHECK_INT(sl_f32_to_fp8(NAN) & 127, 127);
}

// The nearest number, and of two numbers at equal distance the even one.
static void fp8_rounding(void) {
    uint64_t seed = test_seed;
    for (int n = 0; n < 20000; n++) {
        float x = (float)ldexp(test_uniform(&seed), (int)(test_uniform(&seed) * 24) - 14);
        if (n < 252) x = (float)((fp8_value(n / 2) + fp8_value(n / 2 + n % 2)) / 2); // numbers, and the middles between two
        int best = 0;
        for (int i = 1; i < 127; i++) {
            double d = fabs(fp8_value(i) - x), b = fabs(fp8_value(best) - x);
            if (d < b || (d == b && i % 2 == 0)) best = i;
        }
        CHECK_INT(sl_f32_to_fp8(x), best);
        CHECK_INT(sl_f32_to_fp8(-x), best | 128);
    }
}

// ---- weights ----

typedef struct made { // a weight of random bytes, and its numbers
    sl_weight w;
    float *wide; // [n_rows][n_cols]
} made;

// The value of an e2m1 number from its fields.
static double fp4_value(int x) {
    int exponent = x >> 1 & 3, mantissa = x & 1;
    double size = exponent ? ldexp(2 + mantissa, exponent - 2) : mantissa * 0.5;
    return x == 8 ? 0 : x & 8 ? -size : size;
}

static int is_nibbles(sl_format f) {
    return f == SL_INT4 || f == SL_UINT4 || f == SL_FP4 || f == SL_IQ4;
}

// The element of a format from its byte or nibble.
static double element(sl_format f, const uint8_t *row, int i) {
    static const int iq4[16] = {-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113};
    if (f == SL_FP8) return fp8_value(row[i]);
    if (f == SL_INT8) return (int8_t)row[i];
    if (f == SL_UINT8) return row[i];
    int nibble = i % 2 ? row[i / 2] >> 4 : row[i / 2] & 15;
    return f == SL_FP4 ? fp4_value(nibble) : f == SL_IQ4 ? iq4[nibble] : f == SL_UINT4 ? nibble : nibble - 8;
}

enum { BEHIND = 16 }; // NaN behind the scales: a loop that takes one of them gives NaN

static made make(sl_format f, int n_rows, int n_cols, int group, int scale_rows, int has_zero, int has_order, uint64_t seed) {
    made m = {.w = {.format = f, .n_rows = n_rows, .n_cols = n_cols, .group = group, .scale_rows = scale_rows, .name = "w"}};
    size_t row_bytes = is_nibbles(f) ? (size_t)(n_cols + 1) / 2 : (size_t)n_cols;
    int has_min = f == SL_UINT8 || f == SL_UINT4;
    int n_groups = (n_cols + group - 1) / group;
    size_t n_scales = (size_t)((n_rows + scale_rows - 1) / scale_rows) * (size_t)n_groups;
    uint8_t *data = malloc((size_t)n_rows * row_bytes);
    float *scale = malloc((n_scales + BEHIND) * sizeof *scale);
    float *min = has_min ? malloc((n_scales + BEHIND) * sizeof *min) : NULL;
    int8_t *zero = has_zero ? malloc(n_scales) : NULL;
    int32_t *order = has_order ? malloc((size_t)n_cols * sizeof *order) : NULL;
    for (size_t i = 0; i < (size_t)n_rows * row_bytes; i++) {
        data[i] = (uint8_t)(test_uniform(&seed) * 256);
        if (f == SL_FP8 && (data[i] & 127) == 127) data[i] ^= 1;
    }
    for (size_t i = n_scales; i < n_scales + BEHIND; i++) {
        scale[i] = NAN;
        if (min) min[i] = NAN;
    }
    for (size_t i = 0; i < n_scales; i++) {
        scale[i] = (float)(test_normal(&seed) * 0.01);
        if (zero) zero[i] = (int8_t)(test_uniform(&seed) * 16 - 8);
        if (min) min[i] = (float)(test_normal(&seed) * 0.1);
    }
    for (int i = 0; order && i < n_cols; i++) order[i] = (i + n_cols / 3) % n_cols;
    m.w.data = data, m.w.scale = scale, m.w.zero = zero, m.w.min = min, m.w.order = order;
    m.wide = malloc((size_t)n_rows * (size_t)n_cols * sizeof *m.wide);
    for (int r = 0; r < n_rows; r++)
        for (int i = 0; i < n_cols; i++) {
            int at = r / scale_rows * n_groups + i / group;
            double q = element(f, data + (size_t)r * row_bytes, i) - (zero ? zero[at] : 0);
            float product = (float)(q * scale[at]);
            m.wide[(size_t)r * (size_t)n_cols + (size_t)(order ? order[i] : i)] =
                min ? (float)((double)product + min[at]) : product;
        }
    CHECK_INT(sl_weight_bytes(&m.w), (size_t)n_rows * row_bytes +
                                         n_scales * (has_zero  ? 5
                                                     : has_min ? 8
                                                               : 4) +
                                         (order ? 4 * (size_t)n_cols : 0));
    return m;
}

static void release(made *m) {
    free((void *)m->w.data), free((void *)m->w.scale), free((void *)m->w.zero), free((void *)m->w.min),
        free((void *)m->w.order), free(m->wide);
}

static const struct {
    sl_format format;
    int n_cols, group, scale_rows, has_zero, has_order;
} shapes[] =
    {
        {SL_FP8, 250, 250, 1, 0, 0},  {SL_FP8, 144, 144, 1000, 0, 0}, {SL_FP8, 272, 128, 128, 0, 0},
        {SL_INT8, 80, 80, 1, 0, 0},   {SL_INT8, 256, 32, 1, 1, 0},    {SL_INT8, 250, 250, 1, 1, 0},
        {SL_INT4, 256, 128, 1, 0, 0}, {SL_INT4, 224, 32, 1, 1, 0},    {SL_INT4, 250, 250, 1, 0, 0},
        {SL_INT4, 144, 16, 1, 1, 0},  {SL_INT4, 256, 64, 1, 1, 1},    {SL_INT4, 96, 32, 1, 0, 1},
        {SL_INT4, 576, 128, 1, 1, 0}, // the last group has 64 columns
        {SL_INT4, 33, 33, 1, 1, 0},   // the last byte of a row has one number
        {SL_UINT8, 256, 32, 1, 0, 0}, {SL_UINT8, 250, 250, 1, 0, 0},  {SL_UINT4, 224, 32, 1, 0, 0},
        {SL_UINT4, 33, 33, 1, 0, 0},  {SL_UINT4, 96, 32, 1, 0, 1},    {SL_FP4, 80, 16, 1, 0, 0},
        {SL_FP4, 272, 32, 1, 0, 0},   {SL_FP4, 57, 57, 1, 0, 0},      {SL_IQ4, 224, 32, 1, 0, 0},
        {SL_IQ4, 31, 31, 1, 0, 0},    {SL_UINT4, 416, 128, 1, 0, 0}, // the last group has 32 columns
};
enum { N_SHAPES = sizeof shapes / sizeof *shapes };

static made make_shape(int i, int n_rows) {
    return make(shapes[i].format, n_rows, shapes[i].n_cols, shapes[i].group, shapes[i].scale_rows, shapes[i].has_zero,
                shapes[i].has_order, test_seed + (uint64_t)i);
}

static void widening(void) {
    for (int i = 0; i < N_SHAPES; i++) {
        made m = make_shape(i, 131);
        size_t n = (size_t)m.w.n_cols;
        float *row = malloc(n * sizeof *row);
        for (int r = 0; r < m.w.n_rows; r++) {
            sl_weight_widen(&m.w, (size_t)r, row);
            if (memcmp(row, m.wide + (size_t)r * n, n * sizeof *row)) FAIL("shape %d: row %d differs", i, r);
        }
        free(row), release(&m);
    }
}

// ---- operations of the CPU ----

static const sl_backend *backend_of(const char *isa) { // NULL: this processor does not have it
    const sl_backend *be = NULL;
    setenv("SLEIGH_ISA", isa, 1);
    int rc = sl_cpu_open(3, &be, &err);
    unsetenv("SLEIGH_ISA");
    test_threads(3);
    return rc ? NULL : be;
}

// Compares the bits with those of the same numbers in fp32; columns of another order change the order of the sums.
static void check_product(const sl_backend *be, const made *m, int n_rows, sl_linear_mode mode, int accumulate) {
    size_t n = (size_t)m->w.n_cols, n_out = (size_t)m->w.n_rows, size = (size_t)n_rows * n_out;
    sl_weight plain = {.data = m->wide, .format = SL_F32, .n_rows = m->w.n_rows, .n_cols = m->w.n_cols};
    float *x = malloc((size_t)n_rows * n * sizeof *x), *got = malloc(size * sizeof *got), *want = malloc(size * sizeof *want);
    uint64_t seed = test_seed;
    for (size_t i = 0; i < (size_t)n_rows * n; i++) x[i] = (float)test_normal(&seed);
    for (size_t i = 0; i < size; i++) got[i] = want[i] = 0.25f;
    be->linear(be, &m->w, x, n_rows, mode, accumulate, got);
    be->linear(be, &plain, x, n_rows, mode, accumulate, want);
    for (size_t i = 0; i < size; i++) {
        if (!m->w.order && got[i] != want[i])
            FAIL("%s, group %d, %d rows, mode %d: element %zu is %.9g, expected %.9g", sl_formats[m->w.format].name, m->w.group,
                 n_rows, (int)mode, i, (double)got[i], (double)want[i]);
        double sum = 0; // of the sizes, for the error bound of a sum of fp32 numbers in any order
        for (size_t j = 0; m->w.order && j < n; j++) sum += fabs((double)x[i / n_out * n + j] * m->wide[i % n_out * n + j]);
        CHECK_NEAR(got[i], want[i], (double)(2 * n + 4) * 0x1p-24 * sum);
    }
    free(x), free(got), free(want);
}

static void products(void) {
    static const char *const isas[] = {"avx512", "avx2", "portable"};
    static const int rows[] = {1, 2, 5, 8, 70};
    for (int k = 0; k < 3; k++) {
        const sl_backend *be = backend_of(isas[k]);
        for (int i = 0; be && i < N_SHAPES; i++) {
            made m = make_shape(i, 133);
            for (int r = 0; r < 5; r++)
                for (int mode = 0; mode < 2; mode++)
                    check_product(be, &m, rows[r], mode ? SL_LINEAR_PREFILL : SL_LINEAR_DECODE, r % 2);
            release(&m);
        }
        if (be) be->free(be);
    }
    CHECK_OK(sl_cpu_choose(&err), err);
}

// ---- activations of 8 and 16 bits ----

// x as integer activations stand for it: groups of 32 columns, in the order of the data, share a scale.
static void round_activations(const sl_weight *w, const float *x, double *out) {
    float largest = w->activations == SL_ACT_INT16 ? 32512 : 127;
    for (int from = 0; from < w->n_cols; from += 32) {
        int to = from + 32 < w->n_cols ? from + 32 : w->n_cols;
        float most = 0;
        for (int i = from; i < to; i++) most = fmaxf(most, fabsf(x[w->order ? w->order[i] : i]));
        for (int i = from; i < to; i++) {
            int at = w->order ? w->order[i] : i;
            float inverse = most > 0 ? largest / most : 0, scale = most / largest;
            out[at] = (double)nearbyintf(x[at] * inverse) * (double)scale;
            CHECK(fabs(out[at] - (double)x[at]) <= (double)scale * 0.503);
        }
    }
}

static void check_rounded(const made *m, const float *x, const float *got) { // one row
    size_t n = (size_t)m->w.n_cols;
    double *rounded = malloc(n * sizeof *rounded);
    round_activations(&m->w, x, rounded);
    for (int o = 0; o < m->w.n_rows; o++) {
        double sum = 0, size = 0;
        for (size_t i = 0; i < n; i++)
            sum += m->wide[(size_t)o * n + i] * rounded[i], size += fabs(m->wide[(size_t)o * n + i] * rounded[i]);
        CHECK_NEAR(got[o], sum + 0.25, (double)(n / 32 + 12) * 0x1p-23 * (size + 1));
    }
    free(rounded);
}

// Every instruction set, batch and mode gives equal bits: those of the rounded activations, to the rounding of fp32.
static void check_activations(sl_activations activations) {
    enum { ROWS = 70, OUTS = 133 };
    static const char *const isas[] = {"portable", "avx2", "avx512"};
    static const int batches[] = {1, 2, 3, 4, 7, ROWS};
    for (int i = 0; i < N_SHAPES; i++) {
        made m = make_shape(i, OUTS);
        size_t n = (size_t)m.w.n_cols, size = (size_t)ROWS * OUTS;
        float *x = malloc((size_t)ROWS * n * sizeof *x), *first = malloc(size * sizeof *first),
              *got = malloc(size * sizeof *got);
        uint64_t seed = test_seed;
        for (size_t j = 0; j < (size_t)ROWS * n; j++) x[j] = j / n == 1 ? 0 : (float)test_normal(&seed); // row 1: zeros
        m.w.activations = activations;
        for (int k = 0; k < 3 && m.w.format != SL_FP8; k++) {
            const sl_backend *be = backend_of(isas[k]);
            for (size_t b = 0; be && b < sizeof batches / sizeof *batches; b++) {
                for (size_t j = 0; j < size; j++) got[j] = 0.25f;
                for (int r = 0, rows; r < ROWS; r += rows) {
                    rows = ROWS - r < batches[b] ? ROWS - r : batches[b];
                    be->linear(be, &m.w, x + (size_t)r * n, rows, b % 2 ? SL_LINEAR_PREFILL : SL_LINEAR_DECODE, 1,
                               got + r * OUTS);
                }
                if (!k && !b) memcpy(first, got, size * sizeof *got);
                if (memcmp(first, got, size * sizeof *got)) FAIL("shape %d, %s, %d rows: other bits", i, isas[k], batches[b]);
            }
            if (be) be->free(be);
        }
        for (int r = 0; r < ROWS && m.w.format != SL_FP8; r++) check_rounded(&m, x + (size_t)r * n, first + r * OUTS);
        free(x), free(first), free(got), release(&m);
    }
    CHECK_OK(sl_cpu_choose(&err), err);
}

static void int8_activations(void) {
    check_activations(SL_ACT_INT8);
}

static void int16_activations(void) {
    check_activations(SL_ACT_INT16);
}

// A number that is not finite makes the outputs of its row NaN, and numbers too small for a scale become 0.
static void activations_out_of_range(void) {
    static const char *const isas[] = {"portable", "avx2", "avx512"};
    static const float odd[] = {NAN, INFINITY, -INFINITY, 1e-38f};
    for (int i = 0; i < N_SHAPES; i++) {
        made m = make_shape(i, 5);
        int n = m.w.n_cols;
        float *x = malloc((size_t)n * sizeof *x), out[5];
        for (int k = 0; k < 3 * 4 * 2 && m.w.format != SL_FP8; k++) {
            const sl_backend *be = backend_of(isas[k % 3]);
            if (!be) continue;
            float value = odd[k / 3 % 4];
            m.w.activations = k / 12 ? SL_ACT_INT16 : SL_ACT_INT8;
            for (int j = 0; j < n; j++) x[j] = isfinite(value) ? value : (float)(j % 7) - 3;
            if (!isfinite(value)) x[n - 1 - k % 9] = value;
            be->linear(be, &m.w, x, 1, SL_LINEAR_DECODE, 0, out);
            for (int o = 0; o < 5; o++)
                if (isfinite(value) ? out[o] != 0 : !isnan(out[o]))
                    FAIL("shape %d, %s, case %d: %g", i, isas[k % 3], k, (double)out[o]);
            be->free(be);
        }
        free(x), release(&m);
    }
    CHECK_OK(sl_cpu_choose(&err), err);
}

// The tables of embeddings can be quantised too.
static void lookups(void) {
    const sl_backend *be;
    CHECK_OK(sl_cpu_open(1, &be, &err), err);
    for (int i = 0; i < N_SHAPES; i++) {
        if (shapes[i].has_order) continue;
        made m = make_shape(i, 20);
        size_t n = (size_t)m.w.n_cols;
        float *x = malloc(2 * n * sizeof *x);
        be->embed(be, &m.w, (const int32_t[]){19, 3}, 2, x);
        CHECK(!memcmp(x, m.wide + 19 * n, n * sizeof *x) && !memcmp(x + n, m.wide + 3 * n, n * sizeof *x));
        free(x), release(&m);
    }
    be->free(be);
}

static const test_case cases[] = {
    {"fp8-numbers", 0, fp8_numbers},
    {"fp8-rounding", 0, fp8_rounding},
    {"widening", 0, widening},
    {"products", 0, products},
    {"int8-activations", 0, int8_activations},
    {"int16-activations", 0, int16_activations},
    {"activations-out-of-range", 0, activations_out_of_range},
    {"lookups", 0, lookups},
    {0},
};
extern const test_suite suite_formats;
const test_suite suite_formats = {"formats", cases};
