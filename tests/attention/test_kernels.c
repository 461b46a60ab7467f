// tests/attention/test_kernels.c - the vector loops of attention on every instruction set of this machine, and dense attention,
// against double precision on awkward sizes.
#include "attention/cpu/cpu_kernels.h"
#include "attention/stages/stages.h"
#include "backend/backend.h"
#include "tests/support/reference.h"
#include "tests/support/threads.h"
#include "tests/test.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

static const char *const isas[] = {"avx512", "avx2", "portable"};
static const int dims[] = {16, 64, 80, 96, 128}, sizes[] = {1, 31, 32, 33, 255, 256}, groups[] = {1, 2, 3, 4, 7, 8};
enum { N_ISAS = 3, N_DIMS = 5, N_SIZES = 6, N_GROUPS = 6, GUARD = 64 };
static const float SENTINEL = 12345.5f;

typedef struct buffers {
    float *q, *score, *o, *e; // q [8][128], score [8][256 + GUARD], o [8 * 128 + GUARD]
    bf16 *k;                  // [256][128]
    float *rows;              // [2][256][128] before they are stored
    char *blocks[2];          // of K and V
    sl_kv_run k_run, v_run;   // the rows as the cache stores them, in the format and dimension of the check
} buffers;

static buffers buffers_new(uint64_t seed) {
    buffers b = {.q = malloc(8 * 128 * 4),
                 .score = malloc((8 * 256 + GUARD) * 4),
                 .o = malloc((8 * 128 + GUARD) * 4),
                 .e = malloc(256 * 4),
                 .k = malloc(256 * 128 * 2),
                 .rows = malloc(2 * 256 * 128 * 4)};
    for (int i = 0; i < 2; i++) b.blocks[i] = malloc(sl_kv_block_bytes(SL_BF16, 128));
    for (int i = 0; i < 8 * 128; i++) b.q[i] = (float)test_normal(&seed);
    for (int i = 0; i < 256 * 128; i++) b.k[i] = sl_f32_to_bf16((float)test_normal(&seed));
    for (int i = 0; i < 2 * 256 * 128; i++) b.rows[i] = (float)test_normal(&seed);
    return b;
}

// Stores the rows of K and V.
static void store_rows(buffers *b, sl_format format, int dim) {
    for (int i = 0; i < 2; i++)
        for (int j = 0; j < 256; j++) sl_kv_store(b->blocks[i], format, dim, 0, j, b->rows + (i * 256 + j) * 128, 0);
    b->k_run = sl_kv_run_of(b->blocks[0], format, dim, 0);
    b->v_run = sl_kv_run_of(b->blocks[1], format, dim, 0);
}

static void buffers_free(buffers *b) {
    free(b->q), free(b->score), free(b->o), free(b->e), free(b->k), free(b->rows);
    free(b->blocks[0]), free(b->blocks[1]);
}

typedef void (*size_fn)(const sl_attn_kernels *k, buffers *b, int dim, int group, int n);

// The rows are stored in the first n_formats formats.
static void on_every_size(size_fn fn, int n_formats) {
    static const sl_format formats[] = {SL_BF16, SL_FP8, SL_INT8};
    sl_error err;
    CHECK_OK(sl_cpu_choose(&err), err);
    buffers b = buffers_new(test_seed);
    for (int i = 0; i < N_ISAS; i++) {
        const sl_attn_kernels *k = sl_attn_kernels_named(isas[i]);
        if (!k) continue; // not on this processor
        for (int d = 0; d < N_DIMS; d++)
            for (int f = 0; f < n_formats; f++) {
                store_rows(&b, formats[f], dims[d]);
                for (int g = 0; g < N_GROUPS; g++)
                    for (int s = 0; s < N_SIZES; s++) fn(k, &b, dims[d], groups[g], sizes[s]);
            }
    }
    buffers_free(&b);
}

