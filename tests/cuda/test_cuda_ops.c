// tests/cuda/test_cuda_ops.c - the small kernels against double precision, on awkward sizes. The memory after every output
// must stay unchanged.
#include "tests/support/gpu.h"

#ifdef SLEIGH_CUDA
#include "backend/cuda/cuda_ops.h"
#include "backend/dummy_weights.h"
#include "kv/kv.h"
#include "base/philox.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

// A rounding to bf16 changes a value by at most 2^-8 of it. FP32 allows for a few fp32 operations before the rounding.
static const double BF16_ROUND = 0x1p-8, FP32 = 0x1p-21;

static bf16 *random_bf16(size_t n, double sigma, uint64_t *state) {
    bf16 *x = malloc(n * sizeof *x);
    for (size_t i = 0; i < n; i++) x[i] = sl_f32_to_bf16((float)(sigma * test_normal(state)));
    return x;
}

static void check_near(const char *what, size_t i, double got, double want, double tolerance) {
    if (!(fabs(got - want) <= tolerance)) FAIL("%s[%zu]: got %.9g, expected %.9g +- %.3g", what, i, got, want, tolerance);
}

static void embed(void) {
    enum { VOCAB = 100 };
    static const int sizes[][2] = {{1, 8}, {3, 24}, {5, 2048}, {130, 2056}, {17, 4096}}; // rows, hidden
    uint64_t state = test_seed;
    for (size_t c = 0; c < sizeof sizes / sizeof *sizes; c++) {
        int n_rows = sizes[c][0], hidden = sizes[c][1];
        bf16 *table = random_bf16((size_t)VOCAB * hidden, 1, &state);
        int32_t ids[130];
        for (int i = 0; i < n_rows; i++) ids[i] = i == 0 ? VOCAB - 1 : (int32_t)(test_uniform(&state) * VOCAB);
        size_t size = (size_t)n_rows * hidden * sizeof(float);
        float *gpu_x = gpu_new(size + GPU_GUARD);
        sl_cuda_embed(gpu_copy(table, (size_t)VOCAB * hidden * 2), gpu_copy(ids, sizeof ids), n_rows, hidden, gpu_x, 0);
        float *x = gpu_read_guarded(gpu_x, size);
        for (int r = 0; r < n_rows; r++)
            for (int i = 0; i < hidden; i++) CHECK(x[r * hidden + i] == sl_bf16_to_f32(table[ids[r] * hidden + i]));
        free(table), free(x);
    }
}

enum { N_PAGES = 7 };

// Rows at different positions of a sequence whose pages are in random order.
static sl_row *make_rows(int n_rows, uint64_t *state) {
    static const int32_t pages[N_PAGES] = {4, 0, 6, 2, 5, 1, 3};
    const int32_t *gpu_pages = gpu_copy(pages, sizeof pages);
    sl_row *rows = malloc(n_rows * sizeof *rows);
    int places = N_PAGES * SL_PAGE;
    CHECK(n_rows <= places);
    for (int i = 0, at = (int)(test_uniform(state) * places); i < n_rows;
         i++, at = (at + 5) % places) // 5 and `places` have no common factor, so every position is different
        rows[i] = (sl_row){.position = at, .sequence = 1, .pages = gpu_pages};
    return rows;
}

static void rope_table(void) {
    static const int sizes[][2] = {{1, 64}, {5, 80}, {300, 128}, {33, 16}}; // rows, head_dim
    uint64_t state = test_seed;
    for (size_t c = 0; c < sizeof sizes / sizeof *sizes; c++) {
        int n_rows = sizes[c][0], half = sizes[c][1] / 2;
        float inv_freq[64];
        sl_row rows[300] = {0};
        for (int i = 0; i < half; i++) inv_freq[i] = (float)pow(5e5, -(double)i / half);
        for (int r = 0; r < n_rows; r++) rows[r].position = r == 0 ? 0 : (int32_t)(test_uniform(&state) * 1e6);
        size_t size = (size_t)n_rows * half * sizeof(float2);
        float2 *gpu_table = gpu_new(size + GPU_GUARD);
        float scale = c % 2 ? 1.25f : 1; // yarn's attention factor
        sl_cuda_rope_table(gpu_copy(inv_freq, sizeof inv_freq), scale, gpu_copy(rows, sizeof rows), n_rows, 2 * half, gpu_table,
                           0);
        float2 *table = gpu_read_guarded(gpu_table, size);
        for (int i = 0; i < n_rows * half; i++) {
            float angle = (float)rows[i / half].position * inv_freq[i % half];
            // half a unit in the last place, for < 1; with a scale, this times the scale, and the rounding of a product < 2
            double near = scale == 1 ? 0x1.01p-25 : scale * 0x1.01p-25 + 0x1.01p-24;
            check_near("cosine", i, table[i].x, cos((double)angle) * scale, near);
            check_near("sine", i, table[i].y, sin((double)angle) * scale, near);
        }
        free(table);
    }
}

