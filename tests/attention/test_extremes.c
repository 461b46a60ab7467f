// tests/attention/test_extremes.c - scores that stored masses cannot hold: huge, infinite, NaN. Every method must return the
// output of dense attention for such a head and count a fallback. Other heads must keep their bits.
#include "attention/stages/stages.h"
#include "tests/support/extremes.h"
#include "tests/support/reference.h"
#include "tests/test.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { HEADS = 8, KV_HEADS = 2, GROUP = HEADS / KV_HEADS, DIM = 64, ROWS = 1500, SEED = 5, LAYER = 1 };

// Every method of the registry occurs in the list.
static void none_is_missing(void) {
    for (int i = 0; sl_attn_methods[i]; i++) {
        int n = 0;
        for (int k = 0; k < n_extremes; k++) {
            sl_attn_spec spec;
            sl_error err;
            CHECK_OK(sl_attn_parse(extremes[k].attn, &spec, &err), err);
            n += spec.method == sl_attn_methods[i];
        }
        if (n == 0 && sl_attn_methods[i]->cpu->decode) FAIL("method %s is in no row of the table", sl_attn_methods[i]->name);
    }
}

static ref_cache new_cache(void) {
    static const int n = ROWS;
    ref_cache c = ref_cache_new(HEADS, KV_HEADS, DIM, 1, &n, 1, test_seed);
    ref_add_to_values(&c, 1); // no output is near 0
    return c;
}

// One run of a method: outputs, reports, fallbacks.
typedef struct run {
    float out[HEADS * DIM];
    sl_attn_report reports[HEADS];
    uint64_t fallbacks;
} run;

static run decode(ref_cache *c, const char *attn) {
    run r;
    for (int i = 0; i < HEADS * DIM; i++) c->out[i] = 12345; // must be overwritten
    r.fallbacks = ref_decode(c, attn, 0, 1, SEED, LAYER).fallbacks;
    memcpy(r.out, c->out, sizeof r.out);
    memcpy(r.reports, c->reports, sizeof r.reports);
    return r;
}

static void check_same_bits(const run *got, const run *want, int head, const char *attn, const char *what) {
    if (memcmp(got->out + head * DIM, want->out + head * DIM, DIM * sizeof *got->out))
        FAIL("%s: head %d differs from %s: %g in place of %g", attn, head, what, got->out[head * DIM], want->out[head * DIM]);
}

static void check_nan(const run *r, int head, const char *attn) {
    for (int d = 0; d < DIM; d++)
        if (!isnan(r->out[head * DIM + d]))
            FAIL("%s: head %d, output %d is %g, expected NaN", attn, head, d, r->out[head * DIM + d]);
}

static void check_usable(const run *r, int head, const char *attn) { // finite, written, not zero
    double size = 0;
    for (int d = 0; d < DIM; d++) {
        double x = r->out[head * DIM + d];
        if (!isfinite(x) || x == 12345) FAIL("%s: head %d, output %d is %g", attn, head, d, x);
        size += fabs(x);
    }
    if (!(size > 0)) FAIL("%s: head %d is zero", attn, head);
}

// ---- huge scores ----

// Multiplies one query, and adds `shift` to channel 0 of all keys, so the scores lie far above or far below the range.
static void make_huge(ref_cache *c, int head, float factor) {
    for (int d = 0; d < DIM; d++) c->q[head * DIM + d] *= factor;
}

static void check_huge_head(const extreme_subject *s, const run *plain, const run *got, const run *dense, int huge) {
    for (int head = 0; head < HEADS; head++) {
        int is_huge = head == huge;
        check_usable(got, head, s->attn);
        CHECK_INT(got->reports[head].fallback, is_huge && s->falls_back);
        if (is_huge && s->falls_back) {
            check_same_bits(got, dense, head, s->attn, "dense attention");
            CHECK_INT(got->reports[head].v_rows, ROWS);
            CHECK_INT(got->reports[head].v_distinct, ROWS);
        }
        // bernoulli-group has one set of features for the group: the huge query changes the other heads of its group
        int shares_query = !strncmp(s->attn, "bernoulli-group", 15) && head / GROUP == huge / GROUP;
        int shares_budget = strstr(s->attn, "budget=variance") != NULL;
        if (!is_huge && !shares_query && !shares_budget)
            check_same_bits(got, plain, head, s->attn, "a run without the huge head");
    }
    CHECK_INT(got->fallbacks, s->falls_back);
}

static void huge_scores(void) {
    static const float factors[] = {1e5f, -1e6f, 1e15f};
    ref_cache c = new_cache();
    for (int i = 0; i < n_extremes; i++) {
        run plain = decode(&c, extremes[i].attn);
        CHECK_INT(plain.fallbacks, 0);
        for (int k = 0; k < 3; k++) {
            int head = 2 * k;
            make_huge(&c, head, factors[k]);
            run dense = decode(&c, "dense"), got = decode(&c, extremes[i].attn);
            if (!(ref_error(&c, 0, 0) < INFINITY)) FAIL("%s: no number", extremes[i].attn);
            check_huge_head(&extremes[i], &plain, &got, &dense, head);
            make_huge(&c, head, 1 / factors[k]); // nearly the old query: compute `plain` again
            plain = decode(&c, extremes[i].attn);
        }
    }
    ref_cache_free(&c);
}

