// tests/attention/test_kv_formats.c - attention over a KV cache in fp8 and int8.
//
// A row of int8 or fp8 whose scale is a power of two stands for numbers that bf16 has too. So a cache of such rows and a bf16
// cache of the same numbers must give every method equal bits: what other suites show of a method on bf16 rows then holds for
// the other formats. With any scale, dense attention is compared with double precision over the numbers of the rows.
#include "attention/stages/stages.h"
#include "backend/backend.h"
#include "tests/support/reference.h"
#include "tests/support/threads.h"
#include "tests/test.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { HEADS = 4, KV_HEADS = 2, DIM = 80, SEQS = 4 };
static const int lengths[SEQS] = {1, 300, 1025, 4700}; // 4700: a span of 16 pages
static const sl_kv_formats formats[] = {{SL_INT8, SL_INT8}, {SL_FP8, SL_FP8}, {SL_INT8, SL_BF16}, {SL_BF16, SL_FP8}};
enum { N_FORMATS = sizeof formats / sizeof *formats };

static sl_error err;

static ref_cache new_cache(uint64_t seed) {
    return ref_cache_new(HEADS, KV_HEADS, DIM, SEQS, lengths, 2, seed);
}

// Rounds a bf16 row to numbers of the format with a scale of 1/32 (int8) or 1/128 (fp8). Its largest number gives this scale.
static void to_grid(bf16 *row, sl_format f, int j) {
    for (int d = 0; d < DIM && f != SL_BF16; d++) {
        float x = sl_bf16_to_f32(row[d]);
        x = f == SL_INT8 ? fminf(fmaxf(rintf(x * 32), -127), 127) / 32 : sl_fp8_to_f32(sl_f32_to_fp8(x * 128)) / 128;
        if (d == j % DIM) x = (j % 2 ? -1.0f : 1.0f) * (f == SL_INT8 ? 127 / 32.0f : 448 / 128.0f);
        row[d] = sl_f32_to_bf16(x);
        CHECK(sl_bf16_to_f32(row[d]) == x);
    }
}

static void store(sl_kv_rows to, sl_kv_formats f, size_t block, int row, const bf16 *k, const bf16 *v) {
    float x[2][DIM];
    for (int d = 0; d < DIM; d++) x[0][d] = sl_bf16_to_f32(k[d]), x[1][d] = sl_bf16_to_f32(v[d]);
    sl_kv_store(to.k, f.k, DIM, block, row, x[0], 0);
    sl_kv_store(to.v, f.v, DIM, block, row, x[1], 0);
}

// The same pages and sequences in other formats. The rows of *c are stored as they are.
static ref_cache twin_of(const ref_cache *c, sl_kv_formats f, uint64_t seed) {
    ref_cache t = new_cache(seed); // the same page tables, because the seed is the same
    sl_kv_pool pool;
    CHECK_OK(sl_kv_pool_init_formats(&pool, sl_cpu_memory(), 1, KV_HEADS, DIM, t.pool.n_pages, f, &err), err);
    memcpy(pool.refs, t.pool.refs, (size_t)pool.n_pages * sizeof *pool.refs);
    memcpy(pool.versions, t.pool.versions, (size_t)pool.n_pages * sizeof *pool.versions);
    memcpy(pool.free, t.pool.free, (size_t)pool.n_pages * sizeof *pool.free);
    pool.n_free = t.pool.n_free;
    sl_kv_pool_free(&t.pool);
    t.pool = pool;
    for (int s = 0; s < SEQS; s++) {
        CHECK(!memcmp(c->seqs[s].pages, t.seqs[s].pages, (size_t)t.seqs[s].n_pages * sizeof *t.seqs[s].pages));
        for (int j = 0; j < lengths[s]; j++)
            for (int h = 0; h < KV_HEADS; h++)
                store(sl_kv_layer(&t.pool, 0), f, (size_t)t.seqs[s].pages[j / SL_PAGE] * KV_HEADS + h, j % SL_PAGE,
                      ref_k_row(c, s, h, j), ref_v_row(c, s, h, j));
        t.queries[s].kv = sl_kv_view_of(&t.pool, &t.seqs[s], 0, lengths[s]);
    }
    return t;
}

