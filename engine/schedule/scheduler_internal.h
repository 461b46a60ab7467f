// engine/schedule/scheduler_internal.h - what the other files of engine/schedule/ need of the scheduler.
#ifndef SLEIGH_SCHEDULER_INTERNAL_H
#define SLEIGH_SCHEDULER_INTERNAL_H

#include "engine/schedule/prefix_tree.h"
#include "engine/schedule/scheduler.h"

sl_engine *sl_scheduler_engine(const sl_scheduler *s);
sl_prefix_tree *sl_scheduler_tree(const sl_scheduler *s); // NULL: no prefix cache
// Sets the methods of the next prefill. plan with n_layers 0: dense.
int sl_scheduler_set_prefill(const sl_scheduler *s, const sl_attn_plan *plan, int segment, sl_error *err);
// Makes n free pages that no admitted job counts on, and returns 1. 0: there are not so many.
int sl_scheduler_make_room(sl_scheduler *s, int n);
// The pages of n that hold whole segments of a sparse prefill. segment 0: all
static inline int sl_whole_segments(int n_pages, int segment) {
    return segment ? n_pages * SL_PAGE / segment * segment / SL_PAGE : n_pages;
}
// The key of prompts with these methods and this salt (NULL: "") in the prefix cache. The caller frees *out.
int sl_prefix_key(const sl_attn_plan *prefill, int segment, const char *salt, char **out, sl_error *err);

#endif
