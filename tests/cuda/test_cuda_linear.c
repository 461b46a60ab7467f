// tests/cuda/test_cuda_linear.c - the linear layers of a decode step on CUDA, with plain and with packed weights, and their
// parts of an RMSNorm, against double precision. The bits of a row do not depend on the other rows or on the place of the row.
#include "tests/support/gpu.h"
#include "tests/support/stored_weight.h"
#include "tests/test.h"

#ifdef SLEIGH_CUDA
#include "backend/cuda/packed_linear.h"
#include "kv/kv.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { GUARD = 256, N_ROWS = SL_LINEAR_ROWS, PAGES_PER_ROW = 3, N_PAGES = N_ROWS * PAGES_PER_ROW };

static const float EPS = 1e-5f;
static const test_storage PLAIN = {SL_BF16, 0, 0};

// One matrix and N_ROWS rows of input. A run uses some of the rows, in some order.
typedef struct problem {
    sl_linear_end end;
    int n_out, n_in, n_y;              // n_y: outputs of a row; with next_w first x, then u, then the sums
    int n_heads, n_kv_heads, head_dim; // of SL_LINEAR_ROPE_APPEND
    int is_staged;                     // 1: k and v are rows, no pages
    sl_weight w;                       // [n_out][n_in]
    bf16 *x;                           // [N_ROWS][n_in]
    float *residual;                   // [N_ROWS][n_out]
    float2 *rope;                      // [N_ROWS][head_dim / 2]
    float *sums;                       // [N_ROWS][n_in / 16] of an RMSNorm; NULL: the products are not divided
    bf16 *next_w;                      // [n_out] of the RMSNorm after SL_LINEAR_ADD; NULL: none
    int32_t position[N_ROWS], *pages;  // [N_ROWS][3]
    double *want, *error;              // [N_ROWS][n_y] the expected outputs, and their tolerances
} problem;

// A bound of |y - want| for a sum of n_in products. A tensor core adds 16 products to an fp32 sum and truncates: an error of
// one unit in the last place, 2^-23 of at most the sum of magnitudes, per step. A warp takes at most n_in / 64 + 8 steps (a
// quarter of the chunks, rounded up). The bound allows for twice as many.
static double sum_error(int n_in, double size) {
    return (n_in / 64 + 8) * 0x1p-22 * size;
}

// Rows of one launch; 0: the kernels do not take the matrix.
static int most_rows_of(const sl_weight *w) {
    sl_cuda_packing k = sl_cuda_packing_of(w);
    return w->group ? sl_cuda_packed_rows(&k) : N_ROWS;
}
static int most_rows(const problem *p) {
    return most_rows_of(&p->w);
}

// The expected u and sums (linear.h) of a row, from x [n_out] and its tolerances.
static void expect_next(const problem *p, const double *x, const double *x_error, double *want, double *error) {
    double *sum = want + p->n_out, *sum_error = error + p->n_out;
    for (int o = 0; o < p->n_out; o++) {
        double w = sl_bf16_to_f32(p->next_w[o]);
        want[o] = x[o] * w, error[o] = x_error[o] * fabs(w) + (0x1p-8 + 0x1p-18) * fabs(want[o]);
        if (o % SL_NORM_TILE == 0) sum[o / SL_NORM_TILE] = sum_error[o / SL_NORM_TILE] = 0;
        sum[o / SL_NORM_TILE] += x[o] * x[o];
        sum_error[o / SL_NORM_TILE] += x_error[o] * (2 * fabs(x[o]) + x_error[o]) + 0x1p-19 * x[o] * x[o];
    }
}

