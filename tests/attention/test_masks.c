// tests/attention/test_masks.c - masks for prefill: the integers of probabilities against double precision, every mask against
// its definition (mask_reference.h), planted structure, the measured share of the mass.
#include "attention/prefill/row_sums.h"
#include "attention/prefill/integer_softmax.h"
#include "tests/support/mask_reference.h"
#include "tests/support/threads.h"
#include "tests/test.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

static sl_error err;

// ---- sets of blocks ----

static void sets(void) {
    uint64_t seed = test_seed, row[4] = {0};
    char want[256] = {0};
    for (int i = 0; i < 60; i++) {
        int block = (int)(test_uniform(&seed) * 256);
        want[block] = 1, sl_mask_set(row, block);
    }
    for (int last = 0; last < 256; last++)
        for (int from = 0; from <= last + 1; from++) {
            int next = from;
            while (next <= last && !want[next]) next++;
            CHECK_INT(sl_mask_next(row, from, last), next);
        }
    for (int i = 0; i < 256; i++) CHECK_INT(sl_mask_has(row, i), want[i]);
}

static void shape(void) {
    static const struct {
        int n_tokens, n_kv, first, n, n_words;
    } want[] = {{1, 1, 0, 1, 1},       {128, 128, 0, 1, 1},   {129, 129, 0, 2, 1},  {1, 129, 1, 1, 1},     {2, 129, 0, 2, 1},
                {100, 8192, 63, 1, 1}, {100, 8193, 63, 2, 2}, {300, 1300, 7, 4, 1}, {8193, 8193, 0, 65, 2}};
    for (size_t i = 0; i < sizeof want / sizeof *want; i++) {
        sl_prefill_mask m = sl_mask_of(3, want[i].n_tokens, want[i].n_kv);
        CHECK(m.n_heads == 3 && m.first == want[i].first && m.n == want[i].n && m.n_words == want[i].n_words);
        uint64_t causal = 0;
        for (int b = m.first; b < m.first + m.n; b++) causal += b + 1;
        CHECK_INT(sl_mask_causal(&m), causal);
    }
}

// ---- integers ----

static void scores(void) {
    static const struct {
        float dot, scale;
        int want;
    } want[] = {{0, 1, 0},
                {1, 1, 64},
                {-1, 0.5f, -32},
                {0x1.8p-6f, 1, 2}, // ties go to even numbers
                {0x1.4p-5f, 1, 2},
                {-0x1.8p-6f, 1, -2},
                {0x1.800002p-6f, 1, 2},
                {31999.5f, 1, 31999 * 64 + 32},
                {1e30f, 1, SL_SCORE_MOST * 64},
                {INFINITY, 1, SL_SCORE_MOST * 64},
                {NAN, 1, SL_SCORE_MOST * 64},
                {-1e30f, 1, SL_SCORE_LEAST * 64},
                {-INFINITY, 1, SL_SCORE_LEAST * 64}};
    uint64_t seed = test_seed;
    for (size_t i = 0; i < sizeof want / sizeof *want; i++) CHECK_INT(sl_score_of(want[i].dot, want[i].scale), want[i].want);
    for (int i = 0; i < 300000; i++) { // one rounding: that of a fused product and sum in fp32, on a GPU
        float dot = (float)(test_uniform(&seed) * 400 - 200), scale = (float)test_uniform(&seed);
        float fused = fmaf(dot, scale, 0x1.8p17f) - 0x1.8p17f;
        if (sl_score_of(dot, scale) != (int)(fused * 64))
            FAIL("%a * %a: %d, expected %g", dot, scale, sl_score_of(dot, scale), fused * 64);
    }
}

