// tests/cuda/test_cuda_prefill.c - dense prefill on CUDA, compared with double precision for every head dimension and group,
// and for runs that begin and end near borders of tiles and pages. A prompt gives equal bits whole and in chunks of any sizes.
#include "attention/cuda/prefill/dense_prefill.cuh"
#include "tests/support/gpu.h"
#include "tests/test.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#ifdef SLEIGH_CUDA

enum { MAX_KV = 6016, N_PAGES = 29, N_KV_HEADS = 2, MAX_TOKENS = 1000, GUARD = 256, N_CHECKED = 10 };

// q and k are bf16, and their products are exact in fp32, so only the sums of scores have errors. The output and each
// probability p are rounded to bf16, by at most 2^-8 of the rounded number. The errors of the probabilities have independent
// signs, so they add up to 2^-8 sqrt(sum p^2 |v|^2). This is 2^-8 |out| for values without a mean, as in this test, and less
// for other values. Together the bound is 2^-7. The largest error seen in a row is 1.2 * 2^-8.
static const double TOLERANCE = 0x1p-7;

// The kernel that the launcher chooses on this GPU, and the kernel for every GPU. On a Hopper they differ.
typedef void (*prefill_fn)(const sl_attn_cuda_prefill_args *args);
static const prefill_fn kernels[] = {sl_cuda_dense_prefill, sl_cuda_dense_prefill_mma};
static int n_kernels(void) {
    return sl_cuda_dense_prefill_wgmma_runs() ? 2 : 1;
}

typedef struct prompt {
    prefill_fn kernel;
    sl_attn_geom geom;
    size_t q_stride;
    int32_t pages[N_PAGES]; // the first 24 belong to the sequence; the others hold NaN
    bf16 *q;                // [MAX_KV][q_stride]: the heads of a token, then NaN
    bf16 *k, *v;            // [N_PAGES][N_KV_HEADS][256][head_dim]
    bf16 *cut;              // k or v, with NaN after the last row
    bf16 *d_q, *d_out, *d_k, *d_v;
    int32_t *d_pages;
    bf16 *out; // [GUARD + MAX_KV * n_heads * head_dim + GUARD]
} prompt;

static size_t pool_size(const prompt *p) {
    return (size_t)N_PAGES * N_KV_HEADS * SL_PAGE * p->geom.head_dim * sizeof(bf16);
}
static size_t out_size(const prompt *p, int n_tokens) {
    return ((size_t)n_tokens * p->geom.n_heads * p->geom.head_dim + 2 * GUARD) * sizeof(bf16);
}
static size_t row_at(const prompt *p, int kv_head, int j) {
    return (((size_t)p->pages[j / SL_PAGE] * N_KV_HEADS + kv_head) * SL_PAGE + j % SL_PAGE) * p->geom.head_dim;
}

static void fill(bf16 *x, int n, double scale, uint64_t *seed) {
    for (int i = 0; i < n; i++) x[i] = sl_f32_to_bf16((float)(scale * test_normal(seed)));
}