// A sum of dim products in fp32, in lanes: the error is below (dim / lanes + log2 lanes + 2) 2^-24 times the sum of magnitudes.
// 64 2^-24 covers 128 dimensions in 4 lanes.
static void check_score(const sl_attn_kernels *k, buffers *b, int dim, int group, int n) {
    for (int i = 0; i < 8 * 256 + GUARD; i++) b->score[i] = SENTINEL;
    k->score(b->q, group, b->k_run, n, dim, 0.125f, b->score, 256);
    for (int g = 0; g < group; g++)
        for (int j = 0; j < n; j++) {
            double dot = 0, size = 0;
            for (int d = 0; d < dim; d++) {
                double x = b->q[g * dim + d] * ref_number(b->k_run, dim, j, d);
                dot += x, size += fabs(x);
            }
            CHECK_NEAR(b->score[g * 256 + j], 0.125 * dot, 64 * 0x1p-24 * 0.125 * size);
        }
    for (int i = group * 256; i < 8 * 256 + GUARD; i++) CHECK(b->score[i] == SENTINEL);
}
static void score(void) {
    on_every_size(check_score, 3);
}

// Some features of a page: all, none, the last, or two of five. The other features hold NaN. A head alone gives equal bits.
static void check_score_features(const sl_attn_kernels *k, buffers *b, int dim, int group, int n) {
    int32_t features[128];
    int n_features = 0;
    bf16 *kt = malloc((size_t)dim * 256 * sizeof *kt); // [dim][256]
    for (int d = 0; d < dim; d++) {
        int used = n == 256 || (n == 1 ? d == dim - 1 : n != 255 && (7 * d + n) % 5 < 2);
        if (used) features[n_features++] = d;
        for (int j = 0; j < 256; j++) kt[d * 256 + j] = used ? b->k[d * 256 + j] : 0x7fc0;
    }
    float alone[256];
    for (int i = 0; i < 8 * 256 + GUARD; i++) b->score[i] = SENTINEL;
    k->score_features(b->q, group, dim, features, n_features, kt, 0.125f, b->score, 256);
    for (int g = 0; g < group; g++) {
        for (int j = 0; j < 256; j++) {
            double dot = 0, size = 0;
            for (int i = 0; i < n_features; i++) {
                double x = (double)b->q[g * dim + features[i]] * sl_bf16_to_f32(kt[features[i] * 256 + j]);
                dot += x, size += fabs(x);
            }
            CHECK_NEAR(b->score[g * 256 + j], 0.125 * dot, n_features * 0x1p-24 * 0.125 * size);
        }
        k->score_features(b->q + g * dim, 1, dim, features, n_features, kt, 0.125f, alone, 256);
        CHECK(!memcmp(alone, b->score + g * 256, sizeof alone));
    }
    for (int i = group * 256; i < 8 * 256 + GUARD; i++) CHECK(b->score[i] == SENTINEL);
    free(kt);
}
static void score_features(void) {
    on_every_size(check_score_features, 1);
}

