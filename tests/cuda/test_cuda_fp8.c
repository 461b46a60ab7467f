// tests/cuda/test_cuda_fp8.c - prefills with weights and inputs of fp8: the rounding of rows bit for bit, products against
// double precision, equal bits whole and in chunks, and whole models against the same models with bf16 inputs.
#include "tests/support/gpu.h"

#ifdef SLEIGH_CUDA
#include "backend/cuda/cuda.h"
#include "backend/cuda/cuda_backend.h"
#include "backend/cuda/fp8_rows.h"
#include "backend/cuda/packed_linear.h"
#include "engine/engine.h"
#include "tests/support/models.h"
#include "tests/support/tensor_file.h"
#include "tests/support/venv.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

static sl_error err;

// ---- the rounding of rows ----

// The specification (backend/cuda/fp8_rows.h) of one row. Returns the scale.
static float round_row(const bf16 *x, int n, float given, uint8_t *q) {
    float largest = 0;
    int is_finite = 1;
    for (int i = 0; i < n; i++) {
        float size = fabsf(sl_bf16_to_f32(x[i]));
        if (!isfinite(size)) is_finite = 0;
        if (size > largest) largest = size;
    }
    if (!is_finite) {
        memset(q, 0x7f, n);
        return NAN;
    }
    float scale = given > 0 ? given : fmaxf(largest / 448, 0x1p-126f), factor = 1 / scale;
    for (int i = 0; i < n; i++) q[i] = sl_f32_to_fp8(sl_bf16_to_f32(x[i]) * factor);
    return scale;
}

// Row r of numbers of kind `kind`: of usual sizes, of very different sizes, zeros, subnormal, huge, on ties of fp8, and with a
// number that is not finite.
enum { N_KINDS = 9 };
static void fill_row(bf16 *x, int n, int kind, uint64_t *state) {
    for (int i = 0; i < n; i++) {
        double number = test_normal(state);
        if (kind == 1) number *= exp2((int)(40 * test_uniform(state)) - 20);
        if (kind == 2) number = i % 2 ? 0 : -0.0;
        if (kind == 3) number *= 0x1p-131;
        if (kind == 4) number *= 0x1p125;
        if (kind == 5) number = i ? (int)(test_uniform(state) * 512 - 256) / 16.0 * exp2(-(i % 9)) : 448; // a scale of 1
        x[i] = sl_f32_to_bf16((float)number);
    }
    int at = (int)(test_uniform(state) * n);
    if (kind == 6) x[at] = 0x7FC0;
    if (kind == 7) x[at] = 0xFF80;
    if (kind == 8) x[at] = 0xFFFF;
}

static void check_rounding(int n_rows, int n, float given, uint64_t *state) {
    size_t count = (size_t)n_rows * n;
    bf16 *x = malloc(count * sizeof *x);
    uint8_t *want = malloc(n), *gpu_q = gpu_new(count + GPU_GUARD);
    float *gpu_scale = gpu_new(n_rows * sizeof(float) + GPU_GUARD);
    for (int r = 0; r < n_rows; r++) fill_row(x + (size_t)r * n, n, (int)(test_uniform(state) * N_KINDS), state);
    sl_cuda_round_rows(gpu_copy(x, count * sizeof *x), n_rows, n, given, gpu_q, gpu_scale, 0);
    uint8_t *q = gpu_read_guarded(gpu_q, count);
    float *scale = gpu_read_guarded(gpu_scale, n_rows * sizeof(float));
    for (int r = 0; r < n_rows; r++) {
        float s = round_row(x + (size_t)r * n, n, given, want);
        if (!(isnan(s) ? isnan(scale[r]) : scale[r] == s)) FAIL("row %d of %d: scale %a, expected %a", r, n, scale[r], s);
        for (int i = 0; i < n; i++)
            if (q[(size_t)r * n + i] != want[i])
                FAIL("row %d, number %d of %d: %a becomes %02x, expected %02x (scale %a)", r, i, n,
                     sl_bf16_to_f32(x[(size_t)r * n + i]), q[(size_t)r * n + i], want[i], s);
    }
    free(x), free(want), free(q), free(scale);
    gpu_free_all();
}

