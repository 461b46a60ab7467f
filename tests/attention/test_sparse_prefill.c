// tests/attention/test_sparse_prefill.c - the prefill attention of the CPU with a mask, against double precision and against
// dense attention bit by bit, and the rule of `threshold` with its error bound.
#include "tests/support/mask_reference.h"
#include "tests/support/threads.h"
#include "tests/test.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

static sl_error err;

static const struct {
    int heads, kv_heads, dim, base, n;
} sizes[] = {{1, 1, 64, 0, 1},    {2, 2, 64, 0, 127},   {4, 1, 80, 0, 128},   {8, 1, 96, 0, 129},
             {4, 1, 128, 0, 513}, {8, 2, 64, 200, 300}, {3, 1, 16, 383, 130}, {2, 1, 64, 1000, 1}};
enum { N_SIZES = sizeof sizes / sizeof *sizes };

static segment segment_at(int i, uint64_t seed) {
    return segment_new(sizes[i].heads, sizes[i].kv_heads, sizes[i].dim, sizes[i].base, sizes[i].n, seed);
}

static size_t out_bytes(const segment *s) {
    return (size_t)s->n_tokens * s->c.geom.n_heads * s->c.geom.head_dim * sizeof(float);
}

static float *copy_out(const segment *s) {
    return memcpy(malloc(out_bytes(s)), s->out, out_bytes(s));
}

// Every block but the diagonal and the sink with this probability, other blocks for every head.
static void random_mask(segment *s, double density, uint64_t seed) {
    sl_prefill_mask *m = &s->mask;
    memset(m->bits, 0, sl_mask_bytes(m));
    for (int head = 0; head < m->n_heads; head++)
        for (int i = m->first; i < m->first + m->n; i++)
            for (int j = 0; j <= i; j++)
                if (j == 0 || j == i || test_uniform(&seed) < density) sl_mask_set(sl_mask_row(m, head, i), j);
}

// ---- against double precision ----

// fp32 arithmetic, as in the test kernels/dense-prefill.
static const double RELATIVE = 1e-5;

// Attention of one row over the keys whose key block is not skipped. skipped NULL: none.
static void naive_row(const segment *s, int head, int token, const char *skipped, double *mu) {
    int n = s->base + token + 1, dim = s->c.geom.head_dim, h = head / (s->c.geom.n_heads / s->c.geom.n_kv_heads);
    double *score = malloc(n * sizeof *score), sum = 0;
    naive_scores(s, head, token, score);
    memset(mu, 0, dim * sizeof *mu);
    for (int j = 0; j < n; j++) {
        double p = skipped && skipped[j / 128] ? 0 : exp2(score[j]);
        sum += p;
        for (int d = 0; d < dim; d++) mu[d] += p * sl_bf16_to_f32(ref_v_row(&s->c, 0, h, j)[d]);
    }
    for (int d = 0; d < dim; d++) mu[d] /= sum;
    free(score);
}

static void masked(void) {
    for (int k = 0; k < N_SIZES; k++) {
        segment s = segment_at(k, test_seed + k);
        random_mask(&s, 0.4, test_seed + 77);
        segment_attend(&s, &s.mask, NULL, s.n_tokens, NULL, NULL);
        for (int token = 0; token < s.n_tokens; token += token < 3 || token > s.n_tokens - 4 ? 1 : 11)
            for (int head = 0; head < s.c.geom.n_heads; head++) {
                int i = (s.base + token) / 128;
                char skipped[64];
                double mu[128];
                for (int j = 0; j <= i; j++) skipped[j] = !sl_mask_has(sl_mask_row(&s.mask, head, i), j);
                naive_row(&s, head, token, skipped, mu);
                const float *out = s.out + ((size_t)token * s.c.geom.n_heads + head) * s.c.geom.head_dim;
                double relative = ref_relative(out, mu, s.c.geom.head_dim);
                if (!(relative < RELATIVE)) FAIL("size %d, token %d, head %d: relative error %.3g", k, token, head, relative);
            }
        segment_free(&s);
    }
}

