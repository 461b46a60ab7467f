// tests/attention/test_saap.c - saap and saap-kmeans: buckets of keys, the index by bucket, the rows of a step against an
// explicit set of rows in double precision, the errors of a plan.
#include "attention/extras/bucket_index.h"
#include "attention/cpu/cpu_kernels.h"
#include "base/hash.h"
#include "engine/engine.h"
#include "models/bucket_file.h"
#include "tests/support/bucket_plan.h"
#include "tests/support/models.h"
#include "tests/support/reference.h"
#include "tests/test.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

static sl_error err;

// ---- the nearest centroid ----

static void nearest(void) {
    static const char *const isas[] = {"avx512", "avx2", "portable"};
    static const int counts[] = {1, 3, 13, 16, 17, 100}, dims[] = {16, 80, 128}, rows[] = {1, 3, 4, 255, 256};
    CHECK_OK(sl_cpu_choose(&err), err);
    for (int t = 0; t < 6 * 3 * 5; t++) {
        int C = counts[t % 6], dim = dims[t / 6 % 3], n = rows[t / 18];
        uint64_t seed = test_seed + t;
        sl_buckets b = test_buckets_new(1, 1, dim, C, 0, 0, seed);
        bf16 *centroids = (bf16 *)b.centroids;
        uint16_t bucket[SL_PAGE + 1];
        float *x = malloc((size_t)n * dim * sizeof *x);
        for (int i = 0; i < n * dim; i++) x[i] = sl_bf16_to_f32(sl_f32_to_bf16((float)test_normal(&seed)));
        if (C > 3) memcpy(centroids + (C - 1) * dim, centroids + dim, dim * sizeof *centroids); // 1 and C - 1 are equal
        if (n > 3) x[2 * dim + 1] = NAN;
        for (int i = 0; i < 3; i++) {
            const sl_attn_kernels *k = sl_attn_kernels_named(isas[i]);
            if (!k) continue;
            bucket[n] = 54321;
            k->nearest(x, n, centroids, C, dim, bucket);
            CHECK_INT(bucket[n], 54321);
            for (int j = 0; j < n; j++) {
                float most = -INFINITY;
                int want = 0;
                for (int c = 0; c < C; c++) {
                    float dot = 0; // the products are exact, so the order of the sum gives the bits
                    for (int d = 0; d < dim; d++) dot += x[j * dim + d] * sl_bf16_to_f32(centroids[c * dim + d]);
                    if (dot > most) most = dot, want = c;
                }
                if (bucket[j] != want) FAIL("%s, C %d, dim %d: row %d in %d, expected %d", isas[i], C, dim, j, bucket[j], want);
            }
        }
        free(x);
        test_buckets_free(&b);
    }
}

// RoPE as the model applies it, in double precision.
static void rotate(const float *inv_freq, int dim, int position, double *x) {
    for (int i = 0; i < dim / 2; i++) {
        double angle = (float)position * inv_freq[i], a = x[i], b = x[i + dim / 2];
        x[i] = a * cos(angle) - b * sin(angle), x[i + dim / 2] = b * cos(angle) + a * sin(angle);
    }
}

static void rotation(void) {
    uint64_t seed = test_seed;
    sl_buckets b = test_buckets_new(1, 1, 80, 1, 0, 0, 1);
    static const int positions[] = {0, 1, 255, 131071, 1000000};
    for (int p = 0; p < 5; p++) {
        double x[80], turned[80];
        float got[80];
        for (int d = 0; d < 80; d++) turned[d] = x[d] = test_normal(&seed);
        rotate(b.inv_freq, 80, positions[p], turned);
        for (int d = 0; d < 80; d++) got[d] = (float)turned[d];
        sl_rotate_back(b.inv_freq, 80, positions[p], got, got);
        for (int d = 0; d < 80; d++) CHECK_NEAR(got[d], x[d], 1e-6);
    }
    test_buckets_free(&b);
}

