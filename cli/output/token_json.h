// cli/output/token_json.h - tokens as JSON, with the names of llama.cpp and of OpenAI.
#ifndef SLEIGH_TOKEN_JSON_H
#define SLEIGH_TOKEN_JSON_H

#include "base/arrays.h"
#include "tokenizer/tokenizer.h"

#include <jansson.h>

json_t *cli_ids_json(const sl_ids *ids);
// {"id", "token", "bytes"}. "token" is the text of the id; bytes that are no UTF-8 are U+FFFD in it. "bytes" has the exact
// bytes. Special tokens have their strings. tok: NULL: "token" and "bytes" are null. The result is NULL: out of memory.
json_t *cli_token_json(const sl_tokenizer *tok, int32_t id);
// The text of ids with special tokens as their strings. Bytes that are no UTF-8 become U+FFFD. tok: NULL: JSON's null.
json_t *cli_ids_text_json(const sl_tokenizer *tok, const sl_ids *ids);

#endif
