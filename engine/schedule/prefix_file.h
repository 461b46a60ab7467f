// engine/schedule/prefix_file.h - prompts of the prefix cache in sessions and in session files (docs/session-file.md).
//
// Only full pages of prefilled rows are saved and restored, so a prompt that finds them has the bits that it has without them.
#ifndef SLEIGH_PREFIX_FILE_H
#define SLEIGH_PREFIX_FILE_H

#include "engine/schedule/scheduler.h"

// A prompt whose beginning may be in the prefix cache. It owns its members. Zeros: no prompt
typedef struct sl_cached_prompt {
    int32_t *ids; // [n]
    int n;
    sl_attn_plan prefill; // n_layers 0: dense
    int segment;          // of a prefill that is not dense
    char *salt;           // NULL: ""
} sl_cached_prompt;

// Copies all. prefill NULL: dense. After an error *p is as before; else its old members were freed.
int sl_cached_prompt_set(sl_cached_prompt *p, const int32_t *ids, int n, const sl_attn_plan *prefill, int segment,
                         const char *salt, sl_error *err);
void sl_cached_prompt_free(sl_cached_prompt *p);

// A new session with the pages that the prefix cache has of the prompt; it may be empty.
int sl_prefix_open(sl_scheduler *s, const sl_cached_prompt *p, sl_session **out, sl_error *err);
// Writes the pages that the prefix cache has of the prompt. *n: their tokens. SL_ERR_ARG: it has none, or there is no prefix
// cache. Errors of sl_session_save.
int sl_prefix_save(sl_scheduler *s, const sl_cached_prompt *p, const char *path, int *n, sl_error *err);
// Adds the full pages of prefilled rows of a session file to the prefix cache, and sets *p to their prompt. SL_ERR_ARG: the
// file is of another model or other arithmetic, or it has no such page. SL_ERR_MEMORY: the pages do not fit beside those of the
// jobs. Errors of sl_session_load and of sl_engine_set_prefill. After an error nothing has changed, but the cache may have lost
// pages.
int sl_prefix_restore(sl_scheduler *s, const char *path, const char *salt, sl_cached_prompt *p, sl_error *err);
// Removes the pages of the prompt that no job and no longer prompt needs. Returns their tokens.
int sl_prefix_erase(sl_scheduler *s, const sl_cached_prompt *p);

#endif