static void integers(void) {
    uint64_t seed = test_seed;
    uint32_t octave[SL_OCTAVE];
    sl_mass_octave(octave);
    CHECK(sl_fine_mass(octave, 31 * SL_OCTAVE) == 0 && sl_fine_mass(octave, 4000000000u) == 0);
    CHECK(sl_mass_below(1 << 23, 37) == 1 && sl_mass_below(1 << 23, 38) == 0 && sl_mass_below(1 << 23, 64) == 0);
    for (int d = 0; d < 31 * SL_OCTAVE; d++)
        CHECK_INT(sl_fine_mass(octave, d), (uint32_t)(0x1p30 * SL_MASS_SCALE * exp2(-d / 64.0)));
    for (int d = 0; d < SL_MASS_REACH + SL_OCTAVE; d++) { // a mass is far enough from the middle of two integers
        double x = 0x1p16 * SL_MASS_SCALE * exp2(-d / 64.0), e = 0.9 * 0x1p-20, low = rint(x * (1 - e)),
               high = rint(x * (1 + e));
        if (low != high || (d >= SL_MASS_REACH) != (rint(x) == 0)) FAIL("distance %d: mass %.9g", d, x);
    }
    for (int i = 0; i < 300000; i++) { // floor(2^61 / z) loses at most one unit
        uint64_t z = (uint64_t)exp2(29.001 + 20 * test_uniform(&seed)), mass = (uint64_t)(test_uniform(&seed) * (double)z);
        uint32_t factor = sl_share_factor(z);
        double want = (double)mass / (double)z * 0x1p24, got = sl_share(mass, factor);
        if (!(fabs(got - want) <= 0.5 + want / factor + 1e-6))
            FAIL("mass %llu of %g: %g, expected %g", (unsigned long long)mass, (double)z, got, want);
    }
}

// Shares against the softmax of scores that are not rounded: the rounding of a score by 2^-7 moves a mass by 2^-7 ln 2, and the
// normaliser by the same at most. The masses of blocks are wrong by 2^-9.
static void softmax(void) {
    segment s = segment_new(2, 1, 64, 37, 700, test_seed);
    uint32_t share[737], blocks[12];
    double score[737];
    for (int token = 0; token < 700; token += 33) {
        double total = 0, sum = 0, sum_of_blocks = 0, want_of_block = 0, relative = 2 * 0x1p-7 * 0.694 + 0x1p-9;
        int n = s.base + token + 1;
        naive_scores(&s, 1, token, score);
        naive_shares(&s, 1, 1, n - 1, share);
        naive_block_shares(&s, 1, 1, n - 1, blocks);
        for (int j = 0; j < n; j++) total += exp2(score[j]);
        for (int j = 0; j < n; j++) {
            double want = exp2(score[j]) / total * 0x1p24;
            sum += share[j], want_of_block += want;
            if (!(fabs(share[j] - want) <= 1 + relative * want))
                FAIL("token %d, key %d: %u, expected %g", token, j, share[j], want);
            if (j % 128 < 127 && j < n - 1) continue;
            double got = (double)blocks[j / 128 * 2] + blocks[j / 128 * 2 + 1];
            if (!(fabs(got - want_of_block) <= 2 + (relative + 0x1p-9) * want_of_block))
                FAIL("token %d, key block %d: %g, expected %g", token, j / 128, got, want_of_block);
            sum_of_blocks += got, want_of_block = 0;
        }
        CHECK_NEAR(sum, 0x1p24, n + 0x1p-8 * 0x1p24);
        CHECK_NEAR(sum_of_blocks, 0x1p24, 2 * 12);
    }
    segment_free(&s);
}

// ---- masks by definition ----

static void check_mask(segment *s, const char *method) {
    size_t bytes = sl_mask_bytes(&s->mask);
    int n_heads = s->c.geom.n_heads;
    uint64_t *want = malloc(bytes);
    int32_t kept[16];
    naive_mask(s, method, want, kept);
    for (int t = 1; t <= 2; t++) {
        test_threads(t);
        segment_mask(s, method);
        test_threads(1);
        sl_prefill_mask other = s->mask;
        other.bits = want;
        for (int head = 0; head < n_heads; head++) {
            if (s->reports[head].kept != kept[head])
                FAIL("%s, %d + %d tokens, head %d: kept %d, expected %d", method, s->base, s->n_tokens, head,
                     s->reports[head].kept, kept[head]);
            for (int i = s->mask.first; i < s->mask.first + s->mask.n; i++)
                for (int j = 0; j < s->mask.n_words * 64; j++) {
                    int got = sl_mask_has(sl_mask_row(&s->mask, head, i), j),
                        wanted = sl_mask_has(sl_mask_row(&other, head, i), j);
                    if (got != wanted)
                        FAIL("%s, %d + %d tokens, head %d, query block %d, key block %d: %d, expected %d, with %d threads",
                             method, s->base, s->n_tokens, head, i, j, got, wanted, t);
                }
        }
    }
    free(want);
}

