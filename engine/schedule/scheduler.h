// engine/schedule/scheduler.h - many generations on one engine: continuous batching, chunked prefills between decode steps, and
// the prefix cache (prefix_tree.h).
//
// A job is a prompt and its generation.
//
//   waits -> prefills -> (feeds) -> decodes -> ended
//
// sl_scheduler_step moves all jobs on: it admits jobs that fit, prefills at most the work of step_tokens tokens, and runs one
// decode step of all jobs that decode. So a new prompt delays the next token of the others by the time of this work at most, or
// by one segment of a sparse prefill.
//
// Bits. A job's ids, text and logits are those of its prompt alone, with the same sequence, seeds and methods. The other jobs,
// the order of events, step_tokens and the prefix cache change no bit.
//
// Memory. A job is admitted when the cache has pages for its prompt and its max_tokens, beside what the admitted jobs may still
// take. A job without max_tokens counts GROWTH tokens. If it grows further and no page is free, it waits for one; if no other
// job can give one back, it ends with SL_ERR_MEMORY. No job takes pages of another.
//
// Order. Jobs are admitted by priority, then in the order of their arrival. Prefill passes alternate between the job that was
// admitted first and the job with the fewest tokens left, so a long prompt does not hold up short ones, and always goes on. On
// a device, a pass goes on with the tokens of further jobs where one job leaves room (sl_prefill_together). Of jobs whose
// prompts begin equally, one prefills the common pages, and the others wait for them.
//
// One thread makes all calls with a scheduler and with its engine.
#ifndef SLEIGH_SCHEDULER_H
#define SLEIGH_SCHEDULER_H

#include "engine/engine.h"
#include "engine/sleigh.h"

typedef struct sl_scheduler sl_scheduler;
typedef struct sl_job sl_job;

typedef struct sl_scheduler_options {
    int max_waiting; // most jobs that wait; 0: no limit
    // Where a job decodes, the most prefill between two decode steps: the work of so many tokens at the beginning of a prompt.
    // Later tokens attend to more rows, so fewer of them fit. 0: one prefill chunk of the engine
    int step_tokens;
    int no_prefixes; // 1: no prefix cache
    // A job lacks pages: frees a session that no job uses, and returns 1. 0: there is none. Then a waiting job may lose the
    // rows that its session had before it, and prefills them. NULL: sessions keep their pages
    int (*give_up)(void *ctx);
    void *ctx;
} sl_scheduler_options;

typedef enum sl_job_state { SL_JOB_WAITS, SL_JOB_PREFILLS, SL_JOB_FEEDS, SL_JOB_DECODES, SL_JOB_ENDED } sl_job_state;

// After each step that changed the job: its rows, its text or its state. It must not free the job or call the engine.
typedef void (*sl_job_fn)(void *ctx, sl_job *job);

typedef struct sl_job_options {
    // The job appends to the rows of this session, which keeps them when the job ends. It takes nothing from the prefix cache,
    // and gives nothing to it if its prefill is sparse.
    // Nobody else uses the session until sl_job_free. NULL: the job has a session of its own.
    sl_session *session;
    const int32_t
        *ids; // [n] the prompt, or what follows the session's rows; copied. With a session that has logits, n may be 0
    int n;
    int n_prefill;                   // tokens that are prefilled; decode steps append the others. -1: all n
    const sl_generation *generation; // copied. Its sequence is that of the job's session
    const sl_attn_plan *attn;        // attention of decode steps, copied; NULL: generation->attn
    const sl_attn_plan *prefill;     // attention of prefills, copied; NULL: dense
    int segment;                     // tokens of a segment of such a prefill (sl_engine_set_prefill)
    const char *salt;                // jobs share prefixes only with jobs of an equal salt; NULL: ""
    int priority;                    // jobs of a lower number come first
    int at_start;                    // as in sl_stream_begin
    int32_t end;                     // as in sl_stream_set_end
    const int32_t *named;            // [n_named] as in sl_stream_set_named
    int n_named;
    int has_seed; // 1: attention draws with `seed`; 0: with the engine's
    uint32_t seed;
    int n_prompt_logprobs; // -1: none; else log-probabilities of the prompt's tokens with so many alternatives. Such a job
                           // takes nothing from the prefix cache, and has no `session`
    int wants_work;        // 1: on_change reads sl_job_work of a job that runs
    sl_job_fn on_change;   // NULL: not wanted
    void *ctx;
} sl_job_options;

sl_job_options sl_job_options_default(void); // no prompt; n_prefill, end and n_prompt_logprobs are -1

