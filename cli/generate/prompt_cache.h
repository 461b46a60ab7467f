// cli/generate/prompt_cache.h - --prompt-cache FILE of generate and chat: a session that the next command continues
// (docs/session-file.md).
#ifndef SLEIGH_PROMPT_CACHE_H
#define SLEIGH_PROMPT_CACHE_H

#include "cli/timeline.h"
#include "engine/messages.h"

// Puts the session of the file into t, and the messages of a chat into *messages; both must be empty. messages NULL: not
// wanted. Does nothing without the flag, or if the file does not exist.
int cli_prompt_cache_load(cli_timeline *t, const cli_cache_options *o, sl_messages *messages, sl_error *err);
// Writes the session of t into the file, with the messages of a chat; NULL: none. Does nothing without the flag, or with
// --prompt-cache-ro.
int cli_prompt_cache_save(const cli_timeline *t, const cli_cache_options *o, const sl_messages *messages, sl_error *err);

#endif
