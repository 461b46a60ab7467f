// tests/support/reference.c - see reference.h. Plain loops over rows in double precision. They share no code with attention/.
#include "tests/support/reference.h"
#include "backend/backend.h"
#include "tests/support/bucket_plan.h"
#include "tests/test.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

static void shuffle_free_pages(sl_kv_pool *pool, uint64_t *rng) {
    for (int i = pool->n_free - 1; i > 0; i--) {
        int j = (int)(test_uniform(rng) * (i + 1));
        int32_t t = pool->free[i];
        pool->free[i] = pool->free[j], pool->free[j] = t;
    }
}

ref_cache ref_cache_new(int n_heads, int n_kv_heads, int head_dim, int n_seqs, const int *lengths, double query_scale,
                        uint64_t seed) {
    sl_error err;
    CHECK_OK(sl_cpu_choose(&err), err);
    ref_cache c = {.geom = {1, n_heads, n_kv_heads, head_dim}, .n_seqs = n_seqs};
    int n_pages = 0;
    for (int s = 0; s < n_seqs; s++) n_pages += (lengths[s] + SL_PAGE - 1) / SL_PAGE;
    CHECK_OK(sl_kv_pool_init(&c.pool, sl_cpu_memory(), 1, n_kv_heads, head_dim, n_pages + 3, &err), err);
    c.buckets = test_buckets_new(1, n_kv_heads, head_dim, REF_BUCKETS, REF_WIDTH, 0, seed + 99);
    shuffle_free_pages(&c.pool, &seed);
    size_t n_pool = (size_t)c.pool.n_pages * n_kv_heads * SL_PAGE * head_dim;
    for (size_t i = 0; i < n_pool; i++) c.pool.k[i] = c.pool.v[i] = 0x7fc0; // NaN
    c.seqs = calloc(n_seqs, sizeof *c.seqs);
    c.queries = calloc(n_seqs, sizeof *c.queries);
    size_t row = (size_t)n_heads * head_dim;
    c.q = malloc(n_seqs * row * sizeof *c.q);
    c.out = malloc(n_seqs * row * sizeof *c.out);
    c.reports = calloc((size_t)n_seqs * n_heads, sizeof *c.reports);
    for (int s = 0; s < n_seqs; s++) {
        CHECK_OK(sl_kv_reserve(&c.pool, &c.seqs[s], lengths[s], &err), err);
        c.seqs[s].n_tokens = lengths[s];
        for (int h = 0; h < n_kv_heads; h++)
            for (int j = 0; j < lengths[s]; j++)
                for (int d = 0; d < head_dim; d++) {
                    ((bf16 *)ref_k_row(&c, s, h, j))[d] = sl_f32_to_bf16((float)test_normal(&seed));
                    ((bf16 *)ref_v_row(&c, s, h, j))[d] = sl_f32_to_bf16((float)test_normal(&seed));
                }
        c.queries[s] = (sl_attn_query){.q = c.q + s * row,
                                       .out = c.out + s * row,
                                       .sequence = 1000u + s,
                                       .position = (uint32_t)lengths[s] - 1,
                                       .kv = sl_kv_view_of(&c.pool, &c.seqs[s], 0, lengths[s])};
    }
    for (size_t i = 0; i < n_seqs * row; i++) c.q[i] = (float)(query_scale * test_normal(&seed));
    return c;
}

void ref_cache_free(ref_cache *c) {
    for (int s = 0; s < c->n_seqs; s++) sl_kv_seq_free(&c->pool, &c->seqs[s]);
    sl_kv_pool_free(&c->pool);
    sl_workspace_free(&c->ws);
    test_buckets_free(&c->buckets);
    free(c->seqs), free(c->queries), free(c->q), free(c->out), free(c->reports);
}

sl_attn_stats ref_decode(ref_cache *c, const char *attn, int first, int n, uint32_t seed, int layer) {
    sl_error err;
    sl_attn_spec spec;
    CHECK_OK(sl_attn_parse(attn, &spec, &err), err);
    return ref_decode_spec(c, &spec, first, n, seed, layer);
}

void ref_build_extras(ref_cache *c, sl_kv_need need, int first, int n) {
    sl_error err;
    c->pool.buckets = &c->buckets; // the caller may have copied the cache
    CHECK_OK(sl_kv_keep(&c->pool, need, &err), err);
    for (int s = first; s < first + n; s++) {
        sl_kv_seq before = c->seqs[s];
        before.n_tokens--;
        sl_kv_build(&c->pool, &before, 0, need);
    }
}