static ref_cache grid_cache(sl_kv_formats f, uint64_t seed) {
    ref_cache c = new_cache(seed);
    for (int s = 0; s < SEQS; s++)
        for (int j = 0; j < lengths[s]; j++)
            for (int h = 0; h < KV_HEADS; h++)
                to_grid((bf16 *)ref_k_row(&c, s, h, j), f.k, j), to_grid((bf16 *)ref_v_row(&c, s, h, j), f.v, j + h);
    return c;
}

static uint64_t row_bytes(sl_format f) { // with a scale of 4 bytes
    return f == SL_BF16 ? 2 * DIM : DIM + 4;
}

// The draws of both caches are the same, so their reports differ in bytes only.
static void check_reports(const char *attn, sl_kv_formats f, const ref_cache *c, const ref_cache *t) {
    for (int i = 0; i < SEQS * HEADS; i++) {
        sl_attn_report a = c->reports[i], b = t->reports[i];
        uint64_t n = (uint64_t)lengths[i / HEADS];
        CHECK(b.dense_bytes == n * (row_bytes(f.k) + row_bytes(f.v)) && a.dense_bytes == n * 4 * DIM);
        CHECK(b.bytes <= a.bytes && a.bytes - b.bytes <= 2 * n * 2 * DIM);
        if (!strcmp(attn, "dense")) CHECK(b.bytes == b.dense_bytes);
        if (!strcmp(attn, "santa-prop")) CHECK(b.bytes == n * row_bytes(f.k) + b.v_distinct * row_bytes(f.v));
        a.bytes = b.bytes, a.dense_bytes = b.dense_bytes;
        if (memcmp(&a, &b, sizeof a)) FAIL("%s: the report of item %d differs", attn, i);
    }
}

static void check_method(const char *attn, sl_kv_formats f, ref_cache *c, ref_cache *t) {
    const size_t n = (size_t)SEQS * HEADS * DIM;
    float *alone = malloc(n * sizeof *alone);
    ref_decode(c, attn, 0, SEQS, 7, 0);
    test_threads(3);
    ref_decode(t, attn, 0, SEQS, 7, 0);
    test_threads(1);
    for (size_t i = 0; i < n; i++)
        if (memcmp(&c->out[i], &t->out[i], sizeof *c->out))
            FAIL("%s, K %s, V %s: element %zu is %.9g, expected %.9g", attn, sl_formats[f.k].name, sl_formats[f.v].name, i,
                 (double)t->out[i], (double)c->out[i]);
    check_reports(attn, f, c, t);
    memcpy(alone, t->out, n * sizeof *alone);
    for (int s = 0; s < SEQS; s++) ref_decode(t, attn, s, 1, 7, 0);
    CHECK(!memcmp(alone, t->out, n * sizeof *alone));
    free(alone);
}

static void equal_bits(void) {
    static const char *const more[] = {"bernoulli-group:B=8+santa-prop:S=64", "santa-is:proposal=int8:epsilon=0.3",
                                       "santa-pps:S=16:budget=carried", "quest:tokens=64"};
    for (int i = 0; i < N_FORMATS; i++) {
        ref_cache c = grid_cache(formats[i], test_seed), t = twin_of(&c, formats[i], test_seed);
        for (int m = 0; sl_attn_methods[m]; m++)
            if (sl_attn_methods[m]->cpu->decode) check_method(sl_attn_methods[m]->name, formats[i], &c, &t);
        for (size_t m = 0; m < sizeof more / sizeof *more; m++) check_method(more[m], formats[i], &c, &t);
        ref_cache_free(&c), ref_cache_free(&t);
    }
}

// ---- prefill ----

static void prefill(ref_cache *c, const float *q, float *out, int from, int n, int chunk) {
    const sl_attn_method *dense = sl_attn_find("dense");
    sl_attn_spec spec = {.method = dense};
    enum { S = 2 };
    CHECK_OK(sl_workspace_reserve(&c->ws, dense->cpu->workspace(&c->geom, &spec, 1, chunk, from + n), &err), err);
    for (int i = 0; i < n; i += chunk) {
        int m = n - i < chunk ? n - i : chunk;
        dense->cpu->prefill(&(sl_attn_prefill_args){.geom = &c->geom,
                                                    .spec = &spec,
                                                    .n_tokens = m,
                                                    .q = q + (size_t)i * HEADS * DIM,
                                                    .out = out + (size_t)i * HEADS * DIM,
                                                    .kv = sl_kv_view_of(&c->pool, &c->seqs[S], 0, from + i + m),
                                                    .ws = &c->ws});
    }
}