// The bucket of a key after RoPE is that of the key before RoPE, up to the rounding of the key to bf16, at every position.
static void buckets_before_rope(void) {
    enum { DIM = 64, C = 20, HEADS = 2, LAYERS = 3 };
    uint64_t seed = test_seed;
    CHECK_OK(sl_cpu_choose(&err), err);
    sl_buckets b = test_buckets_new(LAYERS, HEADS, DIM, C, 0, 0, test_seed);
    for (int t = 0; t < 2000; t++) {
        int layer = t % LAYERS, h = t / LAYERS % HEADS, first = (int)(test_uniform(&seed) * 200000), roped = t % 7 == 0;
        double x[DIM], turned[DIM], most = -INFINITY, norm = 0;
        bf16 k[DIM];
        uint16_t bucket;
        for (int d = 0; d < DIM; d++) turned[d] = x[d] = test_normal(&seed), norm += x[d] * x[d];
        if (!roped) rotate(b.inv_freq, DIM, first, turned);
        for (int d = 0; d < DIM; d++) k[d] = sl_f32_to_bf16((float)turned[d]);
        sl_bucket_assign(&b, roped, layer, h, sl_kv_bf16_run(k), 1, first, &bucket);
        const bf16 *centroids = (roped ? b.roped : b.centroids) + (size_t)(layer * HEADS + h) * C * DIM;
        double dot[C] = {0};
        for (int c = 0; c < C; c++) {
            for (int d = 0; d < DIM; d++) dot[c] += x[d] * sl_bf16_to_f32(centroids[c * DIM + d]);
            most = fmax(most, dot[c]);
        }
        CHECK(bucket < C);
        CHECK(dot[bucket] >= most - 2 * 0x1p-8 * sqrt(norm)); // two roundings of the key, each at most 2^-9 of it, twice
    }
    test_buckets_free(&b);
}

// ---- the index ----

// The index of a sequence is the index of its rows, built here from scratch.
static void check_index(const ref_cache *c, int s, int roped) {
    const sl_kv_view *kv = &c->queries[s].kv;
    int n_built = sl_kv_n_built(kv), dim = c->geom.head_dim, C = c->buckets.n_buckets;
    uint16_t *bucket = malloc((n_built + 1) * SL_PAGE * sizeof *bucket);
    for (int h = 0; h < c->geom.n_kv_heads; h++) {
        for (int page = 0; page < n_built; page++) {
            uint16_t *own = bucket + page * SL_PAGE;
            int seen[SL_PAGE] = {0};
            bf16 *rows = malloc(SL_PAGE * dim * sizeof *rows);
            for (int j = 0; j < SL_PAGE; j++)
                memcpy(rows + j * dim, ref_k_row(c, s, h, page * SL_PAGE + j), dim * sizeof *rows);
            sl_bucket_assign(&c->buckets, roped, 0, h, sl_kv_bf16_run(rows), SL_PAGE, page * SL_PAGE, own);
            free(rows);
            const sl_bucket_rows *got = sl_kv_extra(kv, (sl_kv_need){&sl_bucket_rows_kind, roped}, page, h);
            for (int i = 0; i < SL_PAGE; i++) {
                CHECK_INT(got->bucket[i], own[got->row[i]]);
                CHECK(i == 0 || got->bucket[i] > got->bucket[i - 1] ||
                      (got->bucket[i] == got->bucket[i - 1] && got->row[i] > got->row[i - 1]));
                seen[got->row[i]]++;
            }
            for (int j = 0; j < SL_PAGE; j++) CHECK_INT(seen[j], 1);
        }
        for (int span = 0; span < sl_kv_n_spans(kv, SL_BUCKET_SPAN); span++) {
            const sl_bucket_lists *got =
                sl_kv_extra(kv, (sl_kv_need){&sl_bucket_lists_kind, roped}, (span + 1) * SL_BUCKET_SPAN - 1, h);
            const uint16_t *own = bucket + span * SL_BUCKET_SPAN_ROWS;
            CHECK(sl_bucket_lists_kind.size(roped, 64) < sizeof *got + 64);
            int at = 0;
            for (int b = 0; b < C; b++) {
                CHECK_INT(got->first[b], at);
                for (int j = 0; j < SL_BUCKET_SPAN_ROWS; j++)
                    if (own[j] == b) CHECK_INT(got->row[at++], j);
            }
            CHECK_INT(got->first[C], SL_BUCKET_SPAN_ROWS);
        }
    }
    free(bucket);
}

