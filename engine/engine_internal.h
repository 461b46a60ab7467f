// engine/engine_internal.h - the insides of sl_model, sl_engine and sl_session, for engine/*.c alone.
#ifndef SLEIGH_INTERNAL_H
#define SLEIGH_INTERNAL_H

#include "engine/backend/backend.h"
#include "engine/kv/kv_extras.h"
#include "engine/sleigh.h"
#include "models/arch.h"

struct sl_model {
    sl_config config;
    sl_tensors *tensors;
    sl_model_weights weights; // as they lie in the files
    sl_tokenizer *tokenizer;
    int is_dummy;
};

size_t sl_model_bytes_to_come(const sl_model *model); // of weights that are not in this process's own memory yet

// What sl_engine_observe set up; observer.fn is NULL without one.
typedef struct sl_observation {
    sl_observer observer;
    sl_attn_spec *shadows;   // [n_shadows]
    float *dense;            // [2][n_sequences][n_heads][head_dim]: dense attention's outputs, a shadow's
    sl_attn_query *queries;  // [n_sequences], on the host
    sl_attn_report *running; // [n_sequences][n_heads] of the method that decodes
    sl_attn_report *reports; // the same of a shadow
    double *masses;          // [n_sequences][n_heads][max_pages] of a tile's rows in dense attention, as powers of two
    uint32_t *tiles;         // [n_sequences][n_heads] that hold 90% of it
    int max_pages;
    size_t state_size;                    // of one shadow in one layer
    struct sl_device_observation *device; // engine/observe_cuda.c; NULL on the host
} sl_observation;

void sl_observation_free(sl_engine *e, sl_observation *o);
size_t sl_shadow_state_size(const sl_engine *e);
static inline int sl_observes_error(const sl_observation *o) {
    return o->observer.with_error || o->observer.n_shadows > 0;
}
// Where in a session's shadow state shadow `which` (shadow * n_seeds + seed) has its part for a layer.
size_t sl_shadow_state_at(const sl_engine *e, int layer, int which);
// Sets o->tiles of n heads, from head `first` on, each with n_pages masses. Leaves o->masses undefined.
void sl_observation_count_tiles(const sl_observation *o, int first, int n, int n_pages);
// Hands over the records of sequence i of a batch, which ran as *what says: reports [n_heads], out [n_heads][head_dim]. Where
// errors are wanted o->dense and o->tiles hold dense attention's.
void sl_observation_hand_over(const sl_engine *e, const sl_attn_record *what, int i, sl_attn_report *reports, const float *out);

// How the engine runs attention methods: on the host (engine/attn_runner_host.c), on a GPU (engine/attn_runner_cuda.c).
typedef struct sl_attn_runner {
    // Checks the plan's methods and takes the scratch memory and page extras of the largest step. SL_ERR_UNSUPPORTED for a
    // method that this device does not offer.
    int (*prepare)(sl_engine *e, const sl_attn_plan *plan, sl_error *err);
    // Of a method: its page extras, at most SL_MAX_NEEDS, and the bytes that it keeps from step to step in a layer.
    int (*needs)(const sl_attn_spec *spec, sl_kv_need *out);
    size_t (*state_size)(const sl_engine *e, const sl_attn_spec *spec);
    // sl_batch.attend
    void (*attend)(const sl_batch *batch, int layer, int first, int n, sl_queries q, void *out);
    // Once a step: what the methods read, where attend does not count it. NULL: attend counts it
    void (*account)(sl_engine *e, sl_session *const *sessions, int n);
    void (*collect)(sl_engine *e); // adds what a device counted to e->stats; NULL: there is nothing to add
    // Of an observation: checks a shadow (or dense attention, the judge) and makes the pool keep its page extras.
    int (*check_shadow)(sl_engine *e, const sl_attn_spec *spec, sl_error *err);
    // Takes the memory that observing needs beside the arrays of *o, whose shadows have been checked. NULL: none
    int (*observe)(sl_engine *e, sl_observation *o, sl_error *err);
    void (*unobserve)(sl_engine *e, sl_observation *o); // frees it; NULL with observe
} sl_attn_runner;

