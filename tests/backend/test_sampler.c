// tests/backend/test_sampler.c - Philox, the token sampler's filters against a plain double-precision reference, and stop
// strings.
#include "base/philox.h"
#include "backend/sampler.h"
#include "tests/test.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { VOCAB = 200 };
static sl_error err;

static void philox_known_answers(void) { // the vectors that Random123 publishes
    static const struct {
        uint32_t c[4], k[2], want[4];
    } v[] = {
        {{0, 0, 0, 0}, {0, 0}, {0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8}},
        {{~0u, ~0u, ~0u, ~0u}, {~0u, ~0u}, {0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd}},
        {{0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344},
         {0xa4093822, 0x299f31d0},
         {0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1}},
    };
    for (int i = 0; i < 3; i++) {
        sl_philox4 got = sl_philox(v[i].k[0], v[i].k[1], v[i].c[0], v[i].c[1], v[i].c[2], v[i].c[3]);
        for (int j = 0; j < 4; j++) CHECK_INT(got.v[j], v[i].want[j]);
    }
}

static void make_logits(float *x, uint64_t seed) {
    for (int i = 0; i < VOCAB; i++) x[i] = 3 * (float)test_normal(&seed);
}

static sl_sampler *sampler(const sl_sampling *p) {
    sl_sampler *s;
    CHECK_OK(sl_sampler_new(p, VOCAB, &s, &err), err);
    return s;
}

static sl_sampling plain(float temp) {
    return (sl_sampling){.temp = temp, .top_p = 1, .repeat_penalty = 1};
}

// The distribution that the filters leave, in double: sort, top-k, top-p, min-p, then temperature.
static void reference(const float *logits, const sl_sampling *p, double *prob) {
    int order[VOCAB], n = VOCAB;
    for (int i = 0; i < VOCAB; i++) {
        int j = i;
        for (; j > 0 && logits[order[j - 1]] < logits[i]; j--) order[j] = order[j - 1];
        order[j] = i;
    }
    if (p->top_k > 0 && p->top_k < n) n = p->top_k;
    double sum = 0, running = 0;
    for (int i = 0; i < n; i++) sum += exp((double)logits[order[i]] - logits[order[0]]);
    for (int i = 0; i < n && p->top_p < 1; i++) {
        running += exp((double)logits[order[i]] - logits[order[0]]);
        if (running >= p->top_p * sum) n = i + 1;
    }
    for (int i = 1; i < n && p->min_p > 0; i++)
        if (exp((double)logits[order[i]] - logits[order[0]]) < p->min_p) n = i;
    sum = 0;
    for (int i = 0; i < VOCAB; i++) prob[i] = 0;
    for (int i = 0; i < n; i++) sum += prob[order[i]] = exp(((double)logits[order[i]] - logits[order[0]]) / p->temp);
    for (int i = 0; i < VOCAB; i++) prob[i] /= sum;
}

// Samples at many positions. Every token has a positive probability in the reference. Pearson's chi-square is below its mean
// (cells - 1) plus 5 standard deviations sqrt(2 cells). A cell is a token that is expected at least 5 times; the others share
// one cell.
static void check_distribution(const sl_sampling *p, uint64_t seed) {
    enum { SAMPLES = 20000 };
    float logits[VOCAB];
    double prob[VOCAB], chi = 0, rest = 0;
    int count[VOCAB] = {0}, cells = 0, rest_count = 0;
    make_logits(logits, seed);
    reference(logits, p, prob);
    sl_sampler *s = sampler(p);
    for (uint32_t i = 0; i < SAMPLES; i++) count[sl_sampler_sample(s, logits, 1, i)]++;
    for (int i = 0; i < VOCAB; i++) {
        if (prob[i] == 0 && count[i] > 0) FAIL("token %d was sampled, but the filters remove it", i);
        double want = prob[i] * SAMPLES;
        if (want < 5)
            rest += want, rest_count += count[i];
        else
            chi += (count[i] - want) * (count[i] - want) / want, cells++;
    }
    if (rest >= 5) chi += (rest_count - rest) * (rest_count - rest) / rest, cells++;
    if (!(chi < cells + 5 * sqrt(2.0 * cells))) FAIL("chi-square %.1f over %d cells", chi, cells);
    sl_sampler_free(s);
}