static void round_rows(void) {
    static const int rows[] = {1, 3, 17, 200},
                     cols[] = {8, 136, 1024, 1032, 2048, 2056, 4096, 4104, 8192, 14336, 16392, SL_FP8_MOST_COLS};
    static const float given[] = {0, 0.02f, 3e38f};
    uint64_t state = test_seed;
    for (size_t i = 0; i < sizeof cols / sizeof *cols; i++)
        for (int j = 0; j < (cols[i] > 20000 ? 3 : 4); j++)
            for (int k = 0; k < 3; k++) check_rounding(rows[j], cols[i], given[k], &state);
}

// In groups: the specification of each 128 columns. Rows after n_rows are zeros.
static void round_groups(void) {
    static const int sizes[][3] = {
        {1, 4, 128}, {3, 4, 4096}, {17, 20, 384}, {100, 100, 2176}, {8, 8, 14336}}; // rows, rows of q
    uint64_t state = test_seed;
    for (size_t s = 0; s < sizeof sizes / sizeof *sizes; s++) {
        int n_rows = sizes[s][0], n_out = sizes[s][1], n = sizes[s][2], n_groups = n / 128;
        bf16 *x = calloc((size_t)n_out * n, sizeof *x);
        for (int r = 0; r < n_rows; r++)
            for (int g = 0; g < n_groups; g++)
                fill_row(x + (size_t)r * n + g * 128, 128, (int)(test_uniform(&state) * N_KINDS), &state);
        uint8_t *gpu_q = gpu_new((size_t)n_out * n + GPU_GUARD), want[128];
        float *gpu_scale = gpu_new((size_t)n_groups * n_out * sizeof(float) + GPU_GUARD);
        sl_cuda_round_groups(gpu_copy(x, (size_t)n_rows * n * sizeof *x), n_rows, n, n_out, gpu_q, gpu_scale, 0);
        uint8_t *q = gpu_read_guarded(gpu_q, (size_t)n_out * n);
        float *scale = gpu_read_guarded(gpu_scale, (size_t)n_groups * n_out * sizeof(float));
        for (int r = 0; r < n_out; r++)
            for (int g = 0; g < n_groups; g++) {
                float u = round_row(x + (size_t)r * n + g * 128, 128, 0, want), got = scale[(size_t)g * n_out + r];
                if (!(isnan(u) ? isnan(got) : got == u)) FAIL("row %d, group %d: scale %a, expected %a", r, g, got, u);
                if (memcmp(q + (size_t)r * n + g * 128, want, 128)) FAIL("row %d, group %d of [%d][%d]", r, g, n_rows, n);
            }
        free(x), free(q), free(scale);
        gpu_free_all();
    }
}

// ---- products ----

// Opens a backend that multiplies fp8. A GPU that should do it and does not fails the case.
static sl_cuda *open_backend(void) {
    const sl_backend *be;
    CHECK_OK(sl_cuda_init(0, &be, &err), err);
    sl_cuda *c = sl_cuda_of(be);
    int takes = 1, major = c->props.major, minor = c->props.minor;
    size_t version = cublasLtGetVersion();
    for (int is_fp32 = 0; is_fp32 < 2; is_fp32++)
        takes = takes && sl_cuda_gemm_takes_fp8(c, SL_SCALES_ROWS, 256, 256, is_fp32) &&
                sl_cuda_gemm_takes_fp8(c, SL_SCALES_BLOCKS, 256, 256, is_fp32);
    if (takes) return c;
    be->free(be);
    if (major == 9 && minor == 0 && version >= 120900) FAIL("cuBLASLt %zu has no product of fp8 without a split", version);
    TEST_SKIP("needs compute capability 9.0 (found %d.%d) and cuBLASLt 12.9 (found %zu)", major, minor, version);
}

// group: columns that share a scale
static sl_weight random_weight(int n_rows, int n_cols, int scale_rows, int group, uint64_t *seed) {
    size_t n = (size_t)n_rows * n_cols;
    sl_weight w = {.format = SL_FP8, .n_rows = n_rows, .n_cols = n_cols, .name = "w", .group = group, .scale_rows = scale_rows};
    uint8_t *data = malloc(n);
    float *scale = malloc(sl_weight_scales(&w) * sizeof *scale);
    for (size_t i = 0; i < n; i++) data[i] = sl_f32_to_fp8((float)(100 * test_normal(seed)));
    for (size_t i = 0; i < sl_weight_scales(&w); i++) scale[i] = (float)(0.001 * exp(test_normal(seed)));
    w.data = data, w.scale = scale;
    return w;
}

