// attention/prefill/bigbird.c - the mask of BigBird: a window, global keys, and random key blocks.
//
// M. Zaheer, G. Guruganesh, A. Dubey, J. Ainslie, C. Alberti, S. Ontanon, P. Pham, A. Ravula, Q. Wang, L. Yang, A. Ahmed: Big
// Bird: Transformers for Longer Sequences, arXiv:2007.14062, section 2 (the three parts) and appendix D (blocks). The defaults
// of window and global keys are those of SampleAttention's comparison (arXiv:2406.15486, section 5.1: a window of 8%, global
// keys of 8%). The comparison states no number of random keys, so ours is 3 blocks, as in BigBird's published models.
//
// Differences: the window has only the keys before a query, because the attention is causal; a global token attends to all
// keys before it, which are global too, so the global part is a set of columns; a block has 128 positions (BigBird: 64). The
// two shares are of the keys that the segment sees. The mask depends on positions, the layer and the head only.
#include "attention/prefill/mask_random.h"
#include "attention/stages/stages.h"

#include <math.h>

static const sl_attn_param params[] = {
    {"local", SL_PARAM_FLOAT, 0.08, 0, 1, "share of the keys that are in the window", NULL},
    {"global", SL_PARAM_FLOAT, 0.08, 0, 1, "share of the keys, from the first on, that every query visits", NULL},
    {"random", SL_PARAM_INT, 3, 0, 1 << 13, "random key blocks of a query block, of those before the window", NULL},
    {0},
};

static int share_of_keys(const sl_mask_args *a, const char *name) {
    return (int)ceil(sl_attn_get(a->spec, name) * a->kv.n_kv);
}

static void mask(const sl_mask_args *a) {
    const sl_prefill_mask *m = a->mask;
    int n_global = (share_of_keys(a, "global") + SL_MASK_BLOCK - 1) / SL_MASK_BLOCK, window = share_of_keys(a, "local");
    if (n_global < 1) n_global = 1; // every mask has block 0
    for (int head = 0; head < m->n_heads; head++)
        for (int i = m->first; i < m->first + m->n; i++) {
            int oldest = i * SL_MASK_BLOCK + 1 - window, from = oldest > 0 ? oldest / SL_MASK_BLOCK : 0;
            sl_mask_add(m, head, i, 0, n_global - 1);
            sl_mask_add(m, head, i, from, i);
            sl_mask_draw(a, head, i, sl_mask_row(m, head, i), n_global, from, (int)sl_attn_get(a->spec, "random"));
        }
}

static const sl_attn_ops ops = {.mask = mask};

const sl_attn_method sl_method_bigbird = {
    .name = "bigbird",
    .summary = "a window, the first keys, and random key blocks",
    .source = "BigBird (Zaheer et al., arXiv:2007.14062)",
    .mean = SL_MEAN_BIASED,
    .params = params,
    .cpu = &ops,
};
