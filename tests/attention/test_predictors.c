// tests/attention/test_predictors.c - the trained predictors of vattention: bits of keys against a formula in double precision,
// the order of buckets against the rows that saap visits, the rows of largest score that each predictor finds, bytes, refusals.
#include "attention/extras/bucket_visit.h"
#include "attention/extras/key_bits.h"
#include "tests/support/bucket_plan.h"
#include "tests/support/reference.h"
#include "tests/test.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

static sl_error err;

static sl_attn_spec parse(const char *attn) {
    sl_attn_spec spec;
    CHECK_OK(sl_attn_parse(attn, &spec, &err), err);
    return spec;
}

// The scores that a proposal gives the rows of one KV head in one step: score[i * n_units + u] of query head i and unit u.
static float *propose(ref_cache *c, const char *attn, int h) {
    sl_attn_spec spec = parse(attn);
    const sl_proposal *p = sl_composition_of(&spec).propose;
    sl_attn_decode_args args = {.geom = &c->geom, .spec = &spec, .n_seqs = 1, .seqs = c->queries};
    int n = c->seqs[0].n_tokens, n_units = (n + p->unit - 1) / p->unit, of_page = SL_PAGE / p->unit;
    c->geom.buckets = c->pool.buckets = &c->buckets;
    c->queries[0].kv.pool = &c->pool; // the caller has copied the cache
    sl_kv_need need[SL_MAX_NEEDS];
    for (int i = 0, m = p->needs ? p->needs(&spec, need) : 0; i < m; i++) ref_build_extras(c, need[i], 0, 1);
    sl_group g = sl_group_of(&args, 0, h);
    g.state = p->state ? malloc(p->state(&c->geom, &spec, n)) : NULL;
    float *out = malloc((size_t)g.n * n_units * sizeof *out), *page = malloc((size_t)g.n * SL_CHUNK * sizeof *page);
    if (p->begin) p->begin(&g);
    for (int i = 0; i * SL_PAGE < n; i++) {
        p->score(&g, i, page);
        for (int head = 0; head < g.n; head++)
            for (int u = 0; u < of_page && i * of_page + u < n_units; u++)
                out[head * n_units + i * of_page + u] = page[head * SL_CHUNK + u];
    }
    free(page), free(g.state);
    return out;
}

// ---- bits ----

static double product(const bf16 *w, const double *x, int dim, float bias) {
    double sum = bias;
    for (int d = 0; d < dim; d++) sum += sl_bf16_to_f32(w[d]) * x[d];
    return sum;
}

// The score of a row is 1/8 of the number of common bits. Products close to 0 may have either sign.
static void bits_by_formula(void) {
    static const int n = 700, dims[] = {64, 80, 128};
    for (int k = 0; k < 3; k++) {
        int dim = dims[k], unsure = 0, n_scores = 0;
        ref_cache c = ref_cache_new(6, 2, dim, 1, &n, 1, test_seed + k);
        const sl_key_bits *b = &c.buckets.bits;
        for (int h = 0; h < 2; h++) {
            float *score = propose(&c, "vattention:predictor=hash", h);
            for (int i = 0; i < 3; i++)
                for (int j = 0; j < n; j++) {
                    double key[128], query[128];
                    int common = 0, either = 0;
                    ref_key(&c, 0, h, j, key);
                    for (int d = 0; d < dim; d++) query[d] = c.q[(h * 3 + i) * dim + d];
                    for (int m = 0; m < b->n_bits; m++) {
                        size_t at = (size_t)h * b->n_bits + m;
                        double of_q = product(b->wq + at * dim, query, dim, b->bq[at]);
                        double of_k = product(b->wk + at * dim, key, dim, b->bk[at]);
                        common += (of_q > 0) == (of_k > 0);
                        either += fabs(of_q) < 1e-4 || fabs(of_k) < 1e-4;
                    }
                    unsure += either > 0, n_scores++;
                    if (!(fabs(8 * score[i * n + j] - common) <= either))
                        FAIL("dimension %d, head %d, row %d: %g common bits, expected %d", dim, h * 3 + i, j,
                             8 * score[i * n + j], common);
                }
            free(score);
        }
        CHECK(unsure < n_scores / 10);
        ref_cache_free(&c);
    }
}

