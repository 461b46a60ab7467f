// tests/cuda/test_cuda_linear.c - the linear layers of a decode step, with plain and with packed weights, and RMSNorm on CUDA
// against double precision. The bits of a row do not depend on the other rows or on the place of the row.
#include "tests/support/gpu.h"
#include "tests/test.h"

#ifdef SLEIGH_CUDA
#include "backend/cuda/packed_linear.h"
#include "kv/kv.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { GUARD = 256, N_ROWS = SL_LINEAR_ROWS, PAGES_PER_ROW = 3, N_PAGES = N_ROWS * PAGES_PER_ROW };

// One matrix and N_ROWS rows of input. A run uses some of the rows, in some order.
typedef struct problem {
    sl_linear_end end;
    int n_out, n_in, n_y;              // n_y: outputs of a row
    int n_heads, n_kv_heads, head_dim; // of SL_LINEAR_ROPE_APPEND
    int is_staged;                     // 1: k and v are rows, no pages
    sl_weight w;                       // [n_out][n_in]
    bf16 *x;                           // [N_ROWS][n_in]
    float *residual;                   // [N_ROWS][n_out]
    float2 *rope;                      // [N_ROWS][head_dim / 2]
    int32_t position[N_ROWS], *pages;  // [N_ROWS][3]
    double *want, *error;              // [N_ROWS][n_y] the expected outputs, and their tolerances
} problem;

// A bound of |y - want| for a sum of n_in products. A tensor core adds 16 products to an fp32 sum and truncates: an error of
// one unit in the last place, 2^-23 of at most the sum of magnitudes, per step. A warp takes at most n_in / 64 + 8 steps (a
// quarter of the chunks, rounded up). The bound allows for twice as many.
static double sum_error(int n_in, double size) {
    return (n_in / 64 + 8) * 0x1p-22 * size;
}

// Rows of one launch.
static int most_rows(const problem *p) {
    return p->w.group ? SL_PACKED_ROWS : N_ROWS;
}

static void expect(problem *p) {
    float *w = malloc(sizeof(float) * p->n_out * p->n_in);
    for (int o = 0; o < p->n_out; o++) sl_weight_widen(&p->w, (size_t)o, w + (size_t)o * p->n_in);
    double *y = malloc(sizeof(double) * p->n_out), *e = malloc(sizeof(double) * p->n_out);
    for (int r = 0; r < N_ROWS; r++) {
        for (int o = 0; o < p->n_out; o++) {
            double sum = 0, size = 0;
            for (int i = 0; i < p->n_in; i++) {
                double v = (double)sl_bf16_to_f32(p->x[(size_t)r * p->n_in + i]) * w[(size_t)o * p->n_in + i];
                sum += v, size += fabs(v);
            }
            y[o] = sum, e[o] = sum_error(p->n_in, size);
        }
        double *want = p->want + (size_t)r * p->n_y, *error = p->error + (size_t)r * p->n_y;
        for (int o = 0; o < p->n_y; o++) {
            switch (p->end) {
            case SL_LINEAR_STORE:
                want[o] = y[o], error[o] = e[o];
                break;
            case SL_LINEAR_ADD:
                want[o] = p->residual[(size_t)r * p->n_out + o] + y[o], error[o] = e[o] + 0x1p-23 * fabs(want[o]);
                break;
            case SL_LINEAR_SWIGLU: { // the derivative of silu is at most 1.1
                double silu = y[o] / (1 + exp(-y[o])), up = y[o + p->n_y];
                want[o] = silu * up;
                error[o] = 1.1 * e[o] * (fabs(up) + e[o]) + fabs(silu) * e[o + p->n_y] + (0x1p-8 + 0x1p-18) * fabs(want[o]);
                break;
            }
            case SL_LINEAR_ROPE_APPEND: {
                int half = p->head_dim / 2, head = o / p->head_dim, i = o % p->head_dim, other = i < half ? o + half : o - half;
                float2 rotation = p->rope[r * half + i % half];
                if (head >= p->n_heads + p->n_kv_heads) rotation = (float2){1, 0};
                want[o] = y[o] * rotation.x + (i < half ? -1 : 1) * y[other] * rotation.y;
                error[o] = e[o] + e[other] + 0x1p-22 * (fabs(y[o]) + fabs(y[other])) + 0x1p-8 * fabs(want[o]);
                break;
            }
            }
        }
    }
    free(w), free(y), free(e);
}