// ---- bits ----

static void check_bits(segment *s, const sl_prefill_mask *mask, const char *rule, const int *steps, int n_steps,
                       const float *want, const char *what) {
    for (int k = 0; k < 2 * n_steps; k++) {
        int step = steps[k / 2] < s->n_tokens ? steps[k / 2] : s->n_tokens;
        test_threads(1 + k % 2);
        segment_attend(s, mask, rule, step, NULL, NULL);
        test_threads(1);
        if (memcmp(s->out, want, out_bytes(s)))
            FAIL("%d + %d tokens, %s, calls of %d tokens, %d threads: other bits", s->base, s->n_tokens, what, step, 1 + k % 2);
    }
}

static void full_mask(void) {
    static const int steps[] = {1 << 20, 100};
    for (int k = 0; k < N_SIZES; k++) {
        segment s = segment_at(k, test_seed + k);
        for (int i = 0; i < s.n_tokens * s.c.geom.n_heads * s.c.geom.head_dim; i++) s.q[i] *= 1.1f; // sums that are rounded
        segment_attend(&s, NULL, NULL, s.n_tokens, NULL, NULL);
        float *want = copy_out(&s);
        random_mask(&s, 1, 0);
        check_bits(&s, &s.mask, NULL, steps, 2, want, "full mask");
        free(want);
        segment_free(&s);
    }
}

static void splits(void) { // calls and threads divide a segment in any way
    static const int steps[] = {1 << 20, 1, 7, 100, 128, 129, 300};
    for (int k = 0; k < N_SIZES; k++) {
        segment s = segment_at(k, test_seed + k);
        for (int i = 0; i < s.n_tokens * s.c.geom.n_heads * s.c.geom.head_dim; i++) s.q[i] *= 1.1f;
        random_mask(&s, 0.5, test_seed + k);
        segment_attend(&s, &s.mask, NULL, s.n_tokens, NULL, NULL);
        float *want = copy_out(&s);
        check_bits(&s, &s.mask, NULL, steps, 7, want, "mask");
        free(want);
        segment_free(&s);
    }
}

// ---- counts ----

static void counts(void) {
    segment s = segment_new(4, 2, 64, 200, 700, test_seed);
    sl_prefill_count count[4] = {{0}};
    random_mask(&s, 0.3, test_seed);
    segment_attend(&s, &s.mask, NULL, s.n_tokens, NULL, count);
    for (int head = 0; head < 4; head++) {
        CHECK_INT(count[head].visited, sl_mask_count(&s.mask, head));
        CHECK_INT(count[head].causal, sl_mask_causal(&s.mask));
    }
    segment_free(&s);
}

// ---- errors ----

static void errors(void) {
    enum { FIRST = 150, N = 170, HEADS = 4, DIM = 64 };
    segment s = segment_new(HEADS, 2, DIM, 200, 700, test_seed);
    sl_attn_spec dense = {.method = &sl_method_dense};
    float *exact = malloc(sizeof *exact * N * HEADS * DIM), error[N * HEADS];
    random_mask(&s, 0.3, test_seed);
    segment_attend(&s, &s.mask, NULL, s.n_tokens, NULL, NULL);
    sl_attn_prefill_args args = {.geom = &s.c.geom,
                                 .spec = &dense,
                                 .n_tokens = s.n_tokens,
                                 .q = s.q,
                                 .out = s.out,
                                 .kv = sl_kv_view_of(&s.c.pool, &s.c.seqs[0], 0, s.base + s.n_tokens),
                                 .ws = &s.c.ws};
    sl_prefill_errors(&args, FIRST, N, exact, error);
    for (int i = 0; i < N; i += 7)
        for (int head = 0; head < HEADS; head++) {
            double mu[DIM];
            naive_row(&s, head, FIRST + i, NULL, mu);
            double want = ref_relative(s.out + ((size_t)(FIRST + i) * HEADS + head) * DIM, mu, DIM);
            CHECK_NEAR(error[i * HEADS + head], want, 2 * RELATIVE * (1 + want));
        }
    free(exact);
    segment_free(&s);
}

