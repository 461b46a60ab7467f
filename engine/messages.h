// engine/messages.h - the messages of a conversation, and the two ways to go on: another message, or another answer.
#ifndef SLEIGH_MESSAGES_H
#define SLEIGH_MESSAGES_H

#include "base/arrays.h"
#include "base/json.h"
#include "engine/sleigh.h"

typedef struct sl_messages { // initialise with zeros
    sl_message *items;       // contents are from malloc and end with a NUL; roles are constants
    int n, cap;
} sl_messages;

int sl_messages_push(sl_messages *m, const char *role, const char *text, size_t n, sl_error *err); // SL_ERR_ARG: unknown role
void sl_messages_pop(sl_messages *m);
void sl_messages_clear(sl_messages *m);                          // removes all messages and their memory
int sl_messages_last_is(const sl_messages *m, const char *role); // 1: the last message has this role
int sl_messages_has_question(
    const sl_messages *m); // 1: a message of the user is the last one, or the last one before an answer
const sl_message *sl_messages_system(const sl_messages *m); // NULL: there is none
// Sets the system message. n 0: removes it.
int sl_messages_set_system(sl_messages *m, const char *text, size_t n, sl_error *err);

// Reads a list in OpenAI's format, [{"role": "user", "content": "..."}, ...], into *m, which must be empty. Only the first
// message may be of the system. name: of the file, for errors. SL_ERR_FORMAT names the message that is wrong; *m is empty
// again.
int sl_messages_from_json(const char *name, const json_t *list, sl_messages *m, sl_error *err);
int sl_messages_to_json(const sl_messages *m, json_t **out, sl_error *err); // SL_ERR_FORMAT: a message is not UTF-8

// Makes the answer to the last message: appends its text to *reply. *is_answer: 1: the conversation gets it; 0 after an error.
typedef int (*sl_answer_fn)(void *ctx, sl_text *reply, int *is_answer, sl_error *err);
// Adds a message of the user and its answer. Without an answer the messages are unchanged.
int sl_messages_say(sl_messages *m, const char *text, size_t n, sl_answer_fn answer, void *ctx, sl_error *err);
// Answers the last message of the user, which sl_messages_has_question must find. A new answer replaces the old one, and draws
// with the next sequence number of s. Without a new answer the old one stays.
int sl_messages_again(sl_messages *m, sl_session *s, sl_answer_fn answer, void *ctx, sl_error *err);

#endif
