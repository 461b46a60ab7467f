// cli/chat_prompt.h - prompts of conversations: the chat template, and the flags that say what it writes.
#ifndef SLEIGH_CHAT_PROMPT_H
#define SLEIGH_CHAT_PROMPT_H

#include "cli/run/run.h"
#include "tokenizer/chat/chat.h"

typedef struct cli_chat {       // initialise with zeros
    sl_chat_template *template; // NULL: no template
    json_t *tools, *options;    // --tools, --chat-template-kwargs; NULL: none
    const char *system;         // of cli_chat_render_text: the message before the user's message; NULL: none
    int parse_special;
} cli_chat;

// SL_ERR_ARG: a flag of the chat template without --chat
int cli_check_chat_flags(const cli_chat_options *o, const cli_given *given, sl_error *err);
// Loads --chat-template, or the template of the model, and reads the other flags. SL_ERR_ARG: the name is unknown.
int cli_chat_load(const cli_model_options *model, const cli_chat_options *o, cli_chat *chat, sl_error *err);
void cli_chat_free(cli_chat *chat);
// Sets *out to the prompt of a list of messages. tools: NULL: the tools of the flag.
int cli_chat_render(const cli_chat *chat, const sl_tokenizer *tok, const json_t *messages, const json_t *tools, sl_prompt *out,
                    sl_error *err);
// The same for a message of the user after the system message.
int cli_chat_render_text(const cli_chat *chat, const sl_tokenizer *tok, const char *text, size_t n, sl_prompt *out,
                         sl_error *err);
// For `generate` without --chat: a line on stderr if the model was trained on conversations and the prompt has no token of a
// template.
void cli_hint_chat(const cli_run *run, const sl_text *text, const sl_ids *ids);

#endif