static void free_weight(const sl_weight *w) {
    free((void *)w->data), free((void *)w->scale);
}

// The bytes and the scales of a part of a placed matrix in plain order.
static void plain_rows(void) {
    static const int sizes[][3] = {{16, 16, 0},   {24, 136, 0},  {64, 128, 0},  {272, 4096, 0}, {8, 1000, 0},
                                   {512, 264, 0}, {256, 128, 1}, {384, 640, 1}, {256, 20480, 1}}; // rows, columns, 1: blocks
    uint64_t seed = test_seed;
    for (size_t s = 0; s < sizeof sizes / sizeof *sizes; s++) {
        int n_rows = sizes[s][0], n = sizes[s][1], is_blocks = sizes[s][2];
        int first = is_blocks ? 128 : n_rows / 16 * 8, n_groups = is_blocks ? n / 128 : 1, stride = (n_groups + 3) / 4 * 4;
        sl_weight w = random_weight(n_rows, n, is_blocks ? 128 : 1, is_blocks ? 128 : n, &seed);
        sl_cuda_packing k = sl_cuda_packing_of(&w);
        size_t bytes = sl_packed_bytes(&k, SL_PIECE_ROWS), scales = sl_packed_scales(&k, SL_PIECE_ROWS);
        size_t size = (size_t)(n_rows - first) * n, blocks_size = (size_t)(n_rows - first) / 128 * stride * sizeof(float);
        char *packed = malloc(n_rows / 8 * bytes);
        float *scale = malloc(n_rows / 8 * scales * sizeof *scale);
        for (int i = 0; i < n_rows / 8; i++) sl_cuda_pack_rows(&w, &k, i, packed + i * bytes, scale + i * scales);
        if (!is_blocks) CHECK(!memcmp(scale, w.scale, n_rows * sizeof *scale)); // in the order of the rows
        uint8_t *to = gpu_new(size + GPU_GUARD);
        sl_cuda_packed_fp8_rows(gpu_copy(packed, n_rows / 8 * bytes), &k, n, first, n_rows - first, to, 0);
        uint8_t *got = gpu_read_guarded(to, size);
        CHECK(!memcmp(got, (const uint8_t *)w.data + (size_t)first * n, size));
        if (is_blocks) {
            float *gpu_blocks = gpu_new(blocks_size + GPU_GUARD);
            sl_cuda_packed_block_scales(gpu_copy(scale, n_rows / 8 * scales * sizeof *scale), &k, first, n_rows - first,
                                        gpu_blocks, 0);
            float *blocks = gpu_read_guarded(gpu_blocks, blocks_size);
            for (int p = 0; p < (n_rows - first) / 128; p++)
                for (int g = 0; g < stride; g++)
                    CHECK(blocks[p * stride + g] == (g < n_groups ? w.scale[(p + first / 128) * n_groups + g] : 0));
            free(blocks);
        }
        free(packed), free(scale), free(got), free_weight(&w);
        gpu_free_all();
    }
}

// A bound of the error of a product of fp8 numbers: a share of |x| |w| / sqrt(n_in), the size of a sum of independent numbers.
// The tensor cores cut each addend to about 2^-13 of the largest one. Every 128 products are added to fp32 sums. A sum of 128
// products has the size of 11 products, and its 4 instructions of 33 addends are together off by about 2^-14 * 10 * sqrt(132) =
// 0.007 products, 6e-4 of the sum. The largest of 1e5 outputs has 5 times this error. An outlier of x counts alone: the addends
// of its sum are cut to 2^-13 of its product, and sqrt(132) of such errors are below 2^-9 of it.
static const double SUM_ERROR = 0x1p-7, OUTLIER_ERROR = 0x1p-9;

typedef struct matrix { // of fp8 with a scale for each `group` columns of a row, as fp32 numbers without the scales
    float *numbers, *scale;
    int n_cols, group;
} matrix;

