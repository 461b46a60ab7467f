// tokenizer/chat.h - chat templates: turn a list of messages into the prompt format that the model was trained on.
//
// Sleigh recognises the model's Jinja text (tokenizer_config.json, chat_template.jinja or chat_template.json) and does not run
// Jinja. It refuses every other text, even a similar one. The error lists the names that the user can pass instead.
#ifndef SLEIGH_CHAT_H
#define SLEIGH_CHAT_H

#include "engine/base/documents.h"

typedef struct sl_chat_template sl_chat_template; // const, static

const char *sl_chat_role(const char *name); // the static name of a role: "system", "user" or "assistant"; NULL: unknown
const sl_chat_template *sl_chat_find(const char *name); // by name: "llama2", "llama3", "llama3.1", ...; NULL: unknown
const char *sl_chat_name(const sl_chat_template *t);
const char *sl_chat_names(void); // comma-separated, for messages and help
// Finds the template of a Jinja text: a published text, or a text that writes the same prompts because it differs only in
// layout or tools. SL_ERR_UNSUPPORTED: unknown.
int sl_chat_detect(const char *jinja, const sl_chat_template **out, sl_error *err);
// Reads the template text of a model and finds its template. SL_ERR_UNSUPPORTED: the model has no text.
int sl_chat_load(const sl_documents *documents, const sl_chat_template **out, sl_error *err);
// Appends the prompt up to the start of the assistant's next reply. It holds the text of BOS if the template writes one, so
// tokenize it without SL_TOK_BOS. date: a text like "26 Jul 2024" for the templates that write a date; NULL: the template's
// constant (Llama 3.1) or today (Llama 3.2). SL_ERR_ARG: the template refuses this order of messages.
int sl_chat_render(const sl_chat_template *t, const sl_message *messages, int n, const char *date, sl_text *out, sl_error *err);

#endif