// One pair of dimensions before and after.
static void check_rotation(float2 r, bf16 a, bf16 b, bf16 got_a, bf16 got_b, size_t at) {
    double x = sl_bf16_to_f32(a), y = sl_bf16_to_f32(b), slack = FP32 * (fabs(x) + fabs(y));
    double want_x = x * r.x - y * r.y, want_y = y * r.x + x * r.y;
    check_near("rotated", at, sl_bf16_to_f32(got_a), want_x, BF16_ROUND * fabs(want_x) + slack);
    check_near("rotated", at, sl_bf16_to_f32(got_b), want_y, BF16_ROUND * fabs(want_y) + slack);
}

static void check_rope_append(int n_rows, int n_heads, int n_kv_heads, int head_dim, int padding, uint64_t *state) {
    int half = head_dim / 2, width = (n_heads + 2 * n_kv_heads) * head_dim, stride = width + padding;
    size_t size = (size_t)n_rows * stride * 2, cache = (size_t)N_PAGES * n_kv_heads * SL_PAGE * head_dim;
    bf16 *before = random_bf16((size_t)n_rows * stride, 3, state);
    sl_row *rows = make_rows(n_rows, state);
    const int32_t pages[N_PAGES] = {4, 0, 6, 2, 5, 1, 3};
    float2 *table = malloc((size_t)n_rows * half * sizeof *table);
    for (int i = 0; i < n_rows * half; i++) {
        double angle = 2 * M_PI * test_uniform(state);
        table[i] = (float2){(float)cos(angle), (float)sin(angle)};
    }
    bf16 *qkv = gpu_copy(before, size), *gpu_k = gpu_new(cache * 2 + GPU_GUARD), *gpu_v = gpu_new(cache * 2 + GPU_GUARD);
    sl_cuda_rope_append(qkv, stride, gpu_copy(table, (size_t)n_rows * half * sizeof *table),
                        gpu_copy(rows, n_rows * sizeof *rows), n_rows, n_heads, n_kv_heads, head_dim, gpu_k, gpu_v, 0);
    bf16 *after = malloc(size), *k = gpu_read_guarded(gpu_k, cache * 2), *v = gpu_read_guarded(gpu_v, cache * 2);
    gpu_read(after, qkv, size);
    for (int r = 0; r < n_rows; r++) {
        const bf16 *x = before + (size_t)r * stride, *y = after + (size_t)r * stride;
        for (int i = 0; i < n_heads * half; i++) {
            int at = i / half * head_dim + i % half;
            check_rotation(table[r * half + i % half], x[at], x[at + half], y[at], y[at + half], at);
        }
        int rest = n_heads * head_dim; // k, v and the padding do not change
        CHECK(!memcmp(x + rest, y + rest, (size_t)(stride - rest) * 2));
        x += rest;
        for (int i = 0; i < n_kv_heads * half; i++) {
            int h = i / half, j = i % half;
            size_t row = ((size_t)pages[rows[r].position / SL_PAGE] * n_kv_heads + h) * SL_PAGE + rows[r].position % SL_PAGE;
            bf16 *kr = k + row * head_dim + j, *vr = v + row * head_dim + j;
            const bf16 *from = x + h * head_dim + j, *from_v = from + n_kv_heads * head_dim;
            check_rotation(table[r * half + j], from[0], from[half], kr[0], kr[half], row);
            CHECK(vr[0] == from_v[0] && vr[half] == from_v[half]);
            kr[0] = kr[half] = vr[0] = vr[half] = 0xFFFF;
        }
    }
    for (size_t i = 0; i < cache; i++) CHECK(k[i] == 0xFFFF && v[i] == 0xFFFF); // no other row was written
    free(before), free(after), free(k), free(v), free(rows), free(table);
}

