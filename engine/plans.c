// engine/plans.c - sl_plan: which methods decode steps run. The engine has a plan, and a session or a stream may have its own.
// Equal plans are one object, so that sessions with equal methods step together.
#include "engine/engine_internal.h"

#include <stdlib.h>

static int prepare(sl_engine *e, sl_plan *plan, sl_plan *replaced, sl_error *err) {
    const sl_attn_plan *methods = &plan->methods;
    int rc = 0;
    for (int i = 0; !rc && i < methods->n_layers; i++) rc = sl_attn_check(&methods->layer[i], err);
    if (!rc) rc = sl_engine_check_part(e, methods, err);
    if (!rc && e->device.pool.offload) rc = sl_engine_check_offloaded(methods, err);
    if (!rc) rc = sl_engine_need_buckets_of(e, methods, err);
    if (!rc) rc = sl_plan_list_exact(e, plan, err);
    return rc ? rc : e->device.attention->prepare(e, plan, replaced, err);
}

static void free_plan(sl_engine *e, sl_plan *plan) {
    e->device.backend->release(e->device.backend, plan->ws, plan->ws_size);
    sl_attn_plan_free(&plan->methods);
    free(plan->ws_at);
    free(plan->exact_below);
    free(plan);
}

int sl_plan_take(sl_engine *e, const sl_attn_plan *methods, int draft_weights, sl_plan *replaced, sl_plan **out,
                 sl_error *err) {
    SL_CHECK(methods->n_layers == e->geom.n_layers);
    for (sl_plan *p = e->plans.first; p; p = p->next)
        if (p->has_draft_weights == draft_weights && sl_attn_plan_same(&p->methods, methods)) {
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
    if (replaced) { // recordings may hold the workspace that this plan has taken
        e->device.backend->forget(e->device.backend);
        for (sl_plan *p = e->plans.first; p; p = p->next) p->draft_rows = 0;
    }
    made->has_draft_weights = draft_weights;
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

int sl_plan_parse(sl_engine *e, const char *attn, int draft_weights, sl_plan **out, sl_error *err) {
    sl_attn_plan methods;
    int rc = sl_plan_methods_of(e, attn, &methods, err);
    if (rc) return rc;
    rc = sl_engine_enter(e, err);
    if (!rc) {
        rc = sl_plan_take(e, &methods, draft_weights, NULL, out, err);
        sl_engine_leave(e);
    }
    sl_attn_plan_free(&methods);
    return rc;
}

// ---- the engine's plan ----

int sl_plan_set(sl_engine *e, const sl_attn_plan *methods, sl_error *err) {
    sl_plan *plan;
    int rc = sl_plan_take(e, methods, 0, e->plans.of_engine, &plan, err);
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
