// engine/stream.h - what the engine and the commands need of streams, in addition to sleigh.h.
#ifndef SLEIGH_STREAM_H
#define SLEIGH_STREAM_H

#include "attention/attention.h"
#include "base/arrays.h"
#include "engine/sleigh.h"

void sl_stream_set_end(sl_stream *s, int32_t id); // this token ends later generations too (chat templates need it); -1: none
// Attention of the decode steps of later generations, in place of sl_generation.attn. The call runs the engine. The plan is
// copied.
int sl_stream_set_plan(sl_stream *s, const sl_attn_plan *methods, sl_error *err);
// The session gets the stream's attention before the stream begins, for a prefill and steps that belong to the generation.
void sl_stream_use_plan(sl_stream *s);
// These special tokens are written as text in later generations, although text leaves out special tokens. SL_ERR_ARG: more than
// SL_STREAM_NAMED.
enum { SL_STREAM_NAMED = 8 };
int sl_stream_set_named(sl_stream *s, const int32_t *ids, int n, sl_error *err);
const char *sl_stream_stop_string(const sl_stream *s); // the stop string that ended the last generation; NULL: none did
// Sets sl_generation.max_tokens and .n_logprobs for later generations.
void sl_stream_set_limits(sl_stream *s, int max_tokens, int n_logprobs);
// What the attention of the last generation's decode steps counted. NULL: on a GPU, where kernels count for the whole batch.
const sl_attn_stats *sl_stream_attn_stats(const sl_stream *s);
// One line about the drafts of the last generation, and why so many: acceptance and measured times. Empty without drafts.
void sl_stream_describe_drafts(const sl_stream *s, char *buf, size_t size);
// Tokens of the last generation that its decode steps appended beyond one each: accepted drafts, but no end token of the model,
// which needs no step.
int sl_stream_n_more(const sl_stream *s);
int sl_stream_stop(sl_stream *s, sl_stop reason, sl_error *err); // sl_stream_end with another reason

// Makes the session hold ids[0..n), and generates to the end. at_start: no text precedes the generated text. text: receives the
// generated text too; NULL: does not. The caller has claimed the engine (sl_engine_claim). Records no log-probabilities. After
// an error the session holds a prefix of the prompt and of the generated tokens.
int sl_stream_run(sl_stream *s, const int32_t *ids, int n, int at_start, sl_text_fn on_text, void *ctx, sl_text *text,
                  sl_generated *result, sl_error *err);

#endif