static prompt prompt_new(prefill_fn kernel, int head_dim, int group, double query_scale) {
    prompt p = {.kernel = kernel,
                .geom = {.n_layers = 1, .n_heads = N_KV_HEADS * group, .n_kv_heads = N_KV_HEADS, .head_dim = head_dim}};
    uint64_t seed = test_seed + 1000 * head_dim + group;
    p.q_stride = (size_t)(p.geom.n_heads + 2 * N_KV_HEADS) * head_dim; // as in the output of a merged QKV layer
    for (int i = 0; i < N_PAGES; i++) p.pages[i] = i;
    for (int i = N_PAGES - 1; i > 0; i--) {
        int j = (int)(test_uniform(&seed) * (i + 1)), page = p.pages[i];
        p.pages[i] = p.pages[j], p.pages[j] = page;
    }
    p.q = malloc(MAX_KV * p.q_stride * sizeof *p.q), p.out = malloc(out_size(&p, MAX_KV));
    p.k = malloc(pool_size(&p)), p.v = malloc(pool_size(&p)), p.cut = malloc(pool_size(&p));
    memset(p.q, 0xFF, MAX_KV * p.q_stride * sizeof *p.q);
    memset(p.k, 0xFF, pool_size(&p)), memset(p.v, 0xFF, pool_size(&p));
    for (int i = 0; i < MAX_KV; i++) {
        fill(p.q + i * p.q_stride, p.geom.n_heads * head_dim, query_scale, &seed);
        for (int h = 0; h < N_KV_HEADS; h++)
            fill(p.k + row_at(&p, h, i), head_dim, 1, &seed), fill(p.v + row_at(&p, h, i), head_dim, 1, &seed);
    }
    p.d_q = gpu_copy(p.q, MAX_KV * p.q_stride * sizeof *p.q), p.d_out = gpu_new(out_size(&p, MAX_KV));
    p.d_k = gpu_new(pool_size(&p)), p.d_v = gpu_new(pool_size(&p));
    p.d_pages = gpu_copy(p.pages, sizeof p.pages);
    return p;
}

static void prompt_free(prompt *p) {
    free(p->q), free(p->k), free(p->v), free(p->cut), free(p->out);
}

// Uploads x, with NaN in all rows from n_kv on.
static void upload(prompt *p, bf16 *to, const bf16 *x, int n_kv) {
    size_t row = p->geom.head_dim * sizeof *x;
    memset(p->cut, 0xFF, pool_size(p));
    for (int h = 0; h < N_KV_HEADS; h++)
        for (int j = 0; j < n_kv; j++) memcpy(p->cut + row_at(p, h, j), x + row_at(p, h, j), row);
    if (cudaMemcpy(to, p->cut, pool_size(p), cudaMemcpyHostToDevice)) FAIL("upload");
}

// Runs tokens [first, first + n_tokens) of the prompt. Their outputs begin at `out`. Only rows [0, first + n_tokens) exist.
static void run(prompt *p, int first, int n_tokens, bf16 *out) {
    sl_attn_cuda_prefill_args args = {
        .geom = &p->geom,
        .n_tokens = n_tokens,
        .first = first,
        .n_pages = N_PAGES,
        .q = p->d_q + first * p->q_stride,
        .q_stride = p->q_stride,
        .out = out,
        .k = p->d_k,
        .v = p->d_v,
        .pages = p->d_pages,
    };
    p->kernel(&args);
}

// Runs the tokens, checks the sentinels before and after the output, and reads the output to p->out + GUARD.
static void run_checked(prompt *p, int first, int n_tokens) {
    size_t n = (size_t)n_tokens * p->geom.n_heads * p->geom.head_dim;
    upload(p, p->d_k, p->k, first + n_tokens), upload(p, p->d_v, p->v, first + n_tokens);
    if (cudaMemset(p->d_out, 0xFF, out_size(p, n_tokens))) FAIL("cudaMemset");
    run(p, first, n_tokens, p->d_out + GUARD);
    gpu_read(p->out, p->d_out, out_size(p, n_tokens));
    for (int i = 0; i < GUARD; i++) {
        CHECK_INT(p->out[i], 0xFFFF);
        CHECK_INT(p->out[GUARD + n + i], 0xFFFF);
    }
    for (size_t i = 0; i < n; i++)
        if ((p->out[GUARD + i] & 0x7F80) == 0x7F80) FAIL("first %d, n %d: output %zu is not finite", first, n_tokens, i);
}

