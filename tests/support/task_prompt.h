// tests/support/task_prompt.h - prompts that the embedded model can answer, as token ids.
#ifndef SLEIGH_TEST_TASK_PROMPT_H
#define SLEIGH_TEST_TASK_PROMPT_H

#include "engine/engine.h"
#include "cli/eval/eval_prompt.h"

// Appends the context and question of a task of eval to *ids, from 9/10 of n_tokens up to n_tokens. Seed 1.
void task_prompt(const sl_model *model, const char *task, int n_tokens, sl_ids *ids);

#endif
