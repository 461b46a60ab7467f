// engine/backend/sampler.h - samples the next token from logits. The names, the order and the defaults of the parameters are
// those of llama.cpp.
//
// The order is logit bias, penalties, top-k, top-p, min-p, temperature, and then sampling. Temperature 0 is greedy: the largest
// logit wins, and of equal logits the lowest id. Random numbers come from Philox with key (seed, sequence) and counter
// (position, SL_STREAM_TOKEN). So the token depends only on the parameters, the logits, the tokens before it (penalties), and
// these numbers.
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
int sl_sampling_check(const sl_sampling *s, int n_vocab, sl_error *err); // checks ranges; the error names the flag

typedef struct sl_sampler sl_sampler; // one for each session: scratch memory, and the token history of the penalties
int sl_sampler_new(const sl_sampling *params, int n_vocab, sl_sampler **out, sl_error *err);
void sl_sampler_free(sl_sampler *s);
const sl_sampling *sl_sampler_params(const sl_sampler *s);
// Call for every token that enters the context, of the prompt and generated.
int sl_sampler_accept(sl_sampler *s, int32_t id, sl_error *err);
void sl_sampler_truncate(sl_sampler *s, int n_tokens); // keeps the first n_tokens of the history
// Samples a token. logits: [n_vocab], not changed. position: of the new token. Returns the token's id. Allocates nothing.
int32_t sl_sampler_sample(sl_sampler *s, const float *logits, uint32_t sequence, uint32_t position);

#endif
