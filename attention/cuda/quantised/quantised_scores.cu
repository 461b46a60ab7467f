// attention/cuda/quantised/quantised_scores.cu - stores the masses of all rows from quantised keys (score_quantised.cuh).
#include "attention/cuda/quantised/quantised_scores.h"
#include "attention/cuda/quantised/score_quantised.cuh"

namespace {

template <int DIM, int BITS> void launch(const sl_attn_cuda_decode_args *a, uint64_t *mass, bf16 *w) {
    score_params score = score_params_of<DIM>(a);
    score.mass = mass, score.w = w;
    launch_quantised_scores<DIM, BITS>(a, score, NULL);
}

template <int DIM> void launch_bits(const sl_attn_cuda_decode_args *a, int bits, uint64_t *mass, bf16 *w) {
    switch (bits) {
    case 8:
        return launch<DIM, 8>(a, mass, w);
    case 4:
        return launch<DIM, 4>(a, mass, w);
    default:
        return launch<DIM, 3>(a, mass, w);
    }
}

} // namespace

void sl_cuda_store_quantised_masses(const sl_attn_cuda_decode_args *a, uint64_t *mass, bf16 *w) {
    sl_kv_need need;
    needs_quantised(a->spec, &need);
    SL_WITH_HEAD_DIM(a->geom->head_dim, launch_bits, a, need.arg, mass, w);
}

void sl_cuda_account_quantised(const sl_attn_geom *geom, const sl_attn_spec *spec, int n_kv, sl_attn_stats *stats) {
    account_quantised(geom, spec, n_kv, stats);
}