// ---- the order of buckets ----

// The rows that saap visits with l buckets have larger scores than the other rows before the newest page.
static void ranks_are_the_order_of_saap(void) {
    static const int n = 1500;
    ref_cache c = ref_cache_new(4, 1, 64, 1, &n, 1, test_seed);
    int newest = (n - 1) / SL_PAGE * SL_PAGE;
    for (int with_classifier = 0; with_classifier < 2; with_classifier++) {
        if (!with_classifier) c.buckets.width = 0;
        float *score = propose(&c, "vattention:predictor=buckets", 0);
        c.buckets.width = REF_WIDTH;
        for (int l = 1; l < REF_BUCKETS; l++) {
            char attn[100];
            snprintf(attn, sizeof attn, "%s:l=%d:sink=0:window=0:dense-layers=0", with_classifier ? "saap" : "saap-kmeans", l);
            sl_attn_spec spec = parse(attn);
            const sl_proposal *p = sl_composition_of(&spec).propose;
            sl_attn_decode_args args = {.geom = &c.geom, .spec = &spec, .n_seqs = 1, .seqs = c.queries};
            sl_kv_need need[SL_MAX_NEEDS];
            for (int i = 0, m = p->needs(&spec, need); i < m; i++) ref_build_extras(&c, need[i], 0, 1);
            sl_group g = sl_group_of(&args, 0, 0);
            g.state = malloc(p->state(&c.geom, &spec, n));
            p->begin(&g);
            sl_bucket_visit v = sl_bucket_visit_of(&g);
            float least = INFINITY, most = -INFINITY;
            for (int j = 0; j < newest; j++) {
                if (v.bitmap[j / 64] >> j % 64 & 1)
                    least = fminf(least, score[j]);
                else
                    most = fmaxf(most, score[j]);
            }
            if (!(least > most)) FAIL("%s: a visited row has the score %g, another row %g", attn, least, most);
            free(g.state);
        }
        free(score);
    }
    ref_cache_free(&c);
}

// A row has the same score in a full page and in the newest one.
static void newest_page_has_the_same_scores(void) {
    static const char *const methods[] = {"vattention:predictor=hash", "vattention:predictor=buckets"};
    static const int n = 513; // row 512 makes page 1 a full one
    for (int i = 0; i < 2; i++) {
        ref_cache c = ref_cache_new(2, 1, 64, 1, &n, 1, test_seed);
        float *full = propose(&c, methods[i], 0);
        ref_set_length(&c, 0, 512);
        float *newest = propose(&c, methods[i], 0);
        for (int j = 0; j < 512; j++)
            if (full[j] != newest[j]) FAIL("%s, row %d: %g in a full page, %g before", methods[i], j, full[j], newest[j]);
        CHECK(full[300] != full[301] || full[301] != full[302] || full[302] != full[303]);
        free(full), free(newest);
        ref_cache_free(&c);
    }
}

// ---- what a predictor finds ----

static int by_value(const void *a, const void *b) {
    float x = *(const float *)a, y = *(const float *)b;
    return (x < y) - (x > y);
}