// Stored masses are bf16(2^(s - ref)), exact unless an error of 2e-7 in 2^x crosses a rounding boundary (bf16 steps are 2^-8
// apart: 1 in 10^4). Then they are the neighbouring bf16.
static void check_masses(const sl_attn_kernels *k, buffers *b, int dim, int group, int n) {
    bf16 w[256 + 32];
    int16_t ref[9];
    uint64_t mass[9];
    if (dim != 64 || group != 1) return;
    uint64_t seed = test_seed + n;
    for (int j = 0; j < 256; j++) b->score[j] = 20 * (float)test_normal(&seed);
    if (n >= 64)
        for (int j = 32; j < 64; j++) b->score[j] = -INFINITY; // a masked block
    memset(w, 0x7f, sizeof w);
    memset(ref, 0x7f, sizeof ref);
    k->masses(b->score, n, w, ref, mass);
    int blocks = (n + 31) / 32, off = 0;
    for (int i = 0; i < blocks; i++) {
        int end = (i + 1) * 32 < n ? (i + 1) * 32 : n;
        float most = -INFINITY;
        for (int j = i * 32; j < end; j++) most = fmaxf(most, b->score[j]);
        CHECK_INT(ref[i], most == -INFINITY ? SL_REF_EMPTY : (int)ceilf(most));
        uint64_t sum = 0;
        for (int j = i * 32; j < (i + 1) * 32; j++) {
            sum += (uint64_t)floor(sl_bf16_to_f32(w[j]) * 0x1p30);
            bf16 want = j < end && most > -INFINITY ? sl_f32_to_bf16((float)exp2((double)b->score[j] - ref[i])) : 0;
            if (want < 0x0080) want = 0; // below 2^-126
            off += w[j] != want;
            CHECK(abs((int)w[j] - (int)want) <= 1);
        }
        CHECK(mass[i] == sum);
    }
    CHECK(off <= 1 + n / 100);
    CHECK_INT(ref[blocks], 0x7f7f); // unchanged
    CHECK_INT(w[blocks * 32], 0x7f7f);
}
static void masses(void) {
    on_every_size(check_masses, 1);
    static const char *const isas[] = {"portable", "avx2", "avx512"};
    for (int i = 0; i < 3; i++) { // outside the range of ref, masses stay within [0, 1]
        const sl_attn_kernels *k = sl_attn_kernels_named(isas[i]);
        float score[48];
        bf16 w[64];
        int16_t ref[2];
        uint64_t mass[2];
        for (int j = 0; j < 48; j++) score[j] = j == 3 ? 1e6f : 40000;
        if (!k) continue;
        k->masses(score, 32, w, ref, mass);
        CHECK_INT(ref[0], INT16_MAX);
        for (int j = 0; j < 32; j++) CHECK(w[j] <= 0x3f80);
        CHECK(mass[0] <= 32ull << 30);
    }
}

// Two calls of online softmax over parts of the rows against one softmax over all rows, in double precision.
static void check_attend(const sl_attn_kernels *k, buffers *b, int dim, int group, int n) {
    float m[8], l[8];
    for (int i = 0; i < 8 * 128 + GUARD; i++) b->o[i] = i < group * dim ? 0 : SENTINEL;
    for (int g = 0; g < group; g++) m[g] = -INFINITY, l[g] = 0;
    for (int i = 0; i < 8 * 256; i++) b->score[i] = 3 * b->q[i % 1024];
    k->online_softmax(b->score, 256, group, b->v_run, n, dim, m, l, b->o);
    for (int i = 0; i < 8 * 256; i++) b->score[i] += i % 7; // larger scores: the first part is scaled down
    k->online_softmax(b->score, 256, group, b->v_run, n, dim, m, l, b->o);
    for (int g = 0; g < group; g++) {
        double sum = 0, o[128] = {0};
        for (int part = 0; part < 2; part++)
            for (int j = 0; j < n; j++) {
                double p = exp2((double)b->score[g * 256 + j] - (part ? 0 : (g * 256 + j) % 7));
                sum += p;
                for (int d = 0; d < dim; d++) o[d] += p * ref_number(b->v_run, dim, j, d);
            }
        // masses err by 2e-7 each, sums of n terms by at most n 2^-24, relative to sum p |v|, with |v| < 6
        for (int d = 0; d < dim; d++) CHECK_NEAR(b->o[g * dim + d] / l[g], o[d] / sum, 6 * (1e-6 + 2 * n * 0x1p-24));
    }
    for (int i = group * dim; i < 8 * 128 + GUARD; i++) CHECK(b->o[i] == SENTINEL);
}
static void attend(void) {
    on_every_size(check_attend, 3);
}

