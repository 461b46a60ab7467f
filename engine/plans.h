// engine/plans.h - sl_plan: which methods decode steps run (plans.c).
#ifndef SLEIGH_PLANS_H
#define SLEIGH_PLANS_H

#include "attention/attention.h"
#include "engine/sleigh.h"

// The methods of decode steps. The engine, sessions and streams share plans.
typedef struct sl_plan {
    int n_users;
    uint32_t number; // no other plan of the engine ever has it: recordings and states of sessions name their plan by it
    sl_attn_plan methods;
    void *ws; // workspace of attention on a device. Kernels keep counters in it between steps
    size_t ws_size;
    size_t *ws_at; // [n_layers] offset of a layer's part of ws. A method reads there what its last call wrote
    struct sl_plan *next;
} sl_plan;

// The plans of an engine.
typedef struct sl_plans {
    sl_plan *of_engine; // of sessions without a plan of their own
    sl_plan *first;     // all plans with users, in a list
    uint32_t n_made;    // plans that were made
} sl_plans;

// The engine's plan with these methods, made if there is none; the caller drops it. The caller has entered the engine.
// replaced: a plan that the caller drops next, whose workspace the new plan may take; NULL: none. SL_ERR_UNSUPPORTED: this
// device does not offer a method.
int sl_plan_take(sl_engine *e, const sl_attn_plan *methods, sl_plan *replaced, sl_plan **out, sl_error *err);
int sl_plan_parse(sl_engine *e, const char *attn, sl_plan **out, sl_error *err); // the same, and enters the engine itself
sl_plan *sl_plan_share(sl_plan *plan);                                           // one more user. NULL: returns NULL
void sl_plan_drop(sl_engine *e, sl_plan *plan);                                  // plan may be NULL
int sl_plan_methods_of(const sl_engine *e, const char *attn, sl_attn_plan *out, sl_error *err);
int sl_plan_set(sl_engine *e, const sl_attn_plan *methods, sl_error *err); // sl_engine_set_plan of an entered engine
void sl_session_use_plan(sl_session *s, sl_plan *plan);                    // NULL: the engine's plan

#endif
