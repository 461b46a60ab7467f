// cli/timeline.h - a session as the commands use it: prefill, feed, generate with streamed text, statistics.
#ifndef SLEIGH_TIMELINE_H
#define SLEIGH_TIMELINE_H

#include "cli/run/run.h"

#include <stdio.h>

// Receives generated text, piece by piece.
typedef int (*cli_sink)(void *ctx, const char *text, size_t n, sl_error *err);
int cli_sink_text(void *ctx, const char *text, size_t n, sl_error *err);   // appends to the sl_text ctx
int cli_sink_stdout(void *ctx, const char *text, size_t n, sl_error *err); // writes to standard output and flushes

typedef struct cli_timeline {
    cli_run *run;
    sl_session *session;
    sl_stream *stream;
    // counts and times since the last cut
    int n_prefill, n_feed, n_decode, n_sampled; // n_decode counts steps; n_sampled counts tokens, an end token too
    int n_more;                                 // tokens that the decode steps appended beyond one each: accepted drafts
    int n_prompt;                               // tokens in the context when the generation began
    double prefill_ms, feed_ms, decode_ms;
    double prefill_flops;
    sl_prefill_report *prefill; // [n_layers][n_heads] of sparse prefills; NULL: there was none
    const char *stopped;        // the reason why the generation ended; NULL: it has not ended
    int n_predict;              // most tokens of the generation; negative: no limit
    int n_logprobs;             // sl_generation.n_logprobs of the next generation
    cli_sink sink;              // receives the generated text
    void *sink_ctx;
} cli_timeline;

int cli_timeline_open(cli_timeline *t, cli_run *run, uint32_t sequence, sl_error *err);
void cli_timeline_close(cli_timeline *t);
// The timeline replaces its own session by this one. It owns the session, also after an error.
int cli_timeline_take(cli_timeline *t, sl_session *session, sl_error *err);
// Keeps the first n_tokens. Resets counters, timings and the attention statistics of the engine.
int cli_timeline_cut(cli_timeline *t, int n_tokens, sl_error *err);
// Makes the session hold ids[0, n_prefill) of a prompt of n tokens: keeps what sl_session_keep allows, and prefills the rest.
// n_prefill SL_CONTINUES: a conversation, of which all n tokens are prefilled.
int cli_timeline_prefix(cli_timeline *t, const int32_t *ids, int n_prefill, int n, sl_error *err);
// The sums over layers and heads.
sl_prefill_report *cli_new_prefill_reports(int n); // [n] of no row, from malloc; NULL: out of memory
sl_prefill_report cli_timeline_prefill_total(const cli_timeline *t);
// Append tokens: prefill with the methods of the run, feed with one decode step per token. Ctrl+C ends them early and sets
// `stopped`.
int cli_timeline_prefill(cli_timeline *t, const int32_t *ids, int n, sl_error *err);
int cli_timeline_feed(cli_timeline *t, const int32_t *ids, int n, sl_error *err);
// Generates until EOS, a stop string, n_predict tokens, a full context or Ctrl+C, and sets `stopped` to the reason. n_predict
// negative: no limit. at_start: no text precedes the generated text, so SentencePiece's first blank is omitted. Afterwards the
// session holds the shown tokens, except a last token that no further step needs.
int cli_timeline_generate(cli_timeline *t, int n_predict, int at_start, cli_sink sink, void *ctx, sl_error *err);
// Samples later tokens with other parameters. After an error nothing changed.
int cli_timeline_set_sampling(cli_timeline *t, const sl_sampling *sampling, sl_error *err);
uint64_t cli_timeline_logits_hash(const cli_timeline *t); // of the last logits, also after a cut
void cli_timeline_stats(const cli_timeline *t, FILE *out);
const char *cli_stop_name(sl_stop reason); // "eos", "limit", ...

// SL_ERR_CONTEXT, with both counts: a prompt of n tokens does not fit. SL_ERR_FORMAT: the prompt is empty. how: what raises the
// context, for the message: "--ctx-size".
int cli_check_prompt(const cli_run *run, size_t n, const char *how, sl_error *err);

#endif