static void rope_append(void) {
    static const int cases[][5] = {{1, 32, 8, 128, 0}, {129, 8, 2, 128, 8}, {7, 9, 3, 64, 0},   {65, 4, 4, 80, 16},
                                   {33, 5, 1, 96, 0},  {40, 0, 8, 128, 0},  {1000, 2, 1, 16, 8}};
    uint64_t state = test_seed;
    for (size_t c = 0; c < sizeof cases / sizeof *cases; c++)
        check_rope_append(cases[c][0], cases[c][1], cases[c][2], cases[c][3], cases[c][4], &state);
}

// Biases, norms, RoPE and the append.
typedef enum { TO_PAGES, TO_ROWS, IN_PLACE } kv_place; // of K and V
typedef struct heads_case {
    int n_rows, n_heads, n_kv_heads, head_dim, padding, is_fp32, has_bias, has_norm;
    kv_place place;
} heads_case;

// One head of a row in double precision. x: the products. bias, norm: NULL: none. rotation: cosines and sines; NULL: no RoPE
static void reference_head(const float *x, const bf16 *bias, const bf16 *norm, float eps, const float2 *rotation, int dim,
                           double *out) {
    double sum = 0;
    for (int i = 0; i < dim; i++) {
        out[i] = x[i] + (bias ? (double)sl_bf16_to_f32(bias[i]) : 0);
        sum += out[i] * out[i];
    }
    for (int i = 0; i < dim && norm; i++) out[i] *= sl_bf16_to_f32(norm[i]) / sqrt(sum / dim + eps);
    for (int i = 0; i < dim / 2 && rotation; i++) {
        double a = out[i], b = out[i + dim / 2];
        out[i] = a * rotation[i].x - b * rotation[i].y, out[i + dim / 2] = b * rotation[i].x + a * rotation[i].y;
    }
}

static void check_head(const char *what, const bf16 *got, const double *want, int dim) {
    double size = 0;
    for (int i = 0; i < dim; i++) size = fmax(size, fabs(want[i]));
    for (int i = 0; i < dim; i++)
        check_near(what, i, sl_bf16_to_f32(got[i]), want[i], BF16_ROUND * fabs(want[i]) + 8 * FP32 * size);
}