static const char *const methods[] = {
    "sample",
    "sample:alpha_c=1:alpha_s=0",
    "sample:alpha_c=0:alpha_s=1",
    "sample:alpha_c=0:alpha_s=0.5",
    "sample:alpha_c=0.3:alpha_s=0.2:chunk_n=4",
    "sample:alpha_c=0.6:alpha_s=0:chunk_n=64",
    "sample:alpha_c=0.5:alpha_s=0.5:repair=0.5",
    "sample:alpha_c=0.3:alpha_s=0.2:chunk_n=4:repair=0.3",
    "sample:alpha_c=0.9:alpha_s=0.9:repair=1",
    "vertical-slash:columns=5:slashes=0",
    "vertical-slash:columns=0:slashes=7",
    "vertical-slash:columns=100000:slashes=3",
    "xattention",
    "xattention:stride=16:threshold=0.5",
    "oracle:density=0.4",
    "oracle:mass=0.8",
    "oracle:mass=1",
    "streaming:sink=4:window=300",
    "streaming:sink=0:window=1",
    "streaming:sink=129:window=128",
    "streaming:sink=128:window=129",
    "bigbird",
    "bigbird:local=0.2:global=0:random=1",
    "bigbird:local=0:global=0.15:random=100",
    "hash-sparse",
    "hash-sparse:buckets=2",
    "hash-sparse:buckets=128",
    "hyperattention:bucket=128:columns=0:dense=128",
    "hyperattention:bucket=200:columns=129:dense=300",
    "hyperattention:bucket=1000:columns=256:dense=128",
};
enum { N_METHODS = sizeof methods / sizeof *methods };

static void definitions(void) {
    static const struct {
        int heads, kv_heads, dim, base, n;
    } g[] = {
        {1, 1, 64, 0, 1},   {2, 2, 64, 0, 127},  {4, 1, 80, 0, 128},    {8, 1, 96, 0, 129},   {1, 1, 128, 0, 2047},
        {8, 2, 16, 1, 130}, {1, 1, 64, 1000, 1}, {2, 1, 64, 300, 1000}, {4, 4, 32, 515, 640}, {2, 1, 16, 128 * 64 - 70, 200}};
    for (size_t i = 0; i < sizeof g / sizeof *g; i++) {
        segment s = segment_new(g[i].heads, g[i].kv_heads, g[i].dim, g[i].base, g[i].n, test_seed + i);
        s.layer = (int)i;
        int step = g[i].n > 500 ? 3 : 1; // a third of the methods on large segments, for time
        for (int k = (int)i % step; k < N_METHODS; k += step) check_mask(&s, methods[k]);
        segment_free(&s);
    }
}

static void long_segment(void) {
    static const char *const some[] = {"sample:alpha_c=0.5:alpha_s=0.5:chunk_n=3", "vertical-slash:columns=50:slashes=50",
                                       "xattention:threshold=0.3", "bigbird", "hyperattention"};
    segment s = segment_new(1, 1, 16, 40, 5003, test_seed);
    for (int k = 0; k < 5; k++) check_mask(&s, some[k]);
    segment_free(&s);
}

// All scores are 0: the sums of whole blocks are equal, and the lower block comes first.
static void ties(void) {
    segment s = segment_new(2, 1, 64, 10, 1000, test_seed);
    memset(s.q, 0, sizeof *s.q * 1000 * 2 * 64);
    for (int k = 0; k < N_METHODS; k++) check_mask(&s, methods[k]);
    segment_mask(&s, "sample:alpha_c=0.4:alpha_s=0");
    for (int j = 0; j < 8; j++) // the last 128 queries see 7 whole blocks: three of them have 0.406 of the mass
        if (sl_mask_has(sl_mask_row(&s.mask, 0, 7), j) != (j < 3 || j == 7)) FAIL("block %d", j);
    segment_free(&s);
}

// ---- structure that must be found ----

enum { OFFSET = 901, WHOLE_BLOCKS = 7 * 128, COLUMN = 1500, N = 3000, DIM = 64 };

static void set_key(segment *s, int h, int j, const float *x, float scale) {
    for (int d = 0; d < DIM; d++) ((bf16 *)ref_k_row(&s->c, 0, h, j))[d] = sl_f32_to_bf16(x ? scale * x[d] : 0);
}