// A sequence is cut back inside a span and continued. Another sequence shares its first pages and continues differently.
static void index_follows_its_rows(void) {
    enum { DIM = 16, N = 9000, CUT = 5000, AGAIN = 8500, FORK = 6500, FORKED = 8300 };
    static const int two[] = {N, 3000}; // pages for the fork too
    for (int roped = 0; roped < 2; roped++) {
        const char *attn = roped ? "saap-kmeans:l=3:dense-layers=0:rope=1" : "saap-kmeans:l=3:dense-layers=0";
        ref_cache c = ref_cache_new(2, 1, DIM, 2, two, 1, test_seed);
        ref_write_rows(&c, 0, 0, N, 100);
        ref_decode(&c, attn, 0, 1, 1, 1);
        check_index(&c, 0, roped);
        sl_kv_truncate(&c.pool, &c.seqs[0], CUT);
        ref_set_length(&c, 0, AGAIN);
        ref_write_rows(&c, 0, CUT, AGAIN, 77);
        ref_decode(&c, attn, 0, 1, 1, 1);
        check_index(&c, 0, roped);

        sl_kv_seq_free(&c.pool, &c.seqs[1]);
        CHECK_OK(sl_kv_fork(&c.pool, &c.seqs[0], &c.seqs[1], FORK, &err), err);
        ref_set_length(&c, 1, FORKED);
        ref_write_rows(&c, 1, FORK, FORKED, 5);
        ref_decode(&c, attn, 0, 2, 1, 1);
        check_index(&c, 0, roped);
        check_index(&c, 1, roped);
        sl_kv_truncate(&c.pool, &c.seqs[0], CUT); // the fork keeps the pages that it shared
        ref_set_length(&c, 0, AGAIN);
        ref_write_rows(&c, 0, CUT, AGAIN, 9);
        ref_decode(&c, attn, 0, 2, 1, 1);
        check_index(&c, 0, roped);
        check_index(&c, 1, roped);
        ref_cache_free(&c);
    }
}

// ---- the rows of a step ----

static const struct { int heads, kv_heads, dim; } shapes[] = {{1, 1, 64}, {6, 2, 80}, {8, 2, 128}, {8, 1, 16}, {9, 3, 64}};
enum { N_SHAPES = 5 };

// With l = C every row lies in a visited bucket, and the output is dense attention's.
static void every_bucket(void) {
    static const int lengths[] = {1, 255, 256, 257, 700, 4353};
    static const char *const methods[] = {"saap:l=13:dense-layers=0:sink=0:window=0",
                                          "saap-kmeans:l=13:dense-layers=0:window=100",
                                          "saap-kmeans:l=4096:dense-layers=0:rope=1:sink=300:window=5"};
    for (int i = 0; i < N_SHAPES; i++)
        for (int j = 0; j < 6; j++) {
            if (lengths[j] > 2000 && i < 3) continue; // time
            ref_cache c = ref_cache_new(shapes[i].heads, shapes[i].kv_heads, shapes[i].dim, 1, &lengths[j], 1, test_seed + j);
            for (int m = 0; m < 3; m++) {
                ref_decode(&c, methods[m], 0, 1, 1, 0);
                for (int head = 0; head < shapes[i].heads; head++) {
                    CHECK_INT(c.reports[head].v_rows, lengths[j]);
                    CHECK_INT(c.reports[head].k_rows, lengths[j]);
                    CHECK_NEAR(ref_error(&c, 0, head), 0, 1e-5);
                }
            }
            ref_cache_free(&c);
        }
}

