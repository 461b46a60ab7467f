// engine/plans.h - sl_plan: which methods decode steps run (plans.c).
#ifndef SLEIGH_PLANS_H
#define SLEIGH_PLANS_H

#include "attention/attention.h"
#include "engine/sleigh.h"
#include "models/arch.h"

// The methods of decode steps. The engine, sessions and streams share plans.
typedef struct sl_plan {
    int n_users;
    uint32_t number; // no other plan of the engine ever has it: recordings and states of sessions name their plan by it
    sl_attn_plan methods;
    int has_draft_weights; // 1: its steps read sl_device.draft_weights, 0: the model's weights
    void *ws;              // workspace of attention on a device. Kernels keep counters in it between steps
    size_t ws_size;
    size_t *ws_at;      // [n_layers] offset of a layer's part of ws. A method reads there what its last call wrote
    size_t exact_ws_at; // of dense attention, for sequences with few rows
    // Sequences of fewer rows attend to every row. The numbers of the layers, and these numbers in ascending order, each once,
    // without 0.
    int *exact_below; // [n_layers]
    int n_splits, splits[SL_STEP_SPLITS];
    int draft_rows; // most rows of a pass that sl_drafts_warm_up has recorded, or has failed to record
    struct sl_plan *next;
} sl_plan;

// The plans of an engine.
typedef struct sl_plans {
    sl_plan *of_engine; // of sessions without a plan of their own
    sl_plan *first;     // all plans with users, in a list
    uint32_t n_made;    // plans that were made
    int exact_below;    // sl_engine_options.exact_below
    int draws_always;   // 1: no sequence attends to every row because it has few (sl_scheduler_warm_up)
} sl_plans;

// The engine's plan with these methods, made if there is none; the caller drops it. The caller has entered the engine.
// draft_weights: sl_plan.has_draft_weights. replaced: a plan that the caller drops next, whose workspace the new plan may take;
// NULL: none. SL_ERR_UNSUPPORTED: this device does not offer a method.
int sl_plan_take(sl_engine *e, const sl_attn_plan *methods, int draft_weights, sl_plan *replaced, sl_plan **out, sl_error *err);
// The same, and enters the engine itself.
int sl_plan_parse(sl_engine *e, const char *attn, int draft_weights, sl_plan **out, sl_error *err);
sl_plan *sl_plan_share(sl_plan *plan);          // one more user. NULL: returns NULL
void sl_plan_drop(sl_engine *e, sl_plan *plan); // plan may be NULL
int sl_plan_methods_of(const sl_engine *e, const char *attn, sl_attn_plan *out, sl_error *err);
int sl_plan_set(sl_engine *e, const sl_attn_plan *methods, sl_error *err); // sl_engine_set_plan of an entered engine
void sl_session_use_plan(sl_session *s, sl_plan *plan);                    // NULL: the engine's plan

// ---- plan_exact.c ----

int sl_plan_list_exact(sl_engine *e, sl_plan *plan, sl_error *err); // fills exact_below and splits of a plan
// Sequences of fewer rows attend to every row in this layer; 0: none does.
int sl_plan_exact_below(const sl_engine *e, const sl_plan *plan, int layer);
// Layers in which the next row of the session attends exactly. More rows never make it larger.
int sl_plan_n_exact(const sl_session *s);
// The rows of a step of one plan that attend exactly in a layer. They come first: the ranges are sorted by sl_plan_n_exact.
int sl_plan_exact_rows(const sl_row_range *ranges, int n, int below);
// The most next rows of a session in one pass: all of them lie in the page of the first, and they attend exactly in the same
// layers as the first.
int sl_plan_most_rows(const sl_session *s);

#endif
