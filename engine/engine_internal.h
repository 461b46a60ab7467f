// engine/engine_internal.h - the definitions of sl_model, sl_engine and sl_session, for engine/*.c only.
#ifndef SLEIGH_INTERNAL_H
#define SLEIGH_INTERNAL_H

#include "attention/prefill/prefill_mask.h"
#include "backend/backend.h"
#include "base/thread_pool.h"
#include "kv/kv_extras.h"
#include "engine/engine.h"
#include "models/arch.h"
#include "models/source.h"
#include "tokenizer/chat/chat.h"

#include <stdatomic.h>
#include <sys/types.h>

struct sl_model {
    atomic_int n_users; // the caller, and each engine
    char *dir;          // as the caller gave it
    const char *name;   // the last part of dir
    sl_source *source;  // of the documents and tensors
    sl_config config;
    sl_tensors *tensors;
    sl_model_weights weights; // data: the mapped files; NULL for dummy weights that are not made yet
    sl_tokenizer *tokenizer;
    sl_chat_template *chat; // NULL: it has none that can be used
    int is_dummy;
};

void sl_model_use(const sl_model *model);                          // one more user; sl_model_free ends the use
int sl_model_need_tokenizer(const sl_model *model, sl_error *err); // SL_ERR_ARG: the model has none
size_t sl_model_bytes_to_allocate(const sl_model *model);          // weights of a dummy model that are not made yet (CPU)

// ---- observe.c ----

// An observer and its memory. observer.fn is NULL without an observer.
typedef struct sl_observation {
    sl_observer observer;
    sl_attn_spec *shadows;     // [n_shadows]
    float *dense;              // [2][n_sequences][n_heads][head_dim]: outputs of dense attention, and of one shadow
    sl_attn_query *queries;    // [n_sequences] of a shadow, on the host
    sl_attn_report *running;   // [n_sequences][n_heads] of the method that decodes
    sl_attn_report *reports;   // [n_sequences][n_heads] of a shadow
    double *masses;            // [n_sequences][n_heads][max_pages] log2 of the mass of each page's rows in dense attention
    uint32_t *tiles;           // [n_sequences][n_heads] the fewest 256-row tiles that hold 90% of the mass
    sl_attn_profile *profiles; // [n_sequences][n_heads], when the observer wants them
    float *scores;             // [n_sequences][n_heads][max_pages][256] on the host, for profiles
    int max_pages;
    size_t state_size;                    // bytes of one shadow's state in one layer
    struct sl_device_observation *device; // engine/observe_cuda.c; NULL on the host
} sl_observation;

void sl_observation_free(sl_engine *e, sl_observation *o);
size_t sl_shadow_state_size(const sl_engine *e); // bytes of a session
static inline int sl_observes_error(const sl_observation *o) {
    return o->observer.with_error || o->observer.n_shadows > 0;
}
// The offset of a layer's part in a session's shadow state. which: shadow * n_seeds + seed
size_t sl_shadow_state_at(const sl_engine *e, int layer, int which);
// Sets o->tiles of heads [first, first + n) from n_pages masses of each head. Overwrites o->masses.
void sl_observation_count_tiles(const sl_observation *o, int first, int n, int n_pages);
// Calls the observer with the records of all heads of sequence i of a batch. *what: the fields that the heads share; profile:
// NULL or [n_heads]. reports: [n_heads]. out: [n_heads][head_dim], the outputs to compare with o->dense, when the observer
// wants errors.
void sl_observation_report(const sl_engine *e, const sl_attn_record *what, int i, sl_attn_report *reports, const float *out);

// Fills *out from the scores of n rows, in log2 units. Overwrites score.
void sl_attn_profile_of(float *score, int n, sl_attn_profile *out);

int sl_host_check_shadow(sl_engine *e, const sl_attn_spec *spec, sl_error *err);
// Runs and reports shadows on the host, after the running method's decode of one layer. a->reports: the running method's
void sl_host_observe(sl_engine *e, const sl_attn_decode_args *a, const sl_batch *batch);

// ---- plans.c ----

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

// ---- attention runners ----

