// attention/propose_exact.c - proposals that quantise nothing: the exact score of every row, the same weight for every row,
// and none at all.
#include "attention/stages.h"
#ifdef SLEIGH_CUDA
#include "attention/attention_cuda.h"
#endif

#include <math.h>
#include <string.h>

int sl_page_rows(const sl_kv_view *kv, int page) {
    int left = kv->n_kv - page * SL_PAGE;
    return left < SL_PAGE ? left : SL_PAGE;
}

const bf16 *sl_k_page(const sl_group *g, int page) {
    return g->kv->k + sl_kv_block(g->kv, g->args->geom->n_kv_heads, g->head_dim, page, g->h);
}
const bf16 *sl_v_page(const sl_group *g, int page) {
    return g->kv->v + sl_kv_block(g->kv, g->args->geom->n_kv_heads, g->head_dim, page, g->h);
}

void sl_score_exact(const sl_group *g, int page, float *score) {
    g->kernels->score(g->q, g->n, sl_k_page(g, page), sl_page_rows(g->kv, page), g->head_dim, g->scale, score, SL_CHUNK);
}

static uint64_t all_keys(const sl_group *g) {
    return (uint64_t)g->kv->n_kv * g->head_dim * sizeof(bf16);
}

static uint64_t no_bytes(const sl_group *g) {
    (void)g;
    return 0;
}

const sl_proposal sl_propose_exact = {.exact = 1, .unit = 1, .score = sl_score_exact, .bytes = all_keys};
const sl_proposal sl_propose_nothing = {.unit = 0, .bytes = no_bytes};
const sl_proposal sl_propose_uniform = {.unit = 1, .bytes = no_bytes}; // no scores: decode.c gives every row one mass

// ---- norms of V, for draws in proportion to p |v| ----

void sl_norms(const bf16 *v, int n_rows, int head_dim, bf16 *out) {
    for (int j = 0; j < n_rows; j++) {
        float square = 0, norm;
        uint32_t bits;
        for (int d = 0; d < head_dim; d++) {
            float x = sl_bf16_to_f32(v[(size_t)j * head_dim + d]);
            square += x * x;
        }
        norm = sqrtf(square);
        memcpy(&bits, &norm, sizeof bits);
        out[j] = (bf16)((bits + 0xffff) >> 16);
    }
}

void sl_norms_of_page(const sl_group *g, int page, bf16 out[SL_PAGE]) {
    if (page < sl_kv_n_built(g->kv))
        memcpy(out, sl_kv_extra(g->kv, (sl_kv_need){&sl_page_norms, 0}, page, g->h), SL_PAGE * sizeof *out);
    else
        sl_norms(sl_v_page(g, page), sl_page_rows(g->kv, page), g->head_dim, out);
}

static size_t norms_size(int arg, int head_dim) {
    (void)arg, (void)head_dim;
    return SL_PAGE * sizeof(bf16);
}
static void norms_build(int arg, int head_dim, const bf16 *k, const bf16 *v, const void *before, const void *shared,
                        void *out) {
    (void)arg, (void)k, (void)before, (void)shared;
    sl_norms(v, SL_PAGE, head_dim, out);
}

const sl_kv_extra_kind sl_page_norms = {.name = "norms of V",
                                        .size = norms_size,
                                        .build = norms_build,
#ifdef SLEIGH_CUDA
                                        .build_device = sl_cuda_build_norms
#endif
};
