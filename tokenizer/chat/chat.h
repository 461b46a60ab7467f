// tokenizer/chat/chat.h - chat templates: turn a list of messages into the prompt that the model was trained on.
//
// A template is a Jinja text (jinja.h): the model's own, a file of the user, or a built-in one. Text of messages is marked
// through the whole template, so that special tokens inside a message are text when the prompt is tokenized.
#ifndef SLEIGH_CHAT_H
#define SLEIGH_CHAT_H

#include "base/documents.h"
#include "tokenizer/tokenizer.h"

typedef struct sl_chat_template sl_chat_template; // immutable; threads may share it

const char *sl_chat_role(const char *name); // the static name of a role: "system", "user" or "assistant"; NULL: unknown
const char *sl_chat_names(void);            // of the built-in templates, comma-separated, for messages and help

// Loads a template. name: of a built-in template, of one of the model's templates ("tool_use"), or the path of a file; NULL:
// the model's template. SL_ERR_UNSUPPORTED: the model has none, or the text uses what Sleigh does not have. SL_ERR_ARG: the
// name is unknown.
int sl_chat_load(const sl_documents *d, const char *name, sl_chat_template **out, sl_error *err);
void sl_chat_template_free(sl_chat_template *t);     // NULL is allowed
const char *sl_chat_name(const sl_chat_template *t); // of a built-in template or a document
// The Jinja text: of the template for conversations with tools, if the model has one of its own for them.
const char *sl_chat_text(const sl_chat_template *t, size_t *n);

// What a template writes. Values are JSON as transformers takes them.
typedef struct sl_chat_request {
    const json_t *messages;  // a list of objects: role, content, tool_calls, tool_call_id, name, reasoning_content, ...
    const json_t *tools;     // a list of objects; NULL: none. A model that has a template "tool_use" uses it
    const json_t *documents; // a list of objects; NULL: none
    const json_t *options;   // an object of more variables: date_string, enable_thinking, ...; NULL: none
    int finished;            // the prompt does not begin the assistant's next reply
    int parse_special;       // special tokens in messages are not marked
} sl_chat_request;

typedef struct sl_prompt { // initialise with zeros
    sl_text text;
    sl_span *plain; // [n_plain] ascending: the parts that come from messages, tools, documents and options
    size_t n_plain;
} sl_prompt;
void sl_prompt_free(sl_prompt *p);
int sl_prompt_head(const sl_prompt *p, size_t n, sl_prompt *out, sl_error *err); // sets *out to the first n bytes

// Sets *out to the prompt. tok: its BOS and EOS are those of the template where the documents name none; NULL: no tokenizer.
// SL_ERR_ARG: the template refuses these messages.
int sl_chat_render(const sl_chat_template *t, const sl_tokenizer *tok, const sl_chat_request *r, sl_prompt *out, sl_error *err);
// Appends the ids of a prompt of sl_chat_render, or of the first n bytes of it and more text: BOS where the tokenizer adds one
// and the text does not begin with it. SL_ERR_UNSUPPORTED: the template writes a marker that is not a token of the tokenizer.
int sl_chat_tokenize(const sl_chat_template *t, const sl_tokenizer *tok, const sl_prompt *p, sl_ids *ids, sl_error *err);
// The token that the template writes after a reply of the assistant. -1: none is known.
int32_t sl_chat_end_of_turn(const sl_chat_template *t, const sl_tokenizer *tok);

// [{"role": ..., "content": ...}, ...], a new reference. NULL: out of memory.
json_t *sl_chat_messages(const sl_message *messages, int n);

#endif
