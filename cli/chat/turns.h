// cli/chat/turns.h - the messages of a conversation, and their file.
//
// The file is JSON in OpenAI's format: [{"role": "user", "content": "..."}, ...]. Roles: system (only first), user, assistant.
#ifndef SLEIGH_TURNS_H
#define SLEIGH_TURNS_H

#include "base/arrays.h"
#include "base/error.h"

typedef struct chat_turn {
    const char *role; // "system", "user", "assistant"; a constant
    sl_text text;
} chat_turn;

typedef struct chat_turns { // initialise with zeros
    chat_turn *items;
    int n, cap;
} chat_turns;

int chat_turns_push(chat_turns *turns, const char *role, const char *text, size_t n, sl_error *err);
void chat_turns_pop(chat_turns *turns);
void chat_turns_clear(chat_turns *turns);                          // removes all messages and their memory
int chat_turns_last_is(const chat_turns *turns, const char *role); // 1: the last message has this role
// Sets the system message. n 0: removes it.
int chat_turns_set_system(chat_turns *turns, const char *text, size_t n, sl_error *err);
const sl_text *chat_turns_system(const chat_turns *turns); // NULL: there is none

// Reads a file into *turns, which must be empty. SL_ERR_FORMAT names the message that is wrong; *turns is empty again.
int chat_turns_read(const char *path, chat_turns *turns, sl_error *err);
// Writes the file at once: it is complete or unchanged. SL_ERR_ARG: the file exists and holds no conversation.
int chat_turns_write(const char *path, const chat_turns *turns, sl_error *err);

#endif