static void dense_layers(void) {
    static const int n = 1000;
    static const struct {
        const char *attn;
        int layer, rows;
    } want[] = {
        {"saap:l=0:window=50", 0, 1000},
        {"saap:l=0:window=50:dense-layers=3", 2, 1000},
        {"saap:l=0:window=300:dense-layers=3", 3, 301},
        {"saap-kmeans:l=0:window=300:dense-layers=0", 0, 301},
        {"saap:l=0:sink=0:window=0", 1, 1000 - 768}, // the newest page has no buckets
        {"saap:l=3:sink=800:window=300", 1, 1000},   // sink and window overlap
        {"saap-kmeans:l=3", 1, 1000},
    };
    ref_cache c = ref_cache_new(4, 2, 64, 1, &n, 1, test_seed);
    for (size_t i = 0; i < sizeof want / sizeof *want; i++) {
        ref_decode(&c, want[i].attn, 0, 1, 1, want[i].layer);
        CHECK_INT(c.reports[0].v_rows, want[i].rows);
        CHECK_INT(c.reports[3].v_distinct, want[i].rows);
        if (want[i].rows == n) CHECK_NEAR(ref_error(&c, 0, 1), 0, 1e-5);
        if (want[i].rows == n) CHECK_INT(c.reports[0].bytes, c.reports[0].dense_bytes); // nothing is chosen
    }
    ref_cache_free(&c);
}

typedef struct trial {
    int by_centroid, roped, l, sink, window;
} trial;

static double dot_of(const double *x, const bf16 *y, int n) {
    double sum = 0;
    for (int i = 0; i < n; i++) sum += x[i] * sl_bf16_to_f32(y[i]);
    return sum;
}

// Scores of the buckets of KV head h in double precision.
static void score_buckets(const ref_cache *c, int h, const trial *t, double *score) {
    const sl_buckets *b = &c->buckets;
    int dim = b->head_dim, C = b->n_buckets, W = b->width, group = c->geom.n_heads / c->geom.n_kv_heads;
    double sum[256] = {0};
    for (int i = 0; i < C; i++) score[i] = 0;
    for (int g = 0; g < group; g++) {
        const float *q = c->q + (size_t)(h * group + g) * dim;
        double x[256], norm = 0, hidden[REF_WIDTH], logit[REF_BUCKETS], total = 0;
        for (int d = 0; d < dim; d++) x[d] = q[d], norm += x[d] * x[d];
        if (!t->roped) rotate(b->inv_freq, dim, -(int)c->queries[0].position, x);
        for (int d = 0; d < dim; d++) sum[d] += x[d] / sqrt(norm);
        for (int w = 0; w < W; w++) hidden[w] = fmax(0, dot_of(x, b->w1 + (size_t)(h * W + w) * dim, dim) + b->b1[h * W + w]);
        for (int i = 0; i < C; i++) logit[i] = dot_of(hidden, b->w2 + (size_t)(h * C + i) * W, W) + b->b2[h * C + i];
        for (int i = 0; i < C; i++) total += exp(logit[i]);
        for (int i = 0; i < C && !t->by_centroid; i++) score[i] += exp(logit[i]) / total;
    }
    const bf16 *centroids = (t->roped ? b->roped : b->centroids) + (size_t)h * C * dim;
    for (int i = 0; i < C && t->by_centroid; i++) score[i] = dot_of(sum, centroids + i * dim, dim);
}

// Marks the visited buckets. Returns the least relative distance of a visited score to one that is not visited.
static double visit_buckets(const double *score, int C, int l, int *visited) {
    double least = INFINITY, most = -INFINITY;
    for (int i = 0; i < C; i++) {
        int before = 0;
        for (int j = 0; j < C; j++) before += score[j] > score[i] || (score[j] == score[i] && j < i);
        visited[i] = before < l;
        if (visited[i])
            least = fmin(least, score[i]);
        else
            most = fmax(most, score[i]);
    }
    return (least - most) / fmax(fabs(least), 1e-30);
}