static void check_gather(const sl_attn_kernels *k, buffers *b, int dim, int group, int n) {
    sl_kv_row rows[256];
    if (group != 1) return;
    for (int i = 0; i < n; i++) rows[i] = sl_kv_row_at(b->v_run, dim, i * 37 % 256), b->e[i] = b->q[i];
    for (int i = 0; i < dim + GUARD; i++) b->o[i] = SENTINEL;
    k->gather(b->v_run.format, rows, b->e, n, dim, b->o);
    for (int d = 0; d < dim; d++) {
        double want = 0, size = 0;
        for (int i = 0; i < n; i++) {
            double x = b->e[i] * ref_number(b->v_run, dim, i * 37 % 256, d);
            want += x, size += fabs(x);
        }
        CHECK_NEAR(b->o[d], want, n * 0x1p-24 * size);
    }
    for (int i = dim; i < dim + GUARD; i++) CHECK(b->o[i] == SENTINEL);
}
static void gather(void) {
    on_every_size(check_gather, 3);
}

static void check_gather_adds(const sl_attn_kernels *k, buffers *b, int dim, int group, int n) {
    sl_kv_row rows[256];
    int32_t count[256];
    int most = 0;
    if (group != 1) return;
    for (int i = 0; i < n; i++) {
        rows[i] = sl_kv_row_at(b->v_run, dim, i * 37 % 256);
        most += count[i] = i == 1 ? 700 : i * 5 % 4;
    }
    for (int i = 0; i < dim + GUARD; i++) b->o[i] = SENTINEL;
    k->gather_adds(b->v_run.format, rows, count, n, dim, b->o);
    for (int d = 0; d < dim; d++) {
        double want = 0, size = 0;
        for (int i = 0; i < n; i++) {
            double x = count[i] * ref_number(b->v_run, dim, i * 37 % 256, d);
            want += x, size += fabs(x);
        }
        CHECK_NEAR(b->o[d], want, most * 0x1p-24 * size);
    }
    for (int i = dim; i < dim + GUARD; i++) CHECK(b->o[i] == SENTINEL);
}
static void gather_adds(void) {
    on_every_size(check_gather_adds, 3);
}

// One query against rows that lie anywhere, and rows widened: the same numbers as those of score and widen_transposed.
static void check_rows(const sl_attn_kernels *k, buffers *b, int dim, int group, int n) {
    sl_kv_row rows[256] = {{0}};
    float *wide = malloc((size_t)256 * dim * sizeof *wide);
    if (group == 1) {
        for (int i = 0; i < n; i++) rows[i] = sl_kv_row_at(b->k_run, dim, i * 91 % 256);
        k->score_rows(b->q, b->k_run.format, rows, n, dim, 0.125f, b->score);
        k->widen(b->k_run, n, dim, wide);
        for (int i = 0; i < n; i++) {
            double dot = 0, size = 0;
            for (int d = 0; d < dim; d++) {
                double x = b->q[d] * ref_number(b->k_run, dim, i * 91 % 256, d);
                dot += x, size += fabs(x);
                CHECK(wide[i * dim + d] == (float)ref_number(b->k_run, dim, i, d));
                CHECK(wide[i * dim + d] == sl_kv_number(sl_kv_row_at(b->k_run, dim, i), b->k_run.format, d));
            }
            CHECK_NEAR(b->score[i], 0.125 * dot, 64 * 0x1p-24 * 0.125 * size);
        }
    }
    free(wide);
}
static void rows(void) {
    on_every_size(check_rows, 3);
}

static void check_gemm(const sl_attn_kernels *k, buffers *b, int dim, int group, int n) { // [8 group][dim] x [dim][256]
    int m = 8 * group;
    if (n != 256) return;
    float *a = malloc(m * dim * 4), *x = malloc(dim * 256 * 4), *c = malloc((m * 256 + GUARD) * 4);
    uint64_t seed = test_seed;
    for (int i = 0; i < m * dim; i++) a[i] = (float)test_normal(&seed);
    k->widen_transposed(b->k_run, 200, dim, x);
    for (int i = 0; i < m * 256 + GUARD; i++) c[i] = i < m * 256 ? 1 : SENTINEL;
    k->gemm(a, dim, x, 256, m, 256, dim, 1, c, 256);
    for (int i = 0; i < m; i += 3)
        for (int j = 0; j < 256; j += 5) {
            double want = 1, size = 1;
            for (int d = 0; d < dim; d++) {
                double y = j < 200 ? a[i * dim + d] * ref_number(b->k_run, dim, j, d) : 0;
                want += y, size += fabs(y);
            }
            CHECK_NEAR(c[i * 256 + j], want, (dim + 1) * 0x1p-24 * size);
        }
    for (int i = m * 256; i < m * 256 + GUARD; i++) CHECK(c[i] == SENTINEL);
    free(a), free(x), free(c);
}
static void gemm(void) {
    on_every_size(check_gemm, 3);
}

