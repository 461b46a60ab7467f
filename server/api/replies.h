// server/api/replies.h - writes answers in the dialect of the request: one JSON body, or events (SSE) while the answer grows.
//
// The calls are the same for both: api_reply_begin, api_reply_piece for each piece of each answer, api_reply_end. The bytes to
// send are appended to `out`. Without streaming only api_reply_end and api_reply_error write. Text, reasoning and calls come
// from one parser (tool_calls.h), so a stream says the same as the body.
#ifndef SLEIGH_API_REPLIES_H
#define SLEIGH_API_REPLIES_H

#include "server/api/requests.h"
#include "server/api/tool_calls.h"

// ---- what an answer consists of ----

typedef struct api_logprob { // a token and its log-probability
    const char *bytes;       // [n], of any bytes
    size_t n;
    double logprob; // NaN: unknown, as of the first token of a prompt
} api_logprob;

typedef struct api_token {
    api_logprob token;
    const api_logprob *top; // [n_top] in falling order
    int n_top;
} api_token;

typedef struct api_piece {
    int choice;       // prompt * n + answer
    const char *text; // [n] whole characters; may be empty, while text waits
    size_t n;
    int n_generated;         // tokens of the answer that this piece adds; 0 for a prompt that is echoed
    const api_token *tokens; // [n_tokens] with logprobs, else NULL. They may come before or after their text
    int n_tokens;
    int finished;            // 1: the last piece of this choice
    sl_stop stop;            // if finished
    const char *stop_string; // SL_STOP_STRING: it; NULL: not known
} api_piece;

typedef struct api_answer_bits { // what one choice says of its bits
    uint32_t sequence;
    uint64_t logits_hash; // sl_logits_hash of the last logits
} api_answer_bits;

// What attention did for the answers; all choices have one method and one seed.
typedef struct api_attention {
    const char *method, *prefill; // "santa-prop:S=128"; prefill NULL: dense
    uint32_t seed;
    sl_attention_work work;         // sums of all choices
    uint64_t rows, dense_rows;      // rows of V that were read, and rows that dense attention reads
    const api_answer_bits *answers; // [n_answers]
    int n_answers;
    const char *draft;      // the drafts of the answers; NULL: none
    sl_draft_counts drafts; // sums of all choices
    int n_draft;            // most drafts of a step
    int no_work;            // 1: the device does not count the work of one answer (a GPU counts for a whole batch)
} api_attention;

// ---- replies ----

typedef struct api_reply_options {
    const api_request *request; // borrowed as long as the reply lives
    const char *id, *model;     // copied; the id gets the prefix of the dialect: "chatcmpl-", "cmpl-", "resp_", "msg_"
    long long created;          // seconds since 1970
    // Of the chat template and the prompt (tool_calls.h). The reply looks for calls only if the request has tools, and for
    // neither in /v1/completions.
    api_call_format calls;
    int reasoning, in_reasoning;
    uint64_t number; // makes the ids of calls; another number for each request
} api_reply_options;

typedef struct api_reply api_reply;

int api_reply_new(const api_reply_options *options, api_reply **out, sl_error *err);
void api_reply_free(api_reply *r); // NULL is allowed
int api_reply_n_choices(const api_reply *r);
const char *api_reply_type(const api_reply *r); // the content type: "text/event-stream" or "application/json"

// Tokens of all prompts, and those of them whose rows were in the cache. Set them before api_reply_begin, as far as known, and
// again later.
void api_reply_set_prompt(api_reply *r, int n_prompt, int n_cached);
// Written into `usage`. Copied, but for the texts and answers. Set it before api_reply_end; NULL: none.
void api_reply_set_attention(api_reply *r, const api_attention *a);

// Each returns SL_ERR_MEMORY if memory is missing; then the reply is broken.
int api_reply_begin(api_reply *r, sl_text *out, sl_error *err);
int api_reply_piece(api_reply *r, const api_piece *piece, sl_text *out, sl_error *err);
int api_reply_end(api_reply *r, sl_text *out, sl_error *err); // after the last piece of every choice
// Ends the reply. With streaming: an event of the error, because the status is sent already. Else: the body of an error, and
// the caller sends e->status. (A stream that has not begun can still answer with api_error_json and a status.)
int api_reply_error(api_reply *r, const api_error *e, sl_text *out, sl_error *err);
// What keeps the connection alive while a prefill lasts, or while text waits because it may be a call: a comment, or
// Anthropic's ping. Nothing without streaming.
int api_reply_keep_alive(api_reply *r, sl_text *out, sl_error *err);

// ---- other bodies: new references; NULL: out of memory ----

// {count, max_model_len, tokens}, as both vLLM and llama.cpp read it. pieces: [n] the bytes of each token, if the request has
// with_pieces or with_strings.
json_t *api_tokenize_json(const api_request *r, const int32_t *ids, int n, const api_logprob *pieces, int n_ctx);
json_t *api_detokenize_json(const char *text, size_t n);                                    // {prompt, content}
json_t *api_template_json(const char *prompt, size_t n);                                    // {prompt}
json_t *api_count_json(int n_tokens);                                                       // {input_tokens}
json_t *api_models_json(const char *model, const char *root, long long created, int n_ctx); // GET /v1/models
json_t *api_utf8_json(const char *bytes, size_t n); // a string; bytes that are no UTF-8 become U+FFFD

#endif
