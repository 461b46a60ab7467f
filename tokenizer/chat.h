// tokenizer/chat.h - chat templates: a list of messages to the prompt string that the model was trained on.
//
// A template is chosen by recognising the model's own Jinja text (tokenizer_config.json, chat_template.jinja or
// chat_template.json), not by running Jinja. An unknown one, a near relative too, is refused with the names to pass instead.
#ifndef SLEIGH_CHAT_H
#define SLEIGH_CHAT_H

#include "engine/base/arrays.h"

typedef struct sl_message {
    const char *role; // "system", "user", "assistant"
    const char *content;
    size_t n; // bytes of content
} sl_message;

typedef struct sl_chat_template sl_chat_template; // const, static

const sl_chat_template *sl_chat_find(const char *name); // by name: "llama2", "llama3", "llama3.1", ...; NULL: unknown
const char *sl_chat_name(const sl_chat_template *t);
const char *sl_chat_names(void); // comma-separated, for messages and help
// The template that this Jinja text is: a published text, or one that differs from it in nothing that our prompts see (layout,
// tools). SL_ERR_UNSUPPORTED: unknown.
int sl_chat_detect(const char *jinja, const sl_chat_template **out, sl_error *err);
// Reads the model folder's own template text and detects it; SL_ERR_UNSUPPORTED when the folder has none.
int sl_chat_load(const char *dir, const sl_chat_template **out, sl_error *err);
// Appends the prompt, BOS text included where the template writes it (so tokenize it without SL_TOK_BOS), ending where the
// assistant is to speak. date: "26 Jul 2024" style text for the templates that write one; NULL: the template's constant
// (3.1) or today (3.2). A message order that the template refuses is SL_ERR_ARG.
int sl_chat_render(const sl_chat_template *t, const sl_message *messages, int n, const char *date, sl_text *out, sl_error *err);

#endif