static void check_norm_rope_append(const heads_case *c, uint64_t *state) {
    int dim = c->head_dim, half = dim / 2, n_all = c->n_heads + 2 * c->n_kv_heads, stride = n_all * dim + c->padding;
    size_t n = (size_t)c->n_rows * stride, cache = (size_t)N_PAGES * c->n_kv_heads * SL_PAGE * dim;
    size_t q_size = (size_t)c->n_rows * c->n_heads * dim * 2;
    const int32_t pages[N_PAGES] = {4, 0, 6, 2, 5, 1, 3};
    bf16 *narrow = random_bf16(n, 3, state), *bias = random_bf16(n_all * dim, 2, state), *norm = random_bf16(2 * dim, 1, state);
    float *wide = malloc(n * sizeof *wide);
    for (size_t i = 0; i < n; i++) wide[i] = c->is_fp32 ? (float)(3 * test_normal(state)) : sl_bf16_to_f32(narrow[i]);
    sl_row *rows = make_rows(c->n_rows, state);
    float2 *table = malloc((size_t)c->n_rows * half * sizeof *table);
    for (int i = 0; i < c->n_rows * half; i++) {
        double angle = 2 * M_PI * test_uniform(state);
        table[i] = (float2){(float)cos(angle), (float)sin(angle)};
    }
    bf16 *gpu_q = gpu_new(q_size + GPU_GUARD), *gpu_k = gpu_new(cache * 2 + GPU_GUARD), *gpu_v = gpu_new(cache * 2 + GPU_GUARD);
    bf16 *gpu_norm = gpu_copy(norm, 4 * dim), *products = gpu_copy(narrow, n * 2);
    int kv_dim = c->n_kv_heads * dim;
    sl_cuda_heads h = {.qkv = c->is_fp32 ? gpu_copy(wide, n * 4) : (void *)products,
                       .is_fp32 = c->is_fp32,
                       .stride = stride,
                       .q = gpu_q,
                       .q_stride = c->n_heads * dim,
                       .n_rows = c->n_rows,
                       .n_heads = c->n_heads,
                       .n_kv_heads = c->n_kv_heads,
                       .head_dim = dim,
                       .bias = c->has_bias ? gpu_copy(bias, n_all * dim * 2) : NULL,
                       .q_norm = c->has_norm ? gpu_norm : NULL,
                       .k_norm = c->has_norm ? gpu_norm + dim : NULL,
                       .eps = 1e-3f,
                       .table = gpu_copy(table, (size_t)c->n_rows * half * sizeof *table),
                       .rows = gpu_copy(rows, c->n_rows * sizeof *rows),
                       .k = c->place == IN_PLACE ? products + c->n_heads * dim : gpu_k,
                       .v = c->place == IN_PLACE ? products + c->n_heads * dim + kv_dim : gpu_v,
                       .kv_stride = c->place == IN_PLACE  ? stride
                                    : c->place == TO_ROWS ? kv_dim
                                                          : 0};
    sl_cuda_norm_rope_append(&h, 0);
    if (c->place == IN_PLACE) // to rows, for the checks below
        for (int is_v = 0; is_v < 2; is_v++)
            CHECK(!cudaMemcpy2D(is_v ? gpu_v : gpu_k, kv_dim * 2, is_v ? h.v : h.k, stride * 2, kv_dim * 2, c->n_rows,
                                cudaMemcpyDeviceToDevice));
    bf16 *q = gpu_read_guarded(gpu_q, q_size), *k = gpu_read_guarded(gpu_k, cache * 2), *v = gpu_read_guarded(gpu_v, cache * 2);
    for (int r = 0; r < c->n_rows; r++)
        for (int i = 0; i < n_all; i++) {
            int is_q = i < c->n_heads, is_v = i >= c->n_heads + c->n_kv_heads,
                kv_head = is_q ? 0 : (i - c->n_heads) % c->n_kv_heads;
            size_t row =
                ((size_t)pages[rows[r].position / SL_PAGE] * c->n_kv_heads + kv_head) * SL_PAGE + rows[r].position % SL_PAGE;
            if (c->place != TO_PAGES) row = (size_t)r * c->n_kv_heads + kv_head;
            bf16 *got = is_q ? q + ((size_t)r * c->n_heads + i) * dim : (is_v ? v : k) + row * dim;
            double want[256];
            reference_head(wide + (size_t)r * stride + i * dim, c->has_bias ? bias + i * dim : NULL,
                           !c->has_norm || is_v ? NULL
                           : is_q               ? norm
                                                : norm + dim,
                           h.eps, is_v ? NULL : table + r * half, dim, want);
            check_head(is_q ? "q" : is_v ? "v" : "k", got, want, dim);
            for (int j = 0; j < dim && !is_q; j++) got[j] = 0xFFFF;
        }
    for (size_t i = 0; i < cache; i++) CHECK(k[i] == 0xFFFF && v[i] == 0xFFFF); // no other row was written
    free(narrow), free(wide), free(bias), free(norm), free(rows), free(table), free(q), free(k), free(v);
}

static void norm_rope_append(void) {
    static const heads_case cases[] = {
        {1, 28, 4, 128, 0, 1, 1, 0, TO_PAGES}, {3, 32, 8, 128, 8, 1, 0, 1, TO_PAGES}, {129, 7, 1, 64, 8, 0, 1, 1, TO_PAGES},
        {65, 4, 4, 80, 16, 0, 0, 1, TO_PAGES}, {33, 5, 1, 96, 0, 0, 1, 0, TO_PAGES},  {40, 0, 8, 128, 0, 0, 1, 1, TO_PAGES},
        {17, 6, 0, 64, 0, 0, 1, 1, TO_PAGES},  {16, 2, 1, 16, 8, 1, 1, 1, TO_PAGES},  {5, 3, 1, 256, 0, 1, 1, 1, TO_PAGES},
        {33, 4, 2, 128, 0, 1, 1, 0, TO_ROWS},  {7, 3, 1, 80, 0, 1, 0, 1, TO_ROWS},    {65, 4, 2, 96, 16, 0, 0, 0, IN_PLACE},
        {40, 0, 8, 128, 0, 0, 1, 1, IN_PLACE}};
    uint64_t state = test_seed;
    for (size_t c = 0; c < sizeof cases / sizeof *cases; c++) check_norm_rope_append(&cases[c], &state);
}