// How the engine runs attention methods: on the host (engine/attn_runner_host.c), on a GPU (engine/attn_runner_cuda.c).
typedef struct sl_attn_runner {
    // Checks the plan's methods, and reserves workspace and page extras for the largest step. replaced: as in sl_plan_take.
    // SL_ERR_UNSUPPORTED for a method that this device does not offer.
    int (*prepare)(sl_engine *e, sl_plan *plan, sl_plan *replaced, sl_error *err);
    int (*needs)(const sl_attn_spec *spec, sl_kv_need *out);            // page extras of a method, at most SL_MAX_NEEDS
    size_t (*state_size)(const sl_engine *e, const sl_attn_spec *spec); // bytes of a method's state in one layer
    // Bytes of scratch memory of decode steps over up to n_ctx rows, with K and V in host memory. NULL: not offered
    size_t (*host_scratch)(const sl_engine *e, const sl_attn_plan *plan, int n_ctx);
    // Checks the methods of a plan of prefill, and reserves memory for segments of n_tokens tokens. SL_ERR_UNSUPPORTED for a
    // method that this device does not offer.
    int (*prepare_prefill)(sl_engine *e, const sl_attn_plan *plan, int n_tokens, sl_error *err);
    void (*propose)(const sl_batch *batch, int layer, sl_queries q); // sl_batch.propose; NULL: no masks
    // sl_batch.attend
    void (*attend)(const sl_batch *batch, int layer, int first, int n, sl_queries q, void *out);
    // Called once a step: adds to e->stats the rows and bytes that follow from the lengths of the sessions. NULL: attend counts
    // everything
    void (*account)(sl_engine *e, sl_session *const *sessions, int n);
    void (*collect)(sl_engine *e);         // adds the kernels' counts to e->stats. NULL: attend counts everything
    void (*collect_prefill)(sl_engine *e); // sets e->prefill_counts and e->pass_reports of a pass. NULL: as above
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

struct sl_engine {
    atomic_int n_users;  // the caller, and each session
    atomic_flag is_busy; // set while a call runs the engine: sl_engine_claim
    pid_t process;       // that made the engine; its threads and its GPU do not exist in a child process after fork()
    int n_threads;       // on the host
    sl_threads *threads; // NULL before the first call
    sl_threads *outside; // the pool of the calling thread outside of the call
    sl_cancel cancel;
    sl_log log;
    const sl_model *model;
    const sl_backend *backend;
    const sl_attn_runner *attention;
    sl_model_weights weights; // the model's, in the backend's memory
    sl_attn_geom geom;
    sl_kv_pool pool;
    sl_kv_layout kv;                          // where K and V lie
    struct sl_bucket_file *bucket_file;       // the model's, opened for the first method that needs it; NULL: none yet
    struct sl_device_buckets *device_buckets; // its tensors in the backend's memory (engine_buckets.c); NULL on the CPU
    sl_plan *plan;                            // of sessions without a plan of their own
    sl_plan *plans;                           // all plans with users, in a list
    uint32_t n_plans;                         // that were made
    // Counts sl_engine_observe. A session with another count rebuilds its shadows' state before its next step.
    int observe_version;
    int n_ctx, n_sequences, prefill_chunk, max_rows;
    int n_pages; // of the pool
    // ---- sparse prefill: sl_engine_set_prefill ----
    sl_attn_plan prefill; // the method that each layer prefills with
    int has_masks;        // 1: a layer's method proposes a mask
    // During a pass of several chunks on the CPU: where its progress goes. fn NULL: nowhere
    struct sl_pass_progress {
        sl_progress progress;
        int from, n, total; // tokens before the pass, of the pass, of the prefill
    } pass_progress;
    int prefill_version; // counts the plans that sl_engine_set_prefill has set
    // A prefill pass ends at a multiple of segment_tokens, and runs layer by layer. 0: passes of prefill_chunk tokens
    int segment_tokens;
    sl_prefill_mask mask;               // of the layer and segment that run, in host memory
    size_t mask_size;                   // bytes of mask.bits
    sl_prefill_count *prefill_counts;   // [n_layers][n_heads] blocks of the pass that runs
    sl_prefill_report *pass_reports;    // [n_layers][n_heads] the other fields of that pass
    sl_prefill_report *prefill_reports; // [n_layers][n_heads] of all passes since the last reset
    sl_prefill_observer prefill_observer;
    float *checked; // [n_heads][head_dim + 1] dense attention's outputs of a checked row, and its errors; NULL: no checks
    // Of sparse prefill on a GPU, in its memory: sl_attn_cuda_prefill_stats [n_layers][n_heads], a mask, workspace.
    void *prefill_memory;
    size_t prefill_memory_size, prefill_mask_at, prefill_ws_at; // offsets of the mask and the workspace
    uint32_t seed;
    // Buffers of one pass (a chunk of a prefill, or a decode step), in host memory.
    sl_workspace workspace; // of attention on the CPU
    sl_row_range *ranges;   // [n_sequences]
    sl_row *rows;           // [row_capacity]
    int row_capacity;       // max_rows, or the largest segment
    sl_attn_query *queries; // [n_sequences]
    // Buffers of one pass, in the backend's memory.
    void *scratch; // the architecture's activations
    size_t scratch_size;
    void *segment; // what the architecture keeps of a segment of row_capacity rows; NULL: no segments
    size_t segment_size;
    sl_row *step_rows;  // [row_capacity]; on the CPU the same array as rows
    int32_t *step_ids;  // [row_capacity]
    float *step_logits; // [n_sequences][n_vocab]
    float *last_logits; // [n_sequences][n_vocab] on a device: step_logits before the step, for sequences that end with it
    void *step_stats;   // sl_attn_cuda_stats, on a device
    size_t step_stats_size;
    sl_session **logits_owner; // [n_sequences] row i of step_logits holds the logits of this session; NULL: none
    sl_attn_stats stats;
    sl_observation observation;
    uint64_t n_batches; // batches that were checked
};

struct sl_session {
    int n_users;             // the caller, and each stream
    const sl_stream *stream; // the stream that runs; NULL: no stream runs
    sl_attn_stats *work;     // the statistics of that stream
    sl_engine *engine;
    sl_plan *own_plan; // of decode steps; NULL: the engine's plan
    uint32_t sequence;
    sl_kv_seq kv;
    int32_t *ids;          // [n_ctx] the tokens of its rows; -1: a random row (sl_session_fill)
    int n_prefilled;       // the first tokens, up to the first that a decode step appended
    int has_logits;        // 0: the session is empty, or was cut at its last token
    float *logits;         // [n_vocab], valid when has_host_logits
    int logits_row;        // the row of the engine's step_logits that holds the logits; -1: none
    int has_host_logits;   // 0: only row logits_row of step_logits holds the logits
    int32_t *device_pages; // a device's copy of the page table
    int32_t *sent_pages;   // [n_sent_pages] what device_pages holds: entries (sl_kv_entry)
    int n_sent_pages;
    struct sl_method_state {
        void *data; // NULL: the layer's method has no state
        size_t size;
        sl_attn_spec spec; // the method that made it
    } * state;             // [n_layers]; on a device parts of device_state
    char *device_state;    // NULL: no method has a state
    size_t device_state_size;
    char *shadow_state; // [n_layers][n_shadows][n_seeds][state_size]; NULL: none
    size_t shadow_size; // bytes of shadow_state. The engine's size may differ between sl_engine_observe and the next step
    struct sl_segment { // tokens that sparse prefill read together; the session's segments are in order
        int first, end, version; // version: sl_engine.prefill_version; -1: the end of the segment was cut off
    } * segments;
    int n_segments, cap_segments;
    uint64_t batch_mark;  // n_batches of the last batch with this session: finds a session that is in a batch twice
    uint32_t plan_number; // of the plan whose states the session has; 0: none
    int observe_version;  // the engine's count when the session's shadow states were made
};

// The plan of the session's decode steps.
static inline const sl_plan *sl_session_plan(const sl_session *s) {
    return s->own_plan ? s->own_plan : s->engine->plan;
}

// ---- engine_call.c ----

// Claims the engine for a call. Between the two functions every other call that runs the engine gets SL_ERR_ARG.
int sl_engine_claim(sl_engine *e, sl_error *err);
int sl_engine_is_foreign(const sl_engine *e); // 1: another process made the engine, of which this one is a child after fork()
int sl_engine_check_process(const sl_engine *e, sl_error *err); // SL_ERR_ARG: it is foreign
void sl_engine_release(sl_engine *e);
// Call around work of a claimed engine. Between the two calls, sl_parallel of the calling thread uses the engine's threads.
// After an error sl_engine_end is not called.
int sl_engine_begin(sl_engine *e, sl_error *err);
void sl_engine_end(sl_engine *e);
// sl_engine_claim and sl_engine_begin; sl_engine_end and sl_engine_release. After an error sl_engine_leave is not called.
int sl_engine_enter(sl_engine *e, sl_error *err);
void sl_engine_leave(sl_engine *e);
// Calls the log callback with a line. The format is as in printf.
__attribute__((format(printf, 2, 3))) void sl_engine_log(const sl_engine *e, const char *format, ...);

// ---- engine_buckets.c ----

// Opens the model's bucket file for a method that needs it, at most once. Errors: sl_model_open_buckets.
int sl_engine_need_buckets(sl_engine *e, const sl_attn_spec *spec, sl_error *err);
int sl_engine_need_buckets_of(sl_engine *e, const sl_attn_plan *plan, sl_error *err); // for any layer
void sl_engine_close_buckets(sl_engine *e);                                           // after the engine's last step

sl_attention_work sl_attention_work_of(const sl_attn_stats *stats); // engine.c

// ---- engine_device.c ----

// Opens the backend that the options name: e->backend, e->attention, e->n_threads.
int sl_engine_open_backend(sl_engine *e, const sl_engine_options *o, sl_error *err);

// ---- engine_place.c ----

// Chooses where K and V lie and the number of tokens of a session: e->kv, e->n_ctx, e->prefill_chunk, e->max_rows. plan: the
// methods of decode steps. Allocates nothing. SL_ERR_MEMORY: no place has enough memory.
int sl_engine_place(sl_engine *e, const sl_engine_options *o, const sl_attn_plan *plan, sl_error *err);
// SL_ERR_UNSUPPORTED: a method of the plan cannot decode with K and V in host memory.
int sl_engine_check_on_host(const sl_attn_plan *plan, sl_error *err);

// ---- kv_stream.c: a prefill with K and V in host memory ----

// sl_batch.open_layer: brings the layer's rows before the pass to the staged pages, and writes the new rows of the layer before
// out. Returns the staged pages.
sl_kv_rows sl_kv_stream_open(const sl_batch *b, int layer);
void sl_kv_stream_close(const sl_batch *b); // after forward: writes the new rows of the last layer out

// ---- step.c ----

// SL_ERR_ARG: an id is not of the vocabulary.
int sl_find_bad_id(const sl_engine *e, const int32_t *ids, int n); // the first that is no id of the model; n: there is none
int sl_check_ids(const sl_engine *e, const int32_t *ids, int n, sl_error *err);
// The same as sl_prefill, sl_sample and sl_step, for a caller that has claimed the engine.
int sl_prefill_claimed(sl_session *s, const int32_t *ids, int n, const sl_progress *progress, sl_error *err);
int sl_sample_claimed(sl_session *const *batch, int n, sl_sampler *const *samplers, int32_t *ids, sl_error *err);
int sl_step_claimed(sl_session *const *batch, int n, sl_sampler *const *samplers, int32_t *ids, sl_error *err);

// ---- session.c ----

// Call before a step. Makes the missing states of the plan's methods and of shadows, filled with zeros. A layer whose method
// did not change since the session's last step keeps its state. So sessions with different methods can run in turns on one
// engine.
int sl_session_sync_state(sl_session *s, sl_error *err);
// The offset of a layer's part in sl_session.device_state. layer = n_layers: the size of all parts.
static inline size_t sl_device_state_at(const sl_engine *e, const sl_attn_plan *plan, int layer) {
    size_t at = 0;
    for (int i = 0; i < layer; i++) at += sl_align(e->attention->state_size(e, &plan->layer[i]));
    return at;
}
void sl_session_build_extras(sl_session *s); // builds the page extras of full pages that have none
// The page table in the backend's memory. A device gets the entries that changed since the last call.
const int32_t *sl_session_page_table(sl_session *s);

// Makes room for the segments of a prefill of n tokens.
int sl_session_reserve_segments(sl_session *s, int n, sl_error *err);
void sl_session_add_segment(sl_session *s, int first, int n); // after a pass of a sparse prefill
void sl_session_cut_rows(sl_session *s, int n_tokens);        // keeps n_tokens in the KV cache
// The same as sl_session_sync, for a caller that has claimed the engine.
int sl_session_sync_claimed(sl_session *s, const int32_t *ids, int n, const sl_progress *progress, int *n_kept, sl_error *err);

// ---- prefill_report.c ----

int sl_prefill_new_reports(sl_engine *e, sl_error *err);
void sl_prefill_free_reports(sl_engine *e);
void sl_prefill_reset(sl_engine *e); // forgets all reports
// After a pass of n tokens of a sparse prefill: adds its reports to those of the engine, and calls the observer.
void sl_prefill_pass_done(sl_engine *e, uint32_t sequence, int position, int n);
// The rows to check in a pass of n tokens: sl_prefill_n_checked rows, in ascending order.
int sl_prefill_n_checked(const sl_engine *e, int n);
int sl_prefill_checked_row(const sl_engine *e, int n, int i);

// ---- logits.c: sl_engine.step_logits, and the session that owns each row of step_logits ----

// Call before a step over n sessions writes rows [0, n_rows) of step_logits. Saves the logits of other sessions in these rows.
void sl_logits_before_step(sl_engine *e, sl_session *const *sessions, int n, int n_rows);
// Call after a step: row i of step_logits holds the logits of sessions[i].
void sl_logits_after_step(sl_engine *e, sl_session *const *sessions, int n);
// On a device: makes row i of step_logits hold the logits of sessions[i]. Copies logits only if the row does not hold them.
void sl_logits_to_rows(sl_engine *e, sl_session *const *sessions, int n);
// On a device, after a step: gives the session of row i the logits from before the step (sl_engine.last_logits).
void sl_logits_restore(sl_session *s, int i);
// SL_ERR_ARG when the session has no logits; the message says what to call.
int sl_session_need_logits(const sl_session *s, sl_error *err);
void sl_logits_forget_row(sl_session *s); // from now on only s->logits holds the logits

#endif
