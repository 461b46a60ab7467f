// tests/attention/test_compositions.c - `first+value` where the first method takes a set of rows: the mean over random numbers
// is the output of the first method alone, which attends exactly to its set; a set of all rows gives the bits of the second
// method alone; rows outside of the set have no effect; the rows and bytes that a step reports.
#include "attention/stages/stages.h"
#include "tests/support/draw_model.h"
#include "tests/support/means.h"
#include "tests/support/reference.h"
#include "tests/test.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

static sl_attn_spec parse(const char *attn) {
    sl_attn_spec spec;
    sl_error err;
    CHECK_OK(sl_attn_parse(attn, &spec, &err), err);
    return spec;
}

static sl_attn_spec joined(const char *first, const char *value) {
    char attn[200];
    snprintf(attn, sizeof attn, "%s+%s", first, value);
    return parse(attn);
}

static const char *const sets[] = {"topk:k=40",
                                   "topp:p=0.7",
                                   "streaming:sink=3:window=50",
                                   "quest:tokens=64",
                                   "saap:l=2:sink=1:window=20:dense-layers=0",
                                   "saap-kmeans:l=2:sink=1:window=20:dense-layers=0"};
enum { N_SETS = 6 };

// ---- the mean ----

// Every query head of the problem has the same query and other random numbers, so the sets of the heads are equal.
static void mean_is_that_of_the_set(void) {
    static const char *const values[] = {"santa:S=16",       "santa-strat:S=16",          "santa-sys:S=16",
                                         "santa-flash:S=16", "santa-pps:S=8:budget=even", "santa-pps:S=8"};
    enum { HEADS = 64 };
    int n_random = 0;
    for (int problem = 0; problem < MEANS_PROBLEMS; problem++) {
        int n = means_rows(problem);
        double unused[MEANS_DIM], mu[MEANS_DIM];
        ref_cache c = ref_cache_new(HEADS, 1, MEANS_DIM, 1, &n, 0, test_seed);
        means_fill(&c, problem, test_seed + problem, unused);
        for (int i = 0; i < N_SETS; i++)
            for (int v = 0; v < 6; v++) {
                sl_attn_spec alone = parse(sets[i]), both = joined(sets[i], values[v]);
                ref_decode_spec(&c, &alone, 0, 1, 1, 0);
                for (int d = 0; d < MEANS_DIM; d++) mu[d] = c.out[d];
                means m = means_of(mu);
                size_t size = both.method->cpu->state ? both.method->cpu->state(&c.geom, &both) : 0;
                CHECK_INT(size > 0, v == 5);
                for (int call = 0; call < (SANITIZED ? 5 : 15); call++) {
                    c.queries[0].state = size ? calloc(1, size) : NULL;
                    for (uint32_t position = size ? 7 : 8; position <= 8; position++) { // a carried threshold has a step before
                        c.queries[0].position = position;
                        ref_decode_spec(&c, &both, 0, 1, (uint32_t)(test_seed + 1000 + call), 0);
                    }
                    for (int h = 0; h < HEADS; h++) means_add(&m, c.out + (size_t)h * MEANS_DIM);
                    free(c.queries[0].state), c.queries[0].state = NULL;
                }
                means_verdict got = means_judge(&m, 1e-5);
                if (got.is_biased)
                    FAIL("%s+%s on %s: off by %+.3f%% of the output of %s (standard error %.3f%%), a channel by %.1f standard "
                         "errors",
                         sets[i], values[v], means_problems[problem], 100 * got.bias, sets[i], 100 * got.error, got.worst);
                n_random += got.error > 1e-4;
            }
        ref_cache_free(&c);
    }
    CHECK(n_random > MEANS_PROBLEMS * N_SETS * 6 / 2); // elsewhere the set has few rows, or one row has all mass
}

// ---- a set of all rows ----

static void whole_set_has_the_bits_of_the_draw_alone(void) {
    static const char *const whole[] = {"topk:k=2000",
                                        "topp:p=1",
                                        "streaming:window=2000",
                                        "quest:tokens=2000",
                                        "saap:l=64:dense-layers=0",
                                        "saap-kmeans:dense-layers=7"};
    static const char *const values[] = {"santa:S=33",
                                         "santa-strat:S=33",
                                         "santa-sys:S=33",
                                         "santa-prop:S=33",
                                         "santa-flash:S=33",
                                         "santa-sys:S=33:budget=variance",
                                         "santa-pps:S=33",
                                         "santa-pps:S=33:pps=sys",
                                         "santa-pps:S=33:budget=variance",
                                         "santa-prop:S=33:tile=64",
                                         "santa-flash:S=33:tile=512",
                                         "santa-prop:S=33:value=adds"};
    enum { HEADS = 8 };
    for (int problem = 0; problem < MEANS_PROBLEMS; problem++) {
        int n = means_rows(problem);
        double mu[MEANS_DIM];
        float want[HEADS * MEANS_DIM];
        ref_cache c = ref_cache_new(HEADS, 2, MEANS_DIM, 1, &n, 0, test_seed);
        means_fill(&c, problem, test_seed + problem, mu);
        for (int v = 0; v < 12; v++) {
            ref_decode(&c, values[v], 0, 1, 3, 0);
            memcpy(want, c.out, sizeof want);
            for (int i = 0; i < 6; i++) {
                sl_attn_spec both = joined(whole[i], values[v]);
                ref_decode_spec(&c, &both, 0, 1, 3, 0);
                if (memcmp(want, c.out, sizeof want))
                    FAIL("%s+%s on %s: other bits than %s", whole[i], values[v], means_problems[problem], values[v]);
            }
        }
        ref_cache_free(&c);
    }
}