// The engine must not be used by others until sl_scheduler_free. options NULL: zeros.
int sl_scheduler_new(sl_engine *engine, const sl_scheduler_options *options, sl_scheduler **out, sl_error *err);
void sl_scheduler_free(sl_scheduler *s); // after its jobs; NULL is allowed
// On a device: runs a prefill of one chunk, and records the steps of 1 to 64 jobs with the engine's plan, so that no job waits
// for this. Steps in which some jobs attend exactly and others do not are recorded when they come. drafts: 1: also what the
// first job with drafts would wait for (sl_drafts_warm_up), for programs whose jobs have drafts. Resets the engine's
// statistics. Call before the first job. After an error the scheduler can be used.
int sl_scheduler_warm_up(sl_scheduler *s, int drafts, sl_error *err);

// Adds a job at the end of the queue. SL_ERR_CONTEXT: the prompt does not fit into the context. SL_ERR_BUSY: max_waiting jobs
// wait. Errors of sl_stream_new and sl_engine_set_prefill.
int sl_scheduler_add(sl_scheduler *s, const sl_job_options *options, sl_job **out, sl_error *err);
// Returns 1 when the call did or will do something for a job, 0 when all jobs have ended. An error of a job ends this job only.
int sl_scheduler_step(sl_scheduler *s);
// Ends the job before the next step, with SL_STOP_CALLER.
void sl_job_cancel(sl_job *job);
void sl_job_free(sl_job *job); // cancels a job that has not ended; NULL is allowed

sl_job_state sl_job_state_of(const sl_job *job);
// The error that ended the job; code SL_OK: none.
const sl_error *sl_job_error(const sl_job *job);
const sl_stream *sl_job_stream(const sl_job *job); // text, ids, log-probabilities and counts, as after sl_streams_step
const sl_session *sl_job_session(const sl_job *job);
int sl_job_n_prompt(const sl_job *job); // with the rows that its session had
int sl_job_n_done(const sl_job *job);   // prompt tokens that have rows
int sl_job_n_cached(const sl_job *job); // prompt tokens whose rows came from the prefix cache or from its session
// The hash of the logits of the last step, once the job has ended and has decoded (sl_logits_hash).
uint64_t sl_job_logits_hash(const sl_job *job);
// [*n]: one for each token of the prompt but the first, once the prompt is prefilled.
const sl_token_logprobs *sl_job_prompt_logprobs(const sl_job *job, int *n);

// What the attention of the decode steps counted (sl_stream_attn_stats), and *work (sl_stream_attention_work). NULL: on a GPU.
// For on_change, once the job has ended, and before with wants_work. Of all ranks, which all have the callback on_change.
const sl_attn_stats *sl_job_work(const sl_job *job, sl_attention_work *work);

// Times in milliseconds (sl_now_ms). 0: not yet
typedef struct sl_job_times {
    double added, admitted, prefilled, first, last; // first, last: of the first and the last generated token
    // Durations of the engine's calls for the job. A call for several jobs counts for each of them.
    double prefill_ms, feed_ms, decode_ms;
} sl_job_times;
sl_job_times sl_job_times_of(const sl_job *job);

typedef struct sl_scheduler_stats {
    int n_waiting, n_prefilling, n_decoding; // jobs
    int n_pages, n_free, n_cached;           // pages of the KV cache; free ones; those that only the prefix cache holds
    uint64_t query_tokens, hit_tokens;       // prompt tokens that were looked up in the prefix cache, and found there
    uint64_t prompt_tokens, generated_tokens, n_steps; // prefilled and fed; sampled; decode steps
    uint64_t n_ended, n_failed, n_refused;             // jobs; refused: by max_waiting
    double prefill_ms, feed_ms, decode_ms;             // durations of the engine's calls
    double step_ms;                                    // duration of sl_scheduler_step, with these calls
} sl_scheduler_stats;
sl_scheduler_stats sl_scheduler_stats_of(const sl_scheduler *s);

// ---- ranks that share a model: each has a scheduler, and they take the same steps if they get the same calls ----

// A hash of what the scheduler has done: the jobs and tokens of all passes, their order, the ends of jobs, and the free pages
// of now. Ranks have equal traces: a step depends on no clock, except that rank 0's times choose the drafts of all ranks
// (sl_engine_share_time).
uint64_t sl_scheduler_trace(const sl_scheduler *s);
// An error of a pass that the other ranks may not have had: no memory, or the device. The scheduler has stopped in the middle
// of a step, and the run must end. code SL_OK: there is none. In one process, such an error ends its job only.
const sl_error *sl_scheduler_error(const sl_scheduler *s);

#endif