// ---- the append to a cache of fp8 or int8 ----

// Rows of numbers of very different sizes, of zeros, of numbers on ties, of subnormal numbers, and with a number that is not
// finite.
static void fill_rows(bf16 *x, int n_rows, int dim, uint64_t *state) {
    static const bf16 bad[] = {0x7F80, 0xFF80, 0x7FC0};
    for (int r = 0; r < n_rows; r++, x += dim) {
        double size = r % 5 == 4 ? 0x1p-135 : exp2(r % 9 * 10 - 40);
        for (int d = 0; d < dim; d++) x[d] = sl_f32_to_bf16((float)(size * test_normal(state)));
        for (int d = 0; d < dim && r % 11 == 3; d++) x[d] = d % 2 ? 0 : 0x8000;
        // With a scale of 0.5 in int8, and of 1 in fp8.
        for (int d = 0; d < dim && r % 11 == 5; d++) x[d] = sl_f32_to_bf16(d ? (float)(d * 37 % 509 - 254) / 4 : 63.5f);
        for (int d = 0; d < dim && r % 11 == 6; d++) x[d] = sl_f32_to_bf16(d ? (float)(d * 13 % 256) : 448);
        if (r % 11 == 7) x[r % dim] = bad[r % 3];
        if (r % 11 == 8) x[r % dim] = 0x7F7F; // the largest number
    }
}

static void check_bytes(const char *what, sl_format f, int dim, const unsigned char *got, const unsigned char *want,
                        size_t size) {
    for (size_t i = 0; i < size; i++)
        if (got[i] != want[i])
            FAIL("%s, %s, head_dim %d: byte %zu of block %zu is %02x, expected %02x", what, sl_formats[f].name, dim,
                 i % sl_kv_block_bytes(f, dim), i / sl_kv_block_bytes(f, dim), got[i], want[i]);
}

static void store_row(void *blocks, sl_format f, int dim, size_t block, int row, const bf16 *from, float given) {
    float x[128];
    for (int d = 0; d < dim; d++) x[d] = sl_bf16_to_f32(from[d]);
    sl_kv_store(blocks, f, dim, block, row, x, given);
}

// K and V of n_rows rows at different positions have the CPU's bits, and no other byte changes. is_given: KV heads have scales
// of a checkpoint.
static void check_store_rows(sl_format f, int n_rows, int n_kv_heads, int dim, int padding, int is_given, uint64_t *state) {
    const int32_t pages[N_PAGES] = {4, 0, 6, 2, 5, 1, 3};
    size_t stride = (size_t)n_kv_heads * dim + padding, size = (size_t)N_PAGES * n_kv_heads * sl_kv_block_bytes(f, dim);
    sl_row *rows = make_rows(n_rows, state);
    void *gpu[2] = {gpu_new(size + GPU_GUARD), gpu_new(size + GPU_GUARD)};
    float given[8];
    for (int h = 0; h < 8; h++) given[h] = is_given ? ldexpf(1 + 0.1f * (float)h, h - 4) : 0;
    const float *scales = is_given ? gpu_copy(given, sizeof given) : NULL;
    bf16 *x[2], *gpu_x[2];
    for (int i = 0; i < 2; i++) {
        x[i] = malloc(n_rows * stride * sizeof **x);
        for (int r = 0; r < n_rows; r++) fill_rows(x[i] + r * stride, n_kv_heads, dim, state);
        gpu_x[i] = gpu_copy(x[i], n_rows * stride * sizeof **x);
    }
    sl_cuda_store_rows(&(sl_cuda_kv_rows){.k = gpu_x[0],
                                          .v = gpu_x[1],
                                          .stride = stride,
                                          .rows = gpu_copy(rows, n_rows * sizeof *rows),
                                          .n_rows = n_rows,
                                          .n_kv_heads = n_kv_heads,
                                          .head_dim = dim,
                                          .format = f,
                                          .k_layer = gpu[0],
                                          .v_layer = gpu[1],
                                          .k_scales = scales,
                                          .v_scales = scales},
                       0);
    for (int i = 0; i < 2; i++) {
        unsigned char *got = gpu_read_guarded(gpu[i], size), *want = malloc(size);
        memset(want, 0xFF, size);
        for (int r = 0; r < n_rows; r++)
            for (int h = 0; h < n_kv_heads; h++)
                store_row(want, f, dim, (size_t)pages[rows[r].position / SL_PAGE] * n_kv_heads + h, rows[r].position % SL_PAGE,
                          x[i] + r * stride + h * dim, given[h]);
        check_bytes(i ? "rows of V" : "rows of K", f, dim, got, want, size);
        free(got), free(want), free(x[i]);
    }
    free(rows);
}

