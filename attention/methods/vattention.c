// attention/methods/vattention.c - attention to fixed rows, and to a uniform sample of the other rows. The size of the sample
// follows from a stated error.
//
// A. Desai, K. K. Agrawal, S. Yang, A. Cuadron, L. G. Schroeder, M. Zaharia, J. E. Gonzalez, I. Stoica: vAttention: Verified
// Sparse Attention, arXiv:2510.05688.
#include "attention/extras/bucket_visit.h"
#include "attention/extras/key_bits.h"
#include "attention/stages/stages.h"

static const sl_attn_param params[] = {
    {"epsilon", SL_PARAM_FLOAT, 0.05, 1e-4, 1, "relative error that is verified", NULL},
    {"delta", SL_PARAM_FLOAT, 0.05, 1e-9, 0.5, "probability that the error exceeds epsilon", NULL},
    {"sink", SL_PARAM_INT, 128, 0, 1 << 20, "first rows that are always read", NULL},
    {"window", SL_PARAM_INT, 128, 1, 1 << 20, "last rows that are always read", NULL},
    {"top", SL_PARAM_FLOAT, 0.05, 0, 1, "share of the rows that are predicted to be heavy and always read", NULL},
    {"base", SL_PARAM_FLOAT, 0.05, 0, 1, "share of the other rows that the base sample reads", NULL},
    {"predictor", SL_PARAM_CHOICE, 0, 0, 4,
     "predictor of the heavy rows: exact scores, page bounds, 4-bit keys, trained bits or trained buckets",
     "oracle,quest,int4,hash,buckets"},
    {"verify", SL_PARAM_CHOICE, 2, 0, 2, "quantity whose error is stated", "denominator,numerator,output"},
    {"bound", SL_PARAM_CHOICE, 0, 0, 2, "theorem for the stated error; clt is asymptotic", "clt,hoeffding,bernstein"},
    {0},
};

static const sl_proposal *predictor(const sl_attn_spec *spec) {
    static const sl_proposal *const of[] = {&sl_propose_exact, &sl_propose_bounds, &sl_propose_quantised, &sl_propose_bits,
                                            &sl_propose_bucket_ranks};
    return of[(int)sl_attn_get(spec, "predictor")];
}

// The theorems of the other bounds need a certified range of the scores that are left.
static int check(const sl_attn_spec *spec, sl_error *err) {
    int is_trained = sl_attn_reads_key_bits(spec) || sl_attn_reads_buckets(spec);
    if (!is_trained || sl_attn_chooses(spec, "bound", "clt")) return 0;
    return sl_fail(
        err, SL_ERR_ARG,
        "{attn} vattention: found {bound} %s, expected clt with {predictor} %s: trained %s do not bound the scores of "
        "the other rows",
        sl_attn_chooses(spec, "bound", "hoeffding") ? "hoeffding" : "bernstein",
        sl_attn_reads_key_bits(spec) ? "hash" : "buckets", sl_attn_reads_key_bits(spec) ? "bits" : "buckets");
}

static int supports(const sl_attn_geom *geom, const sl_attn_spec *spec, sl_error *err) {
    const sl_buckets *b = geom->buckets;
    if (sl_attn_reads_key_bits(spec) && !(b && b->bits.n_bits))
        return sl_fail(err, SL_ERR_UNSUPPORTED,
                       "{attn} vattention: {predictor} hash needs the bit file of a model, and there is none here");
    if (sl_attn_reads_buckets(spec) && !(b && b->n_buckets))
        return sl_fail(err, SL_ERR_UNSUPPORTED,
                       "{attn} vattention: {predictor} buckets needs the bucket file of a model, and there is none here");
    return 0;
}

static const sl_composition stages = {&sl_propose_exact, &sl_draw_verified, SL_BY_SAMPLE, predictor, NULL};

const sl_attn_method sl_method_vattention = {
    .name = "vattention",
    .summary = "sink, window and predicted top rows exactly, and a uniform sample of the rest for a stated error",
    .source = "vAttention: Verified Sparse Attention (Desai et al.)",
    .mean = SL_MEAN_BIASED,
    .caution =
        "bound=clt exceeds delta on heavy tails of e^s or of the values: at delta 10% (top 0.01, base 0.02), the "
        "denominator's error exceeds epsilon in 17.3% of runs and the numerator's in 12.3% with scores of deviation 2.6, "
        "and the output's in 63.5% with Pareto values of exponent 1.1 (`sleigh-test vattention_bounds` prints the "
        "table). The reported kurtosis warns of the tails that the base sample shows; bound=bernstein holds on all",
    .check = check,
    .params = params,
    .supports = supports,
    .crossover = {{.stated = 65536}, {.stated = 262144}},
    .stages = &stages,
    .cpu = &sl_stages_ops,
    .cuda = SL_ON_CUDA(sl_vattention_cuda_ops),
};