// A number with a minimum is the sum of two products in the kernels: of magnitudes |w| + |min| and |min| at most.
static void expect(problem *p) {
    float *w = malloc(sizeof(float) * p->n_out * p->n_in);
    for (int o = 0; o < p->n_out; o++) sl_weight_widen(&p->w, (size_t)o, w + (size_t)o * p->n_in);
    const int n_groups = sl_weight_groups(&p->w);
    double *y = malloc(sizeof(double) * p->n_out), *e = malloc(sizeof(double) * p->n_out);
    for (int r = 0; r < N_ROWS; r++) {
        for (int o = 0; o < p->n_out; o++) {
            double sum = 0, size = 0;
            for (int i = 0; i < p->n_in; i++) {
                double x = sl_bf16_to_f32(p->x[(size_t)r * p->n_in + i]), v = x * w[(size_t)o * p->n_in + i];
                double min = p->w.min ? p->w.min[(size_t)o * n_groups + i / p->w.group] : 0;
                sum += v, size += fabs(v) + 2 * fabs(x * min);
            }
            y[o] = sum, e[o] = sum_error(p->n_in, size);
        }
        if (p->sums) {
            double sum = 0;
            for (int i = 0; i < p->n_in / SL_NORM_TILE; i++) sum += p->sums[r * (p->n_in / SL_NORM_TILE) + i];
            double factor = 1 / sqrt(sum / p->n_in + EPS);
            for (int o = 0; o < p->n_out; o++) y[o] *= factor, e[o] = e[o] * factor + 0x1p-18 * fabs(y[o]);
        }
        double *want = p->want + (size_t)r * p->n_y, *error = p->error + (size_t)r * p->n_y;
        for (int o = 0; o < (p->next_w ? p->n_out : p->n_y); o++) {
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
        if (p->next_w) expect_next(p, want, error, want + p->n_out, error + p->n_out);
    }
    free(w), free(y), free(e);
}

static void *filled(size_t n, size_t size) {
    void *p = malloc(n * size + 1);
    memset(p, 0, n * size);
    return p;
}

// n_heads, n_kv_heads, head_dim: of SL_LINEAR_ROPE_APPEND, where they determine n_out.
static problem problem_of(test_storage kind, sl_linear_end end, int n_out, int n_in, int n_heads, int n_kv_heads,
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
    p.w = test_stored_weight(kind, n_out, n_in, &seed), p.x = filled((size_t)N_ROWS * n_in, 2);
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
    return problem_of(PLAIN, end, n_out, n_in, n_heads, n_kv_heads, head_dim);
}

// The same problem with its part of an RMSNorm: SL_LINEAR_ADD prepares the norm, the other endings divide.
static problem with_norm(problem p) {
    uint64_t seed = test_seed + 7;
    const size_t n_sums = (size_t)N_ROWS * p.n_in / SL_NORM_TILE;
    if (p.end == SL_LINEAR_ADD) {
        p.next_w = filled(p.n_out, 2);
        for (int o = 0; o < p.n_out; o++) p.next_w[o] = sl_f32_to_bf16((float)(1 + 0.3 * test_normal(&seed)));
        p.n_y = 2 * p.n_out + p.n_out / SL_NORM_TILE;
        free(p.want), free(p.error);
        p.want = filled((size_t)N_ROWS * p.n_y, 8), p.error = filled((size_t)N_ROWS * p.n_y, 8);
    } else {
        p.sums = filled(n_sums, 4);
        for (size_t i = 0; i < n_sums; i++) p.sums[i] = (float)(exp(test_normal(&seed)));
    }
    expect(&p);
    return p;
}

static void problem_free(problem *p) {
    test_stored_free(&p->w), free(p->x), free(p->residual), free(p->rope), free(p->pages), free(p->sums), free(p->next_w),
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
static sl_weight packed_copy(const sl_weight *w) {
    sl_cuda_packing k = sl_cuda_packing_of(w);
    size_t n_bytes = sl_packed_bytes(&k, SL_PIECE_ROWS), n_scales = sl_packed_scales(&k, SL_PIECE_ROWS);
    int n = w->n_rows / SL_PIECE_ROWS;
    char *packed = malloc(n * n_bytes);
    float *scales = malloc(n * n_scales * sizeof *scales);
    sl_weight copy = *w;
    CHECK(sl_cuda_can_pack(w));
    for (int i = 0; i < n; i++) sl_cuda_pack_rows(w, &k, i, packed + i * n_bytes, scales + i * n_scales);
    copy.data = gpu_copy(packed, n * n_bytes), copy.scale = gpu_copy(scales, n * n_scales * sizeof *scales);
    if (w->order) copy.order = gpu_copy(w->order, w->n_cols * sizeof *w->order);
    free(packed), free(scales);
    return copy;
}

// y = w x with the GPU's kernel for w.
static void multiply(const sl_weight *w, sl_cuda_linear args) {
    args.n_out = w->n_rows, args.n_in = w->n_cols;
    if (w->group) {
        sl_weight copy = packed_copy(w);
        args.packing = sl_cuda_packing_of(w);
        args.w = copy.data, args.scale = copy.scale, args.order = copy.order;
        sl_cuda_packed_linear(&args, 0);
    } else {
        args.w = gpu_copy(w->data, (size_t)w->n_rows * w->n_cols * 2);
        sl_cuda_linear_decode(&args, 0);
    }
}

// Moves u and the sums of a run to y [n_rows][n_y], and checks the memory around them.
static void take_next(const problem *p, int n_rows, const bf16 *gpu_u, const float *gpu_sums, float *y) {
    const int n = p->n_out, n_sums = n / SL_NORM_TILE;
    const size_t u_size = GUARD + 2 * (size_t)N_ROWS * n + GUARD, sums_size = GUARD + 4 * (size_t)N_ROWS * n_sums + GUARD;
    char *u = malloc(u_size), *sums = malloc(sums_size);
    gpu_read(u, gpu_u, u_size);
    gpu_read(sums, gpu_sums, sums_size);
    for (int i = 0; i < n_rows; i++) {
        for (int o = 0; o < n; o++) y[(size_t)i * p->n_y + n + o] = sl_bf16_to_f32(((bf16 *)(u + GUARD))[(size_t)i * n + o]);
        memcpy(y + (size_t)i * p->n_y + 2 * n, sums + GUARD + 4 * (size_t)i * n_sums, 4 * n_sums);
    }
    check_untouched(u, GUARD, "the space before u");
    check_untouched(u + GUARD + 2 * n_rows * n, 2 * (N_ROWS - n_rows) * n + GUARD, "the space after u");
    check_untouched(sums, GUARD, "the space before the sums");
    check_untouched(sums + GUARD + 4 * n_rows * n_sums, 4 * (N_ROWS - n_rows) * n_sums + GUARD, "the space after the sums");
    free(u), free(sums);
}

// Row i of the batch is row which[i] of the problem; y: [n_rows][n_y]. Rows of x after the last one are NaN. The memory
// before, after and between the outputs must not change.
static void run(const problem *p, const int *which, int n_rows, float *y) {
    gpu_free_all();
    const int is_rope = p->end == SL_LINEAR_ROPE_APPEND, is_16 = is_rope || p->end == SL_LINEAR_SWIGLU;
    const int n_16 = is_rope ? p->n_heads * p->head_dim : p->n_y, n_sums = p->n_in / SL_NORM_TILE;
    const size_t n_x = (size_t)N_ROWS * p->n_in, n_32 = (size_t)N_ROWS * p->n_out;
    const size_t out_size = GUARD + (is_16 ? 2 * (size_t)N_ROWS * n_16 : 4 * n_32) + GUARD;
    const size_t kv_size = is_rope ? 2 * (size_t)N_PAGES * p->n_kv_heads * SL_PAGE * p->head_dim : 0;
    bf16 *x = malloc(n_x * 2);
    char *out = malloc(out_size);
    memset(x, 0xFF, n_x * 2);
    memset(out, 0xFF, out_size);
    float2 rope[N_ROWS * 64];
    sl_row rows[N_ROWS];
    float *sums = malloc(4 * N_ROWS * n_sums + 1);
    memset(sums, 0xFF, 4 * N_ROWS * n_sums);
    const int32_t *pages = gpu_copy(p->pages, sizeof(int32_t) * N_PAGES);
    memset(rope, 0xFF, sizeof rope);
    memset(rows, 0xFF, sizeof rows);
    for (int i = 0; i < n_rows; i++) {
        int r = which[i], half = p->head_dim / 2;
        memcpy(x + (size_t)i * p->n_in, p->x + (size_t)r * p->n_in, p->n_in * 2);
        if (p->end == SL_LINEAR_ADD)
            memcpy(out + GUARD + (size_t)i * p->n_out * 4, p->residual + (size_t)r * p->n_out, p->n_out * 4);
        if (p->sums) memcpy(sums + i * n_sums, p->sums + r * n_sums, 4 * n_sums);
        if (!is_rope) continue;
        memcpy(rope + i * half, p->rope + r * half, half * sizeof *rope);
        rows[i] = (sl_row){.position = p->position[r], .sequence = r, .pages = pages + r * PAGES_PER_ROW};
    }
    char *gpu_out = gpu_copy(out, out_size);
    bf16 *k = gpu_new(GUARD + kv_size + GUARD), *v = gpu_new(GUARD + kv_size + GUARD);
    bf16 *u = gpu_new(GUARD + 2 * n_32 + GUARD);
    float *next_sums = gpu_new(GUARD + n_32 / 4 + GUARD);
    sl_cuda_linear args = {.x = gpu_copy(x, n_x * 2),
                           .n_rows = n_rows,
                           .end = p->end,
                           .out32 = is_16 ? NULL : (float *)(gpu_out + GUARD),
                           .out16 = is_16 ? (bf16 *)(gpu_out + GUARD) : NULL,
                           .sums = p->sums ? gpu_copy(sums, 4 * N_ROWS * n_sums) : NULL,
                           .eps = EPS,
                           .n_heads = p->n_heads,
                           .n_kv_heads = p->n_kv_heads,
                           .head_dim = p->head_dim,
                           .rope = gpu_copy(rope, sizeof rope),
                           .rows = gpu_copy(rows, sizeof rows),
                           .k = k + GUARD / 2,
                           .v = v + GUARD / 2,
                           .is_staged = p->is_staged};
    if (p->next_w) {
        args.next_w = gpu_copy(p->next_w, 2 * p->n_out);
        args.out16 = u + GUARD / 2, args.next_sums = next_sums + GUARD / 4;
    }
    multiply(&p->w, args);
    gpu_read(out, gpu_out, out_size);

    const size_t row_size = is_16 ? 2 * n_16 : 4 * p->n_out;
    check_untouched(out, GUARD, "the space before the output");
    check_untouched(out + GUARD + n_rows * row_size, out_size - GUARD - n_rows * row_size, "the space after the output");
    for (int i = 0; i < n_rows; i++)
        for (int o = 0; o < (is_16 ? n_16 : p->n_out); o++)
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
    if (p->next_w) take_next(p, n_rows, u, next_sums, y);
    free(x), free(out), free(sums);
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
                FAIL("%s, ending %d, %d x %d, row %d of %d, output %d: got %.9g, expected %.9g +- %.3g",
                     test_stored_name(&p->w), p->end, p->n_out, p->n_in, i, n_rows, o, y[at], p->want[at], p->error[at]);
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
                    FAIL("%s, ending %d, %d x %d: row %d has other bits at place %d of %d", test_stored_name(&p->w), p->end,
                         p->n_out, p->n_in, which[i], i, n);
        }
    free(all), free(y);
}

static const int row_counts[] = {1, 2, 7, 8, 9, 15, 16, 17, 24, 25, 31, 32};

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

// More than 16 rows have a kernel of their own (linear_cluster.cu). With 9002 outputs it takes two passes over the columns of
// x, which stay in shared memory (136 columns) or go through it again (1160).
static void same_bits(void) {
    static const int sizes[][2] = {{34, 40}, {130, 1000}, {64, 4104}, {9002, 136}, {9002, 1160}};
    for (int s = 0; s < 5; s++)
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

// The endings, on matrices with a part of a tile, with more pieces than leaves and fewer, and with part of a piece.
static void packed(void) {
    static const int sizes[][2] = {{8, 32},    {24, 64},   {40, 136},   {64, 512},   {272, 2304},
                                   {16, 4104}, {8, 12296}, {8, 106504}, {4400, 512}, {17008, 128}};
    static const int counts[] = {1, 7, 8, 9, 16};
    for (int k = 0; k < N_TEST_STORAGES; k++)
        for (int end = SL_LINEAR_STORE; end <= SL_LINEAR_ROPE_APPEND; end++)
            for (size_t s = 0; s < sizeof sizes / sizeof *sizes; s++) {
                int n_out = sizes[s][0] * (end == SL_LINEAR_SWIGLU ? 2 : 1);
                if (end == SL_LINEAR_ROPE_APPEND && s > 5) continue;
                if (s == 7 && (k % 2 || end != SL_LINEAR_STORE)) continue; // the expected sums take long
                problem p = problem_of(test_storages[k], (sl_linear_end)end, n_out, sizes[s][1], 3, 1, s % 2 ? 80 : 128);
                for (size_t i = 0; i < sizeof counts / sizeof *counts && counts[i] <= most_rows(&p); i++)
                    check_accuracy(&p, counts[i]);
                problem_free(&p);
            }
}

static void packed_same_bits(void) {
    for (int k = 0; k < N_TEST_STORAGES; k++)
        for (int end = SL_LINEAR_STORE; end <= SL_LINEAR_ROPE_APPEND; end++) {
            problem p = problem_of(test_storages[k], (sl_linear_end)end, 368, 1032, 3, 1, 128);
            check_bits(&p);
            problem_free(&p);
        }
}

// The numbers of packed rows, rounded to bf16 and as fp32.
static void packed_numbers(void) {
    enum { ROWS = 48, FIRST = 16 };
    static const int cols[] = {32, 136, 1152};
    for (int k = 0; k < N_TEST_STORAGES; k++)
        for (int c = 0; c < 3; c++) {
            gpu_free_all();
            int n = cols[c], ids[3] = {0, ROWS - 1, 9};
            uint64_t seed = test_seed + n;
            sl_weight w = test_stored_weight(test_storages[k], ROWS, n, &seed), copy = packed_copy(&w);
            float want[n], got[3 * n];
            bf16 rounded[(ROWS - FIRST) * n], *to = gpu_new(sizeof rounded);
            float *rows = gpu_new(sizeof got);
            sl_cuda_packed_widen(&copy, 1, FIRST, ROWS - FIRST, to, 0);
            sl_cuda_packed_embed(&copy, gpu_copy(ids, sizeof ids), 3, rows, 0);
            gpu_read(rounded, to, sizeof rounded);
            gpu_read(got, rows, sizeof got);
            for (int r = FIRST; r < ROWS; r++) {
                sl_weight_widen(&w, (size_t)r, want);
                for (int i = 0; i < n; i++)
                    if (rounded[(r - FIRST) * n + i] != sl_f32_to_bf16(want[i]))
                        FAIL("%s, %d columns: row %d, column %d is %.9g, expected %.9g", test_stored_name(&w), n, r, i,
                             sl_bf16_to_f32(rounded[(r - FIRST) * n + i]), want[i]);
            }
            for (int i = 0; i < 3; i++) {
                sl_weight_widen(&w, (size_t)ids[i], want);
                CHECK(!memcmp(got + i * n, want, n * sizeof *want));
            }
            test_stored_free(&w);
        }
}

// ---- RMSNorm between two matrices ----

// The parts of an RMSNorm with awkward sizes: part of a tile of outputs, fewer sums than lanes, part of a step of the lanes.
static void norm_parts(void) {
    static const int sizes[][2] = {{64, 64}, {24, 64}, {576, 128}, {272, 576}, {128, 4096}, {64, 5120}, {4096, 64}};
    static const int counts[] = {1, 8, 9, 16, 32};
    for (int k = -1; k < N_TEST_STORAGES; k++)
        for (int end = SL_LINEAR_STORE; end <= SL_LINEAR_ROPE_APPEND; end++)
            for (size_t s = 0; s < sizeof sizes / sizeof *sizes; s++) {
                int n_out = sizes[s][0] * (end == SL_LINEAR_SWIGLU ? 2 : 1);
                if (end == SL_LINEAR_ROPE_APPEND ? s > 5 : end == SL_LINEAR_ADD && n_out % SL_NORM_MULTIPLE) continue;
                if (k >= 0 && k % 3 && sizes[s][1] > 576) continue; // the expected sums of every packing take long
                problem p = with_norm(problem_of(k < 0 ? PLAIN : test_storages[k], (sl_linear_end)end, n_out, sizes[s][1], 3, 1,
                                                 s % 2 ? 80 : 128));
                for (size_t i = 0; i < sizeof counts / sizeof *counts && counts[i] <= most_rows(&p); i++)
                    check_accuracy(&p, counts[i]);
                problem_free(&p);
            }
}

static void norm_same_bits(void) {
    for (int k = -1; k < N_TEST_STORAGES; k += 2)
        for (int end = SL_LINEAR_STORE; end <= SL_LINEAR_ROPE_APPEND; end++) {
            problem p = with_norm(problem_of(k < 0 ? PLAIN : test_storages[k], (sl_linear_end)end, 448, 1088, 3, 1, 128));
            check_bits(&p);
            problem_free(&p);
        }
}

// y = second h, h = rmsnorm(x + first a), with the norm in the linear layers, and with its own kernel. Both are within the
// rounding of h to bf16, at most 2^-8 |h|, and of the sums. Rows of ordinary numbers, zeros, large and small numbers, numbers
// whose squares are infinite or 0, and numbers that are not finite.
static void check_pair(const sl_weight *first, const sl_weight *second, const float *x, const bf16 *a, const bf16 *norm,
                       int n_rows) {
    const int hidden = first->n_rows, n_out = second->n_rows;
    const size_t x_size = 4 * (size_t)n_rows * hidden, y_size = 4 * (size_t)n_rows * n_out;
    const bf16 *gpu_a = gpu_copy(a, 2 * (size_t)n_rows * first->n_cols), *gpu_norm = gpu_copy(norm, 2 * hidden);
    float *sum = malloc(x_size), *again = malloc(x_size), *y[2] = {malloc(y_size), malloc(y_size)}, *w = malloc(4 * hidden);
    for (int is_apart = 0; is_apart < 2; is_apart++) {
        float *out32 = gpu_copy(x, x_size), *out = gpu_new(y_size), *sums = gpu_new(x_size / SL_NORM_TILE);
        bf16 *rows = gpu_new(x_size / 2);
        sl_cuda_linear add = {.x = gpu_a, .n_rows = n_rows, .end = SL_LINEAR_ADD, .out32 = out32};
        sl_cuda_linear store = {.x = rows, .n_rows = n_rows, .end = SL_LINEAR_STORE, .out32 = out};
        if (!is_apart) {
            add.next_w = gpu_norm, add.out16 = rows, add.next_sums = sums;
            store.sums = sums, store.eps = EPS;
        }
        multiply(first, add);
        if (is_apart) sl_cuda_rmsnorm(out32, gpu_norm, n_rows, hidden, EPS, rows, 0);
        multiply(second, store);
        gpu_read(is_apart ? again : sum, out32, x_size);
        gpu_read(y[is_apart], out, y_size);
    }
    CHECK(!memcmp(sum, again, x_size));
    for (int o = 0; o < n_out; o++) {
        sl_weight_widen(second, (size_t)o, w);
        for (int r = 0; r < n_rows; r++) {
            const float *row = sum + (size_t)r * hidden;
            double squares = 0, want = 0, size = 0;
            float total = 0; // infinite where the kernels' sums are
            for (int i = 0; i < hidden; i++) squares += (double)row[i] * row[i], total += row[i] * row[i];
            double factor = isinf(total) ? 1 / (double)total : 1 / sqrt(squares / hidden + EPS);
            for (int i = 0; i < hidden; i++) {
                double v = row[i] * factor * sl_bf16_to_f32(norm[i]) * w[i];
                want += v, size += fabs(v);
            }
            for (int is_apart = 0; is_apart < 2; is_apart++) {
                double got = y[is_apart][(size_t)r * n_out + o];
                if (isnan(want) ? !isnan(got) : !(fabs(got - want) <= 0x1p-8 * size + sum_error(hidden, size)))
                    FAIL("%s then %s, hidden %d, row %d of %d, output %d, norm %s: got %.9g, expected %.9g of %.3g",
                         sl_formats[first->format].name, sl_formats[second->format].name, hidden, r, n_rows, o,
                         is_apart ? "apart" : "within", got, want, size);
            }
        }
    }
    free(sum), free(again), free(y[0]), free(y[1]), free(w);
}

static void norm_pairs(void) {
    static const float scales[] = {1, 0, 1e15f, 1e-15f, 1e25f, 1e-25f, 1, 1, 1};
    static const int hiddens[] = {64, 576, 4096}, counts[] = {1, 8, 9, 16, 32};
    enum { N_IN = 128, N_OUT = 72, N_SCALES = sizeof scales / sizeof *scales };
    for (int h = 0; h < 3; h++)
        for (int k = 0; k < 4; k++) {
            uint64_t seed = test_seed + h;
            const int hidden = hiddens[h];
            sl_weight first = test_stored_weight(k & 1 ? (test_storage){SL_INT4, 128, 0} : PLAIN, hidden, N_IN, &seed),
                      second = test_stored_weight((test_storage){k & 2 ? SL_FP8 : SL_BF16, 0, 0}, N_OUT, hidden, &seed);
            const int of_first = most_rows_of(&first), of_second = most_rows_of(&second);
            const int most = of_first < of_second ? of_first : of_second;
            float *x = filled((size_t)N_ROWS * hidden, 4);
            bf16 *a = filled(N_ROWS * N_IN, 2), *norm = filled(hidden, 2);
            for (int i = 0; i < hidden; i++) norm[i] = sl_f32_to_bf16((float)(1 + 0.3 * test_normal(&seed)));
            for (int i = 0; i < N_ROWS * hidden; i++) x[i] = scales[i / hidden % N_SCALES] * (float)test_normal(&seed);
            for (int i = 0; i < N_ROWS * N_IN; i++) // the product would hide small x
                a[i] = scales[i / N_IN % N_SCALES] == 1 ? sl_f32_to_bf16((float)test_normal(&seed)) : 0;
            for (int r = 6; r < N_ROWS; r += N_SCALES) {
                x[r * hidden + 17] = INFINITY;
                if (r + 1 < N_ROWS) x[(r + 1) * hidden + hidden - 1] = NAN;
                if (r + 2 < N_ROWS) x[(r + 2) * hidden] = -INFINITY;
            }
            for (size_t i = 0; i < sizeof counts / sizeof *counts && counts[i] <= most; i++) {
                gpu_free_all();
                check_pair(&first, &second, x, a, norm, counts[i]);
            }
            test_stored_free(&first), test_stored_free(&second);
            free(x), free(a), free(norm);
        }
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
    GPU_CASE("norm-parts", norm_parts),
    GPU_CASE("norm-same-bits", norm_same_bits),
    GPU_CASE("norm-pairs", norm_pairs),
    {0},
};
const test_suite suite_cuda_linear = {"cuda_linear", cases};
