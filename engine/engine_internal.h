// engine/engine_internal.h - the definitions of sl_model, sl_engine and sl_session, for engine/*.c only. The parts of sl_engine
// have headers of their own.
#ifndef SLEIGH_INTERNAL_H
#define SLEIGH_INTERNAL_H

#include "attention/extras/buckets.h"
#include "base/thread_pool.h"
#include "kv/kv_extras.h"
#include "engine/draft/draft_costs.h"
#include "engine/draft/draft_spec.h"
#include "engine/engine_device.h"
#include "engine/guide.h"
#include "engine/attend/observation.h"
#include "engine/plans.h"
#include "engine/sparse_prefill.h"
#include "models/arch.h"
#include "models/kv_scales.h"
#include "models/source.h"
#include "tokenizer/chat/chat.h"

#include <stdatomic.h>
#include <sys/types.h>

struct sl_model {
    atomic_int n_users;   // the caller, and each engine
    char *dir;            // as the caller gave it
    const char *name;     // the last part of dir
    sl_source *source;    // of the documents and tensors
    sl_config config;     // of the whole model
    struct sl_comm *comm; // the ranks that share the model, of which this process is one; NULL: the process has all of it
    sl_config part;       // of the part that this process has (sl_config.shard): the dimensions of passes
    sl_tensors *tensors;
    sl_quant quant;
    sl_kv_scales kv_scales;   // of the checkpoint, for a cache of fp8
    sl_model_weights weights; // of the part; data: the mapped files, or memory; NULL: not made yet
    sl_tokenizer *tokenizer;
    sl_chat_template *chat; // NULL: it has none that can be used
    int is_dummy;
};

void sl_model_use(const sl_model *model);                          // one more user; sl_model_free ends the use
int sl_model_asks_integers(const sl_model *model);                 // 1: the caller asks for activations of 8 or 16 bits
int sl_model_need_tokenizer(const sl_model *model, sl_error *err); // SL_ERR_ARG: the model has none
size_t sl_model_bytes_to_allocate(const sl_model *model);          // weights that do not lie in allocated memory (CPU)
int sl_model_device_makes(const sl_model *model,
                          const sl_backend *be); // 1: the backend makes the dummy weights when placing them
// A second list of the model's weights, whose matrices are to be rounded to a format ("int4"); head and embedding as with
// {weights} (models/quantise.h). It has no data yet. SL_ERR_ARG: the model's matrices are not plain, or have this format.
int sl_model_list_rounded(const sl_model *model, const char *format, sl_model_weights *out, sl_error *err);
// Rounds them, in memory of the list. SL_ERR_MEMORY; errors of sl_quantise.
int sl_model_make_rounded(const sl_model *model, sl_model_weights *list, const sl_cancel *cancel, sl_error *err);

struct sl_engine {
    atomic_int n_users;  // the caller, and each session
    atomic_flag is_busy; // set while a call runs the engine: sl_engine_claim
    pid_t process;       // that made the engine; its threads and its GPU do not exist in a child process after fork()
    int n_threads;       // on the host
    sl_threads *threads; // NULL before the first call
    sl_threads *outside; // the pool of the calling thread outside of the call
    sl_cancel cancel;
    struct sl_comm *comm;    // the ranks that share the model; NULL: one rank
    float *part_logits;      // with comm: [n_vocab / ranks]
    sl_attn_stats all_stats; // with comm: sl_engine_attn_stats, of all ranks
    sl_log log;
    const sl_model *model;
    sl_attn_geom geom;
    int n_ctx, n_sequences, prefill_chunk;
    int n_draft, n_step_rows; // most drafts of a session in a step; rows of the largest step, n_sequences (1 + n_draft)
    uint32_t seed;
    struct sl_bucket_file *bucket_file; // the model's, opened for the first method that needs it; NULL: none yet
    struct sl_bit_file *bit_file;       // the same
    sl_buckets trained;                 // what both have: geom.buckets and device.pool.buckets, once a file is open
    sl_device device;
    sl_plans plans;
    sl_sparse_prefill prefill;
    sl_observation observation;
    sl_attn_stats stats;
    uint64_t n_batches; // batches that were checked
    sl_draft_costs draft_costs;
    sl_engine *draft;         // of the draft model; only calls of this engine use it; NULL: none
    const char *draft_format; // of device.draft_weights: "int4"; NULL: there are none
    sl_model_weights rounded; // on the CPU the memory of device.draft_weights
    sl_matchers matchers;
};

