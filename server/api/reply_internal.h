// server/api/reply_internal.h - what the writers of the dialects share (replies.h).
#ifndef SLEIGH_API_REPLY_INTERNAL_H
#define SLEIGH_API_REPLY_INTERNAL_H

#include "server/api/replies.h"

// A part of an answer: text, reasoning or a call. Parts come in the order of the text.
typedef struct api_part {
    api_event_kind kind;
    sl_text text; // the text so far; a call's text is its arguments
    int index;    // a call's number
    char *name;
    char id[API_CALL_ID];
} api_part;

typedef struct api_choice {
    int index;
    struct api_reply *reply;
    api_parser *parser;
    api_part *parts; // [n_parts]
    int n_parts;
    json_t *logprobs; // the tokens that no event has told yet: [{token, logprob, bytes, top_logprobs, text_offset}]
    size_t n_chars;   // characters of these and all earlier tokens
    json_t *delta;    // the next event of OpenAI's completions, which may still get a finish_reason
    int started;      // an event was written
    int finished;
    sl_stop stop;
    char *stop_string; // owned
    sl_text *out;      // where the running call writes
} api_choice;

// A dialect. The functions of streams append events to `out`.
typedef struct api_writer {
    const char *prefix; // the id begins with it
    int (*begin)(api_reply *r, sl_text *out, sl_error *err);
    int (*open)(api_choice *c, const api_part *p, sl_error *err);                              // a part begins
    int (*delta)(api_choice *c, const api_part *p, const char *text, size_t n, sl_error *err); // text of the part
    int (*close)(api_choice *c, const api_part *p, sl_error *err);                             // the part is whole
    int (*flush)(api_choice *c, sl_error *err);                                                // at the end of a piece
    int (*end)(api_reply *r, sl_text *out, sl_error *err);
    int (*fail)(api_reply *r, const api_error *e, sl_text *out, sl_error *err);
    int (*keep_alive)(api_reply *r, sl_text *out, sl_error *err);
    json_t *(*whole)(api_reply *r); // the body without streaming
} api_writer;

extern const api_writer api_chat_writer, api_completion_writer; // reply_openai.c
extern const api_writer api_responses_writer;                   // reply_responses.c
extern const api_writer api_messages_writer;                    // reply_anthropic.c

struct api_reply {
    const api_request *request;
    const api_writer *writer;
    char *id, *model; // owned
    long long created;
    api_choice *choices; // [n_choices]
    int n_choices;
    int n_prompt, n_cached, n_generated, n_reasoning;
    api_attention attention;
    int has_attention;
    int sequence_number; // numbers the events of /v1/responses
};

// ---- JSON and events as text (reply_events.c) ----

// Appends v, and takes the reference. v NULL is SL_ERR_MEMORY.
int api_append_json(sl_text *out, json_t *v, sl_error *err);
// Appends "event: NAME" (NULL: no such line) and "data: JSON". Takes the reference; v NULL is SL_ERR_MEMORY.
int api_send(sl_text *out, const char *name, json_t *v, sl_error *err);
int api_send_text(sl_text *out, const char *text, sl_error *err);
json_t *api_part_text(const api_part *p); // as a JSON string

// ---- shared parts of bodies (reply_usage.c): new references ----

int api_n_calls(const api_choice *c);
const char *api_finish_reason(const api_choice *c);       // "stop", "length", "tool_calls"
int api_has_room_left(const api_choice *c);               // 0: the answer ended at a limit of tokens
json_t *api_chat_usage(const api_reply *r);               // `usage` as OpenAI's completions have it
int api_add_attention(const api_reply *r, json_t *usage); // not 0: out of memory
json_t *api_chat_logprobs(json_t *tokens);                // {content}; steals `tokens`; NULL: null
json_t *api_completion_logprobs(json_t *tokens);          // {tokens, token_logprobs, top_logprobs, text_offset}
// Appends entries to c->logprobs.
int api_add_logprobs(api_choice *c, const api_token *tokens, int n, sl_error *err);

#endif