static void store_rows(void) {
    static const int cases[][4] = {{1, 8, 128, 0}, {3, 1, 64, 8}, {129, 2, 80, 0}, {65, 3, 96, 16}, {1000, 2, 16, 0}};
    uint64_t state = test_seed;
    for (size_t c = 0; c < sizeof cases / sizeof *cases; c++)
        for (int f = 0; f < 3; f++)
            check_store_rows(f == 1 ? SL_INT8 : SL_FP8, cases[c][0], cases[c][1], cases[c][2], cases[c][3], f == 2, &state);
}

// Whole blocks, the last of them in part.
static void store_blocks(void) {
    static const int cases[][2] = {{1, 128}, {255, 80}, {256, 64}, {1025, 96}};
    uint64_t state = test_seed;
    for (int c = 0; c < 8; c++) {
        sl_format f = c % 2 ? SL_INT8 : SL_FP8;
        int n_rows = cases[c / 2][0], dim = cases[c / 2][1];
        size_t size = (n_rows + SL_PAGE - 1) / SL_PAGE * sl_kv_block_bytes(f, dim);
        bf16 *x = malloc((size_t)n_rows * dim * sizeof *x);
        unsigned char *gpu = gpu_new(size + GPU_GUARD), *want = malloc(size);
        fill_rows(x, n_rows, dim, &state);
        memset(want, 0xFF, size);
        for (int r = 0; r < n_rows; r++) store_row(want, f, dim, r / SL_PAGE, r % SL_PAGE, x + (size_t)r * dim, 0);
        sl_cuda_store_blocks(gpu_copy(x, (size_t)n_rows * dim * sizeof *x), f, dim, n_rows, gpu, 0);
        unsigned char *got = gpu_read_guarded(gpu, size);
        check_bytes("blocks", f, dim, got, want, size);
        free(x), free(want), free(got);
    }
}

static void swiglu(void) {
    static const int sizes[][2] = {{1, 8}, {3, 2040}, {129, 2056}, {20, 14336}}; // rows, n_ffn
    uint64_t state = test_seed;
    for (size_t c = 0; c < sizeof sizes / sizeof *sizes; c++) {
        int n_rows = sizes[c][0], n = sizes[c][1];
        bf16 *gate_up = random_bf16((size_t)n_rows * 2 * n, 3, &state);
        for (int i = 0; i < 8; i++) gate_up[i] = sl_f32_to_bf16((float[]){0, -0.0f, 60, -60, 87, -87, 300, -300}[i]);
        size_t size = (size_t)n_rows * n * 2;
        bf16 *gpu_out = gpu_new(size + GPU_GUARD);
        sl_cuda_swiglu(gpu_copy(gate_up, 2 * size), n_rows, n, gpu_out, 0);
        bf16 *out = gpu_read_guarded(gpu_out, size);
        for (int r = 0; r < n_rows; r++)
            for (int i = 0; i < n; i++) {
                double g = sl_bf16_to_f32(gate_up[(size_t)r * 2 * n + i]),
                       u = sl_bf16_to_f32(gate_up[(size_t)r * 2 * n + n + i]);
                double want = g / (1 + exp(-g)) * u;
                check_near("swiglu", (size_t)r * n + i, sl_bf16_to_f32(out[(size_t)r * n + i]), want,
                           (BF16_ROUND + 8 * FP32) * fabs(want) + 1e-30);
            }
        free(gate_up), free(out);
    }
}

