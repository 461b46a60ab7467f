// engine/backend/sampler.h - from logits to the next token: llama.cpp's sampler names, order and defaults.
//
// The order is logit bias, penalties, top-k, top-p, min-p, temperature, and then sampling. Temperature 0 is greedy: the largest
// logit wins, and of equal logits the lowest id. Random numbers come from Philox with key (seed, sequence) and counter
// (position, SL_STREAM_TOKEN). So the token of a position depends on the logits and on these numbers only.
#ifndef SLEIGH_SAMPLER_H
#define SLEIGH_SAMPLER_H

#include "engine/base/error.h"

#include <stddef.h>
#include <stdint.h>

typedef struct sl_logit_bias {
    int32_t id;
    float bias;
} sl_logit_bias;

typedef struct sl_sampling {
    float temp;              // 0.8; 0: greedy
    int top_k;               // 40; 0: off
    float top_p;             // 0.95; 1: off
    float min_p;             // 0.05; 0: off
    float repeat_penalty;    // 1: off
    int repeat_last_n;       // 64; 0: off, -1: the whole context
    float presence_penalty;  // 0: off
    float frequency_penalty; // 0: off
    const sl_logit_bias *bias;
    int n_bias;
    uint32_t seed;
} sl_sampling;

sl_sampling sl_sampling_default(void);
int sl_sampling_check(const sl_sampling *s, int n_vocab, sl_error *err); // ranges; names the flag

typedef struct sl_sampler sl_sampler; // one for each session: scratch memory, and the token history of the penalties
int sl_sampler_new(const sl_sampling *params, int n_vocab, sl_sampler **out, sl_error *err);
void sl_sampler_free(sl_sampler *s);
const sl_sampling *sl_sampler_params(const sl_sampler *s);
// A token entered the context (prompt or generated).
int sl_sampler_accept(sl_sampler *s, int32_t id, sl_error *err);
void sl_sampler_truncate(sl_sampler *s, int n_tokens); // the context was cut back to its first n_tokens tokens
// Samples a token. logits: [n_vocab], not changed. position: of the new token. Returns the token's id. Allocates nothing.
int32_t sl_sampler_sample(sl_sampler *s, const float *logits, uint32_t sequence, uint32_t position);

#endif
