// attention/extras/key_bits.c - see key_bits.h.
#include "attention/extras/key_bits.h"
#include "attention/cpu/cpu_kernels.h"
#include "attention/stages/stages.h"

#include <string.h>

enum { MAX_DIM = 256 };

// Writes the bits w_i . x + bias_i > 0 into bits[p], bit i of them into bit i % 32 of bits[i / 32]. w: [n][dim]. Returns 0, or
// NaN if a product is infinite or NaN.
static float bits_of(const float *x, const bf16 *w, const float *bias, int n, int dim, uint32_t *bits) {
    sl_kv_row row[SL_KEY_BITS_MOST];
    float product[SL_KEY_BITS_MOST], invalid = 0;
    for (int i = 0; i < n; i++) row[i] = sl_kv_row_at(sl_kv_bf16_run(w), dim, i);
    sl_attn_kernels_best()->score_rows(x, SL_BF16, row, n, dim, 1, product);
    memset(bits, 0, (size_t)n / 32 * sizeof *bits);
    for (int i = 0; i < n; i++) {
        float y = product[i] + bias[i];
        bits[i / 32] |= (uint32_t)(y > 0) << i % 32;
        invalid += y - y; // 0, or NaN
    }
    return invalid;
}

void sl_key_bits_of(const sl_buckets *b, int layer, int h, sl_kv_run k, int n_rows, sl_key_bit_page *out) {
    const sl_key_bits *bits = &b->bits;
    size_t first = ((size_t)layer * b->n_kv_heads + h) * bits->n_bits;
    float x[MAX_DIM];
    uint32_t own[SL_KEY_BITS_MOST / 32];
    memset(out->invalid, 0, sizeof out->invalid);
    for (int j = 0; j < n_rows; j++) {
        sl_attn_kernels_best()->widen(sl_kv_run_from(k, b->head_dim, j), 1, b->head_dim, x);
        out->invalid[0] += bits_of(x, bits->wk + first * b->head_dim, bits->bk + first, bits->n_bits, b->head_dim, own);
        for (int p = 0; p < bits->n_bits / 32; p++) out->plane[p][j] = own[p];
    }
}

float sl_query_bits_of(const sl_buckets *b, int layer, int h, const float *x, uint32_t *out) {
    const sl_key_bits *bits = &b->bits;
    size_t first = ((size_t)layer * b->n_kv_heads + h) * bits->n_bits;
    return bits_of(x, bits->wq + first * b->head_dim, bits->bq + first, bits->n_bits, b->head_dim, out);
}

static size_t size(int arg, int head_dim) {
    (void)arg, (void)head_dim;
    return sizeof(sl_key_bit_page);
}

static void build(const sl_kv_page *page, void *out) {
    SL_CHECK(page->buckets && page->buckets->bits.n_bits);
    sl_key_bits_of(page->buckets, page->layer, page->h, page->k, SL_PAGE, out);
}

const sl_kv_extra_kind sl_key_bits_kind = {.name = "key bits", .size = size, .build = build};
