// cli/run/run.h - a model and an engine as the flags choose them, with attention plans and sampling parameters.
//
// load_model.c loads the model, pick_device.c chooses the device, attn_flags.c, draft_flags.c and sampling_flags.c turn flags
// into plans, drafts and parameters, run_plan.c keeps the plans, and run_describe.c prints them.
#ifndef SLEIGH_RUN_H
#define SLEIGH_RUN_H

#include "backend/sampler.h"
#include "base/error.h"
#include "cli/attn/attn_auto.h"
#include "cli/attn/attn_profile.h"
#include "cli/options/options.h"
#include "cli/output/stats.h"
#include "cli/run/draft_flags.h"
#include "engine/engine.h"
#include "engine/stopper.h"
#include "tokenizer/tokenizer.h"

#include <stdio.h>

typedef struct cli_run {
    const cli_run_options *options;
    const char *device; // the device in use; never auto
    sl_model *model;
    sl_model *draft_model; // --draft-model; NULL: none
    sl_engine *engine;
    sl_attn_plan requested;          // what the flags or the caller request
    sl_attn_plan plan;               // the plan in use: `requested`, with each auto replaced by a method
    sl_attn_plan requested_prefill;  // the same for prefill
    sl_attn_plan prefill;            // the methods of prefill in use
    sl_attn_spec prefill_auto;       // what --attn-prefill=auto means for the current prompt
    sl_prefill_report *prefill_into; // [n_layers][n_heads] what sparse prefills add their reports to; NULL: nothing
    cli_auto attn_auto;
    cli_attn_profile profile; // --attn-profile; empty without the flag
    int n_sequences;          // that decode together; auto chooses for this number
    int exact_below;          // as in sl_engine_options
    cli_draft_needs drafts;   // what --draft needs of the engine
    int said_trained;         // 1: cli_warn_trained has printed its line
    int n_kv;                 // prompt tokens, for which auto chooses; INT_MAX: no prompt yet
    sl_sampling sampling;     // the run owns .bias
    sl_grammar *grammar;      // the grammar that every answer follows; NULL: none
    double load_ms;
    cli_stats stats;
} cli_run;

// Loads the model and opens an engine as the flags say, for n_sequences sequences that decode together. Checks the flags before
// it reads weights. The run keeps a pointer to *o.
int cli_run_open(cli_run *run, const cli_run_options *o, int n_sequences, sl_error *err);
// The two halves of cli_run_open, for commands that tokenise texts to find the context size.
int cli_run_open_model(cli_run *run, const cli_run_options *o, int n_sequences, sl_error *err);
int cli_run_open_engine(cli_run *run, int n_ctx, int n_sequences, sl_error *err); // after an error the run is closed
int cli_run_finish(cli_run *run, sl_error *err);                                  // completes the file of --stats
void cli_run_close(cli_run *run);
// Replaces the engine by one with a context of n_ctx tokens. All timelines must be closed.
int cli_run_set_ctx(cli_run *run, int n_ctx, sl_error *err);
int cli_run_set_attention(cli_run *run, const char *spec, sl_error *err); // for all layers; NULL: the method of the flags
// The same, then applies rules in the form of --attn-layer.
int cli_run_set_attention_but(cli_run *run, const char *spec, const cli_list *rules, sl_error *err);
// Sets the length of the next prompt. If the plan holds auto, chooses for this length and reports a new choice on stderr. The
// choice depends only on the prompt's length and on n_sequences, so the method does not change while the answer grows. Plans
// that are set later use this length, until the next prompt.
int cli_run_set_prompt(cli_run *run, int n_tokens, sl_error *err); // the same for --attn-prefill=auto
// Replaces auto in any plan by the choice for the current prompt. The caller frees *out.
int cli_run_choose_plan(cli_run *run, const sl_attn_plan *listed, sl_attn_plan *out, sl_error *err);
// The methods of one prompt of n tokens, without a change of the engine. attn, prefill: methods for all layers; NULL: those of
// the flags. The caller frees both plans, also after an error. has_decode: 0: `attn` caused the error. quiet 0: a new choice of
// auto for decoding is reported on stderr.
typedef struct cli_plans {
    sl_attn_plan decode, prefill;
    int segment, has_decode;
} cli_plans;
int cli_run_make_plans(cli_run *run, const char *attn, const char *prefill, int n, int quiet, cli_plans *out, sl_error *err);
void cli_plans_free(cli_plans *plans);
void cli_run_describe(const cli_run *run, FILE *out); // lines model:, backend:, attention: and sampling:
void cli_run_describe_attention(const cli_run *run, FILE *out);
// Writes the plan: one specification, or "0=dense 1-31=santa-prop:S=128" if layers differ.
enum { CLI_ATTN_TEXT = 16384 };
void cli_plan_format(const sl_attn_plan *plan, char *buf, size_t size);
char *cli_plan_text(const sl_attn_plan *plan); // the same, from malloc; NULL: out of memory
void cli_run_format_attention(const cli_run *run, char *buf, size_t size);
// The methods of later prefills. text NULL: the methods of the flags; else a method for all layers, then rules in the form of
// --attn-prefill-layer.
int cli_run_set_prefill(cli_run *run, const char *text, const cli_list *rules, sl_error *err);
// As cli_run_format_attention; before the first prompt, auto is not replaced.
void cli_run_format_prefill(const cli_run *run, char *buf, size_t size);

#endif