static void *filled(size_t n, size_t size) {
    void *p = malloc(n * size + 1);
    memset(p, 0, n * size);
    return p;
}

// Random numbers in bf16, or codes and scales of a packed format. group: columns that share a scale; 0: a row
static sl_weight random_weight(sl_format format, int group, int n_rows, int n_cols, uint64_t *seed) {
    sl_weight w = {.format = format, .n_rows = n_rows, .n_cols = n_cols, .name = "w"};
    size_t n = (size_t)n_rows * n_cols, n_bytes = sl_format_bytes(format, n_cols) * n_rows;
    uint8_t *data = filled(n_bytes, 1);
    w.data = data;
    if (format == SL_BF16) {
        for (size_t i = 0; i < n; i++) ((bf16 *)data)[i] = sl_f32_to_bf16((float)(2 * test_uniform(seed) - 1));
        return w;
    }
    for (size_t i = 0; i < n_bytes; i++) {
        data[i] = (uint8_t)(256 * test_uniform(seed));
        if (format == SL_FP8 && (data[i] & 0x7f) == 0x7f) data[i] = 0; // NaN
    }
    w.group = group ? group : n_cols, w.scale_rows = 1;
    float *scale = filled(sl_weight_scales(&w), sizeof *scale);
    for (size_t i = 0; i < sl_weight_scales(&w); i++) scale[i] = (float)(0.01 + 0.1 * test_uniform(seed));
    w.scale = scale;
    return w;
}

// n_heads, n_kv_heads, head_dim: of SL_LINEAR_ROPE_APPEND, where they determine n_out.
static problem problem_of(sl_format format, int group, sl_linear_end end, int n_out, int n_in, int n_heads, int n_kv_heads,
                          int head_dim) {
    uint64_t seed = test_seed + n_out * 1000 + n_in + end;
    if (end == SL_LINEAR_ROPE_APPEND) n_out = (n_heads + 2 * n_kv_heads) * head_dim;
    problem p = {.end = end,
                 .n_out = n_out,
                 .n_in = n_in,
                 .n_y = end == SL_LINEAR_SWIGLU ? n_out / 2 : n_out,
                 .n_heads = n_heads,
                 .n_kv_heads = n_kv_heads,
                 .head_dim = head_dim};
    p.w = random_weight(format, group, n_out, n_in, &seed), p.x = filled((size_t)N_ROWS * n_in, 2);
    p.residual = filled((size_t)N_ROWS * n_out, 4), p.rope = filled(N_ROWS * head_dim / 2, sizeof(float2));
    p.pages = filled(N_PAGES, 4);
    p.want = filled((size_t)N_ROWS * p.n_y, 8), p.error = filled((size_t)N_ROWS * p.n_y, 8);
    for (int i = 0; i < N_ROWS * n_in; i++) p.x[i] = sl_f32_to_bf16((float)(test_normal(&seed) / sqrt(n_in)));
    for (int i = 0; i < N_ROWS * n_out; i++) p.residual[i] = (float)test_normal(&seed);
    for (int i = 0; i < N_ROWS * head_dim / 2; i++) {
        double angle = 6.3 * test_uniform(&seed);
        p.rope[i] = (float2){(float)cos(angle), (float)sin(angle)};
    }
    for (int i = 0; i < N_PAGES; i++) { // shuffled
        int j = (int)(test_uniform(&seed) * (i + 1));
        p.pages[i] = p.pages[j], p.pages[j] = i;
    }
    for (int r = 0; r < N_ROWS; r++)
        p.position[r] = r % 4 == 0   ? 256 * (r / 4 % 3)
                        : r % 4 == 1 ? 256 * (r / 4 % 3) + 255
                                     : (int)(768 * test_uniform(&seed));
    expect(&p);
    return p;
}

static problem problem_new(sl_linear_end end, int n_out, int n_in, int n_heads, int n_kv_heads, int head_dim) {
    return problem_of(SL_BF16, 0, end, n_out, n_in, n_heads, n_kv_heads, head_dim);
}

