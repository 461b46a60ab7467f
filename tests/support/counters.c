// tests/support/counters.c - see counters.h.
#include "tests/support/counters.h"
#include "tests/test.h"

#include <string.h>

enum { TILE = 256 };

const counter_method counter_methods[N_COUNTER_METHODS] = {
    {"santa:S=8", COUNTER_ROW_DRAWS, 8},
    {"santa-strat:S=8", COUNTER_TILE_DRAWS, 8},
    {"santa-sys:S=8", COUNTER_ONE_NUMBER, 8},
    {"santa-prop:S=8", COUNTER_TILE_DRAWS, 8},
    {"santa-flash:S=8", COUNTER_TILE_DRAWS, 8},
    {"santa-pps:S=8", COUNTER_TILE_DRAWS, 8},
    {"santa-pps:S=8:pps=sys", COUNTER_ONE_NUMBER, 8},
    {"santa-is:S=7", COUNTER_TILE_DRAWS, 7},
    {"random:S=8", COUNTER_ROW_DRAWS, 8},
    {"vattention:sink=0:window=1:top=0:base=0.01:epsilon=0.1:verify=denominator:bound=hoeffding", COUNTER_PERMUTATION, 8},
};

ref_cache counter_cache(int n_heads, int n_kv_heads, int n_seqs) {
    int lengths[16] = {0};
    uint64_t rng = test_seed;
    SL_CHECK(n_seqs <= 16);
    for (int s = 0; s < n_seqs; s++) lengths[s] = COUNTER_ROWS;
    ref_cache c = ref_cache_new(n_heads, n_kv_heads, COUNTER_DIM, n_seqs, lengths, 0, test_seed);
    for (int i = 0; i < n_seqs * n_kv_heads * COUNTER_ROWS; i++) {
        bf16 *v = (bf16 *)ref_v_row(&c, i / COUNTER_ROWS / n_kv_heads, i / COUNTER_ROWS % n_kv_heads, i % COUNTER_ROWS);
        for (int d = 0; d < COUNTER_DIM; d++) v[d] = sl_f32_to_bf16(test_uniform(&rng) < 0.5 ? 1 : -1);
    }
    return c;
}

static uint64_t number(const sl_rng_id *id, uint32_t index) { // does not call sl_rng_u64, which is under test
    sl_philox4 r = sl_philox(id->seed, id->sequence, id->position, (id->layer << 16) + id->head, index, 0);
    return (uint64_t)r.v[0] << 32 | r.v[1];
}

static int place(uint64_t u, int n) { // floor(u n / 2^64)
    return (int)((unsigned __int128)u * (unsigned)n >> 64);
}

static void add_row(const ref_cache *c, int s, int h, int j, double weight, double *out) {
    for (int d = 0; d < COUNTER_DIM; d++) out[d] += weight * sl_bf16_to_f32(ref_v_row(c, s, h, j)[d]);
}

void counter_expect(const ref_cache *c, const counter_method *m, int s, int head, const sl_rng_id *id, int budget,
                    double out[COUNTER_DIM]) {
    static const int last = COUNTER_ROWS - 1; // the row that vattention's sliding window takes
    int h = head / (c->geom.n_heads / c->geom.n_kv_heads), row[COUNTER_ROWS];
    memset(out, 0, COUNTER_DIM * sizeof *out);
    for (uint32_t i = 0; i < 8 && m->kind == COUNTER_ROW_DRAWS; i++)
        add_row(c, s, h, place(number(id, i), COUNTER_ROWS), 1.0 / 8, out);
    for (int t = 0; t < m->tiles && (m->kind == COUNTER_TILE_DRAWS || m->kind == COUNTER_ONE_NUMBER); t++)
        add_row(c, s, h, t * TILE + place(number(id, m->kind == COUNTER_ONE_NUMBER ? 0 : (uint32_t)t), TILE), 1.0 / 8, out);
    for (int j = m->tiles * TILE; j < COUNTER_ROWS; j++) add_row(c, s, h, j, 1.0 / COUNTER_ROWS, out);
    if (m->kind != COUNTER_PERMUTATION) return;
    for (int j = 0; j < COUNTER_ROWS; j++) row[j] = j;
    add_row(c, s, h, last, 1.0 / COUNTER_ROWS, out);
    for (int i = 0; i < budget; i++) { // Fisher and Yates
        int other = i + place(number(id, (uint32_t)i), last - i), t = row[i];
        row[i] = row[other], row[other] = t;
        add_row(c, s, h, row[i], (double)last / budget / COUNTER_ROWS, out);
    }
}