// Head 0 attends to key 0, head 1 to the key `offset` before the query, head 2 to key COLUMN, as far as there are such keys.
static segment planted(int offset) {
    segment s = segment_new(3, 3, DIM, 0, N, test_seed);
    float u[DIM];
    for (int d = 0; d < DIM; d++) u[d] = d % 2 ? 4 : -4;
    for (int i = 0; i < N; i++) {
        memcpy(s.q + ((size_t)i * 3 + 0) * DIM, u, sizeof u);
        memcpy(s.q + ((size_t)i * 3 + 2) * DIM, u, sizeof u);
        set_key(&s, 0, i, i == 0 ? u : NULL, 1);
        set_key(&s, 2, i, i == COLUMN ? u : NULL, 1);
    }
    for (int j = 0; j < N; j++) set_key(&s, 1, j, j + offset < N ? s.q + ((size_t)(j + offset) * 3 + 1) * DIM : NULL, 1);
    return s;
}

static void check_planted(segment *s, const char *method, int has_stripe, double most) {
    const sl_prefill_mask *m = &s->mask;
    segment_mask(s, method);
    for (int i = 0; i < m->n; i++) {
        for (int t = 0; has_stripe && t < 128; t++)
            if (128 * i + t >= OFFSET && 128 * i + t < N && !sl_mask_has(sl_mask_row(m, 1, i), (128 * i + t - OFFSET) / 128))
                FAIL("%s: query block %d lacks the stripe", method, i);
        if (i >= COLUMN / 128 && !sl_mask_has(sl_mask_row(m, 2, i), COLUMN / 128))
            FAIL("%s: query block %d lacks the column", method, i);
    }
    for (int head = 0; head < 3; head++) {
        double density = (double)sl_mask_count(m, head) / (double)sl_mask_causal(m);
        if (head == 1 && !has_stripe) continue;
        if (!(density <= most)) FAIL("%s: head %d has the density %.2f, expected at most %.2f", method, head, density, most);
    }
}

static void structure(void) {
    segment s = planted(OFFSET);
    // The diagonal, the sink, the column or the two diagonals of a stripe: at most 5 blocks of 12 on average.
    check_planted(&s, "sample", 1, 0.4);
    check_planted(&s, "vertical-slash:columns=1:slashes=1", 1, 0.4);
    // The last 64 queries see 1, 64 and 1 keys with a mass above 0.
    check_planted(&s, "vertical-slash:columns=100000:slashes=0", 0, 0.4);
    // Query blocks that see no planted key have flat rows, so their masks are as dense as the share asks.
    check_planted(&s, "oracle:mass=0.99", 1, 0.45);
    segment_free(&s);
    s = planted(OFFSET);
    for (int j = 0; j < N; j++) // an antidiagonal of 8 has one key of the column: a score of 1 / 8
        for (int d = 0; d < DIM; d++)
            *(bf16 *)(ref_k_row(&s.c, 0, 2, j) + d) = sl_f32_to_bf16(j == COLUMN ? (d % 2 ? 4 : -4) : 0);
    check_planted(&s, "xattention", 0, 0.6);
    segment_free(&s);
    s = planted(WHOLE_BLOCKS); // the slash crosses one key block of each query block
    check_mask(&s, "vertical-slash:columns=0:slashes=1");
    CHECK(!sl_mask_has(sl_mask_row(&s.mask, 1, 20), 12) && sl_mask_has(sl_mask_row(&s.mask, 1, 20), 13));
    segment_free(&s);
}

// Queries that meet one key of their direction among zeros: the key's block has the most pairs.
static void hashed(void) {
    segment s = planted(OFFSET);
    segment_mask(&s, "hash-sparse");
    for (int i = COLUMN / 128; i < s.mask.n; i++)
        if (!sl_mask_has(sl_mask_row(&s.mask, 2, i), COLUMN / 128)) FAIL("query block %d lacks the column", i);
    CHECK(sl_mask_count(&s.mask, 2) <= 3 * (uint64_t)s.mask.n);
    segment_free(&s);
}

// bigbird's 2 random blocks of the 60 or more between the first block and the window: every one as often, over heads and query
// blocks.
static void random_blocks(void) {
    enum { HEADS = 256, LAST = 63, N_RANDOM = 2 };
    segment s = segment_new(HEADS, 1, 16, LAST * 128 - 5, 10, test_seed); // query blocks 62 and 63
    int n[LAST + 1] = {0};
    segment_mask(&s, "bigbird:local=0:global=0:random=2");
    for (int head = 0; head < HEADS; head++) {
        CHECK_INT(sl_mask_count(&s.mask, head), 2 * (2 + N_RANDOM)); // the sink, the diagonal and the random blocks
        for (int i = LAST - 1; i <= LAST; i++)
            for (int j = 1; j < i; j++) n[j] += sl_mask_has(sl_mask_row(&s.mask, head, i), j);
    }
    double mean = 2.0 * HEADS * N_RANDOM / (LAST - 1.5), chi = 0;
    for (int j = 1; j < LAST - 1; j++) chi += (n[j] - mean) * (n[j] - mean) / mean;
    if (!(chi > 30 && chi < 110)) FAIL("chi-square %.1f with about 60 degrees of freedom", chi); // 5 deviations up
    segment_free(&s);
}