static void problem_free(problem *p) {
    free((void *)p->w.data), free((void *)p->w.scale), free(p->x), free(p->residual), free(p->rope), free(p->pages),
        free(p->want), free(p->error);
}

// Moves row i of the batch, which is problem row r, from `pages`, the host copy of k or v, to y [n_kv_heads][head_dim].
// Afterwards `pages` holds 0xFFFF at this place.
static void take_kv(const problem *p, int r, int i, bf16 *pages, float *y) {
    int position = p->position[r], page = p->pages[r * PAGES_PER_ROW + position / SL_PAGE];
    for (int h = 0; h < p->n_kv_heads; h++)
        for (int d = 0; d < p->head_dim; d++) {
            size_t row = p->is_staged ? (size_t)i * p->n_kv_heads + h
                                      : ((size_t)page * p->n_kv_heads + h) * SL_PAGE + position % SL_PAGE;
            bf16 *at = pages + row * p->head_dim + d;
            y[h * p->head_dim + d] = sl_bf16_to_f32(*at);
            *at = 0xFFFF;
        }
}

static void check_untouched(const void *data, size_t size, const char *what) {
    for (size_t i = 0; i < size; i++)
        if (((const uint8_t *)data)[i] != 0xFF) FAIL("byte %zu of %s was written", i, what);
}

// Packs a weight and copies it to the GPU.
static void packed_copy(const sl_weight *w, const void **data, const float **scale) {
    sl_cuda_packing k = sl_cuda_packing_of(w);
    size_t n_bytes = sl_packed_bytes(&k, SL_PIECE_ROWS), n_scales = sl_packed_scales(&k, SL_PIECE_ROWS);
    int n = w->n_rows / SL_PIECE_ROWS;
    char *packed = malloc(n * n_bytes);
    float *scales = malloc(n * n_scales * sizeof *scales);
    CHECK(sl_cuda_can_pack(w));
    for (int i = 0; i < n; i++) sl_cuda_pack_rows(w, &k, i, packed + i * n_bytes, scales + i * n_scales);
    *data = gpu_copy(packed, n * n_bytes), *scale = gpu_copy(scales, n * n_scales * sizeof *scales);
    free(packed), free(scales);
}