// All scores of a head lie far below the range. The rows still differ, and the reference knows by how much.
static void all_far_below(void) {
    ref_cache c = new_cache();
    for (int h = 0; h < KV_HEADS; h++)
        for (int j = 0; j < ROWS; j++) ((bf16 *)ref_k_row(&c, 0, h, j))[0] = sl_f32_to_bf16(64);
    c.q[0] = -4096; // -32768 / sqrt(DIM) * ... : q k / sqrt(DIM) = -32768 nats
    for (int i = 0; i < n_extremes; i++) {
        run dense = decode(&c, "dense");
        CHECK(ref_error(&c, 0, 0) < 1e-2); // fp32 scores of 47,000 octaves are known within 2^-8 octave
        run got = decode(&c, extremes[i].attn);
        check_usable(&got, 0, extremes[i].attn);
        CHECK_INT(got.reports[0].fallback, extremes[i].falls_back);
        if (extremes[i].falls_back) check_same_bits(&got, &dense, 0, extremes[i].attn, "dense attention");
        for (int head = 1; head < HEADS; head++) CHECK_INT(got.reports[head].fallback, 0);
    }
    ref_cache_free(&c);
}

// Up to SL_REF_MOST heads are drawn, also where powers of two exceed a double (1,024 octaves). Beyond it they fall back. All
// keys have the same large channel: scores keep their differences, which fp32 knows within 2^-9 octave here.
static void the_limit(void) {
    static const struct {
        double octaves;
        int falls_back;
    } sizes[] = {{-31900, 0}, {-2000, 0}, {1100, 0}, {2000, 0}, {31900, 0}, {32100, 1}, {-32100, 1}};
    static const char *const methods[] = {"santa-sys",
                                          "santa-prop:S=1500",
                                          "santa-pps:S=1500",
                                          "santa-pps:epsilon=0.2",
                                          "santa-pps:epsilon=0.2:certify=head",
                                          "topk:k=1500",
                                          "vattention:epsilon=0.01",
                                          "santa-is:S=1500",
                                          "santa-pps:budget=variance"};
    for (int k = 0; k < 7; k++) {
        ref_cache c = new_cache();
        for (int h = 0; h < KV_HEADS; h++)
            for (int j = 0; j < ROWS; j++) ((bf16 *)ref_k_row(&c, 0, h, j))[0] = sl_f32_to_bf16(256);
        for (int head = 0; head < HEADS; head++) c.q[head * DIM] = (float)(sizes[k].octaves * log(2) * sqrt(DIM) / 256);
        for (int m = 0; m < (int)(sizeof methods / sizeof *methods); m++) {
            run got = decode(&c, methods[m]);
            for (int head = 0; head < HEADS; head++) {
                double error = ref_error(&c, 0, head);
                check_usable(&got, head, methods[m]);
                if (!(error < (m == 0 || m == 8 ? 0.5 : 0.25))) // 128 draws; all rows, or a stated error
                    FAIL("%s at %g octaves, head %d: relative error %g", methods[m], sizes[k].octaves, head, error);
                if (strstr(methods[m], "epsilon=0.2") == NULL) CHECK_INT(got.reports[head].fallback, sizes[k].falls_back);
            }
        }
        ref_cache_free(&c);
    }
}

// ---- NaN and infinity ----

static void nan_query(void) {
    static const float values[] = {NAN, INFINITY, -INFINITY};
    ref_cache c = new_cache();
    for (int i = 0; i < n_extremes; i++) {
        run plain = decode(&c, extremes[i].attn);
        for (int k = 0; k < 3; k++) {
            int bad = 3 + k, at = bad * DIM + (k == 1 ? DIM - 1 : 7);
            float was = c.q[at];
            c.q[at] = values[k];
            run dense = decode(&c, "dense"), got = decode(&c, extremes[i].attn);
            check_nan(&dense, bad, "dense");
            check_nan(&got, bad, extremes[i].attn);
            for (int head = 0; head < HEADS; head++) {
                int shares = strstr(extremes[i].attn, "budget=variance") != NULL ||
                             (!strncmp(extremes[i].attn, "bernoulli-group", 15) && head / GROUP == bad / GROUP);
                if (head == bad) continue;
                check_usable(&got, head, extremes[i].attn);
                if (!shares) check_same_bits(&got, &plain, head, extremes[i].attn, "a run without NaN");
            }
            c.q[at] = was;
        }
    }
    ref_cache_free(&c);
}

