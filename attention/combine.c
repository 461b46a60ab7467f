// attention/combine.c - from drawn rows to the output: reads the drawn rows of V and no others.
#include "attention/kernels.h"
#include "attention/stages.h"

void sl_combine(const sl_draws *draws, const sl_kv_view *kv, int n_kv_heads, int head_dim, int h,
                const struct sl_attn_kernels *kernels, const bf16 **rows, float *coef, float *out) {
    for (int i = 0; i < draws->n; i++) {
        int j = draws->row[i];
        rows[i] = kv->v + sl_kv_block(kv, n_kv_heads, head_dim, j / SL_PAGE, h) + (size_t)(j % SL_PAGE) * head_dim;
        coef[i] = (float)draws->count[i] * draws->per_draw[i];
    }
    kernels->gather(rows, coef, draws->n, head_dim, out);
}