// Row i of the batch is row which[i] of the problem; y: [n_rows][n_y]. Rows of x after the last one are NaN. The memory
// before, after and between the outputs must not change.
static void run(const problem *p, const int *which, int n_rows, float *y) {
    gpu_free_all();
    const int is_rope = p->end == SL_LINEAR_ROPE_APPEND, is_16 = is_rope || p->end == SL_LINEAR_SWIGLU;
    const int n_16 = is_rope ? p->n_heads * p->head_dim : p->n_y;
    const size_t n_x = (size_t)N_ROWS * p->n_in, n_32 = (size_t)N_ROWS * p->n_out;
    const size_t out_size = GUARD + (is_16 ? 2 * (size_t)N_ROWS * n_16 : 4 * n_32) + GUARD;
    const size_t kv_size = is_rope ? 2 * (size_t)N_PAGES * p->n_kv_heads * SL_PAGE * p->head_dim : 0;
    bf16 *x = malloc(n_x * 2);
    char *out = malloc(out_size);
    memset(x, 0xFF, n_x * 2);
    memset(out, 0xFF, out_size);
    float2 rope[N_ROWS * 64];
    sl_row rows[N_ROWS];
    const int32_t *pages = gpu_copy(p->pages, sizeof(int32_t) * N_PAGES);
    memset(rope, 0xFF, sizeof rope);
    memset(rows, 0xFF, sizeof rows);
    for (int i = 0; i < n_rows; i++) {
        int r = which[i], half = p->head_dim / 2;
        memcpy(x + (size_t)i * p->n_in, p->x + (size_t)r * p->n_in, p->n_in * 2);
        if (p->end == SL_LINEAR_ADD)
            memcpy(out + GUARD + (size_t)i * p->n_out * 4, p->residual + (size_t)r * p->n_out, p->n_out * 4);
        if (!is_rope) continue;
        memcpy(rope + i * half, p->rope + r * half, half * sizeof *rope);
        rows[i] = (sl_row){.position = p->position[r], .sequence = r, .pages = pages + r * PAGES_PER_ROW};
    }
    char *gpu_out = gpu_copy(out, out_size);
    bf16 *k = gpu_new(GUARD + kv_size + GUARD), *v = gpu_new(GUARD + kv_size + GUARD);
    sl_cuda_linear args = {.n_out = p->n_out,
                           .n_in = p->n_in,
                           .x = gpu_copy(x, n_x * 2),
                           .n_rows = n_rows,
                           .end = p->end,
                           .out32 = is_16 ? NULL : (float *)(gpu_out + GUARD),
                           .out16 = is_16 ? (bf16 *)(gpu_out + GUARD) : NULL,
                           .n_heads = p->n_heads,
                           .n_kv_heads = p->n_kv_heads,
                           .head_dim = p->head_dim,
                           .rope = gpu_copy(rope, sizeof rope),
                           .rows = gpu_copy(rows, sizeof rows),
                           .k = k + GUARD / 2,
                           .v = v + GUARD / 2,
                           .is_staged = p->is_staged};
    if (p->w.group) {
        args.packing = sl_cuda_packing_of(&p->w);
        packed_copy(&p->w, &args.w, &args.scale);
        sl_cuda_packed_linear(&args, 0);
    } else {
        args.w = gpu_copy(p->w.data, (size_t)p->n_out * p->n_in * 2);
        sl_cuda_linear_decode(&args, 0);
    }
    gpu_read(out, gpu_out, out_size);

    const size_t row_size = is_16 ? 2 * n_16 : 4 * p->n_out;
    check_untouched(out, GUARD, "the space before the output");
    check_untouched(out + GUARD + n_rows * row_size, out_size - GUARD - n_rows * row_size, "the space after the output");
    for (int i = 0; i < n_rows; i++)
        for (int o = 0; o < (is_16 ? n_16 : p->n_y); o++)
            y[(size_t)i * p->n_y + o] = is_16 ? sl_bf16_to_f32(((bf16 *)(out + GUARD))[(size_t)i * n_16 + o])
                                              : ((float *)(out + GUARD))[(size_t)i * p->n_out + o];
    if (is_rope) {
        bf16 *kv = malloc(kv_size + 2 * GUARD);
        for (int is_v = 0; is_v < 2; is_v++) {
            gpu_read(kv, is_v ? v : k, kv_size + 2 * GUARD);
            for (int i = 0; i < n_rows; i++)
                take_kv(p, which[i], i, kv + GUARD / 2, y + (size_t)i * p->n_y + n_16 + is_v * p->n_kv_heads * p->head_dim);
            check_untouched(kv, kv_size + 2 * GUARD, is_v ? "other rows of v" : "other rows of k");
        }
        free(kv);
    }
    free(x), free(out);
}

static void check_accuracy(const problem *p, int n_rows) {
    int which[N_ROWS];
    for (int i = 0; i < N_ROWS; i++) which[i] = i;
    float *y = malloc(sizeof(float) * n_rows * p->n_y);
    run(p, which, n_rows, y);
    for (int i = 0; i < n_rows; i++)
        for (int o = 0; o < p->n_y; o++) {
            size_t at = (size_t)i * p->n_y + o;
            if (!(fabs(y[at] - p->want[at]) <= p->error[at]))
                FAIL("%s, groups of %d, ending %d, %d x %d, row %d of %d, output %d: got %.9g, expected %.9g +- %.3g",
                     sl_formats[p->w.format].name, p->w.group, p->end, p->n_out, p->n_in, i, n_rows, o, y[at], p->want[at],
                     p->error[at]);
        }
    free(y);
}

static void check_bits(const problem *p) {
    int which[N_ROWS], most = most_rows(p);
    const size_t size = sizeof(float) * p->n_y;
    float *all = malloc(size * N_ROWS), *y = malloc(size * N_ROWS);
    for (int i = 0; i < N_ROWS; i++) which[i] = i;
    run(p, which, most, all);
    for (int first = 0; first < most; first++)
        for (int n = 1; n <= most; n++) {
            if (n > 1 && n < most && first != n % 5) continue; // n = 1 and the largest n with every first row, other n with one
            for (int i = 0; i < n; i++) which[i] = (first + 5 * i) % most;
            run(p, which, n, y);
            for (int i = 0; i < n; i++)
                if (memcmp(y + (size_t)i * p->n_y, all + (size_t)which[i] * p->n_y, size))
                    FAIL("%s, groups of %d, ending %d, %d x %d: row %d has other bits at place %d of %d",
                         sl_formats[p->w.format].name, p->w.group, p->end, p->n_out, p->n_in, which[i], i, n);
        }
    free(all), free(y);
}

