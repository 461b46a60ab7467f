// engine/cli/run.h - what the flags choose: model, attention plan, engine and sampling parameters; and checks of these flags.
#ifndef SLEIGH_RUN_H
#define SLEIGH_RUN_H

#include "engine/backend/sampler.h"
#include "engine/base/error.h"
#include "engine/cli/attn_auto.h"
#include "engine/cli/options.h"
#include "engine/cli/output/stats.h"
#include "engine/sleigh.h"
#include "engine/stopper.h"
#include "tokenizer/chat.h"
#include "tokenizer/tokenizer.h"

#include <stdio.h>

typedef struct cli_run {
    const cli_options *options;
    const char *device; // what --device auto comes to
    sl_model *model;
    sl_engine *engine;
    sl_attn_plan wanted; // what the flags or the caller ask for
    sl_attn_plan plan;   // the same with what auto comes to: what runs
    cli_auto choose;
    int n_kv;             // tokens of the prompt that auto chooses for; INT_MAX: none yet
    sl_sampling sampling; // .bias is owned by the run
    double load_ms;
    cli_stats stats;
} cli_run;

// What --device auto comes to: a GPU where there is one that offers these n methods and what other flags ask for; else the CPU,
// which a line on stderr says where there is a GPU.
const char *cli_pick_device(const cli_options *o, const sl_attn_spec *specs, int n);
// config.json of --model, with the flags that its context bounds held against it: before weights are made or texts are read.
int cli_read_config(const cli_options *o, sl_config *out, sl_error *err);
// --model as --load-format says, dummy weights made. flags: sl_model_load's. SL_ERR_ARG where a dummy model has no tokenizer
// and the flags are about texts.
int cli_load_model(const cli_options *o, const char *device, unsigned flags, sl_model **out, sl_error *err);
// --ids as ids of this model. SL_ERR_FORMAT when there are none, or one out of range.
int cli_read_ids(const cli_options *o, const sl_config *config, sl_ids *ids, sl_error *err);
// n ids that a seed and a sequence give; fewer are the beginning of more.
int cli_random_ids(uint32_t seed, uint32_t sequence, int n, int n_vocab, sl_ids *ids, sl_error *err);

// Loads the model and opens an engine as the flags say. The flags are checked before the weights are touched.
int cli_run_open(cli_run *run, const cli_options *o, sl_error *err);
// The two halves of it, for commands that tokenise before they know how large a context they need.
int cli_run_open_model(cli_run *run, const cli_options *o, sl_error *err);
int cli_run_open_engine(cli_run *run, int n_ctx, int n_sequences, sl_error *err); // closes the run where it fails
int cli_run_finish(cli_run *run, sl_error *err);                                  // completes what the run writes: --stats
void cli_run_close(cli_run *run);
// Replaces the engine by one of n_ctx tokens; every timeline must be closed.
int cli_run_set_ctx(cli_run *run, int n_ctx, sl_error *err);
int cli_run_set_attention(cli_run *run, const char *spec, sl_error *err); // all layers; NULL: as the flags say
int cli_run_set_attention_but(cli_run *run, const char *spec, const cli_list *rules, sl_error *err); // rules: of --attn-layer
// A prompt of n_tokens is next: where the plan holds auto, chooses for this length and says on stderr what was not said yet.
// What a prompt and its answer are decoded with follows from the prompt's own length (and --parallel). Plans that are set
// later are for this length too, until the next prompt.
int cli_run_settle(cli_run *run, int n_tokens, sl_error *err);
// Any specifications, [n_layers] of `listed`, with what auto comes to for the prompt that was settled. *out is the caller's.
int cli_run_resolve(cli_run *run, const sl_attn_plan *listed, sl_attn_plan *out, sl_error *err);
// What a prompt of n_tokens with `attn` (NULL: as the flags say) decodes with; prompts of equal text may share a batch.
int cli_run_choice(cli_run *run, const char *attn, int n_tokens, char *buf, size_t size, sl_error *err);
void cli_run_describe(const cli_run *run, FILE *out); // model:, backend:, attention:, sampling: lines

void cli_run_describe_attention(const cli_run *run, FILE *out);
// The plan: a specification, or "0=dense 1-31=santa-prop:S=128" where layers differ.
enum { CLI_ATTN_TEXT = 16384 };
void cli_run_format_attention(const cli_run *run, char *buf, size_t size);

// --device: SL_ERR_ARG when this build has no such device. For commands that open an engine of their own.
int cli_check_device(const cli_options *o, sl_error *err);
int cli_need_model(const cli_options *o, sl_error *err); // SL_ERR_ARG without --model

// --chat-template, or the model's own. An unknown name is SL_ERR_ARG.
int cli_chat_template(const cli_options *o, const sl_chat_template **out, sl_error *err);
// Replaces *text by the template's rendering of it as the user's message, after --system-prompt.
int cli_chat_wrap(const cli_options *o, const sl_chat_template *template, sl_text *text, sl_error *err);
int cli_is_parallel(const cli_options *o); // generate --parallel, or --prompts: batches of o->parallel sequences

#endif