// A score that is not a number, or is infinite, or a row whose scores are all far below 0: the mask of its heads is full, so
// the output is that of dense attention.
static void not_finite(void) {
    static const char *const some[] = {"sample:alpha_c=0:alpha_s=0", "vertical-slash:columns=0:slashes=0",
                                       "xattention:threshold=0", "oracle:density=0"};
    static const struct {
        bf16 value;
        int first, n; // keys with this value in a channel
    } keys[] = {{0x7fc0, 3, 1}, {0x7f00, 3, 1}, {0xff00, 0, 700}};
    for (int k = 0; k < 12; k++) {
        segment s = segment_new(4, 2, 64, 0, 700, test_seed);
        for (int j = 0; j < keys[k / 4].n; j++) ((bf16 *)ref_k_row(&s.c, 0, 1, keys[k / 4].first + j))[5] = keys[k / 4].value;
        for (int i = 0; i < 700 * 4; i++) s.q[(size_t)i * 64 + 5] = 3;
        segment_mask(&s, some[k % 4]);
        for (int head = 0; head < 4; head++) {
            uint64_t want = head < 2 ? 11 : sl_mask_causal(&s.mask); // 6 query blocks: the diagonal and the sink
            if (sl_mask_count(&s.mask, head) != want)
                FAIL("%s, head %d: %llu blocks", some[k % 4], head, (unsigned long long)sl_mask_count(&s.mask, head));
            CHECK(head < 2 || s.reports[head].kept == SL_MASK_NOT_SAMPLED);
        }
        segment_free(&s);
    }
}

// The masks that hash keys and queries: a key or a query that is infinite or NaN makes the mask of its heads full, and leaves
// that of other heads.
static void not_finite_hashes(void) {
    static const char *const some[] = {"hash-sparse:buckets=128", "hyperattention:bucket=128:columns=0:dense=128"};
    static const bf16 keys[] = {0x7fc0, 0x7f80, 0xff80}; // NaN and both infinities
    for (int k = 0; k < 10; k++) {
        segment s = segment_new(4, 2, 64, 50, 650, test_seed);
        int of_key = k / 2 < 3;
        if (of_key) // a key before the segment, or its last one
            ((bf16 *)ref_k_row(&s.c, 0, 1, k % 3 ? 699 : 3))[5] = keys[k / 2];
        else
            s.q[((size_t)600 * 4 + 3) * 64 + 5] = k / 2 == 3 ? NAN : INFINITY;
        segment_mask(&s, some[k % 2]);
        for (int head = 0; head < 4; head++) {
            int is_full = sl_mask_count(&s.mask, head) == sl_mask_causal(&s.mask), want = of_key ? head >= 2 : head == 3;
            if (is_full != want) FAIL("%s, case %d, head %d: full: %d, expected %d", some[k % 2], k, head, is_full, want);
        }
        segment_free(&s);
    }
}

// Keys with scores of -infinity, or below those that have a mass, count as keys without mass.
static void far_scores(void) {
    segment s = segment_new(2, 1, 64, 0, 700, test_seed);
    for (int i = 0; i < 700 * 2; i++) s.q[(size_t)i * 64 + 5] = 3;
    for (int j = 200; j < 600; j += 7) ((bf16 *)ref_k_row(&s.c, 0, 0, j))[5] = j % 2 ? 0xff00 : 0xc900;
    for (int k = 0; k < N_METHODS; k++) check_mask(&s, methods[k]);
    CHECK(s.reports[0].kept == SL_MASK_NOT_SAMPLED);
    segment_mask(&s, "sample");
    CHECK(s.reports[0].kept != SL_MASK_NOT_SAMPLED);
    segment_free(&s);
}

