// cli/compare/compare_forced.h - the teacher-forced run of sleigh compare, for one prompt or for a batch of prompts.
#ifndef SLEIGH_COMPARE_FORCED_H
#define SLEIGH_COMPARE_FORCED_H

#include "cli/compare/compare.h"

// The tokens that dense attention and the methods decode.
typedef struct compare_path {
    sl_ids own;         // owns the tokens if there is no reference
    const int32_t *ids; // [n]
    int n, n_before;    // n_before: first tokens that are the prompt
    int from;           // first token that is decoded; the tokens before it are the dense prefix
} compare_path;

// Prompt and reference, or prompt and answer of dense attention. The caller calls sl_ids_free(&path->own).
int compare_path_init(const compare *c, const compare_prompt *p, compare_path *path, sl_error *err);

typedef struct compare_forced compare_forced;

int compare_forced_new(compare *c, int n_prompts, compare_forced **out, sl_error *err);
void compare_forced_free(compare_forced *f);
// Adds a prompt to the batch: each method gets a fork of its prefix, dense attention of c->dense_prefix. Takes over path->own.
int compare_forced_add(compare_forced *f, compare_prompt *p, const compare_path *path, sl_error *err);
// Runs the batch. Adds the values of the next-tokens comparison, prompt by prompt.
int compare_forced_run(compare_forced *f, sl_error *err);

#endif
