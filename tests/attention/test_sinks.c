// tests/attention/test_sinks.c - every decode method on heads with an attention sink: the first key has half of the mass, and
// its value is short, as in models that were trained on text. The shape is that of SmolLM2-135M: 3 query heads for a KV
// head of dimension 64. A method that loses the sink has an error of the size of the output.
#include "tests/support/reference.h"
#include "tests/test.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { HEADS = 9, KV_HEADS = 3, GROUP = HEADS / KV_HEADS, DIM = 64, N_LENGTHS = 5 };
static const int lengths[N_LENGTHS] = {31, 256, 257, 1023, 1500};

// Gives the first key the score that makes its mass one half in every head of the group: moves the key along each query in
// turn.
static void make_sink(ref_cache *c, int s, int h) {
    const float *q = c->queries[s].q + (size_t)h * GROUP * DIM;
    bf16 *k = (bf16 *)ref_k_row(c, s, h, 0), *v = (bf16 *)ref_v_row(c, s, h, 0);
    double key[DIM], want[GROUP], norm[GROUP], p[1500], mu[DIM];
    for (int d = 0; d < DIM; d++) key[d] = sl_bf16_to_f32(k[d]), v[d] = sl_f32_to_bf16(sl_bf16_to_f32(v[d]) / 8);
    for (int g = 0; g < GROUP; g++) {
        ref_attention(c, s, h * GROUP + g, q + g * DIM, c->seqs[s].n_tokens, p, mu);
        want[g] = sqrt(DIM) * log(1 / p[0] - 1), norm[g] = 0;
        for (int d = 0; d < DIM; d++) want[g] += q[g * DIM + d] * key[d], norm[g] += (double)q[g * DIM + d] * q[g * DIM + d];
    }
    for (int i = 0; i < 100 * GROUP; i++) {
        int g = i % GROUP;
        double off = want[g];
        for (int d = 0; d < DIM; d++) off -= q[g * DIM + d] * key[d];
        for (int d = 0; d < DIM; d++) key[d] += off / norm[g] * q[g * DIM + d];
    }
    for (int d = 0; d < DIM; d++) k[d] = sl_f32_to_bf16((float)key[d]);
}

static void make_sinks(ref_cache *c) {
    double p[1500], mu[DIM];
    for (int s = 0; s < c->n_seqs; s++)
        for (int head = 0; head < HEADS; head++) {
            if (head % GROUP == 0) make_sink(c, s, head / GROUP);
            ref_attention(c, s, head, c->queries[s].q + head * DIM, c->seqs[s].n_tokens, p, mu);
            if (!(p[0] > 0.4 && p[0] < 0.6)) FAIL("sequence %d, head %d: the sink has %.3f of the mass", s, head, p[0]);
        }
}

// most: the largest relative error of a head.
// - every row with its exact mass: 2^-8 for stored masses (bf16), doubled.
// - S = 65,536 draws: the error's deviation is sqrt((sum p |v|^2 / |mu|^2 - 1) / S), below 0.06 here; 5 of them.
// - quantised keys: at most half a step of each channel, 2^-9 of its range; four bits: 16 times as much.
// - 1,024 trials: a score's deviation is below |q| |k| / (8 * 2 * 1024) < 0.01.
// - random: the sink is one of n rows. Its count has the deviation sqrt(n / S) of its mean, below 0.16; 5 of them.
static const struct {
    const char *attn;
    double most;
} methods[] = {
    {"dense", 1e-5},
    {"santa:S=65536", 0.3},
    {"santa-strat:S=65536", 0.3},
    {"santa-sys:S=65536", 0.3},
    {"santa-prop:S=65536", 0.3},
    {"santa-flash:S=65536", 0.3},
    {"santa-pps:S=1500", 0x1p-7},
    {"santa-pps:S=1500:budget=even", 0x1p-7},
    {"santa-is:S=1500", 0x1p-7},
    {"dense-q:bits=8", 0.03},
    {"dense-q:bits=4", 0.4},
    {"bernoulli:B=1024", 0.05},
    {"bernoulli-group:B=1024", 0.1},
    {"streaming:window=1500", 1e-5},
    {"topk:k=1500", 0x1p-7},
    {"topp:p=1", 0x1p-7},
    {"quest:tokens=1504", 0x1p-7},
    {"magicpig:window=1500", 1e-5},
    {"saap:l=13:dense-layers=0:window=1", 1e-5},
    {"saap-kmeans:l=13:dense-layers=0:window=1", 1e-5},
    {"saap-is:l=13:dense-layers=0:window=1", 1e-5},
    {"vattention:window=1500", 0x1p-7},
    {"random:S=65536", 0.8},
};
enum { N_METHODS = sizeof methods / sizeof *methods };

static double worst_error(ref_cache *c, const char *attn) {
    double worst = 0;
    ref_decode(c, attn, 0, c->n_seqs, 5, 0);
    for (int s = 0; s < c->n_seqs; s++)
        for (int head = 0; head < HEADS; head++) worst = fmax(worst, ref_error(c, s, head));
    return worst;
}

static int is_listed(const char *name) {
    for (int i = 0; i < N_METHODS; i++) {
        size_t n = strcspn(methods[i].attn, ":");
        if (strlen(name) == n && !strncmp(methods[i].attn, name, n)) return 1;
    }
    return 0;
}

static void near_dense(void) {
    ref_cache c = ref_cache_new(HEADS, KV_HEADS, DIM, N_LENGTHS, lengths, 1, test_seed);
    make_sinks(&c);
    for (int i = 0; i < N_METHODS; i++) {
        double worst = worst_error(&c, methods[i].attn);
        if (!(worst <= methods[i].most))
            FAIL("%s: relative error %.3g, expected at most %.3g", methods[i].attn, worst, methods[i].most);
    }
    for (int m = 0; sl_attn_methods[m]; m++)
        if (sl_attn_methods[m]->cpu->decode && !is_listed(sl_attn_methods[m]->name))
            FAIL("the table lacks %s", sl_attn_methods[m]->name);
    ref_cache_free(&c);
}

// With few rows, these methods still read the sink: by its mass, by its score, or by its place. (random and quest lose it.)
static void few_rows(void) {
    static const char *const attn[] = {"santa-pps:S=16",
                                       "santa-is:S=16",
                                       "topk:k=4",
                                       "topp:p=0.3",
                                       "streaming:window=16",
                                       "vattention:sink=1:window=1:top=0.01:base=0.01:epsilon=1",
                                       "magicpig:window=4",
                                       "saap:l=1:dense-layers=0:window=4"};
    static const int n = 1500;
    ref_cache c = ref_cache_new(HEADS, KV_HEADS, DIM, 1, &n, 1, test_seed);
    make_sinks(&c);
    for (int h = 0; h < KV_HEADS; h++)
        for (int d = 0; d < DIM; d++)
            ((bf16 *)ref_v_row(&c, 0, h, 0))[d] = sl_f32_to_bf16(100); // the output shows whether it was read
    for (size_t i = 0; i < sizeof attn / sizeof *attn; i++) {
        ref_decode(&c, attn[i], 0, 1, 5, 0);
        for (int head = 0; head < HEADS; head++)
            if (!(c.out[head * DIM] > 5)) FAIL("%s, head %d: the sink was not read", attn[i], head);
    }
    ref_cache_free(&c);
}

static const test_case cases[] = {{"near-dense", 0, near_dense}, {"few-rows", 0, few_rows}, {0}};
const test_suite suite_sinks = {"sinks", cases};
