// backend/sampler.h - samples the next token from logits. The names, the order and the defaults of the parameters are
// those of llama.cpp.
//
// The order is the tokens that are allowed, logit bias, penalties, top-k, top-p, min-p, temperature, and then sampling.
// Temperature 0 is greedy: the largest logit wins, and of equal logits the lowest id. Random numbers come from Philox with key
// (seed, sequence) and counter (position, SL_STREAM_TOKEN). So the token depends only on the parameters, the logits, the tokens
// before it (penalties), and these numbers.
#ifndef SLEIGH_SAMPLER_H
#define SLEIGH_SAMPLER_H

#include "base/error.h"

#include <stdint.h>

int sl_sampling_check(const sl_sampling *s, int n_vocab, sl_error *err); // checks ranges

const sl_sampling *sl_sampler_params(const sl_sampler *s);
int sl_sampler_n_vocab(const sl_sampler *s);
int sl_sampler_n_tokens(const sl_sampler *s); // of the history
const uint32_t *sl_sampler_allowed(const sl_sampler *s); // what sl_sampler_allow got; NULL: every token
// Samples a token. logits: [n_vocab], not changed. position: of the new token. Returns the token's id. Allocates nothing.
int32_t sl_sampler_sample(sl_sampler *s, const float *logits, uint32_t sequence, uint32_t position);

#endif
