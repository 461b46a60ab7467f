// attention/methods/saap.c - SAAP: the rows of few buckets of keys, exactly (docs/methods-theory.md, saap); and with draws from
// the other buckets (saap-is, ours).
//
// P.-E. Mazare, G. Szilvasy, M. Lomeli, F. Massa, N. Murray, H. Jegou, M. Douze: Inference-time sparse attention with
// asymmetric indexing, arXiv:2502.08246. Defaults: l = 32 buckets, 1 + 2047 rows that are always read, layer 0 dense (sections
// 3 and 6).
#include "attention/extras/buckets.h"
#include "attention/stages/stages.h"

// clang-format off
#define SAAP_PARAMS                                                                                                            \
    {"l", SL_PARAM_INT, 32, 0, SL_BUCKETS_MOST, "buckets that a KV head visits; at most all buckets", NULL},                   \
    {"sink", SL_PARAM_INT, 1, 0, 1 << 20, "first rows that are always read", NULL},                                            \
    {"window", SL_PARAM_INT, 2047, 0, 1 << 20, "last rows that are always read", NULL},                                        \
    {"dense-layers", SL_PARAM_INT, 1, 0, 1 << 16, "first layers that read every row", NULL}
#define DENSE_ABOVE                                                                                                            \
    {"dense-above", SL_PARAM_FLOAT, 1, 0, 1, "share of the rows in visited buckets above which a head reads every row", NULL}
// clang-format on

static const sl_attn_param saap_params[] = {SAAP_PARAMS, DENSE_ABOVE, {0}};
static const sl_attn_param kmeans_params[] = {
    SAAP_PARAMS,
    DENSE_ABOVE,
    {"rope", SL_PARAM_INT, 0, 0, 1, "1: buckets of keys after RoPE, the paper's baseline", NULL},
    {0}};

static const sl_attn_param is_params[] = {
    {"S", SL_PARAM_INT, 256, 0, 65536, "rows drawn per query head from buckets that are not visited; 0: saap", NULL},
    SAAP_PARAMS,
    {"proposal", SL_PARAM_CHOICE, 0, 0, 1, "probabilities of the draws", "cells,classifier"},
    {"gamma", SL_PARAM_FLOAT, 1, 0, 1, "exponent of the classifier's probability, with proposal=classifier", NULL},
    {0},
};

static const sl_composition by_classifier = {&sl_propose_buckets, &sl_draw_visited, SL_BY_SAMPLE, NULL, NULL},
                            by_centroid = {&sl_propose_centroids, &sl_draw_visited, SL_BY_SAMPLE, NULL, NULL},
                            with_draws = {&sl_propose_cells, &sl_draw_unvisited, SL_BY_SAMPLE, NULL, NULL};

static int supports(const sl_attn_geom *geom, const sl_attn_spec *spec, sl_error *err) {
    const sl_buckets *b = geom->buckets;
    const char *name = spec->method->name;
    int dense = (int)sl_attn_get(spec, "dense-layers");
    if (!b || !b->n_buckets)
        return sl_fail(err, SL_ERR_UNSUPPORTED, "{attn} %s: it needs the bucket file of a model, and there is none here", name);
    if (dense < b->n_dense)
        return sl_fail(
            err, SL_ERR_UNSUPPORTED,
            "{attn} %s: found {dense-layers} %d, expected at least %d: the bucket file has no trained numbers for the "
            "layers below",
            name, dense, b->n_dense);
    if (spec->method->stages != &by_centroid && !b->width)
        return sl_fail(err, SL_ERR_UNSUPPORTED, "{attn} %s: the bucket file has no classifier; use saap-kmeans", name);
    if (spec->method->stages == &by_centroid && sl_attn_get(spec, "rope") > 0 && !b->roped)
        return sl_fail(err, SL_ERR_UNSUPPORTED,
                       "{attn} %s: found {rope} 1, expected 0: the bucket file has no centroids of keys after RoPE", name);
    return 0;
}

const sl_attn_method sl_method_saap = {
    .name = "saap",
    .summary = "the rows of the l buckets of keys that a trained classifier of the queries chooses, renormalised",
    .source = "SAAP (Mazare et al., arXiv:2502.08246)",
    .mean = SL_MEAN_BIASED,
    .caution = "it needs a bucket file that was trained for the model, and it misses rows on texts unlike the training text",
    .params = saap_params,
    .supports = supports,
    .needs_buckets = 1,
    .crossover = {{.ratio = 2}, {.ratio = 1}},
    .stages = &by_classifier,
    .cpu = &sl_stages_ops,
    .cuda = SL_ON_CUDA(sl_saap_cuda_ops),
};
const sl_attn_method sl_method_saap_kmeans = {
    .name = "saap-kmeans",
    .summary = "the rows of the l buckets of keys whose centroids are nearest to the queries, renormalised",
    .source = "SAAP (Mazare et al., arXiv:2502.08246), the baseline \"K-means\" of section 6.1",
    .mean = SL_MEAN_BIASED,
    .caution = "it needs a bucket file that was trained for the model",
    .params = kmeans_params,
    .supports = supports,
    .needs_buckets = 1,
    .crossover = {{.ratio = 2}, {.ratio = 1}},
    .stages = &by_centroid,
    .cpu = &sl_stages_ops,
    .cuda = SL_ON_CUDA(sl_saap_cuda_ops),
};
const sl_attn_method sl_method_saap_is = {
    .name = "saap-is",
    .summary = "the rows of saap exactly, and S rows drawn from the other buckets with known probabilities, self-normalised",
    .source = "ours: SAAP with importance sampling",
    .mean = SL_MEAN_BIASED,
    .caution =
        "it needs a bucket file that was trained for the model; the bias is O(1/S) only where the proposal misses no mass: on "
        "peaked scores it falls more slowly up to S = 1024, and standard_error states too little "
        "(`sleigh-test saap_is/peaked-scores`)",
    .params = is_params,
    .supports = supports,
    .needs_buckets = 1,
    .crossover = {{.ratio = 2}, {.ratio = 1}},
    .stages = &with_draws,
    .cpu = &sl_stages_ops,
    .cuda = SL_ON_CUDA(sl_saap_is_cuda_ops),
};
