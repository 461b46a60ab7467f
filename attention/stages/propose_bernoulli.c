// attention/stages/propose_bernoulli.c - the proposal Bernoulli qK^T (SANTA paper, arXiv:2605.01910, section 5 and appendix C).
//
// A query is replaced by a random query: every feature is a random integer multiple of norm / B, and most features
// are 0. The scores are unbiased. Full pages have a copy of the keys by feature, [head_dim][256]. So features that are 0 for
// all heads of the group are not read. A query with a magnitude that is not finite is used as it is.
#include "attention/stages/stages.h"

#include <math.h>
#include <string.h>

// The state of a step: the random queries of the group, and the features to read.
typedef struct sampled {
    int n_features;
    int32_t *features; // [head_dim], ascending
    float *q;          // [group][head_dim]: the score is q.k * scale
} sampled;

static sampled state_of(const sl_group *g) {
    int32_t *at = g->state;
    return (sampled){.n_features = at[0], .features = at + 1, .q = (float *)(at + 1 + g->head_dim)};
}

static size_t state(const sl_attn_geom *geom, const sl_attn_spec *spec, int n_kv) {
    (void)spec, (void)n_kv;
    return sizeof(int32_t) * (1 + geom->head_dim) + sizeof(float) * (geom->n_heads / geom->n_kv_heads) * geom->head_dim;
}

// c_i of equation 9: B trials of probability a. Stratified: floor(B a + U). The comparison is in integers, because in floating
// point the largest U round to 1 and would give B + 1.
int sl_bernoulli_count(sl_uniform u, int feature, int head_dim, int B, double a, int iid) {
    if (a >= 1) return B;
    if (!iid) {
        double whole = floor(B * a);
        uint64_t rest = (uint64_t)((B * a - whole) * 0x1p64);
        return (int)whole + (u.next(u.ctx, (uint32_t)feature) + rest < rest); // the sum wraps: U + rest >= 1
    }
    uint64_t chance = (uint64_t)(a * 0x1p64);
    int count = 0;
    for (int t = 0; t < B; t++) count += u.next(u.ctx, sl_trial_index(t, feature, head_dim)) < chance;
    return count;
}

static uint64_t next_uniform(const void *id, uint32_t index) {
    return sl_feature_random(id, index);
}

// out[i] = norm c_i / B for the magnitudes m[head_dim]. The trials use the numbers of query head `head`.
static void sample_magnitudes(const sl_group *g, int head, const float *m, float *out) {
    const sl_attn_decode_args *a = g->args;
    const sl_rng_id id =
        sl_attn_rng_id(a->seed + g->query->seed, g->query->sequence, g->query->position, a->layer, a->geom->first_head + head);
    sl_uniform u = {next_uniform, &id};
    int B = (int)sl_attn_get(a->spec, "B"), iid = sl_attn_get(a->spec, "bernoulli-sampling") == 1;
    float norm = 0;
    for (int i = 0; i < g->head_dim; i++) norm = fmaxf(norm, m[i]);
    for (int i = 0; i < g->head_dim; i++) {
        int count = norm > 0 ? sl_bernoulli_count(u, i, g->head_dim, B, (double)m[i] / norm, iid) : 0;
        out[i] = norm * (float)count / (float)B;
    }
}

static int all_finite(const float *x, int n) {
    float sum = 0;
    for (int i = 0; i < n; i++) sum += 0 * x[i];
    return sum == 0;
}

static void list_features(sl_group *g) {
    sampled s = state_of(g);
    int n = 0;
    for (int i = 0; i < g->head_dim; i++) {
        int used = 0;
        for (int j = 0; j < g->n; j++) used |= s.q[(size_t)j * g->head_dim + i] != 0;
        if (used) s.features[n++] = i;
    }
    *(int32_t *)g->state = n;
}

