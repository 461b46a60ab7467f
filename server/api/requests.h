// server/api/requests.h - reads the JSON bodies of clients. Every dialect becomes one struct: messages and tools as templates
// of transformers take them, or prompts; and how to answer. docs/api.md lists the fields.
//
// Nothing here opens a socket or runs a model, and the result depends on the body alone.
#ifndef SLEIGH_API_REQUESTS_H
#define SLEIGH_API_REQUESTS_H

#include "server/api/api_fields.h"

typedef enum api_endpoint {
    API_CHAT,           // POST /v1/chat/completions
    API_COMPLETIONS,    // POST /v1/completions
    API_RESPONSES,      // POST /v1/responses
    API_MESSAGES,       // POST /v1/messages
    API_COUNT_TOKENS,   // POST /v1/messages/count_tokens
    API_TOKENIZE,       // POST /tokenize
    API_DETOKENIZE,     // POST /detokenize
    API_APPLY_TEMPLATE, // POST /apply-template
    API_N_ENDPOINTS
} api_endpoint;

const char *api_path(api_endpoint e);      // "/v1/chat/completions"
int api_endpoint_find(const char *path);   // -1: no such endpoint
static inline int api_is_messages(int e) { // Anthropic's form of errors
    return e == API_MESSAGES || e == API_COUNT_TOKENS;
}

typedef struct api_prompt { // a text, or ids
    const char *text;       // [n] bytes, may hold a NUL; NULL: ids
    size_t n;
    int32_t *ids; // [n_ids]
    size_t n_ids;
} api_prompt;

typedef enum api_tool_choice { API_TOOLS_AUTO, API_TOOLS_NONE, API_TOOLS_REQUIRED, API_TOOLS_NAMED } api_tool_choice;

typedef enum api_format_kind {
    API_FORMAT_FREE,
    API_FORMAT_JSON,   // any JSON object
    API_FORMAT_SCHEMA, // value: a JSON schema
    API_FORMAT_REGEX,  // value: a string
    API_FORMAT_CHOICE, // value: a list of strings
    API_FORMAT_GRAMMAR // value: a string, GBNF
} api_format_kind;

typedef struct api_format { // what the answer must look like
    api_format_kind kind;
    const json_t *value; // borrowed from the body; NULL: none
    const char *field;   // static: the field that gave it, for messages
} api_format;

// Pointers without another owner point into `body`.
typedef struct api_request {
    api_endpoint endpoint;
    json_t *body;      // owned
    const char *model; // NULL: not given

    // ---- what to continue: messages, prompts or token ids ----
    json_t *messages;          // owned: a list of {role, content, ...}; NULL: prompts
    json_t *tools;             // owned: a list of {type: "function", function: {...}}; NULL: none
    json_t *options;           // owned: variables of the template (chat_template_kwargs, enable_thinking); NULL: none
    const json_t *documents;   // documents for the chat template; NULL: none
    int add_generation_prompt; // 1; 0: the prompt does not begin the reply
    int continue_final;        // 1: the reply continues the last message, which is the assistant's
    api_prompt *prompts;       // [n_prompts], owned. API_DETOKENIZE: one prompt of ids
    int n_prompts;
    int add_special;   // 1: BOS where the tokenizer adds one. Of prompts only; templates write their own
    int parse_special; // 1: names of special tokens in the prompt are tokens

    // ---- how to sample. NaN and SL_UNSET: not given ----
    sl_sampling sampling; // sampling.seed is not set: see `seed`; sampling.bias is owned
    int has_seed;
    uint32_t seed;
    int max_tokens;    // -1: until another reason to stop. API_COMPLETIONS: 16 if not given
    const char **stop; // [n_stop], owned
    int n_stop;
    int ignore_eos;
    int n;                      // answers for each prompt
    int n_logprobs;             // -1: none; else alternatives of each token
    int logprobs, top_logprobs; // the fields of /v1/chat/completions from which n_logprobs comes
    int echo;                   // API_COMPLETIONS: the answer begins with the prompt
    api_format format;

    // ---- tools and reasoning ----
    api_tool_choice tool_choice;
    const char *tool_name; // API_TOOLS_NAMED
    int parallel_tool_calls;
    int include_reasoning; // 0: reasoning is left out of the answer
    int raw_reasoning;     // 1: reasoning stays in the text, with its marks

    // ---- how to reply ----
    int stream, include_usage, continuous_usage;
    int with_pieces, with_strings; // API_TOKENIZE: {id, piece} for each token; token_strs

    // ---- Sleigh's and vLLM's ----
    char *attn, *attn_prefill;                        // owned: "santa-prop:S=128"; NULL: not given
    const char *draft;                                // "ngram"; "none": no drafts; NULL: not given
    int priority;                                     // lower first; 0
    int id_slot;                                      // -1: any
    const char *cache_salt, *request_id, *session_id; // NULL: not given
    const char *conversation_id;                      // the conversation whose rows it continues; NULL: none
} api_request;

// Reads body[0..n). On an error *out is zero; status 400, or 503 without memory. Free with api_request_free.
int api_request_read(api_endpoint e, const char *body, size_t n, api_request *out, api_error *err);
void api_request_free(api_request *r);

// The tables of an endpoint's fields, ended by NULL. For tests and documentation.
const api_field *const *api_tables(api_endpoint e);

#endif