// ---- dense attention ----

// fp32 arithmetic: masses err by about 1e-6 relative (scores of size 10 times 2^-24, exp2 2e-7).
static const double DENSE_RELATIVE = 1e-5;

static void dense_decode(void) {
    static const struct {
        int heads, kv_heads, dim;
    } g[] = {{1, 1, 64}, {3, 1, 80}, {8, 2, 128}, {16, 2, 96}, {4, 2, 16}, {9, 3, 64}};
    static const int n[] = {1, 255, 256, 257, 1023, 1025, 2500};
    double *p = malloc(2500 * sizeof *p), mu[128];
    for (int i = 0; i < 6; i++) {
        ref_cache c = ref_cache_new(g[i].heads, g[i].kv_heads, g[i].dim, 7, n, i, test_seed + i);
        ref_decode(&c, "dense", 0, 7, 0, 0);
        for (int s = 0; s < 7; s++)
            for (int head = 0; head < g[i].heads; head++) {
                size_t at = ((size_t)s * g[i].heads + head) * g[i].dim;
                ref_attention(&c, s, head, c.q + at, n[s], p, mu);
                double relative = ref_relative(c.out + at, mu, g[i].dim);
                if (!(relative < DENSE_RELATIVE))
                    FAIL("geometry %d, n %d, head %d: relative error %.3g", i, n[s], head, relative);
            }
        ref_cache_free(&c);
    }
    free(p);
}

static void run_prefill(ref_cache *c, const float *q, float *out, int from, int n, int chunk) {
    const sl_attn_method *dense = sl_attn_find("dense");
    sl_error err;
    size_t row = (size_t)c->geom.n_heads * c->geom.head_dim;
    sl_attn_spec spec = {.method = dense};
    CHECK_OK(sl_workspace_reserve(&c->ws, dense->cpu->workspace(&c->geom, &spec, 1, chunk, from + n), &err), err);
    for (int i = 0; i < n; i += chunk) {
        int m = n - i < chunk ? n - i : chunk;
        sl_attn_prefill_args args = {.geom = &c->geom,
                                     .spec = &spec,
                                     .n_tokens = m,
                                     .q = q + i * row,
                                     .out = out + i * row,
                                     .kv = sl_kv_view_of(&c->pool, &c->seqs[0], 0, from + i + m),
                                     .ws = &c->ws};
        dense->cpu->prefill(&args);
    }
}

