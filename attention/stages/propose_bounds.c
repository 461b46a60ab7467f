// attention/stages/propose_bounds.c - the proposal of Quest (arXiv:2406.10774): an upper bound on the scores of a unit of 16
// consecutive rows, from the smallest and the largest key of every channel. A key that is NaN makes both bounds of its channel
// NaN.
#include "attention/stages/stages.h"

#include <math.h>
#include <string.h>

enum { UNIT = 16, UNITS = SL_PAGE / UNIT };

// The largest bf16 that is not above x: keys of a cache that is not bf16 lie between its numbers. A NaN stays a NaN.
static bf16 below(float x) {
    uint32_t bits;
    memcpy(&bits, &x, sizeof bits);
    if (isnan(x)) return sl_f32_to_bf16(x);
    return (bf16)((x < 0 ? bits + 0xffff : bits) >> 16);
}

// bounds: [units][2][head_dim], of the first n_rows rows.
static void find_bounds(sl_kv_run k, int n_rows, int head_dim, bf16 *bounds) {
    for (int from = 0; from < n_rows; from += UNIT, bounds += 2 * head_dim) {
        int n = from + UNIT < n_rows ? UNIT : n_rows - from;
        float rows[UNIT * 256], low[256], high[256];
        int has_nan = 0;
        sl_kv_widen(sl_kv_run_from(k, head_dim, from), head_dim, n, rows);
        for (int c = 0; c < head_dim; c++) low[c] = INFINITY, high[c] = -INFINITY;
        for (int j = 0; j < n; j++) // without calls, so the compiler makes vectors of the channels
            for (int c = 0; c < head_dim; c++) {
                float x = rows[j * head_dim + c] + 0.0f; // -0 becomes 0: both zeros give the same bound
                low[c] = x < low[c] ? x : low[c], high[c] = x > high[c] ? x : high[c];
            }
        for (int i = 0; i < n * head_dim; i++) has_nan |= rows[i] != rows[i];
        for (int i = n * head_dim - 1; has_nan && i >= 0; i--) // comparisons skip NaN; the first NaN of a channel counts
            if (isnan(rows[i])) low[i % head_dim] = high[i % head_dim] = rows[i];
        for (int c = 0; c < head_dim; c++) bounds[c] = below(low[c]), bounds[head_dim + c] = below(-high[c]) ^ 0x8000;
    }
}

static size_t size(int arg, int head_dim) {
    (void)arg;
    return (size_t)UNITS * 2 * head_dim * sizeof(bf16);
}
static void build(const sl_kv_page *page, void *out) {
    find_bounds(page->k, SL_PAGE, page->head_dim, out);
}
const sl_kv_extra_kind sl_key_bounds = {
    .name = "key bounds",
    .size = size,
    .build = build,
    .build_device = SL_ON_CUDA(sl_cuda_build_bounds),
};

static int needs(const sl_attn_spec *spec, sl_kv_need *out) {
    (void)spec;
    *out = (sl_kv_need){&sl_key_bounds, 0};
    return 1;
}

static void score(const sl_group *g, int page, float *out) {
    bf16 newest[UNITS * 2 * 256];
    int n = sl_page_rows(g->kv, page);
    const bf16 *bounds = newest;
    if (page < sl_kv_n_built(g->kv))
        bounds = sl_kv_extra(g->kv, (sl_kv_need){&sl_key_bounds, 0}, page, g->h);
    else
        find_bounds(sl_k_page(g, page), n, g->head_dim, newest);
    g->kernels->score_bounds(g->q, g->n, bounds, (n + UNIT - 1) / UNIT, g->head_dim, g->scale, out, SL_CHUNK);
}

static uint64_t bytes(const sl_group *g) {
    int n_built = sl_kv_n_built(g->kv);
    return n_built * (uint64_t)size(0, g->head_dim) + sl_newest_bytes(g);
}

const sl_proposal sl_propose_bounds = {.unit = UNIT, .needs = needs, .score = score, .bytes = bytes};
