// attention/prefill/prefill_mask.c - what all masks share: the diagonal, the sink and the limits of causality (prefill_mask.h).
#include "attention/prefill/prefill_mask.h"

#include <string.h>

void sl_mask_add(const sl_prefill_mask *m, int head, int i, int from, int to) {
    uint64_t *row = sl_mask_row(m, head, i);
    for (int j = from > 0 ? from : 0; j <= to && j <= i; j++) sl_mask_set(row, j);
}

void sl_mask_add_lines(const sl_prefill_mask *m, int head, int from, int to, const uint64_t *columns,
                       const uint64_t *distances) {
    for (int i = from; i < to; i++) {
        uint64_t *row = sl_mask_row(m, head, i);
        for (int j = sl_mask_next(columns, 0, i); j <= i; j = sl_mask_next(columns, j + 1, i)) sl_mask_set(row, j);
        for (int d = sl_mask_next(distances, 0, i); d <= i; d = sl_mask_next(distances, d + 1, i)) sl_mask_set(row, i - d);
    }
}

uint64_t sl_mask_count(const sl_prefill_mask *m, int head) {
    uint64_t n = 0;
    const uint64_t *bits = sl_mask_row(m, head, m->first);
    for (size_t w = 0; w < (size_t)m->n * m->n_words; w++) n += (uint64_t)__builtin_popcountll(bits[w]);
    return n;
}

uint64_t sl_mask_causal(const sl_prefill_mask *m) {
    return (uint64_t)m->n * (2 * (uint64_t)m->first + m->n + 1) / 2;
}

size_t sl_mask_workspace(const sl_attn_geom *g, const sl_attn_spec *spec, int n_tokens, int n_kv) {
    const sl_attn_ops *ops = spec->method->cpu;
    return ops->mask_workspace ? ops->mask_workspace(g, spec, n_tokens, n_kv) : 0;
}

void sl_mask_propose(const sl_mask_args *a) {
    sl_prefill_mask *m = a->mask;
    SL_CHECK(m->first == (a->kv.n_kv - a->n_tokens) / SL_MASK_BLOCK && m->first + m->n > (a->kv.n_kv - 1) / SL_MASK_BLOCK);
    memset(m->bits, 0, sl_mask_bytes(m));
    for (int head = 0; head < m->n_heads; head++) {
        if (a->reports) a->reports[head] = (sl_mask_report){.kept = SL_MASK_NOT_SAMPLED};
        for (int i = m->first; i < m->first + m->n; i++) {
            sl_mask_add(m, head, i, 0, 0);
            sl_mask_add(m, head, i, i, i);
        }
    }
    a->spec->method->cpu->mask(a);
}
