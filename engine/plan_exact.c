// engine/plan_exact.c - sequences with few rows, which attend to every row (sl_attn_exact_below): the numbers of a plan's
// layers, and the rows of a step that they concern.
#include "engine/engine_internal.h"

#include <stdlib.h>

// K and V in host memory: dense attention is not offered there.
int sl_plan_list_exact(sl_engine *e, sl_plan *plan, sl_error *err) {
    int n = plan->methods.n_layers, on_gpu = e->device.backend->is_device;
    plan->exact_below = calloc(n, sizeof *plan->exact_below);
    if (!plan->exact_below) return sl_fail(err, SL_ERR_MEMORY, "attention plan: out of memory");
    for (int i = 0; i < n && !e->device.pool.offload; i++) {
        int below = sl_attn_exact_below(&plan->methods.layer[i], e->plans.exact_below, on_gpu), at = 0;
        plan->exact_below[i] = below;
        while (at < plan->n_splits && plan->splits[at] < below) at++;
        if (below == 0 || (at < plan->n_splits && plan->splits[at] == below)) continue;
        SL_CHECK(plan->n_splits < SL_STEP_SPLITS); // powers of 2, or one number
        for (int j = plan->n_splits++; j > at; j--) plan->splits[j] = plan->splits[j - 1];
        plan->splits[at] = below;
    }
    return 0;
}

int sl_plan_exact_below(const sl_engine *e, const sl_plan *plan, int layer) {
    return e->plans.draws_always ? 0 : plan->exact_below[layer];
}

int sl_plan_n_exact(const sl_session *s) {
    const sl_plan *plan = sl_session_plan(s);
    int n_kv = s->kv.n_tokens + 1, n = 0;
    if (!plan->n_splits || n_kv >= plan->splits[plan->n_splits - 1]) return 0;
    for (int i = 0; i < plan->methods.n_layers; i++) n += n_kv < sl_plan_exact_below(s->engine, plan, i);
    return n;
}

int sl_plan_most_rows(const sl_session *s) {
    const sl_plan *plan = sl_session_plan(s);
    int n_tokens = s->kv.n_tokens, most = SL_PAGE - n_tokens % SL_PAGE;
    for (int i = 0; i < plan->n_splits && !s->engine->plans.draws_always; i++) {
        int exact = plan->splits[i] - 1 - n_tokens; // rows from the next one on
        if (exact > 0 && exact < most) most = exact;
    }
    return most;
}

int sl_plan_exact_rows(const sl_row_range *ranges, int n, int below) {
    int rows = 0;
    for (int i = 0; i < n; i++)
        for (int j = 0; j < ranges[i].n_rows; j++) rows += ranges[i].position + j + 1 < below;
    return rows;
}