static void distributions(void) {
    sl_sampling p[8] = {plain(1), plain(0.5f), plain(2), plain(1), plain(1), plain(1), plain(0.7f), plain(1.5f)};
    p[3].top_k = 10, p[4].top_p = 0.8f, p[5].min_p = 0.1f;
    p[6].top_k = 40, p[6].top_p = 0.95f, p[6].min_p = 0.05f;
    p[7].top_k = 7, p[7].top_p = 0.6f, p[7].min_p = 0.2f; // the temperature is high; it must be applied last
    for (int i = 0; i < 8; i++) {
        p[i].seed = (uint32_t)test_seed + i;
        check_distribution(&p[i], test_seed + i);
    }
}

// With n equal logits the token is floor(u n). u is the documented random number: key (seed, sequence), counter (position, 0,
// 0, SL_STREAM_TOKEN).
static void documented_counter(void) {
    static const uint32_t ids[][3] = {{1, 2, 3}, {1, 2, 4}, {1, 3, 3}, {2, 2, 3}, {0, 0, 70000}, {1u << 31, ~0u, ~0u}};
    float logits[VOCAB] = {0};
    for (size_t i = 0; i < sizeof ids / sizeof *ids; i++) {
        sl_sampling p = plain(1);
        p.seed = ids[i][0];
        sl_sampler *s = sampler(&p);
        for (uint32_t j = 0; j < 50; j++) {
            sl_philox4 r = sl_philox(ids[i][0], ids[i][1], ids[i][2] + j, 0, 0, 1);
            CHECK_INT(sl_sampler_sample(s, logits, ids[i][1], ids[i][2] + j), (int)(((uint64_t)r.v[0] * VOCAB) >> 32));
        }
        sl_sampler_free(s);
    }
}

// 3,000 samples give each token of `want`, and no other. The temperature makes them about equally likely.
static void check_support(sl_sampling p, const float *logits, const int *want, int n) {
    int count[VOCAB] = {0}, seen = 0;
    p.temp = 1000;
    sl_sampler *s = sampler(&p);
    for (uint32_t i = 0; i < 3000; i++) count[sl_sampler_sample(s, logits, 7, i)]++;
    for (int i = 0; i < n; i++)
        if (!count[want[i]]) FAIL("token %d of %d was never sampled", want[i], n);
    for (int i = 0; i < VOCAB; i++) seen += count[i] > 0;
    CHECK_INT(seen, n);
    sl_sampler_free(s);
}

// Checks sums that equal their target exactly. Top-p: of 8 equal masses, k masses reach k / 8 of the sum; the lowest ids come
// first. Min-p: a mass of exactly min-p times the largest one stays.
static void exact_ties(void) {
    float logits[VOCAB];
    int ids[VOCAB];
    sl_sampling p = plain(1);
    for (int i = 0; i < VOCAB; i++) logits[i] = -1e30f;
    for (int i = 0; i < 8; i++) logits[5 + 7 * i] = 2, ids[i] = 5 + 7 * i;
    check_support(p, logits, ids, 8);
    for (int k = 1; k <= 8; k++) {
        p.top_p = (float)k / 8;
        if (k < 8) check_support(p, logits, ids, k);
        p.top_p = nextafterf((float)k / 8, 0);
        check_support(p, logits, ids, k);
        p.top_p = nextafterf((float)k / 8, 2);
        if (k < 8) check_support(p, logits, ids, k + 1);
        p.top_p = 1, p.top_k = k;
        check_support(p, logits, ids, k);
        p.top_k = 0;
    }
    p.top_p = 0; // the best token always stays
    check_support(p, logits, ids, 1);
    p.top_p = 1;
    static const float least[] = {0.5f, 0.05f, 0.9f};
    for (int i = 0; i < 3; i++) {
        float limit = 2 + logf(least[i]);
        p.min_p = least[i];
        logits[ids[6]] = limit;
        check_support(p, logits, (int[]){ids[0], ids[1], ids[2], ids[3], ids[4], ids[5], ids[6], ids[7]}, 8);
        logits[ids[6]] = nextafterf(limit, -9);
        check_support(p, logits, (int[]){ids[0], ids[1], ids[2], ids[3], ids[4], ids[5], ids[7]}, 7);
        logits[ids[6]] = 2;
    }
    p.min_p = 1; // the tokens whose logit equals the largest one
    check_support(p, logits, ids, 8);
    logits[ids[7]] = nextafterf(2, 0);
    check_support(p, logits, ids, 7);
}