// Head 2 attends to key 650 up to the last 256 queries, which attend evenly to all keys. So the sampled rows do not show key
// 650, and the middle rows lose it. With repair the head is dense, and the other heads keep their masks.
static void repaired(void) {
    segment s = planted(OFFSET);
    uint64_t blocks[3];
    set_key(&s, 2, COLUMN, NULL, 1);
    set_key(&s, 2, 650, s.q + 2 * DIM, 1);
    for (int i = N - 256; i < N; i++) memset(s.q + ((size_t)i * 3 + 2) * DIM, 0, DIM * sizeof *s.q);
    segment_mask(&s, "sample:alpha_c=0.2:alpha_s=0.2");
    for (int head = 0; head < 3; head++) blocks[head] = sl_mask_count(&s.mask, head);
    CHECK(s.reports[2].kept > 1 << 21);
    CHECK(!sl_mask_has(sl_mask_row(&s.mask, 2, 11), 650 / 128));
    segment_mask(&s, "sample:alpha_c=0.2:alpha_s=0.2:repair=0.01");
    for (int head = 0; head < 2; head++) CHECK_INT(sl_mask_count(&s.mask, head), blocks[head]);
    CHECK_INT(sl_mask_count(&s.mask, 2), sl_mask_causal(&s.mask));
    CHECK_INT(s.reports[2].kept, 1 << 24);
    segment_free(&s);
}

// ---- the kept share ----

static uint64_t kept_by(const segment *s, int head, int i, const uint32_t *sum) {
    uint64_t kept = 0;
    for (int j = 0; j <= i; j++)
        if (sl_mask_has(sl_mask_row(&s->mask, head, i), j)) kept += sum[j];
    return kept;
}

// No mask keeps more of a query block's mass than the oracle with as many blocks.
static void oracle_is_best(void) {
    segment s = segment_new(2, 1, 64, 100, 900, test_seed);
    uint32_t sum[16];
    for (int k = 0; k < 2 * N_METHODS; k++) {
        int head = k % 2, i = s.mask.first + s.mask.n - 1 - k % 3, n = 0;
        segment_mask(&s, methods[k / 2]);
        naive_block_sums(&s, head, i, 1, sum);
        uint64_t kept = kept_by(&s, head, i, sum);
        for (int j = 0; j <= i; j++) n += sl_mask_has(sl_mask_row(&s.mask, head, i), j);
        char text[64];
        snprintf(text, sizeof text, "oracle:density=%.17g", (double)n / (i + 1));
        segment_mask(&s, text);
        if (kept_by(&s, head, i, sum) < kept) FAIL("%s keeps more than %s in query block %d", methods[k / 2], text, i);
    }
    segment_free(&s);
}

// The estimate of `sample` is the measured share of its sampled rows; other rows are measured by definition.
static void measured(void) {
    segment s = segment_new(4, 2, 64, 77, 900, test_seed);
    uint32_t share[16];
    segment_mask(&s, "sample:alpha_c=0.3:alpha_s=0.3");
    sl_mask_args args = segment_args(&s, NULL);
    CHECK_OK(sl_workspace_reserve(&s.c.ws, sl_mask_measure_workspace(&s.c.geom, 977), &err), err);
    for (int head = 0; head < 4; head++) {
        CHECK_INT(sl_mask_measure(&args, head, 900 - 128, 128), s.reports[head].kept);
        CHECK(s.reports[head].kept < 1 << 24);
        for (int token = 0; token < 900; token += 101) {
            uint64_t kept = 0, total = 0;
            naive_block_shares(&s, head, 1, 77 + token, share);
            for (int j = 0; j < 2 * ((77 + token) / 128 + 1); j++) {
                total += share[j];
                if (sl_mask_has(sl_mask_row(&s.mask, head, (77 + token) / 128), j / 2)) kept += share[j];
            }
            CHECK_INT(sl_mask_measure(&args, head, token, 1), kept * (1 << 24) / total);
        }
    }
    segment_free(&s);
}

static const test_case cases[] = {
    {"sets", 0, sets},
    {"shape", 0, shape},
    {"scores", 0, scores},
    {"integers", 0, integers},
    {"softmax", 0, softmax},
    {"definitions", NEEDS_SPEED, definitions},
    {"long-segment", 0, long_segment},
    {"ties", 0, ties},
    {"structure", 0, structure},
    {"hashed", 0, hashed},
    {"random-blocks", 0, random_blocks},
    {"not-finite", 0, not_finite},
    {"not-finite-hashes", 0, not_finite_hashes},
    {"far-scores", 0, far_scores},
    {"repaired", 0, repaired},
    {"oracle-is-best", 0, oracle_is_best},
    {"measured", 0, measured},
    {0},
};
const test_suite suite_masks = {"masks", cases};