// Compares a step with attention in double precision over an explicit set of rows. Returns the number of KV heads compared.
static int compare(ref_cache *c, const trial *t) {
    char attn[120];
    int n = c->seqs[0].n_tokens, dim = c->geom.head_dim, group = c->geom.n_heads / c->geom.n_kv_heads, n_compared = 0;
    int n_full = (n - 1) / SL_PAGE * SL_PAGE;
    snprintf(attn, sizeof attn, "%s:l=%d:sink=%d:window=%d:dense-layers=0",
             t->by_centroid ? t->roped ? "saap-kmeans:rope=1" : "saap-kmeans" : "saap", t->l, t->sink, t->window);
    ref_decode(c, attn, 0, 1, 1, 0);
    uint16_t *bucket = malloc((n_full + 1) * sizeof *bucket);
    char *reads = malloc(n);
    double *p = malloc(n * sizeof *p), mu[256];
    for (int h = 0; h < c->geom.n_kv_heads; h++) {
        double score[REF_BUCKETS];
        int visited[REF_BUCKETS], n_rows = 0;
        score_buckets(c, h, t, score);
        if (visit_buckets(score, REF_BUCKETS, t->l, visited) < 1e-4) continue; // fp32 may choose the other bucket
        for (int j = 0; j < n_full; j++)
            sl_bucket_assign(&c->buckets, t->roped, 0, h, sl_kv_bf16_run(ref_k_row(c, 0, h, j)), 1, j, &bucket[j]);
        for (int j = 0; j < n; j++) {
            reads[j] = j < t->sink || j >= n - t->window || j >= n_full || visited[bucket[j]];
            n_rows += reads[j];
        }
        for (int g = 0; g < group; g++) {
            int head = h * group + g;
            double kept = 0;
            ref_attention(c, 0, head, c->q + (size_t)head * dim, n, p, mu);
            memset(mu, 0, sizeof mu);
            for (int j = 0; j < n; j++) {
                if (!reads[j]) continue;
                kept += p[j];
                for (int d = 0; d < dim; d++) mu[d] += p[j] * sl_bf16_to_f32(ref_v_row(c, 0, h, j)[d]);
            }
            for (int d = 0; d < dim; d++) mu[d] /= kept;
            if (!(ref_relative(c->out + (size_t)head * dim, mu, dim) < 1e-5))
                FAIL("%s, head %d: the output differs from that of the %d expected rows", attn, head, n_rows);
            CHECK_INT(c->reports[head].v_rows, n_rows);
            CHECK_INT(c->reports[head].v_distinct, n_rows);
            CHECK_INT(c->reports[head].k_rows, n_rows);
            CHECK_INT(c->reports[head].samples, n_rows);
            // rows of K and V once, and in addition the index and what scores the buckets
            CHECK(c->reports[head].bytes >= 2 * (uint64_t)n_rows * dim * sizeof(bf16));
        }
        n_compared++;
    }
    free(bucket), free(reads), free(p);
    return n_compared;
}

static void rows_of_a_step(void) {
    static const int lengths[] = {1, 300, 513, 1500, 4096, 4097, 4400, 8700};
    static const trial trials[] = {{0, 0, 1, 1, 100}, {0, 0, 4, 0, 0},   {0, 0, 12, 300, 2047}, {1, 0, 2, 1, 77},
                                   {1, 0, 5, 0, 0},   {1, 1, 1, 5, 257}, {1, 1, 7, 1, 2047}};
    int n = 0, n_tried = 0;
    for (int i = 0; i < N_SHAPES; i++)
        for (int j = 0; j < 8; j++) {
            if (lengths[j] > 2000 && i < 3) continue; // time
            ref_cache c = ref_cache_new(shapes[i].heads, shapes[i].kv_heads, shapes[i].dim, 1, &lengths[j], 1, test_seed + j);
            ref_add_to_values(&c, 1);
            for (size_t t = 0; t < sizeof trials / sizeof *trials; t++) {
                n += compare(&c, &trials[t]);
                n_tried += shapes[i].kv_heads;
            }
            ref_cache_free(&c);
        }
    CHECK(n > n_tried * 9 / 10);
}

// ---- the share of visited rows ----