static void dummy_fill(void) { // the CPU's numbers to the bit
    static const int sizes[] = {1, 7, 8, 1003, 1 << 20};
    bf16 *quantiles = malloc(SL_DUMMY_QUANTILES * sizeof *quantiles);
    sl_dummy_quantiles(0.02, quantiles);
    bf16 *table = gpu_copy(quantiles, SL_DUMMY_QUANTILES * sizeof *quantiles);
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
        size_t n = sizes[i];
        uint64_t key = sl_dummy_key("model.norm.weight") + i;
        bf16 *out = gpu_new(n * 2 + GPU_GUARD), *want = malloc(n * sizeof *want);
        sl_cuda_dummy_fill(key, table, 0, 1, n, n, out, 0);
        bf16 *got = gpu_read_guarded(out, n * 2);
        sl_dummy_fill(key, quantiles, 0, n, want);
        for (size_t j = 0; j < n; j++) CHECK_INT(got[j], want[j]);
        free(got), free(want);
    }
    enum { ROWS = 37, COLS = 1032, OWN = 344, RANK = 2 }; // the columns of a rank
    bf16 *all = malloc(ROWS * COLS * sizeof *all), *out = gpu_new(ROWS * OWN * sizeof *out + GPU_GUARD);
    sl_dummy_fill(9, quantiles, 0, ROWS * COLS, all);
    sl_cuda_dummy_fill(9, table, RANK * OWN, ROWS, OWN, COLS, out, 0);
    bf16 *got = gpu_read_guarded(out, ROWS * OWN * sizeof *out);
    for (int r = 0; r < ROWS; r++) CHECK(!memcmp(got + r * OWN, all + r * COLS + RANK * OWN, OWN * sizeof *got));
    free(all), free(got), free(quantiles);
}

static void check_rounded(bf16 got, float x) {
    if (isnan(x))
        CHECK(isnan(sl_bf16_to_f32(got)));
    else
        CHECK_INT(got, sl_f32_to_bf16(x));
}

static void to_bf16(void) {
    enum { N = (1 << 18) + 5, N_F16 = 1 << 16 };
    float *in = malloc(N * sizeof *in);
    f16 *half = malloc(N_F16 * sizeof *half);
    uint64_t state = test_seed;
    for (int i = 0; i < N; i++) { // any bits; every fourth on a tie
        uint32_t bits = (uint32_t)(test_uniform(&state) * 0x1p32);
        if (i % 4 == 0) bits = (bits & 0xFFFF0000u) | 0x8000;
        memcpy(&in[i], &bits, 4);
    }
    for (int i = 0; i < N_F16; i++) half[i] = (f16)i;
    bf16 *gpu_a = gpu_new(N * 2 + GPU_GUARD), *gpu_b = gpu_new(N_F16 * 2 + GPU_GUARD);
    sl_cuda_to_bf16(gpu_copy(in, N * sizeof *in), SL_F32, N, gpu_a, 0);
    sl_cuda_to_bf16(gpu_copy(half, N_F16 * sizeof *half), SL_F16, N_F16, gpu_b, 0);
    bf16 *a = gpu_read_guarded(gpu_a, N * 2), *b = gpu_read_guarded(gpu_b, N_F16 * 2);
    for (int i = 0; i < N; i++) check_rounded(a[i], in[i]);
    for (int i = 0; i < N_F16; i++) check_rounded(b[i], sl_f16_to_f32(half[i]));
    for (int n = 1; n < 10; n++) { // a tail of every length
        bf16 *gpu_c = gpu_new(n * 2 + GPU_GUARD);
        sl_cuda_to_bf16(gpu_copy(half, n * sizeof *half), SL_F16, n, gpu_c, 0);
        bf16 *c = gpu_read_guarded(gpu_c, n * 2);
        CHECK(!memcmp(c, b, n * sizeof *c));
        free(c);
    }
    free(in), free(half), free(a), free(b);
}
#endif

static const test_case cases[] = {
    GPU_CASE("embed", embed),
    GPU_CASE("rope-table", rope_table),
    GPU_CASE("rope-append", rope_append),
    GPU_CASE("norm-rope-append", norm_rope_append),
    GPU_CASE("store-rows", store_rows),
    GPU_CASE("store-blocks", store_blocks),
    GPU_CASE("swiglu", swiglu),
    GPU_CASE("dummy-fill", dummy_fill),
    GPU_CASE("to-bf16", to_bf16),
    {0},
};
const test_suite suite_cuda_ops = {"cuda_ops", cases};
