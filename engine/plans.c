// engine/plans.c - sl_plan: which methods decode steps run. The engine has a plan, and a session or a stream may have its own.
// Equal plans are one object, so that sessions with equal methods step together.
#include "engine/engine_internal.h"

#include <stdlib.h>

// ---- sequences with few rows ----

// K and V in host memory: dense attention is not offered there.
static int list_exact(sl_engine *e, sl_plan *plan, sl_error *err) {
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

int sl_plan_exact_rows(const sl_row_range *ranges, int n, int below) {
    int rows = 0;
    for (int i = 0; i < n; i++)
        for (int j = 0; j < ranges[i].n_rows; j++) rows += ranges[i].position + j + 1 < below;
    return rows;
}

// ---- plans ----

static int prepare(sl_engine *e, sl_plan *plan, sl_plan *replaced, sl_error *err) {
    const sl_attn_plan *methods = &plan->methods;
    int rc = 0;
    for (int i = 0; !rc && i < methods->n_layers; i++) rc = sl_attn_check(&methods->layer[i], err);
    if (!rc && e->device.pool.offload) rc = sl_engine_check_offloaded(methods, err);
    if (!rc) rc = sl_engine_need_buckets_of(e, methods, err);
    if (!rc) rc = list_exact(e, plan, err);
    return rc ? rc : e->device.attention->prepare(e, plan, replaced, err);
}

static void free_plan(sl_engine *e, sl_plan *plan) {
    e->device.backend->release(e->device.backend, plan->ws, plan->ws_size);
    sl_attn_plan_free(&plan->methods);
    free(plan->ws_at);
    free(plan->exact_below);
    free(plan);
}

int sl_plan_take(sl_engine *e, const sl_attn_plan *methods, sl_plan *replaced, sl_plan **out, sl_error *err) {
    SL_CHECK(methods->n_layers == e->geom.n_layers);
    for (sl_plan *p = e->plans.first; p; p = p->next)
        if (sl_attn_plan_same(&p->methods, methods)) {
            *out = sl_plan_share(p);
            return 0;
        }
    sl_plan *made = calloc(1, sizeof *made);
    int rc =
        made ? sl_attn_plan_copy(&made->methods, methods, err) : sl_fail(err, SL_ERR_MEMORY, "attention plan: out of memory");
    if (!rc) rc = prepare(e, made, replaced && replaced->n_users == 1 ? replaced : NULL, err);
    if (rc) {
        if (made) free_plan(e, made);
        return rc;
    }
    if (replaced) e->device.backend->forget(e->device.backend); // recordings may hold the workspace that this plan has taken
    made->n_users = 1, made->number = ++e->plans.n_made, made->next = e->plans.first;
    *out = e->plans.first = made;
    return 0;
}

sl_plan *sl_plan_share(sl_plan *plan) {
    if (plan) plan->n_users++;
    return plan;
}

void sl_plan_drop(sl_engine *e, sl_plan *plan) {
    if (!plan || sl_engine_is_foreign(e) || --plan->n_users) return;
    sl_plan **at = &e->plans.first;
    while (*at != plan) at = &(*at)->next;
    *at = plan->next;
    free_plan(e, plan);
}

// The plan with one method in every layer. The caller frees *out.
int sl_plan_methods_of(const sl_engine *e, const char *attn, sl_attn_plan *out, sl_error *err) {
    sl_attn_spec spec;
    int rc = sl_attn_parse(attn, &spec, err);
    return rc ? rc : sl_attn_plan_init(out, e->geom.n_layers, &spec, err);
}

int sl_plan_parse(sl_engine *e, const char *attn, sl_plan **out, sl_error *err) {
    sl_attn_plan methods;
    int rc = sl_plan_methods_of(e, attn, &methods, err);
    if (rc) return rc;
    rc = sl_engine_enter(e, err);
    if (!rc) {
        rc = sl_plan_take(e, &methods, NULL, out, err);
        sl_engine_leave(e);
    }
    sl_attn_plan_free(&methods);
    return rc;
}

// ---- the engine's plan ----

int sl_plan_set(sl_engine *e, const sl_attn_plan *methods, sl_error *err) {
    sl_plan *plan;
    int rc = sl_plan_take(e, methods, e->plans.of_engine, &plan, err);
    if (rc) return rc;
    sl_plan_drop(e, e->plans.of_engine);
    e->plans.of_engine = plan;
    return 0;
}

int sl_engine_set_plan(sl_engine *e, const sl_attn_plan *methods, sl_error *err) {
    int rc = sl_engine_enter(e, err);
    if (rc) return rc;
    rc = sl_plan_set(e, methods, err);
    sl_engine_leave(e);
    return rc;
}

int sl_engine_set_attention(sl_engine *e, const char *attn, sl_error *err) {
    sl_attn_plan methods;
    int rc = sl_plan_methods_of(e, attn, &methods, err);
    if (rc) return rc;
    rc = sl_engine_set_plan(e, &methods, err);
    sl_attn_plan_free(&methods);
    return rc;
}

// ---- the plan of a session ----

void sl_session_use_plan(sl_session *s, sl_plan *plan) {
    sl_plan_share(plan);
    sl_plan_drop(s->engine, s->own_plan);
    s->own_plan = plan;
}