static matrix rounded_rows(const bf16 *x, int n_rows, int n, float given, int group) {
    size_t count = (size_t)n_rows * n;
    matrix m = {malloc(count * sizeof(float)), malloc(count / group * sizeof(float)), n, group};
    uint8_t *q = malloc(n);
    for (size_t i = 0; i < count; i += group) {
        m.scale[i / group] = round_row(x + i, group, given, q);
        for (int j = 0; j < group; j++) m.numbers[i + j] = sl_fp8_to_f32(q[j]);
    }
    free(q);
    return m;
}

// Output (r, o) of rows x and a weight w in double precision, and its error. x and w have equal groups.
static double product(const matrix *x, const sl_weight *w, int r, int o, double *error) {
    double all = 0, squares = 0;
    for (int first = 0; first < w->n_cols; first += w->group) {
        const uint8_t *q = (const uint8_t *)sl_weight_row(w, o) + first;
        const float *numbers = x->numbers + (size_t)r * x->n_cols + first;
        double sum = 0, xx = 0, ww = 0, most = 0, scale = x->scale[((size_t)r * x->n_cols + first) / x->group];
        scale *= w->scale[sl_weight_scale_at(w, o) + first / w->group];
        for (int i = 0; i < w->group; i++) {
            double a = numbers[i], b = sl_fp8_to_f32(q[i]);
            sum += a * b, xx += a * a, ww += b * b, most = fmax(most, fabs(a * b));
        }
        double e = scale * (SUM_ERROR * sqrt(xx * ww / w->group) + OUTLIER_ERROR * most);
        all += sum * scale, squares += e * e;
    }
    *error = sqrt(squares);
    return all;
}

static bf16 *random_rows(int n_rows, int n, uint64_t *seed) { // row r has its own size; every seventh has an outlier
    bf16 *x = malloc((size_t)n_rows * n * sizeof *x);
    for (int r = 0; r < n_rows; r++) {
        double size = exp2(r % 13 - 6);
        for (int i = 0; i < n; i++) x[(size_t)r * n + i] = sl_f32_to_bf16((float)(size * test_normal(seed)));
        if (r % 7 == 3) x[(size_t)r * n + n / 2] = sl_f32_to_bf16((float)(100 * size));
    }
    return x;
}

typedef struct product_case {
    int n_rows, n_out, n_in, scale_rows, step; // outputs are compared `step` apart
    sl_inputs inputs;
    float input_scale;
} product_case;

// out += x W^T
static void check_linear(sl_cuda *c, const product_case *a) {
    const sl_backend *be = &c->base;
    int group = a->inputs == SL_INPUTS_GROUPS ? 128 : a->n_in;
    uint64_t seed = test_seed + a->n_rows * 31 + a->n_out + a->n_in;
    sl_weight w = random_weight(a->n_out, a->n_in, a->scale_rows, group, &seed), placed = w, *list = &placed;
    placed.inputs = a->inputs, placed.input_scale = a->input_scale;
    bf16 *x = random_rows(a->n_rows, a->n_in, &seed);
    size_t n_y = (size_t)a->n_rows * a->n_out;
    float *before = malloc(n_y * sizeof *before), *y = malloc(n_y * sizeof *y);
    for (size_t i = 0; i < n_y; i++) before[i] = (float)test_normal(&seed);
    CHECK_OK(be->place(be, &list, 1, 0, &err), err);
    CHECK_INT(placed.inputs, a->inputs);
    bf16 *gpu_x = gpu_copy(x, (size_t)a->n_rows * a->n_in * sizeof *x);
    char *gpu_y = gpu_new(n_y * sizeof *y + GPU_GUARD);
    CHECK(!cudaMemcpy(gpu_y, before, n_y * sizeof *y, cudaMemcpyHostToDevice));
    gpu_sync("copies to the GPU");
    be->linear(be, &placed, gpu_x, a->n_rows, SL_LINEAR_PREFILL, 1, (float *)gpu_y);
    CHECK_OK(be->finish(be, &err), err);
    free(y), y = gpu_read_guarded(gpu_y, n_y * sizeof *y);
    matrix m = rounded_rows(x, a->n_rows, a->n_in, a->input_scale, group);
    double worst = 0;
    for (int r = 0; r < a->n_rows; r++)
        for (int o = r % a->step; o < a->n_out; o += a->step) {
            double error, want = before[(size_t)r * a->n_out + o] + product(&m, &w, r, o, &error);
            double d = fabs(y[(size_t)r * a->n_out + o] - want);
            if (!(d <= error + 0x1p-22 * fabs(want)))
                FAIL("[%d][%d] x [%d], inputs %d: output %d, %d is %.9g, expected %.9g +- %.3g", a->n_rows, a->n_in, a->n_out,
                     a->inputs, r, o, y[(size_t)r * a->n_out + o], want, error);
            if (d / error > worst) worst = d / error;
        }
    printf("      [%d][%d] x [%d], inputs %d: largest error %.3f of the bound\n", a->n_rows, a->n_in, a->n_out, a->inputs,
           worst);
    free(before), free(y), free(x), free(m.numbers), free(m.scale), free_weight(&w);
    gpu_free_all();
}

