// engine/cli/logprobs.h - log-probabilities of generated tokens (--logprobs).
//
// A log-probability is that of the model: the log-softmax of the logits as the model computed them, in double precision, before
// penalties, biases, temperature and the cuts of --top-k, --top-p and --min-p. vLLM's default is the same.
#ifndef SLEIGH_LOGPROBS_H
#define SLEIGH_LOGPROBS_H

#include "engine/base/error.h"
#include "tokenizer/tokenizer.h"

#include <jansson.h>
#include <stdint.h>

enum { CLI_MAX_LOGPROBS = 20 }; // alternatives of a token, as in vLLM and in OpenAI's interface

typedef struct cli_logprob {
    int32_t id;
    double at;
} cli_logprob;

typedef struct cli_token_logprobs {
    cli_logprob sampled, top[CLI_MAX_LOGPROBS]; // top: in falling order; of equal tokens the lowest id comes first
} cli_token_logprobs;

typedef struct cli_logprobs {
    int n_top;     // alternatives of each token; -1: nothing is recorded
    float *logits; // [n_vocab] from which the next token is sampled
    int n_vocab;
    cli_token_logprobs *tokens; // [n]
    int n, cap;
} cli_logprobs;

// Begins an answer. Frees nothing, so that answers can share the memory. n_top: -1 to CLI_MAX_LOGPROBS.
void cli_logprobs_begin(cli_logprobs *l, int n_top, int n_vocab);
void cli_logprobs_free(cli_logprobs *l);
// Call cli_logprobs_before with the logits of a session before a token is sampled from them, and cli_logprobs_add with the
// sampled token. Both do nothing if n_top is -1.
int cli_logprobs_before(cli_logprobs *l, const float *logits, sl_error *err);
int cli_logprobs_add(cli_logprobs *l, int32_t id, sl_error *err);
// One object per token: {"id", "token", "bytes", "logprob", "top_logprobs": [...]}. NULL: out of memory.
json_t *cli_logprobs_json(const cli_logprobs *l, const sl_tokenizer *tok);

#endif