static void greedy(void) {
    float logits[VOCAB];
    sl_sampling p = plain(0);
    sl_sampler *s = sampler(&p);
    make_logits(logits, test_seed);
    logits[70] = logits[30] = 100;
    CHECK_INT(sl_sampler_sample(s, logits, 0, 0), 30); // the lowest id wins a tie
    logits[30] = NAN;
    CHECK_INT(sl_sampler_sample(s, logits, 0, 0), 70);
    for (int i = 0; i < VOCAB; i++) logits[i] = i % 2 ? NAN : -INFINITY;
    CHECK_INT(sl_sampler_sample(s, logits, 0, 0), 0);
    sl_sampler_free(s);
    p = plain(1);
    s = sampler(&p);
    CHECK_INT(sl_sampler_sample(s, logits, 0, 0), 0);
    logits[9] = 1;
    for (uint32_t i = 0; i < 100; i++) CHECK_INT(sl_sampler_sample(s, logits, 0, i), 9);
    sl_sampler_free(s);
}

static void bias(void) {
    float logits[VOCAB] = {0};
    sl_logit_bias list[] = {{5, 50}, {6, -INFINITY}};
    sl_sampling p = plain(0);
    p.bias = list, p.n_bias = 2;
    logits[6] = 40;
    sl_sampler *s = sampler(&p);
    list[0] = list[1] = (sl_logit_bias){0, 1e6f}; // the sampler has a copy, which it also gives to a GPU
    const sl_sampling *kept = sl_sampler_params(s);
    CHECK(kept->n_bias == 2 && kept->bias[0].id == 5 && kept->bias[0].bias == 50 && kept->bias[1].id == 6);
    CHECK_INT(sl_sampler_sample(s, logits, 0, 0), 5);
    logits[6] = INFINITY; // a ban wins over an infinite logit
    CHECK_INT(sl_sampler_sample(s, logits, 0, 0), 5);
    sl_sampler_free(s);
    const sl_logit_bias ban = {0, -INFINITY};
    p.bias = &ban, p.n_bias = 1;
    s = sampler(&p);
    logits[0] = INFINITY, logits[6] = 40;
    CHECK_INT(sl_sampler_sample(s, logits, 0, 0), 6);
    sl_sampler_free(s);
}

static void accept(sl_sampler *s, int32_t id) {
    CHECK_OK(sl_sampler_accept(s, id, &err), err);
}

// Every parameter sees only the allowed tokens: a sampler with a set samples what a sampler without it samples from logits that
// are -inf elsewhere. A bias brings no other token back.
static void allowed(void) {
    uint32_t set[(VOCAB + 31) / 32];
    const sl_logit_bias raise = {3, INFINITY};
    for (int k = 0; k < 40; k++) {
        float logits[VOCAB], cut[VOCAB];
        sl_sampling p = plain(k % 2 ? 0.8f : 0);
        make_logits(logits, test_seed + (uint64_t)k);
        test_draw_from(test_seed + (uint64_t)k);
        p.top_k = k % 3 ? 0 : 5, p.top_p = k % 5 ? 1 : 0.7f, p.repeat_penalty = k % 7 ? 1 : 1.5f;
        memset(set, 0, sizeof set);
        set[(VOCAB - 1) / 32] |= 1u << (VOCAB - 1) % 32;
        for (int i = 0; i < VOCAB / 4; i++) {
            int id = test_below(VOCAB);
            if (id != 3) set[id / 32] |= 1u << id % 32;
        }
        for (int i = 0; i < VOCAB; i++) cut[i] = set[i / 32] >> i % 32 & 1 ? logits[i] : -INFINITY;
        sl_sampler *other = sampler(&p);
        p.bias = &raise, p.n_bias = k % 4 == 0;
        sl_sampler *limited = sampler(&p);
        CHECK_OK(sl_sampler_allow(limited, set, &err), err);
        CHECK(!memcmp(sl_sampler_allowed(limited), set, sizeof set));
        for (int32_t id = 0; id < 20; id++) accept(limited, id), accept(other, id);
        for (uint32_t i = 0; i < 10; i++)
            CHECK_INT(sl_sampler_sample(limited, logits, 4, i), sl_sampler_sample(other, cut, 4, i));
        CHECK_OK(sl_sampler_allow(limited, NULL, &err), err);
        CHECK(!sl_sampler_allowed(limited));
        sl_sampler_free(limited), sl_sampler_free(other);
    }
}

