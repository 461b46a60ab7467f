// tests/cuda/test_cuda_linear.c - the linear layers of a decode step and RMSNorm on CUDA against double precision. The bits of
// a row do not depend on the other rows or on the place of the row.
#include "tests/support/gpu.h"
#include "tests/test.h"

#ifdef SLEIGH_CUDA
#include "backend/cuda/linear.h"
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
    bf16 *w, *x;                       // [n_out][n_in], [N_ROWS][n_in]
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

static void expect(problem *p) {
    double *y = malloc(sizeof(double) * p->n_out), *e = malloc(sizeof(double) * p->n_out);
    for (int r = 0; r < N_ROWS; r++) {
        for (int o = 0; o < p->n_out; o++) {
            double sum = 0, size = 0;
            for (int i = 0; i < p->n_in; i++) {
                double v =
                    (double)sl_bf16_to_f32(p->x[(size_t)r * p->n_in + i]) * sl_bf16_to_f32(p->w[(size_t)o * p->n_in + i]);
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
    free(y), free(e);
}

static void *filled(size_t n, size_t size) {
    void *p = malloc(n * size + 1);
    memset(p, 0, n * size);
    return p;
}

// n_heads, n_kv_heads, head_dim: of SL_LINEAR_ROPE_APPEND, where they determine n_out.
static problem problem_new(sl_linear_end end, int n_out, int n_in, int n_heads, int n_kv_heads, int head_dim) {
    uint64_t seed = test_seed + n_out * 1000 + n_in + end;
    if (end == SL_LINEAR_ROPE_APPEND) n_out = (n_heads + 2 * n_kv_heads) * head_dim;
    problem p = {.end = end,
                 .n_out = n_out,
                 .n_in = n_in,
                 .n_y = end == SL_LINEAR_SWIGLU ? n_out / 2 : n_out,
                 .n_heads = n_heads,
                 .n_kv_heads = n_kv_heads,
                 .head_dim = head_dim};
    p.w = filled((size_t)n_out * n_in, 2), p.x = filled((size_t)N_ROWS * n_in, 2);
    p.residual = filled((size_t)N_ROWS * n_out, 4), p.rope = filled(N_ROWS * head_dim / 2, sizeof(float2));
    p.pages = filled(N_PAGES, 4);
    p.want = filled((size_t)N_ROWS * p.n_y, 8), p.error = filled((size_t)N_ROWS * p.n_y, 8);
    for (size_t i = 0; i < (size_t)n_out * n_in; i++) p.w[i] = sl_f32_to_bf16((float)(2 * test_uniform(&seed) - 1));
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

static void problem_free(problem *p) {
    free(p->w), free(p->x), free(p->residual), free(p->rope), free(p->pages), free(p->want), free(p->error);
}

// Moves the row of problem row r from `pages`, the host copy of k or v, to y [n_kv_heads][head_dim]. Afterwards `pages` holds
// 0xFFFF at this place.
static void take_kv(const problem *p, int r, bf16 *pages, float *y) {
    int position = p->position[r], page = p->pages[r * PAGES_PER_ROW + position / SL_PAGE];
    for (int h = 0; h < p->n_kv_heads; h++)
        for (int i = 0; i < p->head_dim; i++) {
            bf16 *at = pages + (((size_t)page * p->n_kv_heads + h) * SL_PAGE + position % SL_PAGE) * p->head_dim + i;
            y[h * p->head_dim + i] = sl_bf16_to_f32(*at);
            *at = 0xFFFF;
        }
}

static void check_untouched(const void *data, size_t size, const char *what) {
    for (size_t i = 0; i < size; i++)
        if (((const uint8_t *)data)[i] != 0xFF) FAIL("byte %zu of %s was written", i, what);
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
    sl_cuda_linear args = {.w = gpu_copy(p->w, (size_t)p->n_out * p->n_in * 2),
                           .n_out = p->n_out,
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
                           .v = v + GUARD / 2};
    sl_cuda_linear_decode(&args, 0);
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
                take_kv(p, which[i], kv + GUARD / 2, y + (size_t)i * p->n_y + n_16 + is_v * p->n_kv_heads * p->head_dim);
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
                FAIL("ending %d, %d x %d, row %d of %d, output %d: got %.9g, expected %.9g +- %.3g", p->end, p->n_out, p->n_in,
                     i, n_rows, o, y[at], p->want[at], p->error[at]);
        }
    free(y);
}

static void check_bits(const problem *p) {
    int which[N_ROWS];
    const size_t size = sizeof(float) * p->n_y;
    float *all = malloc(size * N_ROWS), *y = malloc(size * N_ROWS);
    for (int i = 0; i < N_ROWS; i++) which[i] = i;
    run(p, which, N_ROWS, all);
    for (int first = 0; first < N_ROWS; first++)
        for (int n = 1; n <= N_ROWS; n++) {
            if (n > 1 && n < N_ROWS && first != n % 5) continue; // n = 1 and n = N_ROWS with every first row, other n with one
            for (int i = 0; i < n; i++) which[i] = (first + 5 * i) % N_ROWS;
            run(p, which, n, y);
            for (int i = 0; i < n; i++)
                if (memcmp(y + (size_t)i * p->n_y, all + (size_t)which[i] * p->n_y, size))
                    FAIL("ending %d, %d x %d: row %d has other bits at place %d of %d", p->end, p->n_out, p->n_in, which[i], i,
                         n);
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
            for (size_t j = 0; j < sizeof row_counts / sizeof *row_counts; j++) check_accuracy(&p, row_counts[j]);
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
    GPU_CASE("rmsnorm", rmsnorm),
    GPU_CASE("overlapping-kernels", chains),
    {0},
};
const test_suite suite_cuda_linear = {"cuda_linear", cases};
