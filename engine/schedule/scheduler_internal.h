// engine/schedule/scheduler_internal.h - what the other files of engine/schedule/ need of the scheduler.
#ifndef SLEIGH_SCHEDULER_INTERNAL_H
#define SLEIGH_SCHEDULER_INTERNAL_H

#include "engine/engine_internal.h"
#include "engine/logprobs.h"
#include "engine/schedule/prefix_tree.h"
#include "engine/schedule/scheduler.h"

struct sl_job {
    sl_scheduler *scheduler;
    uint64_t number; // counts arrivals
    int priority;
    sl_job_state state;
    int is_cancelled, in_pass; // in_pass: the pass that is being put together has tokens of the job
    sl_session *session;
    int is_lent; // the session is the caller's
    sl_stream *stream;
    int32_t *ids; // [n] the prompt
    int n, n_prefill, at_start;
    sl_attn_plan prefill; // n_layers 0: dense
    int segment;
    char *key;      // the key in the prefix cache
    int n_due;      // pages that admission counts
    int n_cached;   // prompt tokens from the prefix cache
    sl_job *leader; // prefills the first n_common tokens for this job too; NULL: none
    int n_common;
    sl_logprobs prompt_logprobs;
    uint64_t logits_hash;
    uint64_t turn;      // counts admissions
    int wants_work;     // as in sl_job_options
    sl_attn_stats work; // with ranks: sl_job_work
    sl_job_times times;
    sl_error error;
    sl_job_fn on_change;
    void *ctx;
};

struct sl_scheduler {
    sl_engine *engine;
    sl_scheduler_options options;
    sl_prefix_tree *tree; // NULL: no prefix cache
    sl_job **jobs;        // [n_jobs] that have not ended, in the order of their arrival
    int n_jobs, cap_jobs;
    sl_stream **streams;    // [n_sequences] scratch memory of a step, with the two arrays below
    sl_session **sessions;  // [n_sequences]
    sl_job **batch;         // [n_sequences]
    int32_t *pages;         // [pages of n_ctx] scratch memory
    sl_attn_plan dense;     // methods of prefills that are not sparse
    uint64_t n_added;       // jobs
    uint64_t n_admitted;    // jobs
    uint64_t n_turns;       // counts the jobs' turns in passes that prefill
    uint64_t n_passes;      // counts these passes
    sl_scheduler_stats all; // the sums since the start
    uint64_t trace;         // sl_scheduler_trace, without the free pages
    sl_error lost;          // sl_scheduler_error
};

sl_engine *sl_scheduler_engine(const sl_scheduler *s);
sl_prefix_tree *sl_scheduler_tree(const sl_scheduler *s); // NULL: no prefix cache
// Sets the methods of the next prefill. plan with n_layers 0: dense.
int sl_scheduler_set_prefill(const sl_scheduler *s, const sl_attn_plan *plan, int segment, sl_error *err);
// Makes n free pages that no admitted job counts on, and returns 1. 0: there are not so many.
int sl_scheduler_make_room(sl_scheduler *s, int n);
// The pages of n that hold whole segments of a sparse prefill. segment 0: all
static inline int sl_whole_segments(int n_pages, int segment) {
    return segment ? n_pages * SL_PAGE / segment * segment / SL_PAGE : n_pages;
}
// The key of prompts with these methods and this salt (NULL: "") in the prefix cache. The caller frees *out.
int sl_prefix_key(const sl_attn_plan *prefill, int segment, const char *salt, char **out, sl_error *err);

// ---- scheduler_ranks.c: the schedulers of ranks that share a model take the same steps ----

// Adds an event to the trace: a job of a pass, with the n tokens that the pass reads or has sampled, or the end of a job.
typedef enum sl_event { SL_EVENT_ADDED, SL_EVENT_PREFILL, SL_EVENT_FEED, SL_EVENT_DECODE, SL_EVENT_END } sl_event;
void sl_scheduler_note(sl_scheduler *s, const sl_job *j, sl_event event, const int32_t *ids, int n);
// An error of a pass. If there are ranks, and the others may not have this error, the call keeps it and returns 1.
int sl_scheduler_lose(sl_scheduler *s, const sl_error *why);
void sl_job_sum_work(sl_job *j); // with ranks: sets sl_job_work for on_change. All ranks call it

#endif