// Some sizes need more scratch memory than there is, for rows of x (2400) or for rows of W (4864). In groups, the last rows of
// x are multiplied alone if their number is no multiple of 4.
static void products(void) {
    static const product_case cases[] = {{1, 16, 16, 1, 1, SL_INPUTS_ROWS, 0},
                                         {3, 48, 64, 48, 1, SL_INPUTS_ROWS, 0},
                                         {17, 4096, 4096, 1, 7, SL_INPUTS_ROWS, 0},
                                         {17, 4096, 4096, 1, 7, SL_INPUTS_STATIC, 0.05f},
                                         {130, 1024, 14336, 1, 11, SL_INPUTS_ROWS, 0},
                                         {300, 6144, 4096, 6144, 97, SL_INPUTS_STATIC, 0.1f},
                                         {2048, 256, 272, 1, 37, SL_INPUTS_ROWS, 0},
                                         {2400, 64, 14336, 1, 61, SL_INPUTS_ROWS, 0},
                                         {5, 4864, 14336, 1, 53, SL_INPUTS_ROWS, 0},
                                         {4, 128, 128, 128, 1, SL_INPUTS_GROUPS, 0},
                                         {3, 256, 640, 128, 1, SL_INPUTS_GROUPS, 0},
                                         {17, 4096, 4096, 128, 7, SL_INPUTS_GROUPS, 0},
                                         {2402, 4096, 14336, 128, 997, SL_INPUTS_GROUPS, 0},
                                         {6, 8192, 14336, 128, 53, SL_INPUTS_GROUPS, 0}};
    sl_cuda *c = open_backend();
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) check_linear(c, &cases[i]);
    c->base.free(&c->base);
}

// gate and up are one product with bf16 outputs, and with the larger one of two static scales.
static void joined(void) {
    enum { ROWS = 65, N_IN = 512, N = 256 };
    static const sl_inputs inputs[] = {SL_INPUTS_ROWS, SL_INPUTS_STATIC, SL_INPUTS_GROUPS};
    sl_cuda *c = open_backend();
    const sl_backend *be = &c->base;
    uint64_t seed = test_seed;
    for (int k = 0; k < 3; k++) {
        int group = inputs[k] == SL_INPUTS_GROUPS ? 128 : N_IN, scale_rows = inputs[k] == SL_INPUTS_GROUPS ? 128 : N;
        float given = inputs[k] == SL_INPUTS_STATIC ? 0.1f : 0;
        sl_weight w[2] = {random_weight(N, N_IN, scale_rows, group, &seed), random_weight(N, N_IN, scale_rows, group, &seed)};
        sl_weight placed[2] = {w[0], w[1]}, *list[2] = {&placed[0], &placed[1]};
        for (int i = 0; i < 2; i++) placed[i].inputs = inputs[k], placed[i].input_scale = given * (float)(i + 1);
        bf16 *x = random_rows(ROWS, N_IN, &seed), *y = malloc(ROWS * 2 * N * sizeof *y);
        CHECK_OK(be->place(be, list, 2, 0, &err), err);
        bf16 *work = gpu_new(ROWS * 2 * N * sizeof *y + GPU_GUARD), *out = gpu_new(ROWS * N * sizeof *y);
        const sl_normed rows = {.rows = gpu_copy(x, ROWS * N_IN * sizeof *x)};
        gpu_sync("copies to the GPU");
        be->gate_up(be, &placed[0], &placed[1], rows, ROWS, SL_LINEAR_PREFILL, work, out);
        CHECK_OK(be->finish(be, &err), err);
        free(y), y = gpu_read_guarded(work, ROWS * 2 * N * sizeof *y);
        matrix m = rounded_rows(x, ROWS, N_IN, given * 2, group);
        for (int r = 0; r < ROWS; r++)
            for (int o = 0; o < 2 * N; o++) {
                double error, want = product(&m, &w[o / N], r, o % N, &error), got = sl_bf16_to_f32(y[r * 2 * N + o]);
                if (!(fabs(got - want) <= error + 0x1p-8 * fabs(want)))
                    FAIL("inputs %d: output %d, %d is %.9g, expected %.9g +- %.3g", inputs[k], r, o, got, want, error);
            }
        free(x), free(y), free(m.numbers), free(m.scale), free_weight(&w[0]), free_weight(&w[1]);
        gpu_free_all();
    }
    be->free(be);
}

