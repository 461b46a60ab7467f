// server/api/tool_calls.h - reasoning and calls of tools in generated text, as the text comes.
//
// The events do not depend on how the text is cut into pieces: their texts together are the same. A call is an event when all
// its text is there and well-formed. Text that is no call stays text, and text that may begin a call, or the mark of one,
// waits. So a call cannot turn out to be malformed after the client has seen a part of it.
#ifndef SLEIGH_TOOL_CALLS_H
#define SLEIGH_TOOL_CALLS_H

#include "base/arrays.h"

#include <jansson.h>

typedef enum api_call_format {
    API_CALLS_NONE,
    API_CALLS_LLAMA3,      // {"name": "f", "parameters": {...}}, also after <|python_tag|>, and several with ";" between
    API_CALLS_PYTHONIC,    // [f(a=1), g(b="x")], also after <|python_tag|>
    API_CALLS_HERMES,      // <tool_call>{"name": "f", "arguments": {...}}</tool_call>: Qwen
    API_CALLS_MISTRAL,     // [TOOL_CALLS][{"name": ..., "arguments": ...}], or [TOOL_CALLS]f[ARGS]{...}
    API_CALLS_MISTRAL_ARGS // the same, and the template teaches the second form
} api_call_format;

// The format that a chat template teaches the model, by the template's text.
api_call_format api_call_format_of(const char *chat_template, size_t n);
// The marks of a format, ended by NULL. Many are special tokens, which text leaves out: the caller should write them as text.
const char *const *api_call_marks(api_call_format f);
int api_template_reasons(const char *chat_template, size_t n); // 1: it knows <think> ... </think>
int api_prompt_opens_reasoning(const char *prompt, size_t n);  // 1: the rendered prompt ends within <think>

typedef enum api_event_kind { API_EVENT_TEXT, API_EVENT_REASONING, API_EVENT_CALL } api_event_kind;

enum { API_CALL_ID = 10 };

typedef struct api_event {
    api_event_kind kind;
    const char *text; // [n] more text; of a call: its arguments, the text of a JSON object
    size_t n;
    int index;            // the call's number, from 0
    const char *name;     // the name of the call's function
    char id[API_CALL_ID]; // the call's id: 9 letters and digits, because templates of Mistral require this form
} api_event;

typedef int (*api_event_fn)(void *ctx, const api_event *e, sl_error *err); // not 0: an error, which ends the call

typedef struct api_parser_options {
    api_call_format format;
    int reasoning;       // 1: text between <think> and </think> is reasoning
    int in_reasoning;    // 1: the prompt has written <think> already
    const json_t *tools; // the request's tools, borrowed. Text without a mark is a call only if it names a tool; NULL: any name
    uint64_t number;     // makes the ids of calls: another number for each answer
    api_event_fn fn;
    void *ctx;
} api_parser_options;

typedef struct api_parser api_parser;

int api_parser_new(const api_parser_options *options, api_parser **out, sl_error *err);
void api_parser_free(api_parser *p); // NULL is allowed
// More text, of whole characters. Events come in the order of the text.
int api_parser_feed(api_parser *p, const char *text, size_t n, sl_error *err);
int api_parser_end(api_parser *p, sl_error *err); // the text has ended: what waits becomes an event
int api_parser_n_calls(const api_parser *p);
int api_parser_is_reasoning(const api_parser *p); // 1: the text so far ends within reasoning

#endif
