// engine/cli/compare/compare_forced.h - the teacher-forced run of one prompt of sleigh compare.
#ifndef SLEIGH_COMPARE_FORCED_H
#define SLEIGH_COMPARE_FORCED_H

#include "engine/cli/compare/compare.h"

// The tokens that dense attention and the methods decode.
typedef struct compare_path {
    sl_ids own;         // owns the tokens if there is no reference
    const int32_t *ids; // [n]
    int n, n_before;    // n_before: first tokens that are the prompt
    int from;           // first token that is decoded; the tokens before it are the dense prefix
} compare_path;

// Prompt and reference, or prompt and answer of dense attention. The caller calls sl_ids_free(&path->own).
int compare_path_init(const compare *c, const compare_prompt *p, compare_path *path, sl_error *err);
// c->t.session must hold the dense prefix. Adds the values of the next-tokens comparison.
int compare_forced_run(compare *c, const compare_prompt *p, const compare_path *path, sl_error *err);

#endif