// |got - want| / |want| of one row, with `want` in double precision from the bf16 inputs.
static double row_error(const prompt *p, int position, int head, const bf16 *got) {
    int dim = p->geom.head_dim, kv_head = head / (p->geom.n_heads / N_KV_HEADS);
    const bf16 *q = p->q + position * p->q_stride + (size_t)head * dim;
    double *s = malloc((position + 1) * sizeof *s), want[128] = {0}, top = -INFINITY, sum = 0, diff = 0, size = 0;
    for (int j = 0; j <= position; j++) {
        const bf16 *k = p->k + row_at(p, kv_head, j);
        s[j] = 0;
        for (int d = 0; d < dim; d++) s[j] += (double)sl_bf16_to_f32(q[d]) * sl_bf16_to_f32(k[d]);
        s[j] /= sqrt(dim);
        top = fmax(top, s[j]);
    }
    for (int j = 0; j <= position; j++) {
        const bf16 *v = p->v + row_at(p, kv_head, j);
        double w = exp(s[j] - top);
        sum += w;
        for (int d = 0; d < dim; d++) want[d] += w * sl_bf16_to_f32(v[d]);
    }
    for (int d = 0; d < dim; d++) {
        double w = want[d] / sum, e = sl_bf16_to_f32(got[d]) - w;
        diff += e * e, size += w * w;
    }
    free(s);
    return sqrt(diff / size);
}

// Checks all heads of these rows: the first and the last row of the run, of a tile of 64 and of a tile of 128, and some others.
static double worst_error(const prompt *p, int first, int n_tokens) {
    int rows[N_CHECKED] = {0, n_tokens - 1, 1, 63, 64, 127, 128, 191, 192, n_tokens / 2};
    int n_heads = p->geom.n_heads, dim = p->geom.head_dim;
    double worst = 0;
#pragma omp parallel for collapse(2) reduction(max : worst) schedule(dynamic)
    for (int r = 0; r < N_CHECKED; r++)
        for (int h = 0; h < n_heads; h++) {
            if (rows[r] >= n_tokens) continue;
            const bf16 *got = p->out + GUARD + ((size_t)rows[r] * n_heads + h) * dim;
            worst = fmax(worst, row_error(p, first + rows[r], h, got));
        }
    return worst;
}

static void check_pair(int head_dim, int group) {
    static const int sizes[] = {1, 31, 64, 127, 128, 129, 255, 256, 257, MAX_TOKENS}, firsts[] = {0, 1, 255, 256, 300, 5000};
    prompt p = prompt_new(NULL, head_dim, group, 1);
    for (int i = 0; i < n_kernels(); i++)
        for (size_t f = 0; f < sizeof firsts / sizeof *firsts; f++)
            for (size_t s = 0; s < sizeof sizes / sizeof *sizes; s++) {
                p.kernel = kernels[i];
                run_checked(&p, firsts[f], sizes[s]);
                double error = worst_error(&p, firsts[f], sizes[s]);
                if (!(error <= TOLERANCE))
                    FAIL("kernel %d, first %d, n %d: relative error %.3g", i, firsts[f], sizes[s], error);
            }
    prompt_free(&p);
}

#define PAIR(D, G)                                                                                                             \
    static void dim##D##_group##G(void) {                                                                                      \
        check_pair(D, G);                                                                                                      \
    }
#define GROUPS(D) PAIR(D, 1) PAIR(D, 2) PAIR(D, 3) PAIR(D, 4) PAIR(D, 5) PAIR(D, 6) PAIR(D, 7) PAIR(D, 8)
GROUPS(64)
GROUPS(80)
GROUPS(96)
GROUPS(128)

typedef void (*check_fn)(prompt *p);
static void on_every_kernel(check_fn check, int group, double query_scale) {
    static const int dims[] = {64, 80, 96, 128};
    for (int d = 0; d < 4; d++) {
        prompt p = prompt_new(NULL, dims[d], group, query_scale);
        for (int i = 0; i < n_kernels(); i++) {
            p.kernel = kernels[i];
            check(&p);
        }
        prompt_free(&p);
    }
}

