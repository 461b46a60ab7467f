// attention/stages/propose_exact.c - three proposals: the exact score of every row, the same mass for every row, and no masses.
#include "attention/stages/stages.h"

#include <math.h>
#include <string.h>

void sl_score_exact(const sl_group *g, int page, float *score) {
    g->kernels->score(g->q, g->n, sl_k_page(g, page), sl_page_rows(g->kv, page), g->head_dim, g->scale, score, SL_CHUNK);
}

static uint64_t all_keys(const sl_group *g) {
    return (uint64_t)g->kv->n_kv * sl_k_row_bytes(g);
}

static uint64_t no_bytes(const sl_group *g) {
    (void)g;
    return 0;
}

const sl_proposal sl_propose_exact = {.exact = 1, .unit = 1, .score = sl_score_exact, .bytes = all_keys};
const sl_proposal sl_propose_nothing = {.unit = 0, .bytes = no_bytes};
const sl_proposal sl_propose_uniform = {.unit = 1, .bytes = no_bytes}; // without scores decode.c gives all rows the same mass