extern const sl_attn_runner sl_host_attn_runner;
#ifdef SLEIGH_CUDA
extern const sl_attn_runner sl_cuda_attn_runner;
#endif
int sl_host_check_shadow(sl_engine *e, const sl_attn_spec *spec, sl_error *err);
// After a decode step of one layer; a->reports are the running method's.
void sl_host_observe(sl_engine *e, const sl_attn_decode_args *a, const sl_batch *batch);

struct sl_engine {
    const sl_model *model;
    const sl_backend *backend;
    const sl_attn_runner *attention;
    sl_model_weights weights; // the model's, placed where the backend wants them
    sl_attn_geom geom;
    sl_kv_pool pool;
    sl_attn_plan plan;
    // count sl_engine_set_attention and sl_engine_observe, so that sessions rebuild the state of methods or of shadows
    int plan_version, observe_version;
    int n_ctx, n_sequences, prefill_chunk, max_rows;
    uint32_t seed;
    int n_sessions;
    // scratch of one step
    void *scratch; // the architecture's, in the backend's memory
    size_t scratch_size;
    sl_workspace workspace; // of the CPU's attention
    sl_row_range *ranges;   // [n_sequences] of the step's batch
    sl_row *rows;           // [max_rows]
    sl_attn_query *queries; // [n_sequences]
    // In the backend's memory. On the CPU step_rows is rows.
    sl_row *step_rows;  // [max_rows]
    int32_t *step_ids;  // [max_rows]
    float *step_logits; // [n_sequences][n_vocab]
    float *last_logits; // a device's: step_logits before the step, for sequences that end with it
    void *step_ws;      // of a device's attention
    size_t step_ws_size;
    size_t *step_ws_at; // [n_layers] where in it a layer's method has its own: each relies on what it left there
    void *step_stats;   // a device's: sl_attn_cuda_stats
    size_t step_stats_size;
    sl_session **logits_of; // [n_sequences] whose logits lie in that row of step_logits; NULL: nobody's
    sl_attn_stats stats;
    sl_observation observation;
};

struct sl_session {
    sl_engine *engine;
    const sl_attn_plan *plan; // that it decodes with: the engine's today, for every session
    uint32_t sequence;
    sl_kv_seq kv;
    float *logits;       // [n_vocab], filled when somebody asks
    int logits_row;      // of the engine's step_logits, which holds them too; -1: none
    int has_host_logits; // `logits` holds them
    int32_t *pages;      // a device's copy of the page table
    int32_t *sent;       // [n_sent] what it holds
    int n_sent;
    struct sl_method_state {
        void *data; // NULL: this layer's method keeps none
        size_t size;
        sl_attn_spec spec; // whose it is
    } * state;             // [n_layers]; on a device parts of one block
    char *device_state;    // NULL: its methods keep nothing
    size_t device_state_size;
    char *shadow_state; // [n_layers][n_shadows][n_seeds][state_size]; NULL: none
    size_t shadow_size; // its bytes, which are not the engine's idea of them between sl_engine_observe and the next step
    int plan_version, observe_version;
};

// ---- session.c ----

// Before a step: the state of the plan's methods and of shadows. A layer whose method is that of the session's last step keeps
// its state, so that sessions which decode with different methods can take turns on one engine.
int sl_session_sync_state(sl_session *s, sl_error *err);
void sl_session_build_extras(sl_session *s); // page extras of the full pages that lack them
// The page table in the backend's memory. A device gets the entries that changed since the last call.
const int32_t *sl_session_page_table(sl_session *s);

// ---- logits.c: sl_engine.step_logits, and which session's logits each of its rows holds ----

// The step over n sessions is about to write rows [0, n_rows) of step_logits: fetches the logits of other sessions from them.
void sl_logits_before_step(sl_engine *e, sl_session *const *sessions, int n, int n_rows);
// Row i of step_logits now holds the logits of sessions[i].
void sl_logits_after_step(sl_engine *e, sl_session *const *sessions, int n);
// On a device: copies each session's logits to its row of step_logits. In a batch that stays the same nothing moves.
void sl_logits_to_rows(sl_engine *e, sl_session *const *sessions, int n);
// On a device, after a step: gives the session of row i the logits from before the step (sl_engine.last_logits).
void sl_logits_restore(sl_session *s, int i);
void sl_logits_forget_row(sl_session *s); // s->logits is the only copy from now on

#endif
