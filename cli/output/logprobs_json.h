// cli/output/logprobs_json.h - log-probabilities of generated tokens (--logprobs) as JSON.
#ifndef SLEIGH_LOGPROBS_JSON_H
#define SLEIGH_LOGPROBS_JSON_H

#include "base/error.h"
#include "tokenizer/tokenizer.h"

#include <jansson.h>

// One object per token: {"id", "token", "bytes", "logprob", "top_logprobs": [...]}. tokens: [n]. NULL: out of memory.
json_t *cli_logprobs_json(const sl_token_logprobs *tokens, int n, const sl_tokenizer *tok);

#endif