// A row of KV head 1 is NaN, in a page with extras and in the newest page, which has none.
static void nan_key(void) {
    static const int rows[] = {0, 700, ROWS - 1};
    for (int k = 0; k < 3; k++) {
        ref_cache c = new_cache();
        bf16 *bad = (bf16 *)ref_k_row(&c, 0, 1, rows[k]);
        for (int d = 0; d < DIM; d++) bad[d] = 0x7fc0;
        for (int i = 0; i < n_extremes; i++) {
            run got = decode(&c, extremes[i].attn);
            int in_window = !strncmp(extremes[i].attn, "streaming", 9) && rows[k] != 700;
            for (int head = 0; head < HEADS; head++) {
                if (head / GROUP == 1 && (extremes[i].sees_rows > 0 || in_window))
                    check_nan(&got, head, extremes[i].attn);
                else if (head / GROUP == 0 || in_window || extremes[i].sees_rows == 0)
                    check_usable(&got, head, extremes[i].attn);
            }
        }
        ref_cache_free(&c);
    }
}

// One channel of one key is NaN or infinite. A page extra must not hide it.
static void one_channel_of_a_key(void) {
    static const bf16 values[] = {0x7fc0, 0x7f80, 0xff80};
    for (int k = 0; k < 3; k++) {
        ref_cache c = new_cache();
        ((bf16 *)ref_k_row(&c, 0, 1, 300))[9] = values[k];
        for (int i = 0; i < n_extremes; i++) {
            if (extremes[i].sees_rows < 1 || strstr(extremes[i].attn, "bernoulli")) continue; // reads some features only
            run got = decode(&c, extremes[i].attn);
            for (int head = 0; head < HEADS; head++) {
                double score = (double)c.q[head * DIM + 9] * sl_bf16_to_f32(values[k]);
                if (head / GROUP == 0)
                    check_usable(&got, head, extremes[i].attn);
                else if (isnan(score) || score > 0) // else the row has no mass, and dense attention leaves it out
                    check_nan(&got, head, extremes[i].attn);
            }
        }
        ref_cache_free(&c);
    }
}

// Keys that f16 steps cannot hold within half a step: the scores of the page are NaN, and the head is attended to exactly.
static void keys_beyond_the_quantiser(void) {
    static const char *const methods[] = {"santa-is", "santa-is:proposal=int8", "santa-is:proposal=int3"};
    ref_cache c = new_cache();
    ((bf16 *)ref_k_row(&c, 0, 0, 40))[3] = sl_f32_to_bf16(3e7f);
    ((bf16 *)ref_k_row(&c, 0, 0, 41))[3] = sl_f32_to_bf16(-3e7f);
    for (int head = 0; head < GROUP; head++) c.q[head * DIM + 3] = 1e-6f;
    run dense = decode(&c, "dense");
    for (int m = 0; m < 3; m++) {
        run got = decode(&c, methods[m]);
        for (int head = 0; head < HEADS; head++) CHECK_INT(got.reports[head].fallback, head < GROUP);
        for (int head = 0; head < GROUP; head++) check_same_bits(&got, &dense, head, methods[m], "dense attention");
    }
    ref_cache_free(&c);
}

// Prefill: a NaN in q, or in a key that the query sees, makes the output of this query NaN, and no other output.
static void prefill(void) {
    enum { N = 300 };
    static const int n = N;
    ref_cache c = ref_cache_new(2, 1, DIM, 1, &n, 1, test_seed);
    float *q = malloc(N * 2 * DIM * sizeof *q), *out = malloc(N * 2 * DIM * sizeof *out);
    uint64_t rng = test_seed;
    sl_error err;
    sl_attn_spec dense;
    for (int i = 0; i < N * 2 * DIM; i++) q[i] = (float)test_normal(&rng);
    q[(100 * 2 + 1) * DIM + 5] = NAN;
    for (int d = 0; d < DIM; d++) ((bf16 *)ref_k_row(&c, 0, 0, 270))[d] = 0x7fc0;
    CHECK_OK(sl_attn_parse("dense", &dense, &err), err);
    CHECK_OK(sl_workspace_reserve(&c.ws, dense.method->cpu->workspace(&c.geom, &dense, 1, N, N), &err), err);
    sl_attn_prefill_args args = {
        .geom = &c.geom, .spec = &dense, .n_tokens = N, .q = q, .out = out, .kv = c.queries[0].kv, .ws = &c.ws};
    dense.method->cpu->prefill(&args);
    for (int i = 0; i < N; i++)
        for (int head = 0; head < 2; head++)
            for (int d = 0; d < DIM; d++) {
                int want = i >= 270 || (i == 100 && head == 1);
                if ((isnan(out[(i * 2 + head) * DIM + d]) != 0) != want)
                    FAIL("token %d, head %d: %g", i, head, out[(i * 2 + head) * DIM + d]);
            }
    free(q), free(out);
    ref_cache_free(&c);
}

static const test_case cases[] = {
    {"none-is-missing", 0, none_is_missing},
    {"huge-scores", 0, huge_scores},
    {"all-far-below", 0, all_far_below},
    {"the-limit", 0, the_limit},
    {"nan-query", 0, nan_query},
    {"nan-key", 0, nan_key},
    {"one-channel-of-a-key", 0, one_channel_of_a_key},
    {"keys-beyond-the-quantiser", 0, keys_beyond_the_quantiser},
    {"prefill", 0, prefill},
    {0},
};
const test_suite suite_extremes = {"extremes", cases};
