// attention/extras/page_norms.c - the page extra "norms of V": |v_j| of every row, for draws in proportion to p |v|.
#include "attention/stages/stages.h"

#include <math.h>
#include <string.h>

void sl_norms(sl_kv_run v, int n_rows, int head_dim, bf16 *out) {
    for (int j = 0; j < n_rows; j++) {
        sl_kv_row row = sl_kv_row_at(v, head_dim, j);
        float square = 0, norm;
        uint32_t bits;
        for (int d = 0; d < head_dim; d++) {
            float x = sl_kv_number(row, v.format, d);
            square += x * x;
        }
        norm = sqrtf(square);
        memcpy(&bits, &norm, sizeof bits);
        out[j] = isnan(norm) ? 0x7fc0 : (bf16)((bits + 0xffff) >> 16); // rounded up
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
static void norms_build(const sl_kv_page *page, void *out) {
    sl_norms(page->v, SL_PAGE, page->head_dim, out);
}

const sl_kv_extra_kind sl_page_norms = {
    .name = "norms of V",
    .size = norms_size,
    .build = norms_build,
    .build_device = SL_ON_CUDA(sl_cuda_build_norms),
};