static void penalties(void) {
    float logits[VOCAB] = {0};
    sl_sampling p = plain(0);
    p.repeat_penalty = 2, p.repeat_last_n = 3;
    sl_sampler *s = sampler(&p);
    logits[1] = 4, logits[2] = 3, logits[3] = 2.5f;
    CHECK_INT(sl_sampler_sample(s, logits, 0, 0), 1);
    accept(s, 1); // 4 / 2 = 2
    CHECK_INT(sl_sampler_sample(s, logits, 0, 0), 2);
    accept(s, 2); // 3 / 2
    CHECK_INT(sl_sampler_sample(s, logits, 0, 0), 3);
    accept(s, 9);
    CHECK_INT(sl_sampler_sample(s, logits, 0, 0), 3);
    accept(s, 9); // 1 is no longer among the last 3
    CHECK_INT(sl_sampler_sample(s, logits, 0, 0), 1);
    sl_sampler_truncate(s, 1); // only 1 is among the last 3 again
    CHECK_INT(sl_sampler_sample(s, logits, 0, 0), 2);
    sl_sampler_free(s);
    for (int i = 0; i < VOCAB; i++) logits[i] = -1;
    logits[7] = -0.6f; // negative logits are multiplied: -1.2
    s = sampler(&p);
    accept(s, 7);
    CHECK_INT(sl_sampler_sample(s, logits, 0, 0), 0);
    sl_sampler_free(s);
    p = plain(0), p.repeat_last_n = -1, p.frequency_penalty = 0.5f, p.presence_penalty = 0.25f;
    s = sampler(&p);
    logits[7] = 0.3f, logits[8] = 0.1f;
    accept(s, 7); // 0.3 - 0.75
    CHECK_INT(sl_sampler_sample(s, logits, 0, 0), 8);
    accept(s, 8), accept(s, 8); // 0.1 - 1.25
    CHECK_INT(sl_sampler_sample(s, logits, 0, 0), 7);
    sl_sampler_free(s);
}

static void replay(void) { // a sampled token depends only on the logits, the seed, the sequence and the position
    float logits[VOCAB];
    sl_sampling p = plain(2);
    make_logits(logits, test_seed);
    sl_sampler *a = sampler(&p), *b = sampler(&p);
    int equal = 0;
    for (uint32_t i = 0; i < 500; i++) {
        int32_t x = sl_sampler_sample(a, logits, 3, i);
        sl_sampler_sample(b, logits, 3, i + 7);
        CHECK_INT(sl_sampler_sample(b, logits, 3, i), x);
        equal += sl_sampler_sample(b, logits, 4, i) == x;
    }
    // two independent samples are equal with probability sum p^2; 5 standard deviations of a binomial
    double prob[VOCAB], square = 0;
    reference(logits, &p, prob);
    for (int i = 0; i < VOCAB; i++) square += prob[i] * prob[i];
    CHECK_NEAR(equal, 500 * square, 5 * sqrt(500 * square));
    sl_sampler_free(a), sl_sampler_free(b);
}

// A penalty must lower a logit by an amount between `less` and `more`. Token 1 has logit x. Greedy sampling must prefer it to a
// token with logit x - more, and must prefer a token with logit x - less to it.
static void check_penalty(sl_sampling p, int n_before, float x, float less, float more) {
    float logits[VOCAB];
    sl_sampler *s = sampler(&p);
    for (int i = 0; i < VOCAB; i++) logits[i] = -100;
    logits[1] = x;
    for (int i = 0; i < n_before; i++) accept(s, 1);
    logits[5] = x - more;
    CHECK_INT(sl_sampler_sample(s, logits, 0, 0), 1);
    logits[5] = x - less;
    CHECK_INT(sl_sampler_sample(s, logits, 0, 0), 5);
    CHECK(logits[1] == x && logits[5] == x - less); // the caller's logits do not change
    sl_sampler_free(s);
}