static const int row_counts[] = {1, 2, 7, 8, 9, 15, 16, 17, 25, 31, 32};

static void on_sizes(sl_linear_end end, const int (*sizes)[2], int n_sizes) {
    for (int s = 0; s < n_sizes; s++) {
        problem p = problem_new(end, sizes[s][0], sizes[s][1], 1, 1, 64);
        for (size_t i = 0; i < sizeof row_counts / sizeof *row_counts; i++) check_accuracy(&p, row_counts[i]);
        problem_free(&p);
    }
}

// {n_out, n_in}: less than a tile, one row more than a tile, many tiles per thread block, warps without a chunk, partial chunks
static const int plain_sizes[][2] = {{1, 8},    {15, 40},   {16, 64},    {17, 72},   {33, 120},    {100, 128}, {64, 136},
                                     {65, 520}, {257, 512}, {513, 1000}, {40, 4104}, {9000, 1000}, {17001, 72}};

static void store(void) {
    on_sizes(SL_LINEAR_STORE, plain_sizes, 13);
}

static void add(void) {
    on_sizes(SL_LINEAR_ADD, plain_sizes, 13);
}

static void swiglu(void) {
    static const int sizes[][2] = {{2, 8},     {14, 40},    {16, 64},   {18, 72},    {344, 128},
                                   {514, 520}, {600, 1000}, {48, 4104}, {9010, 520}, {17002, 72}};
    on_sizes(SL_LINEAR_SWIGLU, sizes, 10);
}

static void rope_append(void) {
    static const int heads[][3] = {{1, 1, 64}, {4, 2, 80}, {3, 1, 96}, {8, 2, 128}, {32, 8, 128}};
    static const int n_in[] = {8, 64, 72, 256, 1000};
    for (int h = 0; h < 5; h++)
        for (int i = 0; i < 5; i++) {
            if (h == 4 && n_in[i] != 72) continue;
            problem p = problem_new(SL_LINEAR_ROPE_APPEND, 0, n_in[i], heads[h][0], heads[h][1], heads[h][2]);
            for (size_t j = 0; j < sizeof row_counts / sizeof *row_counts; j++)
                for (p.is_staged = 0; p.is_staged < 2; p.is_staged++) check_accuracy(&p, row_counts[j]);
            problem_free(&p);
        }
}

static void same_bits(void) {
    static const int sizes[][2] = {{34, 40}, {130, 1000}, {64, 4104}, {9002, 136}};
    for (int s = 0; s < 4; s++)
        for (int end = SL_LINEAR_STORE; end <= SL_LINEAR_SWIGLU; end++) {
            problem p = problem_new((sl_linear_end)end, sizes[s][0], sizes[s][1], 1, 1, 64);
            check_bits(&p);
            problem_free(&p);
        }
    problem p = problem_new(SL_LINEAR_ROPE_APPEND, 0, 520, 4, 2, 80);
    check_bits(&p);
    problem_free(&p);
}

// ---- packed weights ----

static const struct {
    sl_format format;
    int group;
} packings[] = {{SL_INT4, 32}, {SL_INT4, 64},  {SL_INT4, 128}, {SL_INT4, 256}, {SL_INT4, 0},
                {SL_INT8, 0},  {SL_INT8, 128}, {SL_FP8, 0},    {SL_FP8, 128}};
enum { N_PACKINGS = sizeof packings / sizeof *packings };

