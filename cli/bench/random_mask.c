// cli/bench/random_mask.c - see random_mask.h.
#include "cli/bench/random_mask.h"
#include "base/philox.h"

#include <math.h>
#include <string.h>

static void fill_row(uint64_t *row, int head, int i, int left) { // left: blocks between the sink and the diagonal i
    sl_philox4 r = {{0}};
    sl_mask_set(row, 0);
    sl_mask_set(row, i);
    for (int j = 1; j < i; j++) { // each choice of `left` of the other blocks has the same probability
        if (j % 4 == 1) r = sl_philox((uint32_t)head, (uint32_t)i, (uint32_t)j, 0, 0, SL_STREAM_MASK);
        if (r.v[j % 4] % (uint32_t)(i - j) >= (uint32_t)left) continue;
        sl_mask_set(row, j);
        left--;
    }
}

double cli_random_mask(const sl_prefill_mask *m, double density) {
    uint64_t n = 0;
    memset(m->bits, 0, sl_mask_bytes(m));
    for (int head = 0; head < m->n_heads; head++) {
        for (int i = m->first; i < m->first + m->n; i++) {
            int left = (int)lround(density * (i + 1)) - 2;
            fill_row(sl_mask_row(m, head, i), head, i, left > 0 ? left : 0);
        }
        n += sl_mask_count(m, head);
    }
    return (double)n / ((double)sl_mask_causal(m) * m->n_heads);
}
