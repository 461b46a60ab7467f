// engine/logprobs.h - log-probabilities of generated tokens.
//
// A log-probability is the log-softmax of the logits as the model computed them, in double precision, before
// penalties, biases, temperature and the cuts of top_k, top_p and min_p. vLLM's default is the same.
#ifndef SLEIGH_LOGPROBS_H
#define SLEIGH_LOGPROBS_H

#include "base/error.h"

typedef struct sl_logprobs { // of one generation; initialise with zeros
    int n_top;               // alternatives of each token; -1: nothing is recorded
    float *logits;           // [n_vocab] from which the next token is sampled
    int n_vocab;
    sl_token_logprobs *tokens; // [n]
    int n, cap;
} sl_logprobs;

// Begins a generation. Frees nothing, so that generations can share the memory. n_top: -1 to SL_MAX_LOGPROBS.
void sl_logprobs_begin(sl_logprobs *l, int n_top, int n_vocab);
void sl_logprobs_free(sl_logprobs *l);
// Call sl_logprobs_before with the logits of a session before a token is sampled from them, and sl_logprobs_add with the
// sampled token. If n_top is -1, a caller can leave out sl_logprobs_before, and sl_logprobs_add does nothing.
int sl_logprobs_before(sl_logprobs *l, const float *logits, sl_error *err);
int sl_logprobs_add(sl_logprobs *l, int32_t id, sl_error *err);

double sl_log_sum(const float *logits, int n); // log sum exp; NaN or infinite if the logits are not finite

#endif