// ---- threshold ----

static segment uneven(int k) {
    segment s = segment_at(k, test_seed + k);
    segment_make_uneven(&s);
    return s;
}

static void check_rows(const segment *s, int head, int i, const char *skipped, const double *lost, const float *got) {
    int first = i * 128 < s->base ? s->base : i * 128, dim = s->c.geom.head_dim, n_heads = s->c.geom.n_heads;
    int h = head / (n_heads / s->c.geom.n_kv_heads);
    for (int row = first; row < (i + 1) * 128 && row < s->base + s->n_tokens; row += 9) {
        double mu[128], exact[128], most = 0, square = 0;
        size_t at = (size_t)(row - s->base) * n_heads + head;
        naive_row(s, head, row - s->base, skipped, mu);
        naive_row(s, head, row - s->base, NULL, exact);
        for (int j = 0; j <= row; j++) {
            double norm = 0;
            for (int d = 0; d < dim; d++) norm += pow(sl_bf16_to_f32(ref_v_row(&s->c, 0, h, j)[d]), 2);
            most = fmax(most, sqrt(norm));
        }
        for (int d = 0; d < dim; d++) square += pow(s->out[at * dim + d] - exact[d], 2);
        CHECK(ref_relative(s->out + at * dim, mu, dim) < RELATIVE);
        CHECK_NEAR(got[at], lost[row - first], 1e-4 * lost[row - first] + 1e-30);
        if (!(sqrt(square) <= 2 * most * got[at] + RELATIVE * most))
            FAIL("row %d: error %.3g, bound %.3g", row, sqrt(square), 2 * most * got[at]);
    }
}

static void threshold(void) {
    static const double lambdas[] = {1e-6, 1e-2, 0.3};
    double lost[128];
    char skipped[64];
    int n_skipped = 0;
    for (int k = 0; k < 3 * N_SIZES; k++) {
        char rule[64];
        segment s = uneven(k / 3);
        int n_heads = s.c.geom.n_heads;
        sl_prefill_count count[8] = {{0}};
        float *got = malloc(sizeof *got * s.n_tokens * n_heads);
        snprintf(rule, sizeof rule, "threshold:lambda=%g", lambdas[k % 3]);
        segment_attend(&s, NULL, rule, s.n_tokens, got, count);
        for (int head = 0; head < n_heads; head++) {
            CHECK_INT(count[head].causal, sl_mask_causal(&s.mask));
            for (int i = s.mask.first; i < s.mask.first + s.mask.n; i++) {
                int n = naive_rule(&s, head, i, lambdas[k % 3], skipped, lost);
                count[head].visited += n, n_skipped += n;
                check_rows(&s, head, i, skipped, lost, got);
            }
            CHECK_INT(count[head].visited, count[head].causal);
        }
        for (int i = 0; i < s.n_tokens * n_heads; i++) CHECK(got[i] <= (s.base + s.n_tokens + 127) * lambdas[k % 3]);
        free(got);
        segment_free(&s);
    }
    if (n_skipped < 50) FAIL("only %d blocks were skipped", n_skipped);
}

static void threshold_splits(void) { // calls of whole query blocks
    static const int steps[] = {1 << 20, 128, 256};
    for (int k = 0; k < 5; k++) {
        segment s = uneven(k);
        segment_attend(&s, NULL, "threshold:lambda=0.1", s.n_tokens, NULL, NULL);
        float *want = copy_out(&s);
        check_bits(&s, NULL, "threshold:lambda=0.1", steps, 3, want, "threshold");
        free(want);
        segment_free(&s);
    }
}

static void nothing_skipped(void) {
    segment s = uneven(5);
    sl_prefill_count count[8] = {{0}};
    float *lost = malloc(sizeof *lost * s.n_tokens * 8);
    segment_attend(&s, NULL, "threshold:lambda=1e-30", s.n_tokens, lost, count);
    for (int i = 0; i < s.n_tokens * 8; i++) CHECK(lost[i] == 0);
    for (int head = 0; head < 8; head++) CHECK_INT(count[head].visited, count[head].causal);
    free(lost);
    segment_free(&s);
}

