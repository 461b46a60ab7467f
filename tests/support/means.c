// tests/support/means.c - see means.h.
#include "tests/support/means.h"
#include "tests/test.h"

#include <math.h>
#include <string.h>

// ---- problems ----

const char *const means_problems[MEANS_PROBLEMS] = {"normal", "one-channel", "heavy-tails", "one-hot",
                                                    "tiles",  "few-rows",    "centred"};

int means_rows(int problem) {
    static const int n[MEANS_PROBLEMS] = {700, 900, 700, 600, 1100, 6, 700};
    return n[problem];
}

// Score of a row in octaves, an integer, and its value.
static int problem_row(int problem, int j, uint64_t *rng, double v[MEANS_DIM]) {
    double size = 1, octaves = 2 * test_normal(rng);
    memset(v, 0, MEANS_DIM * sizeof *v);
    for (int d = 0; d < MEANS_DIM; d++) v[d] = 1 + test_normal(rng);
    switch (problem) {
    case 1: // all along one channel, a quarter negative: the worst values for an error that is stated by a norm
        memset(v, 0, MEANS_DIM * sizeof *v);
        size = 0.5 + test_uniform(rng);
        v[0] = test_uniform(rng) < 0.25 ? -size : size;
        break;
    case 2: // large values on rows of small mass
        octaves = 3 * test_normal(rng);
        size = exp2(-octaves / 2 + test_normal(rng));
        for (int d = 0; d < MEANS_DIM; d++) v[d] *= size;
        break;
    case 3: // one row has most of the mass, other values differ in direction; on rows without mass, 3-bit keys err by octaves
        octaves = j == 333 ? 10 : j % 100 == 7 ? -30 : octaves;
        for (int d = 0; d < MEANS_DIM; d++) v[d] *= j == 333 ? 1 : d % 2 ? 3 : -1;
        break;
    case 4: // tiles of 256 rows whose masses times S are no integers, with different values in every tile
        octaves = j / 256 - 2;
        for (int d = 0; d < MEANS_DIM; d++) v[d] = 0.5 + (d % 5 == j / 256) + 0.1 * test_normal(rng);
        break;
    case 5:
        octaves = 0.7 * test_normal(rng);
        break;
    case 6: // values that cancel: the output is small relative to them
        for (int d = 0; d < MEANS_DIM; d++) v[d] -= 1;
        break;
    }
    return (int)rint(octaves);
}

// Makes a q for which q.k / sqrt(dim) is `c` octaves when a key has c in the first three channels. The three numbers of q are
// bf16, and their sum is sqrt(dim) ln 2 within 2^-24.
static void unit_query(float *q) {
    double left = sqrt(MEANS_DIM) * log(2);
    memset(q, 0, MEANS_DIM * sizeof *q);
    for (int i = 0; i < 3; i++) {
        q[i] = sl_bf16_to_f32(sl_f32_to_bf16((float)left));
        left -= q[i];
    }
}

void means_fill(ref_cache *c, int problem, uint64_t seed, double mu[MEANS_DIM]) {
    int n = means_rows(problem), n_heads = c->geom.n_heads;
    double total = 0;
    SL_CHECK(c->geom.head_dim == MEANS_DIM && c->seqs[0].n_tokens == n);
    memset(mu, 0, MEANS_DIM * sizeof *mu);
    for (int j = 0; j < n; j++) {
        double v[MEANS_DIM];
        int octaves = problem_row(problem, j, &seed, v);
        total += exp2(octaves);
        for (int s = 0; s < c->n_seqs; s++)
            for (int h = 0; h < c->geom.n_kv_heads; h++)
                for (int d = 0; d < MEANS_DIM; d++) {
                    ((bf16 *)ref_k_row(c, s, h, j))[d] = sl_f32_to_bf16(d < 3 ? (float)octaves : 0);
                    ((bf16 *)ref_v_row(c, s, h, j))[d] = sl_f32_to_bf16((float)v[d]);
                }
        for (int d = 0; d < MEANS_DIM; d++) mu[d] += exp2(octaves) * sl_bf16_to_f32(sl_f32_to_bf16((float)v[d]));
    }
    for (int d = 0; d < MEANS_DIM; d++) mu[d] /= total;
    for (int i = 0; i < c->n_seqs * n_heads; i++) unit_query(c->q + (size_t)i * MEANS_DIM);
}