// The inputs of these weights become plain: several scales in a row, scales of blocks of other sizes, rows that are no multiple
// of 16 or of a block, and joined weights whose inputs differ.
static void refused(void) {
    static const struct {
        int n_rows, n_cols, scale_rows, group;
        sl_inputs inputs;
    } cases[] = {{64, 256, 1, 128, SL_INPUTS_ROWS},     {24, 64, 1, 64, SL_INPUTS_ROWS},
                 {64, 72, 1, 72, SL_INPUTS_ROWS},       {128, 256, 1, 128, SL_INPUTS_GROUPS},
                 {64, 256, 128, 128, SL_INPUTS_GROUPS}, {256, 256, 256, 256, SL_INPUTS_GROUPS},
                 {128, 192, 128, 128, SL_INPUTS_GROUPS}};
    sl_cuda *c = open_backend();
    const sl_backend *be = &c->base;
    uint64_t seed = test_seed;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        sl_weight w = random_weight(cases[i].n_rows, cases[i].n_cols, cases[i].scale_rows, cases[i].group, &seed), placed = w;
        sl_weight *list = &placed;
        placed.inputs = cases[i].inputs;
        CHECK_OK(be->place(be, &list, 1, 0, &err), err);
        if (placed.inputs != SL_INPUTS_PLAIN) FAIL("case %zu: inputs %d", i, placed.inputs);
        free_weight(&w);
    }
    sl_weight w = random_weight(64, 256, 1, 256, &seed), a = w, b = w, *two[2] = {&a, &b};
    b.inputs = SL_INPUTS_ROWS;
    CHECK_OK(be->place(be, two, 2, 0, &err), err);
    CHECK_INT(a.inputs, SL_INPUTS_PLAIN);
    CHECK_INT(b.inputs, SL_INPUTS_PLAIN);
    free_weight(&w);
    be->free(be);
}

// A row has the same bits in every chunk.
static void check_chunks(sl_cuda *c, int n_out, int n_in, sl_inputs inputs) {
    static const int parts[] = {1, 2, 3, 17, 64, 100, 113};
    enum { ROWS = 300 };
    const sl_backend *be = &c->base;
    uint64_t seed = test_seed;
    int is_groups = inputs == SL_INPUTS_GROUPS;
    sl_weight w = random_weight(n_out, n_in, is_groups ? 128 : 1, is_groups ? 128 : n_in, &seed), placed = w, *list = &placed;
    size_t size = (size_t)ROWS * n_out * sizeof(float);
    bf16 *x = random_rows(ROWS, n_in, &seed), *gpu_x = gpu_copy(x, (size_t)ROWS * n_in * sizeof *x);
    float *gpu_y = gpu_zero(size), *want = malloc(size), *got = malloc(size);
    placed.inputs = inputs;
    CHECK_OK(be->place(be, &list, 1, 0, &err), err);
    CHECK_INT(placed.inputs, inputs);
    gpu_sync("copies to the GPU");
    be->linear(be, &placed, gpu_x, ROWS, SL_LINEAR_PREFILL, 0, gpu_y);
    CHECK_OK(be->finish(be, &err), err);
    gpu_read(want, gpu_y, size);
    be->clear(be, gpu_y, size);
    for (int r = 0, i = 0, n; r < ROWS; r += n, i++) {
        n = parts[i % 7] < ROWS - r ? parts[i % 7] : ROWS - r;
        be->linear(be, &placed, gpu_x + (size_t)r * n_in, n, SL_LINEAR_PREFILL, 0, gpu_y + (size_t)r * n_out);
    }
    CHECK_OK(be->finish(be, &err), err);
    gpu_read(got, gpu_y, size);
    for (size_t i = 0; i < size / sizeof *got; i++)
        if (memcmp(got + i, want + i, sizeof *got))
            FAIL("[%d][%d], inputs %d: row %zu, output %zu is %.9g in chunks, %.9g whole", n_out, n_in, inputs, i / n_out,
                 i % n_out, got[i], want[i]);
    free(x), free(want), free(got), free_weight(&w);
    gpu_free_all();
}