static void dense_prefill(void) { // queries at an offset, in chunks, with 1 and all threads: right, with equal bits
    static const struct {
        int heads, kv_heads, dim, from, n;
    } g[] = {{8, 2, 128, 0, 300},   {3, 1, 80, 250, 70}, {4, 4, 64, 511, 2},
             {16, 2, 16, 700, 600}, {1, 1, 96, 0, 1},    {9, 3, 64, 200, 130}};
    for (int i = 0; i < 6; i++) {
        int total = g[i].from + g[i].n;
        ref_cache c = ref_cache_new(g[i].heads, g[i].kv_heads, g[i].dim, 1, &total, 1, test_seed + i);
        size_t row = (size_t)g[i].heads * g[i].dim, size = g[i].n * row;
        float *q = malloc(size * 4), *out = malloc(size * 4), *again = malloc(size * 4);
        double *p = malloc(total * sizeof *p), mu[128];
        uint64_t seed = test_seed + 50 + i;
        for (size_t j = 0; j < size; j++) q[j] = 2 * (float)test_normal(&seed);
        run_prefill(&c, q, out, g[i].from, g[i].n, g[i].n);
        for (int t = 0; t < g[i].n; t += t < 5 || t > g[i].n - 5 ? 1 : 13)
            for (int head = 0; head < g[i].heads; head++) {
                const float *at = q + t * row + (size_t)head * g[i].dim;
                ref_attention(&c, 0, head, at, g[i].from + t + 1, p, mu);
                double relative = ref_relative(out + (at - q), mu, g[i].dim);
                if (!(relative < DENSE_RELATIVE))
                    FAIL("geometry %d, token %d, head %d: relative error %.3g", i, t, head, relative);
            }
        static const int chunks[] = {1, 7, 64, 256};
        for (int k = 0; k < 4; k++) {
            test_threads(k % 2 ? 3 : 1);
            run_prefill(&c, q, again, g[i].from, g[i].n, chunks[k]);
            if (memcmp(out, again, size * 4)) FAIL("geometry %d: chunks of %d give other bits", i, chunks[k]);
        }
        test_threads(1);
        free(q), free(out), free(again), free(p);
        ref_cache_free(&c);
    }
}

static void count_matches(void) {
    enum { TABLES = 512, GROUP = 3 };
    static uint16_t sig[TABLES * 256], query[TABLES * 256], hits[256 + GUARD];
    uint64_t seed = test_seed;
    sl_error err;
    CHECK_OK(sl_cpu_choose(&err), err);
    for (int i = 0; i < TABLES * 256; i++) // all 16 bits are used
        sig[i] = (uint16_t)(test_uniform(&seed) * 3) * 0x7fff, query[i] = (uint16_t)(test_uniform(&seed) * 3) * 0x7fff;
    for (int i = 0; i < N_ISAS; i++) {
        const sl_attn_kernels *k = sl_attn_kernels_named(isas[i]);
        for (int n = 0; k && n <= TABLES; n += n < 3 ? 1 : 509)
            for (int g = 0; g < GROUP; g++) {
                memset(hits, 0xab, sizeof hits);
                k->count_matches(sig, query + g, n, hits);
                for (int j = 0; j < 256; j++) {
                    int want = 0;
                    for (int t = 0; t < n; t++) want += sig[t * 256 + j] == query[t * 256 + g];
                    CHECK_INT(hits[j], want);
                }
                for (int j = 256; j < 256 + GUARD; j++) CHECK_INT(hits[j], 0xabab);
            }
    }
}

static void at_least(void) {
    static const char *const isas[] = {"portable", "avx2", "avx512"};
    uint64_t seed = test_seed;
    for (int i = 0; i < 3; i++) {
        const sl_attn_kernels *k = sl_attn_kernels_named(isas[i]);
        for (int round = 0; k && round < 200; round++) {
            bf16 w[SL_BLOCK], least = round ? (bf16)(test_uniform(&seed) * 0x3f81) : 0x3f80;
            uint32_t want = 0;
            for (int j = 0; j < SL_BLOCK; j++) {
                w[j] = j % 5 ? (bf16)(test_uniform(&seed) * 0x3f81) : least;
                want |= (uint32_t)(w[j] >= least) << j;
            }
            CHECK_INT(k->at_least(w, least), want);
        }
    }
}

static const test_case cases[] = {
    {"score", 0, score},
    {"score-features", 0, score_features},
    {"masses", 0, masses},
    {"at-least", 0, at_least},
    {"attend", 0, attend},
    {"gather", 0, gather},
    {"gather by additions", 0, gather_adds},
    {"rows", 0, rows},
    {"count-matches", 0, count_matches},
    {"gemm", 0, gemm},
    {"dense-decode", 0, dense_decode},
    {"dense-prefill", 0, dense_prefill},
    {0},
};
const test_suite suite_kernels = {"kernels", cases};