static void begin_each(sl_group *g) { // every head has a separate set of features
    sampled s = state_of(g);
    float m[SL_QUANT_DIM];
    for (int j = 0; j < g->n; j++) {
        const float *q = g->q + (size_t)j * g->head_dim;
        float *to = s.q + (size_t)j * g->head_dim;
        for (int i = 0; i < g->head_dim; i++) m[i] = to[i] = fabsf(q[i]);
        if (all_finite(m, g->head_dim)) sample_magnitudes(g, g->h * g->n + j, m, to);
        for (int i = 0; i < g->head_dim; i++) to[i] = copysignf(to[i], q[i]);
    }
    list_features(g);
}

static void begin_group(sl_group *g) { // equations 10-13: one set of features for the group, from the mean magnitudes
    sampled s = state_of(g);
    float m[SL_QUANT_DIM], sampled_m[SL_QUANT_DIM];
    for (int i = 0; i < g->head_dim; i++) {
        m[i] = 0;
        for (int j = 0; j < g->n; j++) m[i] += fabsf(g->q[(size_t)j * g->head_dim + i]);
        m[i] /= (float)g->n;
    }
    int samples = all_finite(m, g->head_dim);
    if (samples) sample_magnitudes(g, g->h * g->n, m, sampled_m);
    for (int j = 0; j < g->n; j++)
        for (int i = 0; i < g->head_dim; i++) {
            size_t at = (size_t)j * g->head_dim + i;
            s.q[at] = !samples ? g->q[at] : m[i] > 0 ? sampled_m[i] * (g->q[at] / m[i]) : 0;
        }
    list_features(g);
}

// ---- keys by feature: of a cache that is not bf16, rounded to bf16 ----

static size_t size(int arg, int head_dim) {
    (void)arg;
    return (size_t)head_dim * SL_PAGE * sizeof(bf16);
}
static void build(const sl_kv_page *page, void *out) {
    bf16 *to = out;
    int head_dim = page->head_dim;
    for (int j = 0; j < SL_PAGE; j++) {
        sl_kv_row row = sl_kv_row_at(page->k, head_dim, j);
        for (int i = 0; i < head_dim; i++) to[(size_t)i * SL_PAGE + j] = sl_f32_to_bf16(sl_kv_number(row, page->k.format, i));
    }
}
const sl_kv_extra_kind sl_keys_by_feature = {
    .name = "keys by feature",
    .size = size,
    .build = build,
    .build_device = SL_ON_CUDA(sl_cuda_build_keys_by_feature),
};

static int needs(const sl_attn_spec *spec, sl_kv_need *out) {
    (void)spec;
    *out = (sl_kv_need){&sl_keys_by_feature, 0};
    return 1;
}

// ---- the proposal ----

static void score(const sl_group *g, int page, float *out) {
    sampled s = state_of(g);
    if (page < sl_kv_n_built(g->kv))
        g->kernels->score_features(s.q, g->n, g->head_dim, s.features, s.n_features,
                                   sl_kv_extra(g->kv, (sl_kv_need){&sl_keys_by_feature, 0}, page, g->h), g->scale, out,
                                   SL_CHUNK);
    else
        g->kernels->score(s.q, g->n, sl_k_page(g, page), sl_page_rows(g->kv, page), g->head_dim, g->scale, out, SL_CHUNK);
}

static uint64_t bytes(const sl_group *g) {
    return (uint64_t)sl_kv_n_built(g->kv) * SL_PAGE * state_of(g).n_features * sizeof(bf16) + sl_newest_bytes(g);
}

static void report(const sl_head *x) {
    x->report->features = (float)state_of(x->group).n_features / (float)x->group->head_dim;
}

const sl_proposal sl_propose_bernoulli = {
    .unit = 1, .needs = needs, .state = state, .begin = begin_each, .score = score, .bytes = bytes, .report = report};
const sl_proposal sl_propose_bernoulli_group = {
    .unit = 1, .needs = needs, .state = state, .begin = begin_group, .score = score, .bytes = bytes, .report = report};