static void presence_and_frequency(void) {
    sl_sampling p = plain(0);
    p.repeat_last_n = -1, p.presence_penalty = 0.5f; // counts once, not per occurrence
    check_penalty(p, 0, 2, -0.01f, 0.01f);
    check_penalty(p, 1, 2, 0.49f, 0.51f);
    check_penalty(p, 7, 2, 0.49f, 0.51f);
    p.presence_penalty = -1; // a reward
    check_penalty(p, 3, 2, -1.01f, -0.99f);
    p.presence_penalty = 0, p.frequency_penalty = 0.5f; // counts once per occurrence
    check_penalty(p, 0, 2, -0.01f, 0.01f);
    check_penalty(p, 1, 2, 0.49f, 0.51f);
    check_penalty(p, 7, 2, 3.49f, 3.51f);
    check_penalty(p, 7, -2, 3.49f, 3.51f); // also subtracted from negative logits
    p.frequency_penalty = -1;
    check_penalty(p, 3, 2, -3.01f, -2.99f);
    p.frequency_penalty = 0.5f, p.repeat_last_n = 4; // occurrences among the last 4
    check_penalty(p, 7, 2, 1.99f, 2.01f);
    p.repeat_last_n = 0;
    check_penalty(p, 7, 2, -0.01f, 0.01f);
    p.repeat_last_n = -1, p.presence_penalty = 0.25f, p.repeat_penalty = 2; // after the division: 2 / 2 - 3 * 0.5 - 0.25
    check_penalty(p, 3, 2, 2.74f, 2.76f);
}

static void ranges(void) {
    static const struct {
        const char *flag;
        size_t field;
        float value;
        int good;
    } cases[] = {
#define CASE(flag, field, value, good) {flag, offsetof(sl_sampling, field), value, good}
        CASE("temp", temp, -1, 0),
        CASE("temp", temp, NAN, 0),
        CASE("top_p", top_p, 1.5f, 0),
        CASE("min_p", min_p, -0.1f, 0),
        CASE("repeat_penalty", repeat_penalty, 0, 0),
        CASE("presence_penalty", presence_penalty, 1.01e6f, 0),
        CASE("presence_penalty", presence_penalty, -1.01e6f, 0),
        CASE("presence_penalty", presence_penalty, INFINITY, 0),
        CASE("presence_penalty", presence_penalty, NAN, 0),
        CASE("presence_penalty", presence_penalty, 1e6f, 1),
        CASE("presence_penalty", presence_penalty, -2, 1),
        CASE("frequency_penalty", frequency_penalty, 1.01e6f, 0),
        CASE("frequency_penalty", frequency_penalty, -1.01e6f, 0),
        CASE("frequency_penalty", frequency_penalty, -INFINITY, 0),
        CASE("frequency_penalty", frequency_penalty, NAN, 0),
        CASE("frequency_penalty", frequency_penalty, -1e6f, 1),
        CASE("frequency_penalty", frequency_penalty, 2, 1),
#undef CASE
    };
    sl_sampler *s;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        sl_sampling p = sl_sampling_default();
        memcpy((char *)&p + cases[i].field, &cases[i].value, sizeof cases[i].value);
        if (cases[i].good) {
            CHECK_OK(sl_sampling_check(&p, VOCAB, &err), err);
            continue;
        }
        CHECK_ERR(sl_sampling_check(&p, VOCAB, &err), err, SL_ERR_ARG, cases[i].flag);
        CHECK_ERR(sl_sampler_new(&p, VOCAB, &s, &err), err, SL_ERR_ARG, cases[i].flag);
    }
    const sl_logit_bias bad = {VOCAB, 1};
    sl_sampling p[3] = {sl_sampling_default(), sl_sampling_default(), sl_sampling_default()};
    p[0].top_k = -1, p[1].repeat_last_n = -2, p[2].bias = &bad, p[2].n_bias = 1;
    CHECK_ERR(sl_sampling_check(&p[0], VOCAB, &err), err, SL_ERR_ARG, "top_k");
    CHECK_ERR(sl_sampling_check(&p[1], VOCAB, &err), err, SL_ERR_ARG, "repeat_last_n");
    CHECK_ERR(sl_sampling_check(&p[2], VOCAB, &err), err, SL_ERR_ARG, "bias ");
}

static const test_case cases[] = {
    {"philox-known-answers", 0, philox_known_answers},
    {"distributions", 0, distributions},
    {"documented-counter", 0, documented_counter},
    {"exact-ties", 0, exact_ties},
    {"greedy", 0, greedy},
    {"logit-bias", 0, bias},
    {"allowed", 0, allowed},
    {"penalties", 0, penalties},
    {"presence-and-frequency", 0, presence_and_frequency},
    {"replay", 0, replay},
    {"ranges", 0, ranges},
    {0},
};
const test_suite suite_sampler = {"sampler", cases};