static void equal_prefill(void) {
    enum { FROM = 250, N = 300, SIZE = N * HEADS * DIM };
    float *q = malloc(SIZE * sizeof *q), *want = malloc(SIZE * sizeof *want), *got = malloc(SIZE * sizeof *got);
    uint64_t seed = test_seed;
    for (int i = 0; i < SIZE; i++) q[i] = (float)test_normal(&seed);
    for (int i = 0; i < N_FORMATS; i++) {
        ref_cache c = grid_cache(formats[i], test_seed), t = twin_of(&c, formats[i], test_seed);
        prefill(&c, q, want, FROM, N, N);
        for (int chunk = 7; chunk <= N; chunk += 293) {
            prefill(&t, q, got, FROM, N, chunk);
            CHECK(!memcmp(want, got, SIZE * sizeof *got));
        }
        ref_cache_free(&c), ref_cache_free(&t);
    }
    free(q), free(want), free(got);
}

// ---- any scale ----

// Dense attention of one head over the numbers of the rows, in double precision.
static void attend(const ref_cache *t, int s, int head, double *mu) {
    const sl_kv_view *view = &t->queries[s].kv;
    const float *q = t->queries[s].q + (size_t)head * DIM;
    int h = head / (HEADS / KV_HEADS);
    double *p = malloc((size_t)lengths[s] * sizeof *p), most = -INFINITY, sum = 0;
    for (int j = 0; j < lengths[s]; j++) {
        double dot = 0;
        for (int d = 0; d < DIM; d++)
            dot += q[d] * ref_number(sl_kv_k_run(view, KV_HEADS, DIM, j / SL_PAGE, h), DIM, j % SL_PAGE, d);
        p[j] = dot / sqrt(DIM);
        most = fmax(most, p[j]);
    }
    for (int j = 0; j < lengths[s]; j++) sum += p[j] = exp(p[j] - most);
    for (int d = 0; d < DIM; d++) mu[d] = 0;
    for (int j = 0; j < lengths[s]; j++)
        for (int d = 0; d < DIM; d++)
            mu[d] += p[j] / sum * ref_number(sl_kv_v_run(view, KV_HEADS, DIM, j / SL_PAGE, h), DIM, j % SL_PAGE, d);
    free(p);
}

static void any_scale(void) {
    for (int i = 0; i < N_FORMATS; i++) {
        ref_cache c = new_cache(test_seed + 1), t = twin_of(&c, formats[i], test_seed + 1);
        ref_decode(&t, "dense", 0, SEQS, 7, 0);
        for (int s = 0; s < SEQS; s++)
            for (int head = 0; head < HEADS; head++) {
                double mu[DIM], relative;
                attend(&t, s, head, mu);
                relative = ref_relative(t.queries[s].out + (size_t)head * DIM, mu, DIM);
                if (!(relative < 1e-5)) FAIL("formats %d, sequence %d, head %d: relative error %.3g", i, s, head, relative);
            }
        ref_cache_free(&c), ref_cache_free(&t);
    }
}

// A row that is not finite makes the outputs of its heads not finite, as in a bf16 cache.
static void not_finite(void) {
    for (int i = 0; i < 2; i++) {
        ref_cache c = new_cache(test_seed);
        ((bf16 *)ref_k_row(&c, 1, 1, 40))[7] = i ? 0x7f80 : 0x7fc0; // infinity, NaN
        ref_cache t = twin_of(&c, formats[i], test_seed);
        ref_decode(&t, "dense", 0, SEQS, 7, 0);
        for (int n = 0; n < SEQS * HEADS * DIM; n++)
            CHECK(isfinite(t.out[n]) == (n / DIM != HEADS + 2 && n / DIM != HEADS + 3));
        ref_cache_free(&c), ref_cache_free(&t);
    }
}

static const test_case cases[] = {
    {"equal-bits", 0, equal_bits},
    {"equal-prefill", 0, equal_prefill},
    {"any-scale", 0, any_scale},
    {"not-finite", 0, not_finite},
    {0},
};
const test_suite suite_kv_formats = {"kv_formats", cases};
