// attention/draw_importance.c - the draw of santa-is: take-all + PPS on the proposed masses, mixed with a uniform part, and
// every row of the newest page once.
#include "attention/stages.h"

// The newest page has no quantised keys. Its rows are taken once each, in addition to the S draws.
static void run(sl_head *x) {
    const double alpha = 0.01; // every row has a positive probability, even if the proposal is wrong
    int n_proposed = sl_kv_n_built(x->group->kv) * SL_PAGE;
    sl_masses proposed = x->masses;
    sl_draws_clear(&x->draws);
    if (n_proposed > 0) {
        sl_masses_truncate(&proposed, n_proposed); // the newest page can have nearly all the mass
        sl_masses_mix(&proposed, alpha);
        sl_draw_take_all(&proposed, x->S, 0, x->u, &x->draws);
    }
    for (int j = n_proposed; j < x->masses.n; j++) sl_draws_add(&x->draws, j, 1);
}

static size_t capacity(const sl_attn_spec *spec, int n_kv) {
    size_t most = (size_t)sl_attn_get(spec, "S") + SL_PAGE;
    return most < (size_t)n_kv ? most : (size_t)n_kv;
}
static size_t scratch(const sl_attn_spec *spec, int n_kv) {
    (void)n_kv;
    return 2 * (size_t)sl_attn_get(spec, "S");
}

const sl_draw sl_draw_importance = {.capacity = capacity, .scratch = scratch, .run = run};