// A key that is not a number reaches the output: its block is not skipped.
static void not_a_number(void) {
    segment s = segment_new(1, 1, 64, 0, 500, test_seed);
    for (int j = 128; j < 500; j++)
        for (int d = 0; d < 64; d++) ((bf16 *)ref_k_row(&s.c, 0, 0, j))[d] = 0;
    for (int i = 0; i < 500; i++)
        for (int d = 0; d < 64; d++) s.q[i * 64 + d] = 3, ((bf16 *)ref_k_row(&s.c, 0, 0, 0))[d] = sl_f32_to_bf16(3);
    ((bf16 *)ref_k_row(&s.c, 0, 0, 300))[7] = 0x7fc0;
    segment_attend(&s, NULL, "threshold", 500, NULL, NULL);
    for (int i = 0; i < 500; i++)
        if (isnan(s.out[i * 64]) != (i >= 300)) FAIL("token %d: %g", i, s.out[i * 64]);
    segment_free(&s);
}

// ---- a proposal and the attention together ----

// The rows of a method's mask lose what the mask leaves out: the error is at most 2 max |v| times the lost share.
static void from_proposal(void) {
    static const char *const methods[] = {"sample:alpha_c=0.5:alpha_s=0.5",
                                          "vertical-slash:columns=3:slashes=3",
                                          "xattention:threshold=0.5",
                                          "oracle:density=0.3",
                                          "streaming:window=100",
                                          "bigbird",
                                          "hash-sparse",
                                          "hyperattention:bucket=128:columns=0:dense=128"};
    segment s = segment_new(4, 2, 64, 60, 700, test_seed);
    segment_attend(&s, NULL, NULL, s.n_tokens, NULL, NULL);
    float *dense = copy_out(&s), most = 0;
    for (int j = 0; j < 760; j++)
        for (int h = 0; h < 2; h++) {
            float norm = 0;
            for (int d = 0; d < 64; d++) norm += powf(sl_bf16_to_f32(ref_v_row(&s.c, 0, h, j)[d]), 2);
            most = fmaxf(most, sqrtf(norm));
        }
    for (size_t k = 0; k < sizeof methods / sizeof *methods; k++) {
        segment_mask(&s, methods[k]);
        sl_mask_args args = segment_args(&s, NULL);
        segment_attend(&s, &s.mask, NULL, 300, NULL, NULL);
        CHECK_OK(sl_workspace_reserve(&s.c.ws, sl_mask_measure_workspace(&s.c.geom, 760), &err), err);
        for (int token = 0; token < 700; token += 37)
            for (int head = 0; head < 4; head++) {
                double square = 0, lost = 1 - ldexp(sl_mask_measure(&args, head, token, 1), -SL_SHARE_BITS);
                for (int d = 0; d < 64; d++)
                    square += pow(s.out[(token * 4 + head) * 64 + d] - dense[(token * 4 + head) * 64 + d], 2);
                // A share is wrong by up to 2% (rounded scores and masses), and the lost share by no more.
                if (!(sqrt(square) <= 2 * most * (1.02 * lost + 1e-5)))
                    FAIL("%s, token %d, head %d: error %.3g, lost share %.3g", methods[k], token, head, sqrt(square), lost);
            }
    }
    free(dense);
    segment_free(&s);
}

static const test_case cases[] = {
    {"masked", 0, masked},
    {"full-mask", 0, full_mask},
    {"splits", 0, splits},
    {"counts", 0, counts},
    {"errors", 0, errors},
    {"threshold", 0, threshold},
    {"threshold-splits", 0, threshold_splits},
    {"nothing-skipped", 0, nothing_skipped},
    {"not-a-number", 0, not_a_number},
    {"from-proposal", 0, from_proposal},
    {0},
};
const test_suite suite_sparse_prefill = {"sparse_prefill", cases};