// Scores of up to some hundreds: one or two keys have all the mass, and the running maximum grows in large steps. A score s (in
// powers of 2) is off by a few times s 2^-24, which is far below the rounding to bf16.
static void check_large_scores(prompt *p) {
    run_checked(p, 300, MAX_TOKENS);
    double error = worst_error(p, 300, MAX_TOKENS);
    if (!(error <= TOLERANCE)) FAIL("head_dim %d: relative error %.3g", p->geom.head_dim, error);
}
static void large_scores(void) {
    on_every_kernel(check_large_scores, 2, 100);
}

// Compares a whole prompt with chunks that begin at any place in a tile. Rows after a chunk do not exist yet when the chunk
// runs.
static void check_chunks(prompt *p) {
    static const int chunks[] = {1, 127, 128, 300, 444, 64, 7, 1000, 513};
    size_t row = (size_t)p->geom.n_heads * p->geom.head_dim;
    int n_tokens = 0, first = 0;
    for (size_t c = 0; c < sizeof chunks / sizeof *chunks; c++) n_tokens += chunks[c];
    run_checked(p, 0, n_tokens);
    bf16 *whole = malloc(n_tokens * row * sizeof *whole);
    memcpy(whole, p->out + GUARD, n_tokens * row * sizeof *whole);
    for (size_t c = 0; c < sizeof chunks / sizeof *chunks; first += chunks[c++]) {
        run_checked(p, first, chunks[c]);
        if (memcmp(whole + first * row, p->out + GUARD, chunks[c] * row * sizeof *whole))
            FAIL("head_dim %d: the chunk of %d at %d differs from the whole", p->geom.head_dim, chunks[c], first);
    }
    free(whole);
}
static void chunks_equal_bits(void) {
    on_every_kernel(check_chunks, 4, 1);
}
static void chunks_equal_bits_large_scores(void) {
    on_every_kernel(check_chunks, 4, 20);
}

static void check_repeats(prompt *p) {
    size_t size = out_size(p, MAX_TOKENS);
    run_checked(p, 5000, MAX_TOKENS);
    bf16 *again = malloc(size);
    for (int i = 0; i < 20; i++) {
        if (cudaMemset(p->d_out, 0xFF, size)) FAIL("cudaMemset");
        run(p, 5000, MAX_TOKENS, p->d_out + GUARD);
        gpu_read(again, p->d_out, size);
        if (memcmp(p->out, again, size)) FAIL("head_dim %d: run %d differs from the first", p->geom.head_dim, i + 2);
    }
    free(again);
}
static void repeats_equal_bits(void) {
    on_every_kernel(check_repeats, 4, 1);
}

