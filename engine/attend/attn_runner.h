// engine/attend/attn_runner.h - sl_attn_runner: how an engine runs attention methods, on the host or on a GPU.
#ifndef SLEIGH_ATTN_RUNNER_H
#define SLEIGH_ATTN_RUNNER_H

#include "attention/attention.h"
#include "models/arch.h"

typedef struct sl_plan sl_plan;               // engine/plans.h
typedef struct sl_observation sl_observation; // engine/attend/observation.h

// How the engine runs attention methods: on the host (engine/attend/attn_runner_host.c), on a GPU
// (engine/attend/attn_runner_cuda.c).
typedef struct sl_attn_runner {
    // Checks the plan's methods, and reserves workspace and page extras for the largest step. replaced: as in sl_plan_take.
    // SL_ERR_UNSUPPORTED for a method that this device does not offer.
    int (*prepare)(sl_engine *e, sl_plan *plan, sl_plan *replaced, sl_error *err);
    int (*needs)(const sl_attn_spec *spec, sl_kv_need *out);            // page extras of a method, at most SL_MAX_NEEDS
    size_t (*state_size)(const sl_engine *e, const sl_attn_spec *spec); // bytes of a method's state in one layer
    // Bytes of scratch memory of decode steps over up to n_ctx rows, with K and V in host memory. NULL: not offered
    size_t (*offloaded_scratch)(const sl_engine *e, const sl_attn_plan *plan, int n_ctx);
    // Checks the methods of a plan of prefill, and reserves memory for segments of n_tokens tokens. SL_ERR_UNSUPPORTED for a
    // method that this device does not offer.
    int (*prepare_prefill)(sl_engine *e, const sl_attn_plan *plan, int n_tokens, sl_error *err);
    void (*propose)(const sl_batch *batch, int layer, sl_queries q); // sl_batch.propose; NULL: no masks
    // sl_batch.attend
    void (*attend)(const sl_batch *batch, int layer, int first, int n, sl_queries q, void *out);
    // Called once for each session of a step, before the step's tokens are appended: adds to e->stats the rows and bytes that
    // follow from the session's length, for its n_rows rows of the step. NULL: attend counts everything
    void (*account)(sl_engine *e, const sl_session *s, int n_rows);
    void (*collect)(sl_engine *e); // adds the kernels' counts to e->stats. NULL: attend counts everything
    // Saves the kernels' counts (back 0), or makes them again what was saved (back 1), so that the steps between the two calls
    // are not counted. NULL: attend counts everything
    void (*set_aside)(sl_engine *e, int back);
    void (*collect_prefill)(sl_engine *e); // sets e->prefill.counts and e->prefill.pass_reports of a pass. NULL: as above
    // Checks that a shadow, or dense attention as the reference, can run, and makes the pool keep its page extras.
    int (*check_shadow)(sl_engine *e, const sl_attn_spec *spec, sl_error *err);
    // Allocates memory for the observer in addition to the arrays of *o, after check_shadow of all shadows. NULL: none needed
    int (*observe)(sl_engine *e, sl_observation *o, sl_error *err);
    void (*unobserve)(sl_engine *e, sl_observation *o); // frees the memory of observe. NULL where observe is NULL
} sl_attn_runner;

extern const sl_attn_runner sl_host_attn_runner;
#ifdef SLEIGH_CUDA
extern const sl_attn_runner sl_cuda_attn_runner;
#endif

#endif
