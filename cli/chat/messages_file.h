// cli/chat/messages_file.h - a conversation as a file: JSON in OpenAI's format (engine/messages.h).
#ifndef SLEIGH_MESSAGES_FILE_H
#define SLEIGH_MESSAGES_FILE_H

#include "engine/messages.h"

// Reads a file into *m, which must be empty. SL_ERR_FORMAT names the message that is wrong; *m is empty again.
int cli_messages_read(const char *path, sl_messages *m, sl_error *err);
// Writes the file at once: it is complete or unchanged. SL_ERR_ARG: the file exists and holds no conversation.
int cli_messages_write(const char *path, const sl_messages *m, sl_error *err);

#endif