static void chunks(void) {
    static const int sizes[][2] = {{6144, 4096}, {4096, 4096}, {4096, 14336}, {256, 384}}; // n_out, n_in
    sl_cuda *c = open_backend();
    for (int i = 0; i < 4; i++) check_chunks(c, sizes[i][0], sizes[i][1], SL_INPUTS_ROWS);
    for (int i = 0; i < 4; i++) check_chunks(c, sizes[i][0], sizes[i][1], SL_INPUTS_GROUPS);
    c->base.free(&c->base);
}

// ---- whole models ----

// Logits of n tokens. lines: what the load and the placing say.
static float *logits_of(const char *dir, const sl_model_options *options, const int32_t *ids, int n, int chunk, int *n_vocab,
                        test_lines *lines) {
    sl_model *model;
    sl_engine *engine;
    sl_session *s;
    sl_model_options o = *options;
    *lines = (test_lines){0};
    o.flags |= SL_MODEL_NO_TOKENIZER, o.log = (sl_log){.fn = test_note_line, .ctx = lines};
    CHECK_OK(sl_model_load(dir, &o, &model, &err), err);
    if (o.flags & SL_MODEL_DUMMY) CHECK_OK(sl_model_materialise(model, 0, NULL, NULL, &err), err);
    CHECK_OK(sl_engine_new(model, &(sl_engine_options){.n_ctx = n, .device = "cuda", .prefill_chunk = chunk, .log = o.log},
                           &engine, &err),
             err);
    CHECK_OK(sl_session_new(engine, 0, &s, &err), err);
    *n_vocab = sl_model_n_vocab(model);
    logit_rows out = {malloc((size_t)n * *n_vocab * sizeof(float)), *n_vocab};
    CHECK_OK(sl_prefill_logits(s, ids, n, keep_logits, &out, NULL, &err), err);
    sl_session_free(s), sl_engine_free(engine), sl_model_free(model);
    return out.data;
}

// The relative difference of the logits that inputs of fp8 make. e4m3 has 3 bits after the leading one, so a rounding has a
// relative error of 2.6% (RMS). fp32 products of inputs that are rounded in this way differ by 0.32 and 0.34 from those of
// plain inputs with dummy weights (whose scores amplify each error), by 0.03 to 0.05 with trained weights, and by 0.009 to
// 0.012 with the checkpoints of make_quantised.py (computed on a CPU).
typedef struct range {
    double least, most;
} range;
static const range DUMMY = {0.1, 0.5}, TRAINED = {0.01, 0.1}, MADE = {0.003, 0.03};

// Chunks have equal bits. With inputs of fp8 the logits are close to those with bf16, and not equal.
static void check_model(const char *dir, const sl_model_options *fp8, range expected, const char *what) {
    enum { N = 300 };
    int n_vocab;
    test_lines lines;
    sl_model_options plain = *fp8;
    plain.activations = "float";
    int32_t *ids = test_ids(N, 96, test_seed);
    float *got = logits_of(dir, fp8, ids, N, N, &n_vocab, &lines);
    if (strstr(lines.text, "bf16")) FAIL("%s: %s", what, lines.text);
    float *parts = logits_of(dir, fp8, ids, N, 64, &n_vocab, &lines),
          *want = logits_of(dir, &plain, ids, N, N, &n_vocab, &lines);
    size_t n = (size_t)N * n_vocab;
    CHECK(!memcmp(got, parts, n * sizeof *got));
    double e = relative_logits(got, want, n);
    printf("      %s: relative difference of the logits to bf16 inputs %.3g\n", what, e);
    if (!(e >= expected.least && e <= expected.most))
        FAIL("%s: relative difference %.3g, expected %g to %g", what, e, expected.least, expected.most);
    free(ids), free(got), free(parts), free(want);
}