// The share of the n_top rows of largest exact score that lie among the `n_read` rows of largest predicted score.
static double recall(ref_cache *c, const char *attn, int n_top, int n_read) {
    float *exact = propose(c, "vattention:predictor=oracle", 0), *score = propose(c, attn, 0);
    int n = c->seqs[0].n_tokens, group = c->geom.n_heads, unit = strstr(attn, "quest") ? 16 : 1,
        n_units = (n + unit - 1) / unit;
    double found = 0;
    float *sorted = malloc(n * sizeof *sorted);
    for (int i = 0; i < group; i++) {
        memcpy(sorted, score + i * n_units, n_units * sizeof *sorted);
        qsort(sorted, n_units, sizeof *sorted, by_value);
        float least = sorted[n_read / unit - 1];
        memcpy(sorted, exact + i * n, n * sizeof *sorted);
        qsort(sorted, n, sizeof *sorted, by_value);
        float top = sorted[n_top - 1];
        // A tie at the limit counts for the share of its rows that are read.
        int above = 0, equal = 0;
        for (int u = 0; u < n_units; u++) above += score[i * n_units + u] > least, equal += score[i * n_units + u] == least;
        double share = (double)(n_read / unit - above) / equal;
        for (int j = 0; j < n; j++) {
            if (exact[i * n + j] < top) continue;
            float own = score[i * n_units + j / unit];
            found += own > least ? 1 : own == least ? share : 0;
        }
    }
    free(sorted), free(exact), free(score);
    return found / ((double)group * n_top);
}

// Keys of the test have no order in the text, so page bounds find little more than chance. Hashes of the angle find more.
static void bits_find_more_than_chance(void) {
    enum { N = 4000, TOP = 40, READ = 400 };
    static const int n = N;
    ref_cache c = ref_cache_new(8, 1, 64, 1, &n, 3, test_seed);
    double oracle = recall(&c, "vattention:predictor=oracle", TOP, READ), chance = (double)READ / N;
    double hash = recall(&c, "vattention:predictor=hash", TOP, READ),
           quest = recall(&c, "vattention:predictor=quest", TOP, READ);
    printf("      the 1%% largest rows among the 10%% predicted ones: oracle %.3f, hash %.3f, quest %.3f\n", oracle, hash,
           quest);
    CHECK(oracle == 1);
    if (!(hash > 2.5 * chance && hash > 1.3 * quest)) FAIL("hash finds %.3f, quest %.3f, chance %.3f", hash, quest, chance);
    ref_cache_free(&c);
}

// ---- steps ----

static void errors_hold(void) { // base samples are large, so the central limit theorem is good
    static const char *const methods[] = {"vattention:predictor=hash:epsilon=0.1:base=0.1",
                                          "vattention:predictor=buckets:epsilon=0.1:base=0.1"};
    static const int n = 3000;
    for (int i = 0; i < 2; i++) {
        ref_cache c = ref_cache_new(8, 2, 64, 1, &n, 1, test_seed);
        int n_missed = 0, n_runs = SANITIZED ? 4 : 20;
        ref_add_to_values(&c, 1);
        for (int run = 0; run < n_runs; run++) {
            sl_attn_stats stats = ref_decode(&c, methods[i], 0, 1, (uint32_t)(test_seed + run), 0);
            CHECK_INT(stats.fallbacks, 0);
            for (int head = 0; head < 8; head++) {
                n_missed += ref_error(&c, 0, head) > 0.1;
                CHECK(c.reports[head].error_bound > 0 && c.reports[head].error_bound <= 0.1f);
                CHECK((int)c.reports[head].v_rows < n);
            }
        }
        if (n_missed > n_runs * 8 / 10) FAIL("%s: %d of %d outputs miss the error", methods[i], n_missed, n_runs * 8);
        ref_cache_free(&c);
    }
}

// Bytes of a step: of the bits, and of rows of K and V.
static void bytes_of_bits(void) {
    static const int n = 2000;
    ref_cache c = ref_cache_new(1, 1, 64, 1, &n, 1, test_seed);
    sl_attn_spec spec = parse("vattention:predictor=hash:epsilon=0.5");
    ref_decode_spec(&c, &spec, 0, 1, 3, 0);
    const sl_attn_report *r = &c.reports[0];
    int newest = n - (n - 1) / SL_PAGE * SL_PAGE;
    uint64_t numbers = 2 * TEST_KEY_BITS * (64 * sizeof(bf16) + sizeof(float));
    uint64_t read = (uint64_t)(n - newest) * TEST_KEY_BITS / 8 + numbers + (uint64_t)(r->k_rows + r->v_distinct) * 128;
    CHECK_INT(r->bytes, read);
    CHECK((int)r->k_rows < n && r->v_distinct < (uint32_t)n);
    ref_cache_free(&c);
}

