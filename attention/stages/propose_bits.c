// attention/stages/propose_bits.c - a proposal from learned bits (attention/extras/key_bits.h): the score of a row is the
// number of bits that its key and the query have in common. It gives an order of the rows, not estimates of their scores, so it
// serves methods that only ask for the largest rows.
#include "attention/extras/key_bits.h"
#include "attention/stages/stages.h"

// A common bit counts 1/8 in log2 units. So the masses of two counts differ after their rounding to bf16, and 128 bits span 16
// octaves.
static const float OF_BIT = 0.125f;

static const sl_kv_need need = {&sl_key_bits_kind, 0};

typedef struct query_bits {
    uint32_t plane[SL_KEY_BITS_MOST / 32];
    float invalid; // 0, or NaN: then every score is NaN
} query_bits;

static int needs(const sl_attn_spec *spec, sl_kv_need *out) {
    (void)spec;
    *out = need;
    return 1;
}

static size_t state(const sl_attn_geom *geom, const sl_attn_spec *spec, int n_kv) { // the bits of each query of the group
    (void)spec, (void)n_kv;
    return (size_t)(geom->n_heads / geom->n_kv_heads) * sizeof(query_bits);
}

static void begin(sl_group *g) {
    query_bits *q = g->state;
    for (int i = 0; i < g->n; i++)
        q[i].invalid = sl_query_bits_of(g->args->geom->buckets, g->kv->layer, g->h, g->q + (size_t)i * g->head_dim, q[i].plane);
}

static void score(const sl_group *g, int page, float *out) {
    const sl_buckets *b = g->args->geom->buckets;
    const query_bits *q = g->state;
    const sl_key_bit_page *keys;
    sl_key_bit_page newest;
    int n = sl_page_rows(g->kv, page), n_planes = b->bits.n_bits / 32;
    if (page < sl_kv_n_built(g->kv)) {
        keys = sl_kv_extra(g->kv, need, page, g->h);
    } else {
        sl_key_bits_of(b, g->kv->layer, g->h, sl_k_page(g, page), n, &newest);
        keys = &newest;
    }
    for (int i = 0; i < g->n; i++) {
        float *to = out + (size_t)i * SL_CHUNK, least = q[i].invalid + keys->invalid[0];
        for (int j = 0; j < n; j++) {
            int common = 0;
            for (int p = 0; p < n_planes; p++) common += __builtin_popcount(~(q[i].plane[p] ^ keys->plane[p][j]));
            to[j] = least + OF_BIT * (float)common;
        }
    }
}

static uint64_t bytes(const sl_group *g) { // of rows, and the numbers that make the bits of queries and newest keys
    int B = g->args->geom->buckets->bits.n_bits;
    uint64_t numbers = 2 * (uint64_t)B * (g->head_dim * sizeof(bf16) + sizeof(float));
    return (uint64_t)sl_kv_n_built(g->kv) * SL_PAGE * (B / 8) + numbers + sl_newest_bytes(g);
}

const sl_proposal sl_propose_bits = {.unit = 1, .needs = needs, .state = state, .begin = begin, .score = score, .bytes = bytes};
