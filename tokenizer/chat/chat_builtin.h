// tokenizer/chat/chat_builtin.h - the built-in chat templates, for models without one, and for --chat-template NAME.
#ifndef SLEIGH_CHAT_BUILTIN_H
#define SLEIGH_CHAT_BUILTIN_H

typedef struct sl_chat_builtin {
    const char *name, *text;
    const char *bos, *eos;   // where there is no tokenizer that says so
    const char *markers[12]; // texts that must be tokens; NULL ends them
} sl_chat_builtin;

extern const sl_chat_builtin sl_chat_builtins[];               // ended by a name of NULL
const sl_chat_builtin *sl_chat_builtin_find(const char *name); // NULL: unknown

const char *sl_chat_names(void); // the same declaration as in chat.h

// Calls fn for each text that is a special token in every model that uses it.
void sl_chat_markers(void (*fn)(void *ctx, const char *marker), void *ctx);

#endif