// Heads of a layer without trained buckets attend exactly, and are counted.
static void untrained_layers_are_exact(void) {
    static const int n = 900;
    float want[4 * 64];
    ref_cache c = ref_cache_new(4, 2, 64, 1, &n, 1, test_seed);
    c.buckets.n_dense = 1;
    ref_decode(&c, "dense", 0, 1, 3, 0);
    memcpy(want, c.out, sizeof want);
    CHECK_INT(ref_decode(&c, "vattention:predictor=buckets", 0, 1, 3, 0).fallbacks, 4);
    CHECK(!memcmp(want, c.out, sizeof want));
    CHECK_INT(ref_decode(&c, "vattention:predictor=buckets", 0, 1, 3, 1).fallbacks, 0);
    ref_cache_free(&c);
}

static void refusals(void) {
    static const int n = 10;
    ref_cache c = ref_cache_new(1, 1, 64, 1, &n, 1, test_seed);
    sl_buckets none = {.n_layers = 1, .n_kv_heads = 1, .head_dim = 64};
    sl_attn_spec hash = parse("vattention:predictor=hash"), buckets = parse("vattention:predictor=buckets"),
                 oracle = parse("vattention");
    CHECK(sl_attn_reads_key_bits(&hash) && !sl_attn_reads_buckets(&hash));
    CHECK(sl_attn_reads_buckets(&buckets) && !sl_attn_reads_key_bits(&buckets));
    CHECK(!sl_attn_reads_buckets(&oracle) && !sl_attn_reads_key_bits(&oracle));
    c.geom.buckets = &none;
    CHECK_ERR(hash.method->supports(&c.geom, &hash, &err), err, SL_ERR_UNSUPPORTED, "predictor hash needs the bit file");
    CHECK_ERR(buckets.method->supports(&c.geom, &buckets, &err), err, SL_ERR_UNSUPPORTED, "predictor buckets needs the bucket");
    CHECK_OK(oracle.method->supports(&c.geom, &oracle, &err), err);
    c.geom.buckets = &c.buckets;
    CHECK_OK(hash.method->supports(&c.geom, &hash, &err), err);
    CHECK_OK(buckets.method->supports(&c.geom, &buckets, &err), err);
    sl_attn_spec spec;
    CHECK_ERR(sl_attn_parse("vattention:predictor=hash:bound=bernstein", &spec, &err), err, SL_ERR_ARG,
              "found bound bernstein, expected clt with predictor hash");
    CHECK_ERR(sl_attn_parse("vattention:bound=hoeffding:predictor=buckets", &spec, &err), err, SL_ERR_ARG,
              "found bound hoeffding, expected clt with predictor buckets");
    CHECK_ERR(sl_attn_parse("vattention:predictor=bits", &spec, &err), err, SL_ERR_ARG, "oracle,quest,int4,hash,buckets");
    ref_cache_free(&c);
}

static const test_case cases[] = {
    {"bits-by-formula", 0, bits_by_formula},
    {"ranks-are-the-order-of-saap", 0, ranks_are_the_order_of_saap},
    {"newest-page-has-the-same-scores", 0, newest_page_has_the_same_scores},
    {"bits-find-more-than-chance", 0, bits_find_more_than_chance},
    {"errors-hold", 0, errors_hold},
    {"bytes-of-bits", 0, bytes_of_bits},
    {"untrained-layers-are-exact", 0, untrained_layers_are_exact},
    {"refusals", 0, refusals},
    {0},
};
const test_suite suite_predictors = {"predictors", cases};