sl_attn_stats ref_decode_spec(ref_cache *c, const sl_attn_spec *spec, int first, int n, uint32_t seed, int layer) {
    sl_error err;
    sl_attn_stats stats = {0};
    int longest = 0;
    for (int s = first; s < first + n; s++) longest = c->seqs[s].n_tokens > longest ? c->seqs[s].n_tokens : longest;
    for (int s = 0; s < c->n_seqs; s++) c->queries[s].kv.pool = &c->pool; // the caller may have copied the cache
    c->geom.buckets = c->pool.buckets = &c->buckets;
    sl_kv_need need[SL_MAX_NEEDS];
    int n_needs = spec->method->cpu->needs ? spec->method->cpu->needs(spec, need) : 0;
    for (int i = 0; i < n_needs; i++) ref_build_extras(c, need[i], first, n);
    CHECK_OK(sl_workspace_reserve(&c->ws, spec->method->cpu->workspace(&c->geom, spec, n, 1, longest), &err), err);
    sl_attn_decode_args args = {.geom = &c->geom,
                                .spec = spec,
                                .layer = layer,
                                .seed = seed,
                                .exact_below = c->exact_below,
                                .n_seqs = n,
                                .seqs = c->queries + first,
                                .ws = &c->ws,
                                .stats = &stats,
                                .reports = c->reports};
    // A query without a state gets an empty one: its sequence has no step before.
    size_t size = spec->method->cpu->state ? spec->method->cpu->state(&c->geom, spec) : 0;
    char *states = calloc(n, size + 1);
    int is_first[n];
    for (int i = 0; i < n; i++) {
        sl_attn_query *q = &c->queries[first + i];
        is_first[i] = size > 0 && !q->state;
        if (is_first[i]) q->state = states + i * size;
    }
    spec->method->cpu->decode(&args);
    for (int i = 0; i < n; i++)
        if (is_first[i]) c->queries[first + i].state = NULL;
    free(states);
    return stats;
}

static size_t block_of(const ref_cache *c, int s, int h, int j) {
    return (size_t)c->seqs[s].pages[j / 256] * c->geom.n_kv_heads + h;
}
static size_t row_at(const ref_cache *c, int s, int h, int j) {
    CHECK(c->pool.formats.k == SL_BF16 && c->pool.formats.v == SL_BF16);
    return (block_of(c, s, h, j) * 256 + j % 256) * c->geom.head_dim;
}
const bf16 *ref_k_row(const ref_cache *c, int s, int h, int j) {
    return c->pool.k + row_at(c, s, h, j);
}
const bf16 *ref_v_row(const ref_cache *c, int s, int h, int j) {
    return c->pool.v + row_at(c, s, h, j);
}

static void store_row(void *to, sl_format f, int dim, size_t block, int row, const bf16 *from) {
    float x[256];
    for (int d = 0; d < dim; d++) x[d] = sl_bf16_to_f32(from[d]);
    sl_kv_store(to, f, dim, block, row, x, 0);
}

void ref_store_as(ref_cache *c, sl_format f) {
    sl_error err;
    int dim = c->geom.head_dim, n_heads = c->geom.n_kv_heads, n_pages = c->pool.n_pages;
    sl_kv_pool pool;
    CHECK_OK(sl_kv_pool_init_formats(&pool, sl_cpu_memory(), 1, n_heads, dim, n_pages, (sl_kv_formats){f, f}, &err), err);
    memset(pool.k, 0xFF, pool.n_bytes / 2), memset(pool.v, 0xFF, pool.n_bytes / 2);
    for (int s = 0; s < c->n_seqs; s++)
        for (int h = 0; h < n_heads; h++)
            for (int j = 0; j < c->seqs[s].n_tokens; j++) {
                store_row(pool.k, f, dim, block_of(c, s, h, j), j % 256, ref_k_row(c, s, h, j));
                store_row(pool.v, f, dim, block_of(c, s, h, j), j % 256, ref_v_row(c, s, h, j));
            }
    memcpy(pool.refs, c->pool.refs, n_pages * sizeof *pool.refs);
    memcpy(pool.versions, c->pool.versions, n_pages * sizeof *pool.versions);
    memcpy(pool.free, c->pool.free, n_pages * sizeof *pool.free);
    pool.n_free = c->pool.n_free, pool.seed = c->pool.seed;
    sl_kv_pool_free(&c->pool);
    c->pool = pool;
    for (int s = 0; s < c->n_seqs; s++) c->queries[s].kv = sl_kv_view_of(&c->pool, &c->seqs[s], 0, c->seqs[s].n_tokens);
}