static void dummy_models(void) {
    static const struct {
        int head_dim, n_heads, n_kv_heads, hidden, n_ffn;
    } shapes[] = {{64, 8, 2, 512, 1008}, {128, 6, 2, 768, 2304}};
    const sl_backend *be = &open_backend()->base;
    be->free(be);
    for (int i = 0; i < 2; i++) {
        char path[256], what[64];
        snprintf(path, sizeof path, "%s/config.json", test_tmp());
        FILE *f = fopen(path, "w");
        fprintf(f,
                "{\"architectures\": [\"LlamaForCausalLM\"], \"model_type\": \"llama\", \"hidden_act\": \"silu\", "
                "\"vocab_size\": 1000, \"hidden_size\": %d, \"intermediate_size\": %d, \"num_hidden_layers\": 3, "
                "\"num_attention_heads\": %d, \"num_key_value_heads\": %d, \"head_dim\": %d, \"rms_norm_eps\": 1e-5, "
                "\"max_position_embeddings\": 4096, \"rope_theta\": 10000, \"tie_word_embeddings\": false}",
                shapes[i].hidden, shapes[i].n_ffn, shapes[i].n_heads, shapes[i].n_kv_heads, shapes[i].head_dim);
        fclose(f);
        snprintf(what, sizeof what, "dummy weights, hidden %d", shapes[i].hidden);
        check_model(test_tmp(), &(sl_model_options){.flags = SL_MODEL_DUMMY, .weights = "fp8", .activations = "fp8"}, DUMMY,
                    what);
    }
}

static void trained_models(void) {
    const sl_backend *be = &open_backend()->base;
    be->free(be);
    check_model("models/tiny", &(sl_model_options){.weights = "fp8", .activations = "fp8"}, TRAINED, "tiny");
    check_model("models/prose", &(sl_model_options){.weights = "fp8", .activations = "fp8"}, TRAINED, "prose");
}

// Checkpoints whose descriptions ask for fp8 inputs (scripts/goldens/make_quantised.py).
static void checkpoints(void) {
    static const char *const names[] = {"ct-fp8-rows", "ct-fp8-tensor", "fp8-tensor", "modelopt"};
    const char *python = venv_python("numpy");
    char line[2048], dir[512];
    int n_vocab;
    test_lines lines;
    const sl_backend *be = &open_backend()->base;
    be->free(be);
    snprintf(line, sizeof line, "mkdir '%s/made' && '%s' scripts/goldens/make_quantised.py '%s/made' 64", test_tmp(), python,
             test_tmp());
    if (system(line)) FAIL("%s", line);
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        snprintf(dir, sizeof dir, "%s/made/%s", test_tmp(), names[i]);
        check_model(dir, &(sl_model_options){0}, MADE, names[i]);
    }
    // Of the block checkpoint, gate, up and down have 224 rows or columns, which are no whole blocks.
    int32_t *ids = test_ids(100, 96, test_seed);
    snprintf(dir, sizeof dir, "%s/made/fp8-block", test_tmp());
    float *got = logits_of(dir, &(sl_model_options){0}, ids, 100, 100, &n_vocab, &lines);
    CHECK(strstr(lines.text, "prefills on this GPU use bf16 activations, not fp8, with 6 of 14 weights"));
    float *want = logits_of(dir, &(sl_model_options){.activations = "float"}, ids, 100, 100, &n_vocab, &lines);
    double e = relative_logits(got, want, 100 * (size_t)n_vocab);
    printf("      fp8-block: relative difference of the logits to bf16 inputs %.3g\n", e);
    CHECK(e > 0 && e <= MADE.most);
    free(ids), free(got), free(want);
}
#endif

static const test_case cases[] = {
    GPU_CASE("round-rows", round_rows),
    GPU_CASE("round-groups", round_groups),
    GPU_CASE("plain-rows", plain_rows),
    GPU_CASE("products", products),
    GPU_CASE("joined", joined),
    GPU_CASE("refused", refused),
    GPU_CASE("chunks", chunks),
    GPU_CASE("dummy-models", dummy_models),
    GPU_CASE("trained-models", trained_models),
    GPU_CASE("checkpoints", checkpoints),
    {0},
};
extern const test_suite suite_cuda_fp8;
const test_suite suite_cuda_fp8 = {"cuda_fp8", cases};
