// attention/prefill/mask_random.c - see mask_random.h.
#include "attention/prefill/mask_random.h"
#include "attention/stages/stages.h"
#include "base/normal.h"

#include <math.h>

enum { OF_BLOCKS, OF_DIRECTIONS }; // a word of the key

static sl_philox4 random_words(const sl_mask_args *a, int head, int use, int place, int i) {
    uint32_t of_head = (uint32_t)a->layer << 16 | (uint32_t)(a->geom->first_head + head);
    return sl_philox((uint32_t)use, 0, (uint32_t)place, of_head, (uint32_t)i, SL_STREAM_MASK);
}

// Floyd's method: draw i takes one of the first n_blocks - n + i + 1 blocks, or the last of them if that one is taken already.
void sl_mask_draw(const sl_mask_args *a, int head, int place, uint64_t *set, int from, int end, int n) {
    int n_blocks = end - from;
    if (n > n_blocks) n = n_blocks;
    for (int i = 0; i < n; i++) {
        int last = n_blocks - n + i;
        uint64_t u = random_words(a, head, OF_BLOCKS, place, i).v[0];
        int block = from + (int)(u * (uint64_t)(last + 1) >> 32);
        sl_mask_set(set, sl_mask_has(set, block) ? from + last : block);
    }
}

static void fill_directions(const sl_mask_args *a, int head, int n, float *out) { // out: [n][head_dim]
    for (int c = 0; c < n; c++)
        for (int d = 0; d < a->geom->head_dim; d++) {
            double normal = sl_normal_of_words(random_words(a, head, OF_DIRECTIONS, c, d));
            *out++ = (float)(rint(normal * 256) / 256);
        }
}

// *is_finite becomes 0 if a product is infinite or NaN.
static uint32_t hash_of(const float *row, const float *directions, int n, int dim, sl_mask_hash hash, int *is_finite) {
    double dot[SL_MASK_DIRECTIONS];
    for (int c = 0; c < n; c++) {
        dot[c] = 0;
        for (int d = 0; d < dim; d++) dot[c] += (double)row[d] * directions[(size_t)c * dim + d];
        if (!isfinite(dot[c])) *is_finite = 0;
    }
    return hash(dot, n);
}

int sl_mask_hash_rows(const sl_mask_args *a, int head, int n, sl_mask_hash hash, sl_row_sums *x) {
    const sl_attn_geom *g = a->geom;
    int dim = g->head_dim, h = head / (g->n_heads / g->n_kv_heads), is_finite = 1;
    float *directions = x->k, *rows = x->k_page; // [SL_PAGE][head_dim] each
    SL_CHECK(n <= SL_MASK_DIRECTIONS);
    fill_directions(a, head, n, directions);
    for (int from = 0; from < a->kv.n_kv; from += SL_PAGE) {
        int n_rows = sl_page_rows(&a->kv, from / SL_PAGE);
        sl_attn_kernels_best()->widen(sl_kv_k_run(&a->kv, g->n_kv_heads, dim, from / SL_PAGE, h), n_rows, dim, rows);
        for (int j = 0; j < n_rows; j++)
            x->column[from + j] = hash_of(rows + (size_t)j * dim, directions, n, dim, hash, &is_finite);
    }
    for (int t = 0; t < a->n_tokens; t++)
        x->offset[t] = hash_of(a->q + ((size_t)t * g->n_heads + head) * dim, directions, n, dim, hash, &is_finite);
    if (!is_finite) sl_mask_add_all(a, head, a->mask->first, a->mask->first + a->mask->n);
    return is_finite;
}

void sl_mask_add_most(const sl_prefill_mask *m, int head, int i, int from, int n_blocks, int n, const uint32_t *pairs,
                      uint64_t *rank) {
    sl_rank_sums(pairs, n_blocks, rank);
    for (int c = 0; c < n && c < n_blocks && sl_rank_sum(rank[c]); c++)
        sl_mask_set(sl_mask_row(m, head, i), from + (int)sl_rank_index(rank[c]));
}