static void numbers_of(sl_kv_run run, int dim, int j, double *to) {
    for (int d = 0; d < dim; d++) to[d] = ref_number(run, dim, j, d);
}
void ref_key(const ref_cache *c, int s, int h, int j, double *to) {
    const sl_kv_pool *p = &c->pool;
    numbers_of(sl_kv_run_of(p->k, p->formats.k, p->head_dim, block_of(c, s, h, j)), p->head_dim, j % 256, to);
}
void ref_value(const ref_cache *c, int s, int h, int j, double *to) {
    const sl_kv_pool *p = &c->pool;
    numbers_of(sl_kv_run_of(p->v, p->formats.v, p->head_dim, block_of(c, s, h, j)), p->head_dim, j % 256, to);
}
sl_kv_run ref_value_run(const ref_cache *c, int s, int h, int j) {
    const sl_kv_pool *p = &c->pool;
    return sl_kv_run_from(sl_kv_run_of(p->v, p->formats.v, p->head_dim, block_of(c, s, h, j)), p->head_dim, j % 256);
}

void ref_write_rows(ref_cache *c, int s, int from, int to, uint64_t seed) {
    for (int j = from; j < to; j++)
        for (int h = 0; h < c->geom.n_kv_heads; h++)
            for (int d = 0; d < c->geom.head_dim; d++) {
                uint64_t at = seed + (((uint64_t)j * 8 + h) * 256 + d) * 2;
                ((bf16 *)ref_k_row(c, s, h, j))[d] = sl_f32_to_bf16((float)test_normal(&at));
                ((bf16 *)ref_v_row(c, s, h, j))[d] = sl_f32_to_bf16((float)test_normal(&at));
            }
}

void ref_set_length(ref_cache *c, int s, int n) {
    sl_error err;
    CHECK_OK(sl_kv_reserve(&c->pool, &c->seqs[s], n, &err), err);
    c->seqs[s].n_tokens = n;
    c->queries[s].kv = sl_kv_view_of(&c->pool, &c->seqs[s], 0, n);
}

void ref_attention(const ref_cache *c, int s, int head, const float *q, int n, double *p, double *mu) {
    int dim = c->geom.head_dim, h = head / (c->geom.n_heads / c->geom.n_kv_heads);
    double most = -INFINITY, sum = 0, row[256];
    for (int j = 0; j < n; j++) {
        double dot = 0;
        ref_key(c, s, h, j, row);
        for (int d = 0; d < dim; d++) dot += q[d] * row[d];
        p[j] = dot / sqrt(dim);
        if (p[j] > most) most = p[j];
    }
    for (int j = 0; j < n; j++) sum += p[j] = exp(p[j] - most);
    memset(mu, 0, dim * sizeof *mu);
    for (int j = 0; j < n; j++) {
        ref_value(c, s, h, j, row);
        p[j] /= sum;
        for (int d = 0; d < dim; d++) mu[d] += p[j] * row[d];
    }
}

static double fp8_number(int code) {
    static double numbers[128]; // without sign; computed once, because long contexts have many numbers
    if (!numbers[1])
        for (int i = 0; i < 128; i++) numbers[i] = i >> 3 ? ldexp(8 + i % 8, (i >> 3) - 10) : ldexp(i, -9);
    return code & 128 ? -numbers[code & 127] : numbers[code];
}

double ref_number(sl_kv_run run, int head_dim, int j, int d) {
    size_t i = (size_t)j * head_dim + d;
    if (run.format == SL_BF16) return sl_bf16_to_f32(((const bf16 *)run.data)[i]);
    int code = ((const uint8_t *)run.data)[i];
    return (float)((run.format == SL_INT8 ? (code ^ 128) - 128 : fp8_number(code)) * run.scale[j]);
}

double ref_relative(const float *got, const double *want, int n) {
    double square = 0, norm = 0;
    for (int i = 0; i < n; i++) square += (got[i] - want[i]) * (got[i] - want[i]), norm += want[i] * want[i];
    return isnan(square) ? INFINITY : sqrt(square / norm);
}

double ref_error(const ref_cache *c, int s, int head) {
    double *p = malloc(c->seqs[s].n_tokens * sizeof *p), mu[256];
    int dim = c->geom.head_dim;
    ref_attention(c, s, head, c->queries[s].q + head * dim, c->seqs[s].n_tokens, p, mu);
    free(p);
    return ref_relative(c->queries[s].out + head * dim, mu, dim);
}

void ref_add_to_values(ref_cache *c, float x) {
    for (int s = 0; s < c->n_seqs; s++)
        for (int h = 0; h < c->geom.n_kv_heads; h++)
            for (int j = 0; j < c->seqs[s].n_tokens; j++)
                for (int d = 0; d < c->geom.head_dim; d++) {
                    bf16 *v = (bf16 *)ref_v_row(c, s, h, j) + d;
                    *v = sl_f32_to_bf16(sl_bf16_to_f32(*v) + x);
                }
}