// The endings, on matrices with a part of a tile, with more pieces than leaves and fewer, and with part of a piece.
static void packed(void) {
    static const int sizes[][2] = {{8, 32}, {24, 64}, {40, 136}, {64, 512}, {272, 1152}, {16, 4104}, {4400, 512}, {17008, 128}};
    static const int counts[] = {1, 7, 8, 9, 16};
    for (int k = 0; k < N_PACKINGS; k++)
        for (int end = SL_LINEAR_STORE; end <= SL_LINEAR_ROPE_APPEND; end++)
            for (size_t s = 0; s < sizeof sizes / sizeof *sizes; s++) {
                int n_out = sizes[s][0] * (end == SL_LINEAR_SWIGLU ? 2 : 1);
                if (end == SL_LINEAR_ROPE_APPEND && s > 5) continue;
                problem p = problem_of(packings[k].format, packings[k].group, (sl_linear_end)end, n_out, sizes[s][1], 3, 1,
                                       s % 2 ? 80 : 128);
                for (size_t i = 0; i < sizeof counts / sizeof *counts; i++) check_accuracy(&p, counts[i]);
                problem_free(&p);
            }
}

static void packed_same_bits(void) {
    for (int k = 0; k < N_PACKINGS; k++)
        for (int end = SL_LINEAR_STORE; end <= SL_LINEAR_ROPE_APPEND; end++) {
            problem p = problem_of(packings[k].format, packings[k].group, (sl_linear_end)end, 368, 1032, 3, 1, 128);
            check_bits(&p);
            problem_free(&p);
        }
}

// The numbers of packed rows, rounded to bf16 and as fp32.
static void packed_numbers(void) {
    enum { ROWS = 48, FIRST = 16 };
    static const int cols[] = {32, 136, 1152};
    for (int k = 0; k < N_PACKINGS; k++)
        for (int c = 0; c < 3; c++) {
            gpu_free_all();
            int n = cols[c], ids[3] = {0, ROWS - 1, 9};
            uint64_t seed = test_seed + n;
            sl_weight w = random_weight(packings[k].format, packings[k].group, ROWS, n, &seed);
            sl_cuda_packing packing = sl_cuda_packing_of(&w);
            const void *data;
            const float *scale;
            float want[n], got[3 * n];
            bf16 rounded[(ROWS - FIRST) * n], *to = gpu_new(sizeof rounded);
            float *rows = gpu_new(sizeof got);
            packed_copy(&w, &data, &scale);
            sl_cuda_packed_widen(data, scale, &packing, n, FIRST, ROWS - FIRST, to, 0);
            sl_cuda_packed_embed(data, scale, &packing, n, gpu_copy(ids, sizeof ids), 3, rows, 0);
            gpu_read(rounded, to, sizeof rounded);
            gpu_read(got, rows, sizeof got);
            for (int r = FIRST; r < ROWS; r++) {
                sl_weight_widen(&w, (size_t)r, want);
                for (int i = 0; i < n; i++) CHECK(rounded[(r - FIRST) * n + i] == sl_f32_to_bf16(want[i]));
            }
            for (int i = 0; i < 3; i++) {
                sl_weight_widen(&w, (size_t)ids[i], want);
                CHECK(!memcmp(got + i * n, want, n * sizeof *want));
            }
            free((void *)w.data), free((void *)w.scale);
        }
}

// out = x / sqrt(mean(x^2) + eps) * w. Tolerance: the rounding to bf16, and 2^-18 for the fp32 sums.
static void rmsnorm(void) {
    static const int sizes[] = {64, 72, 512, 2048, 2052, 4096, 5120, 8192, 14336};
    const float eps = 1e-5f;
    for (int s = 0; s < 9; s++)
        for (int n_rows = 1; n_rows <= 33; n_rows += 16) {
            gpu_free_all();
            const int n = sizes[s];
            uint64_t seed = test_seed + n;
            float *x = malloc(sizeof(float) * n_rows * n);
            bf16 *w = malloc(2 * n), *out = malloc(2 * n_rows * n + 2 * GUARD);
            for (int i = 0; i < n; i++) w[i] = sl_f32_to_bf16((float)(1 + 0.3 * test_normal(&seed)));
            for (int i = 0; i < n_rows * n; i++) x[i] = (float)(pow(10, i / n % 5 - 3) * test_normal(&seed));
            bf16 *gpu_out = gpu_new(2 * n_rows * n + 2 * GUARD);
            sl_cuda_rmsnorm(gpu_copy(x, sizeof(float) * n_rows * n), gpu_copy(w, 2 * n), n_rows, n, eps, gpu_out + GUARD / 2,
                            0);
            gpu_read(out, gpu_out, 2 * n_rows * n + 2 * GUARD);
            check_untouched(out, GUARD, "the space before the output");
            check_untouched(out + GUARD / 2 + n_rows * n, GUARD, "the space after the output");
            for (int r = 0; r < n_rows; r++) {
                double sum = 0;
                for (int i = 0; i < n; i++) sum += (double)x[r * n + i] * x[r * n + i];
                for (int i = 0; i < n; i++) {
                    double want = x[r * n + i] / sqrt(sum / n + eps) * sl_bf16_to_f32(w[i]);
                    CHECK_NEAR(sl_bf16_to_f32(out[GUARD / 2 + r * n + i]), want, (0x1p-8 + 0x1p-18) * fabs(want));
                }
            }
            free(x), free(w), free(out);
        }
}