// Below the share that a step visits, every head attends exactly and is counted; at this share, none does.
static void dense_above_a_share(void) {
    static const int n = 3000;
    static const char *const methods[] = {"saap:l=5", "saap-kmeans:l=5", "saap-kmeans:l=5:rope=1", "saap:l=5+santa-sys"};
    float dense[4 * 64];
    ref_cache c = ref_cache_new(4, 2, 64, 1, &n, 1, test_seed);
    ref_add_to_values(&c, 1);
    ref_decode(&c, "dense", 0, 1, 1, 0);
    memcpy(dense, c.out, sizeof dense);
    for (int i = 0; i < 4; i++) {
        char attn[120], value[20] = "";
        double share[2];
        int window = i % 2 ? 300 : 0, end = window ? n - window : (n - 1) / SL_PAGE * SL_PAGE; // 2700: inside a word
        int with_buckets = end - 10, name = (int)strcspn(methods[i], "+");
        snprintf(value, sizeof value, "%s", methods[i] + name);
        snprintf(attn, sizeof attn, "%.*s:sink=10:window=%d:dense-layers=0", name, methods[i], window);
        CHECK_INT(ref_decode(&c, attn, 0, 1, 1, 0).fallbacks, 0);
        for (int h = 0; h < 2; h++) // of each KV head
            share[h] = (double)((int)c.reports[2 * h].v_rows - 10 - (n - with_buckets - 10)) / with_buckets;
        CHECK(share[0] > 0.1 && share[0] < 0.9 && share[0] != share[1]);
        double low = fmin(share[0], share[1]), high = fmax(share[0], share[1]);
        const double limits[] = {low - 1e-6, low + 1e-6, high + 1e-6};
        for (int k = 0; k < 3; k++) {
            snprintf(attn, sizeof attn, "%.*s:sink=10:window=%d:dense-layers=0:dense-above=%.8f%s", name, methods[i], window,
                     limits[k], value);
            CHECK_INT(ref_decode(&c, attn, 0, 1, 1, 0).fallbacks, 2 * (2 - k));
            for (int head = 0; head < 4; head++) {
                int is_exact = share[head / 2] > limits[k];
                CHECK_INT(c.reports[head].fallback, is_exact);
                if (is_exact != !memcmp(dense + head * 64, c.out + head * 64, 64 * sizeof *dense))
                    FAIL("%s, head %d: the bits of dense attention are %sexpected", attn, head, is_exact ? "" : "not ");
                if (is_exact) CHECK_INT(c.reports[head].v_distinct, n);
            }
        }
    }
    CHECK_INT(ref_decode(&c, "saap:l=5:dense-above=0", 0, 1, 1, 0).fallbacks, 0); // a dense layer
    static const char *const shares[] = {"", ":dense-above=0", ":dense-above=0.5"};
    for (int i = 0; i < 3; i++) { // no row lies between sink and window
        char attn[120];
        snprintf(attn, sizeof attn, "saap:l=5:window=3000:dense-layers=0%s", shares[i]);
        CHECK_INT(ref_decode(&c, attn, 0, 1, 1, 0).fallbacks, 0);
    }
    ref_cache_free(&c);
}

// ---- plans ----

static void refusals(void) {
    static const int n = 10;
    static const struct {
        const char *attn;
        int width, roped, dense;
        const char *part;
    } want[] = {
        {"saap", 0, 1, 0, "attn saap: the bucket file has no classifier; use saap-kmeans"},
        {"saap-kmeans", 0, 0, 0, NULL},
        {"saap-kmeans:rope=1", 16, 0, 0, "found rope 1, expected 0: the bucket file has no centroids of keys after RoPE"},
        {"saap:dense-layers=0", 16, 1, 1, "found dense-layers 0, expected at least 1"},
        {"saap", 16, 1, 1, NULL},
    };
    ref_cache c = ref_cache_new(2, 2, 64, 1, &n, 1, test_seed);
    for (size_t i = 0; i < sizeof want / sizeof *want; i++) {
        sl_attn_spec spec;
        sl_buckets b = c.buckets;
        sl_attn_geom geom = c.geom;
        b.width = want[i].width, b.n_dense = want[i].dense;
        if (!want[i].roped) b.roped = NULL;
        geom.buckets = NULL;
        CHECK_OK(sl_attn_parse(want[i].attn, &spec, &err), err);
        CHECK_INT(spec.method->needs_buckets, 1);
        CHECK_ERR(spec.method->supports(&geom, &spec, &err), err, SL_ERR_UNSUPPORTED, "it needs the bucket file of a model");
        geom.buckets = &b;
        if (want[i].part)
            CHECK_ERR(spec.method->supports(&geom, &spec, &err), err, SL_ERR_UNSUPPORTED, want[i].part);
        else
            CHECK_OK(spec.method->supports(&geom, &spec, &err), err);
    }
    ref_cache_free(&c);
}