struct sl_session {
    int n_users;             // the caller, and each stream
    const sl_stream *stream; // the stream that runs; NULL: no stream runs
    sl_attn_stats *work;     // the statistics of that stream
    sl_engine *engine;
    sl_plan *own_plan; // of decode steps; NULL: the engine's plan
    uint32_t sequence;
    uint32_t seed; // the seed of attention's draws
    sl_kv_seq kv;
    int32_t *ids;          // [n_ctx] the tokens of its rows; -1: a random row (sl_session_fill)
    uint32_t n_cuts;       // how often tokens were taken away, drafts aside (come_back); otherwise tokens are only appended
    int n_prefilled;       // the first tokens, up to the first that a decode step appended
    int has_logits;        // 0: the session is empty, or was cut at its last token
    uint32_t n_logits;     // grows when it gets logits
    float *logits;         // [n_vocab], valid when has_host_logits
    int logits_row;        // the row of sl_pass_buffers.logits that holds the logits; -1: none
    int has_host_logits;   // 0: only that row holds the logits
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
        int first, end, version; // version: sl_sparse_prefill.version; -1: the end of the segment was cut off
    } * segments;
    int n_segments, cap_segments;
    uint64_t batch_mark;  // n_batches of the last batch with this session: finds a session that is in a batch twice
    uint32_t plan_number; // of the plan whose states the session has; 0: none
    int observe_version;  // sl_observation.version when the session's shadow states were made
};