// A few layers of a small model. Their kernels may start before the previous kernel has ended. 40 runs, of which 20 are replays
// of a graph, give the same bits as a run that waits after every kernel.
enum { LAYERS = 6, HIDDEN = 512, FFN = 1032, HEADS = 4, KV_HEADS = 2, DIM = 128, CHAIN_ROWS = 11 };

typedef struct chain {
    const bf16 *qkv[LAYERS], *o[LAYERS], *gate_up[LAYERS], *down[LAYERS], *norm[LAYERS];
    float *residual;    // [rows][HIDDEN]
    bf16 *x, *q, *ffn;  // [rows][HIDDEN], [rows][HEADS * DIM], [rows][FFN]
    bf16 *k, *v;        // [rows pages][KV_HEADS][256][DIM]
    const float2 *rope; // [rows][DIM / 2]
    const sl_row *rows; // [rows]
    cudaStream_t stream;
    int waits; // 1: wait after every kernel
} chain;

static void chain_linear(chain *c, const bf16 *w, int n_out, int n_in, const bf16 *x, sl_linear_end end, bf16 *out16) {
    sl_cuda_linear args = {.w = w,
                           .n_out = n_out,
                           .n_in = n_in,
                           .x = x,
                           .n_rows = CHAIN_ROWS,
                           .end = end,
                           .out32 = c->residual,
                           .out16 = out16,
                           .n_heads = HEADS,
                           .n_kv_heads = KV_HEADS,
                           .head_dim = DIM,
                           .rope = c->rope,
                           .rows = c->rows,
                           .k = c->k,
                           .v = c->v};
    sl_cuda_linear_decode(&args, c->stream);
    if (c->waits) gpu_sync("linear");
}

static void chain_norm(chain *c, const bf16 *w) {
    sl_cuda_rmsnorm(c->residual, w, CHAIN_ROWS, HIDDEN, 1e-5f, c->x, c->stream);
    if (c->waits) gpu_sync("rmsnorm");
}

static void chain_step(chain *c) {
    for (int l = 0; l < LAYERS; l++) {
        chain_norm(c, c->norm[l]);
        chain_linear(c, c->qkv[l], (HEADS + 2 * KV_HEADS) * DIM, HIDDEN, c->x, SL_LINEAR_ROPE_APPEND, c->q);
        chain_linear(c, c->o[l], HIDDEN, HEADS * DIM, c->q, SL_LINEAR_ADD, NULL);
        chain_norm(c, c->norm[l]);
        chain_linear(c, c->gate_up[l], 2 * FFN, HIDDEN, c->x, SL_LINEAR_SWIGLU, c->ffn);
        chain_linear(c, c->down[l], HIDDEN, FFN, c->ffn, SL_LINEAR_ADD, NULL);
    }
}

static const bf16 *random_weights(int n_out, int n_in, uint64_t *seed) {
    bf16 *w = malloc((size_t)n_out * n_in * 2);
    for (size_t i = 0; i < (size_t)n_out * n_in; i++) w[i] = sl_f32_to_bf16((float)((2 * test_uniform(seed) - 1) / sqrt(n_in)));
    const bf16 *copy = gpu_copy(w, (size_t)n_out * n_in * 2);
    free(w);
    return copy;
}

