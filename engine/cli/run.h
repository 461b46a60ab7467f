// engine/cli/run.h - what generate, chat and logits share: a loaded model with its engine, and one timeline on it.
//
// cli_run      what the flags choose: model, attention plan, engine, sampling parameters.
// cli_timeline a session with its token ids, sampler, stop strings and timings; it turns tokens into streamed text.
#ifndef SLEIGH_RUN_H
#define SLEIGH_RUN_H

#include "engine/cli/attn_auto.h"
#include "engine/cli/cli.h"
#include "engine/cli/generate/stats.h"
#include "engine/backend/sampler.h"
#include "engine/stopper.h"
#include "engine/sleigh.h"
#include "tokenizer/chat.h"

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

typedef int (*cli_sink)(void *ctx, const char *text, size_t n, sl_error *err);
int cli_sink_stdout(void *ctx, const char *text, size_t n, sl_error *err); // writes and flushes

typedef struct cli_timeline {
    cli_run *run;
    sl_session *session;
    sl_sampler *sampler;
    sl_stopper *stopper; // NULL: no stop strings
    sl_ids ids;          // the session's tokens
    // since the last cut
    int n_prefill, n_feed, n_decode, n_generated; // n_decode: steps; a stop string's last one is taken back
    int n_prompt;                                 // tokens of the context when the generation began
    double prefill_ms, feed_ms, decode_ms;
    double prefill_flops;
    const char *stopped; // why the generation ended; NULL: it has not
    sl_ids generated;    // since cli_timeline_begin: all that were drawn, an end token too
    // where the generated text goes
    sl_detok_stream detok;
    sl_text piece; // of the last token
    cli_sink sink;
    void *sink_ctx;
} cli_timeline;

int cli_timeline_open(cli_timeline *t, cli_run *run, uint32_t sequence, sl_error *err);
void cli_timeline_close(cli_timeline *t);
// Keeps the first n_tokens; counters, timings and the engine's attention statistics begin anew.
int cli_timeline_cut(cli_timeline *t, int n_tokens, sl_error *err);
// Both append; when Ctrl+C came they stop early and set `stopped`. prefill: dense. feed: a decode step per token.
int cli_timeline_prefill(cli_timeline *t, const int32_t *ids, int n, sl_error *err);
int cli_timeline_feed(cli_timeline *t, const int32_t *ids, int n, sl_error *err);
// Generates until EOS, a stop string, --n-predict, a full context or Ctrl+C; says which in `stopped`. at_start: the text
// stands alone (SentencePiece's first blank is then left out). The session then holds what was shown, without a last token
// whose logits nobody needs.
int cli_timeline_generate(cli_timeline *t, int at_start, cli_sink sink, void *ctx, sl_error *err);
// The same for n timelines of one run together, after cli_timeline_begin of each; one that ends leaves the batch.
void cli_timeline_begin(cli_timeline *t, int at_start, cli_sink sink, void *ctx);
int cli_timelines_generate(cli_timeline *const *batch, int n, sl_error *err);
int cli_timeline_common(const cli_timeline *t, const int32_t *ids, int n); // length of the common prefix
void cli_timeline_stats(const cli_timeline *t, FILE *out);

// SL_ERR_CONTEXT, with both counts, when a prompt of n tokens does not fit; SL_ERR_FORMAT when it is empty.
int cli_check_prompt(const cli_run *run, size_t n, sl_error *err);

#endif