// ---- rows outside of the set, and reports ----

typedef struct set_of {
    char in[MODEL_HEADS][MODEL_ROWS];
} set_of;

// The rows that the first method takes when it runs alone.
static set_of watch_set(ref_cache *c, const char *first) {
    static set_of set;
    sl_attn_spec spec = parse(first);
    watched_method toy;
    watch_draw(&spec, &toy);
    ref_decode_spec(c, &spec, 0, 1, 5, 1);
    for (int h = 0; h < c->geom.n_heads; h++)
        for (int j = 0; j < MODEL_ROWS; j++) set.in[h][j] = j < c->seqs[0].n_tokens && watched[h].count[j] > 0;
    return set;
}

static int in_group(const set_of *set, int first, int n, int j) {
    int any = 0;
    for (int h = first; h < first + n; h++) any |= set->in[h][j];
    return any;
}

// Values of rows in no set of a KV head are NaN. With streaming, such keys are NaN too.
static void plant_outside(ref_cache *c, const set_of *set, int with_keys) {
    int group = c->geom.n_heads / c->geom.n_kv_heads;
    for (int h = 0; h < c->geom.n_kv_heads; h++)
        for (int j = 0; j < c->seqs[0].n_tokens; j++)
            for (int d = 0; d < MODEL_DIM && !in_group(set, h * group, group, j); d++) {
                ((bf16 *)ref_v_row(c, 0, h, j))[d] = 0x7fc0;
                if (with_keys) ((bf16 *)ref_k_row(c, 0, h, j))[d] = 0x7fc0;
            }
}

static void check_reports(const ref_cache *c, const char *first, const char *value, const set_of *set, int S) {
    int group = c->geom.n_heads / c->geom.n_kv_heads, n = c->seqs[0].n_tokens, fresh = n - (n - 1) / SL_PAGE * SL_PAGE;
    int row = 2 * MODEL_DIM;
    sl_attn_spec both = joined(first, value), alone = parse(first);
    int all_keys = sl_composition_of(&both).propose->exact, by_norm = strstr(value, "santa-pps") || strstr(value, "variance");
    int has_extras = alone.method->cpu->needs && alone.method->stages->propose->needs;
    for (int h = 0; h < c->geom.n_heads; h++) {
        const sl_attn_report *r = &c->reports[h];
        int first_head = h / group * group, n_set = 0, n_fresh = 0, own = 0, n_norms = 0, page = -1;
        for (int j = 0; j < n; j++) {
            int in = in_group(set, first_head, group, j);
            n_set += in, n_fresh += in && j >= n - fresh, own += set->in[h][j];
            if (!in || j / SL_PAGE == page) continue;
            page = j / SL_PAGE; // the norms of a page are one block
            n_norms += j >= n - fresh ? fresh : SL_PAGE;
        }
        int k_rows = all_keys ? n : has_extras ? n_set - n_fresh + fresh : n_set;
        if ((int)r->k_rows != k_rows) FAIL("%s+%s: %u rows of K, expected %d", first, value, r->k_rows, k_rows);
        CHECK(r->v_rows >= 1 && (int)r->v_rows <= S && (int)r->v_rows <= own);
        CHECK((int)r->v_distinct <= n_set && r->v_distinct >= r->v_rows);
        CHECK_INT(r->fallback, 0);
        uint64_t read = (uint64_t)k_rows * row + (uint64_t)r->v_distinct * row + (by_norm ? 2 * (uint64_t)n_norms : 0);
        if (has_extras ? r->bytes <= read : r->bytes != read) // and the extras
            FAIL("%s+%s: %llu bytes, expected %llu", first, value, (unsigned long long)r->bytes, (unsigned long long)read);
    }
}