static void chains(void) {
    uint64_t seed = test_seed;
    chain c = {0};
    for (int l = 0; l < LAYERS; l++) {
        c.qkv[l] = random_weights((HEADS + 2 * KV_HEADS) * DIM, HIDDEN, &seed);
        c.o[l] = random_weights(HIDDEN, HEADS * DIM, &seed);
        c.gate_up[l] = random_weights(2 * FFN, HIDDEN, &seed);
        c.down[l] = random_weights(HIDDEN, FFN, &seed);
        c.norm[l] = random_weights(1, HIDDEN, &seed);
    }
    float start[CHAIN_ROWS * HIDDEN], want[CHAIN_ROWS * HIDDEN], got[CHAIN_ROWS * HIDDEN];
    for (int i = 0; i < CHAIN_ROWS * HIDDEN; i++) start[i] = (float)test_normal(&seed);
    int32_t pages[CHAIN_ROWS];
    for (int i = 0; i < CHAIN_ROWS; i++) pages[i] = CHAIN_ROWS - 1 - i;
    const int32_t *gpu_pages = gpu_copy(pages, sizeof pages);
    sl_row rows[CHAIN_ROWS];
    float2 rope[CHAIN_ROWS * DIM / 2];
    for (int i = 0; i < CHAIN_ROWS; i++) rows[i] = (sl_row){.position = 7 * i, .pages = gpu_pages + i};
    for (int i = 0; i < CHAIN_ROWS * DIM / 2; i++) rope[i] = (float2){(float)cos(i), (float)sin(i)};
    c.residual = gpu_copy(start, sizeof start), c.x = gpu_new(CHAIN_ROWS * HIDDEN * 2);
    c.q = gpu_new(CHAIN_ROWS * HEADS * DIM * 2), c.ffn = gpu_new(CHAIN_ROWS * FFN * 2);
    c.k = gpu_new(CHAIN_ROWS * KV_HEADS * SL_PAGE * DIM * 2), c.v = gpu_new(CHAIN_ROWS * KV_HEADS * SL_PAGE * DIM * 2);
    c.rows = gpu_copy(rows, sizeof rows), c.rope = gpu_copy(rope, sizeof rope);

    c.waits = 1;
    chain_step(&c);
    gpu_read(want, c.residual, sizeof want);
    c.waits = 0;
    CHECK(cudaStreamCreate(&c.stream) == cudaSuccess);
    cudaGraph_t graph;
    cudaGraphExec_t exec = NULL;
    for (int repeat = 0; repeat < 40; repeat++) {
        CHECK(cudaMemcpy(c.residual, start, sizeof start, cudaMemcpyHostToDevice) == cudaSuccess);
        if (repeat == 20) {
            CHECK(cudaStreamBeginCapture(c.stream, cudaStreamCaptureModeThreadLocal) == cudaSuccess);
            chain_step(&c);
            CHECK(cudaStreamEndCapture(c.stream, &graph) == cudaSuccess);
            CHECK(cudaGraphInstantiate(&exec, graph, 0) == cudaSuccess);
        }
        if (exec)
            CHECK(cudaGraphLaunch(exec, c.stream) == cudaSuccess);
        else
            chain_step(&c);
        gpu_read(got, c.residual, sizeof got);
        for (int i = 0; i < CHAIN_ROWS * HIDDEN; i++) CHECK(isfinite(got[i]));
        if (memcmp(got, want, sizeof got)) FAIL("repeat %d differs", repeat);
    }
    cudaGraphExecDestroy(exec);
    cudaGraphDestroy(graph);
    cudaStreamDestroy(c.stream);
}
#endif

static const test_case cases[] = {
    GPU_CASE("store", store),
    GPU_CASE("add", add),
    GPU_CASE("swiglu", swiglu),
    GPU_CASE("rope-append", rope_append),
    GPU_CASE("same-bits", same_bits),
    GPU_CASE("packed", packed),
    GPU_CASE("packed-same-bits", packed_same_bits),
    GPU_CASE("packed-numbers", packed_numbers),
    GPU_CASE("rmsnorm", rmsnorm),
    GPU_CASE("overlapping-kernels", chains),
    {0},
};
const test_suite suite_cuda_linear = {"cuda_linear", cases};
