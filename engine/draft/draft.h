// engine/draft/draft.h - drafts: cheap guesses of a session's next tokens. One decode pass verifies several of them, with the
// bits of single steps.
//
// Exactness. A token is a pure function of the logits, the sampler's parameters, the seed, the sequence and the position. So no
// rejection sampling is needed: a stream samples from the logits of each row of the pass as it would after a single step. A
// draft is accepted if the sampled token is the draft. The first row whose token differs gives the right token at no extra
// cost.
//
// Sources. `ngram` copies what followed the same end of the text before (ngram_index.h). `self` decodes with another attention
// method, and perhaps with copies of the weights in fewer bits (draft_weights.h); the pass overwrites its K and V rows. Drafts
// end at the end of a page, so that page extras are never made of draft rows and a pass takes no page that a single step would
// not take.
//
// Numbers of drafts. A drafter counts how often the drafts of each source are accepted; draft_costs.h measures passes. For each
// pass, sl_drafts_make chooses the source and the number of drafts that promise the most tokens in a millisecond. The choice
// depends on time; the tokens do not.
#ifndef SLEIGH_DRAFT_H
#define SLEIGH_DRAFT_H

#include "engine/draft/draft_spec.h"
#include "engine/engine.h"
#include "engine/plans.h"
#include "engine/sleigh.h"

typedef struct sl_drafter sl_drafter; // of one stream

// draft: as in sl_generation. The call enters the engine. SL_ERR_ARG: the text is malformed, or the engine was made without
// n_draft. Errors of sl_plan_parse; SL_ERR_UNSUPPORTED: the method of `self` keeps a state from step to step.
int sl_drafter_new(sl_engine *e, const char *draft, sl_drafter **out, sl_error *err);
void sl_drafter_free(sl_drafter *d);
// Begins a generation of the session. SL_ERR_UNSUPPORTED: the attention of the session keeps a state from step to step, so that
// a pass over several rows cannot have the bits of single steps.
int sl_drafter_begin(sl_drafter *d, const sl_session *session, sl_error *err);
// On a device that records passes: records passes of 2 and more rows with a plan, and measures some of them. own: the plan of
// the sessions; NULL: the engine's. With the engine's plan, passes of up to n_sequences * (1 + n_draft) rows, at most 64.
// Another plan may be gone after one answer, so it gets passes of up to 1 + n_draft rows. Elsewhere, and if the plan has its
// recordings, the call does nothing. Each session takes a page meanwhile, so fewer passes are recorded where few pages are
// free; a later call records the others. A longer prefill can make recordings invalid later. A pass without a recording is
// recorded when it comes, also after a warm-up that failed, which is no error. SL_ERR_CANCELLED; and with ranks an error that
// this rank alone may have. sl_drafter_begin calls it: the first generation with drafts of a plan waits before its first token,
// and no draft waits in the middle of an answer. If a program calls it earlier (sl_scheduler_warm_up), this generation does not
// wait.
int sl_drafts_warm_up(sl_engine *e, sl_plan *own, sl_error *err);
const sl_draft_counts *sl_drafter_counts(const sl_drafter *d);
void sl_drafter_describe(const sl_drafter *d, char *buf, size_t size);

// draft_check.c: sl_draft_parse, and SL_ERR_ARG: the engine was made for fewer drafts.
int sl_draft_read(const sl_engine *e, const char *draft, sl_draft_spec *out, sl_error *err);
// SL_ERR_UNSUPPORTED: a method keeps a state from step to step.
int sl_draft_check_state(const sl_engine *e, const sl_attn_plan *methods, sl_error *err);

typedef struct sl_draft_job {
    sl_drafter *drafter; // NULL: no drafts
    sl_session *session;
    sl_sampler *sampler;
    int most;                      // most drafts that the stream can use
    int32_t ids[1 + SL_MAX_DRAFT]; // ids[0]: the session's next token; the drafts follow
    int n;                         // set by sl_drafts_make: ids of the run, at least 1
    // set by the pass: of sl_run
    int row;
    int32_t next[1 + SL_MAX_DRAFT];
} sl_draft_job;

// Makes the drafts of the jobs of one pass. The sessions and samplers are as before, after an error too. Allocates nothing,
// except for the page tables of sessions of the draft model. The caller has claimed the engine. SL_ERR_CANCELLED
int sl_drafts_make(sl_draft_job *jobs, int n, sl_error *err);
void sl_drafts_passed(const sl_draft_job *jobs, int n, double ms); // after the pass over the jobs' ids: its duration
// How many drafts of the job were compared with sampled tokens, and how many of these were accepted.
void sl_draft_settle(const sl_draft_job *job, int n_compared, int n_accepted);

#endif