static void rows_outside_have_no_effect(void) {
    static const char *const values[] = {"santa-sys:S=12", "santa-prop:S=12", "santa:S=12:budget=variance",
                                         "santa-pps:S=12:budget=even"};
    static const int lengths[] = {700, 1300, 257};
    for (int l = 0; l < 3; l++)
        for (int i = 0; i < N_SETS; i++) {
            ref_cache c = ref_cache_new(MODEL_HEADS, 2, MODEL_DIM, 1, &lengths[l], 1, test_seed + l);
            ref_cache planted =
                ref_cache_new(MODEL_HEADS, 2, MODEL_DIM, 1, &lengths[l], 1, test_seed + l); // without extras yet
            set_of set = watch_set(&c, sets[i]);
            plant_outside(&planted, &set, !strncmp(sets[i], "streaming", 9));
            for (int v = 0; v < 4; v++) {
                sl_attn_spec both = joined(sets[i], values[v]);
                ref_decode_spec(&c, &both, 0, 1, 5, 1);
                check_reports(&c, sets[i], values[v], &set, v == 2 ? 4 * 12 : 12);
                ref_decode_spec(&planted, &both, 0, 1, 5, 1);
                if (memcmp(c.out, planted.out, MODEL_HEADS * MODEL_DIM * sizeof *c.out))
                    FAIL("%s+%s, %d rows: rows outside of the set change the output", sets[i], values[v], lengths[l]);
            }
            ref_cache_free(&planted);
            ref_cache_free(&c);
        }
}

// Many draws take every row of the set once, so the output is the set's, up to the rounding of masses to bf16.
static void every_row_of_the_set(void) {
    static const int n = 1000;
    ref_cache c = ref_cache_new(MODEL_HEADS, 2, MODEL_DIM, 1, &n, 2, test_seed);
    ref_add_to_values(&c, 1);
    for (int i = 0; i < N_SETS; i++) {
        float want[MODEL_HEADS * MODEL_DIM];
        sl_attn_spec alone = parse(sets[i]), both = joined(sets[i], "santa-pps:S=2000:budget=even");
        set_of set = watch_set(&c, sets[i]);
        ref_decode_spec(&c, &alone, 0, 1, 5, 1);
        memcpy(want, c.out, sizeof want);
        ref_decode_spec(&c, &both, 0, 1, 5, 1);
        for (int h = 0; h < MODEL_HEADS; h++) {
            double mu[MODEL_DIM];
            int own = 0;
            for (int j = 0; j < n; j++) own += set.in[h][j];
            for (int d = 0; d < MODEL_DIM; d++) mu[d] = want[h * MODEL_DIM + d];
            double error = ref_relative(c.out + h * MODEL_DIM, mu, MODEL_DIM);
            if (!(error < 0x1p-7)) FAIL("%s, head %d: error %g", sets[i], h, error);
            CHECK((int)c.reports[h].v_rows <= own && (int)c.reports[h].v_rows > 0);
        }
    }
    ref_cache_free(&c);
}

// ---- streaming: rows as ranges ----

// Attention to the first `sink` and the last `window` rows, in double precision.
static void attend_to_window(const ref_cache *c, int head, int sink, int window, double *out) {
    int dim = c->geom.head_dim, n = c->seqs[0].n_tokens, h = head / (c->geom.n_heads / c->geom.n_kv_heads);
    double total = 0, k[128], v[128];
    memset(out, 0, dim * sizeof *out);
    for (int j = 0; j < n; j++) {
        double dot = 0;
        if (j >= sink && j < n - window) continue;
        ref_key(c, 0, h, j, k), ref_value(c, 0, h, j, v);
        for (int d = 0; d < dim; d++) dot += c->q[head * dim + d] * k[d];
        double e = exp(dot / sqrt(dim));
        total += e;
        for (int d = 0; d < dim; d++) out[d] += e * v[d];
    }
    for (int d = 0; d < dim; d++) out[d] /= total;
}

static void streaming_reads_ranges(void) {
    static const int lengths[] = {1, 31, 257, 1023, 1025, 2100, 5000}, sinks[] = {0, 3, 256, 1100, 4000},
                     windows[] = {1, 64, 1000, 1024, 4096};
    static const sl_format formats[] = {SL_BF16, SL_INT8, SL_FP8};
    for (int i = 0; i < 7 * 5 * 5; i++) {
        int n = lengths[i / 25], sink = sinks[i / 5 % 5], window = windows[i % 5],
            n_read = sink + window < n ? sink + window : n;
        ref_cache c = ref_cache_new(6, 2, 80, 1, &n, 1, test_seed + i);
        char attn[100];
        float dense[6 * 80];
        ref_add_to_values(&c, 1);
        ref_store_as(&c, formats[i % 3]);
        ref_decode(&c, "dense", 0, 1, 1, 0);
        memcpy(dense, c.out, sizeof dense);
        size_t row = sl_kv_row_bytes(formats[i % 3], 80);
        snprintf(attn, sizeof attn, "streaming:sink=%d:window=%d", sink, window);
        ref_decode(&c, attn, 0, 1, 1, 0);
        if (n_read == n && memcmp(dense, c.out, sizeof dense)) FAIL("%s, %d rows: other bits than dense attention", attn, n);
        for (int head = 0; head < 6; head++) {
            double want[80];
            const sl_attn_report *r = &c.reports[head];
            attend_to_window(&c, head, sink, window, want);
            double error = ref_relative(c.out + head * 80, want, 80);
            if (!(error < 1e-5)) FAIL("%s, %d rows, head %d: error %g", attn, n, head, error);
            CHECK_INT(r->k_rows, n_read);
            CHECK_INT(r->v_rows, n_read);
            CHECK_INT(r->samples, n_read);
            CHECK_INT(r->bytes, 2 * row * n_read);
            CHECK_INT(r->dense_bytes, 2 * row * n);
        }
        ref_cache_free(&c);
    }
}