// The bf16 copy of the first rows of a sequence, in a cache of fp8 or int8: every number is q * scale, rounded to bf16.
static void check_widened(sl_format f, int dim, int n_rows, int with_v) {
    static const int32_t ids[] = {5, 0, 3, 4};
    enum { PAGES = 6 };
    uint64_t seed = test_seed + dim + n_rows;
    int n_pages = sl_kv_pages_of(n_rows);
    size_t size = PAGES * N_KV_HEADS * sl_kv_block_bytes(f, dim), page = (size_t)N_KV_HEADS * SL_PAGE * dim;
    char *kv[2] = {malloc(size), malloc(size)};
    bf16 *out[2] = {gpu_new(PAGES * page * sizeof(bf16)), gpu_new(PAGES * page * sizeof(bf16))};
    bf16 *got = malloc(PAGES * page * sizeof *got);
    for (int i = 0; i < 2; i++) {
        memset(kv[i], 0xFF, size);
        for (int j = 0; j < n_rows * N_KV_HEADS; j++) {
            float x[128];
            int row = j / N_KV_HEADS;
            for (int d = 0; d < dim; d++) x[d] = (float)ldexp(test_normal(&seed), row % 60 - 30);
            if (row == 3) x[7] = NAN;
            sl_kv_store(kv[i], f, dim, (size_t)ids[row / SL_PAGE] * N_KV_HEADS + j % N_KV_HEADS, row % SL_PAGE, x, 0);
        }
    }
    sl_cuda_widen_rows(&(sl_attn_cuda_widen_args){.format = f,
                                                  .n_rows = n_rows,
                                                  .n_kv_heads = N_KV_HEADS,
                                                  .head_dim = dim,
                                                  .k = gpu_copy(kv[0], size),
                                                  .v = gpu_copy(kv[1], size),
                                                  .pages = gpu_copy(ids, sizeof ids),
                                                  .to_k = out[0],
                                                  .to_v = with_v ? out[1] : NULL});
    for (int i = 0; i < 2; i++) {
        gpu_read(got, out[i], PAGES * page * sizeof *got);
        for (int row = 0; row < n_rows && (i == 0 || with_v); row++)
            for (int h = 0; h < N_KV_HEADS; h++) {
                sl_kv_run run = sl_kv_run_of(kv[i], f, dim, (size_t)ids[row / SL_PAGE] * N_KV_HEADS + h);
                const bf16 *at = got + (((size_t)row / SL_PAGE * N_KV_HEADS + h) * SL_PAGE + row % SL_PAGE) * dim;
                for (int d = 0; d < dim; d++) {
                    float want = sl_kv_number(sl_kv_row_at(run, dim, row % SL_PAGE), f, d);
                    if (isnan(want))
                        CHECK(isnan(sl_bf16_to_f32(at[d])));
                    else
                        CHECK_INT(at[d], sl_f32_to_bf16(want));
                }
            }
        for (size_t j = i == 0 || with_v ? n_pages * page : 0; j < PAGES * page; j++) CHECK_INT(got[j], 0xFFFF);
    }
    free(kv[0]), free(kv[1]), free(got);
}

static void widen_rows(void) {
    static const int dims[] = {64, 80, 96, 128}, n_rows[] = {1, 256, 257, 1000};
    for (int i = 0; i < 4; i++)
        for (int j = 0; j < 4; j++) check_widened((i + j) % 2 ? SL_INT8 : SL_FP8, dims[i], n_rows[j], j % 3 > 0);
}

// The launcher gives the bits of the kernel that it must choose. The two kernels have tiles of 128 and of 64 keys, so their
// bits differ.
static void chosen_kernel(void) {
    prompt p =
        prompt_new(sl_cuda_dense_prefill_wgmma_runs() ? sl_cuda_dense_prefill_wgmma : sl_cuda_dense_prefill_mma, 128, 4, 1);
    size_t size = out_size(&p, MAX_TOKENS);
    bf16 *want = malloc(size);
    run_checked(&p, 300, MAX_TOKENS);
    memcpy(want, p.out, size);
    p.kernel = sl_cuda_dense_prefill;
    run_checked(&p, 300, MAX_TOKENS);
    CHECK(!memcmp(p.out, want, size));
    free(want);
    prompt_free(&p);
}

#endif

#define PAIR_CASE(D, G) GPU_CASE("dim" #D "_group" #G, dim##D##_group##G)
#define GROUP_CASES(D)                                                                                                         \
    PAIR_CASE(D, 1), PAIR_CASE(D, 2), PAIR_CASE(D, 3), PAIR_CASE(D, 4), PAIR_CASE(D, 5), PAIR_CASE(D, 6), PAIR_CASE(D, 7),     \
        PAIR_CASE(D, 8)

static const test_case cases[] = {
    GROUP_CASES(64),
    GROUP_CASES(80),
    GROUP_CASES(96),
    GROUP_CASES(128),
    GPU_CASE("large_scores", large_scores),
    GPU_CASE("chunks_equal_bits", chunks_equal_bits),
    GPU_CASE("chunks_equal_bits_large_scores", chunks_equal_bits_large_scores),
    GPU_CASE("repeats_equal_bits", repeats_equal_bits),
    GPU_CASE("chosen_kernel", chosen_kernel),
    GPU_CASE("widen_rows", widen_rows),
    {0},
};
const test_suite suite_cuda_prefill = {"cuda_prefill", cases};