// The plan of the session's decode steps.
static inline const sl_plan *sl_session_plan(const sl_session *s) {
    return s->own_plan ? s->own_plan : s->engine->plans.of_engine;
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
// Appends to a text how many weights have inputs that prefills round (sl_inputs), because bits depend on it. Appends nothing if
// no weight has.
void sl_engine_append_inputs(const sl_engine *e, char *buf, size_t size);
// Calls the log callback with a line. The format is as in printf.
__attribute__((format(printf, 2, 3))) void sl_engine_log(const sl_engine *e, const char *format, ...);

// ---- engine_ranks.c: the engine of a rank of a tensor-parallel run ----

// Connects the engine, whose device is open, with the ranks of its model. SL_ERR_UNSUPPORTED: what ranks cannot do.
int sl_engine_join(sl_engine *e, const sl_engine_options *o, sl_error *err);
// Rank 0's measured time, for decisions that depend on it. All ranks call it.
double sl_engine_share_time(const sl_engine *e, double ms);
// 1: the error of a pass is one that the other ranks of the model may not have had: no memory, or the device. Then the run must
// end, because the other ranks go on with the pass. 0: all ranks have this error, or there is one process
int sl_engine_is_own_error(const sl_engine *e, int rc);
// n_threads; 0: the cores, of which each rank of the model has an equal share
int sl_model_threads(const sl_model *model, int n_threads);
// SL_ERR_UNSUPPORTED: the engine is one of several ranks. what: a feature that is for one process only
int sl_engine_check_whole(const sl_engine *e, const char *what, sl_error *err);
// all: [ranks * size], the bytes of all ranks; size: a multiple of 4. All ranks call it.
void sl_engine_gather(const sl_engine *e, const void *part, size_t size, void *all);
// SL_ERR_UNSUPPORTED: a method of the plan needs all heads, and this rank has a part of them.
int sl_engine_check_part(const sl_engine *e, const sl_attn_plan *plan, sl_error *err);
// The counters of all ranks, written to *all; without ranks `own`. All ranks call it.
const sl_attn_stats *sl_engine_sum_stats(const sl_engine *e, const sl_attn_stats *own, sl_attn_stats *all);
void sl_engine_gather_logits(const sl_batch *b, int n, float *out); // sl_batch.gather_logits

// ---- engine_buckets.c ----

// Opens the model's bucket file or bit file for a method that needs it, at most once. Errors: sl_model_open_buckets.
int sl_engine_need_buckets(sl_engine *e, const sl_attn_spec *spec, sl_error *err);
int sl_engine_need_buckets_of(sl_engine *e, const sl_attn_plan *plan, sl_error *err); // for any layer
void sl_engine_close_buckets(sl_engine *e);                                           // after the engine's last step

sl_attention_work sl_attention_work_of(const sl_attn_stats *stats); // engine.c

// ---- engine_place.c ----

// Chooses where K and V lie and the number of tokens of a session: e->n_ctx, e->prefill_chunk, and kv, n_pages and
// pass.max_rows of e->device. Ranks that share a model take the least context of a rank. plan: the methods of decode steps.
// Allocates nothing. SL_ERR_MEMORY: no place has enough memory.
int sl_engine_place(sl_engine *e, const sl_engine_options *o, const sl_attn_plan *plan, sl_error *err);
// SL_ERR_UNSUPPORTED: a method of the plan cannot decode with K and V in host memory.
int sl_engine_check_offloaded(const sl_attn_plan *plan, sl_error *err);

// ---- kv_stream.c: a prefill with K and V in host memory ----

// sl_batch.open_layer: brings the layer's rows before the pass to the staged pages, and writes the new rows of the layer before
// out. Returns the staged pages.
sl_kv_rows sl_kv_stream_open(const sl_batch *b, int layer);
void sl_kv_stream_close(const sl_batch *b); // after forward: writes the new rows of the last layer out

// ---- step.c, prefill.c ----

// SL_ERR_ARG: an id is not of the vocabulary.
int sl_find_bad_id(const sl_engine *e, const int32_t *ids, int n); // the first that is no id of the model; n: there is none
int sl_check_ids(const sl_engine *e, const int32_t *ids, int n, sl_error *err);
// The same as sl_prefill, sl_sample and sl_step, for a caller that has claimed the engine.
int sl_prefill_claimed(sl_session *s, const int32_t *ids, int n, const sl_progress *progress, sl_error *err);
// The next tokens of a prompt.
typedef struct sl_prefill_part {
    sl_session *session;
    const int32_t *ids; // [n]
    int n;
} sl_prefill_part;
// 1: sl_prefill_together may be called: prefills are dense, and K and V lie in the memory of a device. (On the
// CPU, attention of a prefill reads one sequence, and longer passes gain little.)
int sl_prefill_joins(const sl_engine *e);
// Appends the tokens of parts [n_parts], of different sessions of one engine, in one pass. Each session gets the logits of its
// last token. The bits are those of one sl_prefill for each part. At most n_sequences parts, and prefill_chunk tokens in all.
// After an error the sessions have the tokens of before. SL_ERR_DEVICE: they have no logits.
int sl_prefill_together(const sl_prefill_part *parts, int n_parts, sl_error *err);
// Tokens that follow a session in a pass: the first one is its next token, the others are drafts.
typedef struct sl_run {
    sl_session *session;
    const int32_t *ids;  // [n]
    int n;               // 1 to 1 + n_draft
    sl_sampler *sampler; // samples next; NULL: nothing
    int32_t *next; // [n] with a sampler, set by the pass: the token that it samples after ids[i]; -1: it is not known yet,
                   // because the host samples it, it needs the tokens before it, or the logits are not finite
    int row;       // set by the pass: row + i has the logits after ids[i]
} sl_run;
// One decode pass over all tokens of the runs, of different sessions of one engine. Appends the first token of each run. The
// K and V of drafts lie behind the session's rows until its next pass, and their logits until the next pass of the engine; each
// row has the bits of a step of its own. The plan of a session with drafts keeps no state, and the session's tokens and the
// drafts before the last fill no page that was not full before (page extras are made between passes). Errors as sl_decode.
int sl_decode_runs_claimed(sl_run *runs, int n, sl_error *err);
void sl_run_take(const sl_run *r, int i); // appends draft i >= 1 of a run, after the drafts before it
int sl_sample_claimed(sl_session *const *batch, int n, sl_sampler *const *samplers, int32_t *ids, sl_error *err);
int sl_step_claimed(sl_session *const *batch, int n, sl_sampler *const *samplers, int32_t *ids, sl_error *err);

// ---- session_file.c ----

typedef struct sl_session_head {
    int n_tokens;
    sl_attn_plan prefill; // methods of its sparse prefills; n_layers 0: none
    int segment;
} sl_session_head;
// What a session file says about its rows, without a check of the rows. The caller frees out->prefill. Errors of
// sl_session_load. SL_ERR_ARG also if its rows have other bits than those of this engine, because of other arithmetic.
int sl_session_read_head(const sl_engine *e, const char *path, sl_session_head *out, sl_error *err);

// ---- session.c ----

// Call before a step. Makes the missing states of the plan's methods and of shadows, filled with zeros. A layer whose method
// did not change since the session's last step keeps its state. So sessions with different methods can run in turns on one
// engine.
int sl_session_sync_state(sl_session *s, sl_error *err);
// The offset of a layer's part in sl_session.device_state. layer = n_layers: the size of all parts.
static inline size_t sl_device_state_at(const sl_engine *e, const sl_attn_plan *plan, int layer) {
    size_t at = 0;
    for (int i = 0; i < layer; i++) at += sl_align(e->device.attention->state_size(e, &plan->layer[i]));
    return at;
}
void sl_session_build_extras(sl_session *s); // builds the page extras of full pages that have none
// An empty session gets the full pages of another prefill of ids [n_pages * 256], with the methods of prefill that are set.
int sl_session_share(sl_session *s, const int32_t *ids, const int32_t *pages, int n_pages, sl_error *err);
// The full pages, from the first on, that any prompt with the same tokens has too: of prefilled rows, and of whole segments.
int sl_session_shareable(const sl_session *s);
// The page table in the backend's memory. A device gets the entries that changed since the last call.
const int32_t *sl_session_page_table(sl_session *s);

// Makes room for the segments of a prefill of n tokens.
int sl_session_reserve_segments(sl_session *s, int n, sl_error *err);
void sl_session_add_segment(sl_session *s, int first, int n); // after a pass of a sparse prefill
void sl_session_cut_rows(sl_session *s, int n_tokens);        // keeps n_tokens in the KV cache
// The same as sl_session_sync, for a caller that has claimed the engine.
int sl_session_sync_claimed(sl_session *s, const int32_t *ids, int n, const sl_progress *progress, int *n_kept, sl_error *err);

#endif