const char *means_spec(const char *method) {
    static const char *const specs[][2] = {
        {"dense", "dense"},
        {"dense-q", "dense-q:bits=3"},
        {"santa", "santa:S=256"},
        {"santa-strat", "santa-strat:S=256"},
        {"santa-sys", "santa-sys:S=256"},
        {"santa-prop", "santa-prop:S=33"},
        {"santa-flash", "santa-flash:S=512"},
        {"santa-pps", "santa-pps:S=128"},
        {"santa-is", "santa-is:S=4:proposal=int3"},
        {"bernoulli", "bernoulli:B=2"},
        {"bernoulli-group", "bernoulli-group:B=2"},
        {"streaming", "streaming:sink=2:window=2"},
        {"topk", "topk:k=4"},
        {"topp", "topp:p=0.7"},
        {"quest", "quest:tokens=32"},
        {"magicpig", "magicpig:K=4:L=3:sink=0:window=0"},
        {"vattention", "vattention:sink=4:window=4:top=0:base=0.02:epsilon=1"},
        {"random", "random:S=32"},
        {"saap", "saap:l=1:sink=1:window=2:dense-layers=0"},
        {"saap-kmeans", "saap-kmeans:l=1:sink=1:window=2:dense-layers=0"},
        {"saap-is", "saap-is:S=8:l=1:sink=1:window=2:dense-layers=0"},
    };
    for (size_t i = 0; i < sizeof specs / sizeof *specs; i++)
        if (!strcmp(specs[i][0], method)) return specs[i][1];
    return NULL;
}

// ---- the test ----

means means_of(const double mu[MEANS_DIM]) {
    means m = {0};
    memcpy(m.mu, mu, sizeof m.mu);
    return m;
}

static double square_norm(const double mu[MEANS_DIM]) {
    double sum = 0;
    for (int d = 0; d < MEANS_DIM; d++) sum += mu[d] * mu[d];
    return sum;
}

void means_add(means *m, const float out[MEANS_DIM]) {
    double dot = 0;
    for (int d = 0; d < MEANS_DIM; d++) {
        double off = out[d] - m->mu[d];
        m->sum[d] += off, m->square[d] += off * off;
        dot += off * m->mu[d];
    }
    dot /= square_norm(m->mu);
    m->along += dot, m->along_square += dot * dot;
    m->n++;
}

// The standard error of a mean of n numbers.
static double standard_error(double sum, double square, int n) {
    double mean = sum / n;
    return sqrt(fmax(square / n - mean * mean, 0) / (n - 1));
}

means_verdict means_judge(const means *m, double rounding) {
    double norm = sqrt(square_norm(m->mu));
    means_verdict v = {.bias = m->along / m->n, .error = standard_error(m->along, m->along_square, m->n)};
    v.is_biased = !(fabs(v.bias) <= 5 * v.error + rounding);
    for (int d = 0; d < MEANS_DIM; d++) {
        double off = fabs(m->sum[d] / m->n) - rounding * norm, error = standard_error(m->sum[d], m->square[d], m->n);
        double z = off <= 0 ? 0 : off / fmax(error, 1e-12 * norm);
        v.worst = fmax(v.worst, z);
    }
    v.is_biased |= !(v.worst <= 6);
    return v;
}

int means_check(const char *attn, sl_attn_mean label, int problem, int is_sharp, const means_verdict *v) {
    printf("      | %s | %s | %s | %+.3f%% | %.3f%% | %.1f | %s |\n", attn, sl_attn_mean_name(label), means_problems[problem],
           100 * v->bias, 100 * v->error, fmin(v->worst, 999), v->is_biased ? "biased" : "not biased");
    if (label == SL_MEAN_BIASED) return v->is_biased;
    if (v->is_biased)
        FAIL("%s is labelled %s: on %s the mean is off by %+.3f%% (standard error %.3f%%), a channel by %.1f standard errors",
             attn, sl_attn_mean_name(label), means_problems[problem], 100 * v->bias, 100 * v->error, v->worst);
    if (is_sharp && !(5 * v->error < 0.01))
        FAIL("%s on %s: a standard error of %.3f%% does not show a bias of 1%%", attn, means_problems[problem], 100 * v->error);
    return 0;
}