// A model with a bucket file decodes with saap; l = C gives the logits of dense attention; a model without one is refused.
static void on_an_engine(void) {
    enum { C = 5, N = 400, STEPS = 3 };
    char dir[600], path[700];
    sl_model *model;
    snprintf(dir, sizeof dir, "%s/model", test_tmp());
    snprintf(path, sizeof path, "%s/" SL_BUCKET_FILE, dir);
    bucket_plan_link("tests/goldens/gqa", dir);
    CHECK_OK(sl_model_load(dir, &(sl_model_options){.flags = SL_MODEL_NO_TOKENIZER}, &model, &err), err);
    const sl_config *config = sl_model_config(model);
    int n_vocab = config->n_vocab;
    sl_engine *engine;
    CHECK_OK(sl_engine_new(model, &(sl_engine_options){.n_ctx = 512, .n_sequences = 2, .attn = "dense"}, &engine, &err), err);
    CHECK_ERR(sl_engine_set_attention(engine, "saap", &err), err, SL_ERR_IO, "attn saap: ");
    CHECK(strstr(err.message, "the model has no bucket file") != NULL);
    sl_buckets b = test_buckets_new(config->n_layers, config->n_kv_heads, config->head_dim, C, 16, 1, test_seed);
    bucket_plan plan = bucket_plan_of(&b, sl_tensors_hash(sl_model_tensors(model), sl_config_hash(config)));
    bucket_plan_write(&plan, path);
    static const char *const methods[] = {"dense", "saap:l=5:window=20", "saap:l=2:window=20", "saap-kmeans:l=2:window=20"};
    float *logits = malloc(4 * (size_t)n_vocab * sizeof *logits);
    int32_t *ids = test_ids(N + STEPS, n_vocab, test_seed);
    for (int m = 0; m < 4; m++) {
        sl_session *s, *fork;
        CHECK_OK(sl_engine_set_attention(engine, methods[m], &err), err);
        CHECK_OK(sl_session_new(engine, 1, &s, &err), err);
        CHECK_OK(sl_prefill(s, ids, N, NULL, &err), err);
        CHECK_OK(sl_session_fork(s, N, 1, &fork, &err), err);
        for (int i = 0; i < STEPS; i++) CHECK_OK(sl_decode(&s, 1, ids + N + i, &err), err);
        memcpy(logits + m * n_vocab, sl_session_logits(s, NULL), n_vocab * sizeof *logits);
        sl_session_free(s);
        for (int i = 0; i < STEPS; i++) CHECK_OK(sl_decode(&fork, 1, ids + N + i, &err), err);
        CHECK(!memcmp(logits + m * n_vocab, sl_session_logits(fork, NULL), n_vocab * sizeof *logits));
        sl_session_free(fork);
    }
    double moved = 0;
    for (int i = 0; i < n_vocab; i++) {
        CHECK_NEAR(logits[n_vocab + i], logits[i], 1e-3);
        moved = fmax(moved, fabs(logits[2 * n_vocab + i] - logits[i]));
    }
    CHECK(moved > 1e-3); // with l = 2 rows are missing
    free(logits), free(ids);
    sl_engine_free(engine);
    sl_model_free(model);
    test_buckets_free(&b);
}

static const test_case cases[] = {
    {"nearest", NEEDS_NOTHING, nearest},
    {"rotation", NEEDS_NOTHING, rotation},
    {"buckets-before-rope", NEEDS_NOTHING, buckets_before_rope},
    {"index-follows-its-rows", NEEDS_NOTHING, index_follows_its_rows},
    {"every-bucket", NEEDS_NOTHING, every_bucket},
    {"dense-layers", NEEDS_NOTHING, dense_layers},
    {"rows-of-a-step", NEEDS_NOTHING, rows_of_a_step},
    {"dense-above-a-share", NEEDS_NOTHING, dense_above_a_share},
    {"refusals", NEEDS_NOTHING, refusals},
    {"on-an-engine", NEEDS_NOTHING, on_an_engine},
    {0},
};
const test_suite suite_saap = {"saap", cases};