// ---- specifications ----

static void specifications(void) {
    char text[200];
    sl_attn_spec spec = parse("quest:tokens=512+santa-prop:S=64");
    sl_attn_format(&spec, text, sizeof text);
    CHECK_STR(text, "quest:tokens=512+santa-prop:S=64");
    CHECK_INT(sl_attn_get(&spec, "tokens"), 512);
    CHECK_INT(sl_attn_get(&spec, "S"), 64);
    CHECK_INT(sl_attn_mean_of(&spec), SL_MEAN_BIASED);
    static const char *const cpu_only[] = {"quest+santa-pps",
                                           "topk+santa-sys:budget=variance",
                                           "streaming+santa-prop:tile=64",
                                           "saap+santa-sys",
                                           "dense-q+santa-pps",
                                           "santa-prop:tile=64",
                                           "santa-flash:tile=512",
                                           "santa-sys:value=adds",
                                           "topk+santa-prop:value=adds",
                                           "vattention:predictor=hash",
                                           "vattention:predictor=buckets"};
    for (size_t i = 0; i < sizeof cpu_only / sizeof *cpu_only; i++) {
        spec = parse(cpu_only[i]);
        if (sl_attn_on_gpu(&spec)) FAIL("%s: a GPU offers it, although no kernel does", cpu_only[i]);
    }
#ifdef SLEIGH_CUDA
    static const char *const both[] = {
        "quest",      "santa-prop:tile=256",   "bernoulli+santa-prop",       "quest+santa-prop",         "topk+santa-sys",
        "topp+santa", "streaming+santa-flash", "vattention:predictor=quest", "vattention:predictor=int4"};
    for (size_t i = 0; i < sizeof both / sizeof *both; i++) {
        spec = parse(both[i]);
        if (!sl_attn_on_gpu(&spec)) FAIL("%s: a GPU does not offer it", both[i]);
    }
#endif
    static const struct {
        const char *text, *part;
        int code;
    } bad[] = {
        {"magicpig+santa-sys", "magicpig neither estimates scores nor takes a set of rows", SL_ERR_UNSUPPORTED},
        {"vattention+santa-sys", "vattention neither estimates scores nor takes a set of rows", SL_ERR_UNSUPPORTED},
        {"saap-is+santa-sys", "saap-is neither", SL_ERR_UNSUPPORTED},
        {"random+santa-sys", "random neither", SL_ERR_UNSUPPORTED},
        {"topk+quest", "quest does not draw rows of V from given scores", SL_ERR_UNSUPPORTED},
        {"quest+vattention", "vattention does not draw rows of V from given scores", SL_ERR_UNSUPPORTED},
        {"saap+santa-is", "santa-is does not draw rows of V from given scores", SL_ERR_UNSUPPORTED},
        {"topk+santa-pps:epsilon=0.1", "the rows that topk leaves out have an error without a bound", SL_ERR_ARG},
        {"dense-q+santa-pps:epsilon=0.1",
         "found epsilon 0.1, expected 0: the approximate scores of dense-q have an error without", SL_ERR_ARG},
        {"bernoulli-group+santa-pps:epsilon=0.2:certify=head", "the approximate scores of bernoulli-group have", SL_ERR_ARG},
    };
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        sl_error err;
        CHECK_ERR(sl_attn_parse(bad[i].text, &spec, &err), err, bad[i].code, bad[i].part);
    }
}

static const test_case cases[] = {
    {"mean-is-that-of-the-set", 0, mean_is_that_of_the_set},
    {"whole-set-has-the-bits-of-the-draw-alone", 0, whole_set_has_the_bits_of_the_draw_alone},
    {"rows-outside-have-no-effect", 0, rows_outside_have_no_effect},
    {"every-row-of-the-set", 0, every_row_of_the_set},
    {"streaming-reads-ranges", 0, streaming_reads_ranges},
    {"specifications", 0, specifications},
    {0},
};
const test_suite suite_compositions = {"compositions", cases};
